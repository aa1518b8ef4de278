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

/// The result of a request to release a lock: how many clients hold the lock, and how many of these
/// clients receive the request.
///
/// Returned by [`Lock::ask`](crate::Lock::ask).
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
    /// The number of clients which hold the lock, Redisson's among them. A client with several
    /// holds counts once. A released hold whose key stays until the [minimum
    /// hold](crate::Lock::with_min_hold) is over does not count. At most 1,000 holds are counted.
    pub holders: usize,
    /// The number of these clients which are subscribed to requests, according to the server. No
    /// client of Redisson is.
    ///
    /// A client subscribes when the program calls [`revocation`](crate::LockGuard::revocation) or a
    /// related method of any guard, leads an election, or acquires a lock [with a
    /// cache](crate::Lock::with_cache), and when a thread has waited for more than a second. So a
    /// client may count although the program does not watch for requests for this lock. In memory
    /// all clients of this crate count. Behind the [single address](crate::guide::managed) of a
    /// cluster, the server may count too few clients.
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
