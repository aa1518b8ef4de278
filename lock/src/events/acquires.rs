//! Counts of a client's acquires, and histograms of waiting and holding times, by kind and label.
//!
//! A label is set by the program. Its type is `&'static str`, and a client distinguishes 64 labels,
//! so names from outside grow neither the client nor the recorder. A labelled lock is counted under
//! its label alone, so a sum over all series counts nothing twice. An unlabelled lock carries no
//! label, so its series do not change when another lock gets a label.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

#[cfg(feature = "metrics")]
use hashed_wheel::Histogram;

use crate::error::Error;
use crate::model::kind::Kind;

/// The maximum number of labels that a client distinguishes. All further labels are counted as
/// [`OTHER`].
const MAX_LABELS: u8 = 64;

/// The label of all locks whose labels are beyond the limit.
const OTHER: &str = "other";

/// The object of an acquire, under which the acquire is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AcquireKind {
    /// A hold: a lock, or permits with ids.
    Hold(Kind),
    /// Permits without ids, as a number.
    Semaphore,
    /// A wait for a latch, which acquires nothing.
    Latch,
}

impl AcquireKind {
    /// The number of values of this type.
    const COUNT: usize = Kind::ALL.len() + 2;

    /// Returns every value once, in the order of [`number`](Self::number).
    fn all() -> impl Iterator<Item = Self> {
        Kind::ALL.into_iter().map(Self::Hold).chain([Self::Semaphore, Self::Latch])
    }

    /// Returns the index of the value in [`all`](Self::all).
    fn number(self) -> usize {
        match self {
            Self::Hold(kind) => kind.number(),
            Self::Semaphore => Kind::ALL.len(),
            Self::Latch => Kind::ALL.len() + 1,
        }
    }

    /// Returns the name of the kind in metrics.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Hold(kind) => kind.word(),
            Self::Semaphore => "semaphore",
            Self::Latch => "latch",
        }
    }
}

impl From<Kind> for AcquireKind {
    fn from(kind: Kind) -> Self {
        Self::Hold(kind)
    }
}

/// How an acquire ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AcquireEnd {
    Acquired,
    /// Acquired after a first refusal.
    Contended,
    TimedOut,
    Cancelled,
    Failed,
}

impl AcquireEnd {
    /// The number of values of this type.
    const COUNT: usize = 5;

    /// All values, in the order of their declaration.
    #[cfg(feature = "metrics")]
    pub(crate) const ALL: [Self; Self::COUNT] =
        [Self::Acquired, Self::Contended, Self::TimedOut, Self::Cancelled, Self::Failed];

    /// Returns the end of an acquire without a grant: the end that `error` means, or a timeout
    /// without an error.
    pub(crate) fn without_grant(error: Option<&Error>) -> Self {
        match error {
            None => Self::TimedOut,
            Some(Error::Cancelled { .. } | Error::Shutdown) => Self::Cancelled,
            Some(_) => Self::Failed,
        }
    }

    /// Returns the end's name in metrics and events.
    #[cfg(any(feature = "metrics", feature = "tracing"))]
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Acquired => "acquired",
            Self::Contended => "contended",
            Self::TimedOut => "timed_out",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
        }
    }
}

/// The number of a label in one client. Zero stands for no label.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MetricsLabel(pub(crate) u8);

impl MetricsLabel {
    /// The number of locks without a label.
    pub(crate) const NONE: Self = Self(0);
}

/// All counts of a client, by label. Relaxed throughout: nothing depends on these numbers.
#[derive(Debug)]
pub(crate) struct AcquireCounters {
    /// Created when a label is first used. The order: without a label, the labels, and [`OTHER`].
    by_label: [OnceLock<Box<LabelCounters>>; MAX_LABELS as usize + 2],
}

/// The counts of all kinds, with one label or without a label.
#[derive(Debug)]
struct LabelCounters {
    label: Option<&'static str>,
    /// Created when a kind is first used: the histograms of a kind take eight kilobytes.
    by_kind: [OnceLock<Box<KindCounters>>; AcquireKind::COUNT],
}

/// The counts of one kind, with one label.
#[derive(Debug, Default)]
pub(crate) struct KindCounters {
    /// The counts by the number of an [`AcquireEnd`].
    ends: [AtomicU64; AcquireEnd::COUNT],
    #[cfg(feature = "metrics")]
    pub(crate) waited: Histogram,
    #[cfg(feature = "metrics")]
    pub(crate) held: Histogram,
}

/// One series of metrics: the counts of one kind with one label.
#[cfg(feature = "metrics")]
#[derive(Debug)]
pub(crate) struct Series<'a> {
    pub(crate) label: Option<&'static str>,
    pub(crate) kind: AcquireKind,
    pub(crate) counters: &'a KindCounters,
}

impl Default for AcquireCounters {
    fn default() -> Self {
        Self { by_label: [const { OnceLock::new() }; MAX_LABELS as usize + 2] }
    }
}

impl AcquireCounters {
    /// Returns the number of a label, and assigns a number on first use. Without metrics every
    /// label is [`MetricsLabel::NONE`]. Locks nothing. Takes longer the more labels exist.
    pub(crate) fn label(&self, label: Option<&'static str>) -> MetricsLabel {
        // Only metrics show labels.
        let Some(label) = label.filter(|_| cfg!(feature = "metrics")) else {
            return MetricsLabel::NONE;
        };
        for (number, cell) in (1..=MAX_LABELS).zip(self.by_label.iter().skip(1)) {
            // The first free cell becomes the cell of this label, unless another thread is faster.
            if cell.get_or_init(|| LabelCounters::new(Some(label))).label == Some(label) {
                return MetricsLabel(number);
            }
        }
        MetricsLabel(MAX_LABELS + 1)
    }

    /// Counts an acquire granted after a wait of `waited`, as contended too if `was_refused`
    /// before. Calls `waited` only with metrics.
    pub(crate) fn acquired(
        &self,
        kind: AcquireKind,
        label: MetricsLabel,
        waited: impl FnOnce() -> Duration,
        was_refused: bool,
    ) {
        self.ended(kind, label, AcquireEnd::Acquired);
        if was_refused {
            self.ended(kind, label, AcquireEnd::Contended);
        }
        if let Some(counters) = self.of(kind, label) {
            counters.record_wait(waited);
        }
    }

    /// Counts an acquire of this kind and label under `end`.
    pub(crate) fn ended(&self, kind: AcquireKind, label: MetricsLabel, end: AcquireEnd) {
        if let Some(count) = self.of(kind, label).and_then(|of| of.ends.get(end as usize)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records the holding time of a hold which was released, handed over or lost.
    pub(crate) fn hold_ended(
        &self,
        kind: Kind,
        label: MetricsLabel,
        held_for: impl FnOnce() -> Duration,
    ) {
        if let Some(counters) = self.of(kind.into(), label) {
            counters.record_hold(held_for);
        }
    }

    /// Returns the counts of a kind with a label, created on first use. `None` for a number that is
    /// no label's.
    fn of(&self, kind: AcquireKind, label: MetricsLabel) -> Option<&KindCounters> {
        let cell = self.by_label.get(usize::from(label.0))?;
        // The cell of a label was created when the label got its number.
        let of_label =
            cell.get_or_init(|| LabelCounters::new((label != MetricsLabel::NONE).then_some(OTHER)));
        let of_kind = of_label.by_kind.get(kind.number())?;
        Some(of_kind.get_or_init(Box::default))
    }

    /// Returns the counts by end and kind, summed over all labels.
    pub(crate) fn sums(&self) -> Acquires {
        let mut by_kind = [[0; AcquireEnd::COUNT]; AcquireKind::COUNT];
        for of_label in self.by_label.iter().filter_map(OnceLock::get) {
            for (sums, of_kind) in by_kind.iter_mut().zip(&of_label.by_kind) {
                let Some(of_kind) = of_kind.get() else { continue };
                for (sum, count) in sums.iter_mut().zip(of_kind.ends()) {
                    *sum += count;
                }
            }
        }
        Acquires { by_kind }
    }

    /// Returns all series counted so far, each with a number that a label and a kind never change.
    #[cfg(feature = "metrics")]
    pub(crate) fn series(&self) -> impl Iterator<Item = (usize, Series<'_>)> {
        self.by_label.iter().enumerate().flat_map(|(number, cell)| {
            let kinds = cell.get().into_iter().flat_map(|of_label| {
                let label = of_label.label;
                AcquireKind::all().zip(&of_label.by_kind).filter_map(move |(kind, of_kind)| {
                    let counters = of_kind.get()?;
                    Some((kind.number(), Series { label, kind, counters }))
                })
            });
            kinds.map(move |(kind, series)| (number * AcquireKind::COUNT + kind, series))
        })
    }
}

impl LabelCounters {
    /// Makes counts for a label without a count of any kind.
    fn new(label: Option<&'static str>) -> Box<Self> {
        Box::new(Self { label, by_kind: [const { OnceLock::new() }; AcquireKind::COUNT] })
    }
}

impl KindCounters {
    /// Returns the counts, indexed by [`AcquireEnd`].
    pub(crate) fn ends(&self) -> [u64; AcquireEnd::COUNT] {
        self.ends.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    /// Adds a waiting time to the histogram.
    #[cfg(feature = "metrics")]
    fn record_wait(&self, waited: impl FnOnce() -> Duration) {
        self.waited.record(nanos(waited()), 1);
    }

    /// Adds a holding time to the histogram.
    #[cfg(feature = "metrics")]
    fn record_hold(&self, held_for: impl FnOnce() -> Duration) {
        self.held.record(nanos(held_for()), 1);
    }

    /// No effect: only the feature `metrics` publishes times.
    #[cfg(not(feature = "metrics"))]
    #[expect(clippy::unused_self, reason = "the feature is off")]
    fn record_wait(&self, _waited: impl FnOnce() -> Duration) {}

    /// No effect: only the feature `metrics` publishes times.
    #[cfg(not(feature = "metrics"))]
    #[expect(clippy::unused_self, reason = "the feature is off")]
    fn record_hold(&self, _held_for: impl FnOnce() -> Duration) {}
}

/// The acquires of a client's locks, semaphores and latches, counted by kind and end.
///
/// In [`Stats::acquires`](crate::Stats::acquires).
///
/// Neither a nested guard, nor an acquire of zero permits, nor the draining of a semaphore counts
/// as an acquire. An acquire of several permits counts once. Each member of a multi lock or red
/// lock counts. A call to a semaphore or latch with an invalid name, count or lease is not counted,
/// and neither is a call that begins after the [shutdown](crate::Client::shutdown).
///
/// ```
/// use wheellock::Client;
///
/// let client = Client::in_memory();
/// let guard = client.fair_lock("orders:42").lock()?;
/// std::thread::scope(|scope| {
///     scope.spawn(|| assert!(client.fair_lock("orders:42").try_lock().unwrap().is_none()));
/// });
/// let acquires = client.stats().acquires;
/// assert_eq!((acquires.of("fair").acquired, acquires.of("fair").timed_out), (1, 1));
/// assert_eq!(acquires.total().acquired, 1);
/// # drop(guard);
/// # Ok::<(), wheellock::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Acquires {
    /// The counts by the number of an [`AcquireKind`], then of an [`AcquireEnd`].
    by_kind: [[u64; AcquireEnd::COUNT]; AcquireKind::COUNT],
}

/// The number of acquires for each way to end, in [`Acquires`].
///
/// Returned by [`Acquires::of`] and [`Acquires::total`].
///
/// ```
/// use wheellock::Client;
///
/// let counts = Client::in_memory().stats().acquires.total();
/// assert_eq!(counts.acquired + counts.timed_out + counts.cancelled + counts.failed, 0);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct AcquireCounts {
    /// The lock or the permits were granted, by the server or by another thread of this client; or
    /// the latch was open.
    pub acquired: u64,
    /// Acquired after a first refusal: another owner was ahead, too few permits were free, or the
    /// latch was closed. Each of these acquires counts in `acquired` too.
    pub contended: u64,
    /// The wait ended without a grant, or a single try was refused.
    pub timed_out: u64,
    /// The wait was [cancelled](crate::Wait::or_cancelled), or the client was shut down during the
    /// call.
    pub cancelled: u64,
    /// The acquire returned another error.
    pub failed: u64,
}

impl Acquires {
    /// The numbers of acquires of one kind, or zeros for an unknown kind.
    ///
    /// The kinds are `lock`, `fair`, `fenced`, `spin`, `simple`, `read` and `write`; `permit` of an
    /// [`ExpirableSemaphore`](crate::ExpirableSemaphore), `semaphore` of a
    /// [`Semaphore`](crate::Semaphore); and `latch` for waits for a latch.
    #[must_use]
    pub fn of(&self, kind: &str) -> AcquireCounts {
        let number = AcquireKind::all().position(|one| one.word() == kind);
        let ends = number.and_then(|number| self.by_kind.get(number)).copied();
        counts(ends.unwrap_or_default())
    }

    /// The sums of the numbers of all kinds.
    #[must_use]
    pub fn total(&self) -> AcquireCounts {
        let mut sums = [0; AcquireEnd::COUNT];
        for ends in self.by_kind {
            for (sum, count) in sums.iter_mut().zip(ends) {
                *sum += count;
            }
        }
        counts(sums)
    }
}

/// By kind, without kinds whose counts are all zero.
#[cfg(feature = "serde")]
impl serde::Serialize for Acquires {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let all = AcquireKind::all().zip(self.by_kind);
        let some = all.filter(|(_, ends)| ends.iter().any(|count| *count > 0));
        serializer.collect_map(some.map(|(kind, ends)| (kind.word(), counts(ends))))
    }
}

/// Converts counts indexed by [`AcquireEnd`] into named counts.
fn counts(ends: [u64; AcquireEnd::COUNT]) -> AcquireCounts {
    let [acquired, contended, timed_out, cancelled, failed] = ends;
    AcquireCounts { acquired, contended, timed_out, cancelled, failed }
}

/// Returns a duration in nanoseconds, as histograms record times. Saturates after 584 years.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
