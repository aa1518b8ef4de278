//! Draws `plots/overview.svg` from the table "Overview" in `README.md`.

#![expect(clippy::print_stdout, reason = "it says what it has written")]

use std::io;

fn main() -> io::Result<()> {
    println!("written: {}", wheellock_benches::overview()?);
    Ok(())
}
