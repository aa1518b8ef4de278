//! The log of recently acknowledged releases, to be sent again after a takeover by another server.
//! Pure: time is an argument.
//!
//! A server acknowledges before its replicas have received the release. So a replica that takes
//! over may still have the released hold until its lease ends. A single server is logged too,
//! because it may be restarted from an old snapshot. The log costs a release one mutex and no
//! reading of the clock.
//!
//! No owner and no id of a permit is ever used again. So a repeated release ends the hold where the
//! hold still exists, and changes nothing elsewhere; only the head of a fair queue may be woken
//! once more. Releases without an owner are not logged: a forced release would end the next hold,
//! and permits without owners would be counted twice.
//!
//! Releases of nested guards need no log: the count stays too high on the replica, and the last
//! release deletes the hold anyway.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::ledger::release::{Release, ReleaseId, ReleaseOp};

/// A release that a server has acknowledged, in the form in which the log can send the release
/// again.
#[derive(Debug)]
pub(crate) struct AcknowledgedRelease {
    pub(crate) id: ReleaseId,
    /// The operation that releases a permit. `None` for a hold, whose id determines the operation.
    operation: Option<ReleaseOp>,
    /// How long the hold or permit would have lasted without the release.
    lifetime: Duration,
}

/// The latest acknowledged releases: at most [`MAX_ENTRIES`], with at most [`MAX_BYTES`] of names,
/// none older than [`MAX_AGE`].
#[derive(Debug, Default)]
pub(crate) struct ReleaseLog {
    /// Each release with the time of sending.
    entries: VecDeque<(Instant, AcknowledgedRelease)>,
    /// The length of all names in `entries`.
    bytes: usize,
}

/// The maximum number of logged releases.
const MAX_ENTRIES: usize = 16_384;
/// The maximum length of all logged names.
const MAX_BYTES: usize = 1 << 20;
/// The maximum age of a logged release. Given the default lease, a hold released longer ago has
/// expired on a replica. And no replica should take over with such a lag.
const MAX_AGE: Duration = Duration::from_secs(30);

impl AcknowledgedRelease {
    /// Makes the log's entry for a released hold, which would have lasted for `lifetime`.
    pub(crate) fn of_hold(id: ReleaseId, lifetime: Duration) -> Self {
        Self { id, operation: None, lifetime }
    }

    /// Makes the log's entry for a permit released by `operation`. `id` has the owner of the
    /// request.
    pub(crate) fn by_operation(id: ReleaseId, operation: ReleaseOp, lifetime: Duration) -> Self {
        Self { id, operation: Some(operation), lifetime }
    }

    /// Converts the entry into a release to be sent again.
    pub(crate) fn into_release(self) -> Release {
        Release::new(self.id, self.operation, self.lifetime, None)
    }

    /// Returns the length of the name.
    fn bytes(&self) -> usize {
        self.id.name.as_str().len()
    }
}

impl ReleaseLog {
    /// Adds a release whose request was sent at `now`, and removes the oldest entries beyond the
    /// limits of number, length and age.
    pub(crate) fn push(&mut self, now: Instant, entry: AcknowledgedRelease) {
        self.bytes += entry.bytes();
        self.entries.push_back((now, entry));
        // In a full log, each new entry removes the oldest.
        while let Some((sent_at, first)) = self.entries.front() {
            let fits = self.entries.len() <= MAX_ENTRIES && self.bytes <= MAX_BYTES;
            if fits && now.saturating_duration_since(*sent_at) <= MAX_AGE {
                break;
            }
            self.bytes -= first.bytes();
            drop(self.entries.pop_front());
        }
    }

    /// Removes and returns the releases for which `moved` says that their server was replaced.
    /// Drops entries older than [`MAX_AGE`].
    pub(crate) fn take(
        &mut self,
        now: Instant,
        moved: impl Fn(&ReleaseId) -> bool,
    ) -> Vec<AcknowledgedRelease> {
        self.bytes = 0;
        let mut taken = Vec::new();
        for (sent_at, entry) in std::mem::take(&mut self.entries) {
            if now.saturating_duration_since(sent_at) > MAX_AGE {
                continue;
            }
            if moved(&entry.id) {
                taken.push(entry);
            } else {
                self.bytes += entry.bytes();
                self.entries.push_back((sent_at, entry));
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::clock::origin;
    use crate::model::kind::Kind;
    use crate::model::name::LockName;
    use crate::model::owner::ClientId;

    fn entry(name: &str) -> AcknowledgedRelease {
        let name = LockName::parse(name).unwrap();
        let id =
            ReleaseId { kind: Some(Kind::Reentrant), name, owner: ClientId::random().next_owner() };
        AcknowledgedRelease::of_hold(id, Duration::from_secs(30))
    }

    fn names(taken: &[AcknowledgedRelease]) -> Vec<&str> {
        taken.iter().map(|entry| entry.id.name.as_str()).collect()
    }

    #[test]
    fn entries_of_a_moved_server_are_taken_once_and_the_others_stay() {
        let (mut log, now) = (ReleaseLog::default(), origin());
        for name in ["a", "b", "c"] {
            log.push(now, entry(name));
        }
        let taken = log.take(now, |id| id.name.as_str() != "b");
        assert_eq!(names(&taken), ["a", "c"]);
        assert_eq!((log.entries.len(), log.bytes), (1, 1));
        assert_eq!(names(&log.take(now, |_| true)), ["b"]);
        assert_eq!((log.entries.len(), log.bytes), (0, 0));
    }

    #[test]
    fn the_log_is_bounded_in_number_in_bytes_and_in_age() {
        let (mut log, now) = (ReleaseLog::default(), origin());
        (0..=MAX_ENTRIES).for_each(|number| log.push(now, entry(&format!("{number:05}"))));
        assert_eq!((log.entries.len(), log.bytes), (MAX_ENTRIES, MAX_ENTRIES * 5));
        assert_eq!(log.entries[0].1.id.name.as_str(), "00001");

        let name = "x".repeat(60_000);
        (0..40).for_each(|_| log.push(now, entry(&name)));
        assert_eq!((log.entries.len(), log.bytes), (17, 17 * 60_000));

        log.push(now + MAX_AGE, entry("young"));
        assert_eq!(log.entries.len(), 18);
        log.push(now + MAX_AGE + Duration::from_nanos(1), entry("younger"));
        assert_eq!(log.entries.len(), 2);
        let late = now + MAX_AGE * 2 + Duration::from_nanos(1);
        assert_eq!(names(&log.take(late, |_| true)), ["younger"]);
    }
}
