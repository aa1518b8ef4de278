//! The questions that change nothing: is it locked, and for how long; what number is there.

use std::time::Duration;

use super::operation::{Argument, Form, Operation};
use crate::keyspace::Keyspace;
use crate::name::LockName;
use crate::value::{ServerTime, Unexpected, Value};

/// Whether anybody holds the lock.
#[derive(Clone, Debug)]
pub(crate) struct Exists(pub(crate) LockName);

impl Operation for Exists {
    type Reply = bool;

    fn name(&self) -> &'static str {
        "is locked"
    }

    fn form(&self) -> Form {
        Form::Command("EXISTS")
    }

    fn keys(&self) -> Vec<&str> {
        vec![self.0.as_str()]
    }

    fn arguments(&self, _not_after: ServerTime) -> Vec<Argument<'_>> {
        Vec::new()
    }

    fn decode(&self, value: Value) -> Result<bool, Unexpected> {
        match value {
            Value::Integer(found @ (0 | 1)) => Ok(found == 1),
            other => Err(Unexpected(other)),
        }
    }

    fn apply(&self, keyspace: &mut Keyspace, _not_after: ServerTime) -> Value {
        Value::Integer(i64::from(keyspace.exists(self.0.as_str())))
    }
}

/// How long the lock is held unless it is renewed: `None` if nobody holds it, `Duration::MAX` if its key has no expiry.
#[derive(Clone, Debug)]
pub(crate) struct TimeToLive(pub(crate) LockName);

impl Operation for TimeToLive {
    type Reply = Option<Duration>;

    fn name(&self) -> &'static str {
        "remaining lease"
    }

    fn form(&self) -> Form {
        Form::Command("PTTL")
    }

    fn keys(&self) -> Vec<&str> {
        vec![self.0.as_str()]
    }

    fn arguments(&self, _not_after: ServerTime) -> Vec<Argument<'_>> {
        Vec::new()
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
        Value::Integer(keyspace.time_to_live(self.0.as_str()))
    }
}

/// The number under a key, zero if there is none: permits that are free, or a latch's count.
#[derive(Clone, Debug)]
pub(crate) struct Number(pub(crate) LockName);

impl Operation for Number {
    /// `None` if what is there is no number.
    type Reply = Option<i64>;

    fn name(&self) -> &'static str {
        "ask for the number"
    }

    fn form(&self) -> Form {
        Form::Command("GET")
    }

    fn keys(&self) -> Vec<&str> {
        vec![self.0.as_str()]
    }

    fn arguments(&self, _not_after: ServerTime) -> Vec<Argument<'_>> {
        Vec::new()
    }

    fn decode(&self, value: Value) -> Result<Option<i64>, Unexpected> {
        match value {
            Value::Nil => Ok(Some(0)),
            Value::Text(text) => Ok(text.parse().ok()),
            other => Err(Unexpected(other)),
        }
    }

    fn apply(&self, keyspace: &mut Keyspace, _not_after: ServerTime) -> Value {
        match keyspace.text_get(self.0.as_str()) {
            Ok(text) => text.map_or(Value::Nil, Value::Text),
            Err(_) => Value::wrong_type(),
        }
    }
}
