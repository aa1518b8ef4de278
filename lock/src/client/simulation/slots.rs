//! A cluster of two nodes: which of them serves the slot of the lock, and how the slot moves.

use std::time::Duration;

use hashed_wheel::Clock;

use crate::client::simulation::faults::one_of;
use crate::client::simulation::network::Net;
use crate::client::simulation::process::NAME;
use crate::model::modelled::{SystemClock, below};
use crate::model::simulated::{after, at, note};
use crate::ops::value::Value;
use crate::store::redis::resp::slot::{SLOTS, slot_of};

/// Which part a node has in serving the slot of the lock, as far as it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Serving {
    Slot,
    /// Its keys move away. Commands without keys here are sent to the other node by `ASK`.
    Leaving,
    /// Its keys come. Only commands behind `ASKING` are served.
    Arriving,
    Nothing,
}

/// A node, which knows one other.
pub(crate) struct Node {
    pub(crate) serving: Serving,
    pub(crate) other: Net,
    /// Only the node of a channel's slot has its messages.
    pub(crate) is_sharded: bool,
    /// The ports of this node, the other one, and the one that serves the other slots.
    pub(crate) port: u16,
    pub(crate) other_port: u16,
    pub(crate) rest: u16,
}

const HOST: &str = "10.0.0.1";

/// Whether a key is in the slot of the lock.
pub(crate) fn is_in_slot(key: &str) -> bool {
    slot_of(key) == slot_of(NAME)
}

impl Node {
    /// What it replies to a command with these keys, of which so many are here, in place of running
    /// it: as `getNodeByQuery` of Redis decides.
    pub(crate) fn redirection(&self, is_asking: bool, keys: &[&str], here: usize) -> Option<Value> {
        let slot = slot_of(keys.first()?);
        let to = |code: &str, port| {
            let message = format!("{slot} {HOST}:{port}");
            Some(Value::Refusal { code: code.to_owned(), message })
        };
        let try_again = || {
            let message = "Multiple keys request during rehashing of slot".to_owned();
            Some(Value::Refusal { code: "TRYAGAIN".to_owned(), message })
        };
        if slot != slot_of(NAME) {
            return if self.port == self.rest { None } else { to("MOVED", self.rest) };
        }
        match self.serving {
            Serving::Slot => None,
            Serving::Leaving if here == keys.len() => None,
            Serving::Leaving if here > 0 => try_again(),
            Serving::Leaving => to("ASK", self.other_port),
            Serving::Arriving if is_asking && keys.len() > 1 && here < keys.len() => try_again(),
            Serving::Arriving if is_asking => None,
            Serving::Arriving | Serving::Nothing => to("MOVED", self.other_port),
        }
    }

    /// Its reply to `CLUSTER SLOTS`.
    pub(crate) fn slots(&self) -> Value {
        let serves = matches!(self.serving, Serving::Slot | Serving::Leaving);
        let owner = if serves { self.port } else { self.other_port };
        let slot = slot_of(NAME);
        let range = |first: u16, last: u16, port: u16| {
            let master = vec![Value::Text(HOST.to_owned()), Value::Integer(port.into())];
            let ends = [Value::Integer(first.into()), Value::Integer(last.into())];
            Value::Array(ends.into_iter().chain([Value::Array(master)]).collect())
        };
        Value::Array(vec![
            range(0, slot - 1, self.rest),
            range(slot, slot, owner),
            range(slot + 1, SLOTS - 1, self.rest),
        ])
    }
}

/// Makes these two the nodes of a cluster. The second one serves the slot.
pub(crate) fn form_cluster(nets: &[Net]) {
    let [first, second] = nets else { panic!("a cluster has two nodes here") };
    let is_sharded = below(2) == 0;
    for (net, other, serving) in [(first, second, Serving::Nothing), (second, first, Serving::Slot)]
    {
        let (port, other_port, rest) = (net.port(), other.port(), first.port());
        net.set_node(Node { serving, other: other.clone(), is_sharded, port, other_port, rest });
    }
}

/// The slot of the lock moves to the other node, as `redis-cli` does it. Each step takes a while.
pub(crate) fn move_slot(nets: &[Net]) {
    let of = |serving| nets.iter().find(|net| net.serving() == Some(serving)).cloned();
    // Unless it is moving already.
    let (Some(from), Some(to)) = (of(Serving::Slot), of(Serving::Nothing)) else { return };
    note(|| format!("FAULT the slot moves from server {} to {}", from.port(), to.port()));
    to.serve(Serving::Arriving);
    from.serve(Serving::Leaving);
    let mut step = SystemClock.now();
    let mut next = || {
        step += one_of(&[0, 1, 30, 400]) * Duration::from_millis(1);
        step
    };
    // One key, and later the others.
    for most in [1, usize::MAX] {
        let (from, to) = (from.clone(), to.clone());
        at(next(), move || {
            let mut keys = from.with_server(|server| server.keys(SystemClock.now()));
            keys.retain(|key| is_in_slot(key));
            while keys.len() > most {
                keys.swap_remove(below(keys.len()));
            }
            note(|| format!("server {} moves {keys:?}", from.port()));
            for key in keys {
                from.migrate(&key, &to);
            }
        });
    }
    let known = next();
    let new = to.clone();
    at(known, move || {
        note(|| format!("server {} serves the slot", new.port()));
        new.serve(Serving::Slot);
    });
    let over = next();
    at(over, {
        let from = from.clone();
        move || {
            note(|| format!("server {} knows that it does not serve the slot", from.port()));
            from.serve(Serving::Nothing);
        }
    });
    from.disturb(over);
    to.disturb(over);
}

/// How long a message between the nodes takes.
pub(crate) fn between_nodes(action: impl FnOnce() + 'static) {
    after(Duration::from_micros(200), action);
}
