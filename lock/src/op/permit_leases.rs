//! Permits with ids and leases, once they are taken: count them, set how many there are, change a lease, ask for one.

use std::sync::Arc;
use std::time::Duration;

use super::operation::{Argument, Form, Operation, Script};
use super::permits::{NEVER, lease_argument};
use super::request::Request;
use super::semaphore::tell;
use crate::keyspace::{Keyspace, WrongType};
use crate::lease::Lease;
use crate::name::LockName;
use crate::permit_id::PermitId;
use crate::value::{ServerTime, Unexpected, Value};

static COUNT: Script = Script::new(include_str!("permits_count.lua"));
static SET: Script = Script::new(include_str!("permits_set.lua"));
static LEASE: Script = Script::new(include_str!("permits_lease.lua"));
static LEASE_OF: Script = Script::new(include_str!("permits_lease_of.lua"));

/// Counts the permits that are free and those that are taken.
#[derive(Clone, Debug)]
pub(crate) struct CountPermits {
    name: LockName,
    leases: Arc<str>,
    channel: Arc<str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PermitCounts {
    pub(crate) free: i64,
    pub(crate) taken: i64,
}

impl CountPermits {
    pub(crate) fn new(name: LockName) -> Self {
        Self { leases: name.permit_leases(), channel: name.semaphore_channel(), name }
    }

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

    fn name(&self) -> &'static str {
        "count permits"
    }

    fn form(&self) -> Form {
        Form::Script(&COUNT)
    }

    fn keys(&self) -> Vec<&str> {
        vec![self.name.as_str(), &self.leases, &self.channel]
    }

    fn arguments(&self, _not_after: ServerTime) -> Vec<Argument<'_>> {
        vec![Argument::Publish]
    }

    fn decode(&self, value: Value) -> Result<PermitCounts, Unexpected> {
        match value {
            Value::Array(parts) => match parts.as_slice() {
                [Value::Integer(free), Value::Integer(taken)] => {
                    Ok(PermitCounts { free: *free, taken: *taken })
                }
                _ => Err(Unexpected(Value::Array(parts))),
            },
            other => Err(Unexpected(other)),
        }
    }

    fn apply(&self, keyspace: &mut Keyspace, _not_after: ServerTime) -> Value {
        match self.count(keyspace) {
            Ok(counts) => Value::Array(counts.map(Value::Integer).to_vec()),
            Err(WrongType) => Value::wrong_type(),
        }
    }
}

/// Sets how many permits there are in all, free and taken.
#[derive(Clone, Debug)]
pub(crate) struct SetPermits {
    count: CountPermits,
    permits: u32,
    request: Request,
}

impl SetPermits {
    pub(crate) fn new(name: LockName, permits: u32, request: Request) -> Self {
        Self { count: CountPermits::new(name), permits, request }
    }

    fn set(&self, keyspace: &mut Keyspace) -> Result<i64, WrongType> {
        let CountPermits { name, leases, channel } = &self.count;
        if let Some(known) = self.request.known(keyspace)? {
            return Ok(known);
        }
        let value = keyspace.number(name.as_str())?;
        let now = keyspace.now().0;
        keyspace.sorted_remove_until(leases, now)?;
        let mut free = i64::from(self.permits);
        if value.is_some() {
            free -= i64::try_from(keyspace.sorted(leases)?.len()).unwrap_or(i64::MAX);
        }
        keyspace.number_add(name.as_str(), free - value.unwrap_or(0))?;
        tell(keyspace, channel, free);
        self.request.remember(keyspace, 1);
        Ok(1)
    }
}

impl Operation for SetPermits {
    type Reply = ();

    fn name(&self) -> &'static str {
        "set permits"
    }

    fn form(&self) -> Form {
        Form::Script(&SET)
    }

    fn keys(&self) -> Vec<&str> {
        let mut keys = self.count.keys();
        keys.push(self.request.key());
        keys
    }

    fn arguments(&self, not_after: ServerTime) -> Vec<Argument<'_>> {
        vec![
            Argument::Number(not_after.0),
            Argument::Number(i64::from(self.permits)),
            self.request.remembered(),
            Argument::Publish,
        ]
    }

    fn decode(&self, value: Value) -> Result<(), Unexpected> {
        match value {
            Value::Integer(1) => Ok(()),
            other => Err(Unexpected(other)),
        }
    }

    fn apply(&self, keyspace: &mut Keyspace, not_after: ServerTime) -> Value {
        keyspace.late(not_after).unwrap_or_else(|| number(self.set(keyspace)))
    }
}

/// Gives a permit another lease.
#[derive(Clone, Debug)]
pub(crate) struct UpdateLease {
    leases: Arc<str>,
    id: PermitId,
    lease: Option<Lease>,
    request: Request,
}

impl UpdateLease {
    pub(crate) fn new(
        name: &LockName,
        id: PermitId,
        lease: Option<Lease>,
        request: Request,
    ) -> Self {
        Self { leases: name.permit_leases(), id, lease, request }
    }

    fn update(&self, keyspace: &mut Keyspace) -> Result<i64, WrongType> {
        if let Some(known) = self.request.known(keyspace)? {
            return Ok(known);
        }
        let (id, now) = (self.id.as_bytes(), keyspace.now().0);
        let taken = keyspace.sorted_score(&self.leases, id)?.is_some_and(|score| score > now);
        if taken {
            let ends = self.lease.map_or(NEVER, |lease| now.saturating_add(lease.in_millis()));
            keyspace.sorted_set(&self.leases, id, ends)?;
        }
        self.request.remember(keyspace, i64::from(taken));
        Ok(i64::from(taken))
    }
}

impl Operation for UpdateLease {
    /// Whether there is such a permit.
    type Reply = bool;

    fn name(&self) -> &'static str {
        "update a lease"
    }

    fn form(&self) -> Form {
        Form::Script(&LEASE)
    }

    fn keys(&self) -> Vec<&str> {
        vec![&self.leases, self.request.key()]
    }

    fn arguments(&self, not_after: ServerTime) -> Vec<Argument<'_>> {
        vec![
            Argument::Number(not_after.0),
            Argument::Bytes(self.id.as_bytes()),
            lease_argument(self.lease),
            self.request.remembered(),
        ]
    }

    fn decode(&self, value: Value) -> Result<bool, Unexpected> {
        match value {
            Value::Integer(taken @ (0 | 1)) => Ok(taken == 1),
            other => Err(Unexpected(other)),
        }
    }

    fn apply(&self, keyspace: &mut Keyspace, not_after: ServerTime) -> Value {
        keyspace.late(not_after).unwrap_or_else(|| number(self.update(keyspace)))
    }
}

/// Asks how long a permit is taken for: `None` if there is no such permit, `Duration::MAX` if it has no lease.
#[derive(Clone, Debug)]
pub(crate) struct LeaseOf {
    leases: Arc<str>,
    id: PermitId,
}

impl LeaseOf {
    pub(crate) fn new(name: &LockName, id: PermitId) -> Self {
        Self { leases: name.permit_leases(), id }
    }

    fn left(&self, keyspace: &mut Keyspace) -> Result<i64, WrongType> {
        let now = keyspace.now().0;
        Ok(match keyspace.sorted_score(&self.leases, self.id.as_bytes())? {
            Some(NEVER) => -1,
            Some(score) if score > now => score - now,
            Some(_) | None => -2,
        })
    }
}

impl Operation for LeaseOf {
    type Reply = Option<Duration>;

    fn name(&self) -> &'static str {
        "ask for a lease"
    }

    fn form(&self) -> Form {
        Form::Script(&LEASE_OF)
    }

    fn keys(&self) -> Vec<&str> {
        vec![&self.leases]
    }

    fn arguments(&self, _not_after: ServerTime) -> Vec<Argument<'_>> {
        vec![Argument::Bytes(self.id.as_bytes())]
    }

    fn decode(&self, value: Value) -> Result<Option<Duration>, Unexpected> {
        match value {
            Value::Integer(-2) => Ok(None),
            Value::Integer(-1) => Ok(Some(Duration::MAX)),
            Value::Integer(millis) => match u64::try_from(millis) {
                Ok(millis) => Ok(Some(Duration::from_millis(millis))),
                Err(_) => Err(Unexpected(value)),
            },
            other => Err(Unexpected(other)),
        }
    }

    fn apply(&self, keyspace: &mut Keyspace, _not_after: ServerTime) -> Value {
        number(self.left(keyspace))
    }
}

fn number(answer: Result<i64, WrongType>) -> Value {
    answer.map_or_else(|WrongType| Value::wrong_type(), Value::Integer)
}
