//! What a server has done so far: renewals, scripts, and its processor time.

use wheellock_fixture::RawConnection;

/// A reading of the server's own counters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerLoad {
    /// Calls of PEXPIRE: every holder's script has one for each renewal.
    pub(crate) renewals: f64,
    pub(crate) scripts: f64,
    /// Time in scripts, in microseconds.
    pub(crate) script_micros: f64,
    /// Processor time of the whole server, in seconds.
    pub(crate) processor: f64,
    /// The number of keys.
    pub(crate) keys: f64,
}

impl ServerLoad {
    pub(crate) fn read(connection: &mut RawConnection) -> Self {
        let commands = connection.command(&["INFO", "commandstats"]).text();
        let processor = connection.command(&["INFO", "cpu"]).text();
        let calls = |command| number(&commands, &format!("cmdstat_{command}:"), "calls=");
        let micros = |command| number(&commands, &format!("cmdstat_{command}:"), "usec=");
        let seconds = |kind| number(&processor, &format!("used_cpu_{kind}:"), "");
        let keys = connection.command(&["DBSIZE"]).integer();
        Self {
            renewals: calls("pexpire"),
            scripts: calls("evalsha") + calls("eval"),
            script_micros: micros("evalsha") + micros("eval"),
            processor: seconds("user") + seconds("sys"),
            keys: u32::try_from(keys).map_or(f64::NAN, f64::from),
        }
    }

    /// What was added since an earlier reading. The keys are the present ones.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            renewals: self.renewals - before.renewals,
            scripts: self.scripts - before.scripts,
            script_micros: self.script_micros - before.script_micros,
            processor: self.processor - before.processor,
            keys: self.keys,
        }
    }
}

/// The number after `name` in the line that starts with `line`. Zero if there is none.
fn number(text: &str, line: &str, name: &str) -> f64 {
    text.lines()
        .find_map(|text| text.strip_prefix(line))
        .and_then(|values| values.split(',').find_map(|value| value.strip_prefix(name)))
        .and_then(|value| value.trim().parse().ok())
        .unwrap_or(0.0)
}
