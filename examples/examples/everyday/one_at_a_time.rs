//! One process at a time: the others wait for five seconds, or do something else.

use std::time::Duration;

use wheellock::{Client, Error};

pub(crate) fn run(client: &Client) -> Result<(), Error> {
    let lock = client.lock("everyday:orders:42");
    let Some(guard) = lock.try_lock_for(Duration::from_secs(5))? else {
        println!("one at a time: another process has the order");
        return Ok(());
    };
    for step in ["reserve", "pack", "ship"] {
        guard.check()?; // an error if the lock was lost meanwhile
        println!("one at a time: {step}");
    }
    guard.unlock() // an error if it was not held until now
}
