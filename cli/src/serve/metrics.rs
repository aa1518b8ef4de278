//! The text of `/metrics`, in Prometheus' text format 0.0.4.

use std::fmt::Write as _;
use std::time::Instant;

use super::scanner::Scans;
use super::snapshot::{Counts, LIBRARIES, Snapshot};

/// Writes the metrics of a snapshot at the time `now`.
pub(crate) fn text(snapshot: &Snapshot, scans: Scans, now: Instant) -> String {
    let mut text = Text(String::new());
    text.head("locks", "gauge", "Locks that are held or waited for, and numbers, by kind.");
    for (kind, count) in &snapshot.kinds {
        text.sample("locks", &[("kind", kind)], *count);
    }
    text.head(
        "holders",
        "gauge",
        "Holders of locks, by prefix of the name and library of the holder.",
    );
    text.by_library(snapshot, "holders", |counts, library| {
        (counts.holders[library] > 0).then(|| counts.holders[library].to_string())
    });
    text.head(
        "waiters",
        "gauge",
        "Waiters, by prefix. Of other locks than fair ones, clients that wait.",
    );
    for (prefix, counts) in &snapshot.prefixes {
        text.sample("waiters", &[("prefix", prefix)], counts.waiters);
    }
    text.head("waiters_unknown", "gauge", "Locks of which the server does not say how many wait.");
    let unknown: u64 = snapshot.prefixes.values().map(|counts| counts.waiters_unknown).sum();
    text.sample("waiters_unknown", &[], unknown);
    text.head(
        "oldest_hold_seconds",
        "gauge",
        "Age of the oldest hold. Without a record of the holder's client, as of Redisson's: since each scan finds the holder.",
    );
    text.by_library(snapshot, "oldest_hold_seconds", |counts, library| {
        counts.oldest[library].map(|age| format!("{:.3}", age.as_secs_f64()))
    });
    text.head("locks_without_expiry", "gauge", "Held locks whose key never expires.");
    text.by_library(snapshot, "locks_without_expiry", |counts, library| {
        // A prefix with holders has a sample of zero too, so that an alert is resolved.
        let is_known = counts.holders[library] > 0;
        is_known.then(|| counts.endless[library].to_string())
    });
    text.head("deadlocks", "gauge", "Cycles of threads that wait for each other.");
    text.sample("deadlocks", &[], snapshot.graph.deadlocks.len());
    text.head("unreadable_keys", "gauge", "Keys that the user of the server may not read.");
    text.sample("unreadable_keys", &[], snapshot.unreadable);
    text.head("scan_duration_seconds", "gauge", "How long the last scan took.");
    text.sample("scan_duration_seconds", &[], format!("{:.3}", snapshot.took.as_secs_f64()));
    let age = now.saturating_duration_since(snapshot.ended);
    text.head(
        "scan_age_seconds",
        "gauge",
        "Time since the end of the scan that these metrics are of.",
    );
    text.sample("scan_age_seconds", &[], format!("{:.3}", age.as_secs_f64()));
    text.head("scans_total", "counter", "Scans of the server, by result.");
    text.sample("scans_total", &[("result", "ok")], scans.complete);
    text.sample("scans_total", &[("result", "failed")], scans.failed);
    text.0
}

/// The text written so far. Writing to a `String` never fails, so results are ignored.
struct Text(String);

impl Text {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        writeln!(self.0, "# HELP wheellock_server_{name} {help}").ok();
        writeln!(self.0, "# TYPE wheellock_server_{name} {kind}").ok();
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        write!(self.0, "wheellock_server_{name}").ok();
        for (place, (label, of)) in labels.iter().enumerate() {
            let before = if place == 0 { '{' } else { ',' };
            write!(self.0, "{before}{label}=\"{}\"", escaped(of)).ok();
        }
        let after = if labels.is_empty() { "" } else { "}" };
        writeln!(self.0, "{after} {value}").ok();
    }

    fn by_library(
        &mut self,
        snapshot: &Snapshot,
        name: &str,
        value: impl Fn(&Counts, usize) -> Option<String>,
    ) {
        for (prefix, counts) in &snapshot.prefixes {
            for (library, called) in LIBRARIES.iter().enumerate() {
                if let Some(value) = value(counts, library) {
                    self.sample(name, &[("prefix", prefix), ("library", called)], value);
                }
            }
        }
    }
}

/// Escapes the value of a label. Control characters are escaped before.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use wheellock::{Client, Clock as _, ManualClock};

    use super::*;
    use crate::serve::snapshot::{Scan, Seen};

    #[test]
    fn labels_are_escaped_and_each_sample_is_a_line() {
        let client = Client::in_memory();
        let _guard = client.lock("a\"b\\c\n\u{1b}[2J\u{202e}:1").lock().unwrap();
        let (now, mut seen) = (ManualClock::new().now(), Seen::default());
        let mut scan = Scan::new(":", &mut seen, now);
        for status in client.locks("*") {
            scan.add(status.unwrap(), now);
        }
        let snapshot = scan.end(2, now);
        let scans = Scans { complete: 3, failed: 1 };
        let text = text(&snapshot, scans, now + Duration::from_secs(7));
        for line in [
            r#"wheellock_server_holders{prefix="a\"b\\c\\n\\u{1b}[2J\\u{202e}",library="wheellock"} 1"#,
            r#"wheellock_server_locks{kind="lock"} 1"#,
            "wheellock_server_unreadable_keys 2",
            "wheellock_server_scan_age_seconds 7.000",
            r#"wheellock_server_scans_total{result="failed"} 1"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert!(text.chars().all(|letter| letter == '\n' || !letter.is_control()));
    }
}
