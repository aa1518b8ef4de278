//! The workload of renewals flat out: the client and the floor in turn, in one process, on the same
//! locks.

use std::net::SocketAddr;
use std::time::Duration;

use crate::harness::clock::{now, sleep};
use crate::harness::figures::median;
use crate::harness::measured::{Numbers, ready_and_wait};
use crate::watchdog::renewal_rounds::RenewalRounds;

const FEWEST: usize = 5;
const MOST: usize = 500;
/// Until the work that follows a round is done.
const SETTLED: Duration = Duration::from_millis(20);

/// Renews for `window`, and at least a few times.
pub(crate) fn flat_out(address: SocketAddr, held: usize, window: Duration) -> Numbers {
    let mut rounds = RenewalRounds::start(address, held);
    ready_and_wait();
    let (mut own, mut floors, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let start = now();
    while own.len() < FEWEST || (now() - start < window && own.len() < MOST) {
        let (own_time, floor) = if own.len() % 2 == 0 {
            let own = one(&mut rounds, RenewalRounds::renew);
            (own, one(&mut rounds, RenewalRounds::floor))
        } else {
            let floor = one(&mut rounds, RenewalRounds::floor);
            (one(&mut rounds, RenewalRounds::renew), floor)
        };
        own.push(own_time);
        floors.push(floor);
        ratios.push(floor / own_time);
    }
    let keys = u32::try_from(rounds.keys_per_script()).unwrap_or(u32::MAX);
    let held = u32::try_from(held).map_or(f64::NAN, f64::from);
    let (own, floor) = (median(own), median(floors));
    // The process ends now, and the server after it.
    std::mem::forget(rounds);
    vec![
        ("rate", held / own / 1000.0),
        ("floor-rate", held / floor / 1000.0),
        ("of-floor", median(ratios)),
        ("round", own * 1000.0),
        ("floor-round", floor * 1000.0),
        ("round-keys", f64::from(keys)),
    ]
}

fn one(rounds: &mut RenewalRounds, run: fn(&mut RenewalRounds) -> Duration) -> f64 {
    sleep(SETTLED);
    run(rounds).as_secs_f64()
}
