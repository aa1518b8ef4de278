//! The operations of latches: set the count, count down, delete.
//!
//! The three take the same arguments and give the same reply, so they are one operation with three
//! scripts.

use std::sync::Arc;

use crate::model::name::{LockName, is_in_other_hash_slot};
use crate::ops::keyspace::{Keyspace, WrongType};
use crate::ops::operation::{Argument, Operation, Request, Script, script};
use crate::ops::request::RequestId;
use crate::ops::value::Value;

/// Sets the count of a latch without a count.
static SET: Script = script!("latch_set");
/// Counts a latch down.
static COUNT_DOWN: Script = script!("latch_count_down");
/// Deletes a latch.
static DELETE: Script = script!("latch_delete");

/// The message to Redisson's clients that a latch is closed.
const CLOSED: &str = "1";
/// The message to Redisson's clients that a latch is open, which wakes the waiters.
const OPEN: &str = "0";

/// Changes a latch.
#[derive(Clone, Debug)]
pub(crate) struct ChangeLatch {
    name: LockName,
    channel: Arc<str>,
    change: Change,
    request: RequestId,
}

/// A change of a latch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Sets the count, unless the latch has a count.
    Set(i64),
    /// Subtracts one from the count. At zero the latch is deleted, and so open.
    CountDown,
    /// Deletes the latch, and so opens the latch.
    Delete,
}

impl ChangeLatch {
    pub(crate) fn new(name: LockName, change: Change, request: RequestId) -> Self {
        Self { channel: name.latch_channel(), name, change, request }
    }

    /// Applies the change in memory, and publishes a message if the latch closes or opens. Returns
    /// 1 if anything changed, else 0.
    fn change(&self, keyspace: &mut Keyspace) -> Result<i64, WrongType> {
        let key = self.name.as_str();
        let count = keyspace.number(key)?;
        Ok(i64::from(match self.change {
            Change::Set(count_to_be) => {
                if count.is_none() {
                    keyspace.text_set(key, count_to_be);
                    keyspace.publish(&self.channel, CLOSED);
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
        }))
    }
}

impl Operation for ChangeLatch {
    /// Whether anything changed.
    type Reply = bool;

    fn request(&self) -> Request<'_> {
        let (name, script) = match self.change {
            Change::Set(_) => ("set the count", &SET),
            Change::CountDown => ("count down", &COUNT_DOWN),
            Change::Delete => ("delete", &DELETE),
        };
        let keys = vec![self.name.as_str(), self.request.key()];
        let mut arguments = vec![Argument::NotAfter];
        if let Change::Set(count) = self.change {
            arguments.push(Argument::Number(count));
        }
        let apart = is_in_other_hash_slot(&self.channel);
        let publish = if apart { Argument::Text("PUBLISH") } else { Argument::Publish };
        let channel = Argument::Text(&self.channel);
        let (number, dedup_ttl) = (self.request.number(), self.request.dedup_ttl());
        arguments.extend([number, dedup_ttl, publish, channel]);
        Request::script(name, script, keys, arguments)
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        self.request.once(keyspace, |keyspace| self.change(keyspace))
    }
}
