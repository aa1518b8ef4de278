//! Publishes a client's counts to the recorder of the `metrics` crate, on a separate thread.
//!
//! The recorder is foreign code: it may block, panic, or call the client. So no other thread calls
//! the recorder. The client counts, and once a second the thread `lock-metrics` publishes the
//! increments without holding a lock. The thread is separate from the callbacks' thread, because
//! either may block. Nothing is queued, so a blocking recorder delays only the published counts,
//! and a count costs no more than an addition. In return histogram values are rounded to the
//! histogram's buckets, and published counts are up to a second old.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{self, ThreadId};
use std::time::Duration;

use crossbeam_channel::{Sender, bounded};
use hashed_wheel::{Clock, Histogram};
use metrics::{Label, Unit};

use crate::error::{Error, LostReason};
use crate::events::acquires::{AcquireEnd, KindCounters, Series};
use crate::events::dispatcher::WarningCounts;
use crate::events::stats::{Counters, Stats};
use crate::hold::registry::HoldRegistry;
use crate::model::panics::catch_panic;
use crate::model::sync::{Mutex, Parker, park};
use crate::store::store::Store;
use crate::waits::registry::WaitRegistry;
use crate::watchdog::SharedLedger;

/// The time between two publications, by the client's clock.
const PERIOD: Duration = Duration::from_secs(1);

/// The counters and their descriptions.
const COUNTERS: [(&str, &str); 12] = [
    ("wheellock_acquires_total", "Acquires, by kind, end and label"),
    ("wheellock_renewals_total", "Renewals that the server has granted"),
    ("wheellock_renewal_scripts_total", "Scripts of renewals that were sent"),
    ("wheellock_renewal_scripts_unanswered_total", "Scripts of renewals without an answer"),
    ("wheellock_renewal_retries_total", "Renewals that failed and were retried later"),
    ("wheellock_hand_overs_total", "Locks that a thread was given by another of its client"),
    ("wheellock_cache_hits_total", "Acquires that took a cached lock, without a request"),
    ("wheellock_cache_ends_total", "Cached locks that ended, by how"),
    ("wheellock_lost_total", "Holds that were lost, by reason"),
    ("wheellock_warnings_total", "Warnings about the server, by kind"),
    ("wheellock_connections_total", "Connections that were made"),
    ("wheellock_panics_total", "Panics on the watchdog's threads"),
];

/// The gauges and their descriptions.
const GAUGES: [(&str, &str); 4] = [
    ("wheellock_held", "Locks and watched permits that are held"),
    ("wheellock_cached", "Locks that stay with their client between two uses"),
    ("wheellock_waiters", "Threads that wait for a lock or for permits"),
    ("wheellock_queued_releases", "Releases that the server has not acknowledged"),
];

/// The histograms and their descriptions.
const HISTOGRAMS: [(&str, &str); 4] = [
    ("wheellock_wait_seconds", "Time from asking until it was acquired, by kind and label"),
    ("wheellock_held_seconds", "Time for which a holder has had a lock, by kind and label"),
    ("wheellock_renewal_lateness_seconds", "Time from when a renewal was due until its reply"),
    ("wheellock_renewal_round_trip_seconds", "Time from sending renewals until their reply"),
];

/// Publishes the counts of one client.
#[derive(Debug)]
pub(crate) struct MetricsPublisher {
    shared: Arc<PublisherShared>,
    thread: ThreadId,
}

/// The part of a publisher shared with its thread.
#[derive(Debug)]
struct PublisherShared {
    state: Mutex<PublisherState>,
    panics: AtomicU64,
}

/// The requests of callers to the publishing thread.
#[derive(Debug)]
struct PublisherState {
    /// The thread's parker. `None` once the thread has ended: a manual clock waits for every
    /// parker.
    parker: Option<Parker>,
    /// The callers waiting for the publication of the present counts.
    waiting: Vec<Sender<Infallible>>,
    ends: bool,
}

/// The sources of the counts.
#[derive(Debug)]
pub(crate) struct Sources {
    pub(crate) holds: Arc<HoldRegistry>,
    pub(crate) waits: Arc<WaitRegistry>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) releases: Arc<SharedLedger>,
    pub(crate) warned: Arc<WarningCounts>,
    /// A recorder that never returns must not keep the connections open.
    pub(crate) store: Weak<Store>,
}

impl MetricsPublisher {
    /// Starts the thread that publishes the counts of `sources` once a second. Returns an error if
    /// the thread cannot be started.
    pub(crate) fn start(sources: Sources, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        let parker = Parker::new();
        // Returns at once. With this call, a manual clock knows the thread before the thread runs.
        park(&*clock, &parker, Some(clock.now()), None);
        let state =
            PublisherState { parker: Some(parker.clone()), waiting: Vec::new(), ends: false };
        let shared =
            Arc::new(PublisherShared { state: Mutex::new(state), panics: AtomicU64::new(0) });
        let of_thread = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("lock-metrics".to_owned())
            .spawn(move || {
                // A panic of the clock. Panics of the recorder are caught call by call.
                if catch_panic(|| of_thread.run(&sources, &*clock, &parker)).is_none() {
                    sources.counters.panicked();
                }
                of_thread.end();
            })
            .map_err(|error| Error::Thread { reason: error.into() })?;
        // The thread is not joined: a recorder may never return.
        Ok(Self { shared, thread: thread.thread().id() })
    }

    /// Publishes the present counts, and waits for the publication, for at most `timeout`. A
    /// recorder that calls this function does not wait for itself.
    pub(crate) fn flush(&self, timeout: Duration) {
        self.call(timeout, false);
    }

    /// Publishes the present counts, waits as [`flush`](Self::flush) does, and ends the thread.
    /// Gauges go back to zero.
    pub(crate) fn stop(&self, timeout: Duration) {
        self.call(timeout, true);
    }

    /// Returns how many calls of the recorder panicked.
    pub(crate) fn panics(&self) -> u64 {
        self.shared.panics.load(Ordering::Relaxed)
    }

    /// Requests a publication of the present counts, and waits for the publication, for `timeout`
    /// at most. If `ends`, the thread then ends. Returns at once on the thread itself and after its
    /// end.
    fn call(&self, timeout: Duration, ends: bool) {
        let (waiting, published) = bounded(0);
        {
            let mut state = self.shared.state.lock();
            let Some(parker) = state.parker.clone() else { return };
            state.ends |= ends;
            state.waiting.push(waiting);
            parker.unpark();
        }
        if thread::current().id() != self.thread {
            // Nothing is ever sent: the wait ends with the sender or with the timeout.
            let _ended = published.recv_timeout(timeout);
        }
    }
}

impl PublisherShared {
    /// Publishes the counts of `sources` once each [`PERIOD`] and at each request, until a request
    /// ends the thread.
    fn run(&self, sources: &Sources, clock: &dyn Clock, parker: &Parker) {
        let mut published = Published::default();
        self.describe();
        loop {
            let (waiting, ends) = {
                let mut state = self.state.lock();
                (mem::take(&mut state.waiting), state.ends)
            };
            self.publish(&mut published, sources, ends);
            drop(waiting);
            if ends {
                return;
            }
            park(clock, parker, Some(clock.now() + PERIOD), None);
        }
    }

    /// Ends the thread and the wait of every caller, also of a caller arriving meanwhile.
    fn end(&self) {
        let mut state = self.state.lock();
        state.parker = None;
        state.waiting.clear();
    }

    /// Reports the increments since the last publication to the recorder, and notes the counts in
    /// `published`. If `ends`, gauges go back to zero. An increment in a call that panics is lost.
    fn publish(&self, published: &mut Published, sources: &Sources, ends: bool) {
        let mut now = Stats::default();
        sources.counters.fill(&mut now);
        now.hand_overs = sources.waits.hand_overs();
        now.cache = sources.holds.cache.stats();
        if ends {
            now.cache.cached = 0;
        }
        // The nodes of a cluster are counted in turn, while nodes join and leave.
        let made = sources.store.upgrade().map_or(0, |store| store.connections().made);
        now.connections_made = made.max(published.stats.connections_made);
        if !ends {
            now.held = sources.holds.len();
            now.waiters = sources.waits.waiters();
            now.queued_releases = sources.releases.ledger().queued();
        }
        let before = mem::replace(&mut published.stats, now);
        let counters = [
            ("wheellock_renewals_total", before.renewed, now.renewed),
            ("wheellock_renewal_scripts_total", before.renewal_scripts, now.renewal_scripts),
            (
                "wheellock_renewal_scripts_unanswered_total",
                before.unanswered_renewals,
                now.unanswered_renewals,
            ),
            ("wheellock_renewal_retries_total", before.renewal_retries, now.renewal_retries),
            ("wheellock_hand_overs_total", before.hand_overs, now.hand_overs),
            ("wheellock_cache_hits_total", before.cache.hits, now.cache.hits),
            ("wheellock_connections_total", before.connections_made, now.connections_made),
            ("wheellock_panics_total", before.panics, now.panics),
        ];
        for (name, before, now) in counters {
            if now != before {
                let more = now.wrapping_sub(before);
                self.contain(|| metrics::counter!(name).increment(more));
            }
        }
        let cache_ends = [
            ("expired", before.cache.expired, now.cache.expired),
            ("revoked", before.cache.revoked, now.cache.revoked),
            ("evicted", before.cache.evicted, now.cache.evicted),
            ("lost", before.cache.lost, now.cache.lost),
        ];
        for (end, before, now) in cache_ends {
            if now > before {
                self.contain(|| {
                    metrics::counter!("wheellock_cache_ends_total", "end" => end)
                        .increment(now - before);
                });
            }
        }
        for reason in LostReason::ALL {
            let more = now.losses.because(reason).wrapping_sub(before.losses.because(reason));
            if more > 0 {
                self.contain(|| {
                    metrics::counter!("wheellock_lost_total", "reason" => reason.word())
                        .increment(more);
                });
            }
        }
        let warned = sources.warned.lock().clone();
        for (kind, now) in warned {
            let before = published.warned.insert(kind, now).unwrap_or_default();
            if now > before {
                self.contain(|| {
                    metrics::counter!("wheellock_warnings_total", "warning" => kind)
                        .increment(now - before);
                });
            }
        }
        let levels = [
            ("wheellock_held", before.held, now.held),
            ("wheellock_cached", before.cache.cached, now.cache.cached),
            ("wheellock_waiters", before.waiters, now.waiters),
            ("wheellock_queued_releases", before.queued_releases, now.queued_releases),
        ];
        for (name, before, now) in levels {
            self.move_level(name, before, now);
        }
        let histograms = [
            (
                "wheellock_renewal_lateness_seconds",
                &mut published.lateness,
                sources.counters.lateness_values(),
            ),
            (
                "wheellock_renewal_round_trip_seconds",
                &mut published.round_trip,
                sources.counters.round_trip_values(),
            ),
        ];
        for (name, before, now) in histograms {
            self.publish_values(before, now, || metrics::histogram!(name));
        }
        for (number, series) in sources.counters.acquires().series() {
            self.publish_series(published.series.entry(number).or_default(), &series);
        }
    }

    /// Reports the increments of the counts of one kind and label to the recorder, and notes the
    /// counts in `published`.
    fn publish_series(&self, published: &mut PublishedSeries, series: &Series<'_>) {
        let Series { label, kind, counters } = *series;
        let kind = Label::from_static_parts("kind", kind.word());
        let label = label.map(|label| Label::from_static_parts("label", label));
        let labels = |end: Option<Label>| -> Vec<Label> {
            [Some(kind.clone()), end, label.clone()].into_iter().flatten().collect()
        };
        let ends = counters.ends();
        let before = mem::replace(&mut published.ends, ends);
        for ((end, now), before) in AcquireEnd::ALL.into_iter().zip(ends).zip(before) {
            let more = now.wrapping_sub(before);
            if more > 0 {
                let labels = labels(Some(Label::from_static_parts("end", end.word())));
                self.contain(|| {
                    metrics::counter!("wheellock_acquires_total", labels).increment(more);
                });
            }
        }
        let KindCounters { waited, held, .. } = counters;
        let times = [
            ("wheellock_wait_seconds", &mut published.waited, waited),
            ("wheellock_held_seconds", &mut published.held, held),
        ];
        for (name, before, now) in times {
            self.publish_values(before, now, || metrics::histogram!(name, labels(None)));
        }
    }

    /// Describes each metric, for exporters with descriptions.
    fn describe(&self) {
        for (name, text) in COUNTERS {
            self.contain(|| metrics::describe_counter!(name, text));
        }
        for (name, text) in GAUGES {
            self.contain(|| metrics::describe_gauge!(name, text));
        }
        for (name, text) in HISTOGRAMS {
            self.contain(|| metrics::describe_histogram!(name, Unit::Seconds, text));
        }
    }

    /// Moves a gauge from `before` to `now`. Several clients share a gauge, so each client moves
    /// the gauge by its own changes.
    #[expect(clippy::cast_precision_loss, reason = "a gauge is a float, and these are counts")]
    fn move_level(&self, name: &'static str, before: usize, now: usize) {
        if now > before {
            self.contain(|| metrics::gauge!(name).increment((now - before) as f64));
        } else if now < before {
            self.contain(|| metrics::gauge!(name).decrement((before - now) as f64));
        }
    }

    /// Records the new values of `now` in the recorder's histogram, and notes the count of each
    /// value in `before`.
    fn publish_values(
        &self,
        before: &mut BTreeMap<Duration, u64>,
        now: &Histogram,
        histogram: impl Fn() -> metrics::Histogram,
    ) {
        for (value, count) in now.counts() {
            let before = before.insert(value, count).unwrap_or_default();
            let more = usize::try_from(count.wrapping_sub(before)).unwrap_or(usize::MAX);
            if more > 0 {
                self.contain(|| histogram().record_many(value.as_secs_f64(), more));
            }
        }
    }

    /// Calls `record`, which calls the recorder, and returns even after a panic, which is counted.
    fn contain(&self, record: impl FnOnce()) {
        if catch_panic(record).is_none() {
            // Relaxed: a plain sum.
            self.panics.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The published counts.
#[derive(Default)]
struct Published {
    stats: Stats,
    /// By kind.
    warned: BTreeMap<&'static str, u64>,
    lateness: BTreeMap<Duration, u64>,
    round_trip: BTreeMap<Duration, u64>,
    /// By the counters' numbers for the series.
    series: BTreeMap<usize, PublishedSeries>,
}

/// The published counts of a kind and a label.
#[derive(Default)]
struct PublishedSeries {
    ends: [u64; AcquireEnd::ALL.len()],
    waited: BTreeMap<Duration, u64>,
    held: BTreeMap<Duration, u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = include_str!("../../docs/alerts/wheellock.rules.yml");
    const DASHBOARD: &str = include_str!("../../docs/grafana/wheellock.json");

    #[test]
    fn alerts_and_dashboard_name_published_metrics_only() {
        let published: Vec<&str> = [&COUNTERS[..], &GAUGES, &HISTOGRAMS]
            .into_iter()
            .flatten()
            .map(|(name, _)| *name)
            .collect();
        for (text, least) in [(RULES, 9), (DASHBOARD, 11)] {
            let mut named = 0;
            for (at, _) in text.match_indices("wheellock_") {
                let is_part = |letter: char| letter.is_ascii_lowercase() || letter == '_';
                let end = text[at..].find(|letter| !is_part(letter)).unwrap();
                let name = &text[at..at + end];
                let name = name.strip_suffix("_bucket").unwrap_or(name);
                assert!(published.contains(&name), "{name} is not published");
                named += 1;
            }
            assert!(named >= least, "{named} names in {text}");
        }
    }
}
