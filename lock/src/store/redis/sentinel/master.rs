//! The address of a server: fixed, or the master reported by sentinels.

use std::fmt;
use std::time::{Duration, Instant};

use hashed_wheel::Clock;

use crate::model::sync::{Condvar, Mutex, SystemClock};
use crate::store::failure::Failure;
use crate::store::redis::address::url::{Address, Peer};
use crate::store::redis::net::deadline::Deadline;
use crate::store::redis::sentinel::query::Sentinels;
use crate::store::redis::sentinel::report::MasterReport;

/// The address of a server: fixed, or the master that sentinels report.
#[derive(Debug)]
pub(crate) enum MasterEndpoint {
    Fixed(Peer),
    Followed(Box<Master>),
}

/// The master of a name, as reported by the sentinels.
#[derive(Debug)]
pub(crate) struct Master {
    pub(crate) sentinels: Sentinels,
    state: Mutex<MasterState>,
    /// Signalled when the master moves, when a query ends, and at the close.
    changed: Condvar,
}

/// The known report of the master, and the progress of queries and failovers.
#[derive(Debug, Default)]
struct MasterState {
    known: Option<MasterReport>,
    /// Whether the sentinels must be queried before another connection is made.
    stale: bool,
    /// Whether a thread is querying the sentinels. Concurrent queries wait for its result.
    querying: bool,
    /// Why the last query failed.
    failure: Option<Failure>,
    failovers: u64,
    /// When the last failover became known.
    failover_known_at: Option<Instant>,
    closed: bool,
}

/// How long a failover may take to reach all sentinels. Until then, a majority of outdated
/// sentinels cannot revert the failover.
const FAILOVER_SPREAD_TIME: Duration = Duration::from_secs(10);

/// The right to query the sentinels, for one thread at a time. Dropped to admit another thread.
struct Querying<'a>(&'a Master);

impl<'a> Querying<'a> {
    /// Takes the right to query, until the returned value is dropped.
    fn begin(master: &'a Master, state: &mut MasterState) -> Self {
        state.querying = true;
        Self(master)
    }
}

impl Drop for Querying<'_> {
    fn drop(&mut self) {
        self.0.state.lock().querying = false;
        self.0.changed.notify_all();
    }
}

/// The effect of a report on the known address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MasterChange {
    /// The address is unchanged, or was unknown before.
    Unchanged,
    /// The address has changed. Connections to the old server must be shut.
    Moved,
}

impl Master {
    pub(crate) fn new(sentinels: Sentinels) -> Self {
        Self { sentinels, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Returns the known address. `None` if no address is known, or if the address may be stale.
    pub(crate) fn address(&self) -> Option<Address> {
        let state = self.state.lock();
        state.known.as_ref().filter(|_| !state.stale).map(|known| known.address.clone())
    }

    /// Returns the number of failovers. Read this number before any step that a failover might
    /// break.
    pub(crate) fn failovers(&self) -> u64 {
        self.state.lock().failovers
    }

    /// Marks `address` as stale: its server may be gone, or no longer be the master. Ignored if the
    /// master has moved meanwhile.
    pub(crate) fn suspect(&self, address: &Address) {
        let mut state = self.state.lock();
        state.stale |= state.is_at(address);
    }

    /// Marks the known address as stale: its server is not the master.
    pub(crate) fn invalidate(&self) {
        self.state.lock().stale = true;
    }

    /// Queries the sentinels, and adopts the report. While another thread queries, waits for the
    /// end of the other query instead, and returns its failure or
    /// [`Unchanged`](MasterChange::Unchanged).
    pub(crate) fn query(&self, deadline: &mut Deadline) -> Result<MasterChange, Failure> {
        // 1. One thread queries at a time; concurrent callers share the result.
        let (known, before, querying) = {
            let mut state = self.state.lock();
            if state.querying {
                while state.querying && !state.closed {
                    let Ok(left) = deadline.refresh().left() else { break };
                    self.changed.wait_for(&mut state, left);
                }
                return match &state.failure {
                    Some(failure) => Err(failure.clone()),
                    None if state.querying => {
                        Err(self.sentinels.failure("no sentinel replied in time"))
                    }
                    None => Ok(MasterChange::Unchanged),
                };
            }
            let querying = Querying::begin(self, &mut state);
            (state.known.clone(), state.failure.take(), querying)
        };
        // 2. Query with the state unlocked. Without time left, report the earlier failure.
        let report = match deadline.refresh().left() {
            Ok(_) => self.sentinels.find_master(known.as_ref(), deadline),
            Err(_) => Err(before.unwrap_or_else(|| self.sentinels.failure("no time was left"))),
        };
        // 3. Adopt the report, unless a newer report has arrived meanwhile or the report reverts a
        //    failover.
        let mut state = self.state.lock();
        let change = match report {
            Ok(report) if known != state.known && !state.is_newer(&report) => {
                Ok(MasterChange::Unchanged)
            }
            Ok(report) if state.reverts_failover(&report, SystemClock.now()) => {
                let reason = "the sentinels that reply know less than is known already";
                let failure = self.sentinels.failure(reason);
                state.failure = Some(failure.clone());
                Err(failure)
            }
            Ok(report) => {
                state.stale = false;
                Ok(state.adopt(report))
            }
            Err(failure) => {
                state.failure = Some(failure.clone());
                Err(failure)
            }
        };
        drop(state);
        drop(querying);
        change
    }

    /// Adopts one sentinel's report if its epoch is higher than the known epoch. Without a known
    /// report, a single report is not enough.
    pub(crate) fn update(&self, report: MasterReport) -> MasterChange {
        let mut state = self.state.lock();
        if state.known.is_none() || !state.is_newer(&report) {
            return MasterChange::Unchanged;
        }
        state.stale = false;
        let change = state.adopt(report);
        self.changed.notify_all();
        change
    }

    /// Waits for a failover after the first `failovers`, for at most `timeout`. Returns `false` on
    /// timeout, and `true` after a failover or [`close`](Self::close).
    pub(crate) fn wait_for_failover(&self, failovers: u64, timeout: Duration) -> bool {
        let mut deadline = Deadline::after(timeout);
        let mut state = self.state.lock();
        while state.failovers == failovers && !state.closed {
            let Ok(left) = deadline.refresh().left() else { return false };
            self.changed.wait_for(&mut state, left);
        }
        true
    }

    /// Ends every wait, now and later, and shuts the connections to the sentinels.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_all();
        self.sentinels.shut();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state.lock().closed
    }
}

impl MasterState {
    /// Returns whether no report is known, or `report` has a higher epoch.
    fn is_newer(&self, report: &MasterReport) -> bool {
        self.known.as_ref().is_none_or(|known| report.epoch > known.epoch)
    }

    /// Returns whether `address` is the known address.
    fn is_at(&self, address: &Address) -> bool {
        self.known.as_ref().is_some_and(|known| known.address == *address)
    }

    /// Returns whether `report` has a lower epoch than the known report, while at `now` the last
    /// failover may not have reached all sentinels.
    fn reverts_failover(&self, report: &MasterReport, now: Instant) -> bool {
        self.known.as_ref().is_some_and(|known| report.epoch < known.epoch)
            && self.failover_known_at.is_some_and(|at| now < at + FAILOVER_SPREAD_TIME)
    }

    /// Replaces the known report, and counts a failover if the address differs.
    fn adopt(&mut self, report: MasterReport) -> MasterChange {
        if self.is_newer(&report) {
            self.failover_known_at = Some(SystemClock.now());
        }
        let moved = self.known.as_ref().is_some_and(|before| before.address != report.address);
        self.known = Some(report);
        if !moved {
            return MasterChange::Unchanged;
        }
        self.failovers += 1;
        MasterChange::Moved
    }
}

impl fmt::Display for MasterEndpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(peer) => peer.fmt(formatter),
            Self::Followed(master) => match &master.state.lock().known {
                Some(known) => write!(formatter, "{} ({})", known.address, master.sentinels.name()),
                None => master.sentinels.fmt(formatter),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::store::redis::address::url::Access;

    fn address(port: u16) -> Address {
        Address { host: "10.0.0.1".to_owned(), port }
    }

    fn master() -> Master {
        let access = Access::default();
        let name = "mymaster".to_owned();
        Master::new(Sentinels::new(name, Vec::new(), access, Duration::from_secs(1)))
    }

    fn set_known(master: &Master, report: MasterReport) {
        assert_eq!(master.state.lock().adopt(report), MasterChange::Unchanged);
    }

    fn report(port: u16, epoch: u64) -> MasterReport {
        MasterReport { address: address(port), epoch }
    }

    #[test]
    fn master_moves_when_a_later_failover_reports_a_new_address() {
        let master = master();
        assert_eq!(master.update(report(3, 5)), MasterChange::Unchanged);
        assert_eq!(master.address(), None);
        set_known(&master, report(1, 5));
        assert_eq!(master.update(report(2, 5)), MasterChange::Unchanged);
        assert_eq!(master.update(report(1, 6)), MasterChange::Unchanged);
        assert_eq!(master.address(), Some(address(1)));
        assert_eq!(master.update(report(2, 7)), MasterChange::Moved);
        assert_eq!(master.address(), Some(address(2)));
        assert_eq!(master.failovers(), 1);
    }

    #[test]
    fn a_suspected_address_is_not_given_until_a_newer_report_comes() {
        let master = master();
        set_known(&master, report(1, 5));
        master.suspect(&address(2));
        assert_eq!(master.address(), Some(address(1)));
        master.suspect(&address(1));
        assert_eq!(master.address(), None);
        assert_eq!(master.update(report(1, 5)), MasterChange::Unchanged);
        assert_eq!(master.address(), None);
        assert_eq!(master.update(report(2, 6)), MasterChange::Moved);
        assert_eq!(master.address(), Some(address(2)));
    }

    #[test]
    fn after_a_query_that_panics_another_thread_asks() {
        let master = master();
        let panics = AssertUnwindSafe(|| {
            let _querying = Querying::begin(&master, &mut master.state.lock());
            panic!("a sentinel's certificate is looked at");
        });
        assert!(catch_unwind(panics).is_err());
        // It finds that there are no sentinels, and does not wait for its whole time.
        let failure = master.query(&mut Deadline::after(FAILOVER_SPREAD_TIME)).unwrap_err();
        assert!(format!("{failure:?}").contains("to ask a sentinel"), "{failure:?}");
    }

    #[test]
    fn an_older_report_does_not_count_right_after_a_failover() {
        let master = master();
        let mut state = master.state.lock();
        state.adopt(report(1, 5));
        state.adopt(report(2, 6));
        let now = SystemClock.now();
        assert!(state.reverts_failover(&report(1, 5), now));
        assert!(!state.reverts_failover(&report(1, 5), now + FAILOVER_SPREAD_TIME));
        assert!(!state.reverts_failover(&report(3, 7), now));
    }
}
