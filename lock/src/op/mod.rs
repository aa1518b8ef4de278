//! What a server can be asked: one file for each operation, with its script, its reply and its effect in memory.
//!
//! The wire format stands in these files and nowhere else. Every operation may be sent more than once: counts are
//! written absolutely, an owner is never used again, and whatever creates or prolongs something carries a *not-after*,
//! a moment by the server's clock after which a copy that arrives is refused. So sending again has the effect of
//! sending once, and a copy that a network kept back does nothing.

mod acquire;
#[cfg(test)]
mod differential;
mod force_release;
mod operation;
mod query;
mod read;
mod read_write;
mod recount;
mod release;
mod renew;
mod write;

pub(crate) use acquire::{Acquire, Acquired};
pub(crate) use force_release::ForceRelease;
pub(crate) use operation::{Argument, Form, Operation, WRITE};
pub(crate) use query::{Exists, TimeToLive};
pub(crate) use read::{ReadAcquire, ReadRecount, ReadRelease};
pub(crate) use read_write::{ForceReleaseMode, IsLockedIn, Mode};
pub(crate) use recount::{Recount, Recounted};
pub(crate) use release::{Found, Release, Released};
pub(crate) use renew::{Renew, Renewal, Renewals, Renewed};
pub(crate) use write::{WriteAcquire, WriteRecount, WriteRelease};
