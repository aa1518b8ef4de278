//! Prints what a timeout costs: both timers of hashed-wheel, floors, Netty's timer and other peers,
//! and the targets.
//!
//! `timer_report [--quick] [--runs N] [--only ROW]...`; a row is named by its number or its
//! workload. It writes the plots, unless it is quick. It starts itself for each measurement, with
//! `--one`.

use std::io;
use std::process::ExitCode;

fn main() -> io::Result<ExitCode> {
    wheellock_benches::timer_report()
}
