//! What each kind of lock asks of the server: the one place where kinds differ.
//!
//! A permit is a claim too once it is taken, to be renewed and released. The rest is never asked of it; what stands
//! here for it then is a mutex's, which the server refuses, as under a semaphore's name stands a number.

use std::sync::Arc;
use std::time::Duration;

use crate::kind::Kind;
use crate::lease::Lease;
use crate::name::LockName;
use crate::op::{
    self, Acquire, Acquired, Exists, FairAcquire, FairForceRelease, FairRelease, FencedAcquire,
    ForceRelease, ForceReleaseMode, IsLockedIn, Mode, Operation, OwedPermits, ReadAcquire,
    ReadRecount, ReadRelease, Recount, Recounted, Release, ReleasePermits, Released, TextAcquire,
    TextForceRelease, TextRelease, WriteAcquire, WriteRecount, WriteRelease,
};
use crate::owner::Owner;
use crate::permit_id::PermitId;
use crate::wait::{self, Others};

/// An operation with that reply, of whatever kind.
pub(crate) type Request<R> = Arc<dyn Operation<Reply = R> + Send + Sync>;

/// Who wants to hold, or holds, which lock of what kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Claim {
    pub(crate) kind: Kind,
    pub(crate) name: LockName,
    pub(crate) owner: Owner,
}

impl Claim {
    /// Takes the lock. Whoever waits stands in line on the server too, if the kind has a line there.
    pub(crate) fn acquire(&self, lease: Lease, waits: bool) -> Request<Acquired> {
        let (name, owner) = (self.name.clone(), self.owner.clone());
        match self.kind {
            Kind::Reentrant | Kind::Spin | Kind::Permit => Arc::new(Acquire { name, owner, lease }),
            Kind::Fair => Arc::new(FairAcquire::new(name, owner, lease, waits)),
            Kind::Fenced => Arc::new(FencedAcquire::new(name, owner, lease)),
            Kind::Simple => Arc::new(TextAcquire { name, owner, lease }),
            Kind::Read => Arc::new(ReadAcquire { name, owner, lease, under: None }),
            Kind::Write => Arc::new(WriteAcquire { name, owner, lease }),
        }
    }

    /// Lets a reader in under the write hold of `writer`, who is the same holder.
    pub(crate) fn acquire_under(&self, writer: &Owner, lease: Lease) -> Request<Acquired> {
        let (name, owner) = (self.name.clone(), self.owner.clone());
        Arc::new(ReadAcquire { name, owner, lease, under: Some(writer.clone()) })
    }

    /// Writes another count; with a lease if it is nested.
    pub(crate) fn recount(&self, count: u32, lease: Option<Lease>) -> Request<Recounted> {
        let (name, owner) = (self.name.clone(), self.owner.clone());
        match self.kind {
            // A simple lock is not nested.
            Kind::Reentrant
            | Kind::Fair
            | Kind::Spin
            | Kind::Fenced
            | Kind::Simple
            | Kind::Permit => Arc::new(Recount { name, owner, count, lease }),
            Kind::Read => Arc::new(ReadRecount { name, owner, count, lease }),
            Kind::Write => Arc::new(WriteRecount(Recount { name, owner, count, lease })),
        }
    }

    /// Ends the hold, whatever its count, and whatever else of the owner stands there.
    pub(crate) fn release(&self) -> Request<Released> {
        let (name, owner) = (self.name.clone(), self.owner.clone());
        match self.kind {
            Kind::Reentrant | Kind::Fenced => Arc::new(Release::new(name, owner)),
            Kind::Fair => Arc::new(FairRelease::new(name, owner)),
            Kind::Spin => Arc::new(Release::untold(name, owner)),
            Kind::Simple => Arc::new(TextRelease { name, owner }),
            Kind::Read => Arc::new(ReadRelease::new(name, owner)),
            Kind::Write => Arc::new(WriteRelease::new(name, owner)),
            // Its owner is the name of the request too. Nothing is remembered: while a copy of the acquire may come,
            // the release is owed, as a lock's is.
            Kind::Permit => {
                let ids = vec![PermitId::of(&owner)];
                Arc::new(OwedPermits(ReleasePermits::new(name, ids, owner, Duration::ZERO)))
            }
        }
    }

    /// The line of those who wait for it: the channel of its messages. Where there are none it is only a name.
    pub(crate) fn line(&self) -> Arc<str> {
        match self.kind {
            Kind::Reentrant | Kind::Fenced => self.name.channel(),
            Kind::Fair => self.name.channel_of(&self.owner),
            Kind::Read | Kind::Write => self.name.read_write_channel(),
            Kind::Spin | Kind::Simple => self.name.prefixed("polled"),
            Kind::Permit => self.name.semaphore_channel(),
        }
    }

    /// How they wait.
    pub(crate) fn waits_as(&self) -> wait::Kind {
        match self.kind {
            Kind::Reentrant | Kind::Fenced | Kind::Write => wait::Kind::Exclusive,
            Kind::Fair => wait::Kind::Queued,
            Kind::Read | Kind::Permit => wait::Kind::Shared,
            Kind::Spin | Kind::Simple => wait::Kind::Polled,
        }
    }

    /// Whether a waiter stands in line on the server, and has to leave it when it gives up.
    pub(crate) fn queues(&self) -> bool {
        self.kind == Kind::Fair
    }

    /// What one who got in means for the others of that line.
    pub(crate) fn others(&self) -> Others {
        if self.kind == Kind::Read { Others::MayTry } else { Others::Wait }
    }
}

/// Ends whatever holds the lock.
pub(crate) fn force_release(kind: Kind, name: LockName, request: op::Request) -> Request<bool> {
    match kind {
        Kind::Simple => Arc::new(TextForceRelease { name, request }),
        Kind::Fair => Arc::new(FairForceRelease::new(name, request)),
        Kind::Reentrant | Kind::Fenced | Kind::Spin | Kind::Permit => {
            Arc::new(ForceRelease::new(name, request))
        }
        Kind::Read => Arc::new(ForceReleaseMode::new(name, Mode::Read, request)),
        Kind::Write => Arc::new(ForceReleaseMode::new(name, Mode::Write, request)),
    }
}

/// Whether anybody holds the lock.
pub(crate) fn is_locked(kind: Kind, name: LockName) -> Request<bool> {
    match kind {
        Kind::Reentrant | Kind::Fair | Kind::Fenced | Kind::Spin | Kind::Simple | Kind::Permit => {
            Arc::new(Exists(name))
        }
        Kind::Read => Arc::new(IsLockedIn { name, mode: Mode::Read }),
        Kind::Write => Arc::new(IsLockedIn { name, mode: Mode::Write }),
    }
}
