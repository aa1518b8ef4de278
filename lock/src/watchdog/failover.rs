//! When another server has taken over, or the server was restarted, every hold is verified: not all
//! of them need be there (DESIGN: failover).
//!
//! A replica that becomes the master has what had reached it. A hold that had not is lost, and its
//! owner is to learn that at once, not at the next renewal; a hold that is never renewed would not
//! learn it at all. So the server is asked for each soon: a watched hold is renewed, any other asks
//! again for what is left of its lease. A release that had not reached the replica has left a hold
//! without an owner. So recent releases are queued again, behind the holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::hold::hold::Hold;
use crate::watchdog::context::Context;
use crate::watchdog::pending_releases::PendingReleases;
use crate::watchdog::scheduler::Scheduler;

/// When a server was replaced last, and what follows from it.
#[derive(Debug)]
pub(crate) struct FailoverCheck {
    context: Arc<Context>,
    scheduler: Arc<Scheduler>,
    releases: Arc<PendingReleases>,
    /// How many moves of servers there were at the last check.
    moves: AtomicU64,
    /// When the last one was seen, in nanoseconds after the scheduler's origin; zero if never.
    moved_at: AtomicU64,
}

/// All holds are verified within this many ticks.
const TICKS: usize = 200;

/// At least this many are verified in one tick: one write carries them.
const MIN_PER_TICK: usize = 100;

impl FailoverCheck {
    pub(crate) fn new(
        context: Arc<Context>,
        scheduler: Arc<Scheduler>,
        releases: Arc<PendingReleases>,
    ) -> Self {
        let (moves, moved_at) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { context, scheduler, releases, moves, moved_at }
    }

    /// On a renewal thread: if a server has moved, every hold that it had is scheduled to be
    /// verified soon. Returns whether one has moved.
    pub(crate) fn check(&self) -> bool {
        let context = &self.context;
        let moves = context.store.moves();
        // Relaxed: the thread that sees the change acts on it, and no other has to know.
        let before = self.moves.swap(moves, Ordering::Relaxed);
        if before == moves {
            return false;
        }
        let now = context.now();
        // Before the registry is read: a hold that is inserted later was granted after this, or
        // sees it.
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
        // What is due in one tick is sent in the next.
        let due = at + context.settings.tick * 2;
        self.releases
            .server_moved(now, due, |id| context.store.has_moved(id.name.as_str(), before));
        true
    }

    /// A hold was inserted that was granted to a request sent at `sent_at`. If a server has moved
    /// since, the old one may have granted it.
    pub(crate) fn check_granted(&self, hold: &Arc<Hold>, sent_at: Instant) {
        let moved_at = self.moved_at.load(Ordering::SeqCst);
        if moved_at > 0 && self.nanos_of(sent_at) <= moved_at {
            self.verify(hold, sent_at);
        }
    }

    /// Asks the server for a hold at `at`, unless it ends before.
    fn verify(&self, hold: &Arc<Hold>, at: Instant) {
        hold.set_needs_verification(true);
        if let Some(end) = hold.valid_until() {
            self.scheduler.move_to(hold, at.min(end));
        }
    }

    /// More than zero.
    fn nanos_of(&self, at: Instant) -> u64 {
        let after = at.saturating_duration_since(self.scheduler.origin());
        u64::try_from(after.max(Duration::from_nanos(1)).as_nanos()).unwrap_or(u64::MAX)
    }
}
