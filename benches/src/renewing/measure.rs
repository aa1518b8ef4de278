//! What is measured of whom, with how many locks, and for how long.

use std::time::Duration;

use crate::renewing::contestant::{Case, Who};

/// A workload, and who takes part in it.
#[derive(Debug)]
pub(crate) struct Workload {
    /// What the process is told, and what `--only` takes.
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) keepers: Vec<Who>,
    /// How many locks are held.
    pub(crate) held: Vec<usize>,
    pub(crate) measures: Vec<Measure>,
    quick: bool,
}

/// What happens while the locks are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Nothing else.
    Held,
    /// All are due at once, again and again.
    FlatOut,
    /// A round trip takes so much longer.
    Trip(Duration),
    /// Another process takes and releases a lock of its own.
    Foreground,
}

/// One number of a workload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measure {
    pub(crate) title: &'static str,
    /// As the process or the report calls it.
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    /// With fewer locks it says nothing.
    pub(crate) least_held: usize,
}

/// The number of locks that the bars speak of.
pub(crate) const MANY: usize = 100_000;
/// Up to so many locks, the keepers run side by side: they mostly sleep.
pub(crate) const SLEEPY: usize = 10_000;
/// Up to so many locks the lease is short, or there would be hardly a renewal to measure.
const FEW: usize = 1000;

const SHORT_LEASE: Duration = Duration::from_secs(3);
/// The default of this crate and of Redisson.
const LEASE: Duration = Duration::from_secs(30);

pub(crate) const HELD: &str = "held";
pub(crate) const FLAT_OUT: &str = "flat-out";
pub(crate) const TRIP_1: &str = "trip-1";
pub(crate) const TRIP_10: &str = "trip-10";
pub(crate) const FOREGROUND: &str = "foreground";

/// All workloads. `quick` makes the windows shorter and leaves some numbers of locks and some peers out.
pub(crate) fn workloads(quick: bool) -> Vec<Workload> {
    let counts: &[usize] =
        if quick { &[10, 1000, MANY] } else { &[1, 10, 100, 1000, 10_000, MANY] };
    let trip = |name, millis| Workload {
        name,
        kind: Kind::Trip(Duration::from_millis(millis)),
        keepers: if quick { vec![Who::Wheellock] } else { vec![Who::Wheellock, Who::Redisson] },
        held: vec![MANY],
        measures: trip_measures(),
        quick,
    };
    vec![
        Workload {
            name: FLAT_OUT,
            kind: Kind::FlatOut,
            keepers: vec![Who::Wheellock, Who::Floor],
            held: counts.to_vec(),
            measures: flat_out_measures(),
            quick,
        },
        Workload {
            name: HELD,
            kind: Kind::Held,
            keepers: vec![
                Who::Wheellock,
                Who::Redisson,
                Who::TimerTasks,
                Who::TokioTasks,
                Who::Rlock,
            ],
            held: counts.to_vec(),
            measures: held_measures(),
            quick,
        },
        trip(TRIP_1, 1),
        trip(TRIP_10, 10),
        Workload {
            name: FOREGROUND,
            kind: Kind::Foreground,
            keepers: if quick {
                vec![Who::Unrenewed, Who::Wheellock]
            } else {
                vec![Who::Unrenewed, Who::Wheellock, Who::Redisson]
            },
            held: vec![MANY],
            measures: foreground_measures(),
            quick,
        },
    ]
}

impl Workload {
    /// Who is measured with so many locks, each in a process of its own.
    pub(crate) fn cases(&self, held: usize) -> Vec<Case> {
        let keepers = self.keepers.iter().copied();
        keepers
            // The floor runs in the client's process, in turn with it.
            .filter(|keeper| *keeper != Who::Floor && held <= keeper.most())
            .map(|keeper| Case { keeper, held })
            .collect()
    }

    pub(crate) fn lease(&self, held: usize) -> Duration {
        if held <= FEW && self.kind != Kind::FlatOut { SHORT_LEASE } else { LEASE }
    }

    /// How often each lock is renewed.
    pub(crate) fn interval(&self, held: usize) -> Duration {
        self.lease(held) / 3
    }

    /// How long it runs, once all is taken, before it is looked at: nearly every lock has been renewed then.
    pub(crate) fn settle(&self, held: usize) -> Duration {
        if self.kind == Kind::FlatOut { Duration::ZERO } else { self.interval(held) }
    }

    /// How long it is looked at: whole intervals.
    pub(crate) fn window(&self, held: usize) -> Duration {
        let interval = self.interval(held);
        match (self.kind, self.quick) {
            (Kind::FlatOut, true) => Duration::from_secs(2),
            (Kind::FlatOut, false) => Duration::from_secs(10),
            (_, true) => interval.max(Duration::from_secs(5)),
            (_, false) => (interval * 2).max(Duration::from_secs(10)),
        }
    }
}

const fn measure(title: &'static str, name: &'static str, unit: &'static str) -> Measure {
    Measure { title, name, unit, least_held: 1 }
}

fn held_measures() -> Vec<Measure> {
    vec![
        measure("client: processor time of a renewal, idling deducted", "client-each", "us"),
        measure("client: share of a core", "percent", "%"),
        measure("server: time of a renewal in scripts", "server-each", "us"),
        measure("server: share of a core", "server-percent", "%"),
        measure("renewals a second", "renewals", "/s"),
        measure("keys in a script", "keys", ""),
        Measure {
            least_held: SLEEPY,
            ..measure("client: memory of a held lock, guard included", "memory", "bytes")
        },
        measure("client: threads beyond the caller's", "threads", ""),
        measure("lost", "lost", "locks"),
        measure("renewals late, 99 of 100 by at most", "lateness", "ms"),
    ]
}

fn flat_out_measures() -> Vec<Measure> {
    vec![
        measure("renewals a second, flat out", "rate", "thousand/s"),
        measure("flat out, in parts of the floor", "of-floor", ""),
        measure("one sweep of all locks", "sweep", "ms"),
        measure("keys in a script", "sweep-keys", ""),
    ]
}

fn trip_measures() -> Vec<Measure> {
    vec![
        measure("lost", "lost", "locks"),
        measure("renewals a second", "renewals", "/s"),
        measure("client: share of a core", "percent", "%"),
    ]
}

fn foreground_measures() -> Vec<Measure> {
    vec![
        measure("another client's lock + unlock: median", "p50", "us"),
        measure("another client's lock + unlock: 99 of 100 within", "p99", "us"),
    ]
}
