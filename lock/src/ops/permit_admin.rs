//! Permits with ids and leases: count permits, set their number, change a lease, query a lease.

use std::sync::Arc;
use std::time::Duration;

use crate::model::lease::Lease;
use crate::model::name::LockName;
use crate::model::permit_id::PermitId;
use crate::ops::keyspace::{Keyspace, WrongType};
use crate::ops::operation::{Argument, Operation, Request, Script, script};
use crate::ops::permits::{NEVER, lease_argument};
use crate::ops::request::RequestId;
use crate::ops::semaphore::tell;
use crate::ops::value::{FromReply, Unexpected, Value};

/// Counts the free and the taken permits.
static COUNT: Script = script!("permits_count");
/// Sets the number of all permits.
static SET: Script = script!("permits_set");
/// Sets the lease of a permit.
static LEASE: Script = script!("permits_lease");
/// Queries the lease of a permit.
static LEASE_OF: Script = script!("permits_lease_of");

/// Counts the free permits and the taken permits, and frees permits whose leases have ended.
#[derive(Clone, Debug)]
pub(crate) struct CountPermits {
    name: LockName,
    leases: Arc<str>,
    channel: Arc<str>,
}

/// The numbers of free and taken permits; both zero without a semaphore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PermitCounts {
    pub(crate) free: i64,
    pub(crate) taken: i64,
}

impl FromReply for PermitCounts {
    fn from_reply(value: Value) -> Result<Self, Unexpected> {
        match value.as_integers() {
            Some([free, taken]) => Ok(Self { free, taken }),
            None => Err(Unexpected(value)),
        }
    }
}

impl CountPermits {
    pub(crate) fn new(name: LockName) -> Self {
        Self { leases: name.permit_leases(), channel: name.semaphore_channel(), name }
    }

    /// Frees permits whose leases have ended, and wakes waiters for the freed permits, in memory.
    /// Returns the numbers of free and taken permits.
    fn count(&self, keyspace: &mut Keyspace) -> Result<[i64; 2], WrongType> {
        let (key, now) = (self.name.as_str(), keyspace.now().0);
        let value = keyspace.number(key)?;
        let freed = keyspace.sorted_remove_until(&self.leases, now)?;
        let Some(mut free) = value else {
            return Ok([0, 0]);
        };
        if freed > 0 {
            free = keyspace.number_add(key, freed)?;
            tell(keyspace, &self.channel, free);
        }
        let taken = i64::try_from(keyspace.sorted(&self.leases)?.len()).unwrap_or(i64::MAX);
        Ok([free, taken])
    }
}

impl Operation for CountPermits {
    type Reply = PermitCounts;

    fn request(&self) -> Request<'_> {
        Request::script(
            "count permits",
            &COUNT,
            vec![self.name.as_str(), &self.leases, &self.channel],
            vec![Argument::Publish],
        )
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        Ok(Value::Array(self.count(keyspace)?.map(Value::Integer).to_vec()))
    }
}

/// Sets the number of all permits, free and taken, of a semaphore whose permits have ids.
#[derive(Clone, Debug)]
pub(crate) struct SetPermits {
    count: CountPermits,
    permits: u32,
    request: RequestId,
}

impl SetPermits {
    pub(crate) fn new(name: LockName, permits: u32, request: RequestId) -> Self {
        Self { count: CountPermits::new(name), permits, request }
    }

    /// Sets the number of all permits in memory, and wakes waiters if any permit is free. Returns
    /// 1. The number of free permits may become negative.
    fn set(&self, keyspace: &mut Keyspace) -> Result<i64, WrongType> {
        let CountPermits { name, leases, channel } = &self.count;
        let value = keyspace.number(name.as_str())?;
        let now = keyspace.now().0;
        keyspace.sorted_remove_until(leases, now)?;
        let mut free = i64::from(self.permits);
        if value.is_some() {
            free -= i64::try_from(keyspace.sorted(leases)?.len()).unwrap_or(i64::MAX);
        }
        keyspace.number_add(name.as_str(), free - value.unwrap_or(0))?;
        tell(keyspace, channel, free);
        Ok(1)
    }
}

impl Operation for SetPermits {
    type Reply = ();

    fn request(&self) -> Request<'_> {
        let mut keys = self.count.request().keys;
        keys.push(self.request.key());
        let arguments = vec![
            Argument::NotAfter,
            Argument::Number(i64::from(self.permits)),
            self.request.number(),
            self.request.dedup_ttl(),
            Argument::Publish,
        ];
        Request::script("set permits", &SET, keys, arguments)
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        self.request.once(keyspace, |keyspace| self.set(keyspace))
    }
}

/// Sets the lease of a permit.
#[derive(Clone, Debug)]
pub(crate) struct UpdateLease {
    leases: Arc<str>,
    id: PermitId,
    lease: Option<Lease>,
    request: RequestId,
}

impl UpdateLease {
    pub(crate) fn new(
        name: &LockName,
        id: PermitId,
        lease: Option<Lease>,
        request: RequestId,
    ) -> Self {
        Self { leases: name.permit_leases(), id, lease, request }
    }

    /// Sets the end of the permit's lease in memory. Returns 1, or 0 without effect if the permit
    /// is not taken.
    fn update(&self, keyspace: &mut Keyspace) -> Result<i64, WrongType> {
        let (id, now) = (self.id.as_bytes(), keyspace.now().0);
        let taken = keyspace.sorted_set_score(&self.leases, id)?.is_some_and(|score| score > now);
        if taken {
            let ends = self.lease.map_or(NEVER, |lease| now.saturating_add(lease.millis_i64()));
            keyspace.sorted_set(&self.leases, id, ends)?;
        }
        Ok(i64::from(taken))
    }
}

impl Operation for UpdateLease {
    /// Whether there is such a permit.
    type Reply = bool;

    fn request(&self) -> Request<'_> {
        Request::script(
            "update a lease",
            &LEASE,
            vec![&self.leases, self.request.key()],
            vec![
                Argument::NotAfter,
                Argument::Bytes(self.id.as_bytes()),
                lease_argument(self.lease),
                self.request.number(),
                self.request.dedup_ttl(),
            ],
        )
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        self.request.once(keyspace, |keyspace| self.update(keyspace))
    }
}

/// Queries the lease of a permit: `None` if there is no such permit, `Duration::MAX` for a permit
/// without a lease.
#[derive(Clone, Debug)]
pub(crate) struct LeaseOf {
    leases: Arc<str>,
    id: PermitId,
}

impl LeaseOf {
    pub(crate) fn new(name: &LockName, id: PermitId) -> Self {
        Self { leases: name.permit_leases(), id }
    }

    /// Returns the rest of the permit's lease in milliseconds, -1 for an endless lease, or -2 if
    /// the permit is not taken.
    fn left(&self, keyspace: &mut Keyspace) -> Result<i64, WrongType> {
        let now = keyspace.now().0;
        Ok(match keyspace.sorted_set_score(&self.leases, self.id.as_bytes())? {
            Some(NEVER) => -1,
            Some(score) if score > now => score - now,
            Some(_) | None => -2,
        })
    }
}

impl Operation for LeaseOf {
    type Reply = Option<Duration>;

    fn request(&self) -> Request<'_> {
        Request::script(
            "ask for a lease",
            &LEASE_OF,
            vec![&self.leases],
            vec![Argument::Bytes(self.id.as_bytes())],
        )
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        self.left(keyspace).map(Value::Integer)
    }
}
