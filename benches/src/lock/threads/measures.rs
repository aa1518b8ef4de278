//! What is measured of which subjects, with how many threads, and for how long.

use std::time::Duration;

use crate::harness::workload::{self, NO_SIZE};
use crate::lock::threads::subject::ClientKind;
use crate::lock::threads::team::Times;

type Workload = workload::Workload<ClientKind>;
type Measure = workload::Measure<ClientKind>;

/// One thread; client and server on one core.
pub(crate) const PINNED: &str = "pinned";
/// One thread; the system chooses the cores.
pub(crate) const UNPINNED: &str = "unpinned";
/// Each thread has a lock of its own.
pub(crate) const NAMES: &str = "names";
/// As [`NAMES`], with the clients on one core and the server on another: no thread wakes one of
/// another core.
pub(crate) const NAMES_APART: &str = "names-apart";
/// As [`NAMES`], with [`OWN_CODE`] between acquire and release.
pub(crate) const NAMES_WORK: &str = "names-work";
/// As [`NAMES`], a third of the threads with limits of a few milliseconds.
pub(crate) const HASTY: &str = "hasty";
/// As [`HASTY`], and the server stands still for [`STALL`] before the window.
pub(crate) const HASTY_STALL: &str = "hasty-stall";
/// As [`NAMES`], through a relay that makes the round trip longer.
pub(crate) const TRIP: &str = "trip";
/// All threads use one lock, and do nothing while they have it.
pub(crate) const HOT: &str = "hot";
/// As [`HOT`], with the clients on one core and the server on another.
pub(crate) const HOT_APART: &str = "hot-apart";
/// As [`HOT`], and they work for [`SECTION`] while they have it.
pub(crate) const HOT_WORK: &str = "hot-work";
/// A thread of another process waits for the same lock, again and again.
pub(crate) const STRANGER_RUST: &str = "stranger-rust";
pub(crate) const STRANGER_JAVA: &str = "stranger-java";
/// Several processes use one lock.
pub(crate) const PROCESSES: &str = "processes";
/// A thousand threads use one lock.
pub(crate) const LINE: &str = "line";

/// The threads of the workloads with a process beside others.
pub(crate) const BESIDE: usize = 16;
pub(crate) const MANY: usize = 1000;
/// How many processes use one lock in [`PROCESSES`].
pub(crate) const SEVERAL: usize = 4;
/// The work of a thread that has the lock.
pub(crate) const SECTION: Duration = Duration::from_micros(20);
/// What a thread does while it has a lock of its own.
pub(crate) const OWN_CODE: Duration = Duration::from_micros(30);
/// How long the server stands still, from so long after the begin on, and as long before the window.
pub(crate) const STALL: Duration = Duration::from_millis(500);
pub(crate) const AFTER_STALL: Duration = Duration::from_secs(1);
/// What the relay adds to a round trip.
pub(crate) const LONGER_TRIP: Duration = Duration::from_micros(500);

/// All workloads. `quick` leaves some numbers of threads out.
pub(crate) fn workloads(quick: bool) -> Vec<Workload> {
    use ClientKind::{Batch, Old, Raw, Redisson, Wheellock};

    let workload = |name, subjects: &[ClientKind], sizes: &[usize], measures| Workload {
        name,
        subjects: subjects.to_vec(),
        sizes: sizes.to_vec(),
        measures,
    };
    let clients = [Wheellock, Old, Redisson];
    let all = [Wheellock, Old, Raw, Batch, Redisson];
    let one = [Wheellock, Old, Raw, Redisson];
    let few: &[usize] = &[2, 4, 8, 16, 32, 64, 256];
    let names: &[usize] = if quick { few } else { &[1, 2, 4, 8, 16, 32, 64, 256] };
    let crowds: &[usize] = &[500, 2000];
    let hot: &[usize] = if quick { &[2, 16, 64] } else { &[2, 4, 16, 64] };
    let beside = [Wheellock, Old];
    vec![
        workload(PINNED, &one, &[NO_SIZE], one_thread_measures(PINNED)),
        workload(UNPINNED, &one, &[NO_SIZE], one_thread_measures(UNPINNED)),
        workload(NAMES, &all, names, names_measures()),
        workload(NAMES_APART, &all, names, not_plotted(names_measures())),
        workload(NAMES_WORK, &[Wheellock, Raw], &[4, 8, 16, 64], not_plotted(names_measures())),
        workload(TRIP, &[Wheellock, Old, Raw, Redisson], &[4, 16, 64], trip_measures()),
        workload(HASTY, &[Wheellock], crowds, hasty_measures()),
        workload(HASTY_STALL, &[Wheellock], crowds, hasty_measures()),
        workload(HOT, &clients, hot, hot_measures()),
        workload(HOT_APART, &clients, hot, not_plotted(hot_measures())),
        workload(HOT_WORK, &clients, hot, hot_measures()),
        workload(STRANGER_RUST, &beside, &[BESIDE], stranger_measures()),
        workload(STRANGER_JAVA, &beside, &[BESIDE], stranger_measures()),
        workload(PROCESSES, &beside, &[BESIDE], processes_measures()),
        workload(LINE, &beside, &[MANY], line_measures()),
    ]
}

/// How long a workload runs.
pub(crate) fn times(workload: &str, quick: bool) -> Times {
    let millis = Duration::from_millis;
    let (settle, window) = if quick { (200, 600) } else { (500, 2000) };
    if matches!(workload, HASTY | HASTY_STALL) {
        return Times { settle: STALL * 2 + AFTER_STALL, window: millis(window) };
    }
    // A thousand threads have to be served several times each.
    let window = if workload == LINE { window * 3 } else { window };
    Times { settle: millis(settle), window: millis(window) }
}

fn one_thread_measures(row: &'static str) -> Vec<Measure> {
    let measures = vec![
        Measure::new("lock + unlock", "pair", "us"),
        Measure::new("lock + drop; raw: both replies are read", "drop", "us"),
        Measure::new("lock + unlock, to two raw EVALSHA in turn with it", "pair-ratio", "x")
            .not_plotted(),
        Measure::new("lock + drop, to two raw EVALSHA in turn with it", "drop-ratio", "x")
            .not_plotted(),
    ];
    measures.into_iter().map(|measure| Measure { row, ..measure }).collect()
}

fn names_measures() -> Vec<Measure> {
    vec![
        Measure::new("pairs a second, each thread on a lock of its own", "pairs", "a second"),
        Measure::new("time of a pair, median", "p50", "us"),
        Measure::new("time of a pair, 99 of 100", "p99", "us"),
        Measure::new("server: processor time of a pair", "server-each", "us"),
        Measure::new("client: processor time of a pair", "client-each", "us"),
    ]
}

fn not_plotted(measures: Vec<Measure>) -> Vec<Measure> {
    measures.into_iter().map(Measure::not_plotted).collect()
}

fn trip_measures() -> Vec<Measure> {
    vec![
        Measure::new("pairs a second, round trip of 0.5 ms", "pairs", "a second").not_plotted(),
        Measure::new("time of a pair, median", "p50", "us").not_plotted(),
        Measure::new("time of a pair, 99 of 100", "p99", "us").not_plotted(),
        Measure::new("a PING before, median", "trip", "us").not_plotted(),
    ]
}

fn hasty_measures() -> Vec<Measure> {
    vec![
        Measure::new("calls with a limit of 300 ms that failed", "failed", "%").not_plotted(),
        Measure::new("those calls a second", "pairs", "a second").not_plotted(),
        Measure::new("time of a pair, median", "p50", "us").not_plotted(),
    ]
}

fn hot_measures() -> Vec<Measure> {
    vec![
        Measure::new("hand-overs a second, one lock for all threads", "pairs", "a second"),
        Measure::new("until a thread has the lock, median", "wait-p50", "ms").not_plotted(),
        Measure::new("until a thread has the lock, 99 of 100", "wait-p99", "ms").not_plotted(),
        Measure::new("until a thread has the lock, longest", "wait-max", "ms").not_plotted(),
        Measure::new("client: processor time of each", "client-each", "us").not_plotted(),
        Measure::new("server: processor time of each", "server-each", "us").not_plotted(),
    ]
}

fn stranger_measures() -> Vec<Measure> {
    vec![
        Measure::new("until the other process has the lock, median", "other-p50", "ms"),
        Measure::new("until the other process has the lock, 99 of 100", "other-p99", "ms"),
        Measure::new("until the other process has the lock, longest", "other-max", "ms"),
        Measure::new("the local threads' rate, of that alone", "share", "%"),
        Measure::new("hand-overs a second beside it", "pairs", "a second").not_plotted(),
        Measure::new("hand-overs a second, alone", "alone", "a second").not_plotted(),
        Measure::new("the other process, times a second", "other-pairs", "a second").not_plotted(),
    ]
}

fn processes_measures() -> Vec<Measure> {
    vec![
        Measure::new("the most that a process got, to the least", "shares", "x"),
        Measure::new("longest wait", "wait-max", "ms"),
        Measure::new("hand-overs a second, of all", "pairs", "a second"),
    ]
}

fn line_measures() -> Vec<Measure> {
    vec![
        Measure::new("waiters served after a later one", "overtaken", "waiters"),
        Measure::new("the most that a thread was served, to the least", "spread", "x"),
        Measure::new("the least that a thread was served", "least", "times").not_plotted(),
        Measure::new("the most that a thread was served", "most", "times").not_plotted(),
        Measure::new("hand-overs a second", "pairs", "a second").not_plotted(),
        Measure::new("longest wait", "wait-max", "ms").not_plotted(),
    ]
}
