//! Who is measured: a timer, with a number of buckets if it has buckets.

use std::time::Duration;

use crate::timing::crates::{Hierarchical, TimerCrate};
use crate::timing::heap::Heap;
use crate::timing::own::{Boxed, Typed};
use crate::timing::tokio_peers::{Queue, TokioEntry, TokioTask};
use crate::timing::workloads::{Numbers, floors, run};

/// As many buckets as Netty's timer has unless it is told otherwise.
pub(crate) const FEW: usize = 512;
/// A lap of 65 s at a tick of 1 ms.
pub(crate) const MANY: usize = 65_536;

/// A timer and its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Contestant {
    pub(crate) timer: Timer,
    /// Zero for a timer that has no buckets, or whose number of them cannot be set.
    pub(crate) buckets: usize,
}

/// The timers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    Typed,
    Boxed,
    Netty,
    TokioEntry,
    TokioTask,
    Queue,
    Hierarchical,
    Crate,
    Heap,
    Floors,
}

impl Timer {
    const ALL: [(Self, &'static str); 10] = [
        (Self::Typed, "typed"),
        (Self::Boxed, "boxed"),
        (Self::Netty, "netty"),
        (Self::TokioEntry, "tokio-entry"),
        (Self::TokioTask, "tokio-task"),
        (Self::Queue, "delay-queue"),
        (Self::Hierarchical, "hierarchical"),
        (Self::Crate, "timer"),
        (Self::Heap, "heap"),
        (Self::Floors, "floors"),
    ];

    /// What it is called between the report and the process that measures.
    pub(crate) fn word(self) -> &'static str {
        Self::ALL.iter().find(|(timer, _)| *timer == self).map_or("", |(_, word)| word)
    }

    pub(crate) fn from_word(word: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, own)| *own == word).map(|(timer, _)| *timer)
    }
}

impl Contestant {
    pub(crate) const fn new(timer: Timer, buckets: usize) -> Self {
        Self { timer, buckets }
    }

    pub(crate) fn is_ours(self) -> bool {
        matches!(self.timer, Timer::Typed | Timer::Boxed)
    }

    /// What it is called in tables.
    pub(crate) fn name(self) -> String {
        let name = match self.timer {
            Timer::Typed => "BatchTimer of u64",
            Timer::Boxed => "HashedWheelTimer",
            Timer::Netty => "Netty 4.2",
            Timer::TokioEntry => "tokio, entry alone",
            Timer::TokioTask => "tokio, task each",
            Timer::Queue => "tokio-util DelayQueue",
            Timer::Hierarchical => "hierarchical_hash_wheel_timer",
            Timer::Crate => "timer",
            Timer::Heap => "heap and condvar",
            Timer::Floors => "floor",
        };
        match self.buckets {
            0 => name.to_owned(),
            FEW => format!("{name}, 512 buckets"),
            _ => format!("{name}, 65,536 buckets"),
        }
    }

    /// Runs a workload in this process; none if there is no such workload, or it is not measured here.
    pub(crate) fn measure(self, workload: &str, window: Duration) -> Option<Numbers> {
        let buckets = self.buckets;
        match self.timer {
            Timer::Typed => run::<Typed>(workload, buckets, window),
            Timer::Boxed => run::<Boxed>(workload, buckets, window),
            Timer::TokioEntry => run::<TokioEntry>(workload, buckets, window),
            Timer::TokioTask => run::<TokioTask>(workload, buckets, window),
            Timer::Queue => run::<Queue>(workload, buckets, window),
            Timer::Hierarchical => run::<Hierarchical>(workload, buckets, window),
            Timer::Crate => run::<TimerCrate>(workload, buckets, window),
            Timer::Heap => run::<Heap>(workload, buckets, window),
            Timer::Floors => Some(floors()),
            Timer::Netty => None,
        }
    }
}
