//! `wheellock unlock`: ends the holds of a lock by force.

use std::error::Error;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use wheellock::{Client, Error as LockError};

use crate::arguments::Unlock;
use crate::exit;
use crate::output::{complain, printable, say};
use crate::server;

/// Releases the lock, and returns the exit code.
pub(crate) fn unlock(unlock: &Unlock) -> Result<u8, Box<dyn Error>> {
    let client = server::connect(&unlock.server, None)?;
    let name = printable(&unlock.name);
    let Some(left) = client.lock(&unlock.name).remaining_lease()? else {
        complain(&format!("{name}: not held"));
        return Ok(exit::NOT_ACQUIRED);
    };
    if !unlock.yes && !is_confirmed(&name, left)? {
        complain(&format!("{name}: left as it is"));
        return Ok(exit::NOT_ACQUIRED);
    }
    if !release(&client, &unlock.name)? {
        complain(&format!("{name}: not held any more"));
        return Ok(exit::NOT_ACQUIRED);
    }
    say(&format!("{name}: released"))?;
    Ok(exit::SUCCESS)
}

/// Ends every hold, whatever kind it is of. The first two have an effect only on their own kind.
fn release(client: &Client, name: &str) -> Result<bool, LockError> {
    let lock = client.read_write_lock(name);
    Ok(lock.write_lock().force_unlock()?
        || lock.read_lock().force_unlock()?
        || client.lock(name).force_unlock()?)
}

fn is_confirmed(name: &str, left: Duration) -> Result<bool, Box<dyn Error>> {
    if !io::stdin().is_terminal() {
        return Err("there is no terminal to ask on: give --yes".into());
    }
    let lease = match left {
        Duration::MAX => "without an end".to_owned(),
        left => format!("for {} s more, unless it is renewed", left.as_secs()),
    };
    let mut terminal = io::stderr();
    write!(
        terminal,
        "{name} is held {lease}. Its holder learns of a release by force at its next renewal; \
         until then another may hold the lock as well.\nRelease it? [y/N] "
    )?;
    terminal.flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
