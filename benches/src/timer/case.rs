//! The subjects: timers, with a number of buckets if they have buckets.

use std::time::Duration;

use crate::harness::figures::Subject;
use crate::harness::measured::Numbers;
use crate::timer::crates::{Hierarchical, TimerCrate};
use crate::timer::heap::Heap;
use crate::timer::own::{Boxed, Typed, TypedMany};
use crate::timer::tokio_timers::{Queue, TokioEntry, TokioTask};
use crate::timer::workloads::{floors, footprint, run};

/// The default of Netty's timer.
const FEW: usize = 512;
/// A round of 65 s at a tick of 1 ms.
const MANY: usize = 65_536;

/// A timer and its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SizedTimer {
    pub(crate) kind: TimerKind,
    /// Zero for a timer that has no buckets, or whose number of them cannot be set.
    pub(crate) buckets: usize,
}

/// The timers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimerKind {
    Typed,
    TypedTsc,
    /// 256 at a time.
    TypedMany,
    Boxed,
    BoxedTsc,
    /// With jemalloc in place of the system's allocator.
    BoxedJemalloc,
    Netty,
    TokioEntry,
    TokioTask,
    DelayQueue,
    Hierarchical,
    Crate,
    Heap,
    Floors,
}

impl TimerKind {
    const ALL: [(Self, &'static str); 14] = [
        (Self::Typed, "typed"),
        (Self::TypedTsc, "typed-tsc"),
        (Self::TypedMany, "typed-many"),
        (Self::Boxed, "boxed"),
        (Self::BoxedTsc, "boxed-tsc"),
        (Self::BoxedJemalloc, "boxed-jemalloc"),
        (Self::Netty, "netty"),
        (Self::TokioEntry, "tokio-entry"),
        (Self::TokioTask, "tokio-task"),
        (Self::DelayQueue, "delay-queue"),
        (Self::Hierarchical, "hierarchical"),
        (Self::Crate, "timer"),
        (Self::Heap, "heap"),
        (Self::Floors, "floors"),
    ];

    /// What the report and the measuring process call it.
    pub(crate) fn word(self) -> &'static str {
        Self::ALL.iter().find(|(kind, _)| *kind == self).map_or("", |(_, word)| word)
    }

    pub(crate) fn from_word(word: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, own)| *own == word).map(|(kind, _)| *kind)
    }
}

pub(crate) const TYPED: SizedTimer = SizedTimer::new(TimerKind::Typed, MANY);
pub(crate) const BOXED: SizedTimer = SizedTimer::new(TimerKind::Boxed, MANY);
pub(crate) const TYPED_TSC: SizedTimer = SizedTimer::new(TimerKind::TypedTsc, MANY);
pub(crate) const TYPED_MANY: SizedTimer = SizedTimer::new(TimerKind::TypedMany, MANY);
pub(crate) const BOXED_TSC: SizedTimer = SizedTimer::new(TimerKind::BoxedTsc, MANY);
pub(crate) const BOXED_JEMALLOC: SizedTimer = SizedTimer::new(TimerKind::BoxedJemalloc, MANY);
pub(crate) const TYPED_FEW: SizedTimer = SizedTimer::new(TimerKind::Typed, FEW);
pub(crate) const BOXED_FEW: SizedTimer = SizedTimer::new(TimerKind::Boxed, FEW);
pub(crate) const NETTY_FEW: SizedTimer = SizedTimer::new(TimerKind::Netty, FEW);
pub(crate) const NETTY_MANY: SizedTimer = SizedTimer::new(TimerKind::Netty, MANY);
pub(crate) const NETTY: [SizedTimer; 2] = [NETTY_FEW, NETTY_MANY];
pub(crate) const FLOORS: SizedTimer = SizedTimer::new(TimerKind::Floors, 0);

impl Subject for SizedTimer {
    fn name(self) -> String {
        let name = match self.kind {
            TimerKind::Typed => "BatchTimer of u64",
            TimerKind::TypedTsc => "BatchTimer of u64, TscClock",
            TimerKind::TypedMany => "BatchTimer of u64, 256 at a time",
            TimerKind::Boxed => "HashedWheelTimer",
            TimerKind::BoxedTsc => "HashedWheelTimer, TscClock",
            TimerKind::BoxedJemalloc => "HashedWheelTimer, jemalloc",
            TimerKind::Netty => "Netty 4.2",
            TimerKind::TokioEntry => "tokio, entry alone",
            TimerKind::TokioTask => "tokio, task each",
            TimerKind::DelayQueue => "tokio-util DelayQueue",
            TimerKind::Hierarchical => "hierarchical_hash_wheel_timer",
            TimerKind::Crate => "timer",
            TimerKind::Heap => "heap and condvar",
            TimerKind::Floors => "floor",
        };
        match self.buckets {
            0 => name.to_owned(),
            FEW => format!("{name}, 512 buckets"),
            _ => format!("{name}, 65,536 buckets"),
        }
    }

    fn is_ours(self) -> bool {
        matches!(
            self.kind,
            TimerKind::Typed
                | TimerKind::TypedTsc
                | TimerKind::TypedMany
                | TimerKind::Boxed
                | TimerKind::BoxedTsc
                | TimerKind::BoxedJemalloc
        )
    }
}

impl SizedTimer {
    pub(crate) const fn new(kind: TimerKind, buckets: usize) -> Self {
        Self { kind, buckets }
    }

    /// Runs a workload in this process. `None` if there is no such workload, or it cannot be
    /// measured here.
    pub(crate) fn measure(self, workload: &str, window: Duration) -> Option<Numbers> {
        let buckets = self.buckets;
        match self.kind {
            TimerKind::Typed if workload == "footprint" => Some(footprint()),
            TimerKind::Typed => run::<Typed<false>>(workload, buckets, window),
            TimerKind::TypedTsc => run::<Typed<true>>(workload, buckets, window),
            TimerKind::TypedMany => run::<TypedMany>(workload, buckets, window),
            TimerKind::Boxed | TimerKind::BoxedJemalloc => {
                run::<Boxed<false>>(workload, buckets, window)
            }
            TimerKind::BoxedTsc => run::<Boxed<true>>(workload, buckets, window),
            TimerKind::TokioEntry => run::<TokioEntry>(workload, buckets, window),
            TimerKind::TokioTask => run::<TokioTask>(workload, buckets, window),
            TimerKind::DelayQueue => run::<Queue>(workload, buckets, window),
            TimerKind::Hierarchical => run::<Hierarchical>(workload, buckets, window),
            TimerKind::Crate => run::<TimerCrate>(workload, buckets, window),
            TimerKind::Heap => run::<Heap>(workload, buckets, window),
            TimerKind::Floors => Some(floors()),
            TimerKind::Netty => None,
        }
    }
}
