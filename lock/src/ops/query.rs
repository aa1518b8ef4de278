//! Queries, which change nothing: whether a lock is held and for how long, and plain numbers.

use std::time::Duration;

use crate::model::name::LockName;
use crate::ops::keyspace::{Keyspace, WrongType};
use crate::ops::operation::{Operation, Request};
use crate::ops::value::{FromReply, Unexpected, Value};

/// Whether the lock is held by any owner.
#[derive(Clone, Debug)]
pub(crate) struct Exists(pub(crate) LockName);

impl Operation for Exists {
    type Reply = bool;

    fn request(&self) -> Request<'_> {
        Request::command("is locked", "EXISTS", self.0.as_str())
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        Ok(Value::Integer(i64::from(keyspace.exists(self.0.as_str()))))
    }
}

/// How long the lock is held unless it is renewed: `None` if it is free, `Duration::MAX` if its key
/// has no expiry.
#[derive(Clone, Debug)]
pub(crate) struct TimeToLive(pub(crate) LockName);

impl Operation for TimeToLive {
    type Reply = Option<Duration>;

    fn request(&self) -> Request<'_> {
        Request::command("remaining lease", "PTTL", self.0.as_str())
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        Ok(Value::Integer(keyspace.time_to_live(self.0.as_str())))
    }
}

/// The number under a key, zero if there is none: free permits, or a latch's count.
#[derive(Clone, Debug)]
pub(crate) struct Number(pub(crate) LockName);

impl FromReply for Option<i64> {
    fn from_reply(value: Value) -> Result<Self, Unexpected> {
        match value {
            Value::Nil => Ok(Some(0)),
            Value::Text(text) => Ok(text.parse().ok()),
            other => Err(Unexpected(other)),
        }
    }
}

impl Operation for Number {
    /// `None` if the value is not a number.
    type Reply = Option<i64>;

    fn request(&self) -> Request<'_> {
        Request::command("ask for the number", "GET", self.0.as_str())
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        Ok(keyspace.text_get(self.0.as_str())?.map_or(Value::Nil, Value::Text))
    }
}
