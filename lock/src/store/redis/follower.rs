//! The thread that follows a master: it hears from a sentinel when another takes over, and looks for itself.
//!
//! One sentinel tells of switches as they happen. The others are asked in turn, in case that one is cut off or hangs;
//! and the master is asked whether it is one, in case no sentinel can be heard. Whatever is found out, the server is
//! told, which shuts every socket to the old master. Nothing here ever fails a caller.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use hashed_wheel::{Clock, SystemClock};

use super::address::Address;
use super::command::Command;
use super::connection::{Connection, Limit};
use super::sentinels::Sentinel;
use super::server::{Server, is_master, role};
use super::whereabouts::Master;
use crate::error::Error;
use crate::value::Value;

/// A handle on the thread, which ends with it.
pub(super) struct Follower {
    server: Arc<Server>,
    /// In a child of this process there is no such thread, and a lock may be held for ever.
    process: u32,
}

/// How often it looks for itself. Each time the master is asked, and one sentinel.
const BETWEEN_LOOKS: Duration = Duration::from_secs(2);
/// A sentinel that gave no answer is asked at one look of so many.
const LOOKS_PER_SILENT: u32 = 5;
/// How long a sentinel or a master may keep the thread, which hears of nothing meanwhile.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long the answer of the master is waited for, before it is left to the next look.
const SHORT_PATIENCE: Duration = Duration::from_millis(50);
/// Between two rounds in which no sentinel could be heard.
const PAUSE: Duration = Duration::from_millis(500);

const SWITCHED: &str = "+switch-master";
/// The sentinel that leads a failover knows of it earlier than it tells.
const PROMOTED: &str = "+promoted-slave";

impl Follower {
    pub(super) fn start(server: &Arc<Server>) -> Result<Self, Error> {
        let own = Arc::clone(server);
        thread::Builder::new()
            .name("lock-sentinel".to_owned())
            .spawn(move || {
                if let Some(master) = own.master() {
                    Following::new(&own, master).run();
                }
            })
            .map_err(|error| Error::Thread { reason: error.to_string() })?;
        Ok(Self { server: Arc::clone(server), process: std::process::id() })
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        if let Some(master) = self.server.master()
            && self.process == std::process::id()
        {
            master.close();
        }
    }
}

/// What the thread has.
struct Following<'a> {
    server: &'a Server,
    master: &'a Master,
    heard: Option<Heard>,
    /// Connections to the others.
    kept: Vec<(Address, Connection)>,
    /// The connection on which the master is asked for its role.
    probe: Option<Probe>,
    looks: u32,
    next_look: Instant,
}

/// The sentinel that tells of switches.
struct Heard {
    sentinel: Arc<Sentinel>,
    connection: Connection,
    /// Whether it was asked for a sign of life and gave none so far.
    asked: bool,
}

struct Probe {
    connection: Connection,
    /// Whether its answer is still to come.
    asked: bool,
}

impl<'a> Following<'a> {
    fn new(server: &'a Server, master: &'a Master) -> Self {
        Self {
            server,
            master,
            heard: None,
            kept: Vec::new(),
            probe: None,
            looks: 0,
            next_look: SystemClock.now() + BETWEEN_LOOKS,
        }
    }

    fn run(mut self) {
        while !self.master.is_closed() {
            if self.heard.is_none() {
                self.find_one_to_hear();
            }
            if self.next_look <= SystemClock.now() {
                self.look();
                self.next_look = SystemClock.now() + BETWEEN_LOOKS;
            }
            if self.heard.is_some() {
                self.hear();
            } else {
                self.master.wait_for_a_move(self.master.moves(), PAUSE);
            }
        }
    }

    /// Subscribes to the messages of the first sentinel that lets us. Those that were silent come last.
    fn find_one_to_hear(&mut self) {
        let mut all = self.master.sentinels.all();
        all.sort_by_key(|sentinel| sentinel.is_silent());
        for sentinel in all {
            if self.master.is_closed() {
                return;
            }
            let mut limit = Limit::after(PATIENCE);
            // What has happened until now it does not tell any more, so it is asked afterwards.
            let Some(connection) = self.subscribe(&sentinel, &mut limit) else { continue };
            if self.ask(&sentinel) {
                self.heard = Some(Heard { sentinel, connection, asked: false });
                return;
            }
        }
    }

    fn subscribe(&self, sentinel: &Sentinel, limit: &mut Limit) -> Option<Connection> {
        let mut connection = self.master.sentinels.connect(sentinel, limit).ok()?;
        let channels = [SWITCHED, PROMOTED];
        let packed = Command::of(&["SUBSCRIBE", SWITCHED, PROMOTED]);
        connection.send(&packed, &mut limit.refresh()).ok()?;
        for _ in channels {
            let confirmation = connection.receive(&mut limit.refresh()).ok()?;
            matches!(confirmation, Value::Array(_)).then_some(())?;
        }
        Some(connection)
    }

    /// Waits for messages until it is time to look.
    fn hear(&mut self) {
        let Some(heard) = &mut self.heard else { return };
        let left = self.next_look.saturating_duration_since(SystemClock.now());
        match heard.connection.receive(&mut Limit::after(left)) {
            Ok(message) => {
                heard.asked = false;
                let sentinel = Arc::clone(&heard.sentinel);
                self.take_in(&message, &sentinel);
            }
            // It is time.
            Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {}
            Err(_) => self.heard = None,
        }
    }

    fn take_in(&mut self, message: &Value, sentinel: &Sentinel) {
        let Value::Array(parts) = message else { return };
        let [Value::Text(kind), Value::Text(channel), Value::Text(text)] = parts.as_slice() else {
            return;
        };
        let name = self.master.sentinels.name();
        let is_known = match channel.as_str() {
            SWITCHED => match switch(text, name) {
                Some((from, to)) => self.server.switched(&from, to),
                None => true,
            },
            PROMOTED => !text.split(' ').any(|word| word == name),
            _ => true,
        };
        if kind == "message" && !is_known {
            self.ask(sentinel);
        }
    }

    /// Asks everybody who might know of another master.
    fn look(&mut self) {
        self.looks = self.looks.wrapping_add(1);
        if let Some(heard) = &mut self.heard {
            let ping = Command::of(&["PING"]);
            let sent = heard.connection.send(&ping, &mut Limit::after(PATIENCE));
            if std::mem::replace(&mut heard.asked, true) || sent.is_err() {
                // It hangs, and another may not.
                self.heard = None;
            }
        }
        let all = self.master.sentinels.all();
        self.kept.retain(|(address, _)| all.iter().any(|known| known.address == *address));
        let others: Vec<_> = all
            .iter()
            .filter(|other| {
                let silent = other.is_silent() && !self.looks.is_multiple_of(LOOKS_PER_SILENT);
                !silent
                    && self
                        .heard
                        .as_ref()
                        .is_none_or(|heard| heard.sentinel.address != other.address)
            })
            .collect();
        let turn = usize::try_from(self.looks).unwrap_or(0).checked_rem(others.len());
        if let Some(other) = turn.and_then(|turn| others.get(turn)) {
            self.ask(other);
        }
        self.probe();
    }

    /// Asks a sentinel where the master is. Whether it answered.
    fn ask(&mut self, sentinel: &Sentinel) -> bool {
        let place = self.kept.iter().position(|(address, _)| *address == sentinel.address);
        let kept = place.map(|place| self.kept.swap_remove(place).1);
        let was_kept = kept.is_some();
        let sentinels = &self.master.sentinels;
        let mut answer = sentinels.ask(sentinel, kept, &mut Limit::after(PATIENCE));
        if answer.is_err() && was_kept {
            // It may have been closed while it lay idle.
            answer = sentinels.ask(sentinel, None, &mut Limit::after(PATIENCE));
        }
        let Ok((said, connection)) = answer else { return false };
        self.kept.push((sentinel.address.clone(), connection));
        self.server.hear(said);
        true
    }

    /// Asks the master whether it is one. One that hangs is asked once, and not for a new connection.
    fn probe(&mut self) {
        let current = self.probe.take().filter(|probe| self.server.is_current(&probe.connection));
        let opened = current.map_or_else(
            || {
                let connection = self.server.connect(&mut Limit::after(PATIENCE)).ok()?;
                Some(Probe { connection, asked: false })
            },
            Some,
        );
        let Some(mut probe) = opened else { return };
        if !probe.asked {
            let sent = probe.connection.send(&role(), &mut Limit::after(PATIENCE));
            if sent.is_err() {
                return;
            }
            probe.asked = true;
        }
        match probe.connection.receive(&mut Limit::after(SHORT_PATIENCE)) {
            Ok(role) => {
                probe.asked = false;
                if !is_master(&role) {
                    self.server.is_no_master(probe.connection.era);
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {}
            // The next look makes another, and finds out what has happened.
            Err(_) => return,
        }
        self.probe = Some(probe);
    }
}

/// What a sentinel tells of a switch of that master: name, old host and port, new host and port.
fn switch(text: &str, name: &str) -> Option<(Address, Address)> {
    let mut words = text.split(' ');
    let is_ours = words.next() == Some(name);
    let mut address = || {
        let (host, port) = (words.next()?.to_owned(), words.next()?.parse().ok()?);
        Some(Address { host, port })
    };
    let both = (address()?, address()?);
    is_ours.then_some(both)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_is_told_of_one_name_with_both_addresses() {
        let address = |port| Address { host: "10.0.0.1".to_owned(), port };
        let text = "mymaster 10.0.0.1 1 10.0.0.1 2";
        assert_eq!(switch(text, "mymaster"), Some((address(1), address(2))));
        assert_eq!(switch(text, "other"), None);
        assert_eq!(switch("mymaster 10.0.0.1 1 10.0.0.1", "mymaster"), None);
        assert_eq!(switch("mymaster 10.0.0.1 x 10.0.0.1 2", "mymaster"), None);
    }
}
