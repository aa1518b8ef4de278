//! Prints what a lock costs: floors, this crate and peers, measured in turn, with ratios.
//!
//! `lock_report [lock] [hand-over] [cache] [many] [family] [line] [red] [endpoints] [requests]
//! [--rounds N] [--server-core N]`; without a word it runs all of these. Run it under `taskset` to keep the
//! benchmark on one core.
//!
//! `lock_report threads [--quick] [--runs N] [--old PROGRAM] [--only WORD]...` is a report of its
//! own, with targets and plots; a word is a workload, a subject or a number of threads. It starts
//! itself for each measurement, with `--one`. `PROGRAM` is this program, built with an older
//! library, which is then measured in the same run.

#![expect(clippy::print_stdout, reason = "it is a report")]

use std::env;
use std::io;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use wheellock_benches::{
    CACHE_PROCESS, Cause, HELD_PROCESS, RedServers, behind_sentinels, cache_process, cache_report,
    describe_with_server, failovers, fair_queues, hand_overs, held_process, in_a_cluster,
    lock_kinds, lock_unlocks, many_report, measure_in_turn, pin, red_locks, redisson_hand_over,
    request_keys, slow_hand_overs, slow_lock_unlocks, table, threads_report,
};
use wheellock_fixture::{Cluster, Sentinels, Server};

fn main() -> io::Result<ExitCode> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.split_first() {
        Some((word, rest)) if word == "threads" => return threads_report(rest),
        Some((word, rest)) if word == CACHE_PROCESS => {
            cache_process(rest);
            return Ok(ExitCode::SUCCESS);
        }
        Some((word, rest)) if word == HELD_PROCESS => {
            held_process(rest);
            return Ok(ExitCode::SUCCESS);
        }
        Some((word, _)) if word == "--one" => return threads_report(&arguments),
        _ => (),
    }
    let value = |name: &str| {
        let index = arguments.iter().position(|argument| argument == name)?;
        arguments.get(index + 1)
    };
    let is_named = |word: &str| arguments.iter().any(|argument| argument == word);
    let rounds = value("--rounds").and_then(|rounds| rounds.parse().ok()).unwrap_or(100);
    let all =
        !["lock", "hand-over", "cache", "many", "family", "line", "red", "endpoints", "requests"]
            .into_iter()
            .any(is_named);

    let server = Server::start();
    if let Some(core) = value("--server-core") {
        pin(&server, core);
    }
    println!("{}", describe_with_server(&server));
    if all || is_named("lock") {
        lock_report(&server, rounds);
    }
    if all || is_named("hand-over") {
        hand_over_report(&server, rounds);
    }
    if all || is_named("cache") {
        println!("### locks that stay with their client\n\n{}", cache_report(&server, rounds));
    }
    if all || is_named("many") {
        println!("### many locks at once\n\n{}", many_report(&server, rounds.div_ceil(5)));
    }
    if all || is_named("family") {
        for (kind, mut contenders) in lock_kinds(&server) {
            println!("{}", table(kind, &measure_in_turn(&mut contenders, rounds, 100)));
        }
    }
    if all || is_named("line") {
        let mut contenders = fair_queues(&server);
        println!("{}", table("fair lock, each hand-over", &measure_in_turn(&mut contenders, 5, 1)));
    }
    if all || is_named("red") {
        let servers = RedServers::start();
        let mut contenders = red_locks(&servers);
        println!("{}", table("red lock + unlock", &measure_in_turn(&mut contenders, rounds, 50)));
    }
    if all || is_named("endpoints") {
        endpoints_report(&server, rounds);
    }
    if all || is_named("requests") {
        println!("### request keys of a busy semaphore\n");
        for threads in [1, 16, 64] {
            println!("{}", request_keys(threads, Duration::from_secs(6)));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn endpoints_report(server: &Server, rounds: usize) {
    let sentinels = Rc::new(Sentinels::builder().quick_to_miss().start());
    let pairs = measure_in_turn(&mut behind_sentinels(&sentinels), rounds, 200);
    println!("{}", table("lock + unlock behind sentinels", &pairs));
    let cluster = Cluster::start(1, 0);
    let pairs = measure_in_turn(&mut in_a_cluster(server, &cluster), rounds, 200);
    println!("{}", table("lock + unlock in a cluster", &pairs));
    drop(cluster);
    for (cause, title) in
        [(Cause::Command, "failover by command"), (Cause::Kill, "failover of a killed master")]
    {
        let (mut contenders, missing) = failovers(&sentinels, cause);
        if let Some(reason) = missing {
            println!("Redisson: not measured: {reason}\n");
        }
        // Each takes seconds.
        println!("{}", table(title, &measure_in_turn(&mut contenders, rounds.div_ceil(10), 1)));
    }
}

fn lock_report(server: &Server, rounds: usize) {
    let mut fast = lock_unlocks(server);
    println!("{}", table("lock + unlock", &measure_in_turn(&mut fast, rounds, 200)));
    let mut slow = slow_lock_unlocks(server);
    println!("{}", table("lock + unlock, slow peers", &measure_in_turn(&mut slow, rounds, 20)));
}

fn hand_over_report(server: &Server, rounds: usize) {
    let mut fast = hand_overs(server);
    match redisson_hand_over(server) {
        Ok(redisson) => fast.push(redisson),
        Err(reason) => println!("Redisson: not measured: {reason}\n"),
    }
    println!("{}", table("hand-over", &measure_in_turn(&mut fast, rounds, 20)));
    let mut slow = slow_hand_overs(server);
    println!("{}", table("hand-over, polling peer", &measure_in_turn(&mut slow, 20, 1)));
}
