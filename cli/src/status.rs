//! `wheellock status`: the holders and the waiters of a lock.

use std::error::Error;

use crate::arguments::Status;
use crate::exit;
use crate::output::say;
use crate::report;
use crate::server;

/// Prints the status of the lock, and returns the exit code.
pub(crate) fn status(status: &Status) -> Result<u8, Box<dyn Error>> {
    let client = server::connect(&status.server, None)?;
    let found = client.status(&status.name)?;
    say(&if status.json { report::json(&found)? } else { report::lines(&found) })?;
    Ok(if report::is_held(&found) { exit::SUCCESS } else { exit::NOT_ACQUIRED })
}
