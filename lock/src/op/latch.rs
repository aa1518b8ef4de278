//! The operations of latches: set the count, count down, delete.
//!
//! They differ in what they do and answer alike, so they are one operation with three scripts.

use std::sync::Arc;

use super::operation::{Argument, Form, Operation, Script};
use super::request::Request;
use crate::keyspace::{Keyspace, WrongType};
use crate::name::{LockName, lies_apart};
use crate::value::{ServerTime, Unexpected, Value};

static SET: Script = Script::new(include_str!("latch_set.lua"));
static COUNT_DOWN: Script = Script::new(include_str!("latch_count_down.lua"));
static DELETE: Script = Script::new(include_str!("latch_delete.lua"));

/// Closes Redisson's gate.
const SHUT: &str = "1";
/// Opens it.
const OPEN: &str = "0";

/// Changes a latch.
#[derive(Clone, Debug)]
pub(crate) struct ChangeLatch {
    name: LockName,
    channel: Arc<str>,
    change: Change,
    request: Request,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Sets the count, unless there is one.
    Set(i64),
    CountDown,
    Delete,
}

impl ChangeLatch {
    pub(crate) fn new(name: LockName, change: Change, request: Request) -> Self {
        Self { channel: name.latch_channel(), name, change, request }
    }

    fn change(&self, keyspace: &mut Keyspace) -> Result<bool, WrongType> {
        if let Some(known) = self.request.known(keyspace)? {
            return Ok(known == 1);
        }
        let key = self.name.as_str();
        let count = keyspace.number(key)?;
        let changed = match self.change {
            Change::Set(count_to_be) => {
                if count.is_none() {
                    keyspace.text_set(key, count_to_be);
                    keyspace.publish(&self.channel, SHUT);
                }
                count.is_none()
            }
            Change::CountDown => {
                if count.is_some() && keyspace.number_add(key, -1)? <= 0 {
                    keyspace.delete(key);
                    keyspace.publish(&self.channel, OPEN);
                }
                count.is_some()
            }
            Change::Delete => {
                if keyspace.delete(key) {
                    keyspace.publish(&self.channel, OPEN);
                }
                count.is_some()
            }
        };
        self.request.remember(keyspace, i64::from(changed));
        Ok(changed)
    }
}

impl Operation for ChangeLatch {
    /// Whether anything changed.
    type Reply = bool;

    fn name(&self) -> &'static str {
        match self.change {
            Change::Set(_) => "set the count",
            Change::CountDown => "count down",
            Change::Delete => "delete",
        }
    }

    fn form(&self) -> Form {
        Form::Script(match self.change {
            Change::Set(_) => &SET,
            Change::CountDown => &COUNT_DOWN,
            Change::Delete => &DELETE,
        })
    }

    fn keys(&self) -> Vec<&str> {
        vec![self.name.as_str(), self.request.key()]
    }

    fn arguments(&self, not_after: ServerTime) -> Vec<Argument<'_>> {
        let mut arguments = vec![Argument::Number(not_after.0)];
        if let Change::Set(count) = self.change {
            arguments.push(Argument::Number(count));
        }
        let apart = lies_apart(&self.channel);
        let publish = if apart { Argument::Text("PUBLISH") } else { Argument::Publish };
        let channel = Argument::Text(&self.channel);
        arguments.extend([self.request.remembered(), publish, channel]);
        arguments
    }

    fn decode(&self, value: Value) -> Result<bool, Unexpected> {
        match value {
            Value::Integer(changed @ (0 | 1)) => Ok(changed == 1),
            other => Err(Unexpected(other)),
        }
    }

    fn apply(&self, keyspace: &mut Keyspace, not_after: ServerTime) -> Value {
        keyspace.late(not_after).unwrap_or_else(|| match self.change(keyspace) {
            Ok(changed) => Value::Integer(i64::from(changed)),
            Err(WrongType) => Value::wrong_type(),
        })
    }
}
