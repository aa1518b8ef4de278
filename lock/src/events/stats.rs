//! The counts of a client: plain sums and histograms, to which any thread may add.
//!
//! With the feature `metrics`, `core::metrics` publishes additions once a second, on a separate
//! thread, to the recorder of the `metrics` crate. So nothing queues behind a recorder which
//! blocks, and counting is a plain addition. In return published counts are up to a second old, and
//! histogram values are rounded to the histogram's buckets. The crate's documentation lists the
//! names of the metrics.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use hashed_wheel::{Histogram, Summary};

use crate::error::LostReason;
use crate::events::acquires::{AcquireCounters, Acquires, nanos};
#[cfg(feature = "serde")]
use crate::model::serialize::summary;

/// The counts of one client. Relaxed throughout: nothing depends on these numbers.
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
    acquires: AcquireCounters,
}

impl Counters {
    pub(crate) fn acquires(&self) -> &AcquireCounters {
        &self.acquires
    }

    /// Counts a renewal, answered `late` after its due time.
    pub(crate) fn renewed(&self, late: Duration) {
        self.renewed.fetch_add(1, Ordering::Relaxed);
        self.lateness.record(nanos(late), 1);
    }

    /// Counts a script of renewals, about to be sent.
    pub(crate) fn script(&self) {
        self.scripts.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a script of renewals without an answer, or with an error.
    pub(crate) fn unanswered(&self) {
        self.unanswered.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts this many holds whose renewals are retried later.
    pub(crate) fn retries(&self, holds: usize) {
        let holds = u64::try_from(holds).unwrap_or(u64::MAX);
        self.retries.fetch_add(holds, Ordering::Relaxed);
    }

    /// Records the time from sending a script of renewals until its reply.
    pub(crate) fn round_trip(&self, took: Duration) {
        self.round_trip.record(nanos(took), 1);
    }

    /// Counts a lost hold.
    pub(crate) fn lost(&self, reason: LostReason) {
        if let Some(count) = self.lost.get(reason.number()) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a panic caught by the watchdog.
    pub(crate) fn panicked(&self) {
        self.panics.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the histogram of the times from a renewal's due time until its reply.
    #[cfg(feature = "metrics")]
    pub(crate) fn lateness_values(&self) -> &Histogram {
        &self.lateness
    }

    /// Returns the histogram of the times from sending a script of renewals until its reply.
    #[cfg(feature = "metrics")]
    pub(crate) fn round_trip_values(&self) -> &Histogram {
        &self.round_trip
    }

    /// Writes these counts into their fields of `stats`, and leaves all other fields.
    pub(crate) fn fill(&self, stats: &mut Stats) {
        stats.renewed = load(&self.renewed);
        stats.renewal_scripts = load(&self.scripts);
        stats.unanswered_renewals = load(&self.unanswered);
        stats.renewal_retries = load(&self.retries);
        stats.renewal_lateness = self.lateness.summary();
        stats.renewal_round_trip = self.round_trip.summary();
        stats.losses = self.losses();
        stats.lost = stats.losses.total();
        stats.panics = load(&self.panics);
        stats.acquires = self.acquires.sums();
    }

    /// Returns the numbers of lost holds by reason.
    fn losses(&self) -> Losses {
        Losses {
            by_reason: LostReason::ALL.map(|reason| self.lost.get(reason.number()).map_or(0, load)),
        }
    }
}

/// Reads a count, relaxed.
fn load(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

/// A client's current holds and waits, and its counts since its start.
///
/// Returned by [`Client::stats`](crate::Client::stats).
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
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Stats {
    /// Holds of this client, without lost holds. A [watched](crate::ExpirableSemaphore::watched)
    /// permit and a cached lock count too. A multi lock or red lock has a hold for each member.
    pub held: usize,
    /// Threads that sleep in a wait: for a lock, permits, a latch, or a
    /// [change](crate::Client::next_change) of a status. A thread that waits for a
    /// [`RedLock`](crate::RedLock) is not counted.
    pub waiters: usize,
    /// How often a thread received a [`lock`](crate::Client::lock) from another thread of this
    /// client, [without a request to the server](crate::ClientBuilder::hand_over_budget).
    pub hand_overs: u64,
    /// Locks cached by this client [between two uses](crate::Lock::with_cache).
    pub cache: CacheStats,
    /// Acquires of locks and permits and waits for latches, counted by kind and end.
    pub acquires: Acquires,
    /// Renewals granted by the server, counted by hold.
    pub renewed: u64,
    /// Scripts of renewals sent to a server. A script renews several holds.
    pub renewal_scripts: u64,
    /// Scripts of renewals without a reply, or with an error as the reply.
    pub unanswered_renewals: u64,
    /// Renewals scheduled again after a failure, counted by hold.
    pub renewal_retries: u64,
    /// The time from a renewal's due time until its reply, for each granted renewal. A retried
    /// renewal counts from its first due time.
    #[cfg_attr(feature = "serde", serde(serialize_with = "summary"))]
    pub renewal_lateness: Summary,
    /// The time from sending a script of renewals until its reply, with up to ten full scripts in
    /// flight to one server.
    #[cfg_attr(feature = "serde", serde(serialize_with = "summary"))]
    pub renewal_round_trip: Summary,
    /// Lost holds. Lost [cached](CacheStats::lost) holds and holds released by a
    /// [shutdown](crate::Client::shutdown) are not counted.
    pub lost: u64,
    /// The number of lost holds for each reason. The sum is `lost`.
    pub losses: Losses,
    /// Connections made since the client started: to the server, or to all nodes of a cluster. Zero
    /// in memory. A number that keeps growing means broken connections.
    pub connections_made: u64,
    /// Open connections, including the connections for renewals and for messages to waiting
    /// threads. See [`max_connections`](crate::ClientBuilder::max_connections).
    pub connections_open: usize,
    /// Connections for calls which are in use by a call, or being opened. At the maximum, further
    /// calls wait for a connection.
    pub connections_in_use: usize,
    /// Releases queued for the background, which sends each release until the server has
    /// acknowledged the release.
    pub queued_releases: usize,
    /// Releases of dropped guards whose replies no thread has read yet. Within about 100 ms each
    /// reply is read, or the release is queued.
    pub unread_releases: usize,
    /// Releases given up without an acknowledgement: the lease had expired, too many releases were
    /// pending, or the client ended. The permits of an abandoned
    /// [`SemaphoreGuard`](crate::SemaphoreGuard) may stay taken.
    pub abandoned_releases: u64,
    /// Panics caught by the watchdog on its threads. Any number but zero is a bug in this crate or
    /// in the [clock](crate::ClientBuilder::clock).
    pub panics: u64,
    /// Reports not delivered to a callback: more than 65,536 reports were queued behind a slow
    /// callback, or the client has ended.
    pub unreported: u64,
    /// Panics of callbacks, of wakers of [futures](crate::LostFuture), and of `tracing` subscribers
    /// that receive reports. With the cargo feature `metrics`, also panics of the recorder.
    pub callback_panics: u64,
}

/// Counts of locks [cached by a client](crate::Lock::with_cache).
///
/// In [`Stats::cache`].
///
/// ```
/// use std::time::Duration;
/// use wheellock::Client;
///
/// let client = Client::in_memory();
/// let lock = client.lock("partition:7").with_cache(Duration::from_millis(100));
/// lock.lock()?.unlock()?; // asks the server
/// lock.lock()?.unlock()?; // does not
/// assert_eq!(client.stats().cache.hits, 1);
/// assert_eq!(client.stats().cache.cached, 1);
/// # Ok::<(), wheellock::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct CacheStats {
    /// The number of holds cached now. [`Stats::held`] includes these holds.
    pub cached: usize,
    /// The number of acquires that took a cached hold, without a request to the server.
    pub hits: u64,
    /// The number of cached holds released at the end of the time of
    /// [`with_cache`](crate::Lock::with_cache).
    pub expired: u64,
    /// The number of cached holds released because another client has asked for the lock, or
    /// because of an acquire of this client that takes no cached hold.
    pub revoked: u64,
    /// The number of cached holds released because there were
    /// [too many](crate::ClientBuilder::max_cached_locks).
    pub evicted: u64,
    /// The number of cached holds that were lost. A cached hold has no guard, so the loss is not
    /// reported, and not counted in [`Stats::lost`].
    pub lost: u64,
}

/// The number of a client's lost holds, by reason.
///
/// In [`Stats::losses`].
///
/// ```
/// use wheellock::{Client, LostReason};
///
/// let client = Client::in_memory();
/// let guard = client.lock("orders:42").lock()?;
/// client.lock("orders:42").force_unlock()?;
/// assert_eq!(client.stats().losses.because(LostReason::Deleted), 1);
/// assert_eq!(client.stats().lost, 1);
/// # Ok::<(), wheellock::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    by_reason: [u64; LostReason::ALL.len()],
}

impl Losses {
    /// The number of holds lost for this reason. The codes of [`LostReason::Refused`] are counted
    /// together: any code returns their sum.
    #[must_use]
    pub fn because(&self, reason: LostReason) -> u64 {
        self.by_reason.get(reason.number()).copied().unwrap_or_default()
    }

    /// Returns the number of holds lost for any reason.
    fn total(&self) -> u64 {
        self.by_reason.iter().sum()
    }
}

/// By reason, without reasons whose count is zero.
#[cfg(feature = "serde")]
impl serde::Serialize for Losses {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let all = LostReason::ALL.into_iter().zip(self.by_reason);
        let some = all.filter(|(_, count)| *count > 0);
        serializer.collect_map(some.map(|(reason, count)| (reason.word(), count)))
    }
}

/// A gauge: a number which goes up and down. Relaxed: nothing depends on the number.
#[derive(Debug, Default)]
pub(crate) struct Gauge(AtomicUsize);

impl Gauge {
    pub(crate) fn now(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn up(&self, by: usize) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, to: usize) {
        self.0.store(to, Ordering::Relaxed);
    }

    pub(crate) fn down(&self, by: usize) {
        self.0.fetch_sub(by, Ordering::Relaxed);
    }
}
