//! Force release: ends whatever holds the lock.

use std::sync::Arc;

use super::operation::{Argument, Form, Operation, Script, UNLOCKED};
use super::request::Request;
use crate::keyspace::{Keyspace, WrongType};
use crate::name::LockName;
use crate::value::{ServerTime, Unexpected, Value};

#[derive(Clone, Debug)]
pub(crate) struct ForceRelease {
    name: LockName,
    channel: Arc<str>,
    request: Request,
}

static SCRIPT: Script = Script::new(include_str!("force_release.lua"));

impl ForceRelease {
    pub(crate) fn new(name: LockName, request: Request) -> Self {
        Self { channel: name.channel(), name, request }
    }
}

impl Operation for ForceRelease {
    /// Whether there was something.
    type Reply = bool;

    fn name(&self) -> &'static str {
        "force release"
    }

    fn form(&self) -> Form {
        Form::Script(&SCRIPT)
    }

    fn keys(&self) -> Vec<&str> {
        vec![self.name.as_str(), &self.channel, self.request.key()]
    }

    fn arguments(&self, not_after: ServerTime) -> Vec<Argument<'_>> {
        vec![
            Argument::Number(not_after.0),
            Argument::Text(UNLOCKED),
            Argument::Publish,
            self.request.remembered(),
        ]
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
        match self.request.known(keyspace) {
            Err(WrongType) => return Value::wrong_type(),
            Ok(Some(known)) => return Value::Integer(known),
            Ok(None) => {}
        }
        if keyspace.hash_has(self.name.as_str(), "").is_err() {
            return Value::wrong_type();
        }
        let ended = keyspace.delete(self.name.as_str());
        self.request.remember(keyspace, i64::from(ended));
        if ended {
            keyspace.publish(&self.channel, UNLOCKED);
        }
        Value::Integer(i64::from(ended))
    }
}
