//! A server's replies, independent of any client library.

use std::time::Duration;

/// A time of the server's wall clock, in milliseconds since the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ServerTime(pub(crate) i64);

/// A reply, or a part of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Nil,
    Integer(i64),
    Text(String),
    Array(Vec<Value>),
    /// An error reply: the first word and the rest.
    Refusal {
        code: String,
        message: String,
    },
}

/// A reply that no version of the operation gives: the reply of another script, or not from Redis.
#[derive(Clone, Debug)]
pub(crate) struct Unexpected(pub(crate) Value);

/// A value decoded from a reply.
pub(crate) trait FromReply: Sized {
    /// Decodes the reply. `LATE` and refusals are handled before.
    fn from_reply(value: Value) -> Result<Self, Unexpected>;

    /// Returns the server's time in the reply; `None` if the reply has no time.
    fn server_time(_value: &Value) -> Option<ServerTime> {
        None
    }
}

impl FromReply for Value {
    fn from_reply(value: Value) -> Result<Self, Unexpected> {
        Ok(value)
    }
}

/// Decodes 1, the reply of an operation without a result.
impl FromReply for () {
    fn from_reply(value: Value) -> Result<Self, Unexpected> {
        match value {
            Value::Integer(1) => Ok(()),
            other => Err(Unexpected(other)),
        }
    }
}

/// Decodes 1 as `true` and 0 as `false`.
impl FromReply for bool {
    fn from_reply(value: Value) -> Result<Self, Unexpected> {
        match value {
            Value::Integer(answer @ (0 | 1)) => Ok(answer == 1),
            other => Err(Unexpected(other)),
        }
    }
}

impl FromReply for i64 {
    fn from_reply(value: Value) -> Result<Self, Unexpected> {
        match value {
            Value::Integer(number) => Ok(number),
            other => Err(Unexpected(other)),
        }
    }
}

/// A time to live in milliseconds: `None` for -2, without a key, and the longest duration for -1,
/// without an expiry.
impl FromReply for Option<Duration> {
    fn from_reply(value: Value) -> Result<Self, Unexpected> {
        match value {
            Value::Integer(-2) => Ok(None),
            Value::Integer(-1) => Ok(Some(Duration::MAX)),
            Value::Integer(millis @ 0..) => Ok(Some(Duration::from_millis(millis.unsigned_abs()))),
            other => Err(Unexpected(other)),
        }
    }
}

/// The first word of a script's reply when the script ran after its not-after.
const LATE: &str = "LATE";

/// The first word of a script's reply when the server refused the message to waiters. The reason
/// and the actual reply follow.
const MESSAGE_REFUSED: &str = "UNTOLD";

impl Value {
    /// Makes the reply of a script that arrived after its not-after and did nothing. The sender
    /// corrects its estimate of the clock by the server's time.
    pub(crate) fn late(now: ServerTime) -> Self {
        Self::Array(vec![Self::Text(LATE.to_owned()), Self::Integer(now.0)])
    }

    /// Returns the server's time in a reply made by [`late`](Self::late); `None` for any other
    /// reply.
    pub(crate) fn as_late(&self) -> Option<ServerTime> {
        match self {
            Self::Array(parts) => match parts.as_slice() {
                [Self::Text(word), Self::Integer(now)] if word == LATE => Some(ServerTime(*now)),
                _ => None,
            },
            _ => None,
        }
    }

    /// Splits a script's reply into the actual reply and the reason why the server refused the
    /// message to wake waiters, if any.
    pub(crate) fn without_untold(self) -> (Self, Option<String>) {
        let Self::Array(parts) = &self else { return (self, None) };
        match parts.as_slice() {
            [Self::Text(word), Self::Text(why), reply @ ..] if word == MESSAGE_REFUSED => {
                (reply.first().cloned().unwrap_or(Self::Nil), Some(why.clone()))
            }
            _ => (self, None),
        }
    }

    /// Returns the integers of an array of exactly `N` integers; `None` for any other reply.
    pub(crate) fn as_integers<const N: usize>(&self) -> Option<[i64; N]> {
        let Self::Array(parts) = self else { return None };
        let mut integers = [0; N];
        if parts.len() != N {
            return None;
        }
        for (integer, part) in integers.iter_mut().zip(parts) {
            let Self::Integer(value) = part else { return None };
            *integer = *value;
        }
        Some(integers)
    }

    /// Makes the refusal of a request because key number `key`, counted from 1, has another type.
    pub(crate) fn wrong_type(key: usize) -> Self {
        Self::Refusal {
            code: "WRONGTYPE".to_owned(),
            message: format!(
                "Operation against a key holding the wrong kind of value: KEYS[{key}]"
            ),
        }
    }
}
