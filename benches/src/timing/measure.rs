//! The rows of the table: what is measured of whom, in which unit, and how good it must be.

use std::time::Duration;

use crate::timing::contestant::{Contestant, FEW, MANY, Timer};

/// A workload, and who takes part in it.
#[derive(Debug)]
pub(crate) struct Workload {
    /// What the process is told, and what `--only` takes.
    pub(crate) name: &'static str,
    pub(crate) contestants: Vec<Contestant>,
    /// How many processes run side by side. Those that mostly sleep do not disturb each other.
    pub(crate) side_by_side: usize,
    /// How long is measured, for a workload that is measured for a time.
    pub(crate) window: Duration,
    pub(crate) measures: Vec<Measure>,
}

/// One number of a workload.
#[derive(Debug)]
pub(crate) struct Measure {
    pub(crate) row: &'static str,
    pub(crate) title: &'static str,
    /// As the process calls it.
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) bars: Vec<Bar>,
}

/// How good ours must be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bar {
    pub(crate) whose: Contestant,
    pub(crate) limit: Limit,
}

/// What a figure is held against.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Limit {
    /// At most so much.
    AtMost(f64),
    /// At least so much.
    AtLeast(f64),
    /// At most so many times what the better of Netty's two sizes takes.
    TimesNetty(f64),
    /// At most so many times what another contestant takes.
    Times(f64, Contestant),
    /// At most so many times its own figure in another workload.
    TimesItself(f64, &'static str),
    /// At most so much, or so many times Netty's.
    AtMostOrTimesNetty(f64, f64),
}

pub(crate) const TYPED: Contestant = Contestant::new(Timer::Typed, MANY);
pub(crate) const BOXED: Contestant = Contestant::new(Timer::Boxed, MANY);
pub(crate) const TYPED_FEW: Contestant = Contestant::new(Timer::Typed, FEW);
pub(crate) const BOXED_FEW: Contestant = Contestant::new(Timer::Boxed, FEW);
pub(crate) const NETTY: [Contestant; 2] =
    [Contestant::new(Timer::Netty, FEW), Contestant::new(Timer::Netty, MANY)];
pub(crate) const NETTY_FEW: Contestant = Contestant::new(Timer::Netty, FEW);
const TOKIO_ENTRY: Contestant = Contestant::new(Timer::TokioEntry, 0);
const TOKIO_TASK: Contestant = Contestant::new(Timer::TokioTask, 0);
const QUEUE: Contestant = Contestant::new(Timer::Queue, 0);
const HIERARCHICAL: Contestant = Contestant::new(Timer::Hierarchical, 0);
const TIMER_CRATE: Contestant = Contestant::new(Timer::Crate, 0);
const HEAP: Contestant = Contestant::new(Timer::Heap, 0);
pub(crate) const FLOORS: Contestant = Contestant::new(Timer::Floors, 0);

const OURS: [Contestant; 2] = [TYPED, BOXED];
const OURS_FEW: [Contestant; 2] = [TYPED_FEW, BOXED_FEW];
const PEERS: [Contestant; 4] = [QUEUE, HIERARCHICAL, TIMER_CRATE, HEAP];

/// All rows. `quick` makes the windows shorter, and leaves the slow peers out where they take the longest.
pub(crate) fn workloads(quick: bool) -> Vec<Workload> {
    let window = Duration::from_millis(if quick { 1200 } else { 3000 });
    let mut all = vec![floors()];
    all.extend(pairs());
    all.extend(fills());
    all.push(memory());
    all.push(memory_hour());
    all.push(rounds(window * 2 / 3));
    all.push(fire());
    all.push(burst());
    all.push(rearm(window));
    all.push(hold(window));
    all.push(idle());
    for workload in &mut all {
        // Two threads say little of those that have one lock or one channel, and take long over it.
        if workload.name == "fill-2"
            || quick && ["fill-1", "fire", "burst"].contains(&workload.name)
        {
            workload.contestants.retain(|contestant| !PEERS.contains(contestant));
        }
    }
    all
}

fn all_of(groups: &[&[Contestant]]) -> Vec<Contestant> {
    groups.concat()
}

fn both(typed: Limit, boxed: Limit) -> Vec<Bar> {
    vec![Bar { whose: TYPED, limit: typed }, Bar { whose: BOXED, limit: boxed }]
}

fn measure(
    row: &'static str,
    title: &'static str,
    name: &'static str,
    unit: &'static str,
    bars: Vec<Bar>,
) -> Measure {
    Measure { row, title, name, unit, bars }
}

fn floors() -> Workload {
    let floor = |title, name| measure("0", title, name, "ns", Vec::new());
    Workload {
        name: "floors",
        contestants: vec![FLOORS],
        side_by_side: 1,
        window: Duration::ZERO,
        measures: vec![
            floor("floor: Instant::now", "clock"),
            floor("floor: a lock that is free, locked and unlocked", "lock"),
            floor("floor: a closure of 8 bytes, boxed and dropped", "closure"),
            floor("floor: a word changed at random in 32 MB, behind a lock", "memory"),
        ],
    }
}

fn pairs() -> [Workload; 2] {
    let one = both(Limit::TimesNetty(1.0), Limit::TimesNetty(1.0));
    let tokio = Bar { whose: TYPED, limit: Limit::Times(0.5, TOKIO_ENTRY) };
    let two = both(Limit::TimesNetty(0.35), Limit::TimesNetty(0.4));
    let itself = both(Limit::TimesItself(1.3, "pairs-1"), Limit::TimesItself(1.5, "pairs-1"));
    let pairs = |name, row, title, title_processor, bars| Workload {
        name,
        contestants: all_of(&[&OURS, &OURS_FEW, &NETTY, &[TOKIO_ENTRY], &PEERS]),
        side_by_side: 1,
        window: Duration::ZERO,
        measures: vec![
            measure(row, title, "wall", "ns", bars),
            measure(row, title_processor, "processor", "ns", Vec::new()),
        ],
    };
    [
        pairs(
            "pairs-1",
            "1",
            "schedule + cancel at once, 1 thread: time of a pair",
            "schedule + cancel at once, 1 thread: processor time of a pair, whole process",
            [one, vec![tokio]].concat(),
        ),
        pairs(
            "pairs-2",
            "2",
            "schedule + cancel at once, 2 threads: time of a pair on each thread",
            "schedule + cancel at once, 2 threads: processor time of a pair, whole process",
            [two, itself].concat(),
        ),
    ]
}

fn fills() -> [Workload; 2] {
    let all = all_of(&[&OURS, &OURS_FEW, &NETTY, &[TOKIO_ENTRY], &PEERS]);
    let fill = |name, titles: [&'static str; 7]| Workload {
        name,
        contestants: all.clone(),
        side_by_side: 1,
        window: Duration::ZERO,
        measures: vec![
            measure(
                "3",
                titles[0],
                "schedule",
                "ns",
                both(Limit::TimesNetty(1.0), Limit::TimesNetty(2.0)),
            ),
            measure("3", titles[1], "schedule-fresh", "ns", Vec::new()),
            measure("3", titles[2], "schedule-call", "ns", Vec::new()),
            measure(
                "4",
                titles[3],
                "cancel",
                "ns",
                both(Limit::TimesNetty(0.3), Limit::TimesNetty(0.5)),
            ),
            measure("4", titles[4], "cancel-let-go", "ns", Vec::new()),
            measure("4", titles[5], "cancel-fresh", "ns", Vec::new()),
            measure("4", titles[6], "cancel-call", "ns", Vec::new()),
        ],
    };
    [
        fill(
            "fill-1",
            [
                "schedule a million, 1 thread: processor time each, until absorbed",
                "schedule a million, 1 thread, fresh: processor time each, until absorbed",
                "schedule a million, 1 thread: time of the call",
                "cancel a million in random order, 1 thread: processor time each, until freed",
                "cancel a million in random order, 1 thread: processor time each, until the timer has let go of them",
                "cancel a million in random order, 1 thread, fresh: processor time each, until freed",
                "cancel a million in random order, 1 thread: time of the call",
            ],
        ),
        fill(
            "fill-2",
            [
                "schedule a million, 2 threads: processor time each, until absorbed",
                "schedule a million, 2 threads, fresh: processor time each, until absorbed",
                "schedule a million, 2 threads: time of the call on each thread",
                "cancel a million in random order, 2 threads: processor time each, until freed",
                "cancel a million in random order, 2 threads: processor time each, until the timer has let go of them",
                "cancel a million in random order, 2 threads, fresh: processor time each, until freed",
                "cancel a million in random order, 2 threads: time of the call on each thread",
            ],
        ),
    ]
}

fn memory() -> Workload {
    Workload {
        name: "memory",
        contestants: all_of(&[&OURS, &NETTY, &[TOKIO_ENTRY], &PEERS]),
        side_by_side: 1,
        window: Duration::ZERO,
        measures: vec![measure(
            "5",
            "memory of a pending timeout, due within a minute, beside the caller's handle",
            "bytes",
            "bytes",
            both(Limit::AtMost(48.0), Limit::AtMost(88.0)),
        )],
    }
}

/// Beyond a lap there is more to remember.
fn memory_hour() -> Workload {
    let title = "memory of a pending timeout, due within an hour, beside the caller's handle";
    Workload {
        name: "memory-hour",
        contestants: all_of(&[&OURS, &OURS_FEW, &NETTY]),
        measures: vec![measure("5", title, "bytes", "bytes", Vec::new())],
        ..memory()
    }
}

fn rounds(window: Duration) -> Workload {
    let few = |limit| {
        let [typed, boxed] = OURS_FEW.map(|whose| Bar { whose, limit });
        vec![typed, boxed]
    };
    let title = "a million pending over an hour, nothing due: share of a core";
    Workload {
        name: "rounds",
        contestants: all_of(&[&OURS_FEW, &[TYPED], &NETTY]),
        side_by_side: 2,
        window,
        measures: vec![
            measure("6a", title, "a", "%", few(Limit::AtMost(0.1))),
            measure(
                "6b",
                "a million pending over an hour, one due each tick: share of a core",
                "b",
                "%",
                few(Limit::Times(0.1, NETTY_FEW)),
            ),
            measure(
                "6c",
                "a million pending over an hour, 100,000 a second come and are cancelled: share of a core",
                "c",
                "%",
                few(Limit::Times(0.1, NETTY_FEW)),
            ),
        ],
    }
}

fn fire() -> Workload {
    let lateness = |title, name, bars| measure("7", title, name, "ms", bars);
    Workload {
        name: "fire",
        contestants: all_of(&[&OURS, &NETTY, &[TOKIO_TASK], &PEERS]),
        side_by_side: 1,
        window: Duration::ZERO,
        measures: vec![
            measure(
                "7",
                "a million due within a second: fired early",
                "early",
                "timeouts",
                both(Limit::AtMost(0.0), Limit::AtMost(0.0)),
            ),
            lateness("a million due within a second: lateness, half of them", "p50", Vec::new()),
            lateness(
                "a million due within a second: lateness, 99 of 100",
                "p99",
                vec![Bar { whose: TYPED, limit: Limit::AtMostOrTimesNetty(1.5, 0.7) }],
            ),
            lateness("a million due within a second: lateness, the worst", "max", Vec::new()),
        ],
    }
}

fn burst() -> Workload {
    let bars = vec![Bar { whose: TYPED, limit: Limit::AtLeast(20.0) }];
    let title = "a million due at one instant: fired a second";
    Workload { name: "burst", measures: vec![measure("7", title, "burst", "M/s", bars)], ..fire() }
}

fn rearm(window: Duration) -> Workload {
    Workload {
        name: "rearm",
        contestants: all_of(&[&OURS, &NETTY, &[TOKIO_TASK], &PEERS]),
        side_by_side: 2,
        window,
        measures: vec![measure(
            "8",
            "100,000 timeouts that re-arm each second: share of a core",
            "percent",
            "%",
            both(Limit::TimesNetty(0.85), Limit::TimesNetty(1.0)),
        )],
    }
}

fn hold(window: Duration) -> Workload {
    let few = OURS_FEW.map(|whose| Bar { whose, limit: Limit::AtMost(0.1) });
    Workload {
        name: "hold",
        contestants: all_of(&[&OURS, &OURS_FEW, &NETTY, &[TOKIO_ENTRY], &PEERS]),
        side_by_side: 3,
        window,
        measures: vec![measure(
            "9",
            "a million pending, none due for 40 s: share of a core",
            "percent",
            "%",
            [both(Limit::AtMost(0.1), Limit::AtMost(0.1)), few.to_vec()].concat(),
        )],
    }
}

fn idle() -> Workload {
    Workload {
        name: "idle",
        contestants: all_of(&[&OURS, &NETTY, &[TOKIO_TASK], &PEERS]),
        side_by_side: usize::MAX,
        window: Duration::from_secs(20),
        measures: vec![measure(
            "10",
            "nothing pending: wake-ups in 20 s",
            "wakes",
            "wake-ups",
            both(Limit::AtMost(0.0), Limit::AtMost(0.0)),
        )],
    }
}
