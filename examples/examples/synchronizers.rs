//! A latch, a semaphore, and permits with a lease, which expire.
//!
//! The workers are threads here. On a server they could be processes on many machines, including
//! Java processes with Redisson.
//!
//! ```text
//! cargo run --example synchronizers -- redis://127.0.0.1/
//! ```

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::env;
use std::error::Error;
use std::thread;
use std::time::Duration;

use wheellock::{Client, Error as LockError};

const WORKERS: u32 = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let client = match env::args().nth(1) {
        Some(url) => Client::connect(&url)?,
        None => Client::in_memory(),
    };
    all_done(&client)?;
    at_most_two(&client)?;
    permit_expires(&client)?;
    Ok(())
}

/// One thread waits until all workers have counted down.
fn all_done(client: &Client) -> Result<(), LockError> {
    let parts = client.count_down_latch("example:parts");
    parts.try_set_count(u64::from(WORKERS))?;
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| parts.count_down());
        }
        parts.wait()
    })?;
    println!("latch: all {WORKERS} parts are done");
    Ok(())
}

/// At most two workers at a time. The guard gives its permit back, also if a worker fails.
fn at_most_two(client: &Client) -> Result<(), LockError> {
    let downloads = client.semaphore("example:downloads");
    downloads.try_set_permits(2)?;
    thread::scope(|scope| {
        let workers: Vec<_> = (1..=WORKERS)
            .map(|_| {
                scope.spawn(|| -> Result<(), LockError> {
                    let guard = downloads.acquire(1)?;
                    // Two at a time.
                    guard.release()
                })
            })
            .collect();
        workers.into_iter().filter_map(|worker| worker.join().ok()).collect::<Result<(), _>>()
    })?;
    println!("semaphore: {} permits are free again", downloads.available_permits()?);
    Ok(())
}

/// A permit with a lease expires, so the permit of a dead process is not lost.
fn permit_expires(client: &Client) -> Result<(), LockError> {
    let seats = client.expirable_semaphore("example:seats").with_lease(Duration::from_millis(500));
    seats.set_permits(1)?;
    let forgotten = seats.acquire()?.into_id();
    println!("permits: {forgotten} is acquired and forgotten");
    let Some(next) = seats.try_acquire_for(Duration::from_secs(5))? else {
        println!("permits: it did not expire in time");
        return Ok(());
    };
    println!("permits: it expired, and {} was acquired", next.id());
    next.release()?;
    println!("permits: {} of {} are free", seats.available_permits()?, seats.permits()?);
    Ok(())
}
