//! `wheellock status`: who holds a lock, and who waits for it.

use std::error::Error;

use crate::arguments::Status;
use crate::exit;
use crate::output::say;
use crate::report;
use crate::server;

/// Shows the lock, and returns the exit code.
pub(crate) fn status(status: &Status) -> Result<u8, Box<dyn Error>> {
    let client = server::connect(&status.server, None)?;
    let found = client.status(&status.name)?;
    say(&if status.json { report::json(&found)? } else { report::lines(&found) })?;
    Ok(if report::is_held(&found) { exit::SUCCESS } else { exit::NOT_ACQUIRED })
}
