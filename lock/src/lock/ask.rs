//! Asks the holders of a lock to let it go (DESIGN: revocation).

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::error::Error;
use crate::hold::revocation::Asked;
use crate::lock::status::status_of;
use crate::model::name::LockName;
use crate::model::owner::OwnerText;
use crate::ops::KEPT;
use crate::ops::client_record::record_key;
use crate::ops::revoke::Revoke;
use crate::runtime::client_core::ClientCore;

/// The longest reason, in bytes.
const MAX_REASON: usize = 1000;

/// Asks the client of each holder once.
pub(crate) fn ask(core: &Arc<ClientCore>, name: &LockName, reason: &str) -> Result<Asked, Error> {
    if reason.len() > MAX_REASON {
        let reason = format!("{} bytes are more than {MAX_REASON}", reason.len());
        return Err(Error::invalid_setting("reason", reason));
    }
    let (mut asked, mut clients) = (Asked::NOBODY, BTreeSet::new());
    for holder in status_of(core, name)?.holders {
        let client = holder.owner.split(':').next().unwrap_or_default().to_owned();
        if holder.owner.ends_with(KEPT) || !clients.insert(client) {
            continue;
        }
        let hears = match OwnerText::parse(&holder.owner) {
            Some(owner) => {
                let revoke = Revoke::new(record_key(owner.client), name, Some(reason));
                core.ask(&revoke, name)? > 0
            }
            None => false,
        };
        asked.add(hears);
    }
    Ok(asked)
}
