//! A test that asks at each command of a small program: what if the lock is lost here?
//!
//! The program adds interest to an account under a lock. It is run once for each fault and each of
//! its commands, in memory and on a clock that stands still, so all runs take milliseconds. Another
//! process deposits 10 as soon as it gets the lock. That deposit must never be lost.
//!
//! ```text
//! cargo run --example lost_lock
//! ```

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::cell::{Cell, RefCell};
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use wheellock::{Client, Fault, Faults, ManualClock, Memory};

const ACCOUNT: &str = "account:7";

/// The program as it was written first. It holds the lock, and it looked right.
fn add_interest(client: &Client, bank: &Bank) -> Result<(), Box<dyn Error>> {
    let guard = client.fenced_lock(ACCOUNT).lock()?;
    let balance = bank.balance();
    let rate = rate(client)?;
    bank.write(None, balance + balance * rate / 100)?;
    drop(guard);
    Ok(())
}

/// The mended program. The account refuses a write of a hold that is over.
fn add_interest_with_token(client: &Client, bank: &Bank) -> Result<(), Box<dyn Error>> {
    let guard = client.fenced_lock(ACCOUNT).lock()?;
    let balance = bank.balance();
    let rate = rate(client)?;
    bank.write(Some(guard.token()), balance + balance * rate / 100)?;
    drop(guard);
    Ok(())
}

/// Asks a service that serves one process at a time.
fn rate(client: &Client) -> Result<i64, wheellock::Error> {
    let _guard = client.lock("rates").lock()?;
    Ok(5)
}

/// The account, as a table would keep it, and another process that uses it.
struct Bank {
    account: RefCell<Account>,
    other_process: Client,
    has_deposited: Cell<bool>,
}

struct Account {
    balance: i64,
    /// The token of the last write.
    token: u64,
}

impl Bank {
    fn balance(&self) -> i64 {
        self.account.borrow().balance
    }

    /// The moment that matters: just before a write, the other process tries to get in.
    fn write(&self, token: Option<u64>, balance: i64) -> Result<(), String> {
        if let Ok(Some(guard)) = self.other_process.fenced_lock(ACCOUNT).try_lock() {
            let deposited = self.balance() + 10;
            self.account.borrow_mut().write(Some(guard.token()), deposited)?;
            self.has_deposited.set(true);
        }
        self.account.borrow_mut().write(token, balance)
    }

    /// Either program may have come first, or the first may have failed. A deposit is never lost.
    fn is_right(&self) -> bool {
        if self.has_deposited.get() { self.balance() == 110 } else { self.balance() <= 105 }
    }
}

impl Account {
    /// A table would do this in one statement: `UPDATE .. WHERE token <= ?`.
    fn write(&mut self, token: Option<u64>, balance: i64) -> Result<(), String> {
        let token = token.unwrap_or(self.token);
        if token < self.token {
            return Err(format!("token {token} is older than {}", self.token));
        }
        *self = Self { balance, token };
        Ok(())
    }
}

type Program = fn(&Client, &Bank) -> Result<(), Box<dyn Error>>;

/// What may happen to each command.
const FAULTS: [Fault; 5] = [
    Fault::LoseRequest,
    Fault::LoseReply,
    Fault::Delay(Duration::from_secs(60)),
    Fault::Pause(Duration::from_secs(60)),
    Fault::LoseKey,
];

/// One run of the program, in which one command meets a fault. Returns whether the account is right
/// afterwards, and how many commands were sent.
fn run(program: Program, number: u64, fault: Fault) -> Result<(bool, u64), Box<dyn Error>> {
    let memory = Memory::with_clock(Arc::new(ManualClock::new()));
    let client = || Client::builder().in_memory(&memory).build();
    let bank = Bank {
        account: RefCell::new(Account { balance: 100, token: 0 }),
        other_process: client()?,
        has_deposited: Cell::new(false),
    };
    memory.set_faults(Faults::new().on_command(number, fault));
    // It may fail. What it leaves behind must be right all the same.
    let _outcome = program(&client()?, &bank);
    Ok((bank.is_right(), memory.commands()))
}

/// Runs the program with each fault at each of its commands. Returns the first that breaks it.
fn first_to_break(program: Program) -> Result<Option<(u64, Fault)>, Box<dyn Error>> {
    for fault in FAULTS {
        for number in 0.. {
            let (is_right, commands) = run(program, number, fault)?;
            if !is_right {
                return Ok(Some((number, fault)));
            }
            if number >= commands {
                // It has fewer commands.
                break;
            }
        }
    }
    Ok(None)
}

fn tell(program: &str, broken_by: Option<(u64, Fault)>) {
    match broken_by {
        Some((number, fault)) => {
            println!("{program} a deposit is lost by {fault:?} at command {number}");
        }
        None => println!("{program} no deposit is lost"),
    }
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let broken_by = first_to_break(add_interest)?;
    tell("first: ", broken_by);
    let mended = first_to_break(add_interest_with_token)?;
    tell("mended:", mended);
    // The test is worth something only if it finds the bug.
    let is_as_told = broken_by.is_some() && mended.is_none();
    Ok(if is_as_told { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
