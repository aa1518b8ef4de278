//! How close the figures come to their floors: what no timer that reads the clock and takes a lock can do without.

use std::fmt::Write;

use crate::figures::{Figures, number};
use crate::timing::contestant::Contestant;
use crate::timing::measure::{BOXED, FLOORS, TYPED};

/// A figure, and the parts of its floor.
struct Floor {
    what: &'static str,
    workload: &'static str,
    measure: &'static str,
    whose: Contestant,
    parts: &'static [&'static str],
}

const fn floor(
    what: &'static str,
    workload: &'static str,
    measure: &'static str,
    whose: Contestant,
    parts: &'static [&'static str],
) -> Floor {
    Floor { what, workload, measure, whose, parts }
}

const FLOORS_OF: [Floor; 6] = [
    floor("schedule + cancel at once", "pairs-1", "wall", TYPED, &["clock", "lock", "lock"]),
    floor(
        "schedule + cancel at once",
        "pairs-1",
        "wall",
        BOXED,
        &["clock", "lock", "lock", "closure"],
    ),
    floor("schedule a million", "fill-1", "schedule", TYPED, &["clock", "lock"]),
    floor("schedule a million", "fill-1", "schedule", BOXED, &["clock", "lock", "closure"]),
    floor("cancel a million in random order", "fill-1", "cancel", TYPED, &["memory"]),
    floor("cancel a million in random order", "fill-1", "cancel", BOXED, &["memory", "memory"]),
];

/// The figures in parts of their floors, in Markdown. Those that were not measured are left out.
pub(crate) fn closeness_table(figures: &Figures<Contestant>) -> String {
    let mut text =
        "| one thread | timer | figure | floor | | times the floor |\n|---|---|---:|---:|---|---:|\n"
            .to_owned();
    for Floor { what, workload, measure, whose, parts } in FLOORS_OF {
        let own = figures.summary(whose, workload, measure);
        let floors: Option<Vec<f64>> = parts
            .iter()
            .map(|part| Some(figures.summary(FLOORS, "floors", part)?.median))
            .collect();
        if let (Some(own), Some(floors)) = (own, floors) {
            let floor: f64 = floors.iter().sum();
            // Writing to a string does not fail.
            writeln!(
                text,
                "| {what} | {} | {} ns | {} ns | {} | {:.2} |",
                whose.name(),
                number(own.median),
                number(floor),
                parts.join(" + "),
                own.median / floor,
            )
            .ok();
        }
    }
    text
}
