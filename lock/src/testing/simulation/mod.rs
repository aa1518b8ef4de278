//! For tests only. A simulation: clients as users have them, with their threads and connections, on
//! a network, servers and a time that are simulated (DESIGN: simulation).
//!
//! A seed decides the order of the threads, how long each message takes and what goes wrong.
//! Whatever it is: two threads never hold the lock, every wait ends in its time, nobody sleeps
//! while the lock is free, and nothing is left behind.

mod faults;
mod network;
mod process;
mod red;
mod server;
mod slot_moves;
mod slots;
mod world;

use crate::testing::modelled::process::{history_of, simulate};
use crate::testing::simulation::process::Limits;
use crate::testing::simulation::world::{run, run_in_cluster};

const LIMITS: Limits = Limits { clients: 2, threads: 3, rounds: 3, faults: 3 };

#[test]
fn clients_keep_every_promise_whatever_goes_wrong() {
    simulate(10_000, || run(LIMITS));
}

#[test]
fn clients_of_a_red_lock_keep_its_promises() {
    simulate(2_000, || red::run(LIMITS));
}

#[test]
fn clients_of_a_cluster_keep_every_promise_while_the_slot_moves() {
    simulate(1_000, || run_in_cluster(LIMITS));
}

#[test]
fn a_seed_repeats_its_schedule() {
    let of = |seed| {
        let history = history_of(seed, || run(LIMITS));
        // The identities of clients are random, and so is their order in what the server holds.
        let is_same = |word: &&str| word.matches('-').count() < 4;
        let words = |line: &str| {
            let mut words: Vec<_> =
                line.split_whitespace().filter(is_same).map(str::to_owned).collect();
            words.sort_unstable();
            words
        };
        history.lines().map(words).collect::<Vec<_>>()
    };
    for seed in 1..20 {
        assert_eq!(of(seed), of(seed), "seed {seed}");
    }
    assert_ne!(of(1), of(2));
}
