//! Measuring several contenders in turn, so that all of them meet the same machine.
//!
//! On a machine that is shared, or whose loopback has two speeds, figures that were taken one after the other cannot be
//! compared. So each round runs every contender for a short while, and the figure of a contender is the median of its
//! rounds' medians. The ratio to the floor is taken within each round; its median is the ratio that is printed.

use std::fmt::Write;
use std::time::Duration;

use crate::contender::Contender;

/// What was measured of one contender.
#[derive(Clone, Debug)]
pub struct Figures {
    /// What it is called.
    pub name: &'static str,
    /// The median of the rounds' medians.
    pub median: Duration,
    /// The rounds' medians, a tenth from below and a tenth from above: how steady the machine was.
    pub spread: (Duration, Duration),
    /// The median of the ratios to the first contender, each taken within one round.
    pub ratio: f64,
}

/// Runs every contender for `samples` in each of `rounds`, in an order that turns from round to round. The first
/// contender is the floor.
pub fn measure_in_turn(
    contenders: &mut [Contender],
    rounds: usize,
    samples: usize,
) -> Vec<Figures> {
    let mut medians: Vec<Vec<Duration>> = vec![Vec::new(); contenders.len()];
    let last = contenders.len().saturating_sub(1);
    for round in 0..rounds {
        for turn in 0..contenders.len() {
            // Forth and back, so that none is always the one that follows the slowest.
            let place = if round % 2 == 0 { turn } else { last - turn };
            let (Some(contender), Some(medians)) =
                (contenders.get_mut(place), medians.get_mut(place))
            else {
                continue;
            };
            let mut taken: Vec<Duration> = (0..samples).map(|_| contender.sample()).collect();
            taken.sort_unstable();
            medians.push(at(&taken, 0.5));
        }
    }
    let floor = medians.first().cloned().unwrap_or_default();
    contenders
        .iter()
        .zip(medians)
        .map(|(contender, medians)| figures(contender.name(), &medians, &floor))
        .collect()
}

/// The figures as a table, ratios to the first of them.
#[must_use]
pub fn table(title: &str, figures: &[Figures]) -> String {
    let mut table =
        format!("{title:<32} {:>10} {:>10} {:>10} {:>8}\n", "median", "10%", "90%", "ratio");
    for Figures { name, median, spread, ratio } in figures {
        let (low, high) = (micros(spread.0), micros(spread.1));
        // Writing to a string does not fail.
        writeln!(table, "{name:<32} {:>10} {low:>10} {high:>10} {ratio:>8.3}", micros(*median))
            .ok();
    }
    table
}

fn figures(name: &'static str, medians: &[Duration], floor: &[Duration]) -> Figures {
    let mut ratios: Vec<f64> = medians
        .iter()
        .zip(floor)
        .map(|(median, floor)| median.as_secs_f64() / floor.as_secs_f64())
        .collect();
    ratios.sort_unstable_by(f64::total_cmp);
    let mut medians = medians.to_vec();
    medians.sort_unstable();
    Figures {
        name,
        median: at(&medians, 0.5),
        spread: (at(&medians, 0.1), at(&medians, 0.9)),
        ratio: at(&ratios, 0.5),
    }
}

/// The value at a part of a sorted list.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "a list of samples is short, and its part is a place in it"
)]
fn at<T: Copy>(sorted: &[T], part: f64) -> T {
    let place = (sorted.len().saturating_sub(1) as f64 * part).round() as usize;
    sorted.get(place).copied().expect("there is at least one round and one sample")
}

fn micros(duration: Duration) -> String {
    format!("{:.1} us", duration.as_secs_f64() * 1e6)
}
