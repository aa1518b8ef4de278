//! The requests to a server: a file for each operation, with script, reply and effect in memory.
//!
//! The wire format is in these files and nowhere else. Every operation may be sent more than once.
//! Counts are written absolutely, an owner is never used again, and requests to create or prolong
//! something carry a *not-after*: a time of the server's clock after which a copy does nothing. For
//! plain numbers, the server remembers the reply to a call. So an operation sent twice has the
//! effect of a single copy, and a late copy has no effect.

pub(crate) mod acquire;
pub(crate) mod acquire_many;
pub(crate) mod by_kind;
pub(crate) mod client_record;
pub(crate) mod fair;
pub(crate) mod fenced;
pub(crate) mod force_release;
pub(crate) mod inspect;
pub(crate) mod job;
pub(crate) mod keep;
pub(crate) mod keyspace;
pub(crate) mod latch;
pub(crate) mod leader;
pub(crate) mod long_waits;
pub(crate) mod operation;
pub(crate) mod permit_admin;
pub(crate) mod permits;
pub(crate) mod query;
pub(crate) mod read;
pub(crate) mod read_write;
pub(crate) mod recognize;
pub(crate) mod release;
pub(crate) mod release_many;
pub(crate) mod renew;
pub(crate) mod request;
pub(crate) mod revoke;
pub(crate) mod semaphore;
pub(crate) mod set_count;
pub(crate) mod value;

pub(crate) use crate::ops::acquire::Acquired;
pub(crate) use crate::ops::fenced::LastToken;
pub(crate) use crate::ops::job::{
    BeginRun, FinishRun, GiveBackAttempt, HasRun, JobKeys, ListRuns, ReadRuns, RunBegun, RunFields,
};
pub(crate) use crate::ops::latch::{Change, ChangeLatch};
pub(crate) use crate::ops::leader::{CurrentLeader, LeaderReply};
pub(crate) use crate::ops::operation::{
    AnyOperation, Grants, IsGrant, KEPT, Operation, Untyped, WRITE,
};
pub(crate) use crate::ops::permit_admin::{
    CountPermits, LeaseOf, PermitCounts, SetPermits, UpdateLease,
};
pub(crate) use crate::ops::permits::{AcquirePermits, ReleasePermits};
pub(crate) use crate::ops::query::{Number, Scan, TimeToLive};
pub(crate) use crate::ops::release::{Found, Released};
pub(crate) use crate::ops::renew::{RENEW, Renew, Renewal, Renewals, Renewed};
pub(crate) use crate::ops::request::{RequestId, RequestSequences};
pub(crate) use crate::ops::semaphore::{
    AddPermits, AddPermitsReply, DrainPermits, GiveBackPermits, TakePermits, TrySetPermits,
    UndoAcquire,
};
pub(crate) use crate::ops::set_count::SetCountReply;
