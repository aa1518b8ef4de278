//! Release: ends a hold, whatever its count, and tells the waiters.

use std::sync::Arc;

use super::operation::{Argument, Form, Operation, Script, UNLOCKED};
use crate::keyspace::Keyspace;
use crate::name::LockName;
use crate::owner::Owner;
use crate::value::{ServerTime, Unexpected, Value};

#[derive(Clone, Debug)]
pub(crate) struct Release {
    name: LockName,
    /// None of a lock whose waiters poll.
    channel: Option<Arc<str>>,
    owner: Owner,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Released {
    pub(crate) found: Found,
    /// When the server looked.
    pub(crate) at: ServerTime,
}

/// What the release found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The owner's hold. It is ended.
    Own,
    Nothing,
    SomebodyElses,
}

/// Reads what every release answers.
pub(super) fn read_released(value: Value) -> Result<Released, Unexpected> {
    match value {
        Value::Array(parts) => {
            let (found, at) = match parts.as_slice() {
                [Value::Integer(1), Value::Integer(now)] => (Found::Own, *now),
                [Value::Integer(0), Value::Integer(now)] => (Found::Nothing, *now),
                [Value::Integer(-1), Value::Integer(now)] => (Found::SomebodyElses, *now),
                _ => return Err(Unexpected(Value::Array(parts))),
            };
            Ok(Released { found, at: ServerTime(at) })
        }
        other => Err(Unexpected(other)),
    }
}

static SCRIPT: Script = Script::new(include_str!("release.lua"));

impl Release {
    pub(crate) fn new(name: LockName, owner: Owner) -> Self {
        Self { channel: Some(name.channel()), name, owner }
    }

    /// A release that nobody is told of.
    pub(crate) fn untold(name: LockName, owner: Owner) -> Self {
        Self { channel: None, name, owner }
    }
}

impl Operation for Release {
    type Reply = Released;

    fn name(&self) -> &'static str {
        "release"
    }

    fn form(&self) -> Form {
        Form::Script(&SCRIPT)
    }

    fn keys(&self) -> Vec<&str> {
        vec![self.name.as_str()]
    }

    fn arguments(&self, _not_after: ServerTime) -> Vec<Argument<'_>> {
        let words = [Argument::Owner(&self.owner), Argument::Text(UNLOCKED), Argument::Publish];
        let channel = self.channel.as_deref().map(Argument::Text);
        words.into_iter().chain(channel).collect()
    }

    fn decode(&self, value: Value) -> Result<Released, Unexpected> {
        read_released(value)
    }

    fn apply(&self, keyspace: &mut Keyspace, _not_after: ServerTime) -> Value {
        let key = self.name.as_str();
        let answer = if keyspace.hash_has(key, &self.owner.to_string()) == Ok(true) {
            keyspace.delete(key);
            if let Some(channel) = &self.channel {
                keyspace.publish(channel, UNLOCKED);
            }
            1
        } else if keyspace.exists(key) {
            -1
        } else {
            0
        };
        Value::Array(vec![Value::Integer(answer), Value::Integer(keyspace.now().0)])
    }
}
