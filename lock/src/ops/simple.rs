//! The simple lock: its key holds the owner as a text.

use crate::model::lease::Lease;
use crate::model::name::LockName;
use crate::model::owner::Owner;
use crate::ops::acquire::Acquired;
use crate::ops::keyspace::{Keyspace, WrongType};
use crate::ops::operation::{Argument, Operation, Request, Script};
use crate::ops::release::{Released, other_or_nothing, with_time};
use crate::ops::request::RequestId;
use crate::ops::value::Value;

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

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
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

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        let key = self.name.as_str();
        let answer = if keyspace.text_get(key) == Ok(Some(self.owner.to_string())) {
            keyspace.delete(key);
            1
        } else {
            other_or_nothing(keyspace, key)
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

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        let key = self.name.as_str();
        self.request.once(keyspace, |keyspace| {
            keyspace.text_get(key)?;
            Ok(i64::from(keyspace.delete(key)))
        })
    }
}
