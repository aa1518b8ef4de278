//! `wheellock list`: the locks whose names match a pattern.

use std::error::Error;

use crate::arguments::List;
use crate::exit;
use crate::output::{is_unread, say};
use crate::report;
use crate::server;

/// Lists the locks, and returns the exit code.
pub(crate) fn list(list: &List) -> Result<u8, Box<dyn Error>> {
    let client = server::connect(&list.server, None)?;
    for found in client.locks(&list.pattern) {
        let found = found?;
        let line = if list.json { report::json(&found) } else { report::line(&found) };
        match say(&line) {
            // As `head` does: it has what it wants.
            Err(error) if is_unread(&error) => break,
            said => said?,
        }
    }
    Ok(exit::SUCCESS)
}
