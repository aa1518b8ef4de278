//! Running the measurements: each keeper in a process of its own, on a server of its own.

use std::env;
use std::fmt::Write;
use std::io;
use std::net::SocketAddr;
use std::process::Command;
use std::thread;
use std::time::Duration;

use wheellock_fixture::{Proxy, RawConnection, Server};

use crate::clock::{now, pause};
use crate::figures::Figures;
use crate::renewing::child::Child;
use crate::renewing::contestant::{Case, Who};
use crate::renewing::measure::{FLAT_OUT, FOREGROUND, HELD, Kind, SLEEPY, Workload};
use crate::renewing::redisson::Redisson;
use crate::renewing::server_load::ServerLoad;
use crate::renewing::signals::READY;

/// No taking of locks, and no last word after a window, takes this long on a machine that works.
const PATIENCE: Duration = Duration::from_secs(240);
/// The keeper goes on a little longer than those who are disturbed by it.
const LONGER: Duration = Duration::from_secs(2);

/// Runs all cases of a workload `times`, and says on the way what failed.
pub(crate) fn run(
    workload: &Workload,
    times: usize,
    redisson: Option<&Redisson>,
    figures: &mut Figures<Case>,
    failures: &mut Vec<String>,
) {
    for turn in 0..times {
        for &held in &workload.held {
            let mut cases = workload.cases(held);
            cases.retain(|case| case.keeper != Who::Redisson || redisson.is_some());
            // Forth and back, so that none is always the one that follows the slowest.
            if turn % 2 == 1 {
                cases.reverse();
            }
            let together =
                if workload.kind == Kind::Held && held <= SLEEPY { cases.len() } else { 1 };
            for group in cases.chunks(together.max(1)) {
                for (case, line) in side_by_side(workload, group, redisson) {
                    match line {
                        Ok(line) => add(figures, case, workload.name, &line),
                        Err(error) => failures.push(format!(
                            "{}, {}, {held} locks: {error}",
                            workload.name,
                            case.keeper.name()
                        )),
                    }
                }
            }
        }
    }
}

/// What the process says of the floor is the floor's.
fn add(figures: &mut Figures<Case>, case: Case, workload: &'static str, line: &str) {
    let (floor, own): (Vec<&str>, Vec<&str>) =
        line.split_whitespace().partition(|word| word.starts_with("floor-"));
    figures.add(case, workload, &own.join(" "));
    let floor: Vec<&str> = floor.iter().filter_map(|word| word.strip_prefix("floor-")).collect();
    figures.add(Case { keeper: Who::Floor, ..case }, workload, &floor.join(" "));
}

fn side_by_side(
    workload: &Workload,
    cases: &[Case],
    redisson: Option<&Redisson>,
) -> Vec<(Case, io::Result<String>)> {
    thread::scope(|scope| {
        let started: Vec<_> = cases
            .iter()
            .map(|&case| (case, scope.spawn(move || one(workload, case, redisson))))
            .collect();
        started
            .into_iter()
            .map(|(case, thread)| {
                let line = thread.join();
                (case, line.unwrap_or_else(|_| Err(io::Error::other("the server is gone"))))
            })
            .collect()
    })
}

/// One process from its start to its last word, as a line of numbers.
fn one(workload: &Workload, case: Case, redisson: Option<&Redisson>) -> io::Result<String> {
    let server = Server::start();
    let proxy = match workload.kind {
        Kind::Trip(trip) => Some((Proxy::start(server.address()), trip)),
        _ => None,
    };
    let address = proxy.as_ref().map_or(server.address(), |(proxy, _)| proxy.address());
    let mut child = Child::start(command(workload, case, address, redisson)?)?;
    let first = child.line(PATIENCE)?;
    if first != READY {
        return Err(io::Error::other(format!("it said {first:?}")));
    }
    // The taking itself, one lock after the other, would last a quarter of an hour.
    if let Some((proxy, trip)) = &proxy {
        proxy.delay_requests(*trip / 2);
        proxy.delay_replies(*trip / 2);
    }
    pause(workload.settle(case.held));
    let mut asking = server.connection();
    if workload.kind != Kind::FlatOut {
        wait_for_a_gap(&mut asking, workload.interval(case.held));
    }
    let (start, before) = (now(), ServerLoad::read(&mut asking));
    child.go()?;
    let window = workload.window(case.held);
    if workload.kind == Kind::Foreground {
        return other_client(address, window);
    }
    let line = child.line(window + PATIENCE)?;
    let (load, took) = (ServerLoad::read(&mut asking).since(before), now() - start);
    Ok(if workload.kind == Kind::FlatOut { line } else { with_load(&line, case, load, took) })
}

/// Waits until renewals have stopped for a while, or goes on if they do not. Some renew everything in one burst. A
/// window that began in one would have a burst too many or too few.
fn wait_for_a_gap(asking: &mut RawConnection, interval: Duration) {
    let limit = now() + interval * 2;
    let (mut renewals, mut last) = (ServerLoad::read(asking).renewals, None);
    while now() < limit {
        pause(interval / 40);
        let read = ServerLoad::read(asking).renewals;
        if read > renewals {
            renewals = read;
            last = Some(now());
        } else if last.is_some_and(|last| now() - last > interval / 5) {
            return;
        }
    }
}

fn command(
    workload: &Workload,
    case: Case,
    address: SocketAddr,
    redisson: Option<&Redisson>,
) -> io::Result<Command> {
    let (lease, mut window) = (workload.lease(case.held), workload.window(case.held));
    if workload.kind == Kind::Foreground {
        window += LONGER;
    }
    if let (Who::Redisson, Some(redisson)) = (case.keeper, redisson) {
        return Ok(redisson.command(address, case.held, lease, window));
    }
    let name = if workload.kind == Kind::FlatOut { FLAT_OUT } else { HELD };
    let mut command = Command::new(env::current_exe()?);
    command
        .args(["--one", name, case.keeper.word()])
        .arg(address.to_string())
        .arg(case.held.to_string())
        .arg(lease.as_millis().to_string())
        .arg(window.as_millis().to_string());
    Ok(command)
}

/// The process whose locks are its own, while another one renews.
fn other_client(address: SocketAddr, window: Duration) -> io::Result<String> {
    let mut command = Command::new(env::current_exe()?);
    command
        .args(["--one", FOREGROUND, Who::Wheellock.word()])
        .arg(address.to_string())
        .args(["1", "30000"])
        .arg(window.as_millis().to_string());
    Child::start(command)?.line(window + PATIENCE)
}

/// Adds what the server says of the same time.
fn with_load(line: &str, case: Case, load: ServerLoad, took: Duration) -> String {
    let seconds = took.as_secs_f64();
    let of = |name: &str| {
        let value = line.split_whitespace().find_map(|word| word.strip_prefix(name));
        value.and_then(|value| value.parse::<f64>().ok()).unwrap_or(0.0)
    };
    let busy = (of("percent=") - of("idle=")) / 100.0 * seconds;
    let held = u32::try_from(case.held).map_or(f64::NAN, f64::from);
    let lost = of("lost=").max(held - load.keys);
    let own = line.split_whitespace().filter(|word| !word.starts_with("lost="));
    let mut text = own.collect::<Vec<_>>().join(" ");
    // Writing to a string does not fail.
    write!(
        text,
        " lost={lost} renewals={:.3} server-percent={:.4}",
        load.renewals / seconds,
        100.0 * load.processor / seconds,
    )
    .ok();
    if load.renewals > 0.0 {
        write!(
            text,
            " server-each={:.4} keys={:.3}",
            load.script_micros / load.renewals,
            load.renewals / load.scripts,
        )
        .ok();
        // A process that took more while it was idle says nothing about its renewals.
        if busy > 0.0 {
            write!(text, " client-each={:.4}", busy * 1e6 / load.renewals).ok();
        }
    }
    text
}
