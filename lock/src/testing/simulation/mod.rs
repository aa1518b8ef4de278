//! For tests only. A simulation of whole clients: threads, connections, subscription, renewal
//! thread, retries, hand-overs, queued and unread releases are the library's own. The simulation
//! replaces the network below the socket, the servers and the clock. A lock is on one server, on
//! two nodes of a cluster between which its slot moves, or a red lock on three servers.
//!
//! A seed decides the order of the threads, how long each message takes and what goes wrong. With
//! every seed two threads never hold the lock, every wait ends in its time, no thread sleeps while
//! the lock is free, and nothing is left behind. The checked model covers the protocol; what
//! attacks found was mostly in threads, deadlines and connections, which only the code has.
//!
//! * Time stands still while any thread can run. Then time moves to the next event: bytes that
//!   arrive, the deadline of a sleeping thread, a fault. So minutes of a client's life take
//!   milliseconds, and a late call is seen to the millisecond. Now and then time moves by up to 100
//!   us while threads could run, as on a busy processor.
//! * The order of threads comes from the seed, by a scheduler of our own for shuttle, which knows
//!   the process of each thread and so can pause one process.
//! * The network delays each write on its own and retains the order of a connection's bytes, as TCP
//!   does. Copies and reordering come from retries on other connections, whose first attempts
//!   arrive late.
//! * The server reads these bytes with the client's own decoder and runs the operations' effects in
//!   memory. The server knows a script only once it has seen the text. Of two nodes of a cluster
//!   each decides as Redis does whether it serves a command.
//! * A seed that fails runs again with a history, and the history is printed: the history of a
//!   million runs that hold costs nothing.

mod faults;
mod network;
mod process;
mod red;
mod server;
mod simulation;
mod slot_moves;
mod slots;

use crate::testing::modelled::process::{history_of, simulate};
use crate::testing::simulation::process::Limits;
use crate::testing::simulation::simulation::{run, run_in_cluster};

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
fn a_seed_repeats_its_run() {
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
