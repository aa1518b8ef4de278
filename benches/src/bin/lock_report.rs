//! Prints what a lock costs: floors, this crate and peers, measured in turn, with ratios.
//!
//! `lock_report [lock] [hand-over] [family] [line] [red] [endpoints] [--rounds N] [--server-core N]`; without a word it does
//! all. Run it under `taskset` to keep the benchmark on one core.

#![expect(clippy::print_stdout, reason = "it is a report")]

use std::env;
use std::rc::Rc;

use wheellock_benches::{
    End, RedServers, behind_sentinels, describe, failovers, fair_lines, family, hand_overs,
    in_a_cluster, lock_unlocks, measure_in_turn, pin, red_locks, redisson_hand_over,
    slow_hand_overs, slow_lock_unlocks, table,
};
use wheellock_fixture::{Cluster, Sentinels, Server};

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let value = |name: &str| {
        let place = arguments.iter().position(|argument| argument == name)?;
        arguments.get(place + 1)
    };
    let says = |word: &str| arguments.iter().any(|argument| argument == word);
    let rounds = value("--rounds").and_then(|rounds| rounds.parse().ok()).unwrap_or(100);
    let all = !["lock", "hand-over", "family", "line", "red", "endpoints"].into_iter().any(says);

    let server = Server::start();
    if let Some(core) = value("--server-core") {
        pin(&server, core);
    }
    println!("{}", describe(&server));
    if all || says("lock") {
        lock_report(&server, rounds);
    }
    if all || says("hand-over") {
        hand_over_report(&server, rounds);
    }
    if all || says("family") {
        for (kind, mut contenders) in family(&server) {
            println!("{}", table(kind, &measure_in_turn(&mut contenders, rounds, 100)));
        }
    }
    if all || says("line") {
        let mut contenders = fair_lines(&server);
        println!("{}", table("fair lock, each hand-over", &measure_in_turn(&mut contenders, 5, 1)));
    }
    if all || says("red") {
        let servers = RedServers::start();
        let mut contenders = red_locks(&servers);
        println!("{}", table("red lock + unlock", &measure_in_turn(&mut contenders, rounds, 50)));
    }
    if all || says("endpoints") {
        endpoints_report(rounds);
    }
}

fn endpoints_report(rounds: usize) {
    let sentinels = Rc::new(Sentinels::builder().quick_to_miss().start());
    let pairs = measure_in_turn(&mut behind_sentinels(&sentinels), rounds, 200);
    println!("{}", table("lock + unlock behind sentinels", &pairs));
    let cluster = Cluster::start(1, 0);
    let pairs = measure_in_turn(&mut in_a_cluster(&cluster), rounds, 200);
    println!("{}", table("lock + unlock in a cluster", &pairs));
    drop(cluster);
    for (end, title) in [
        (End::Told, "failover that is told to happen"),
        (End::Killed, "failover of a killed master"),
    ] {
        let (mut contenders, missing) = failovers(&sentinels, end);
        if let Some(reason) = missing {
            println!("Redisson: not measured, as {reason}\n");
        }
        // Each takes seconds, whoever waits.
        println!("{}", table(title, &measure_in_turn(&mut contenders, rounds.div_ceil(10), 1)));
    }
}

fn lock_report(server: &Server, rounds: usize) {
    let mut fast = lock_unlocks(server);
    println!("{}", table("lock + unlock", &measure_in_turn(&mut fast, rounds, 200)));
    // The floor once more, as these meet another machine than the first ones did.
    let mut slow = lock_unlocks(server);
    slow.truncate(1);
    slow.extend(slow_lock_unlocks(server));
    println!("{}", table("lock + unlock, slow peers", &measure_in_turn(&mut slow, rounds, 20)));
}

fn hand_over_report(server: &Server, rounds: usize) {
    let mut fast = hand_overs(server);
    match redisson_hand_over(server) {
        Ok(redisson) => fast.push(redisson),
        Err(reason) => println!("Redisson: not measured, as {reason}\n"),
    }
    println!("{}", table("hand-over", &measure_in_turn(&mut fast, rounds, 20)));
    let mut slow = hand_overs(server);
    slow.truncate(1);
    slow.extend(slow_hand_overs(server));
    println!("{}", table("hand-over, polling peer", &measure_in_turn(&mut slow, 20, 1)));
}
