//! What is measured of which holders, with how many locks, and for how long.

use std::time::Duration;

use crate::harness::workload;
use crate::watchdog::case::HolderKind;

type Workload = workload::Workload<HolderKind>;
type Measure = workload::Measure<HolderKind>;

/// The number of locks of the targets.
pub(crate) const MANY: usize = 100_000;
/// As many as one client may ever hold.
pub(crate) const MOST: usize = 1_000_000;
/// Up to this many locks the holders mostly sleep, and run side by side.
pub(crate) const QUIET: usize = 10_000;
/// Up to this many locks the lease is short, so that there are enough renewals to be measured.
const FEW: usize = 1000;

const SHORT_LEASE: Duration = Duration::from_secs(3);
/// The default of this crate and of Redisson.
const LEASE: Duration = Duration::from_secs(30);

/// The locks are held, and nothing else happens.
pub(crate) const HELD: &str = "held";
/// All locks are due at once, again and again.
pub(crate) const FLAT_OUT: &str = "flat-out";
/// A round trip takes longer.
pub(crate) const TRIP_1: &str = "trip-1";
pub(crate) const TRIP_10: &str = "trip-10";
/// Another process acquires and releases a lock of its own.
pub(crate) const FOREGROUND: &str = "foreground";

/// A million locks are held, dropped, and released by a shutdown.
pub(crate) const MILLION: &str = "million";

/// All workloads. `quick` leaves some numbers of locks and some peers out.
pub(crate) fn workloads(quick: bool) -> Vec<Workload> {
    use HolderKind::{Floor, Redisson, Rlock, TimerTasks, TokioTasks, Unrenewed, Wheellock};

    let sizes: &[usize] = if quick { &[10, 1000, MANY] } else { &[1, 10, 100, 1000, 10_000, MANY] };
    let workload = |name, subjects: &[HolderKind], sizes: &[usize], measures| Workload {
        name,
        subjects: subjects.to_vec(),
        sizes: sizes.to_vec(),
        measures,
    };
    let slow_peers: &[HolderKind] = if quick { &[] } else { &[Redisson] };
    let trip = [&[Wheellock], slow_peers].concat();
    let foreground = [&[Unrenewed, Wheellock], slow_peers].concat();
    let held = [Wheellock, Redisson, TimerTasks, TokioTasks, Rlock];
    vec![
        workload(FLAT_OUT, &[Wheellock, Floor], sizes, flat_out_measures()),
        workload(HELD, &held, sizes, held_measures()),
        workload(TRIP_1, &trip, &[MANY], trip_measures()),
        workload(TRIP_10, &trip, &[MANY], trip_measures()),
        workload(FOREGROUND, &foreground, &[MANY], foreground_measures()),
        workload(MILLION, &[Wheellock], &[MOST], million_measures()),
    ]
}

/// How much longer a round trip takes, if it does.
pub(crate) fn longer_round_trip(workload: &str) -> Option<Duration> {
    match workload {
        TRIP_1 => Some(Duration::from_millis(1)),
        TRIP_10 => Some(Duration::from_millis(10)),
        _ => None,
    }
}

pub(crate) fn lease(workload: &str, held: usize) -> Duration {
    if held <= FEW && workload != FLAT_OUT { SHORT_LEASE } else { LEASE }
}

/// The time between two renewals of a lock.
pub(crate) fn interval(workload: &str, held: usize) -> Duration {
    lease(workload, held) / 3
}

/// The time from the last acquire to the measuring: nearly every lock has been renewed then.
pub(crate) fn settle(workload: &str, held: usize) -> Duration {
    if workload == FLAT_OUT { Duration::ZERO } else { interval(workload, held) }
}

/// How long is measured: whole intervals.
pub(crate) fn window(workload: &str, held: usize, quick: bool) -> Duration {
    let interval = interval(workload, held);
    match (workload, quick) {
        (FLAT_OUT, true) => Duration::from_secs(2),
        (FLAT_OUT, false) => Duration::from_secs(10),
        (_, true) => interval.max(Duration::from_secs(5)),
        (_, false) => (interval * 2).max(Duration::from_secs(10)),
    }
}

fn held_measures() -> Vec<Measure> {
    let memory = Measure::new("client: memory of a held lock, guard included", "memory", "bytes");
    let each = "client: processor time of a renewal, idling deducted";
    vec![
        Measure::new(each, "client-each", "us"),
        Measure::new("client: share of a core", "percent", "%"),
        Measure::new("server: time of a renewal in scripts", "server-each", "us"),
        Measure::new("server: share of a core", "server-percent", "%"),
        Measure::new("renewals a second", "renewals", "/s").not_plotted(),
        Measure::new("keys in a script", "keys", "").not_plotted(),
        // With fewer locks the memory of a lock is too small to be measured.
        Measure { least_size: QUIET, ..memory },
        Measure::new("client: threads beyond the caller's", "threads", "").not_plotted(),
        Measure::new("lost", "lost", "locks").not_plotted(),
        Measure::new("lateness of a renewal, 99 of 100", "lateness", "ms").not_plotted(),
    ]
}

fn flat_out_measures() -> Vec<Measure> {
    vec![
        Measure::new("renewals a second, flat out", "rate", "thousand/s"),
        Measure::new("flat out, as a multiple of the floor", "of-floor", "").not_plotted(),
        Measure::new("one renewal of all locks", "round", "ms"),
        Measure::new("keys in a script", "round-keys", "").not_plotted(),
    ]
}

fn trip_measures() -> Vec<Measure> {
    vec![
        Measure::new("lost", "lost", "locks"),
        Measure::new("renewals a second", "renewals", "/s"),
        Measure::new("client: share of a core", "percent", "%"),
    ]
}

fn foreground_measures() -> Vec<Measure> {
    vec![
        Measure::new("another client's lock + unlock: median", "p50", "us"),
        Measure::new("another client's lock + unlock: 99 of 100 within", "p99", "us"),
    ]
}

fn million_measures() -> Vec<Measure> {
    vec![
        Measure::new("acquired a second, by 16 threads", "rate", "thousand/s").not_plotted(),
        Measure::new("client: share of a core", "percent", "%"),
        Measure::new("server: share of a core", "server-percent", "%").not_plotted(),
        Measure::new("renewals a second", "renewals", "/s").not_plotted(),
        Measure::new("lateness of a renewal, 99 of 100", "lateness", "ms").not_plotted(),
        Measure::new("client: memory of a held lock, guard included", "memory", "bytes")
            .not_plotted(),
        Measure::new("lost", "lost", "locks").not_plotted(),
        Measure::new("all dropped, one after the other", "dropped", "s"),
        Measure::new("still locked when the last drop has returned", "kept", "locks").not_plotted(),
        Measure::new("all released by a shutdown", "shutdown", "s"),
        Measure::new("not released by the shutdown", "left", "locks").not_plotted(),
    ]
}
