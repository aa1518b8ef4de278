//! Acquire: takes a free lock for a new owner, or says how long it is busy.

use std::time::Duration;

use super::operation::{Argument, Form, Operation, Script};
use crate::keyspace::Keyspace;
use crate::lease::Lease;
use crate::name::LockName;
use crate::owner::Owner;
use crate::value::{ServerTime, Unexpected, Value};

#[derive(Clone, Debug)]
pub(crate) struct Acquire {
    pub(crate) name: LockName,
    pub(crate) owner: Owner,
    pub(crate) lease: Lease,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acquired {
    Granted,
    /// With a fencing token.
    Fenced(u64),
    /// Somebody else holds it, for this long unless it is renewed; `None` if its key has no expiry.
    Busy(Option<Duration>),
}

impl Acquired {
    pub(super) fn is_granted(self) -> bool {
        !matches!(self, Self::Busy(_))
    }
}

/// Reads a time to live.
pub(super) fn busy(millis: i64) -> Acquired {
    Acquired::Busy(u64::try_from(millis).ok().map(Duration::from_millis))
}

/// Reads nil, or a time to sleep.
pub(super) fn read_acquired(value: Value) -> Result<Acquired, Unexpected> {
    match value {
        Value::Nil => Ok(Acquired::Granted),
        Value::Integer(millis) => Ok(busy(millis)),
        other => Err(Unexpected(other)),
    }
}

static SCRIPT: Script = Script::new(include_str!("acquire.lua"));

impl Operation for Acquire {
    type Reply = Acquired;

    fn name(&self) -> &'static str {
        "acquire"
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
            Argument::millis(self.lease.millis()),
        ]
    }

    fn decode(&self, value: Value) -> Result<Acquired, Unexpected> {
        read_acquired(value)
    }

    fn apply(&self, keyspace: &mut Keyspace, not_after: ServerTime) -> Value {
        if let Some(late) = keyspace.late(not_after) {
            return late;
        }
        let (key, owner) = (self.name.as_str(), self.owner.to_string());
        match keyspace.hash_has(key, &owner) {
            Err(_) => return Value::wrong_type(),
            Ok(false) if keyspace.exists(key) => return Value::Integer(keyspace.time_to_live(key)),
            Ok(_) => {}
        }
        if keyspace.hash_set(key, &owner, 1).is_err() {
            return Value::wrong_type();
        }
        let lease = i64::try_from(self.lease.millis()).unwrap_or(i64::MAX);
        keyspace.prolong(key, lease);
        Value::Nil
    }

    fn may_grant(&self) -> bool {
        true
    }

    fn grants(&self, value: &Value) -> bool {
        self.decode(value.clone()).is_ok_and(Acquired::is_granted)
    }
}
