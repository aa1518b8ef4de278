//! What a client counts, always: plain sums and histograms, to which any thread may add.
//!
//! With the feature `metrics` each count goes to the recorder of the `metrics` crate as well. The names stand in the
//! crate's documentation.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use hashed_wheel::{Histogram, Spread};

use crate::error::LostReason;

/// Relaxed throughout: these are numbers to look at, nothing follows from them.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    renewed: AtomicU64,
    scripts: AtomicU64,
    unanswered: AtomicU64,
    retries: AtomicU64,
    lost: [AtomicU64; LostReason::ALL.len()],
    panics: AtomicU64,
    lateness: Histogram,
    round_trip: Histogram,
    keys: Histogram,
}

impl Counters {
    /// A hold was renewed, so long after that was due.
    pub(crate) fn renewed(&self, late: Duration) {
        self.renewed.fetch_add(1, Ordering::Relaxed);
        self.lateness.record(nanos(late), 1);
        outside::add("wheellock_renewals_total", 1);
        outside::observe("wheellock_renewal_lateness_seconds", late);
    }

    /// A script of so many renewals is sent.
    pub(crate) fn script(&self, keys: usize) {
        self.scripts.fetch_add(1, Ordering::Relaxed);
        self.keys.record(u64::try_from(keys).unwrap_or(u64::MAX), 1);
        outside::add("wheellock_renewal_scripts_total", 1);
    }

    /// A script of renewals got no answer or an error.
    pub(crate) fn unanswered(&self) {
        self.unanswered.fetch_add(1, Ordering::Relaxed);
        outside::add("wheellock_renewal_scripts_unanswered_total", 1);
    }

    /// So many holds are to be tried again.
    pub(crate) fn retries(&self, holds: usize) {
        let holds = u64::try_from(holds).unwrap_or(u64::MAX);
        self.retries.fetch_add(holds, Ordering::Relaxed);
        outside::add("wheellock_renewal_retries_total", holds);
    }

    /// The answer to a script of renewals came so long after it was sent.
    pub(crate) fn round_trip(&self, took: Duration) {
        self.round_trip.record(nanos(took), 1);
        outside::observe("wheellock_renewal_round_trip_seconds", took);
    }

    pub(crate) fn lost(&self, reason: LostReason) {
        if let Some(count) = self.lost.get(reason.number()) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        outside::lost(reason);
    }

    pub(crate) fn panicked(&self) {
        self.panics.fetch_add(1, Ordering::Relaxed);
        outside::add("wheellock_panics_total", 1);
    }

    /// Fills in what is counted here.
    pub(crate) fn fill(&self, stats: &mut Stats) {
        let keys = self.keys.spread();
        let count = |keys: Duration| usize::try_from(keys.as_nanos()).unwrap_or(usize::MAX);
        stats.renewed = load(&self.renewed);
        stats.renewal_scripts = load(&self.scripts);
        stats.unanswered_renewals = load(&self.unanswered);
        stats.renewal_retries = load(&self.retries);
        stats.renewal_keys_p50 = count(keys.p50);
        stats.renewal_keys_max = count(keys.max);
        stats.renewal_lateness = self.lateness.spread();
        stats.renewal_round_trip = self.round_trip.spread();
        stats.losses = self.losses();
        stats.lost = stats.losses.total();
        stats.panics = load(&self.panics);
    }

    fn losses(&self) -> Losses {
        Losses {
            by_reason: LostReason::ALL.map(|reason| self.lost.get(reason.number()).map_or(0, load)),
        }
    }
}

fn load(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// What a client has and has done.
///
/// ```
/// use wheellock::Client;
///
/// let client = Client::in_memory();
/// let _guard = client.lock("orders:42").lock()?;
/// assert_eq!(client.stats().held, 1);
/// # Ok::<(), wheellock::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Holds of this client, lost ones left out. A [watched](crate::ExpirableSemaphore::watched) permit is one too.
    pub held: usize,
    /// Threads that wait.
    pub waiters: usize,
    /// Renewals that the server granted, counted by hold.
    pub renewed: u64,
    /// Scripts of renewals that were sent.
    pub renewal_scripts: u64,
    /// Scripts of renewals that got no answer or an error.
    pub unanswered_renewals: u64,
    /// Renewals that were put off, to be tried again, counted by hold.
    pub renewal_retries: u64,
    /// Half of the scripts of renewals had at most so many keys. Known to an eighth of itself, rounded up.
    pub renewal_keys_p50: usize,
    /// The most keys that one of them had.
    pub renewal_keys_max: usize,
    /// From the moment at which a renewal was due until its answer was there, however often it was tried.
    pub renewal_lateness: Spread,
    /// From sending a script of renewals until its answer was there, with up to ten full ones on their way to a server.
    pub renewal_round_trip: Spread,
    /// Holds that were lost.
    pub lost: u64,
    /// The same by reason.
    pub losses: Losses,
    /// Connections that were made to the server. More than a client needs at a time means that some broke.
    pub connections_made: u64,
    /// Releases that the server has not acknowledged yet.
    pub owed_releases: usize,
    /// Releases that were given up, because the lease had ended meanwhile or too many were owed.
    pub abandoned_releases: u64,
    /// Panics that the watchdog has caught on its threads. Anything but zero is a bug of this crate's, or of the
    /// [clock](crate::ClientBuilder::clock) that it was given.
    pub panics: u64,
    /// Reports to callbacks that nobody was told of: more than 65,536 waited for a slow callback, or the client ended
    /// meanwhile.
    pub unreported: u64,
    /// Callbacks that panicked.
    pub callback_panics: u64,
}

/// How many holds a client has lost, by reason.
///
/// ```
/// use wheellock::{Client, LostReason};
///
/// let client = Client::in_memory();
/// let guard = client.lock("orders:42").lock()?;
/// client.lock("orders:42").force_unlock()?;
/// assert_eq!(client.stats().losses.because(LostReason::Deleted), 1);
/// assert_eq!(client.stats().losses.total(), 1);
/// # Ok::<(), wheellock::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    by_reason: [u64; LostReason::ALL.len()],
}

impl Losses {
    /// Those that were lost for this reason.
    #[must_use]
    pub fn because(&self, reason: LostReason) -> u64 {
        self.by_reason.get(reason.number()).copied().unwrap_or_default()
    }

    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.by_reason.iter().sum()
    }
}

/// How many there are of something. It takes itself back when it goes.
#[derive(Debug)]
pub(crate) struct Level {
    name: &'static str,
    now: AtomicUsize,
}

impl Level {
    /// Zero, under that name.
    pub(crate) const fn new(name: &'static str) -> Self {
        Self { name, now: AtomicUsize::new(0) }
    }

    pub(crate) fn now(&self) -> usize {
        self.now.load(Ordering::Relaxed)
    }

    pub(crate) fn up(&self, by: usize) {
        self.now.fetch_add(by, Ordering::Relaxed);
        outside::change(self.name, 0, by);
    }

    pub(crate) fn down(&self, by: usize) {
        self.now.fetch_sub(by, Ordering::Relaxed);
        outside::change(self.name, by, 0);
    }

    pub(crate) fn set(&self, to: usize) {
        let from = self.now.swap(to, Ordering::Relaxed);
        outside::change(self.name, from, to);
    }
}

impl Drop for Level {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// What the rest of the program is told.
#[cfg(feature = "metrics")]
mod outside {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::time::Duration;

    use crate::error::LostReason;

    /// The recorder is foreign code, on threads that must not end.
    fn contain(record: impl FnOnce()) {
        drop(catch_unwind(AssertUnwindSafe(record)));
    }

    pub(super) fn add(name: &'static str, count: u64) {
        contain(|| metrics::counter!(name).increment(count));
    }

    pub(super) fn observe(name: &'static str, value: Duration) {
        contain(|| metrics::histogram!(name).record(value.as_secs_f64()));
    }

    /// A gauge stood higher or lower by the difference.
    #[expect(clippy::cast_precision_loss, reason = "a gauge is a float, and these are counts")]
    pub(super) fn change(name: &'static str, from: usize, to: usize) {
        if from != to {
            contain(|| metrics::gauge!(name).increment(to as f64 - from as f64));
        }
    }

    pub(super) fn lost(reason: LostReason) {
        contain(|| {
            metrics::counter!("wheellock_lost_total", "reason" => reason.word()).increment(1);
        });
    }
}

#[cfg(not(feature = "metrics"))]
mod outside {
    use std::time::Duration;

    use crate::error::LostReason;

    pub(super) const fn add(_name: &'static str, _count: u64) {}

    pub(super) const fn observe(_name: &'static str, _value: Duration) {}

    pub(super) const fn change(_name: &'static str, _from: usize, _to: usize) {}

    pub(super) const fn lost(_reason: LostReason) {}
}
