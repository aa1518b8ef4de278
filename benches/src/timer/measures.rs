//! The rows of the report: what is measured of which subjects, in which unit, and the targets.

use crate::harness::limit::Limit;
use crate::harness::workload::{self, NO_SIZE, Target};
use crate::timer::case::{
    BOXED, BOXED_FEW, BOXED_JEMALLOC, BOXED_TSC, FLOORS, NETTY, NETTY_FEW, SizedTimer, TYPED,
    TYPED_FEW, TYPED_MANY, TYPED_TSC, TimerKind,
};

type Workload = workload::Workload<SizedTimer>;
type Measure = workload::Measure<SizedTimer>;
type Targets = Vec<Target<SizedTimer>>;

const TOKIO_ENTRY: SizedTimer = SizedTimer::new(TimerKind::TokioEntry, 0);
const TOKIO_TASK: SizedTimer = SizedTimer::new(TimerKind::TokioTask, 0);
const QUEUE: SizedTimer = SizedTimer::new(TimerKind::DelayQueue, 0);
const HIERARCHICAL: SizedTimer = SizedTimer::new(TimerKind::Hierarchical, 0);
const TIMER_CRATE: SizedTimer = SizedTimer::new(TimerKind::Crate, 0);
const HEAP: SizedTimer = SizedTimer::new(TimerKind::Heap, 0);

const OURS: [SizedTimer; 2] = [TYPED, BOXED];
const OURS_FEW: [SizedTimer; 2] = [TYPED_FEW, BOXED_FEW];
const PEERS: [SizedTimer; 4] = [QUEUE, HIERARCHICAL, TIMER_CRATE, HEAP];

/// All rows. `quick` leaves the slow peers out where they take the longest.
pub(crate) fn workloads(quick: bool) -> Vec<Workload> {
    let mut all = vec![
        floors(),
        pairs("pairs-1", 1),
        pairs("pairs-2", 2),
        fill("fill-1", 1),
        fill("fill-2", 2),
        memory(),
        memory_hour(),
        footprint(),
        rounds(),
        fire(),
        burst(),
        rearm(),
        hold(),
        idle(),
        growth(),
        growth_beside("growth-cores", "a busy thread for each core"),
        growth_beside("growth-memory", "a thread for each core that fills memory"),
    ];
    for workload in &mut all {
        // On two threads the peers with one lock or one channel show little, and take long.
        if workload.name == "fill-2"
            || quick && ["fill-1", "fire", "burst"].contains(&workload.name)
        {
            workload.subjects.retain(|subject| !PEERS.contains(subject));
        }
    }
    all
}

fn floors() -> Workload {
    let floor = |title, name| measure("0", title, name, "ns").not_plotted();
    let measures = vec![
        floor("floor: Instant::now", "clock"),
        floor("floor: the processor's counter, by TscClock", "counter"),
        floor("floor: the system's coarse clock", "coarse-clock"),
        floor("the coarse clock is behind the exact clock by at most", "coarse-behind"),
        floor("floor: a lock that is free, locked and unlocked", "lock"),
        floor("floor: a closure of 8 bytes, boxed and dropped", "closure"),
        floor("floor: a word changed at random in 32 MB, behind a lock", "memory"),
        floor("floor: a slot of a million unlinked at random, behind a lock", "unlink"),
    ];
    workload("floors", &[&[FLOORS]], measures)
}

fn pairs(name: &'static str, threads: usize) -> Workload {
    let what = format!("schedule + cancel at once, {}", in_words(threads));
    let wall = |subject, times| target(subject, times_netty(times));
    let (row, title, targets) = if threads == 1 {
        let tokio = Limit::Times(0.5, &[TOKIO_ENTRY], "tokio, entry alone");
        let targets = vec![
            wall(TYPED, 1.0),
            wall(TYPED_TSC, 0.65),
            wall(BOXED, 1.2),
            wall(BOXED_TSC, 0.9),
            target(TYPED, tokio),
        ];
        ("1", format!("{what}: time of a pair"), targets)
    } else {
        let itself = |times| Limit::TimesItself(times, "pairs-1");
        let targets = vec![wall(TYPED, 0.4), wall(TYPED_TSC, 0.3), wall(BOXED, 0.4)];
        let title = format!("{what}: time of a pair on each thread");
        ("2", title, [targets, both(itself(1.3), itself(1.5))].concat())
    };
    let processor = format!("{what}: processor time of a pair, whole process");
    let of_processor =
        if threads == 1 { vec![target(TYPED, times_netty(0.5))] } else { Vec::new() };
    let measures = vec![
        measure(row, title, "wall", "ns").with_targets(targets),
        measure(row, processor, "processor", "ns").with_targets(of_processor),
    ];
    let tsc = [TYPED_TSC, BOXED_TSC, BOXED_JEMALLOC];
    workload(name, &[&OURS, &tsc, &OURS_FEW, &NETTY, &[TOKIO_ENTRY], &PEERS], measures)
}

fn fill(name: &'static str, threads: usize) -> Workload {
    let threads_in_words = in_words(threads);
    let each = if threads == 1 { "" } else { " on each thread" };
    let schedule = |name, fresh, rest: &str| {
        let title = format!("schedule a million, {threads_in_words}{fresh}: {rest}");
        measure("3", title, name, "ns")
    };
    let cancel = |name, fresh, rest: &str| {
        let title = format!("cancel a million in random order, {threads_in_words}{fresh}: {rest}");
        measure("4", title, name, "ns")
    };
    let call = format!("time of the call{each}");
    let removed = "processor time each, until the timer has removed them";
    let of = |subject, times| target(subject, times_netty(times));
    let [typed, many, jemalloc] = if threads == 1 { [0.33, 0.28, 0.6] } else { [0.9, 0.45, 1.0] };
    let measures = vec![
        schedule("schedule", "", "processor time each, until absorbed").with_targets(vec![
            of(TYPED, 1.0),
            of(BOXED, 2.0),
            of(BOXED_JEMALLOC, 0.8),
        ]),
        schedule("schedule-fresh", ", fresh", "processor time each, until absorbed"),
        schedule("schedule-call", "", &call),
        cancel("cancel", "", "processor time each, until freed").with_targets(vec![
            of(TYPED, typed),
            of(TYPED_MANY, many),
            of(BOXED_JEMALLOC, jemalloc),
        ]),
        cancel("cancel-let-go", "", removed),
        cancel("cancel-fresh", ", fresh", "processor time each, until freed"),
        cancel("cancel-call", "", &call),
    ];
    let other_ways = [TYPED_MANY, TYPED_TSC, BOXED_JEMALLOC];
    workload(name, &[&OURS, &other_ways, &OURS_FEW, &NETTY, &[TOKIO_ENTRY], &PEERS], measures)
}

fn memory() -> Workload {
    let title = "memory of a pending timeout, due within a minute, beside the caller's handle";
    let bytes = measure("5", title, "bytes", "bytes")
        .with_targets(both(Limit::AtMost(48.0), Limit::AtMost(88.0)));
    workload("memory", &[&OURS, &NETTY, &[TOKIO_ENTRY], &PEERS], vec![bytes])
}

/// Beyond a round there is more to store.
fn memory_hour() -> Workload {
    let title = "memory of a pending timeout, due within an hour, beside the caller's handle";
    let bytes = measure("5", title, "bytes", "bytes");
    workload("memory-hour", &[&OURS, &OURS_FEW, &NETTY], vec![bytes])
}

/// What is left when nothing is pending. Both timers are the same inside, so one stands for both.
fn footprint() -> Workload {
    let row = |title, name, unit| measure("5", title, name, unit);
    let at_most = |limit| vec![target(TYPED, Limit::AtMost(limit))];
    let measures = vec![
        row("a timer that was just built, of 4096 buckets: memory", "idle", "kB")
            .with_targets(at_most(100.0)),
        row("a million pending on each of eight threads in turn: most memory", "peak", "MB"),
        row("the same, all cancelled: memory kept", "moved", "MB"),
        row("a timer of 16,777,216 buckets: its stop", "stop", "ms").with_targets(at_most(10.0)),
        row("the same, stopped: memory that a handle keeps", "kept", "MB")
            .with_targets(at_most(1.0)),
    ];
    workload("footprint", &[&[TYPED]], measures)
}

fn rounds() -> Workload {
    let row = |row, what: &str, name, limit| {
        let title = format!("a million pending over an hour, {what}: share of a core");
        let targets = OURS_FEW.map(|subject| target(subject, limit));
        measure(row, title, name, "%").with_targets(targets.to_vec())
    };
    let netty = Limit::Times(0.1, &[NETTY_FEW], "Netty 4.2, 512 buckets");
    let measures = vec![
        row("6a", "nothing due", "a", Limit::AtMost(0.1)),
        row("6b", "one due each tick", "b", netty),
        row("6c", "100,000 a second come and are cancelled", "c", netty),
    ];
    workload("rounds", &[&OURS_FEW, &[TYPED], &NETTY], measures)
}

fn fire() -> Workload {
    let row = |what: &str, name, unit| {
        measure("7", format!("a million due within a second: {what}"), name, unit)
    };
    let latest = Limit::AtMostOrTimes(1.5, 0.7, &NETTY, "Netty's better");
    let measures = vec![
        row("fired early", "early", "timeouts")
            .with_targets(both(Limit::AtMost(0.0), Limit::AtMost(0.0))),
        row("lateness, half of them", "p50", "ms"),
        row("lateness, 99 of 100", "p99", "ms").with_targets(vec![target(TYPED, latest)]),
        row("lateness, the worst", "max", "ms"),
    ];
    workload("fire", &[&OURS, &NETTY, &[TOKIO_TASK], &PEERS], measures)
}

fn burst() -> Workload {
    let rate = measure("7", "a million due at one instant: fired a second", "burst", "M/s")
        .with_targets(vec![target(TYPED, Limit::AtLeast(20.0))]);
    workload("burst", &[&OURS, &NETTY, &[TOKIO_TASK], &PEERS], vec![rate])
}

fn rearm() -> Workload {
    let title = "100,000 timeouts that re-arm each second: share of a core";
    let share =
        measure("8", title, "percent", "%").with_targets(both(times_netty(0.85), times_netty(1.0)));
    workload("rearm", &[&OURS, &NETTY, &[TOKIO_TASK], &PEERS], vec![share])
}

fn hold() -> Workload {
    let title = "a million pending, none due for 40 s: share of a core";
    let targets = [OURS, OURS_FEW].concat().into_iter();
    let share = measure("9", title, "percent", "%")
        .with_targets(targets.map(|subject| target(subject, Limit::AtMost(0.1))).collect());
    workload("hold", &[&OURS, &OURS_FEW, &NETTY, &[TOKIO_ENTRY], &PEERS], vec![share])
}

fn idle() -> Workload {
    let wakes = measure("10", "nothing pending: wake-ups in 20 s", "wakes", "wake-ups")
        .with_targets(both(Limit::AtMost(0.0), Limit::AtMost(0.0)));
    workload("idle", &[&OURS, &NETTY, &[TOKIO_TASK], &PEERS], vec![wakes])
}

fn growth() -> Workload {
    let row = |title, name, unit| measure("11", title, name, unit);
    let at_most = |limit| {
        [TYPED_FEW, BOXED_FEW, TYPED].map(|subject| target(subject, Limit::AtMost(limit))).to_vec()
    };
    let measures = vec![
        row("eight million scheduled over four hours: the slowest call", "slowest", "ms")
            .with_targets(at_most(1.0)),
        row("the same: most processor time of a call", "slowest-processor", "ms")
            .with_targets(at_most(1.0)),
        row("eight million scheduled over four hours: a call", "mean", "ns"),
        row("other timeouts meanwhile: lateness, half of them", "p50", "ms"),
        row("other timeouts meanwhile: lateness, 999 of 1000", "p99.9", "ms")
            .with_targets(at_most(2.0)),
        row("other timeouts meanwhile: lateness, the worst", "max", "ms"),
    ];
    workload("growth", &[&OURS_FEW, &OURS], measures)
}

/// The workload [`growth`] beside other threads. What the system makes of more threads than cores
/// has no target.
fn growth_beside(name: &'static str, beside: &str) -> Workload {
    let row = |what: &str, name, unit| {
        let title = format!("eight million scheduled over four hours beside {beside}: {what}");
        measure("11", title, name, unit).not_plotted()
    };
    let measures = vec![
        row("the slowest call", "slowest", "ms"),
        row("most processor time of a call", "slowest-processor", "ms"),
        row("a call", "mean", "ns"),
        row("other timeouts meanwhile: lateness, half of them", "p50", "ms"),
        row("other timeouts meanwhile: lateness, 999 of 1000", "p99.9", "ms"),
        row("other timeouts meanwhile: lateness, the worst", "max", "ms"),
    ];
    workload(name, &[&OURS_FEW], measures)
}

fn workload(name: &'static str, subjects: &[&[SizedTimer]], measures: Vec<Measure>) -> Workload {
    Workload { name, subjects: subjects.concat(), sizes: vec![NO_SIZE], measures }
}

fn measure(
    row: &'static str,
    title: impl Into<String>,
    name: &'static str,
    unit: &'static str,
) -> Measure {
    Measure { row, ..Measure::new(title, name, unit) }
}

fn target(subject: SizedTimer, limit: Limit<SizedTimer>) -> Target<SizedTimer> {
    Target { subject, limit }
}

fn both(typed: Limit<SizedTimer>, boxed: Limit<SizedTimer>) -> Targets {
    vec![target(TYPED, typed), target(BOXED, boxed)]
}

/// At most this many times what the better of Netty's two sizes takes.
fn times_netty(times: f64) -> Limit<SizedTimer> {
    Limit::Times(times, &NETTY, "Netty's better")
}

fn in_words(threads: usize) -> &'static str {
    if threads == 1 { "1 thread" } else { "2 threads" }
}
