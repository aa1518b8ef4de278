//! Fencing tokens for holds acquired without a token.

use std::sync::Arc;

use crate::core::client_core::{ClientCore, lost};
use crate::error::{Error, LostReason};
use crate::hold::hold::Hold;
use crate::ops::by_kind::HoldId;

/// Returns the token of `hold`: the hold's own token, or a token drawn by the server now. If the
/// server does not have the hold, reports the loss and returns [`Error::Lost`].
pub(crate) fn token_of(core: &ClientCore, hold: &Arc<Hold>) -> Result<u64, Error> {
    core.check(hold)?;
    if let Some(token) = hold.token() {
        return Ok(token);
    }
    // The server draws a token only while the owner holds the lock, so tokens grow in the order of
    // the holds, however late a token is drawn.
    if let Some(token) = draw(core, &hold.id())? {
        return Ok(hold.get_or_set_token(token));
    }
    core.watchdog.lose(hold, LostReason::Deleted);
    Err(lost(hold, LostReason::Deleted))
}

/// Draws a token from the server for a hold or a permit. Returns `None` if the server does not have
/// the hold.
pub(crate) fn draw(core: &ClientCore, hold: &HoldId) -> Result<Option<u64>, Error> {
    let answer = core.ask(&hold.draw_token(), &hold.name);
    answer.map_err(|error| core.or_shut_down(error))
}
