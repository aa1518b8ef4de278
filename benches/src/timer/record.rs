//! When each timeout fired. A process has one record, so that a closure needs no more than a
//! number.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::harness::clock::now;

static RECORD: OnceLock<Record> = OnceLock::new();

/// The firings of a process.
#[derive(Debug)]
pub(crate) struct Record {
    origin: Instant,
    /// By the number of the timeout: nanoseconds since the origin, or zero if it has not fired.
    times: Box<[AtomicU64]>,
    fired: AtomicU64,
}

impl Record {
    /// Begins to record. Earlier firings are not recorded.
    pub(crate) fn begin(timeouts: u32) -> &'static Self {
        RECORD.get_or_init(|| Self {
            origin: now(),
            times: (0..timeouts).map(|_| AtomicU64::new(0)).collect(),
            fired: AtomicU64::new(0),
        })
    }

    pub(crate) fn fired(&self) -> u64 {
        self.fired.load(Ordering::Relaxed)
    }

    /// When each timeout fired, by number. `None` if it has not.
    pub(crate) fn times(&self) -> impl Iterator<Item = Option<Instant>> + '_ {
        self.times.iter().map(|time| match time.load(Ordering::Relaxed) {
            0 => None,
            nanos => Some(self.origin + Duration::from_nanos(nanos)),
        })
    }

    fn note(&self, number: u64, at: Instant) {
        let nanos = at.saturating_duration_since(self.origin).as_nanos();
        let slot = usize::try_from(number).ok().and_then(|number| self.times.get(number));
        if let Some(time) = slot {
            time.store(u64::try_from(nanos).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
    }

    /// Only one thread fires timeouts, so a load and a store are enough.
    fn count(&self, firings: u64) {
        self.fired.store(self.fired() + firings, Ordering::Relaxed);
    }
}

/// What each callback does: it reads the clock, and records the time.
pub(crate) fn fired(number: u64) {
    if let Some(record) = RECORD.get() {
        record.note(number, now());
        record.count(1);
    }
}

/// What a handler of batches does: it reads the clock once for all.
pub(crate) fn fired_batch(numbers: &[u64]) {
    if let Some(record) = RECORD.get() {
        let at = now();
        for &number in numbers {
            record.note(number, at);
        }
        record.count(u64::try_from(numbers.len()).unwrap_or(0));
    }
}
