//! The targets with many threads, and what became of them.

use std::fmt::Write;

use crate::harness::figures::{Case, Figures};
use crate::harness::limit::{Limit, with_unit, word};
use crate::harness::workload::{NO_SIZE, Workload};
use crate::lock::threads::measures::{
    BESIDE, HASTY, HASTY_STALL, HOT, HOT_WORK, LINE, MANY, NAMES, NAMES_WORK, PINNED, PROCESSES,
    STRANGER_JAVA, STRANGER_RUST, TRIP, UNPINNED,
};
use crate::lock::threads::subject::ClientKind;

/// What has to be reached: what it is, the workload, the number of threads, the measure, its unit,
/// and the limit.
type Target = (&'static str, &'static str, usize, &'static str, &'static str, Limit<ClientKind>);

const RAW: &[ClientKind] = &[ClientKind::Raw];
const OLD: &[ClientKind] = &[ClientKind::Old];
const REDISSON: &[ClientKind] = &[ClientKind::Redisson];

const PAIR_PINNED: &str = "1 thread, one core: lock + unlock, to two raw EVALSHA";
const PAIR_UNPINNED: &str = "1 thread, unpinned: lock + unlock, to two raw EVALSHA";
const NAMES_2: &str = "2 threads, locks of their own: pairs";
const NAMES_4: &str = "4 threads, locks of their own: pairs";
const NAMES_8: &str = "8 threads, locks of their own: pairs";
const NAMES_32: &str = "32 threads, locks of their own: pairs";
const WORK_4: &str = "4 threads, 30 us of own code under locks of their own: pairs";
const WORK_8: &str = "8 threads, 30 us of own code under locks of their own: pairs";
const WORK_16: &str = "16 threads, 30 us of own code under locks of their own: pairs";
const WORK_64: &str = "64 threads, 30 us of own code under locks of their own: pairs";
const HASTY_500: &str = "500 threads, a third in a hurry: calls of the others that fail";
const HASTY_2000: &str = "2,000 threads, a third in a hurry: calls of the others that fail";
const STALL_500: &str = "500 threads, 1 s after the server stood still: calls that fail";
const STALL_2000: &str = "2,000 threads, 1 s after the server stood still: calls that fail";
const NAMES_16: &str = "16 threads, locks of their own: pairs";
const NAMES_64: &str = "64 threads, locks of their own: pairs";
const NAMES_256: &str = "256 threads, locks of their own: pairs";
const HOT_16: &str = "16 threads, one lock: hand-overs";
const DROP_PINNED: &str = "1 thread, one core: lock + drop, to two raw EVALSHA";
const DROP_UNPINNED: &str = "1 thread, unpinned: lock + drop, to two raw EVALSHA";
const NAMES_256_P99: &str = "256 threads, locks of their own: time of a pair, 99 of 100";
const SERVER_64: &str = "64 threads, locks of their own: the server's processor time of a pair";
const TRIP_4: &str = "round trip of 0.5 ms, 4 threads: pairs";
const TRIP_16: &str = "round trip of 0.5 ms, 16 threads: pairs";
const TRIP_64: &str = "round trip of 0.5 ms, 64 threads: pairs";
const HOT_16_WORK: &str = "16 threads, one lock, 20 us of work: hand-overs";
const RUST_WAITS: &str = "a Rust process beside 16 threads: its waits, 99 of 100";
const RUST_SHARE: &str = "the 16 threads beside it: of their rate alone";
const JAVA_WAITS: &str = "a Java process beside 16 threads: its waits, 99 of 100";
const JAVA_SHARE: &str = "the 16 threads beside the Java process: of their rate alone";
const FOUR_SHARES: &str = "four processes of 16 threads, one lock: the most to the least";
const FOUR_WAIT: &str = "four processes of 16 threads, one lock: longest wait";
const LINE_ORDER: &str = "1,000 threads, one lock: waiters served after a later one";
const LINE_SPREAD: &str = "1,000 threads, one lock: most served, to least";
const BEFORE: &str = "before";
const OF_RAW: &str = "raw connections'";
const OF_REDISSON: &str = "Redisson's";

/// What 20 us of work leave at most, a second, and the share of it that is to be reached.
const WORK_LIMIT: f64 = 0.55 * 1e6 / 20.0;

/// Two runs of the same build differ by this much.
const NO_SLOWER: f64 = 1.01;

fn targets() -> Vec<Target> {
    [one_thread_targets(), own_name_targets(), one_name_targets()].concat()
}

fn one_thread_targets() -> Vec<Target> {
    use Limit::{AtMost, Times};

    vec![
        (PAIR_PINNED, PINNED, NO_SIZE, "pair-ratio", "x", AtMost(1.10)),
        (PAIR_PINNED, PINNED, NO_SIZE, "pair-ratio", "x", Times(NO_SLOWER, OLD, BEFORE)),
        (PAIR_UNPINNED, UNPINNED, NO_SIZE, "pair-ratio", "x", AtMost(1.15)),
        (PAIR_UNPINNED, UNPINNED, NO_SIZE, "pair-ratio", "x", Times(NO_SLOWER, OLD, BEFORE)),
        (DROP_PINNED, PINNED, NO_SIZE, "drop-ratio", "x", AtMost(0.88)),
        (DROP_UNPINNED, UNPINNED, NO_SIZE, "drop-ratio", "x", AtMost(0.6)),
    ]
}

fn own_name_targets() -> Vec<Target> {
    use Limit::{AtMost, LeastTimes, Times};

    let second = "a second";
    vec![
        (NAMES_2, NAMES, 2, "pairs", second, LeastTimes(0.95, RAW, OF_RAW)),
        (NAMES_4, NAMES, 4, "pairs", second, LeastTimes(0.95, RAW, OF_RAW)),
        (NAMES_4, NAMES, 4, "pairs", second, LeastTimes(6.0, REDISSON, OF_REDISSON)),
        (NAMES_8, NAMES, 8, "pairs", second, LeastTimes(0.97, RAW, OF_RAW)),
        (NAMES_16, NAMES, 16, "pairs", second, LeastTimes(1.2, RAW, OF_RAW)),
        (NAMES_32, NAMES, 32, "pairs", second, LeastTimes(1.4, RAW, OF_RAW)),
        (WORK_4, NAMES_WORK, 4, "pairs", second, LeastTimes(0.93, RAW, OF_RAW)),
        (WORK_8, NAMES_WORK, 8, "pairs", second, LeastTimes(0.93, RAW, OF_RAW)),
        (WORK_16, NAMES_WORK, 16, "pairs", second, LeastTimes(0.95, RAW, OF_RAW)),
        (WORK_64, NAMES_WORK, 64, "pairs", second, LeastTimes(1.15, RAW, OF_RAW)),
        (NAMES_16, NAMES, 16, "pairs", second, LeastTimes(6.0, REDISSON, OF_REDISSON)),
        (NAMES_64, NAMES, 64, "pairs", second, LeastTimes(1.6, RAW, OF_RAW)),
        (NAMES_64, NAMES, 64, "pairs", second, LeastTimes(6.0, REDISSON, OF_REDISSON)),
        (NAMES_256, NAMES, 256, "pairs", second, LeastTimes(2.0, RAW, OF_RAW)),
        (NAMES_256, NAMES, 256, "pairs", second, LeastTimes(7.0, REDISSON, OF_REDISSON)),
        (NAMES_256_P99, NAMES, 256, "p99", "us", Times(0.8, RAW, OF_RAW)),
        (SERVER_64, NAMES, 64, "server-each", "us", Times(0.5, RAW, OF_RAW)),
        (TRIP_4, TRIP, 4, "pairs", second, LeastTimes(0.97, RAW, OF_RAW)),
        (TRIP_16, TRIP, 16, "pairs", second, LeastTimes(0.97, RAW, OF_RAW)),
        (TRIP_64, TRIP, 64, "pairs", second, LeastTimes(1.2, RAW, OF_RAW)),
        (HASTY_500, HASTY, 500, "failed", "%", AtMost(0.0)),
        (HASTY_2000, HASTY, 2000, "failed", "%", AtMost(0.0)),
        (STALL_500, HASTY_STALL, 500, "failed", "%", AtMost(0.0)),
        (STALL_2000, HASTY_STALL, 2000, "failed", "%", AtMost(0.0)),
    ]
}

fn one_name_targets() -> Vec<Target> {
    use Limit::{AtLeast, AtMost, LeastTimes};

    let second = "a second";
    vec![
        (HOT_16, HOT, 16, "pairs", second, LeastTimes(12.0, OLD, BEFORE)),
        (HOT_16, HOT, 16, "pairs", second, LeastTimes(80.0, REDISSON, OF_REDISSON)),
        (HOT_16_WORK, HOT_WORK, 16, "pairs", second, AtLeast(WORK_LIMIT)),
        (RUST_WAITS, STRANGER_RUST, BESIDE, "other-p99", "ms", AtMost(10.0)),
        (RUST_SHARE, STRANGER_RUST, BESIDE, "share", "%", AtLeast(75.0)),
        (JAVA_WAITS, STRANGER_JAVA, BESIDE, "other-p99", "ms", AtMost(20.0)),
        (JAVA_SHARE, STRANGER_JAVA, BESIDE, "share", "%", AtLeast(50.0)),
        (FOUR_SHARES, PROCESSES, BESIDE, "shares", "x", AtMost(1.5)),
        (FOUR_WAIT, PROCESSES, BESIDE, "wait-max", "ms", AtMost(100.0)),
        (LINE_ORDER, LINE, MANY, "overtaken", "waiters", AtMost(0.0)),
        (LINE_SPREAD, LINE, MANY, "spread", "x", AtMost(2.0)),
    ]
}

/// The targets of these workloads, in Markdown.
pub(crate) fn target_table(
    workloads: &[Workload<ClientKind>],
    figures: &Figures<ClientKind>,
) -> String {
    let mut text =
        "| measure | figure | target | of the target | |\n|---|---:|---|---:|---|\n".to_owned();
    let is_asked_for = |(_, name, size, ..): &Target| {
        workloads.iter().any(|workload| workload.name == *name && workload.sizes.contains(size))
    };
    for (title, workload, size, measure, unit, limit) in targets().into_iter().filter(is_asked_for)
    {
        let case = Case { subject: ClientKind::Wheellock, size };
        let verdict = limit.judge(figures, case, workload, measure, unit);
        let part = verdict.figure.zip(verdict.limit).filter(|(_, limit)| *limit > 0.0);
        // Writing to a string does not fail.
        writeln!(
            text,
            "| {title} | {} | {} | {} | {} |",
            with_unit(verdict.figure, unit),
            verdict.text,
            part.map_or_else(String::new, |(figure, limit)| format!("{:.2}", figure / limit)),
            verdict.is_met.map_or("not measured", word),
        )
        .ok();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::threads::measures::workloads;

    const WORKLOAD: &str = NAMES;

    fn table(own: f64, raw: f64) -> String {
        let mut figures = Figures::new();
        let mut add = |subject, pairs| {
            figures.add(Case { subject, size: 64 }, WORKLOAD, &format!("pairs={pairs}"));
        };
        add(ClientKind::Wheellock, own);
        add(ClientKind::Raw, raw);
        target_table(&workloads(true), &figures)
    }

    fn row(table: &str) -> String {
        let row = table.lines().find(|line| line.contains(NAMES_64) && line.contains(OF_RAW));
        row.expect("the target is in the table").to_owned()
    }

    #[test]
    fn a_target_beside_another_subject_is_met_from_its_multiple_on() {
        let row = row(&table(1600.0, 1000.0));
        assert!(
            row.ends_with("| at least 1600 a second = 1.6 x raw connections' | 1.00 | met |"),
            "{row}"
        );
    }

    #[test]
    fn a_target_beside_another_subject_is_missed_below_its_multiple() {
        let row = row(&table(1599.0, 1000.0));
        assert!(row.ends_with("| **missed** |"), "{row}");
    }

    #[test]
    fn the_targets_of_other_workloads_are_left_out() {
        let mut one = workloads(true);
        one.retain(|workload| workload.name == TRIP);
        let table = target_table(&one, &Figures::new());
        assert!(table.contains(TRIP_4) && table.contains(TRIP_64), "{table}");
        assert!(!table.contains(NAMES_64), "{table}");
    }

    #[test]
    fn what_was_not_measured_is_neither_met_nor_missed() {
        let table = target_table(&workloads(true), &Figures::new());
        assert_eq!(table.lines().count(), 2 + targets().len());
        assert!(table.lines().skip(2).all(|line| line.ends_with("| not measured |")), "{table}");
    }
}
