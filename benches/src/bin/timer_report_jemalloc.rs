//! The program `timer_report` with jemalloc as its allocator. `timer_report` starts it for the rows
//! with that name.

use std::io;
use std::process::ExitCode;

use tikv_jemallocator::Jemalloc;

#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

fn main() -> io::Result<ExitCode> {
    wheellock_benches::timer_report()
}
