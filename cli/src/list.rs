//! `wheellock list`: the locks whose names match a pattern.

use std::error::Error;

use crate::arguments::List;
use crate::exit;
use crate::output::{complain, is_broken_pipe, say};
use crate::report;
use crate::server;

/// Lists the locks, and returns the exit code.
pub(crate) fn list(list: &List) -> Result<u8, Box<dyn Error>> {
    let client = server::connect(&list.server, None)?;
    let mut locks = client.locks(&list.pattern);
    for found in locks.by_ref() {
        let found = found?;
        let line = if list.json { report::json(&found)? } else { report::line(&found) };
        match say(&line) {
            // The reader, such as `head`, needs no more lines.
            Err(error) if is_broken_pipe(&error) => break,
            said => said?,
        }
    }
    match locks.unreadable() {
        0 => {}
        1 => complain("1 key not readable by this user"),
        keys => complain(&format!("{keys} keys not readable by this user")),
    }
    Ok(exit::SUCCESS)
}
