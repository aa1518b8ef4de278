//! `wheellock ask`: asks the holders of a lock for a release.

use std::error::Error;

use crate::arguments::Ask;
use crate::exit;
use crate::output::{complain, say, shown};
use crate::server;

/// Asks once, and returns the exit code.
pub(crate) fn ask(ask: &Ask) -> Result<u8, Box<dyn Error>> {
    let client = server::connect(&ask.server, None)?;
    let name = shown(&ask.name);
    // A plain lock suffices: the request reaches the holders of every kind of lock.
    let asked = client.lock(&ask.name).ask(&ask.reason)?;
    match (asked.holders, asked.heard) {
        (0, _) => complain(&format!("{name}: not held")),
        (_, 0) => complain(&format!("{name}: no holder is known to listen")),
        (holders, heard) => {
            say(&format!("{name}: asked {heard} of {holders}"))?;
            return Ok(exit::SUCCESS);
        }
    }
    Ok(exit::NOT_ACQUIRED)
}
