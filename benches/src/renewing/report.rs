//! The report as a whole: what is measured, in which order, and what is printed and drawn.

use std::fmt::Write;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use wheellock_fixture::Server;

use crate::clock::now;
use crate::figures::Figures;
use crate::machine::describe;
use crate::renewing::bars::bar_table;
use crate::renewing::contestant::Who;
use crate::renewing::flat_out::flat_out;
use crate::renewing::foreground::foreground;
use crate::renewing::held::held;
use crate::renewing::keepers::{
    Numbers, Rlock, Target, TimerTasks, TokioTasks, Unrenewed, Wheellock,
};
use crate::renewing::measure::{FLAT_OUT, FOREGROUND, HELD, Workload, workloads};
use crate::renewing::plots::write_plots;
use crate::renewing::redisson::Redisson;
use crate::renewing::runs::run;
use crate::renewing::table::measure_table;

/// Measures everything, or the workloads, keepers and numbers of locks named in `only`, draws the plots, and answers
/// the tables. `progress` is told what is being measured.
///
/// # Errors
///
/// If the plots cannot be written.
pub fn watchdog_report(
    quick: bool,
    only: &[String],
    runs: Option<usize>,
    progress: impl Fn(&str),
) -> io::Result<String> {
    let runs = runs.unwrap_or(if quick { 1 } else { 3 });
    let mut chosen = workloads(quick);
    restrict(&mut chosen, only);
    let redisson = Redisson::build();
    let mut text = describe(&Server::start());
    match &redisson {
        Ok(_) => text.push_str("Redisson: from its published jar, its own settings, G1, 1 GB\n"),
        Err(reason) => writeln!(text, "Redisson: not measured, as {reason}").unwrap_or(()),
    }
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    writeln!(text, "load before: {}", load.trim()).unwrap_or(());
    writeln!(text, "runs of each: {runs}; figures are medians\n").unwrap_or(());

    let (mut figures, mut failures) = (Figures::default(), Vec::new());
    for workload in &chosen {
        let start = now();
        run(workload, runs, redisson.as_ref().ok(), &mut figures, &mut failures);
        progress(&format!("{}: measured in {:.0?}", workload.name, now() - start));
    }
    for workload in &chosen {
        for measure in &workload.measures {
            if let Some(table) = measure_table(workload, measure, &figures) {
                writeln!(text, "{table}").unwrap_or(());
            }
        }
    }
    writeln!(text, "### The bars, with 100,000 locks\n\n{}", bar_table(&figures)).unwrap_or(());
    for failure in failures {
        writeln!(text, "failed: {failure}").unwrap_or(());
    }
    // A quick look is nothing to be shown around.
    if !quick {
        write_plots(&Path::new(env!("CARGO_MANIFEST_DIR")).join("plots"), &chosen, &figures)?;
    }
    Ok(text)
}

/// What a measuring process does: one workload, one keeper. Answers its line of numbers; none if there is no such
/// workload or keeper.
#[must_use]
pub fn keep_one(
    workload: &str,
    keeper: &str,
    [address, locks, lease, window]: [&str; 4],
) -> Option<String> {
    let (address, locks) = (address.parse().ok()?, locks.parse().ok()?);
    let lease = Duration::from_millis(lease.parse().ok()?);
    let window = Duration::from_millis(window.parse().ok()?);
    let target = Target { address, lease };
    let numbers: Numbers = match (workload, Who::from_word(keeper)?) {
        (FLAT_OUT, Who::Wheellock) => flat_out(address, locks, window),
        (FOREGROUND, Who::Wheellock) => foreground(address, window),
        (HELD, Who::Wheellock) => held::<Wheellock>(&target, locks, window),
        (HELD, Who::Unrenewed) => held::<Unrenewed>(&target, locks, window),
        (HELD, Who::Rlock) => held::<Rlock>(&target, locks, window),
        (HELD, Who::TimerTasks) => held::<TimerTasks>(&target, locks, window),
        (HELD, Who::TokioTasks) => held::<TokioTasks>(&target, locks, window),
        _ => return None,
    };
    let words: Vec<String> =
        numbers.into_iter().map(|(name, number)| format!("{name}={number:.6}")).collect();
    Some(words.join(" "))
}

/// Leaves what the words name: workloads, keepers and numbers of locks.
fn restrict(chosen: &mut Vec<Workload>, only: &[String]) {
    let counts: Vec<usize> =
        only.iter().filter_map(|word| word.replace(',', "").parse().ok()).collect();
    let named = |name: &str| only.iter().any(|word| word == name);
    if chosen.iter().any(|workload| named(workload.name)) {
        chosen.retain(|workload| named(workload.name));
    }
    let keepers: Vec<Who> = only.iter().filter_map(|word| Who::from_word(word)).collect();
    if !keepers.is_empty() {
        for workload in chosen.iter_mut() {
            workload.keepers.retain(|keeper| keepers.contains(keeper));
        }
    }
    if !counts.is_empty() {
        for workload in chosen.iter_mut() {
            workload.held.retain(|held| counts.contains(held));
        }
        chosen.retain(|workload| !workload.held.is_empty());
    }
}
