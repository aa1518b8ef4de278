//! A clock that goes like the system's, and can be set forward: everything that was due meanwhile is due at once.
//!
//! For whoever goes by it that is what a pause of the process or of the machine looks like.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hashed_wheel::{Clock, Parker, SystemClock};
use parking_lot::Mutex;

/// The clock. Clones share the time.
#[derive(Clone, Debug, Default)]
pub(crate) struct JumpClock(Arc<State>);

#[derive(Debug, Default)]
struct State {
    ahead: Mutex<Duration>,
    /// Everybody who has slept by this clock.
    sleepers: Mutex<Vec<Parker>>,
}

impl JumpClock {
    /// Sets the clock forward and wakes everybody who sleeps by it.
    pub(crate) fn jump(&self, by: Duration) {
        *self.0.ahead.lock() += by;
        self.0.sleepers.lock().iter().for_each(Parker::unpark);
    }

    fn ahead(&self) -> Duration {
        *self.0.ahead.lock()
    }
}

impl Clock for JumpClock {
    fn now(&self) -> Instant {
        SystemClock.now() + self.ahead()
    }

    fn park(
        &self,
        parker: &Parker,
        deadline: Option<Instant>,
        interrupt: &crossbeam_channel::Receiver<()>,
    ) {
        {
            // Before the clock is read: a jump from here on leaves a permit, and the park returns at once.
            let mut sleepers = self.0.sleepers.lock();
            if !sleepers.iter().any(|known| known.is(parker)) {
                sleepers.push(parker.clone());
            }
        }
        let deadline = deadline
            .map(|deadline| SystemClock.now() + deadline.saturating_duration_since(self.now()));
        SystemClock.park(parker, deadline, interrupt);
    }

    fn remaining(&self, deadline: Instant) -> Duration {
        SystemClock.remaining(deadline)
    }
}
