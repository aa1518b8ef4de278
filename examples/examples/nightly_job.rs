//! A nightly job on several machines: every machine's scheduler starts this program for the same
//! slot, and one of them does the work.
//!
//! ```text
//! cargo run --example nightly_job -- --redis redis://127.0.0.1/ --seconds 20 2026-11-23
//! ```
//!
//! Start it three times, and kill the one that works. Another one takes over when the lease is
//! over; the third finds that the job was done.
//!
//! Options: `--redis URL`, `--seconds S`, for how long it works, and `--watchdog S`, the lease.
//!
//! Exit codes: 0 the job is done, here or elsewhere; 1 an error; 2 it was tried too often.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program talks to its user")]

use std::env;
use std::process::ExitCode;
use std::time::Duration;

use wheellock::crossbeam_channel::select;
use wheellock::{Client, Error, JobRun, RunOutcome, Wait};

fn main() -> ExitCode {
    match nightly() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn nightly() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let (mut url, mut seconds, mut lease) = ("redis://127.0.0.1/".to_owned(), 1, 30.0);
    let mut slot = None;
    let mut arguments = env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--redis" => url = value()?,
            "--seconds" => seconds = value()?.parse()?,
            "--watchdog" => lease = value()?.parse()?,
            _ => slot = Some(argument),
        }
    }
    let slot = slot.ok_or("which slot? A date, such as 2026-11-23")?;

    let client =
        Client::builder().url(&url).watchdog_lease(Duration::try_from_secs_f64(lease)?).build()?;
    let job = client.job("nightly report").with_max_attempts(3);
    // Whoever comes second waits, and takes over if the first one dies.
    let outcome = job.run_once_with(&slot, Wait::forever(), |run| report(run, seconds))?;
    Ok(match outcome {
        RunOutcome::Ran(pages) => {
            println!("done: {pages} pages");
            ExitCode::SUCCESS
        }
        RunOutcome::RanAlready | RunOutcome::RunningElsewhere => {
            println!("done elsewhere");
            ExitCode::SUCCESS
        }
        RunOutcome::AttemptsUsedUp => {
            println!("tried too often");
            ExitCode::from(2)
        }
        RunOutcome::Failed(error) | RunOutcome::Unrecorded { error, .. } => {
            println!("failed: {error}");
            ExitCode::FAILURE
        }
    })
}

/// One page a second, as long as the slot is ours.
fn report(run: &JobRun<'_>, pages: u32) -> Result<u32, Error> {
    println!("begins: attempt {} with the token {}", run.attempt(), run.token());
    for page in 1..=pages {
        select! {
            recv(run.lost()) -> _ => run.check()?,
            default(Duration::from_secs(1)) => {}
        }
        // A store that remembers the largest token refuses the page of a run of the past.
        println!("page {page}");
    }
    Ok(pages)
}
