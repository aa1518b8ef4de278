//! Prints what held locks cost: this crate's watchdog, a floor, peers and Redisson, and the
//! targets.
//!
//! `watchdog_report [--quick] [--runs N] [--only WORD]...`; a word is a workload, a holder or a
//! number of locks. It writes the plots, unless it is quick. It starts itself for each measurement,
//! with `--one`.

use std::io;
use std::process::ExitCode;

fn main() -> io::Result<ExitCode> {
    wheellock_benches::watchdog_report()
}
