//! A resource that refuses stale writers, and why a lock alone is not enough.
//!
//! A holder can lose its lock without knowing it yet: its process was paused for longer than the
//! lease. The lock cannot stop its next write. The resource can: it stores the largest fencing
//! token that it has seen, and refuses writes with a smaller one. An equal token belongs to the
//! same hold.
//!
//! ```text
//! cargo run --example fencing
//! ```

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::Arc;
use std::time::Duration;

use wheellock::{Client, Error, ManualClock, Memory};

/// What the lock protects, such as a file or a table.
#[derive(Debug, Default)]
struct Account {
    /// The token of the last write.
    token: u64,
    balance: i64,
}

impl Account {
    /// A table would do the same in one statement: `UPDATE .. SET balance = ?, token = ? WHERE
    /// token <= ?`.
    fn write(&mut self, token: u64, balance: i64) -> Result<(), String> {
        if token < self.token {
            return Err(format!("token {token} is older than {}", self.token));
        }
        *self = Self { token, balance };
        Ok(())
    }
}

fn main() -> Result<(), Error> {
    // The program sets the time, so that a pause of a minute takes no time.
    let clock = ManualClock::new();
    let memory = Memory::with_clock(Arc::new(clock.clone()));
    let (slow, quick) = (client(&memory)?, client(&memory)?);
    let mut account = Account { token: 0, balance: 100 };

    let lock = slow.fenced_lock("account 7").with_lease(Duration::from_secs(30));
    let guard = lock.lock()?;
    let seen = account.balance;
    println!("slow   acquires the lock with token {}, and reads {seen}", guard.token());

    clock.advance(Duration::from_secs(60));
    println!("slow   is paused for a minute; its lease was 30 s");

    let rival = quick.fenced_lock("account 7").lock()?;
    println!("quick  acquires the lock with token {}", rival.token());
    let written = account.write(rival.token(), account.balance + 50);
    println!("quick  writes: {written:?}; the balance is {}", account.balance);
    rival.unlock()?;

    // It checked `is_held` before the pause, and does not check it again.
    match account.write(guard.token(), seen + 1) {
        Ok(()) => println!("slow   has overwritten what quick wrote"),
        Err(refusal) => println!("slow   writes {}: refused, {refusal}", seen + 1),
    }
    println!("       the balance is {}", account.balance);
    let held = guard.is_held();
    println!("slow   checks now: is_held is {held}, and unlock returns {:?}", guard.unlock());
    Ok(())
}

fn client(memory: &Memory) -> Result<Client, Error> {
    Client::builder().in_memory(memory).build()
}
