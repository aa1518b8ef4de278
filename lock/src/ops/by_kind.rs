//! The operations of each kind of lock: the only place where kinds differ.
//!
//! A held permit is renewed and released as a lock is, so permits are a kind too. Permits are
//! acquired elsewhere. The remaining operations here are a mutex's, and the server refuses them for
//! a permit.

use std::sync::Arc;
use std::time::Duration;

use crate::model::kind::Kind;
use crate::model::lease::Lease;
use crate::model::name::LockName;
use crate::model::owner::Owner;
use crate::model::permit_id::PermitId;
use crate::model::wait_mode::WaitMode;
use crate::ops::acquire::{Acquire, Acquired};
use crate::ops::fair::{FairAcquire, FairForceRelease, FairRelease};
use crate::ops::fenced::{DrawToken, FencedAcquire};
use crate::ops::force_release::ForceRelease;
use crate::ops::keep::{Keep, WakeTarget};
use crate::ops::operation::Operation;
use crate::ops::permits::ReleasePermits;
use crate::ops::query::Exists;
use crate::ops::read::{ReadAcquire, ReadRelease};
use crate::ops::read_write::{IsLockedIn, Mode};
use crate::ops::release::{ReleaseHold, Released};
use crate::ops::request::RequestId;
use crate::ops::set_count::{SetCount, SetCountReply};

/// An operation of any kind of lock, with the reply `R`.
pub(crate) type SharedOperation<R> = Arc<dyn Operation<Reply = R> + Send + Sync>;

/// A hold, granted or requested: the kind of lock, the name, and the owner.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct HoldId {
    pub(crate) kind: Kind,
    pub(crate) name: LockName,
    pub(crate) owner: Owner,
}

impl HoldId {
    /// Makes the request that acquires the lock. If `waits` and the kind has a queue on the server,
    /// the owner enters the queue. A reader may enter under `enclosing_write_hold`, the write hold
    /// of the same holder.
    pub(crate) fn acquire(
        &self,
        lease: Lease,
        waits: bool,
        enclosing_write_hold: Option<&Owner>,
    ) -> SharedOperation<Acquired> {
        let (name, owner) = (self.name.clone(), self.owner.clone());
        match self.kind {
            Kind::Fair => Arc::new(FairAcquire::new(name, owner, lease, waits)),
            Kind::Fenced => Arc::new(FencedAcquire::new(name, owner, lease)),
            Kind::Read => {
                Arc::new(ReadAcquire { name, owner, lease, under: enclosing_write_hold.cloned() })
            }
            Kind::Reentrant | Kind::Spin | Kind::Simple | Kind::Write | Kind::Permit => {
                let (layout, names_holder) = (self.kind.layout(), false);
                Arc::new(Acquire { layout, name, owner, lease, names_holder })
            }
        }
    }

    /// Makes the request that acquires a plain lock. A refusal names the holding owner.
    pub(crate) fn acquire_from_holder(&self, lease: Lease) -> SharedOperation<Acquired> {
        let (name, owner) = (self.name.clone(), self.owner.clone());
        let layout = self.kind.layout();
        Arc::new(Acquire { layout, name, owner, lease, names_holder: true })
    }

    /// Makes the request that writes a new count; `lease` is set when the hold is nested.
    pub(crate) fn set_count(
        &self,
        count: u32,
        lease: Option<Lease>,
    ) -> SharedOperation<SetCountReply> {
        let (name, owner) = (self.name.clone(), self.owner.clone());
        // A simple lock is not nested.
        Arc::new(SetCount { name, owner, count, lease, layout: self.kind.layout() })
    }

    /// Makes the request that draws a fencing token, if the hold exists.
    pub(crate) fn draw_token(&self) -> DrawToken {
        DrawToken::new(self.kind.layout(), &self.name, self.owner.clone())
    }

    /// Makes the request that ends the hold whatever the count, and removes everything else stored
    /// for this owner.
    pub(crate) fn release(&self) -> SharedOperation<Released> {
        let (name, owner) = (self.name.clone(), self.owner.clone());
        match self.kind {
            Kind::Reentrant | Kind::Fenced | Kind::Simple | Kind::Write => {
                Arc::new(ReleaseHold::new(self.kind.layout(), name, owner))
            }
            Kind::Fair => Arc::new(FairRelease::new(name, owner)),
            Kind::Spin => Arc::new(ReleaseHold::without_message(name, owner)),
            Kind::Read => Arc::new(ReadRelease::new(name, owner)),
            // The owner is the request's name too. The server remembers nothing: while a copy of
            // the acquire may arrive, the release stays queued, as a lock's does.
            Kind::Permit => {
                let ids = vec![PermitId::of(&owner)];
                Arc::new(ReleasePermits::new(name, ids, owner, Duration::ZERO))
            }
        }
    }

    /// Makes the request that ends the hold, but leaves its key for `left`.
    pub(crate) fn keep(&self, left: Duration) -> SharedOperation<Released> {
        let (name, owner) = (self.name.clone(), self.owner.clone());
        let wakes = match self.kind {
            Kind::Spin | Kind::Simple => WakeTarget::Nobody,
            Kind::Fair => WakeTarget::Head { queue: name.queue(), channel: name.channel() },
            // A permit is never kept.
            Kind::Reentrant | Kind::Fenced | Kind::Read | Kind::Write | Kind::Permit => {
                WakeTarget::Channel(self.wait_channel())
            }
        };
        Arc::new(Keep { layout: self.kind.layout(), name, owner, left, wakes })
    }

    /// Returns the channel on which waiters are woken. For polled locks the channel is only a name.
    pub(crate) fn wait_channel(&self) -> Arc<str> {
        match self.kind {
            Kind::Reentrant | Kind::Fenced => self.name.channel(),
            Kind::Fair => self.name.channel_of(&self.owner),
            Kind::Read | Kind::Write => self.name.read_write_channel(),
            Kind::Spin | Kind::Simple => self.name.polled(),
            Kind::Permit => self.name.semaphore_channel(),
        }
    }

    /// Returns how waiters of this kind wait.
    pub(crate) fn wait_mode(&self) -> WaitMode {
        match self.kind {
            Kind::Reentrant | Kind::Fenced | Kind::Write => WaitMode::Exclusive,
            Kind::Fair => WaitMode::Queued,
            Kind::Read | Kind::Permit => WaitMode::Shared,
            Kind::Spin | Kind::Simple => WaitMode::Polled,
        }
    }
}

/// Makes the request that ends any hold of the lock. The reply says whether there was a hold.
pub(crate) fn force_release(
    kind: Kind,
    name: LockName,
    request: RequestId,
) -> SharedOperation<bool> {
    match kind {
        Kind::Fair => Arc::new(FairForceRelease::new(name, request)),
        _ => Arc::new(ForceRelease::new(kind.layout(), name, request)),
    }
}

/// Makes the query whether any owner holds the lock.
pub(crate) fn is_locked(kind: Kind, name: LockName) -> SharedOperation<bool> {
    match kind {
        Kind::Reentrant | Kind::Fair | Kind::Fenced | Kind::Spin | Kind::Simple | Kind::Permit => {
            Arc::new(Exists(name))
        }
        Kind::Read => Arc::new(IsLockedIn { name, mode: Mode::Read }),
        Kind::Write => Arc::new(IsLockedIn { name, mode: Mode::Write }),
    }
}
