//! A lock of any kind as a member of a multi lock or a red lock: the lock's spec and owner, without
//! the type of the guard.

use std::sync::Arc;
use std::time::Duration;

use hashed_wheel::Clock;

use crate::core::acquire::acquire;
use crate::core::raw_guard::RawGuard;
use crate::core::spec::LockSpec;
use crate::error::{Error, truncated};
use crate::model::kind::{Kind, Layout};
use crate::model::owner::LocalHolder;
use crate::model::wait::WaitSpec;

/// A [`Lock`](crate::Lock) of any kind and with any guard, as a member of a
/// [`MultiLock`](crate::MultiLock) or a [`RedLock`](crate::RedLock). The trait is sealed: only this
/// crate implements `AnyLock`, for each `Lock`.
///
/// ```
/// use wheellock::{AnyLock, Client};
///
/// let client = Client::in_memory();
/// let (order, report) = (client.lock("orders:42"), client.fenced_lock("report"));
/// let locks: [&dyn AnyLock; 2] = [&order, &report];
/// let _guard = client.multi_lock(&locks).lock()?;
/// # Ok::<(), wheellock::Error>(())
/// ```
pub trait AnyLock: AsMember {}

mod sealed {
    /// The methods of `AnyLock` for this crate only.
    pub trait AsMember {
        /// Returns the lock as a member: the lock's spec and owner.
        #[doc(hidden)]
        fn as_member(&self) -> crate::locks::any_lock::MemberLock;
    }
}

pub(crate) use sealed::AsMember;

/// A member of a group of locks. Public only because a sealed trait returns the type: code outside
/// of this crate cannot name `MemberLock`.
#[derive(Clone, Debug)]
pub struct MemberLock {
    pub(crate) spec: LockSpec,
    /// `None`: the calling thread.
    pub(crate) owner: Option<LocalHolder>,
    /// The address of the lock's server, as far as known. Equal addresses mean the same server.
    pub(crate) server: String,
}

impl MemberLock {
    /// Returns the member lock of `spec` for `owner`, or for the calling thread without an `owner`.
    pub(crate) fn new(mut spec: LockSpec, owner: Option<LocalHolder>) -> Self {
        let server = spec.server();
        // A group's guards are acquired and released together: no single hold is handed over or
        // cached.
        spec.hand_over = false;
        Self { spec, owner, server }
    }

    /// Returns the owner, or the calling thread if the member has no owner.
    pub(crate) fn holder(&self) -> LocalHolder {
        self.owner.clone().unwrap_or_else(LocalHolder::current_thread)
    }

    /// Acquires the lock for the holder. Returns `None` if the wait ends without the lock.
    pub(crate) fn acquire(&self, wait: WaitSpec<'_>) -> Result<Option<RawGuard>, Error> {
        acquire(&self.spec.core()?, &self.spec, &self.holder(), wait)
    }

    /// Returns an error if no acquire can succeed: for invalid settings, and for a client after a
    /// shutdown or a fork.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.spec.name()?;
        self.spec.cache(&self.holder())?;
        self.spec.lease()?;
        self.spec.core()?;
        Ok(())
    }

    /// Returns the clock of the lock's client.
    pub(crate) fn clock(&self) -> Result<Arc<dyn Clock>, Error> {
        Ok(Arc::clone(&self.spec.core()?.clock))
    }

    /// Returns how long the lock's client retries a call while the server does not answer.
    pub(crate) fn retry_timeout(&self) -> Result<Duration, Error> {
        Ok(self.spec.core()?.settings.retry_timeout())
    }

    /// Returns the lock's full name, which is the key on the server. Empty for an invalid name.
    pub(crate) fn key(&self) -> String {
        self.spec.name().map(|name| name.as_str().to_owned()).unwrap_or_default()
    }

    /// The name for messages, truncated if very long.
    pub(crate) fn shown(&self) -> String {
        truncated(&self.key())
    }

    /// Returns whether the holder holds the lock for certain. Sends nothing.
    pub(crate) fn is_held(&self) -> bool {
        self.spec.held_by(&self.holder()).is_some()
    }

    /// The server's host and port, without the database: databases of a server are lost together.
    pub(crate) fn host(&self) -> &str {
        self.server.rsplit_once('/').map_or(&self.server, |(host, _database)| host)
    }

    /// Whether both locks have the same key on the same server.
    pub(crate) fn same_key(&self, other: &Self) -> bool {
        self.server == other.server && self.key() == other.key()
    }

    /// Returns whether both locks have the same key and database on the same server, by two
    /// addresses. Equal run ids prove the same server; the servers are queried only for equal keys.
    pub(crate) fn same_key_elsewhere(&self, other: &Self, wait: WaitSpec<'_>) -> bool {
        let database =
            |member: &Self| member.server.rsplit_once('/').map(|(_, last)| last.to_owned());
        self.server != other.server
            && self.key() == other.key()
            && database(self) == database(other)
            && self.run_id(wait).is_some_and(|run_id| other.run_id(wait) == Some(run_id))
    }

    /// Returns the run id of the lock's server, asked within `wait`. `None` if the server does not
    /// tell the run id, or the call fails.
    fn run_id(&self, wait: WaitSpec<'_>) -> Option<String> {
        self.spec.core().ok()?.run_id(&self.spec.name().ok()?, wait).ok()?
    }

    /// Whether both are the same lock, to be acquired only once.
    pub(crate) fn same_lock(&self, other: &Self) -> bool {
        self.same_key(other)
            && self.spec.kind == other.spec.kind
            && self.owner == other.owner
            && self.spec.same_client(&other.spec)
    }

    /// Whether the two locks can never be held together: an acquire of both would deadlock.
    pub(crate) fn conflicts_with(&self, other: &Self) -> bool {
        let readers = self.spec.kind == Kind::Read && other.spec.kind == Kind::Read;
        let one_holder = self.spec.same_client(&other.spec)
            && self.owner == other.owner
            && self.owner != Some(LocalHolder::Guard);
        let layouts = [self.spec.kind.layout(), other.spec.kind.layout()];
        let nests = match layouts {
            [Layout::Writer, Layout::Reader] | [Layout::Reader, Layout::Writer] => true,
            [one, another] => one == another,
        };
        self.same_key(other) && !readers && !(one_holder && nests)
    }
}

/// Returns the names of all `members`, for messages.
pub(crate) fn shown(members: &[MemberLock]) -> String {
    members.iter().map(MemberLock::shown).collect::<Vec<_>>().join(", ")
}
