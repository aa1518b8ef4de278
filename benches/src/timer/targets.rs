//! The table of the targets, beside Netty's figures.

use std::fmt::Write;

use crate::harness::figures::Figures;
use crate::harness::figures::Subject;
use crate::harness::limit::{Limit, with_unit, word};
use crate::harness::table::ratio;
use crate::harness::workload::{Measure, Target, Workload, unsized_case};
use crate::timer::case::{NETTY, SizedTimer};

/// All targets that were measured, in Markdown.
pub(crate) fn target_table(
    workloads: &[Workload<SizedTimer>],
    figures: &Figures<SizedTimer>,
) -> String {
    let mut text = "| row | workload | timer | figure | to Netty 512; 65,536 | target | of the target | | to Netty of the same size |\n|---|---|---|---:|---|---|---:|---|---|\n".to_owned();
    for workload in workloads {
        for measure in &workload.measures {
            let row = |target| target_row(target, workload.name, measure, figures);
            text.extend(measure.targets.iter().filter_map(row));
        }
    }
    text
}

/// `None` if the figure or what it is compared with was not measured.
fn target_row(
    &Target { subject, limit }: &Target<SizedTimer>,
    workload: &str,
    measure: &Measure<SizedTimer>,
    figures: &Figures<SizedTimer>,
) -> Option<String> {
    let Measure { row, title, name, unit, .. } = measure;
    let case = unsized_case(subject);
    let verdict = limit.judge(figures, case, workload, name, unit);
    let (figure, bound) = verdict.figure.zip(verdict.limit)?;
    let part = match (limit.is_least(), bound > 0.0) {
        (true, _) => bound / figure,
        (false, true) => figure / bound,
        (false, false) => figure,
    };
    let netty = NETTY.map(|netty| {
        ratio(figure, figures.median(unsized_case(netty), workload, name))
            .map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"))
    });
    // The same against Netty with as many buckets, for a limit that compares with its better size.
    let same = NETTY.iter().find(|netty| netty.buckets == subject.buckets);
    let met_at_same_size = match (limit, same) {
        (Limit::Times(times, subjects, _), Some(netty)) if subjects == NETTY => {
            let other = figures.median(unsized_case(*netty), workload, name);
            other.map(|other| figure <= times * other)
        }
        _ => None,
    };
    let mut text = String::new();
    // Writing to a string does not fail.
    writeln!(
        text,
        "| {row} | {title} | {} | {} | {} | {} | {part:.2} | {} | {} |",
        subject.name(),
        with_unit(Some(figure), unit),
        netty.join("; "),
        verdict.text,
        verdict.is_met.map_or("", word),
        met_at_same_size.map_or("", word),
    )
    .ok();
    Some(text)
}
