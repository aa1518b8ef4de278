//! The workload of a sweep: the client and the floor in turn, in one process, on the same locks.

use std::net::SocketAddr;
use std::time::Duration;

use crate::clock::{now, pause};
use crate::renewing::keepers::Numbers;
use crate::renewing::signals::ready_and_wait;
use crate::renewing::sweeps::Sweeps;

const FEWEST: usize = 5;
const MOST: usize = 500;
/// Until what the last sweep left to do is done.
const BREATH: Duration = Duration::from_millis(20);

/// Sweeps for `window`, and at least a few times.
pub(crate) fn flat_out(address: SocketAddr, held: usize, window: Duration) -> Numbers {
    let mut sweeps = Sweeps::start(address, held);
    ready_and_wait();
    let (mut own, mut floors, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let start = now();
    while own.len() < FEWEST || (now() - start < window && own.len() < MOST) {
        let pair = if own.len() % 2 == 0 {
            let own = one(&mut sweeps, Sweeps::sweep);
            (own, one(&mut sweeps, Sweeps::floor))
        } else {
            let floor = one(&mut sweeps, Sweeps::floor);
            (one(&mut sweeps, Sweeps::sweep), floor)
        };
        own.push(pair.0);
        floors.push(pair.1);
        ratios.push(pair.1 / pair.0);
    }
    let keys = u32::try_from(sweeps.keys_per_script()).unwrap_or(u32::MAX);
    let held = u32::try_from(held).map_or(f64::NAN, f64::from);
    let (own, floor) = (median(own), median(floors));
    // The process ends now, and the server after it.
    std::mem::forget(sweeps);
    vec![
        ("rate", held / own / 1000.0),
        ("floor-rate", held / floor / 1000.0),
        ("of-floor", median(ratios)),
        ("sweep", own * 1000.0),
        ("floor-sweep", floor * 1000.0),
        ("sweep-keys", f64::from(keys)),
    ]
}

fn one(sweeps: &mut Sweeps, run: fn(&mut Sweeps) -> Duration) -> f64 {
    pause(BREATH);
    run(sweeps).as_secs_f64()
}

/// The middle one.
fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_unstable_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(f64::NAN)
}
