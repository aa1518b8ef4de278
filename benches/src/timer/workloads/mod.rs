//! The workloads. Each runs in a process of its own and returns a few numbers.

mod fill;
mod fire;
mod floors;
mod footprint;
mod growth;
mod hold;
mod idle;
mod memory;
mod pairs;
mod rearm;
mod rounds;

use std::time::Duration;

pub(crate) use floors::floors;
pub(crate) use footprint::footprint;

use crate::harness::figures::at_permille;
pub(crate) use crate::harness::measured::Numbers;
use crate::timer::bench_timer::BenchTimer;
use crate::timer::workloads::growth::Beside;

/// The number of timeouts in the workloads that need many.
const MILLION: u32 = 1_000_000;

/// Runs the workload with this name. `None` if there is none.
pub(crate) fn run<T: BenchTimer>(
    workload: &str,
    buckets: usize,
    window: Duration,
) -> Option<Numbers> {
    let timer = T::start(buckets);
    Some(match workload {
        "pairs-1" => pairs::pairs(&timer, 1),
        "pairs-2" => pairs::pairs(&timer, 2),
        "fill-1" => fill::fill(&timer, 1),
        "fill-2" => fill::fill(&timer, 2),
        "memory" => memory::memory(&timer, 5, 60),
        "memory-hour" => memory::memory(&timer, 60, 3600),
        "rounds" => rounds::rounds(&timer, window),
        "burst" => fire::burst(&timer),
        "fire" => fire::fire(&timer),
        "rearm" => rearm::rearm(&timer, window),
        "growth" => growth::growth(&timer, Beside::Nothing),
        "growth-cores" => growth::growth(&timer, Beside::BusyCores),
        "growth-memory" => growth::growth(&timer, Beside::BusyMemory),
        "hold" => hold::hold(&timer, window),
        "idle" => idle::idle(&timer, window),
        _ => return None,
    })
}

/// The processor time per operation, in nanoseconds.
fn nanos_each(time: Duration, operations: u32) -> f64 {
    time.as_secs_f64() * 1e9 / f64::from(operations)
}

/// The value that `permille` of a thousand do not exceed, in milliseconds, of values in order.
fn millis_at(values: &[Duration], permille: usize) -> f64 {
    at_permille(values, permille).map_or(f64::NAN, |value| value.as_secs_f64() * 1e3)
}
