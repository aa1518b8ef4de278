//! The report as a whole: what is measured, in which order, and what is printed and drawn.

use std::fmt::Write;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use crate::clock::now;
use crate::figures::Figures;
use crate::machine::describe_machine;
use crate::timing::closeness::closeness_table;
use crate::timing::contestant::{Contestant, Timer};
use crate::timing::measure::{Workload, workloads};
use crate::timing::netty::Netty;
use crate::timing::plots::write_plots;
use crate::timing::runs::run;
use crate::timing::table::{bar_table, measure_table, verdicts};

/// Measures everything, or the rows and workloads named in `only`, draws the plots, and answers the tables. `progress`
/// is told what is being measured.
///
/// # Errors
///
/// If the plots cannot be written.
pub fn timer_report(
    quick: bool,
    only: &[String],
    runs: Option<usize>,
    progress: impl Fn(&str),
) -> io::Result<String> {
    let runs = runs.unwrap_or(if quick { 1 } else { 5 });
    let mut chosen = workloads(quick);
    if !only.is_empty() {
        chosen.retain(|workload| is_chosen(workload, only));
    }
    let netty = Netty::build();
    let mut text = describe_machine();
    match &netty {
        Ok(_) => text.push_str("Netty: from its published jar, tick of 1 ms, G1, 3 GB\n"),
        Err(reason) => writeln!(text, "Netty: not measured, as {reason}").unwrap_or(()),
    }
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    writeln!(text, "load before: {}", load.trim()).unwrap_or(());
    writeln!(text, "runs of each, in turn: {runs}; figures are medians\n").unwrap_or(());

    let (mut figures, mut failures) = (Figures::default(), Vec::new());
    for workload in &chosen {
        let start = now();
        run(workload, runs, netty.as_ref().ok(), &mut figures, &mut failures);
        progress(&format!("{}: measured in {:.0?}", workload.name, now() - start));
    }
    let mut bars = Vec::new();
    for workload in &chosen {
        for measure in &workload.measures {
            if let Some(table) = measure_table(workload, measure, &figures) {
                writeln!(text, "{table}").unwrap_or(());
            }
            bars.extend(verdicts(workload, measure, &figures));
        }
    }
    writeln!(text, "### The bars\n\n{}", bar_table(&bars)).unwrap_or(());
    writeln!(text, "### How close to the floor\n\n{}", closeness_table(&figures)).unwrap_or(());
    for failure in failures {
        writeln!(text, "failed: {failure}").unwrap_or(());
    }
    // A quick look is nothing to be shown around.
    if !quick {
        write_plots(&Path::new(env!("CARGO_MANIFEST_DIR")).join("plots"), &chosen, &figures)?;
    }
    Ok(text)
}

/// What a measuring process does: one workload, one contestant. Answers its line of numbers; none if there is no such
/// workload or contestant.
#[must_use]
pub fn measure_one(workload: &str, timer: &str, buckets: &str, window: &str) -> Option<String> {
    let contestant = Contestant::new(Timer::from_word(timer)?, buckets.parse().ok()?);
    let window = Duration::try_from_secs_f64(window.parse().ok()?).ok()?;
    let numbers = contestant.measure(workload, window)?;
    let words: Vec<String> =
        numbers.into_iter().map(|(name, number)| format!("{name}={number:.6}")).collect();
    Some(words.join(" "))
}

/// By the name of the workload or by the number of the row, with or without its letter.
fn is_chosen(workload: &Workload, only: &[String]) -> bool {
    only.iter().any(|word| {
        let row = |row: &str| row.trim_end_matches(char::is_alphabetic) == word || row == word;
        workload.name == word || workload.measures.iter().any(|measure| row(measure.row))
    })
}
