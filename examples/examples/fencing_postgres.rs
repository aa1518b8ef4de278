//! The story of the example `fencing` with PostgreSQL: a table that refuses stale writers.
//!
//! The program tells the story twice. Compare [`write_with_fence`] with [`write_without_fence`]:
//! one statement decides how the story ends. The locks are in memory, so PostgreSQL is the only
//! server that the example needs. `DATABASE_URL` names the server, as a URL or as libpq's key
//! words, such as `host=/var/run/postgresql user=postgres`.
//!
//! ```sh
//! export DATABASE_URL=postgres://postgres@localhost/
//! cargo run --features fencing --example fencing_postgres
//! ```
//!
//! All tables are temporary, and nothing is left in the database.
//!
//! Exit codes: 0 the story is told; 1 an error; 2 `DATABASE_URL` is not set.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example shows what it does")]

use std::env;
use std::error::Error as StdError;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use postgres::{Client as Database, NoTls};
use wheellock::{Client, Error, ManualClock, Memory};
use wheellock_fence::FenceError;
use wheellock_fence::postgres::{create_table, raise};

/// The name of the lock, and of the resource that the lock protects.
const ACCOUNT: &str = "account 7";

/// Writes a balance with the token of a hold.
type Write = fn(&mut Database, u64, i64) -> Result<(), FenceError<postgres::Error>>;

fn main() -> ExitCode {
    let Some(parameters) = env::var("DATABASE_URL").ok().filter(|text| !text.is_empty()) else {
        eprintln!(
            "fencing_postgres: which database? Set DATABASE_URL, such as \
             postgres://postgres@localhost/"
        );
        return ExitCode::from(2);
    };
    match run(&parameters) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fencing_postgres: {error}");
            // The crate `postgres` has the reason of an error in the error's sources.
            let mut source = error.source();
            while let Some(cause) = source {
                eprintln!("  because: {cause}");
                source = cause.source();
            }
            ExitCode::FAILURE
        }
    }
}

fn run(parameters: &str) -> Result<(), Box<dyn StdError>> {
    println!("With the fence:");
    tell(parameters, write_with_fence)?;
    println!("Without the fence:");
    tell(parameters, write_without_fence)
}

/// The token is raised in the transaction of the write. Both are committed, or neither is.
///
/// A process that is paused within the transaction makes other writers wait. A service sets
/// `idle_in_transaction_session_timeout` below the lease of its locks, and the server ends the
/// transaction.
fn write_with_fence(
    database: &mut Database,
    token: u64,
    balance: i64,
) -> Result<(), FenceError<postgres::Error>> {
    let mut transaction = database.transaction()?;
    // An error drops the transaction, which rolls it back.
    raise(&mut transaction, ACCOUNT, token)?;
    transaction.execute("UPDATE accounts SET balance = $1 WHERE id = 7", &[&balance])?;
    transaction.commit()?;
    Ok(())
}

/// The database trusts whoever writes.
fn write_without_fence(
    database: &mut Database,
    _token: u64,
    balance: i64,
) -> Result<(), FenceError<postgres::Error>> {
    database.execute("UPDATE accounts SET balance = $1 WHERE id = 7", &[&balance])?;
    Ok(())
}

/// Two holders of one lock. The first one is paused for longer than its lease, and then writes.
fn tell(parameters: &str, write: Write) -> Result<(), Box<dyn StdError>> {
    // The program sets the time, so that a pause of a minute takes no time.
    let clock = ManualClock::new();
    let memory = Memory::with_clock(Arc::new(clock.clone()));
    let (slow, quick) = (client(&memory)?, client(&memory)?);
    let mut database = open(parameters)?;

    let guard = slow.lock(ACCOUNT).with_lease(Duration::from_secs(30)).lock()?;
    let token = guard.draw_token()?;
    let seen = balance(&mut database)?;
    println!("slow   acquires the lock with token {token}, and reads {seen}");

    clock.advance(Duration::from_secs(60));
    println!("slow   is paused for a minute; its lease was 30 s");

    let rival = quick.lock(ACCOUNT).lock()?;
    let newer_token = rival.draw_token()?;
    println!("quick  acquires the lock with token {newer_token}");
    let sum = balance(&mut database)? + 50;
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
    println!("       the balance is {}", balance(&mut database)?);
    let held = guard.is_held();
    println!("slow   checks now: is_held is {held}, and unlock returns {:?}", guard.unlock());
    Ok(())
}

fn client(memory: &Memory) -> Result<Client, Error> {
    Client::builder().in_memory(memory).build()
}

/// A session with one account, and with the table of the newest tokens.
///
/// Both tables are temporary, because the locks are in memory: their tokens begin again with each
/// run, and a table that stays would refuse all tokens of the next run. Temporary tables belong to
/// their session, so the two holders share the session. Locks on a server have tokens that grow for
/// ever; the table of a service is permanent, and its holders have sessions of their own.
fn open(parameters: &str) -> Result<Database, postgres::Error> {
    let mut database = Database::connect(parameters, NoTls)?;
    database.batch_execute("SET search_path TO pg_temp")?;
    create_table(&mut database)?;
    database.batch_execute(
        "CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint);
         INSERT INTO accounts VALUES (7, 100)",
    )?;
    Ok(database)
}

fn balance(database: &mut Database) -> Result<i64, postgres::Error> {
    database.query_one("SELECT balance FROM accounts WHERE id = 7", &[])?.try_get(0)
}
