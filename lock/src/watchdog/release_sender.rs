//! Sends the releases queued for one server, on its renewal thread, between renewal passes.
//!
//! A release is sent until the server acknowledges it past the deadline of any late copy, or until
//! the released hold has expired. The replies carry the server's time for this decision. Releases
//! are sent in passes of 100, with renewals in between, which wait for about a millisecond.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use hashed_wheel::Clock;

use crate::ledger::ledger::{MAX_PER_PASS, ReleaseAnswer};
use crate::ledger::release::ReleaseOp;
use crate::model::name::LockName;
use crate::model::release_no::ReleaseNo;
use crate::model::sync::SystemClock;
use crate::ops::Released;
use crate::store::{Failure, PipelineRequest, PipelineSource};
use crate::watchdog::watchdog::Watchdog;
use crate::watchdog::worker::RenewalWorker;

/// How long queued releases are still sent when the client ends. A server answers some hundred
/// thousand releases in this time. A shutdown may take longer.
const LAST_RELEASES: Duration = Duration::from_secs(5);

/// Sends up to [`MAX_PER_PASS`] queued releases that are due at `now`, and waits for the replies
/// within `timeout`. Returns whether the server has acknowledged any release for the first time.
pub(crate) fn send_queued_releases(
    watchdog: &Watchdog,
    worker: &RenewalWorker,
    now: Instant,
    timeout: Duration,
) -> bool {
    // When the client ends, the thread of another server may have ended already. Releases for such
    // a server are redirected from here.
    let is_stopping = watchdog.context.is_stopping();
    if !is_stopping {
        watchdog.releases.move_to_new_servers(worker.server, now);
    }
    let due = watchdog.releases.ledger().begin_pass(worker.server, now, MAX_PER_PASS);
    let first = due.first().map(|(_, name, _)| watchdog.context.server_of(name));
    let sent = due.iter().map(|(no, _, _)| *no).collect();
    let due = VecDeque::from(due);
    let mut pass = ReleasePass {
        watchdog,
        worker,
        due,
        sent,
        timeout,
        sent_at: now,
        now,
        has_progress: false,
    };
    if let Some(first) = first {
        let server = if is_stopping { first } else { worker.server };
        watchdog.context.store.run_pipeline(server, &mut pass);
        pass.now = watchdog.context.now();
    }
    pass.has_progress
}

/// The releases of one pass, sent through the pipeline of a server.
struct ReleasePass<'a> {
    watchdog: &'a Watchdog,
    worker: &'a RenewalWorker,
    /// The releases not sent yet.
    due: VecDeque<(ReleaseNo, LockName, ReleaseOp)>,
    /// All releases of the pass.
    sent: Vec<ReleaseNo>,
    timeout: Duration,
    sent_at: Instant,
    /// The last reading of the clock.
    now: Instant,
    /// Whether the server has acknowledged any release for the first time.
    has_progress: bool,
}

impl PipelineSource for ReleasePass<'_> {
    type Operation = ReleaseOp;
    type Tag = ReleaseNo;

    fn max_in_flight(&self) -> usize {
        MAX_PER_PASS
    }

    fn next(&mut self) -> Option<PipelineRequest<ReleaseOp, ReleaseNo>> {
        let (no, _, operation) = self.due.pop_front()?;
        Some(PipelineRequest { operation, tag: no, timeout: self.timeout })
    }

    fn on_reply(&mut self, no: ReleaseNo, reply: Result<Released, Failure>) {
        self.now = self.watchdog.context.now();
        if matches!(reply, Ok(_) | Err(Failure::Refused { .. })) {
            self.worker.set_silent(false);
        }
        let answer =
            ReleaseAnswer { sent_at: self.sent_at, reply: reply.as_ref(), has_copies: false };
        self.has_progress |= self.watchdog.settle_one(no, true, self.now, answer);
    }
}

impl Drop for ReleasePass<'_> {
    /// Also after a panic: unanswered releases stay queued, and no thread waits for a finished
    /// pass. The clock is not read, as the clock may have panicked.
    fn drop(&mut self) {
        self.watchdog.releases.ledger().end_pass(self.now, &self.sent);
        self.watchdog.releases.wake_waiters();
    }
}

/// Sends every queued release when the client ends, as long as the server acknowledges some.
///
/// Takes at most [`LAST_RELEASES`] by the system's clock, as the server takes the time. After a
/// pass without progress, a second pass uses a new connection: the server may have closed the
/// first connection. Unsent releases are left to their leases, and so are the holds which late
/// copies may create.
pub(crate) fn send_last_releases(watchdog: &Watchdog, worker: &RenewalWorker) {
    let deadline = SystemClock.now() + LAST_RELEASES;
    let mut without_progress = 0;
    while without_progress < 2 {
        let left = deadline.saturating_duration_since(SystemClock.now());
        let last_due = watchdog.releases.ledger().last_due(worker.server);
        let Some(last_due) = last_due.filter(|_| !left.is_zero()) else { break };
        let timeout = watchdog.context.release_timeout().min(left);
        if !send_queued_releases(watchdog, worker, last_due, timeout) {
            without_progress += 1;
        }
    }
    watchdog.releases.ledger().abandon(worker.server);
}
