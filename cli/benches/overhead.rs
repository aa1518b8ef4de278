//! What `wheellock run` adds to a command: `wheellock run NAME -- true` beside `true` alone, in
//! turn, on a server of its own.
//!
//! ```text
//! cargo bench -p wheellock-cli
//! ```

#![expect(clippy::unwrap_used, reason = "a benchmark that cannot run says why")]
#![expect(clippy::print_stdout, reason = "its result")]

use std::env;
use std::process::Command;
use std::time::Duration;

use wheellock::{Clock as _, SystemClock};
use wheellock_fixture::Server;

const ROUNDS: usize = 300;

fn main() {
    // Cargo's word for a run that only shows that it works.
    let rounds = if env::args().any(|word| word == "--test") { 2 } else { ROUNDS };
    let server = Server::start();
    let mut alone = Command::new("true");
    let mut locked = Command::new(env!("CARGO_BIN_EXE_wheellock"));
    locked.args(["run", "overhead", "--", "true"]).env("REDIS_URL", server.url());

    let (mut floor, mut both, mut added) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let (without, with) = (time(&mut alone), time(&mut locked));
        floor.push(without);
        both.push(with);
        added.push(with.saturating_sub(without));
    }
    report("true", floor);
    report("wheellock run NAME -- true", both);
    report("added", added);
}

fn time(command: &mut Command) -> Duration {
    let begun = SystemClock.now();
    assert!(command.status().unwrap().success());
    SystemClock.now() - begun
}

fn report(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    println!(
        "{what:<28} median {:>7.1?}, a tenth below {:>7.1?}, a tenth above {:>7.1?}",
        at(50),
        at(10),
        at(90)
    );
}
