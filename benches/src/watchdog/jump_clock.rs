//! A clock that runs like the system's, and can be set forward, as if the process or the machine
//! had been paused.

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
    /// The threads that have waited on this clock.
    parkers: Mutex<Vec<Parker>>,
}

impl JumpClock {
    /// Sets the clock forward, and wakes all threads that wait on it.
    pub(crate) fn jump(&self, by: Duration) {
        *self.0.ahead.lock() += by;
        self.0.parkers.lock().iter().for_each(Parker::unpark);
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
            // Before the clock is read: after a jump from here on, the park below returns at once.
            let mut parkers = self.0.parkers.lock();
            if !parkers.iter().any(|known| known.is(parker)) {
                parkers.push(parker.clone());
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
