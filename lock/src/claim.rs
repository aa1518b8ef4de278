//! What each kind of lock asks of the server: the one place where kinds differ.

use std::sync::Arc;

use crate::kind::Kind;
use crate::lease::Lease;
use crate::name::LockName;
use crate::op::{
    Acquire, Acquired, Exists, ForceRelease, ForceReleaseMode, IsLockedIn, Mode, Operation,
    ReadAcquire, ReadRecount, ReadRelease, Recount, Recounted, Release, Released, Renewal,
    WriteAcquire, WriteRecount, WriteRelease,
};
use crate::owner::Owner;
use crate::wait::{self, Others};

/// An operation with that reply, of whatever kind.
pub(crate) type Request<R> = Box<dyn Operation<Reply = R> + Send>;

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
            Kind::Reentrant | Kind::Spin => Box::new(Acquire { name, owner, lease }),
            Kind::Read => Box::new(ReadAcquire { name, owner, lease, under: None }),
            Kind::Write => Box::new(WriteAcquire { name, owner, lease }),
            Kind::Fenced | Kind::Simple | Kind::Fair => todo!("{waits}"),
        }
    }

    /// Lets a reader in under the write hold of `writer`, who is the same holder.
    pub(crate) fn acquire_under(&self, writer: &Owner, lease: Lease) -> Request<Acquired> {
        let (name, owner) = (self.name.clone(), self.owner.clone());
        Box::new(ReadAcquire { name, owner, lease, under: Some(writer.clone()) })
    }

    /// Writes another count; with a lease if it is nested.
    pub(crate) fn recount(&self, count: u32, lease: Option<Lease>) -> Request<Recounted> {
        let (name, owner) = (self.name.clone(), self.owner.clone());
        match self.kind {
            Kind::Reentrant | Kind::Spin => Box::new(Recount { name, owner, count, lease }),
            Kind::Read => Box::new(ReadRecount { name, owner, count, lease }),
            Kind::Write => Box::new(WriteRecount(Recount { name, owner, count, lease })),
            _ => todo!(),
        }
    }

    /// Ends the hold, whatever its count, and whatever else of the owner stands there.
    pub(crate) fn release(&self) -> Request<Released> {
        let (name, owner) = (self.name.clone(), self.owner.clone());
        match self.kind {
            Kind::Reentrant => Box::new(Release::new(name, owner)),
            Kind::Spin => Box::new(Release::untold(name, owner)),
            Kind::Read => Box::new(ReadRelease::new(name, owner)),
            Kind::Write => Box::new(WriteRelease::new(name, owner)),
            Kind::Fenced | Kind::Simple | Kind::Fair => todo!(),
        }
    }

    /// Prolongs it.
    pub(crate) fn renewal(&self, lease: Lease) -> Renewal {
        Renewal { name: self.name.clone(), owner: self.owner.clone(), lease }
    }

    /// The line of those who wait for it: the channel of its messages. Where there are none it is only a name.
    pub(crate) fn line(&self) -> Arc<str> {
        match self.kind {
            Kind::Reentrant | Kind::Fenced => self.name.channel(),
            Kind::Fair => Arc::from(format!("{}:{}", self.name.channel(), self.owner)),
            Kind::Read | Kind::Write => self.name.read_write_channel(),
            Kind::Spin | Kind::Simple => self.name.prefixed("polled"),
        }
    }

    /// How they wait.
    pub(crate) fn waits_as(&self) -> wait::Kind {
        match self.kind {
            Kind::Reentrant | Kind::Fenced | Kind::Fair | Kind::Write => wait::Kind::Exclusive,
            Kind::Read => wait::Kind::Shared,
            Kind::Spin | Kind::Simple => wait::Kind::Polled,
        }
    }

    /// What one who got in means for the others of that line.
    pub(crate) fn others(&self) -> Others {
        if self.kind == Kind::Read { Others::MayTry } else { Others::Wait }
    }
}

/// Ends whatever holds the lock.
pub(crate) fn force_release(kind: Kind, name: LockName) -> Request<bool> {
    match kind {
        Kind::Read => Box::new(ForceReleaseMode::new(name, Mode::Read)),
        Kind::Write => Box::new(ForceReleaseMode::new(name, Mode::Write)),
        _ => Box::new(ForceRelease::new(name)),
    }
}

/// Whether anybody holds the lock.
pub(crate) fn is_locked(kind: Kind, name: LockName) -> Request<bool> {
    match kind {
        Kind::Read => Box::new(IsLockedIn { name, mode: Mode::Read }),
        Kind::Write => Box::new(IsLockedIn { name, mode: Mode::Write }),
        _ => Box::new(Exists(name)),
    }
}
