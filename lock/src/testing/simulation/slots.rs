//! A cluster of two nodes: which of them serves the slot of the lock, and what the other replies.

use crate::ops::value::Value;
use crate::store::redis::resp::hash_slot::{HASH_SLOTS, hash_slot_of};

/// Which part a node has in serving the slot of the lock, as far as it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Serving {
    Here,
    /// Its keys move away. Commands without keys here are sent to the other node by `ASK`.
    Migrating,
    /// Its keys come. Only commands behind `ASKING` are served.
    Importing,
    Elsewhere,
}

/// A node, which knows one other.
pub(crate) struct Node {
    /// The slot of the lock.
    pub(crate) slot: u16,
    pub(crate) serving: Serving,
    /// Only the node of a channel's slot has its messages.
    pub(crate) is_sharded: bool,
    /// The ports of this node, the other one, and the one that serves the other slots.
    pub(crate) port: u16,
    pub(crate) other: u16,
    pub(crate) rest: u16,
}

const HOST: &str = "10.0.0.1";

impl Node {
    /// Whether a key is in the slot of the lock.
    pub(crate) fn has_in_slot(&self, key: &str) -> bool {
        hash_slot_of(key) == self.slot
    }

    /// The redirection that it replies to a command with these keys, of which `here` are here: as
    /// `getNodeByQuery` of Redis decides.
    pub(crate) fn redirection(&self, is_asking: bool, keys: &[&str], here: usize) -> Option<Value> {
        let slot = hash_slot_of(keys.first()?);
        let to = |code: &str, port| {
            let message = format!("{slot} {HOST}:{port}");
            Some(Value::Refusal { code: code.to_owned(), message })
        };
        let try_again = || {
            let message = "Multiple keys request during rehashing of slot".to_owned();
            Some(Value::Refusal { code: "TRYAGAIN".to_owned(), message })
        };
        if slot != self.slot {
            return if self.port == self.rest { None } else { to("MOVED", self.rest) };
        }
        match self.serving {
            Serving::Here => None,
            Serving::Migrating if here == keys.len() => None,
            Serving::Migrating if here > 0 => try_again(),
            Serving::Migrating => to("ASK", self.other),
            Serving::Importing if is_asking && keys.len() > 1 && here < keys.len() => try_again(),
            Serving::Importing if is_asking => None,
            Serving::Importing | Serving::Elsewhere => to("MOVED", self.other),
        }
    }

    /// Its reply to `CLUSTER SLOTS`.
    pub(crate) fn slots(&self) -> Value {
        let serves = matches!(self.serving, Serving::Here | Serving::Migrating);
        let owner = if serves { self.port } else { self.other };
        let range = |first: u16, last: u16, port: u16| {
            let master = vec![Value::Text(HOST.to_owned()), Value::Integer(port.into())];
            let ends = [Value::Integer(first.into()), Value::Integer(last.into())];
            Value::Array(ends.into_iter().chain([Value::Array(master)]).collect())
        };
        Value::Array(vec![
            range(0, self.slot - 1, self.rest),
            range(self.slot, self.slot, owner),
            range(self.slot + 1, HASH_SLOTS - 1, self.rest),
        ])
    }
}
