//! The table of a measure, in Markdown: with a column for each size, or with columns for the spread
//! of the runs and the ratios to reference subjects.

use std::fmt::Write;

use crate::harness::figures::Subject;
use crate::harness::figures::{Case, Figures, grouped, number};
use crate::harness::workload::{Measure, Workload, unsized_case};

/// `None` if nothing was measured. A reference is a subject and its name in the heading;
/// `size_title` says what a size is.
pub(crate) fn measure_table<S: Subject>(
    workload: &Workload<S>,
    measure: &Measure<S>,
    figures: &Figures<S>,
    references: &[(S, &str)],
    size_title: &str,
) -> Option<String> {
    let by_size = workload.has_sizes();
    let sizes: Vec<usize> =
        workload.sizes.iter().copied().filter(|size| *size >= measure.least_size).collect();
    let columns: Vec<String> = if by_size {
        sizes.iter().map(|size| grouped(*size)).collect()
    } else {
        let ratios = references.iter().map(|(_, name)| format!("to {name}"));
        ["median", "least", "most"].map(str::to_owned).into_iter().chain(ratios).collect()
    };
    let mut rows = String::new();
    for &subject in &workload.subjects {
        let cells: Vec<String> = if by_size {
            let cell = |&size| size_cell(figures, Case { subject, size }, workload, measure);
            sizes.iter().map(cell).collect()
        } else {
            run_cells(figures, subject, workload, measure, references)
        };
        if cells.iter().any(|cell| !cell.is_empty()) {
            let name = subject.name();
            let name = if subject.is_ours() { format!("**{name}**") } else { name };
            // Writing to a string does not fail.
            writeln!(rows, "| {name} | {} |", cells.join(" | ")).ok();
        }
    }
    let unit = if measure.unit.is_empty() { String::new() } else { format!(" ({})", measure.unit) };
    let (row, corner) = if by_size {
        (format!("{}:", workload.name), format!("{size_title} "))
    } else {
        (format!("{}.", measure.row), String::new())
    };
    let heading = format!(
        "### {row} {}{unit}\n\n| {corner}| {} |\n|---|{}\n",
        measure.title,
        columns.join(" | "),
        "---:|".repeat(columns.len())
    );
    (!rows.is_empty()).then(|| heading + &rows)
}

/// The median, and the least and the most if there were several runs.
fn size_cell<S: Subject>(
    figures: &Figures<S>,
    case: Case<S>,
    workload: &Workload<S>,
    measure: &Measure<S>,
) -> String {
    let Some(summary) = figures.summary(case, workload.name, measure.name) else {
        return String::new();
    };
    let [median, least, most] = [summary.median, summary.least, summary.most].map(number);
    if least == most { median } else { format!("{median} ({least} to {most})") }
}

fn run_cells<S: Subject>(
    figures: &Figures<S>,
    subject: S,
    workload: &Workload<S>,
    measure: &Measure<S>,
    references: &[(S, &str)],
) -> Vec<String> {
    let summary = |subject| figures.summary(unsized_case(subject), workload.name, measure.name);
    let Some(own) = summary(subject) else {
        return Vec::new();
    };
    let ratio = |(reference, _): &(S, &str)| {
        ratio(own.median, summary(*reference).map(|other| other.median))
            .map_or_else(String::new, |ratio| format!("{ratio:.3}"))
    };
    let mut cells = [own.median, own.least, own.most].map(number).to_vec();
    cells.extend(references.iter().map(ratio));
    cells
}

/// `None` if the other was not measured, or is zero.
pub(crate) fn ratio(own: f64, other: Option<f64>) -> Option<f64> {
    other.filter(|other| *other > 0.0).map(|other| own / other)
}
