//! The simple lock: its key holds the owner as a text.

use crate::model::lease::Lease;
use crate::model::name::LockName;
use crate::model::owner::Owner;
use crate::ops::acquire::{Acquired, busy};
use crate::ops::keyspace::{Keyspace, WrongType};
use crate::ops::operation::{Argument, Operation, Request, Script};
use crate::ops::release::{Released, read_released, released_at, with_time};
use crate::ops::request::RequestId;
use crate::ops::value::{ServerTime, Unexpected, Value};

static ACQUIRE: Script = Script::new(include_str!("scripts/simple_acquire.lua"));
static RELEASE: Script = Script::new(include_str!("scripts/simple_release.lua"));
static FORCE_RELEASE: Script = Script::new(include_str!("scripts/simple_force_release.lua"));

/// Takes a free lock for a new owner.
#[derive(Clone, Debug)]
pub(crate) struct SimpleAcquire {
    pub(crate) name: LockName,
    pub(crate) owner: Owner,
    pub(crate) lease: Lease,
}

impl SimpleAcquire {
    fn take(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        let (key, owner) = (self.name.as_str(), self.owner.to_string());
        if keyspace.text_get(key)?.is_some_and(|found| found != owner) {
            return Ok(Value::Integer(keyspace.time_to_live(key)));
        }
        let longest = keyspace.time_to_live(key).max(self.lease.millis_i64());
        keyspace.text_set(key, owner);
        keyspace.expire(key, longest);
        Ok(Value::Nil)
    }
}

impl Operation for SimpleAcquire {
    type Reply = Acquired;

    fn request(&self) -> Request<'_> {
        Request::script(
            "acquire",
            &ACQUIRE,
            vec![self.name.as_str()],
            vec![
                Argument::NotAfter,
                Argument::Owner(&self.owner),
                Argument::Number(self.lease.millis_i64()),
            ],
        )
    }

    fn decode(&self, value: Value) -> Result<Acquired, Unexpected> {
        match value {
            Value::Nil => Ok(Acquired::Granted),
            Value::Integer(millis) => Ok(busy(millis)),
            other => Err(Unexpected(other)),
        }
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        self.take(keyspace)
    }

    fn may_grant(&self) -> bool {
        true
    }

    fn grants(&self, value: &Value) -> bool {
        self.decode(value.clone()).is_ok_and(Acquired::is_granted)
    }
}

/// Ends a hold.
#[derive(Clone, Debug)]
pub(crate) struct SimpleRelease {
    pub(crate) name: LockName,
    pub(crate) owner: Owner,
}

impl Operation for SimpleRelease {
    type Reply = Released;

    fn request(&self) -> Request<'_> {
        Request::script(
            "release",
            &RELEASE,
            vec![self.name.as_str()],
            vec![Argument::Owner(&self.owner)],
        )
    }

    fn decode(&self, value: Value) -> Result<Released, Unexpected> {
        read_released(value)
    }

    fn server_time(&self, value: &Value) -> Option<ServerTime> {
        released_at(value)
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        let key = self.name.as_str();
        let answer = if keyspace.text_get(key) == Ok(Some(self.owner.to_string())) {
            keyspace.delete(key);
            1
        } else if keyspace.exists(key) {
            -1
        } else {
            0
        };
        Ok(with_time(answer, keyspace))
    }
}

/// Ends any hold of the lock.
#[derive(Clone, Debug)]
pub(crate) struct SimpleForceRelease {
    pub(crate) name: LockName,
    pub(crate) request: RequestId,
}

impl Operation for SimpleForceRelease {
    /// Whether there was a hold.
    type Reply = bool;

    fn request(&self) -> Request<'_> {
        Request::script(
            "force release",
            &FORCE_RELEASE,
            vec![self.name.as_str(), self.request.key()],
            vec![Argument::NotAfter, self.request.number(), self.request.dedup_ttl()],
        )
    }

    fn decode(&self, value: Value) -> Result<bool, Unexpected> {
        value.into_bool()
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        let key = self.name.as_str();
        self.request.once(keyspace, |keyspace| {
            keyspace.text_get(key)?;
            Ok(i64::from(keyspace.delete(key)))
        })
    }
}
