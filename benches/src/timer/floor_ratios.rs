//! The figures beside their floors: what a timer that reads the clock and takes a lock cannot
//! avoid.

use std::fmt::Write;

use crate::harness::figures::Subject;
use crate::harness::figures::{Figures, number};
use crate::harness::workload::unsized_case;
use crate::timer::case::{BOXED, FLOORS, SizedTimer, TYPED, TYPED_TSC};

type Parts = &'static [&'static str];

/// What is measured, its workload and measure, the subject, and the parts of the floor.
const ROWS: [(&str, &str, &str, SizedTimer, Parts); 7] = [
    (PAIR, "pairs-1", "wall", TYPED, &["clock", "lock", "lock"]),
    (PAIR, "pairs-1", "wall", TYPED_TSC, &["counter", "lock", "lock"]),
    (PAIR, "pairs-1", "wall", BOXED, &["clock", "lock", "lock", "closure"]),
    ("schedule a million", "fill-1", "schedule", TYPED, &["clock", "lock"]),
    ("schedule a million", "fill-1", "schedule", BOXED, &["clock", "lock", "closure"]),
    (CANCEL, "fill-1", "cancel", TYPED, &["unlink"]),
    (CANCEL, "fill-1", "cancel", BOXED, &["unlink", "memory"]),
];
const PAIR: &str = "schedule + cancel at once";
const CANCEL: &str = "cancel a million in random order";

/// The figures as multiples of their floors, in Markdown. Those that were not measured are left
/// out.
pub(crate) fn floor_ratio_table(figures: &Figures<SizedTimer>) -> String {
    let mut text =
        "| one thread | timer | figure | floor | | times the floor |\n|---|---|---:|---:|---|---:|\n"
            .to_owned();
    for (what, workload, measure, subject, parts) in ROWS {
        let own = figures.median(unsized_case(subject), workload, measure);
        let part = |part: &&str| figures.median(unsized_case(FLOORS), "floors", part);
        let floor: Option<f64> = parts.iter().map(part).sum();
        if let (Some(own), Some(floor)) = (own, floor) {
            // Writing to a string does not fail.
            writeln!(
                text,
                "| {what} | {} | {} ns | {} ns | {} | {:.2} |",
                subject.name(),
                number(own),
                number(floor),
                parts.join(" + "),
                own / floor,
            )
            .ok();
        }
    }
    text
}
