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
    /// How many subscribers its message has reached on this server, if it says so.
    pub(crate) receivers: Option<u32>,
}

/// What the release found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The owner's hold, which is ended now; or all permits.
    Own,
    /// The same, but its lease had ended before. Only a release of permits says so.
    Expired,
    /// Nothing; or a permit was missing, and none was released.
    Nothing,
    OtherOwner,
}

impl Found {
    /// Whether it ended a hold, or gave permits back.
    pub(crate) fn is_released(self) -> bool {
        matches!(self, Self::Own | Self::Expired)
    }
}

impl FromReply for Released {
    fn from_reply(value: Value) -> Result<Self, Unexpected> {
        if let Some([1, now, receivers]) = value.as_integers()
            && let Ok(receivers) = u64::try_from(receivers)
        {
            let receivers = Some(u32::try_from(receivers).unwrap_or(u32::MAX));
            return Ok(Self { found: Found::Own, at: ServerTime(now), receivers });
        }
        let (found, at) = match value.as_integers() {
            Some([1, now]) => (Found::Own, now),
            Some([2, now]) => (Found::Expired, now),
            Some([0, now]) => (Found::Nothing, now),
            Some([-1, now]) => (Found::OtherOwner, now),
            _ => return Err(Unexpected(value)),
        };
        Ok(Self { found, at: ServerTime(at), receivers: None })
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
    let with_receivers = || value.as_integers().map(|[_, now, _]| ServerTime(now));
    value.as_integers().map(|[_, now]| ServerTime(now)).or_else(with_receivers)
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
        if keyspace.hash_has(key, &self.owner.to_string()) == Ok(true) {
            keyspace.delete(key);
            let Some(channel) = &self.channel else { return Ok(with_time(1, keyspace)) };
            keyspace.publish(channel, UNLOCKED);
            // A keyspace does not know its subscribers. In memory the number is not used.
            let receivers = Value::Integer(1);
            return Ok(Value::Array(vec![
                Value::Integer(1),
                Value::Integer(keyspace.now().0),
                receivers,
            ]));
        }
        let answer = other_or_nothing(keyspace, key);
        Ok(with_time(answer, keyspace))
    }
}
