//! A floor, this crate or a peer, ready to be measured in this process.

use std::fmt;
use std::time::Duration;

use crate::harness::clock::now;

/// One of several ways to do the same, which are measured in turn.
pub struct Contender {
    name: &'static str,
    sample: Box<dyn FnMut() -> Duration>,
}

impl Contender {
    /// A contender whose samples are the time that `work` takes.
    pub fn timed(name: &'static str, mut work: impl FnMut() + 'static) -> Self {
        Self::new(name, move || {
            let start = now();
            work();
            now() - start
        })
    }

    /// A contender that measures itself: `sample` returns how long the measured part took.
    pub fn new(name: &'static str, sample: impl FnMut() -> Duration + 'static) -> Self {
        Self { name, sample: Box::new(sample) }
    }

    /// Its name in tables.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Runs it once, and returns how long that took.
    pub fn sample(&mut self) -> Duration {
        (self.sample)()
    }
}

impl fmt::Debug for Contender {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Contender").field("name", &self.name).finish_non_exhaustive()
    }
}
