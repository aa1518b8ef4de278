//! Queries, which change nothing: whether a lock is held and for how long, and plain numbers.

use std::time::Duration;

use crate::model::name::{LONGEST_NAME, LockName};
use crate::ops::keyspace::{Keyspace, WrongType};
use crate::ops::operation::{Argument, Operation, Request, Script, script};
use crate::ops::value::{FromReply, Unexpected, Value};

/// Queries whether any owner holds the lock.
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

/// Queries the remaining lease of the lock: `None` if the lock is free, `Duration::MAX` if the key
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

/// Lists a page of a server's keys matching a pattern, without keys unusable as names.
#[derive(Clone, Debug)]
pub(crate) struct Scan {
    /// Where the last page ended; `0` at first.
    pub(crate) cursor: String,
    /// The pattern, as for `SCAN`.
    pub(crate) pattern: String,
}

/// A page of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ScannedPage {
    /// Where the next page begins; `0` after the last page.
    pub(crate) cursor: String,
    pub(crate) keys: Vec<String>,
}

/// The approximate number of keys that the server inspects for a page.
const PAGE: i64 = 250;

/// The maximum length of all names of a page, in bytes: half of the largest reply.
const LARGEST_PAGE: i64 = 512 * 1024;

/// Lists a page of keys.
static SCAN: Script = script!("scan");

impl Operation for Scan {
    type Reply = ScannedPage;

    fn request(&self) -> Request<'_> {
        let longest = i64::try_from(LONGEST_NAME).unwrap_or(i64::MAX);
        let arguments = vec![
            Argument::Text(&self.cursor),
            Argument::Text(&self.pattern),
            Argument::Number(PAGE),
            Argument::Number(longest),
            Argument::Number(LARGEST_PAGE),
        ];
        Request::script("list the locks", &SCAN, Vec::new(), arguments)
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        let mut keys = keyspace.keys_like(&self.pattern);
        keys.retain(|key| (1..=LONGEST_NAME).contains(&key.len()));
        let keys = keys.into_iter().map(Value::Text).collect();
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

/// The index of the last character that is read of a number.
const LONGEST_NUMBER: i64 = 31;

/// Queries the number under a key, zero without the key: free permits, or a latch's count.
#[derive(Clone, Debug)]
pub(crate) struct Number(pub(crate) LockName);

impl FromReply for Option<i64> {
    fn from_reply(value: Value) -> Result<Self, Unexpected> {
        match value {
            Value::Text(text) if text.is_empty() => Ok(Some(0)),
            Value::Text(text) => Ok(text.parse().ok()),
            other => Err(Unexpected(other)),
        }
    }
}

impl Operation for Number {
    /// `None` if the value is not a number.
    type Reply = Option<i64>;

    fn request(&self) -> Request<'_> {
        let mut request = Request::command("ask for the number", "GETRANGE", self.0.as_str());
        // A number has fewer characters. Another program's text may have any length.
        request.arguments = vec![Argument::Number(0), Argument::Number(LONGEST_NUMBER)];
        request
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        Ok(Value::Text(keyspace.text_get(self.0.as_str())?.unwrap_or_default()))
    }
}
