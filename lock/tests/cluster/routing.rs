//! Locks in a stable cluster: which nodes keys and messages go to.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::thread;
use std::time::Duration;

use crate::common::slots::{
    builder_of, calls, client_of, home, of_shard, start, wait_for_a_listener, without_polls_of,
};
use crate::common::{SOON, built, ended, timed, wait_for_a_waiter, without_polls};
use wheellock::{AnyLock, Client, Error, Lock};
use wheellock_fixture::{Cluster, Proxy, Server, wait_until};

/// For tests that break nothing and use names of their own.
static SHARED: LazyLock<Cluster> = LazyLock::new(|| start(3, 0));

/// Everything under keys that a test may look at, by key.
fn keys(cluster: &Cluster) -> BTreeMap<String, u16> {
    let nodes = cluster.nodes();
    let all = nodes.iter().flat_map(|node| node.command(&["KEYS", "*"]).texts());
    let all = all.filter(|key| !key.starts_with("wheellock_client:"));
    all.map(|key| (key.clone(), cluster.slot_of(&key))).collect()
}

#[test]
fn every_lock_is_held_at_the_node_of_its_slot() {
    let cluster = start(3, 0);
    let client = client_of(&cluster);
    let names: Vec<String> = (0..60).map(|number| format!("spread:{number}")).collect();
    let guards: Vec<_> = names.iter().map(|name| client.lock(name).lock().unwrap()).collect();
    for master in cluster.masters() {
        let held = master.size();
        assert!((5..=40).contains(&held), "{held} of 60 at one of three nodes");
    }
    for (name, guard) in names.iter().zip(&guards) {
        let owners = home(&cluster, name).command(&["HKEYS", name]).texts();
        assert_eq!(owners, [guard.owner()]);
    }
    drop(guards);
    assert_eq!(keys(&cluster), BTreeMap::new());
}

#[test]
fn every_primitive_works_with_all_keys_in_slot_of_name() {
    let cluster = start(3, 0);
    let client = client_of(&cluster);
    for number in 0..12 {
        // With tags too: every other name has one.
        let name = |kind: &str| {
            if number % 2 == 0 {
                format!("{kind}:{number}")
            } else {
                format!("{{{kind}}}:{number}")
            }
        };
        let outer = client.lock(&name("lock")).lock().unwrap();
        client.lock(&name("lock")).lock().unwrap().unlock().unwrap();
        let fenced = client.fenced_lock(&name("fenced")).lock().unwrap();
        let fair = client.fair_lock(&name("fair")).lock().unwrap();
        let spin = client.spin_lock(&name("spin")).lock().unwrap();
        let text = client.simple_lock(&name("text")).lock().unwrap();
        let both = client.read_write_lock(&name("both"));
        both.read_lock().lock().unwrap().unlock().unwrap();
        let written = both.write_lock().lock().unwrap();
        let semaphore = client.semaphore(&name("semaphore"));
        semaphore.try_set_permits(2).unwrap();
        semaphore.acquire(1).unwrap().forget();
        let seats = client.expirable_semaphore(&name("seats"));
        seats.set_permits(2).unwrap();
        let seat = seats.acquire().unwrap();
        let latch = client.count_down_latch(&name("latch"));
        latch.try_set_count(2).unwrap();
        latch.count_down().unwrap();
        let kinds =
            ["lock", "fenced", "fair", "spin", "text", "both", "semaphore", "seats", "latch"];
        for kind in kinds {
            let name = name(kind);
            let slot = cluster.slot_of(&name);
            let own: Vec<_> =
                keys(&cluster).into_iter().filter(|(key, _)| key.contains(&name)).collect();
            assert!(!own.is_empty(), "{name}");
            assert!(own.iter().all(|(_, other)| *other == slot), "{name} in {slot}: {own:?}");
        }
        fenced.unlock().unwrap();
        for guard in [outer, fair, spin, text] {
            guard.unlock().unwrap();
        }
        written.unlock().unwrap();
        semaphore.release(1).unwrap();
        seat.release().unwrap();
        latch.count_down().unwrap();
        assert_eq!(latch.count().unwrap(), 0);
    }
    let locks: Vec<Lock> = (0..5).map(|number| client.lock(&format!("multi:{number}"))).collect();
    let locks: Vec<&dyn AnyLock> = locks.iter().map(|lock| lock as &dyn AnyLock).collect();
    client.multi_lock(&locks).lock().unwrap().unlock().unwrap();
    assert_eq!(client.stats().lost, 0);
}

#[test]
fn a_waiter_is_woken_through_the_shard_of_the_lock() {
    let cluster = start(3, 0);
    let (holder, waiter) = (client_of(&cluster), without_polls_of(&cluster));
    for number in 0..6 {
        let name = format!("woken:{number}");
        let guard = holder.lock(&name).lock().unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| waiter.lock(&name).lock()?.unlock());
            wait_for_a_waiter(&waiter);
            wait_for_a_listener(&cluster, &name);
            guard.unlock().unwrap();
            assert_eq!(ended(&waiter, waiting), Ok(()));
        });
    }
    // Older servers have no channels of shards.
    let has_others = cluster.nodes()[0].predates_7();
    assert_eq!(calls(&cluster, "subscribe") > 0, has_others);
}

#[test]
fn channels_of_all_slots_are_subscribed_together_and_left() {
    let cluster = start(3, 0);
    let (holder, waiter) = (client_of(&cluster), without_polls_of(&cluster));
    let names: Vec<String> =
        (0..40).map(|number| format!("{{many:{}}}:{number}", number % 20)).collect();
    let guards: Vec<_> = names.iter().map(|name| holder.lock(name).lock().unwrap()).collect();
    let listening = || -> usize {
        let of =
            |node: &Server| node.command(&["PUBSUB", &of_shard(node, "CHANNELS")]).array().len();
        cluster.nodes().iter().map(|node| of(node)).sum()
    };
    thread::scope(|scope| {
        let waiting: Vec<_> =
            names.iter().map(|name| scope.spawn(|| waiter.lock(name).lock()?.unlock())).collect();
        wait_until("all are listened to", SOON, || listening() == names.len());
        // Whoever is cut off listens again.
        for node in cluster.nodes() {
            node.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        }
        wait_until("all are listened to again", SOON, || listening() == names.len());
        drop(guards);
        for waiting in waiting {
            assert_eq!(ended(&waiter, waiting), Ok(()));
        }
    });
    wait_until("all are left", SOON, || listening() == 0);
    // One for callers at most, one that listens, and the first look.
    let most = 3 * (1 + 40) + 1;
    assert!(waiter.stats().connections_made <= most, "{}", waiter.stats().connections_made);
}

#[test]
fn without_sharded_channels_messages_are_broadcast() {
    let cluster = start(3, 0);
    for node in cluster.nodes() {
        // An older one has no others, and does not know the command.
        let rules = ["on", ">secret", "~*", "&*", "+@all", "-pubsub|shardnumsub"];
        let rules = &rules[..rules.len() - usize::from(node.predates_7())];
        let command = [&["ACL", "SETUSER", "limited"], rules].concat();
        assert!(!node.command(&command).is_error());
    }
    let url = cluster.url().replace("redis-cluster://", "redis-cluster://limited:secret@");
    let (holder, waiter) = (Client::connect(&url).unwrap(), without_polls(&url));
    for number in 0..6 {
        let name = format!("everywhere:{number}");
        let guard = holder.lock(&name).lock().unwrap();
        let channel = format!("redisson_lock__channel:{{{name}}}");
        thread::scope(|scope| {
            let waiting = scope.spawn(|| waiter.lock(&name).lock()?.unlock());
            wait_until("there is a subscriber", SOON, || {
                let numbers = home(&cluster, &name).command(&["PUBSUB", "NUMSUB", &channel]);
                numbers.array()[1].integer() == 1
            });
            guard.unlock().unwrap();
            assert_eq!(ended(&waiter, waiting), Ok(()));
        });
    }
    assert_eq!((calls(&cluster, "spublish"), calls(&cluster, "ssubscribe")), (0, 0));
}

#[test]
fn d15_latches_with_hash_tags_open_for_their_waiters() {
    let (one, other) = (client_of(&SHARED), without_polls_of(&SHARED));
    for name in ["d15", "d15{a}", "{d15}:42", "d15{b}x", "d15{c}:{d}"] {
        let latch = one.count_down_latch(name);
        latch.try_set_count(2).unwrap();
        latch.count_down().unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| other.count_down_latch(name).wait());
            wait_for_a_waiter(&other);
            let channel = format!("redisson_countdownlatch__channel__{{{name}}}");
            wait_until("there is a subscriber", SOON, || {
                let of = |node: &Server| {
                    let is_apart = name.contains('{');
                    let verb =
                        if is_apart { "NUMSUB".to_owned() } else { of_shard(node, "NUMSUB") };
                    node.command(&["PUBSUB", &verb, &channel]).array()[1].integer()
                };
                SHARED.nodes().iter().any(|node| of(node) == 1)
            });
            latch.count_down().unwrap();
            assert_eq!(ended(&other, waiting), Ok(()), "{name}");
        });
    }
}

#[test]
fn a_name_whose_keys_cross_slots_is_refused() {
    let cluster = start(2, 0);
    let client = client_of(&cluster);
    let scripts =
        || calls(&cluster, "evalsha") + calls(&cluster, "eval") + calls(&cluster, "exists");
    let before = scripts();
    for name in ["a{b", "a}b", "a{}b", "{", "}{"] {
        let errors = [
            client.lock(name).lock().map(drop),
            client.lock(name).try_lock().map(drop),
            client.lock(name).is_locked().map(drop),
            client.fenced_lock(name).lock().map(drop),
            client.fair_lock(name).lock().map(drop),
            client.read_write_lock(name).read_lock().lock().map(drop),
            client.semaphore(name).try_set_permits(1).map(drop),
            client.expirable_semaphore(name).set_permits(1),
            client.count_down_latch(name).try_set_count(1).map(drop),
        ];
        for error in errors.map(Result::unwrap_err) {
            let Error::InvalidName { name: told, reason, .. } = &error else { panic!("{error:?}") };
            assert_eq!(told, name);
            assert!(reason.contains("braces") && !error.is_retryable(), "{error}");
        }
    }
    assert_eq!(scripts(), before);
    assert_eq!(client.stats().queued_releases, 0);
    // On a single server they are names like any other.
    let server = Server::start();
    Client::connect(&server.url()).unwrap().lock("a{b").lock().unwrap().unlock().unwrap();
}

#[test]
fn the_seeds_are_asked_in_turn_each_within_its_share() {
    let (dead, hung) = (Server::start(), Server::start());
    let nobody = dead.address();
    dead.kill();
    hung.pause();
    let seed = SHARED.nodes()[1].address();
    let url = format!("redis-cluster://{nobody},{},{seed}", hung.address());
    let timeout = Duration::from_secs(3);
    let builder = Client::builder().url(&url).command_timeout(timeout);
    let (client, took) = timed(|| built(builder));
    assert!(took < timeout, "{took:?}");
    client.lock("seeds").lock().unwrap().unlock().unwrap();
    let urls = [format!("redis://{nobody}"), format!("redis://{seed}")];
    built(Client::builder().cluster(urls)).lock("seeds").lock().unwrap().unlock().unwrap();
    let error = Client::connect(&format!("redis-cluster://{nobody}")).unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    hung.resume();
    let error = Client::connect(&format!("redis-cluster://{}", hung.address())).unwrap_err();
    assert!(
        matches!(&error, Error::InvalidUrl { reason, .. } if reason.contains("cluster")),
        "{error}"
    );
}

#[test]
fn a_slow_seed_has_time_for_its_round_trips() {
    let far = Proxy::start(SHARED.nodes()[1].address());
    far.delay_replies(Duration::from_millis(100));
    // An equal share would be less than one round trip.
    let nobody = (2..42).map(|host| format!("redis://127.0.0.{host}:1"));
    let seeds = std::iter::once(far.url()).chain(nobody);
    let builder = Client::builder().cluster(seeds).command_timeout(Duration::from_secs(3));
    built(builder).lock("far").lock().unwrap().unlock().unwrap();
}

#[test]
fn the_password_is_sent_to_every_node() {
    let cluster = Cluster::builder().password("s3cret").start(3, 0);
    let error = Client::connect(&cluster.url()).unwrap_err();
    assert!(matches!(error, Error::Authentication { .. }), "{error:?}");
    let with = |word: &str| cluster.url().replace("cluster://", &format!("cluster://:{word}@"));
    let error = Client::connect(&with("wr0ng")).unwrap_err();
    assert!(matches!(error, Error::Authentication { .. }), "{error:?}");
    assert!(!error.to_string().contains("wr0ng"));
    let client = Client::connect(&with("s3cret")).unwrap();
    for number in 0..30 {
        client.lock(&number.to_string()).lock().unwrap().unlock().unwrap();
    }
    assert!(!format!("{client:?}").contains("s3cret"));
    let error = Client::connect(&format!("{}/1", cluster.url())).unwrap_err();
    assert!(
        matches!(&error, Error::InvalidUrl { reason, .. } if reason.contains("database 0")),
        "{error}"
    );
}

#[test]
fn the_readmes_user_can_do_everything() {
    let cluster = start(3, 0);
    let (holder, waiter) = (client_of(&cluster), client_of(&cluster));
    for number in 0..6 {
        let name = format!("user:{number}");
        let guard = holder.lock(&name).lock().unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| waiter.lock(&name).lock().unwrap().unlock());
            wait_for_a_waiter(&waiter);
            wait_for_a_listener(&cluster, &name);
            if number == 0 {
                let slot = cluster.slot_of(&name);
                let home = home(&cluster, &name).address();
                let other = cluster.masters().into_iter().find(|node| node.address() != home);
                cluster.move_slot(slot, &other.unwrap());
                wait_for_a_listener(&cluster, &name);
            }
            guard.unlock().unwrap();
            waiting.join().unwrap().unwrap();
        });
        assert!(!holder.lock(&name).force_unlock().unwrap());
    }
    let latch = holder.count_down_latch("{user}:latch");
    assert!(latch.try_set_count(1).unwrap());
    latch.count_down().unwrap();
    let refused = |node: &Server| {
        let errors = node.command(&["INFO", "errorstats"]).text();
        errors.lines().find(|line| line.contains("NOPERM")).map(str::to_owned)
    };
    let refusals: Vec<_> = cluster.nodes().iter().filter_map(|node| refused(node)).collect();
    // An older server refuses the question after channels of shards, which it does not have.
    assert!(refusals.is_empty() || cluster.nodes()[0].predates_7(), "{refusals:?}");
}

#[test]
fn an_evicting_policy_at_any_node_is_a_warning() {
    let cluster = start(3, 0);
    let last = cluster.nodes().pop().unwrap();
    last.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let error = builder_of(&cluster).refuse_eviction().build().unwrap_err();
    assert!(matches!(error, Error::Eviction { .. }), "{error:?}");
    assert_eq!(client_of(&cluster).warnings().len(), 1);
}
