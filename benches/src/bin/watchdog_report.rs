//! Prints what keeping locks costs: this crate's watchdog, a floor, peers and Redisson, beside the bars.
//!
//! `watchdog_report [--quick] [--runs N] [--only WORD]...`; a word is a workload, a keeper or a number of locks.
//! It writes the plots, except when it is quick. It starts itself for each measurement, with `--one`.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "it is a report")]

use std::env;
use std::io;
use std::process::ExitCode;

use wheellock_benches::{keep_one, watchdog_report};

fn main() -> io::Result<ExitCode> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let ["--one", workload, keeper, address, locks, lease, window] = words[..] {
        let Some(line) = keep_one(workload, keeper, [address, locks, lease, window]) else {
            eprintln!("there is no such workload or keeper");
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
                eprintln!("unknown: {word}; watchdog_report [--quick] [--runs N] [--only WORD]...");
                return Ok(ExitCode::FAILURE);
            }
        }
    }
    println!("{}", watchdog_report(quick, &only, runs, |line| eprintln!("{line}"))?);
    Ok(ExitCode::SUCCESS)
}
