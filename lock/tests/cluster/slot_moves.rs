//! Slots that move between nodes while their locks are held and waited for.

use std::thread;
use std::time::Duration;

use crate::common::slots::{
    AT_ONCE, builder_of, calls, client_of, elsewhere, home, of_shard, owner_of, start,
    wait_for_a_listener, without_polls_of,
};
use crate::common::{SOON, built, ended, now, pause, timed, wait_for_a_waiter};
use wheellock::Error;
use wheellock_fixture::wait_until;

const LEASE: Duration = Duration::from_secs(4);
/// Of its tries the last has most of it left for the answer.
const BRIEF: Duration = Duration::from_millis(550);

#[test]
fn redirected_call_follows_at_once_and_refreshes_slot_map() {
    let cluster = start(3, 0);
    let client = client_of(&cluster);
    let lock = client.lock("a");
    lock.lock().unwrap().unlock().unwrap();
    let slot = cluster.slot_of("a");
    let (target, before) = (elsewhere(&cluster, "a"), calls(&cluster, "cluster|slots"));
    cluster.move_slot(slot, &target);
    let (result, took) = timed(|| lock.lock().unwrap().unlock());
    result.unwrap();
    assert!(took < AT_ONCE, "{took:?}");
    wait_until("the map is learnt", SOON, || calls(&cluster, "cluster|slots") > before);
    let moved = |node: &wheellock_fixture::Server| {
        let errors = node.command(&["INFO", "errorstats"]).text();
        errors.lines().find(|line| line.contains("MOVED")).map(str::to_owned)
    };
    let all = || cluster.nodes().iter().map(|node| moved(node)).collect::<Vec<_>>();
    let refusals = all();
    for _ in 0..20 {
        lock.lock().unwrap().unlock().unwrap();
    }
    assert_eq!(all(), refusals);
}

#[test]
fn a_waiter_is_woken_by_a_release_after_its_slot_has_moved() {
    let cluster = start(3, 0);
    let (holder, waiter) = (client_of(&cluster), without_polls_of(&cluster));
    let mut guard = holder.lock("a").lock().unwrap();
    for _ in 0..6 {
        let holder = &holder;
        let nested = holder.lock("a").lock().unwrap();
        guard = thread::scope(|scope| {
            let waiting = scope.spawn(|| waiter.lock("a").lock()?.unlock());
            wait_for_a_waiter(&waiter);
            wait_for_a_listener(&cluster, "a");
            cluster.move_slot(cluster.slot_of("a"), &elsewhere(&cluster, "a"));
            // Older servers broadcast: the waiter can listen where it did.
            if !cluster.nodes()[0].predates_7() {
                wait_for_a_listener(&cluster, "a");
            }
            nested.unlock().unwrap();
            assert_eq!(owner_of(&cluster, "a").as_deref(), Some(guard.owner()));
            guard.unlock().unwrap();
            assert_eq!(ended(&waiter, waiting), Ok(()));
            holder.lock("a").lock().unwrap()
        });
    }
    guard.unlock().unwrap();
    assert_eq!((holder.stats().lost, holder.stats().queued_releases), (0, 0));
}

#[test]
fn waiter_on_broadcast_channel_wakes_after_slot_move() {
    let cluster = start(3, 0);
    for node in cluster.nodes() {
        // An older one has only these channels, and does not know the command.
        let rule = ["ACL", "SETUSER", "family", "-pubsub|shardnumsub"];
        assert_eq!(node.command(&rule).is_error(), node.predates_7());
    }
    let (holder, waiter) = (client_of(&cluster), without_polls_of(&cluster));
    let guard = holder.lock("a").lock().unwrap();
    let channel = "redisson_lock__channel:{a}";
    thread::scope(|scope| {
        let waiting = scope.spawn(|| waiter.lock("a").lock()?.unlock());
        wait_until("there is a subscriber", SOON, || {
            home(&cluster, "a").command(&["PUBSUB", "NUMSUB", channel]).array()[1].integer() == 1
        });
        cluster.move_slot(cluster.slot_of("a"), &elsewhere(&cluster, "a"));
        guard.unlock().unwrap();
        assert_eq!(ended(&waiter, waiting), Ok(()));
    });
    assert_eq!(calls(&cluster, "ssubscribe"), 0);
}

#[test]
fn during_a_slot_move_locks_are_acquired_and_released() {
    let cluster = start(3, 0);
    let (client, waiter) = (client_of(&cluster), client_of(&cluster));
    let slot = cluster.slot_of("{a}");
    let held = client.lock("{a}held").lock().unwrap();
    let (source, target) = (home(&cluster, "{a}"), elsewhere(&cluster, "{a}"));
    let moving = cluster.begin_move(slot, &target).unwrap();
    // Not at the source, which says: ask the target. And the next time too, as the map stays.
    let taken = client.lock("{a}new").lock().unwrap();
    assert!(client.lock("{a}new").try_lock().unwrap().is_some());
    assert_eq!(source.size(), 1);
    assert_eq!(target.size(), 1);
    assert!(client.lock("{a}held").remaining_lease().unwrap().is_some());
    assert!(target.command_calls("asking") >= 2);
    // The waiter listens at the source.
    thread::scope(|scope| {
        let waiting = scope.spawn(|| waiter.lock("{a}held").lock().unwrap().unlock().unwrap());
        wait_for_a_waiter(&waiter);
        wait_until("there is a subscriber", SOON, || {
            let channel = "redisson_lock__channel:{a}held";
            let verb = of_shard(&source, "NUMSUB");
            source.command(&["PUBSUB", &verb, channel]).array()[1].integer() > 0
        });
        let ((), took) = timed(|| {
            held.unlock().unwrap();
            waiting.join().unwrap();
        });
        assert!(took < AT_ONCE, "{took:?}");
    });
    taken.unlock().unwrap();
    for node in [&source, &target] {
        assert_eq!(node.size(), 0);
        assert!(!node.command(&["INFO", "errorstats"]).text().contains("TRYAGAIN"));
    }
    assert_eq!(client.stats().queued_releases, 0);
    moving.finish().unwrap();
}

#[test]
fn a_slot_move_that_does_not_end_is_an_error_in_bounded_time() {
    let cluster = start(2, 0);
    let client = built(builder_of(&cluster).command_timeout(BRIEF));
    // The release of a reader is about several keys.
    let guard = client.read_write_lock("a").read_lock().lock().unwrap();
    let target = elsewhere(&cluster, "a");
    let moving = cluster.begin_move(cluster.slot_of("a"), &target).unwrap();
    let (error, took) = timed(|| guard.unlock().unwrap_err());
    assert!(matches!(&error, Error::Refused { code, .. } if code == "TRYAGAIN"), "{error}");
    assert!(error.is_retryable() && took < Duration::from_secs(2), "{took:?}");
    assert_eq!(client.stats().queued_releases, 1);
    moving.move_all_keys().unwrap();
    moving.finish().unwrap();
    wait_until("it is released", SOON, || client.stats().queued_releases == 0);
    assert_eq!(target.size(), 0);
}

#[test]
fn pending_releases_follow_their_slot_when_the_client_ends() {
    let cluster = start(2, 0);
    for number in 0..5 {
        let client = built(builder_of(&cluster).command_timeout(Duration::from_millis(250)));
        let name = format!("{{a}}{number}");
        let lock = client.read_write_lock(&name).read_lock();
        let guard = lock.lock().unwrap();
        let moving =
            cluster.begin_move(cluster.slot_of(&name), &elsewhere(&cluster, &name)).unwrap();
        assert!(guard.unlock().unwrap_err().is_retryable());
        assert_eq!(client.stats().queued_releases, 1);
        moving.move_all_keys().unwrap();
        moving.finish().unwrap();
        // It knows where the slot is now, and has renewed nothing there.
        lock.is_locked().unwrap();
        drop((lock, client));
        wait_until("it is released", SOON, || {
            moving.target().command(&["EXISTS", &name]).integer() == 0
        });
    }
}

#[test]
fn no_hold_is_lost_while_slot_stays_half_moved() {
    let cluster = start(2, 0);
    let [client, reading] = [(); 2].map(|()| built(builder_of(&cluster).watchdog_lease(LEASE)));
    let names: Vec<String> = (0..40).map(|number| format!("{{a}}{number}")).collect();
    let others: Vec<String> = (0..40).map(|number| format!("other:{number}")).collect();
    let lock = |name: &String| client.lock(name).lock().unwrap();
    let guards: Vec<_> = names.iter().chain(&others).map(lock).collect();
    // Each level of a reader has a key.
    let read_lock = reading.read_write_lock("{a}").read_lock();
    let (outer, inner) = (read_lock.lock().unwrap(), read_lock.lock().unwrap());
    let target = elsewhere(&cluster, "{a}");
    let moving = cluster.begin_move(cluster.slot_of("{a}"), &target).unwrap();
    moving.move_keys(&names[..20]).unwrap();
    let lost = || client.stats().lost + reading.stats().lost;
    let (begun, renewed) = (now(), reading.stats().renewed);
    while now() - begun < LEASE * 3 {
        pause(Duration::from_millis(50));
        assert_eq!(lost(), 0, "after {:?}", now() - begun);
    }
    assert!(guards.iter().all(wheellock::LockGuard::is_held));
    assert!(outer.is_held() && reading.stats().renewed > renewed);
    moving.move_all_keys().unwrap();
    moving.finish().unwrap();
    for guard in guards {
        guard.unlock().unwrap();
    }
    inner.unlock().unwrap();
    outer.unlock().unwrap();
    assert_eq!(lost(), 0);
    assert_eq!(target.size(), 0);
}

#[test]
fn a_multi_lock_released_during_a_slot_move_reports_its_lost_member() {
    let cluster = start(2, 0);
    let client = client_of(&cluster);
    let names = ["{a}moved", "{a}deleted", "{a}left"];
    let [moved, deleted, left] = names.map(|name| client.lock(name));
    let guard = client.multi_lock(&[&moved, &deleted, &left]).lock().unwrap();
    let moving = cluster.begin_move(cluster.slot_of("{a}"), &elsewhere(&cluster, "{a}")).unwrap();
    moving.move_keys(&names[..1]).unwrap();
    moving.source().command(&["DEL", names[1]]);
    // No node has all keys, so no node releases the locks together.
    let (error, took) = timed(|| guard.unlock().unwrap_err());
    assert!(matches!(&error, Error::Lost { name, .. } if name == names[1]), "{error}");
    assert!(took < AT_ONCE, "{took:?}");
    assert_eq!(moving.source().size() + moving.target().size(), 0);
    assert_eq!(client.stats().queued_releases, 0);
    moving.finish().unwrap();
}

#[test]
fn a_reader_that_arrives_during_a_slot_move_acquires_afterwards() {
    let cluster = start(2, 0);
    let client = client_of(&cluster);
    let late = built(builder_of(&cluster).command_timeout(BRIEF));
    let guard = client.read_write_lock("{a}").read_lock().lock().unwrap();
    let moving = cluster.begin_move(cluster.slot_of("{a}"), &elsewhere(&cluster, "{a}")).unwrap();
    let fields = || moving.source().command(&["HLEN", "{a}"]).integer();
    let before = fields();
    // The script would create the key of the reader's level, which is impossible there now.
    let reader = late.read_write_lock("{a}").read_lock();
    let (error, took) = timed(|| reader.try_lock().unwrap_err());
    assert!(matches!(&error, Error::Refused { code, .. } if code == "TRYAGAIN"), "{error}");
    assert!(error.is_retryable() && took < Duration::from_secs(2), "{took:?}");
    assert_eq!(fields(), before);
    // A call that waits longer gets in when it is over.
    let patient = client.read_write_lock("{a}").read_lock();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| patient.lock().unwrap().unlock().unwrap());
        moving.move_all_keys().unwrap();
        moving.finish().unwrap();
        waiting.join().unwrap();
    });
    reader.try_lock().unwrap().unwrap().unlock().unwrap();
    guard.unlock().unwrap();
    assert_eq!(moving.target().size(), 0);
}

#[test]
fn a_reader_whose_timeout_key_moved_first_is_renewed() {
    let cluster = start(2, 0);
    let client = built(builder_of(&cluster).watchdog_lease(SOON));
    let guard = client.read_write_lock("a").read_lock().lock().unwrap();
    let target = elsewhere(&cluster, "a");
    let moving = cluster.begin_move(cluster.slot_of("a"), &target).unwrap();
    let level = format!("{{a}}:{}:rwlock_timeout:1", guard.owner());
    moving.move_keys(&[&level]).unwrap();
    wait_until("it is refused", SOON, || client.stats().unanswered_renewals > 2);
    assert_eq!(client.stats().renewed, 0);
    assert!(guard.is_held());
    moving.move_all_keys().unwrap();
    moving.finish().unwrap();
    wait_until("it is renewed", SOON, || client.stats().renewed > 0);
    assert!(target.command(&["PTTL", &level]).integer() > 8000);
    guard.unlock().unwrap();
    assert_eq!(target.size(), 0);
}

#[test]
fn a_node_that_joins_is_used_for_its_slots() {
    let cluster = start(2, 0);
    let (client, waiter) = (built(builder_of(&cluster).watchdog_lease(LEASE)), client_of(&cluster));
    let names: Vec<String> = (0..20).map(|number| format!("joins:{number}")).collect();
    let guards: Vec<_> = names.iter().map(|name| client.lock(name).lock().unwrap()).collect();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| waiter.lock(&names[0]).lock().unwrap().unlock().unwrap());
        wait_for_a_waiter(&waiter);
        wait_for_a_listener(&cluster, &names[0]);
        let added = cluster.add_master();
        for name in &names {
            cluster.move_slot(cluster.slot_of(name), &added);
        }
        let renewed = client.stats().renewed + 20;
        wait_until("all are renewed there", SOON, || client.stats().renewed >= renewed);
        assert_eq!(added.size(), 20);
        wait_for_a_listener(&cluster, &names[0]);
        let ((), took) = timed(|| {
            for guard in guards {
                guard.unlock().unwrap();
            }
            waiting.join().unwrap();
        });
        assert!(took < AT_ONCE, "{took:?}");
        assert_eq!(added.size(), 0);
    });
    assert_eq!(client.stats().lost, 0);
}

#[test]
fn several_locks_of_migrating_slot_are_acquired_and_released() {
    let cluster = start(3, 0);
    let client = client_of(&cluster);
    let (a, b) = ("{s}a", "{s}b");
    let many = client.lock_many(&[a, b]);
    many.lock().unwrap().unlock().unwrap();
    let moving = cluster.begin_move(cluster.slot_of(a), &elsewhere(&cluster, a)).unwrap();
    // Neither key is there, so each request for both is refused.
    let guard = many.try_lock().unwrap().unwrap();
    guard.unlock().unwrap();
    moving.finish().unwrap();

    let guard = many.lock().unwrap();
    let moving = cluster.begin_move(cluster.slot_of(a), &elsewhere(&cluster, a)).unwrap();
    // The keys are on two nodes.
    moving.move_keys(&[a]).unwrap();
    guard.unlock().unwrap();
    for name in [a, b] {
        assert!(!client.lock(name).is_locked().unwrap());
    }
    moving.finish().unwrap();
}
