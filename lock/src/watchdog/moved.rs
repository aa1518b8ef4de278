//! When another server has taken over: every hold is asked for, as not all of them need be there.
//!
//! A replica that becomes the master knows what had reached it. What had not is lost, and its holder is to be told at
//! once, not at the next renewal; and a hold that is never renewed would not be told at all. So each is asked for soon:
//! a watched one is renewed, of any other what is left of its lease is asked for again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{Jumps, Shared};
use crate::hold::Hold;

/// When the server changed last.
#[derive(Debug, Default)]
pub(super) struct Moved {
    /// How often it had, when that was looked at last.
    moves: AtomicU64,
    /// When that was, in nanoseconds after the beginning; zero if never.
    at: AtomicU64,
}

/// All are asked for within so many ticks, however many they are.
const TICKS: usize = 200;

/// The fewest that are asked for in one tick. A tick of them is what one write carries.
const PER_TICK: usize = 100;

impl Shared {
    /// On a renewal thread: if the server has changed, every hold is put where it is soon asked for.
    pub(super) fn check_all_if_moved(&self, jumps: &mut Jumps) {
        let moves = self.store.moves();
        // Relaxed: whoever sees the change acts on it, and nobody else has to know.
        if self.moved.moves.swap(moves, Ordering::Relaxed) == moves {
            return;
        }
        let now = self.clock.now();
        // Before the book is looked at: what enters it later was granted after this, or sees it.
        self.moved.at.store(self.nanos_of(now), Ordering::SeqCst);
        // Another server's clock is another clock.
        *jumps = Jumps::default();
        let mut holds = self.holds.all();
        holds.sort_by_cached_key(|hold| hold.valid_until());
        let per_tick = holds.len().div_ceil(TICKS).max(PER_TICK);
        for (tick, together) in holds.chunks(per_tick).enumerate() {
            let at = now + self.settings.tick * u32::try_from(tick).unwrap_or(u32::MAX);
            for hold in together {
                self.check(hold, at);
            }
        }
    }

    /// A hold has entered the book that was granted to a request sent at `sent_at`. If the server has changed since, it
    /// may be the old one that granted it.
    pub(super) fn check_if_moved_since(&self, hold: &Arc<Hold>, sent_at: Instant) {
        let moved_at = self.moved.at.load(Ordering::SeqCst);
        if moved_at > 0 && self.nanos_of(sent_at) <= moved_at {
            self.check(hold, sent_at);
        }
    }

    /// Asks the server for a hold at `at`, unless it ends before.
    fn check(&self, hold: &Arc<Hold>, at: Instant) {
        hold.set_unsure(true);
        if let Some(end) = hold.valid_until() {
            self.place(hold, at.min(end));
        }
    }

    /// More than zero.
    fn nanos_of(&self, at: Instant) -> u64 {
        let after = at.saturating_duration_since(self.schedule.origin());
        u64::try_from(after.max(Duration::from_nanos(1)).as_nanos()).unwrap_or(u64::MAX)
    }
}
