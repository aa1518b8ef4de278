//! The targets with 100,000 locks and with a million, and what became of them.

use std::fmt::Write;

use crate::harness::figures::{Case, Figures};
use crate::harness::limit::{Limit, with_unit, word};
use crate::watchdog::case::HolderKind;
use crate::watchdog::measures::{FLAT_OUT, FOREGROUND, HELD, MANY, MILLION, MOST, TRIP_10};

/// What has to be reached, the workload and the measure, the unit, and the limit.
const TARGETS: [(&str, &str, &str, &str, Limit<HolderKind>); 13] = [
    (
        "renewals a second, flat out, to the bare socket",
        FLAT_OUT,
        "of-floor",
        "x",
        Limit::AtLeast(0.8),
    ),
    (SHARE, HELD, "percent", "%", Limit::AtMost(2.0)),
    (SHARE, HELD, "percent", "%", Limit::Times(0.5, &[HolderKind::Redisson], "Redisson's")),
    (
        "lateness of a renewal, 99 of 100",
        HELD,
        "lateness",
        "ms",
        // The tick of a client is 10 ms.
        Limit::Sum(10.0, 2.0, "round-trip", "a tick + 2 round trips"),
    ),
    ("memory of a held lock, guard included", HELD, "memory", "bytes", Limit::AtMost(400.0)),
    ("threads beyond the caller's", HELD, "threads", "", Limit::AtMost(3.0)),
    ("lost with a round trip of 10 ms more", TRIP_10, "lost", "locks", Limit::AtMost(0.0)),
    (
        "another client's lock + unlock, 99 of 100 within",
        FOREGROUND,
        "p99",
        "us",
        Limit::Times(1.5, &[HolderKind::Unrenewed], "without renewals"),
    ),
    ("a million: client, share of a core", MILLION, "percent", "%", Limit::AtMost(20.0)),
    ("a million: lost", MILLION, "lost", "locks", Limit::AtMost(0.0)),
    ("a million: all dropped", MILLION, "dropped", "s", Limit::AtMost(40.0)),
    ("a million: all released by a shutdown", MILLION, "shutdown", "s", Limit::AtMost(20.0)),
    ("a million: not released by it", MILLION, "left", "locks", Limit::AtMost(0.0)),
];
const SHARE: &str = "client: share of a core, lease of 30 s";

/// All targets, in Markdown.
pub(crate) fn target_table(figures: &Figures<HolderKind>) -> String {
    let mut text = "| measure | figure | target | |\n|---|---:|---|---|\n".to_owned();
    for (title, workload, measure, unit, limit) in TARGETS {
        let size = if workload == MILLION { MOST } else { MANY };
        let case = Case { subject: HolderKind::Wheellock, size };
        let verdict = limit.judge(figures, case, workload, measure, unit);
        // Writing to a string does not fail.
        writeln!(
            text,
            "| {title} | {} | {} | {} |",
            with_unit(verdict.figure, unit),
            verdict.text,
            verdict.is_met.map_or("not measured", word),
        )
        .ok();
    }
    text
}
