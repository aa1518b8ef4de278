//! What a server can be asked: one file for each operation, with its script, its reply and its effect in memory.
//!
//! The wire format stands in these files and nowhere else. Every operation may be sent more than once: counts are
//! written absolutely, an owner is never used again, and whatever creates or prolongs something carries a *not-after*,
//! a moment by the server's clock after which a copy that arrives is refused. Where there is only a number, the server
//! remembers what it answered to a request. So sending again has the effect of sending once, and a copy that a network
//! kept back does nothing.

mod acquire;
#[cfg(test)]
mod differential;
mod fair;
mod fenced;
mod force_release;
mod latch;
mod operation;
mod permit_leases;
mod permits;
mod query;
mod read;
mod read_write;
mod recount;
mod release;
mod renew;
mod request;
mod semaphore;
mod text;
mod write;

pub(crate) use acquire::{Acquire, Acquired};
pub(crate) use fair::{FairAcquire, FairForceRelease, FairRelease};
pub(crate) use fenced::{DrawToken, FencedAcquire, LastToken};
pub(crate) use force_release::ForceRelease;
pub(crate) use latch::{Change, ChangeLatch};
pub(crate) use operation::{Argument, Form, Operation, WRITE};
pub(crate) use permit_leases::{CountPermits, LeaseOf, PermitCounts, SetPermits, UpdateLease};
pub(crate) use permits::{AcquirePermits, OwedPermits, PermitsFound, ReleasePermits};
pub(crate) use query::{Exists, Number, TimeToLive};
pub(crate) use read::{ReadAcquire, ReadRecount, ReadRelease};
pub(crate) use read_write::{ForceReleaseMode, IsLockedIn, Mode};
pub(crate) use recount::{Recount, Recounted};
pub(crate) use release::{Found, Release, Released};
pub(crate) use renew::{Renew, Renewal, Renewals, Renewed};
pub(crate) use request::Request;
pub(crate) use semaphore::{AddPermits, Added, DrainPermits, MakeSemaphore, TakePermits, UndoTake};
pub(crate) use text::{TextAcquire, TextForceRelease, TextRelease};
pub(crate) use write::{WriteAcquire, WriteRecount, WriteRelease};
