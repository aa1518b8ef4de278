//! The locks of a server, found by a pattern of names.

use std::collections::VecDeque;
use std::iter::FusedIterator;
use std::sync::Arc;

use crate::admin::status::{LockStatus, status_of};
use crate::core::client_core::ClientCore;
use crate::error::Error;
use crate::model::name::LockName;
use crate::ops::Scan;
use crate::store::ServerId;
use crate::store::retry::map_failure;

/// An iterator over the status of the locks of a server.
///
/// Returned by [`Client::locks`](crate::Client::locks), which describes the items. Each call of
/// `next` sends requests, and waits for the replies, until a lock is found or all keys were
/// scanned. After an item with an error the iteration continues; after [`Error::Shutdown`] and
/// [`Error::Forked`] the iteration ends.
///
/// ```
/// use wheellock::Client;
///
/// let client = Client::in_memory();
/// let _permit = client.semaphore("downloads").try_set_permits(3)?;
/// let names: Result<Vec<_>, _> = client.locks("*").map(|lock| lock.map(|it| it.name)).collect();
/// assert_eq!(names?, ["downloads"]);
/// # Ok::<(), wheellock::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "an iterator asks nothing until it is used"]
pub struct Locks {
    /// The client; `None` at the end of the iteration.
    core: Option<Arc<ClientCore>>,
    pages: KeyPages,
    /// The keys of the last page that are not inspected yet.
    keys: VecDeque<String>,
    /// The number of keys that the server's user may not read.
    unreadable: u64,
}

/// The keys that match a pattern, on all servers, page by page.
#[derive(Debug)]
pub(crate) struct KeyPages {
    /// The servers to query, the current server first.
    servers: VecDeque<ServerId>,
    scan: Scan,
}

/// Prefixes of keys which belong to a lock of another name, to a job, to a client, or to a fence of
/// the crate `wheellock-fence`.
const PARTS: [&str; 10] = [
    "redisson_lock_queue:",
    "redisson_lock_timeout:",
    "redisson_lock_token:",
    "redisson_unlock_latch:",
    "wheellock_job_record:",
    "wheellock_job_runs:",
    "wheellock_job_token:",
    "wheellock_request:",
    "wheellock_client:",
    "wheellock_fence:",
];

/// A part of the names of the keys of readers' timeouts, after the lock's name.
const READER: &str = ":rwlock_timeout:";

/// The first cursor of `SCAN`, and the cursor of the last reply.
const START: &str = "0";

impl Locks {
    /// Returns an iterator over the locks whose keys match `pattern`. Sends nothing yet. If `core`
    /// is not running, the first item is the error.
    pub(crate) fn new(core: Arc<ClientCore>, pattern: String) -> Self {
        let servers = core.running().map(|core| core.store.servers().into()).unwrap_or_default();
        let pages = KeyPages { servers, scan: Scan { cursor: START.to_owned(), pattern } };
        Self { core: Some(core), pages, keys: VecDeque::new(), unreadable: 0 }
    }

    /// Returns the number of keys that were left out so far, because the server's user may not read
    /// the keys.
    ///
    /// A key left out may be a lock or other data. The number is complete when the iterator has
    /// returned `None`.
    #[must_use]
    pub fn unreadable(&self) -> u64 {
        self.unreadable
    }
}

impl KeyPages {
    /// Returns the keys of all servers that match `pattern`. Sends nothing yet.
    pub(crate) fn new(core: &ClientCore, pattern: String) -> Self {
        let servers = core.store.servers().into();
        Self { servers, scan: Scan { cursor: START.to_owned(), pattern } }
    }

    /// Returns the next page of keys of the current server, which may be empty, or `None` after the
    /// last server. An error ends the scan of the current server.
    pub(crate) fn next(&mut self, core: &ClientCore) -> Option<Result<Vec<String>, Error>> {
        let server = self.servers.front().copied()?;
        let answer = core.call_on_server(server, &self.scan);
        let answer = map_failure(answer, &self.scan, &pattern_as_name(&self.scan.pattern));
        let page = match answer {
            Ok(answer) => answer.reply,
            Err(error) => {
                self.servers.pop_front();
                START.clone_into(&mut self.scan.cursor);
                return Some(Err(error));
            }
        };
        // An unchanged cursor would be read for ever.
        if page.cursor == START || page.cursor == self.scan.cursor {
            self.servers.pop_front();
        }
        let is_last = self.servers.front() != Some(&server);
        self.scan.cursor = if is_last { START.to_owned() } else { page.cursor };
        Some(Ok(page.keys))
    }
}

/// Returns `pattern` as a name, for the message of an error.
fn pattern_as_name(pattern: &str) -> LockName {
    LockName::parse(pattern).unwrap_or_else(|_| LockName::any())
}

impl Iterator for Locks {
    type Item = Result<LockStatus, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let core = match self.core.as_ref()?.running() {
            Ok(core) => core,
            Err(error) => {
                self.core = None;
                return Some(Err(error));
            }
        };
        loop {
            while let Some(key) = self.keys.pop_front() {
                let status = LockName::parse(&key).and_then(|name| status_of(&core, &name));
                match status {
                    Ok(status) if status.kind.is_some() => return Some(Ok(status)),
                    // Gone meanwhile, not a lock, or no valid name.
                    Ok(_) | Err(Error::WrongType { .. } | Error::InvalidName { .. }) => {}
                    Err(error) if error.is_unreadable_key() => self.unreadable += 1,
                    Err(error) => return Some(Err(error)),
                }
            }
            match self.pages.next(&core) {
                None => {
                    self.core = None;
                    return None;
                }
                Some(Err(error)) => return Some(Err(error)),
                Some(Ok(keys)) => self.keys.extend(keys.into_iter().filter(|key| may_be_lock(key))),
            }
        }
    }
}

/// Returns whether `key` may be a lock: not a part of a lock of another name, of a job, a client or
/// a fence.
fn may_be_lock(key: &str) -> bool {
    !PARTS.iter().any(|part| key.starts_with(part)) && !key.contains(READER)
}

impl FusedIterator for Locks {}
