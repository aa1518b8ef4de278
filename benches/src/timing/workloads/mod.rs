//! The workloads. Each runs in a process of its own and answers a few numbers.

mod fill;
mod fire;
mod floors;
mod hold;
mod idle;
mod memory;
mod pairs;
mod rearm;
mod rounds_in_play;

use std::time::Duration;

pub(crate) use floors::floors;

use crate::clock::{now, pause};
use crate::process::{processor_time, processor_time_since};
use crate::timing::subject::Subject;

/// What was measured, each by its name.
pub(crate) type Numbers = Vec<(&'static str, f64)>;

/// How many timeouts are pending in the workloads that need many.
const MILLION: u32 = 1_000_000;

/// Runs the workload with this name; none if there is none.
pub(crate) fn run<S: Subject>(workload: &str, buckets: usize, window: Duration) -> Option<Numbers> {
    let subject = S::start(buckets);
    Some(match workload {
        "pairs-1" => pairs::pairs(&subject, 1),
        "pairs-2" => pairs::pairs(&subject, 2),
        "fill-1" => fill::fill(&subject, 1),
        "fill-2" => fill::fill(&subject, 2),
        "memory" => memory::memory(&subject, 5, 60),
        "memory-hour" => memory::memory(&subject, 60, 3600),
        "rounds" => rounds_in_play::rounds_in_play(&subject, window),
        "burst" => fire::burst(&subject),
        "fire" => fire::fire(&subject),
        "rearm" => rearm::rearm(&subject, window),
        "hold" => hold::hold(&subject, window),
        "idle" => idle::idle(&subject, window),
        _ => return None,
    })
}

/// The processor time per operation, in nanoseconds.
fn nanos_each(time: Duration, operations: u32) -> f64 {
    time.as_secs_f64() * 1e9 / f64::from(operations)
}

/// How much of a core this process takes while `work` runs, in percent.
fn percent_during(work: impl FnOnce()) -> f64 {
    let (start, before) = (now(), processor_time());
    work();
    let taken = processor_time_since(before);
    100.0 * taken.as_secs_f64() / (now() - start).as_secs_f64()
}

/// How much of a core this process takes by itself, in percent.
fn percent_of(window: Duration) -> f64 {
    percent_during(|| pause(window))
}

/// The middle one.
fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_unstable_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(f64::NAN)
}
