//! Requests to the holders of a lock to release the lock.
//!
//! A request is the message that a waiter for a cached lock sends, with a reason. A holder may
//! continue, so nothing is stored on the server, and no invariant depends on the message.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::admin::status::status_of;
use crate::core::client_core::ClientCore;
use crate::error::Error;
use crate::model::name::LockName;
use crate::model::owner::OwnerText;
use crate::ops::KEPT;
use crate::ops::client_record::client_record_key;
use crate::ops::revoke::Revoke;

/// The result of a request to release a lock, from [`Lock::ask`](crate::Lock::ask).
///
/// ```
/// use wheellock::Client;
///
/// let lock = Client::in_memory().lock("orders:42");
/// let asked = lock.ask("deploy")?;
/// assert_eq!((asked.holders, asked.heard), (0, 0)); // nobody holds it
/// # Ok::<(), wheellock::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Asked {
    /// Number of clients which hold the lock, Redisson's among them.
    pub holders: usize,
    /// Number of these clients which receive requests, as far as the server knows: clients which
    /// have called [`revocation`](crate::LockGuard::revocation) or used a lock [with a
    /// cache](crate::Lock::with_cache). In memory all clients count; behind the single address of a
    /// cluster, the server may count too few.
    pub heard: usize,
}

impl Asked {
    /// The result for a lock without holders.
    pub(crate) const NOBODY: Self = Self { holders: 0, heard: 0 };

    /// Counts a further client of a holder, which receives requests if `hears`.
    pub(crate) fn add(&mut self, hears: bool) {
        self.holders += 1;
        self.heard += usize::from(hears);
    }
}

/// The maximum length of a reason, in bytes.
const MAX_REASON: usize = 1000;

/// Sends a request with `reason` to the client of each holder of `name`, once for each client.
/// Returns the number of clients, and how many of the clients receive requests. A kept hold gets no
/// request.
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
                let revoke = Revoke::new(client_record_key(owner.client), name, Some(reason));
                core.ask(&revoke, name)? > 0
            }
            None => false,
        };
        asked.add(hears);
    }
    Ok(asked)
}
