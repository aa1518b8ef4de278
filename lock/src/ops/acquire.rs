//! Acquire: takes a free lock for a new owner, or says how long it is busy.

use std::time::Duration;

use crate::model::lease::Lease;
use crate::model::name::LockName;
use crate::model::owner::Owner;
use crate::ops::keyspace::{Keyspace, WrongType};
use crate::ops::operation::{Argument, Operation, Request, Script};
use crate::ops::value::{FromReply, Unexpected, Value};

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
    /// Another owner holds it, for this long unless it is renewed; `None` if its key has no expiry.
    Busy(Option<Duration>),
}

impl Acquired {
    pub(crate) fn is_granted(self) -> bool {
        !matches!(self, Self::Busy(_))
    }

    /// Reads a time to live, or a time to sleep.
    pub(crate) fn busy(millis: i64) -> Self {
        Self::Busy(u64::try_from(millis).ok().map(Duration::from_millis))
    }
}

impl FromReply for Acquired {
    const MAY_GRANT: bool = true;

    fn from_reply(value: Value) -> Result<Self, Unexpected> {
        match value {
            Value::Nil => Ok(Self::Granted),
            Value::Integer(millis) => Ok(Self::busy(millis)),
            other => Err(Unexpected(other)),
        }
    }

    fn grants(&self) -> bool {
        self.is_granted()
    }
}

static SCRIPT: Script = Script::new(include_str!("scripts/acquire.lua"));

impl Operation for Acquire {
    type Reply = Acquired;

    fn request(&self) -> Request<'_> {
        Request::script(
            "acquire",
            &SCRIPT,
            vec![self.name.as_str()],
            vec![
                Argument::NotAfter,
                Argument::Owner(&self.owner),
                Argument::millis(self.lease.millis()),
            ],
        )
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        let (key, owner) = (self.name.as_str(), self.owner.to_string());
        if !keyspace.hash_has(key, &owner)? && keyspace.exists(key) {
            return Ok(Value::Integer(keyspace.time_to_live(key)));
        }
        keyspace.hash_set(key, &owner, 1)?;
        keyspace.prolong(key, self.lease.millis_i64());
        Ok(Value::Nil)
    }
}
