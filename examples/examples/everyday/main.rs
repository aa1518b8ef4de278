//! What most programs want of a lock, each in a file of less than thirty lines.
//!
//! ```text
//! cargo run --example everyday -- redis://127.0.0.1/
//! ```
//!
//! The file `command_line.sh` is for scripts: it runs the command `wheellock`.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

mod job;
mod leader;
mod one_at_a_time;
mod sendable_guard;
mod who_holds;

use std::env;
use std::error::Error;

use wheellock::Client;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let builder = match env::args().nth(1) {
        Some(url) => Client::builder().url(&url).connect_lazily(),
        None => Client::builder().in_memory(&wheellock::Memory::new()),
    };
    let client = builder.build()?;
    let own = client.clone();
    tokio::task::spawn_blocking(move || blocking(&own)).await??;
    sendable_guard::run(&client).await
}

/// The parts that wait on a thread of their own.
fn blocking(client: &Client) -> Result<(), wheellock::Error> {
    one_at_a_time::run(client)?;
    job::run(client, "2026-11-23")?;
    leader::run(client)?;
    who_holds::run(client)
}
