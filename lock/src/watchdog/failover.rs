//! Verifies every hold after a move of its server: some holds may be gone.
//!
//! Three events count as a move: sentinels name another master, a replica of a cluster took over,
//! or the server was restarted (recognized by its `run_id`). A promoted replica has only replicated
//! holds; all other holds are lost. Their owners must be notified at once, not at the next renewal,
//! and a hold without renewals would never be found lost. So each hold is soon verified: a watched
//! hold by a renewal, any other by a query for the rest of its lease, which prolongs nothing.
//!
//! A release which was not replicated has left a hold without an owner. So recent releases are
//! queued again, due after the holds are verified. Owners and permit ids are never reused, so a
//! replicated release finds nothing the second time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::hold::hold::Hold;
use crate::watchdog::context::Context;
use crate::watchdog::scheduler::Scheduler;
use crate::watchdog::shared_ledger::SharedLedger;

/// Detects that a server has moved, and schedules a verification of the holds there.
#[derive(Debug)]
pub(crate) struct FailoverCheck {
    context: Arc<Context>,
    scheduler: Arc<Scheduler>,
    releases: Arc<SharedLedger>,
    /// The number of moves at the last check.
    moves: AtomicU64,
    /// When the last move was seen, in nanoseconds since the scheduler's origin; zero if never.
    moved_at: AtomicU64,
}

/// The maximum number of ticks over which the verifications of all holds are spread.
const TICKS: usize = 200;

/// The minimum number of holds verified in one tick: one write carries so many requests.
const MIN_PER_TICK: usize = 100;

impl FailoverCheck {
    pub(crate) fn new(
        context: Arc<Context>,
        scheduler: Arc<Scheduler>,
        releases: Arc<SharedLedger>,
    ) -> Self {
        let (moves, moved_at) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { context, scheduler, releases, moves, moved_at }
    }

    /// Returns whether a server has moved since the last check. If so, schedules a verification of
    /// each hold on such a server, and queues the recent releases there again. Runs on a renewal
    /// thread.
    pub(crate) fn check(&self) -> bool {
        let context = &self.context;
        let moves = context.store.moves();
        // Relaxed: the thread which sees the change acts, and no other thread has to know.
        let before = self.moves.swap(moves, Ordering::Relaxed);
        if before == moves {
            return false;
        }
        let now = context.now();
        // Before the registry is read: a hold inserted later was granted after this instant, or its
        // thread sees `moved_at`.
        self.moved_at.store(self.nanos_of(now), Ordering::SeqCst);
        let mut holds = context.holds.all();
        holds.retain(|hold| context.store.has_moved(hold.name.as_str(), before));
        holds.sort_by_cached_key(|hold| hold.valid_until());
        let per_tick = holds.len().div_ceil(TICKS).max(MIN_PER_TICK);
        let mut at = now;
        for chunk in holds.chunks(per_tick) {
            for hold in chunk {
                self.verify(hold, at);
            }
            at += context.settings.tick;
        }
        // Renewals due in one tick are sent in the next.
        let due = at + context.settings.tick * 2;
        self.releases
            .server_moved(now, due, |id| context.store.has_moved(id.name.as_str(), before));
        true
    }

    /// Schedules a verification of a newly inserted hold, granted to a request sent at `sent_at`,
    /// if a server has moved since then: the old server may have granted the hold.
    pub(crate) fn check_granted(&self, hold: &Arc<Hold>, sent_at: Instant) {
        let moved_at = self.moved_at.load(Ordering::SeqCst);
        if moved_at > 0 && self.nanos_of(sent_at) <= moved_at {
            self.verify(hold, sent_at);
        }
    }

    /// Schedules the verification of a hold, a renewal or a query, at `at` or at the end of its
    /// validity if sooner. No effect on the schedule of a hold that is over.
    fn verify(&self, hold: &Arc<Hold>, at: Instant) {
        hold.set_needs_verification(true);
        if let Some(end) = hold.valid_until() {
            self.scheduler.move_to(hold, at.min(end));
        }
    }

    /// Returns the nanoseconds from the scheduler's origin to `at`, at least 1.
    fn nanos_of(&self, at: Instant) -> u64 {
        let after = at.saturating_duration_since(self.scheduler.origin());
        u64::try_from(after.max(Duration::from_nanos(1)).as_nanos()).unwrap_or(u64::MAX)
    }
}
