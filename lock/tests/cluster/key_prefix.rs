//! The key prefix in a cluster: wherever the braces are, all keys of one lock are in one slot,
//! under the names that Redisson's `NameMapper` gives them, and messages arrive in that slot's
//! shard.

use crate::common::contended::{KINDS, Kind, contend, with_name};
use crate::common::slots::{AT_ONCE, Lent, builder_of, calls, home};
use crate::common::{SOON, built};
use wheellock::{Client, Error};
use wheellock_fixture::{Cluster, wait_until};

/// Prefix and name, and what decides about the slot of both together.
const TOGETHER: [(&str, &str, &str); 7] = [
    ("app:", "7", ""),
    ("app:", "{7}:x", "7"),
    ("{app}:", "7", "app"),
    ("{app}:", "{7}:x", "app"),
    ("a}p:", "{7}", "7"),
    // The tag is whole only where they meet.
    ("{app", "}:7", "app"),
    ("{{a", "p}}7", "{ap"),
];

/// Prefix and name whose braces make no tag together, though one of them alone may have one.
const APART: [(&str, &str); 5] =
    [("app{:", "7"), ("app}:", "7"), ("{}:", "7"), ("{}:", "{7}"), ("{", "7")];

fn client(cluster: &Cluster, prefix: &str) -> Client {
    built(builder_of(cluster).key_prefix(prefix))
}

/// What the nodes answer, all together.
fn found(cluster: &Cluster, command: &[&str]) -> Vec<String> {
    cluster.nodes().iter().flat_map(|node| node.command(command).texts()).collect()
}

/// The channels of the cluster, or of its shards.
fn channels(cluster: &Cluster, of_shards: bool) -> Vec<String> {
    let nodes = cluster.nodes();
    let predates_7 = nodes[0].predates_7();
    let verb = if of_shards && !predates_7 { "SHARDCHANNELS" } else { "CHANNELS" };
    found(cluster, &["PUBSUB", verb])
}

/// Where the messages of a kind go: the channel's beginning, and whether it is of a shard.
fn audience(kind: &Kind, full: &str) -> Option<(String, bool)> {
    let channel = with_name(kind.channel?, full);
    // Redisson puts braces around a latch's name, whatever that has, so its channel can be in
    // another slot.
    let apart = kind.word == "count_down_latch" && full.contains('{');
    Some((channel, !apart))
}

#[test]
fn keys_share_slot_of_full_name_and_release_wakes_waiters() {
    let cluster = Lent::take();
    for (prefix, name, tag) in TOGETHER {
        let (holder, waiter) = (client(&cluster, prefix), client(&cluster, prefix));
        for kind in KINDS {
            let name = format!("{name}{}", kind.word);
            let full = format!("{prefix}{name}");
            let slot = cluster.slot_of(if tag.is_empty() { &full } else { tag });
            assert_eq!(cluster.slot_of(&full), slot, "{full}");
            let took = contend(&kind, (&holder, &name), (&waiter, &name), || {
                if let Some((channel, of_shard)) = audience(&kind, &full) {
                    wait_until("the waiter listens", SOON, || {
                        channels(&cluster, of_shard).iter().any(|one| one.starts_with(&channel))
                    });
                }
                let mut keys = found(&cluster, &["KEYS", "*"]);
                // On a busy machine a hold may last long enough for its client to write its record.
                keys.retain(|key| !key.starts_with("wheellock_client:"));
                for pattern in kind.keys {
                    let beginning = with_name(pattern, &full);
                    let is_there = keys.iter().any(|key| key.starts_with(&beginning));
                    assert!(is_there, "{}: {beginning} in {keys:?}", kind.word);
                }
                for key in &keys {
                    assert!(key.contains(&full), "{key} of {full}");
                    assert_eq!(cluster.slot_of(key), slot, "{key} of {full}");
                }
                let held = home(&cluster, &full).size();
                assert_eq!(usize::try_from(held), Ok(keys.len()), "{full}: {keys:?}");
            });
            // A waiter without a channel polls, more often than this.
            assert!(took < AT_ONCE, "{full}: {took:?}");
            for node in cluster.nodes() {
                node.command(&["FLUSHALL"]);
            }
        }
    }
}

#[test]
fn a_prefixed_name_equals_the_full_name() {
    let cluster = Lent::take();
    let plain = client(&cluster, "");
    for (prefix, name, _) in TOGETHER {
        let behind = plain.with_prefix(prefix);
        for kind in KINDS {
            let name = format!("{name}{}", kind.word);
            let full = format!("{prefix}{name}");
            let other = client(&cluster, "");
            contend(&kind, (&behind, &name), (&other, &full), || ());
            contend(&kind, (&other, &full), (&behind, &name), || ());
        }
        for node in cluster.nodes() {
            node.command(&["FLUSHALL"]);
        }
    }
}

#[test]
fn a_name_whose_prefix_makes_it_cross_slots_is_refused() {
    let cluster = Lent::take();
    let sent = || ["evalsha", "eval", "exists"].map(|command| calls(&cluster, command));
    for (prefix, name) in APART {
        let client = client(&cluster, prefix);
        let before = sent();
        let errors = [
            client.lock(name).try_lock().map(drop),
            client.spin_lock(name).try_lock().map(drop),
            client.simple_lock(name).try_lock().map(drop),
            client.fenced_lock(name).try_lock().map(drop),
            client.fair_lock(name).try_lock().map(drop),
            client.read_write_lock(name).read_lock().try_lock().map(drop),
            client.read_write_lock(name).write_lock().try_lock().map(drop),
            client.semaphore(name).try_acquire(1).map(drop),
            client.expirable_semaphore(name).try_acquire().map(drop),
            client.count_down_latch(name).count_down(),
            client.lock(name).is_locked().map(drop),
        ];
        for error in errors.map(Result::unwrap_err) {
            let Error::InvalidName { name: told, reason, .. } = &error else { panic!("{error:?}") };
            assert_eq!(*told, format!("{prefix}{name}"));
            assert!(reason.contains("braces"), "{reason}");
        }
        assert_eq!(client.stats().queued_releases, 0);
        assert_eq!(sent(), before);
    }
}
