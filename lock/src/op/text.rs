//! What a simple lock asks: its key is a text, the owner.

use super::acquire::{Acquired, busy};
use super::operation::{Argument, Form, Operation, Script};
use super::release::{Released, read_released};
use super::request::Request;
use crate::keyspace::{Keyspace, WrongType};
use crate::lease::Lease;
use crate::name::LockName;
use crate::owner::Owner;
use crate::value::{ServerTime, Unexpected, Value};

static ACQUIRE: Script = Script::new(include_str!("text_acquire.lua"));
static RELEASE: Script = Script::new(include_str!("text_release.lua"));
static FORCE_RELEASE: Script = Script::new(include_str!("text_force_release.lua"));

/// Takes a free lock for a new owner.
#[derive(Clone, Debug)]
pub(crate) struct TextAcquire {
    pub(crate) name: LockName,
    pub(crate) owner: Owner,
    pub(crate) lease: Lease,
}

impl TextAcquire {
    fn take(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        let (key, owner) = (self.name.as_str(), self.owner.to_string());
        if keyspace.text_get(key)?.is_some_and(|found| found != owner) {
            return Ok(Value::Integer(keyspace.time_to_live(key)));
        }
        let longest = keyspace.time_to_live(key).max(self.lease.in_millis());
        keyspace.text_set(key, owner);
        keyspace.expire(key, longest);
        Ok(Value::Nil)
    }
}

impl Operation for TextAcquire {
    type Reply = Acquired;

    fn name(&self) -> &'static str {
        "acquire"
    }

    fn form(&self) -> Form {
        Form::Script(&ACQUIRE)
    }

    fn keys(&self) -> Vec<&str> {
        vec![self.name.as_str()]
    }

    fn arguments(&self, not_after: ServerTime) -> Vec<Argument<'_>> {
        vec![
            Argument::Number(not_after.0),
            Argument::Owner(&self.owner),
            Argument::Number(self.lease.in_millis()),
        ]
    }

    fn decode(&self, value: Value) -> Result<Acquired, Unexpected> {
        match value {
            Value::Nil => Ok(Acquired::Granted),
            Value::Integer(millis) => Ok(busy(millis)),
            other => Err(Unexpected(other)),
        }
    }

    fn apply(&self, keyspace: &mut Keyspace, not_after: ServerTime) -> Value {
        if let Some(late) = keyspace.late(not_after) {
            return late;
        }
        self.take(keyspace).unwrap_or_else(|WrongType| Value::wrong_type())
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
pub(crate) struct TextRelease {
    pub(crate) name: LockName,
    pub(crate) owner: Owner,
}

impl Operation for TextRelease {
    type Reply = Released;

    fn name(&self) -> &'static str {
        "release"
    }

    fn form(&self) -> Form {
        Form::Script(&RELEASE)
    }

    fn keys(&self) -> Vec<&str> {
        vec![self.name.as_str()]
    }

    fn arguments(&self, _not_after: ServerTime) -> Vec<Argument<'_>> {
        vec![Argument::Owner(&self.owner)]
    }

    fn decode(&self, value: Value) -> Result<Released, Unexpected> {
        read_released(value)
    }

    fn apply(&self, keyspace: &mut Keyspace, _not_after: ServerTime) -> Value {
        let key = self.name.as_str();
        let answer = if keyspace.text_get(key) == Ok(Some(self.owner.to_string())) {
            keyspace.delete(key);
            1
        } else if keyspace.exists(key) {
            -1
        } else {
            0
        };
        Value::Array(vec![Value::Integer(answer), Value::Integer(keyspace.now().0)])
    }
}

/// Ends whatever holds the lock.
#[derive(Clone, Debug)]
pub(crate) struct TextForceRelease {
    pub(crate) name: LockName,
    pub(crate) request: Request,
}

impl Operation for TextForceRelease {
    /// Whether there was something.
    type Reply = bool;

    fn name(&self) -> &'static str {
        "force release"
    }

    fn form(&self) -> Form {
        Form::Script(&FORCE_RELEASE)
    }

    fn keys(&self) -> Vec<&str> {
        vec![self.name.as_str(), self.request.key()]
    }

    fn arguments(&self, not_after: ServerTime) -> Vec<Argument<'_>> {
        vec![Argument::Number(not_after.0), self.request.remembered()]
    }

    fn decode(&self, value: Value) -> Result<bool, Unexpected> {
        match value {
            Value::Integer(ended @ (0 | 1)) => Ok(ended == 1),
            other => Err(Unexpected(other)),
        }
    }

    fn apply(&self, keyspace: &mut Keyspace, not_after: ServerTime) -> Value {
        if let Some(late) = keyspace.late(not_after) {
            return late;
        }
        let key = self.name.as_str();
        match self.request.known(keyspace) {
            Err(WrongType) => return Value::wrong_type(),
            Ok(Some(known)) => return Value::Integer(known),
            Ok(None) => {}
        }
        if keyspace.text_get(key).is_err() {
            return Value::wrong_type();
        }
        let ended = i64::from(keyspace.delete(key));
        self.request.remember(keyspace, ended);
        Value::Integer(ended)
    }
}
