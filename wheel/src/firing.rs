//! What surrounds every firing: what is due is noted with how late it was and how long it took, and a panic ends there.

use std::sync::Arc;
use std::time::Instant;

use crate::clock::Clock;
use crate::panics::Panics;
use crate::statistics::Record;
use crate::tick::TickScale;

/// What the handlers of a timer share with it.
#[derive(Debug)]
pub(crate) struct Firing {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) scale: TickScale,
    pub(crate) panics: Panics,
    pub(crate) record: Record,
}

impl Firing {
    /// What the clock shows. If it panics, when the timer was built: only figures are made of it, and a wrong figure is
    /// better than a task that was taken and is not run.
    pub(crate) fn now(&self) -> Instant {
        let mut now = self.scale.start();
        self.panics.contain(|| now = self.clock.now());
        now
    }

    /// Calls `foreign`, which began at `begun`, notes how long it took, and says when it ended.
    pub(crate) fn run(&self, begun: Instant, foreign: impl FnOnce()) -> Instant {
        self.panics.contain(foreign);
        let ended = self.now();
        self.record.took(ended.saturating_duration_since(begun));
        ended
    }

    /// Notes that what was due at these ticks, in ascending runs, is fired at `now`.
    pub(crate) fn fired_all(&self, dues: &[u64], now: Instant) {
        for run in dues.chunk_by(|one, next| one == next) {
            if let Some(due) = run.first() {
                self.record.fired(self.scale.nanos_after(*due, now), run.len() as u64);
            }
        }
    }
}
