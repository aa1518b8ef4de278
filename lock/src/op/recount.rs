//! Recount: writes the count of a hold that is there, when it is nested or a nested guard is released.

use super::operation::{Argument, Form, Operation, Script};
use crate::keyspace::Keyspace;
use crate::lease::Lease;
use crate::name::LockName;
use crate::owner::Owner;
use crate::value::{ServerTime, Unexpected, Value};

#[derive(Clone, Debug)]
pub(crate) struct Recount {
    pub(crate) name: LockName,
    pub(crate) owner: Owner,
    pub(crate) count: u32,
    /// The lease of a hold that was nested; none when a nested guard is released.
    pub(crate) lease: Option<Lease>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recounted {
    Written,
    /// The hold is gone from the server.
    Gone,
}

static SCRIPT: Script = Script::new(include_str!("recount.lua"));

impl Recount {
    fn lease_millis(&self) -> u64 {
        self.lease.map_or(0, Lease::millis)
    }

    /// What the script does to a field in memory.
    pub(super) fn apply_to(
        &self,
        field: &str,
        keyspace: &mut Keyspace,
        not_after: ServerTime,
    ) -> Value {
        if let Some(late) = keyspace.late(not_after) {
            return late;
        }
        let key = self.name.as_str();
        match keyspace.hash_has(key, field) {
            Err(_) => Value::wrong_type(),
            Ok(false) => Value::Integer(0),
            Ok(true) => {
                let lease = i64::try_from(self.lease_millis()).unwrap_or(i64::MAX);
                keyspace.prolong(key, lease);
                match keyspace.hash_set(key, field, u64::from(self.count)) {
                    Ok(()) => Value::Integer(1),
                    Err(_) => Value::wrong_type(),
                }
            }
        }
    }
}

impl Operation for Recount {
    type Reply = Recounted;

    fn name(&self) -> &'static str {
        "recount"
    }

    fn form(&self) -> Form {
        Form::Script(&SCRIPT)
    }

    fn keys(&self) -> Vec<&str> {
        vec![self.name.as_str()]
    }

    fn arguments(&self, not_after: ServerTime) -> Vec<Argument<'_>> {
        vec![
            Argument::Number(not_after.0),
            Argument::Owner(&self.owner),
            Argument::Number(i64::from(self.count)),
            Argument::millis(self.lease_millis()),
        ]
    }

    fn decode(&self, value: Value) -> Result<Recounted, Unexpected> {
        recounted(value)
    }

    fn apply(&self, keyspace: &mut Keyspace, not_after: ServerTime) -> Value {
        self.apply_to(&self.owner.to_string(), keyspace, not_after)
    }
}

/// Reads an answer that is yes or no.
pub(super) fn recounted(value: Value) -> Result<Recounted, Unexpected> {
    match value {
        Value::Integer(1) => Ok(Recounted::Written),
        Value::Integer(0) => Ok(Recounted::Gone),
        other => Err(Unexpected(other)),
    }
}
