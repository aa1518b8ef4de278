//! `wheellock unlock`: ends the holds of a lock by force.

use std::error::Error;
use std::io::{self, IsTerminal as _, Write as _};

use wheellock::{Client, Error as LockError, HolderKind, LockKind, LockStatus};

use crate::arguments::Unlock;
use crate::exit;
use crate::output::{complain, say, shown};
use crate::report;
use crate::server;

/// Releases the lock, and returns the exit code.
pub(crate) fn unlock(unlock: &Unlock) -> Result<u8, Box<dyn Error>> {
    let client = server::connect(&unlock.server, None)?;
    let name = shown(&unlock.name);
    let status = client.status(&unlock.name)?;
    if status.number.is_some() {
        return Err(format!("{name}: a number has no holder, and nothing to release").into());
    }
    if status.holder_count == 0 {
        complain(&format!("{name}: not held"));
        return Ok(exit::NOT_ACQUIRED);
    }
    if !unlock.yes && !is_confirmed(&status)? {
        complain(&format!("{name}: left as it is"));
        return Ok(exit::NOT_ACQUIRED);
    }
    if !release(&client, &unlock.name, status.kind)? {
        complain(&format!("{name}: not held any more"));
        return Ok(exit::NOT_ACQUIRED);
    }
    say(&format!("{name}: released"))?;
    Ok(exit::SUCCESS)
}

/// Ends every hold of the lock `name`, whose kind was `kind`. Returns whether there was a hold. If
/// the lock has another kind by now, the lock stays, and the error names the kind.
fn release(client: &Client, name: &str, kind: Option<LockKind>) -> Result<bool, LockError> {
    match kind {
        Some(LockKind::ReadWrite) => {
            let lock = client.read_write_lock(name);
            Ok(lock.write_lock().force_unlock()? || lock.read_lock().force_unlock()?)
        }
        Some(LockKind::Simple) => client.simple_lock(name).force_unlock(),
        Some(LockKind::Fair) => client.fair_lock(name).force_unlock(),
        _ => client.lock(name).force_unlock(),
    }
}

fn is_confirmed(status: &LockStatus) -> Result<bool, Box<dyn Error>> {
    if !io::stdin().is_terminal() {
        return Err("there is no terminal to ask on: give --yes".into());
    }
    let mut found = status.clone();
    found.name = shown(&status.name);
    let mut terminal = io::stderr();
    write!(terminal, "{}\n{}\nRelease it? [y/N] ", report::lines(&found), consequence(status))?;
    terminal.flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// The consequence of a release by force for the holders.
fn consequence(status: &LockStatus) -> &'static str {
    let holders = &status.holders;
    if holders.iter().all(|holder| holder.owner.ends_with(":kept")) {
        "Its holder has released it, and it is kept until its shortest time is over."
    } else if holders.iter().all(|holder| holder.watched == Some(true)) {
        "Each holder learns of a release by force at its next renewal; until then another may hold \
         the lock as well."
    } else if holders.iter().any(|holder| holder.kind == HolderKind::Unknown) {
        "A holder is of an unknown kind: look at its program first. Nothing tells it of a release \
         by force, and another may hold the lock as well."
    } else {
        "A holder that does not renew its lease, or that is no client of wheellock, is not told of \
         a release by force; another may hold the lock as well."
    }
}
