//! Whether the machine stood still: a cell whose time was taken away says nothing of the library.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::cell::TIMEOUT;
use crate::common::{now, pause};

/// A thread that wants to run all the time, and the moments at which it could not.
#[derive(Clone, Default)]
pub(crate) struct Heartbeat {
    gaps: Arc<Mutex<Vec<Instant>>>,
}

/// How often it beats.
const BEAT: Duration = Duration::from_millis(10);

impl Heartbeat {
    /// It beats until the process ends.
    pub(crate) fn start() -> Self {
        let heartbeat = Self::default();
        let beating = heartbeat.clone();
        thread::Builder::new().name("heartbeat".to_owned()).spawn(move || beating.beat()).unwrap();
        heartbeat
    }

    fn beat(&self) {
        let mut last = now();
        loop {
            pause(BEAT);
            let this = now();
            // As long as a good part of a try.
            if this.saturating_duration_since(last) > TIMEOUT / 4 {
                self.gaps.lock().push(this);
            }
            last = this;
        }
    }

    /// Whether it could not run for a while since then.
    pub(crate) fn missed_since(&self, start: Instant) -> bool {
        self.gaps.lock().iter().any(|gap| *gap > start)
    }
}
