//! Measuring several contenders in turn, so that all of them meet the same machine.
//!
//! The speed of a shared machine changes, and loopback has two speeds, so figures that were taken
//! one after the other cannot be compared. Each round therefore runs every contender for a short
//! while. The figure of a contender is the median of its rounds' medians. The ratio to the floor is
//! taken within each round, and the median of these ratios is printed.

use std::fmt::Write;
use std::time::Duration;

use crate::harness::contender::Contender;
use crate::harness::figures::{at_permille, median};

/// What was measured of one contender.
#[derive(Clone, Debug)]
pub struct ContenderSummary {
    /// Its name in tables.
    pub name: &'static str,
    /// The median of the rounds' medians.
    pub median: Duration,
    /// The 10th and the 90th percentile of the rounds' medians: how steady the machine was.
    pub spread: (Duration, Duration),
    /// The median of the ratios to the first contender, each taken within one round.
    pub ratio: f64,
}

/// Runs every contender for `samples` in each of `rounds`. The first contender is the floor.
pub fn measure_in_turn(
    contenders: &mut [Contender],
    rounds: usize,
    samples: usize,
) -> Vec<ContenderSummary> {
    let mut medians: Vec<Vec<Duration>> = vec![Vec::new(); contenders.len()];
    for round in 0..rounds {
        let mut order: Vec<_> = contenders.iter_mut().zip(&mut medians).collect();
        // Back and forth, so that none always follows the slowest.
        if round % 2 == 1 {
            order.reverse();
        }
        for (contender, medians) in order {
            let mut taken: Vec<Duration> = (0..samples).map(|_| contender.sample()).collect();
            taken.sort_unstable();
            medians.push(percentile(&taken, 50));
        }
    }
    let floor = medians.first().cloned().unwrap_or_default();
    contenders
        .iter()
        .zip(medians)
        .map(|(contender, medians)| figures(contender.name(), medians, &floor))
        .collect()
}

/// The figures as a table, with ratios to the first of them.
#[must_use]
pub fn table(title: &str, figures: &[ContenderSummary]) -> String {
    let mut table =
        format!("{title:<32} {:>10} {:>10} {:>10} {:>8}\n", "median", "10%", "90%", "ratio");
    for ContenderSummary { name, median, spread, ratio } in figures {
        let (low, high) = (micros(spread.0), micros(spread.1));
        // Writing to a string does not fail.
        writeln!(table, "{name:<32} {:>10} {low:>10} {high:>10} {ratio:>8.3}", micros(*median))
            .ok();
    }
    table
}

fn figures(name: &'static str, mut medians: Vec<Duration>, floor: &[Duration]) -> ContenderSummary {
    let ratios = medians.iter().zip(floor);
    let ratio =
        median(ratios.map(|(own, floor)| own.as_secs_f64() / floor.as_secs_f64()).collect());
    medians.sort_unstable();
    let spread = (percentile(&medians, 10), percentile(&medians, 90));
    ContenderSummary { name, median: percentile(&medians, 50), spread, ratio }
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    at_permille(sorted, percent * 10).expect("there is at least one round and one sample")
}

fn micros(duration: Duration) -> String {
    format!("{:.1} us", duration.as_secs_f64() * 1e6)
}
