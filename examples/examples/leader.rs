//! A candidate of an election: of all processes that run this program, one leads.
//!
//! ```text
//! cargo run --example leader -- --redis redis://127.0.0.1/ scheduler
//! ```
//!
//! Start it three times. Kill the leader: another one leads when the lease is over. Stop it with
//! Ctrl-Z for longer than the lease, and continue it with `fg`: it finds that it has lost the lead.
//! Type `resign`: another one leads at once.
//!
//! Options: `--redis URL`, and `--watchdog S`, the lease.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program talks to its user")]

use std::env;
use std::error::Error;
use std::io;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use wheellock::crossbeam_channel::{Receiver, bounded, never, select};
use wheellock::{Client, Term};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let (mut url, mut lease) = ("redis://127.0.0.1/".to_owned(), 30.0);
    let mut name = None;
    let mut arguments = env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--redis" => url = value()?,
            "--watchdog" => lease = value()?.parse()?,
            _ => name = Some(argument),
        }
    }
    let name = name.ok_or("which election?")?;
    let client =
        Client::builder().url(&url).watchdog_lease(Duration::try_from_secs_f64(lease)?).build()?;
    let mut input = read_lines()?;

    let election = client.leader_election(&name);
    match election.leader()? {
        Some(leader) => println!("follows {} in term {}", leader.owner, leader.term),
        None => println!("follows nobody"),
    }
    let campaign = election.campaign()?;
    for term in campaign.terms() {
        lead(term, &mut input)?;
    }
    // The campaign is over: why?
    campaign.error().map_or(Ok(()), |error| Err(error.into()))
}

/// Leads until the term is over.
fn lead(term: Term, input: &mut Receiver<String>) -> Result<(), wheellock::Error> {
    println!("leads in term {}", term.number());
    loop {
        select! {
            recv(term.lost()) -> reason => {
                if let Ok(reason) = reason {
                    println!("lost: {reason}");
                }
                return Ok(());
            }
            recv(input) -> line => match line.as_deref() {
                Ok("resign") => {
                    term.resign()?;
                    println!("resigned");
                    return Ok(());
                }
                Ok(_) => println!("leads: {}", term.is_leader()),
                // There is no more input.
                Err(_) => *input = never(),
            }
        }
    }
}

/// The lines of the standard input, read by a thread.
fn read_lines() -> io::Result<Receiver<String>> {
    let (send, lines) = bounded(0);
    let read = move || {
        for line in io::stdin().lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("input".to_owned()).spawn(read)?;
    Ok(lines)
}
