//! Queries, which change nothing: whether a lock is held and for how long, and plain numbers.

use std::time::Duration;

use crate::model::name::LockName;
use crate::ops::keyspace::{Keyspace, WrongType};
use crate::ops::operation::{Argument, Operation, Request};
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

/// Some of a server's keys that match a pattern.
#[derive(Clone, Debug)]
pub(crate) struct Scan {
    /// Where the last page ended; `0` at first.
    pub(crate) cursor: String,
    /// As of `SCAN`.
    pub(crate) pattern: String,
}

/// A page of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ScannedPage {
    /// Where the next page begins; `0` if this was the last.
    pub(crate) cursor: String,
    pub(crate) keys: Vec<String>,
}

/// About how many keys the server looks at for one page.
const PAGE: i64 = 250;

impl Operation for Scan {
    type Reply = ScannedPage;

    fn request(&self) -> Request<'_> {
        let mut request = Request::command("list the locks", "SCAN", &self.cursor);
        request.arguments = vec![
            Argument::Text("MATCH"),
            Argument::Text(&self.pattern),
            Argument::Text("COUNT"),
            Argument::Number(PAGE),
        ];
        request
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        let keys = keyspace.keys_like(&self.pattern).into_iter().map(Value::Text).collect();
        Ok(Value::Array(vec![Value::Text("0".to_owned()), Value::Array(keys)]))
    }
}

impl FromReply for ScannedPage {
    fn from_reply(value: Value) -> Result<Self, Unexpected> {
        if let Value::Array(parts) = &value
            && let [Value::Text(cursor), Value::Array(keys)] = parts.as_slice()
        {
            let text = |key: &Value| match key {
                Value::Text(text) => Some(text.clone()),
                _ => None,
            };
            if let Some(keys) = keys.iter().map(text).collect() {
                return Ok(Self { cursor: cursor.clone(), keys });
            }
        }
        Err(Unexpected(value))
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
