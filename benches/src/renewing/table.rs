//! The tables: a measure with all keepers, by the number of locks held.

use std::fmt::Write;

use crate::figures::{Figures, grouped, number};
use crate::renewing::contestant::Case;
use crate::renewing::measure::{Measure, Workload};

/// A measure in Markdown. None if nobody was measured.
pub(crate) fn measure_table(
    workload: &Workload,
    measure: &Measure,
    figures: &Figures<Case>,
) -> Option<String> {
    let counts: Vec<usize> =
        workload.held.iter().copied().filter(|held| *held >= measure.least_held).collect();
    let mut text = format!("### {}: {}", workload.name, measure.title);
    if !measure.unit.is_empty() {
        // Writing to a string does not fail.
        write!(text, " ({})", measure.unit).ok();
    }
    text.push_str("\n\n| locks held |");
    for held in &counts {
        write!(text, " {} |", grouped(*held)).ok();
    }
    text.push_str("\n|---|");
    text.push_str(&"---:|".repeat(counts.len()));
    text.push('\n');
    let mut any = false;
    for &keeper in &workload.keepers {
        let cells: Vec<String> = counts
            .iter()
            .map(|&held| cell(figures, Case { keeper, held }, workload, measure))
            .collect();
        if cells.iter().all(String::is_empty) {
            continue;
        }
        any = true;
        let name =
            if keeper.is_ours() { format!("**{}**", keeper.name()) } else { keeper.name().into() };
        writeln!(text, "| {name} | {} |", cells.join(" | ")).ok();
    }
    any.then_some(text)
}

/// The median, and the least and the most if there were several runs.
fn cell(figures: &Figures<Case>, case: Case, workload: &Workload, measure: &Measure) -> String {
    let Some(summary) = figures.summary(case, workload.name, measure.name) else {
        return String::new();
    };
    let (median, least, most) =
        (number(summary.median), number(summary.least), number(summary.most));
    if least == most { median } else { format!("{median} ({least} to {most})") }
}
