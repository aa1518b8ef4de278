//! One way to do what a benchmark measures, ready to be run any number of times.

use std::fmt;
use std::time::Duration;

use crate::clock::now;

/// A floor, this crate, or a peer.
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

    /// A contender that measures itself: `sample` answers how long the part that matters took.
    pub fn new(name: &'static str, sample: impl FnMut() -> Duration + 'static) -> Self {
        Self { name, sample: Box::new(sample) }
    }

    /// What it is called in tables.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Runs it once, and says how long that took.
    pub fn sample(&mut self) -> Duration {
        (self.sample)()
    }
}

impl fmt::Debug for Contender {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Contender").field("name", &self.name).finish_non_exhaustive()
    }
}
