//! The bars, and what was reached of them with 100,000 locks.

use std::fmt::Write;

use crate::figures::{Figures, number};
use crate::renewing::contestant::{Case, Who};
use crate::renewing::measure::{FLAT_OUT, FOREGROUND, HELD, MANY, TRIP_10};

/// One bar with its figure. Either is none if it was not measured.
#[derive(Debug)]
struct Bar {
    what: &'static str,
    figure: Option<f64>,
    unit: &'static str,
    limit: Option<f64>,
    /// Where the limit comes from, if it is not a number of its own.
    from: &'static str,
    at_least: bool,
}

/// The tick of a client, in milliseconds.
const TICK: f64 = 10.0;

/// All bars, in Markdown.
pub(crate) fn bar_table(figures: &Figures<Case>) -> String {
    let mut text = "| measure | figure | bar | |\n|---|---:|---|---|\n".to_owned();
    for Bar { what, figure, unit, limit, from, at_least } in bars(figures) {
        let met = figure.zip(limit).map(
            |(figure, limit)| {
                if at_least { figure >= limit } else { figure <= limit }
            },
        );
        let verdict = match met {
            Some(true) => "met",
            Some(false) => "**missed**",
            None => "not measured",
        };
        let shown = |value: f64| format!("{} {unit}", number(value)).trim_end().to_owned();
        let word = if at_least { "at least" } else { "at most" };
        // Writing to a string does not fail.
        writeln!(
            text,
            "| {what} | {} | {word} {}{from} | {verdict} |",
            figure.map_or_else(|| "-".to_owned(), shown),
            limit.map_or_else(|| "-".to_owned(), shown),
        )
        .ok();
    }
    text
}

fn bars(figures: &Figures<Case>) -> Vec<Bar> {
    let of = |workload, keeper, name| {
        let summary = figures.summary(Case { keeper, held: MANY }, workload, name)?;
        Some(summary.median)
    };
    let own = |workload, name| of(workload, Who::Wheellock, name);
    let bar =
        |what, figure, unit, limit| Bar { what, figure, unit, limit, from: "", at_least: false };
    let percent = own(HELD, "percent");
    vec![
        Bar {
            at_least: true,
            from: " of the bare socket",
            ..bar("renewals a second, flat out", own(FLAT_OUT, "of-floor"), "x", Some(0.8))
        },
        bar("client: share of a core, lease of 30 s", percent, "%", Some(2.0)),
        Bar {
            from: " = 0.5 x Redisson's",
            ..bar(
                "client: share of a core, lease of 30 s",
                percent,
                "%",
                of(HELD, Who::Redisson, "percent").map(|other| 0.5 * other),
            )
        },
        Bar {
            from: " = a tick + 2 round trips",
            ..bar(
                "renewals late, 99 of 100 by at most",
                own(HELD, "lateness"),
                "ms",
                own(HELD, "round-trip").map(|trip| TICK + 2.0 * trip),
            )
        },
        bar("memory of a held lock, guard included", own(HELD, "memory"), "bytes", Some(400.0)),
        bar("threads beyond the caller's", own(HELD, "threads"), "", Some(3.0)),
        bar("lost with a round trip of 10 ms more", own(TRIP_10, "lost"), "locks", Some(0.0)),
        Bar {
            from: " = 1.5 x without renewals",
            ..bar(
                "another client's lock + unlock, 99 of 100 within",
                own(FOREGROUND, "p99"),
                "us",
                of(FOREGROUND, Who::Unrenewed, "p99").map(|other| 1.5 * other),
            )
        },
    ]
}
