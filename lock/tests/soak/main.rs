//! Four real processes of eight threads count under sixteen fenced locks, under all kinds of
//! faults.
//!
//! The plan follows from a seed, which is written to standard error and can be given again with
//! `SOAK_SEED`. How the processes interleave is up to the machine. The test lasts a minute, or as
//! many seconds as `SOAK_SECONDS` says.
//!
//! The numbers are kept in this process, by a register that refuses old tokens (`register`).
//! Accepted writes are checked at the end (`verdict`): no write of an older holder, no increment
//! lost. No thread may have been silent for longer than its waits last, or without any lock for
//! longer than the faults explain; and at the end only the token counters are left on the servers.
//!
//! `calls` is a test of its own: threads of one client, and what each of their calls is told.

#![expect(clippy::unwrap_used, reason = "the helpers of a test may fail it as the test itself may")]
#![expect(clippy::expect_used, clippy::panic, reason = "a helper that fails is a test that fails")]

mod calls;
mod child;
mod disruptor;
mod plan;
mod register;
mod register_server;
mod servers;
mod times;
mod verdict;

use std::collections::hash_map::RandomState;
use std::env;
use std::fmt::Write as _;
use std::hash::{BuildHasher as _, Hasher as _};
use std::io::{self, Write as _};
use std::thread;
use std::time::Duration;

use wheellock_fixture::wait_until;

use disruptor::{Disruptor, Processes};
use plan::{FaultPlan, Track};
use register_server::RegisterServer;
use servers::{IN_USE, PROCESSES, Servers};
use times::{LIMIT, now};

#[test]
fn child_role() {
    // Only in a process that the soak has started is this more than an empty test.
    if let Ok(name) = env::var(child::ROLE) {
        child::live(&name);
    }
}

#[test]
fn faults_cause_no_stale_write_and_every_wait_ends() {
    let seed = number("SOAK_SEED").unwrap_or_else(|| RandomState::new().build_hasher().finish());
    let length = Duration::from_secs(number("SOAK_SECONDS").unwrap_or(SHORT));
    let plan = FaultPlan::new(seed, length, IN_USE);
    say(&format!("SOAK_SEED={seed} SOAK_SECONDS={}\n{plan}", length.as_secs()));

    let servers = Servers::start();
    let server = RegisterServer::open();
    let disruptor = Disruptor { start: now(), seed, servers: &servers, server: &server };
    let processes = Processes::start(PROCESSES, &disruptor);
    let mut processes = thread::scope(|scope| {
        let mut disrupted = None;
        let mut others = Vec::new();
        let mut processes = Some(processes);
        for (track, steps) in &plan.tracks {
            match (track, processes.take()) {
                (Track::Processes, Some(all)) => {
                    disrupted = Some(scope.spawn(|| disruptor.disrupt_processes(steps, all)));
                }
                (_, all) => {
                    processes = all;
                    others.push(scope.spawn(|| disruptor.disrupt_servers(steps)));
                }
            }
        }
        for other in others {
            other.join().unwrap();
        }
        disrupted.expect("the processes have a track").join().unwrap()
    });

    // The faults are over: now every thread acquires.
    servers.wait_until_well();
    let threads = processes.threads();
    let healed = now();
    let mut outside: Vec<String> = Vec::new();
    wait_until("every client got in or the time is over", LIMIT, || {
        let register = server.register.lock();
        let got_in =
            |thread: &str| register.threads.get(thread).is_some_and(|it| it.entered_since(healed));
        outside = threads.iter().filter(|thread| !got_in(thread)).cloned().collect();
        outside.is_empty() || now() > healed + plan.longest_outside()
    });
    let end = now();
    server.close();
    for (name, process) in &mut processes.alive {
        let code = process.wait_for_exit(LIMIT);
        assert_eq!(code, 0, "seed {seed}: {name}: {}", process.output());
    }
    let mut faults = Vec::new();
    if !outside.is_empty() {
        faults.push(format!("they got no lock in the end: {outside:?}"));
    }
    faults.extend(servers.left_over().iter().map(|key| format!("this is left: {key}")));

    let register = server.register.lock();
    faults.extend(register.complaints.iter().cloned());
    faults.extend(register.written().flat_map(verdict::faults_of));
    let (silence, outside) = register
        .threads
        .iter()
        .map(|(name, traces)| {
            // The silence of the killed goes on.
            let until = threads.contains(name).then_some(end);
            traces.silence_and_outside(until)
        })
        .reduce(|one, other| (one.0.max(other.0), one.1.max(other.1)))
        .unwrap();
    let accepted: Vec<_> = register.written().map(<[_]>::len).collect();
    let total = |of: fn(&register::Traces) -> u64| register.threads.values().map(of).sum::<u64>();
    let mut figures = String::new();
    writeln!(
        figures,
        "{} writes accepted in {:?}, {} refused, {} waits without a grant; at least {} for each lock; \
         the longest silence {silence:?}, the longest time without any lock {outside:?}",
        accepted.iter().sum::<usize>(),
        end.duration_since(disruptor.start),
        total(|traces| traces.refused),
        total(|traces| traces.in_vain),
        accepted.iter().min().unwrap(),
    )
    .unwrap();
    say(&figures);
    assert!(faults.is_empty(), "seed {seed}: {faults:#?}");
    assert!(silence <= plan.longest_silence(), "seed {seed}: a thread is stuck: {figures}");
    assert!(outside <= plan.longest_outside(), "seed {seed}: a thread gets no lock: {figures}");
    assert!(accepted.iter().all(|writes| *writes > 0), "seed {seed}: {accepted:?}");
    assert_eq!(servers.counters(), accepted.len());
}

/// The short form: everything happens once.
const SHORT: u64 = 60;

fn number(variable: &str) -> Option<u64> {
    env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

/// Writes to the standard error, past the harness, which would show it with a failure only.
fn say(text: &str) {
    io::stderr().write_all(text.as_bytes()).unwrap();
}
