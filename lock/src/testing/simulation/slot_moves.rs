//! How two nodes become a cluster, and how the slot of the lock moves between them.

use std::time::Duration;

use hashed_wheel::Clock;

use crate::store::redis::resp::hash_slot::hash_slot_of;
use crate::testing::modelled::process::{at, note};
use crate::testing::modelled::sync::{SystemClock, below};
use crate::testing::simulation::faults::one_of;
use crate::testing::simulation::network::Net;
use crate::testing::simulation::process::NAME;
use crate::testing::simulation::slots::{Node, Serving};

/// Makes these two the nodes of a cluster. The second one serves the slot.
pub(crate) fn form_cluster(nets: &[Net]) {
    let [first, second] = nets else { panic!("a cluster has two nodes here") };
    let is_sharded = below(2) == 0;
    for (net, other, serving) in
        [(first, second, Serving::Elsewhere), (second, first, Serving::Here)]
    {
        let (slot, port, rest) = (hash_slot_of(NAME), net.port(), first.port());
        let node = Node { slot, serving, is_sharded, port, other: other.port(), rest };
        net.set_node(node, other.clone());
    }
}

/// The slot of the lock moves to the other node, as `redis-cli` does it. Each step takes a while.
pub(crate) fn move_slot(nets: &[Net]) {
    let of = |serving| nets.iter().find(|net| net.serving() == Some(serving)).cloned();
    // Unless it is moving already.
    let (Some(from), Some(to)) = (of(Serving::Here), of(Serving::Elsewhere)) else { return };
    note(|| format!("FAULT the slot moves from server {} to {}", from.port(), to.port()));
    to.serve(Serving::Importing);
    from.serve(Serving::Migrating);
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
            keys.retain(|key| hash_slot_of(key) == hash_slot_of(NAME));
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
        new.serve(Serving::Here);
    });
    let over = next();
    at(over, {
        let from = from.clone();
        move || {
            note(|| format!("server {} knows that it does not serve the slot", from.port()));
            from.serve(Serving::Elsewhere);
        }
    });
    from.disturb(over);
    to.disturb(over);
}
