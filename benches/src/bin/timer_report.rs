//! Prints what a timeout costs: floors, both timers of hashed-wheel, Netty's and other peers, beside the bars.
//!
//! `timer_report [--quick] [--runs N] [--only ROW]...`, with rows by number or by the name of the workload. It writes
//! the plots, except when it is quick. It starts itself for each measurement, with `--one`.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "it is a report")]

use std::env;
use std::io;
use std::process::ExitCode;

use wheellock_benches::{measure_one, timer_report};

fn main() -> io::Result<ExitCode> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let ["--one", workload, timer, buckets, window] = words[..] {
        let Some(line) = measure_one(workload, timer, buckets, window) else {
            eprintln!("there is no such workload or timer");
            return Ok(ExitCode::FAILURE);
        };
        println!("{line}");
        return Ok(ExitCode::SUCCESS);
    }
    let (mut quick, mut only, mut runs) = (false, Vec::new(), None);
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        match word {
            "--quick" => quick = true,
            "--only" => only.extend(words.next().map(str::to_owned)),
            "--runs" => runs = words.next().and_then(|runs| runs.parse().ok()),
            _ => {
                eprintln!("unknown: {word}; timer_report [--quick] [--runs N] [--only ROW]...");
                return Ok(ExitCode::FAILURE);
            }
        }
    }
    println!("{}", timer_report(quick, &only, runs, |line| eprintln!("{line}"))?);
    Ok(ExitCode::SUCCESS)
}
