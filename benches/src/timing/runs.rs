//! Running the measurements: each a process of its own, the contestants in turn, forth and back.

use std::env;
use std::io::{self, Read};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::clock::{now, pause};
use crate::figures::Figures;
use crate::timing::contestant::{Contestant, Timer};
use crate::timing::measure::Workload;
use crate::timing::netty::Netty;

/// No measurement takes this long on a machine that works.
const PATIENCE: Duration = Duration::from_secs(100);

/// Runs every contestant of a workload `times`, and says on the way what failed.
pub(crate) fn run(
    workload: &Workload,
    times: usize,
    netty: Option<&Netty>,
    figures: &mut Figures<Contestant>,
    failures: &mut Vec<String>,
) {
    let mut order: Vec<Contestant> = Vec::new();
    for turn in 0..times {
        let mut round = workload.contestants.clone();
        // Forth and back, so that none is always the one that follows the slowest.
        if turn % 2 == 1 {
            round.reverse();
        }
        order.extend(round);
    }
    order.retain(|contestant| contestant.timer != Timer::Netty || netty.is_some());
    for group in order.chunks(workload.side_by_side.min(order.len()).max(1)) {
        let started: Vec<_> = group
            .iter()
            .map(|contestant| (*contestant, start(workload, *contestant, netty)))
            .collect();
        for (contestant, child) in started {
            match child.and_then(finish) {
                Ok(line) => figures.add(contestant, workload.name, &line),
                Err(error) => {
                    failures.push(format!("{}, {}: {error}", workload.name, contestant.name()));
                }
            }
        }
    }
}

fn start(workload: &Workload, contestant: Contestant, netty: Option<&Netty>) -> io::Result<Child> {
    let window = workload.window.as_secs_f64().to_string();
    let mut command = match netty {
        Some(netty) if contestant.timer == Timer::Netty => {
            netty.command(workload.name, contestant.buckets, &window)
        }
        _ => {
            let mut command = Command::new(env::current_exe()?);
            let buckets = contestant.buckets.to_string();
            command.args([
                "--one",
                workload.name,
                contestant.timer.word(),
                buckets.as_str(),
                window.as_str(),
            ]);
            command
        }
    };
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()
}

/// Waits for a process and answers its line.
fn finish(mut child: Child) -> io::Result<String> {
    let start = now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if now() - start > PATIENCE {
            child.kill()?;
            break child.wait()?;
        }
        pause(Duration::from_millis(20));
    };
    if !status.success() {
        return Err(io::Error::other(status.to_string()));
    }
    let mut line = String::new();
    if let Some(mut output) = child.stdout.take() {
        output.read_to_string(&mut line)?;
    }
    Ok(line)
}
