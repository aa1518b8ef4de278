//! A resource that refuses stale writers, and why a lock alone is not enough.
//!
//! A holder can lose its lock without knowing it yet: its process was paused for longer than the
//! lease. The lock cannot stop the holder's next write. The resource can: it stores the newest
//! fencing token that it has seen, and refuses writes with an older one. An equal token belongs to
//! the same hold.
//!
//! The resource is a SQLite database in memory, and the locks are in memory too, so the example
//! needs no server. The program tells one story twice. Compare [`write_with_fence`] with
//! [`write_without_fence`]: one statement decides how the story ends. `fencing_postgres` tells the
//! story with PostgreSQL, and `fencing_service` with a web service.
//!
//! ```text
//! cargo run --features fencing --example fencing
//! ```

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior};
use wheellock::{Client, Error, ManualClock, Memory};
use wheellock_fence::{FenceError, sqlite};

/// The name of the lock, and of the resource that the lock protects.
const ACCOUNT: &str = "account 7";

/// Writes a balance with the token of a hold.
type Write = fn(&mut Connection, u64, i64) -> Result<(), FenceError<rusqlite::Error>>;

fn main() -> Result<(), Box<dyn StdError>> {
    println!("With the fence:");
    tell(write_with_fence)?;
    println!("Without the fence:");
    tell(write_without_fence)
}

/// The token is raised in the transaction of the write. Both are committed, or neither is.
fn write_with_fence(
    database: &mut Connection,
    token: u64,
    balance: i64,
) -> Result<(), FenceError<rusqlite::Error>> {
    let transaction = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // An error drops the transaction, which rolls it back.
    sqlite::raise(&transaction, ACCOUNT, token)?;
    transaction.execute("UPDATE accounts SET balance = ?1 WHERE id = 7", [balance])?;
    transaction.commit()?;
    Ok(())
}

/// The database trusts whoever writes.
fn write_without_fence(
    database: &mut Connection,
    _token: u64,
    balance: i64,
) -> Result<(), FenceError<rusqlite::Error>> {
    database.execute("UPDATE accounts SET balance = ?1 WHERE id = 7", [balance])?;
    Ok(())
}

/// Two holders of one lock. The first one is paused for longer than its lease, and then writes.
fn tell(write: Write) -> Result<(), Box<dyn StdError>> {
    // The program sets the time, so that a pause of a minute takes no time.
    let clock = ManualClock::new();
    let memory = Memory::with_clock(Arc::new(clock.clone()));
    let (slow, quick) = (client(&memory)?, client(&memory)?);
    let mut database = open()?;

    let guard = slow.lock(ACCOUNT).with_lease(Duration::from_secs(30)).lock()?;
    let token = guard.draw_token()?;
    let seen = balance(&database)?;
    println!("slow   acquires the lock with token {token}, and reads {seen}");

    clock.advance(Duration::from_secs(60));
    println!("slow   is paused for a minute; its lease was 30 s");

    let rival = quick.lock(ACCOUNT).lock()?;
    let newer_token = rival.draw_token()?;
    println!("quick  acquires the lock with token {newer_token}");
    let sum = balance(&database)? + 50;
    write(&mut database, newer_token, sum)?;
    println!("quick  writes {sum}");
    rival.unlock()?;

    // Slow checked `is_held` before the pause, and does not check it again.
    let late = seen + 1;
    match write(&mut database, token, late) {
        Ok(()) => println!("slow   writes {late}, over what quick wrote"),
        Err(FenceError::Stale(stale)) => println!("slow   writes {late}: refused, {stale}"),
        Err(error) => return Err(error.into()),
    }
    println!("       the balance is {}", balance(&database)?);
    let held = guard.is_held();
    println!("slow   checks now: is_held is {held}, and unlock returns {:?}", guard.unlock());
    Ok(())
}

fn client(memory: &Memory) -> Result<Client, Error> {
    Client::builder().in_memory(memory).build()
}

/// A new database with one account, and with the table of the newest tokens.
fn open() -> rusqlite::Result<Connection> {
    let database = Connection::open_in_memory()?;
    sqlite::create_table(&database)?;
    database.execute("CREATE TABLE accounts (id integer PRIMARY KEY, balance integer)", [])?;
    database.execute("INSERT INTO accounts VALUES (7, 100)", [])?;
    Ok(database)
}

fn balance(database: &Connection) -> rusqlite::Result<i64> {
    database.query_row("SELECT balance FROM accounts WHERE id = 7", [], |row| row.get(0))
}
