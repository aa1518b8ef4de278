//! Release: ends a hold whatever its count, and wakes the waiters.

use std::sync::Arc;

use crate::model::name::LockName;
use crate::model::owner::Owner;
use crate::ops::keyspace::{Keyspace, WrongType};
use crate::ops::operation::{Argument, Operation, Request, Script, UNLOCKED};
use crate::ops::value::{FromReply, ServerTime, Unexpected, Value};

#[derive(Clone, Debug)]
pub(crate) struct Release {
    name: LockName,
    /// `None` for a lock whose waiters poll.
    channel: Option<Arc<str>>,
    owner: Owner,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Released {
    pub(crate) found: Found,
    /// The server's time of the release.
    pub(crate) at: ServerTime,
}

/// What the release found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The owner's hold, which is ended now.
    Own,
    Nothing,
    OtherOwner,
}

impl FromReply for Released {
    fn from_reply(value: Value) -> Result<Self, Unexpected> {
        let (found, at) = match value.as_integers() {
            Some([1, now]) => (Found::Own, now),
            Some([0, now]) => (Found::Nothing, now),
            Some([-1, now]) => (Found::OtherOwner, now),
            _ => return Err(Unexpected(value)),
        };
        Ok(Self { found, at: ServerTime(at) })
    }

    fn server_time(value: &Value) -> Option<ServerTime> {
        released_at(value)
    }
}

/// The reply of every kind's release, in memory: what it found, and the time.
pub(crate) fn with_time(answer: i64, keyspace: &Keyspace) -> Value {
    Value::Array(vec![Value::Integer(answer), Value::Integer(keyspace.now().0)])
}

/// The first part of that reply if the owner has no hold: minus one if another owner has one.
pub(crate) fn other_or_nothing(keyspace: &mut Keyspace, key: &str) -> i64 {
    -i64::from(keyspace.exists(key))
}

/// The server's time in the reply of every kind's release.
pub(crate) fn released_at(value: &Value) -> Option<ServerTime> {
    value.as_integers().map(|[_, now]| ServerTime(now))
}

static SCRIPT: Script = Script::new(include_str!("scripts/release.lua"));

impl Release {
    pub(crate) fn new(name: LockName, owner: Owner) -> Self {
        Self { channel: Some(name.channel()), name, owner }
    }

    /// A release without a message.
    pub(crate) fn without_message(name: LockName, owner: Owner) -> Self {
        Self { channel: None, name, owner }
    }
}

impl Operation for Release {
    type Reply = Released;

    fn request(&self) -> Request<'_> {
        let words = [Argument::Owner(&self.owner), Argument::Text(UNLOCKED), Argument::Publish];
        let channel = self.channel.as_deref().map(Argument::Text);
        let arguments = words.into_iter().chain(channel).collect();
        Request::script("release", &SCRIPT, vec![self.name.as_str()], arguments)
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        let key = self.name.as_str();
        let answer = if keyspace.hash_has(key, &self.owner.to_string()) == Ok(true) {
            keyspace.delete(key);
            if let Some(channel) = &self.channel {
                keyspace.publish(channel, UNLOCKED);
            }
            1
        } else {
            other_or_nothing(keyspace, key)
        };
        Ok(with_time(answer, keyspace))
    }
}
