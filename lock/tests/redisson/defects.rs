//! Defects of Redisson that we do not have: a test for each that has none beside the tests of its
//! kind.
//!
//! The numbers are those of the list that this library was written against. Where each is tested:
//!
//! | defect of Redisson | tested in |
//! |---|---|
//! | D1: with a dead head, a free fair lock is asked for without a pause | `fair/queue.rs` |
//! | D2: a read unlock under a write hold ends its renewal | `read_write/redisson.rs` |
//! | D3: the lease of one hold is left in the lock object for the next | here |
//! | D4: a lease that is nested in a watched hold shortens it and ends its renewal | here |
//! | D5: the wait of a fair lock is sent in the wrong unit | here |
//! | D6: errors and interrupts leave dead queue entries | `fair/queue.rs`, `lifecycle/panics.rs` |
//! | D7: a wake between the reply and the sleep is lost | here |
//! | D8: a read unlock under a write hold shortens that | `read_write/contract.rs` |
//! | D9: a writer that keeps reading wakes no reader | `read_write/waiting.rs` |
//! | D10: fenced: no expiry counts as held, a lease is ignored, one try blocks | here |
//! | D11: a multi-lock multiplies its lease, stops releasing at an error | `multi/acquire.rs` |
//! | D11: a multi-lock puts its lease on queues and token counters | here |
//! | D12: one refused renewal script keeps the others from being sent | here |
//! | D13: an acquire that is sent again counts twice | here |
//! | D14: queries are answered by replicas | here |
//! | D15: a tagged latch fails in a cluster; a deleted one keeps waiters | `locks/semaphore/latch.rs` |
//! | D16: a timed wait leaves its subscription | `semaphore/counting.rs` |
//! | D17: the unlock of a fair lock that is gone succeeds | `fair/contract.rs` |
//! | D18: a release after the lease frees it and reports failure | `locks/semaphore/expirable.rs` |
//! | D20: a repeated unlock of a lost read hold succeeds | `read_write/contract.rs` |
//! | D22: a writer's nesting adds leases | `read_write/contract.rs` |
//!
//! Two do not concern us. D19 is of `getMultiLock(group, values)`, which has no counterpart here.
//! D21 is of sharded channels in a cluster that moves its slots, and there is no cluster here. Of
//! D10, that an acquire is not undone when replicas do not confirm it: nothing here waits for
//! replicas. Of D14 only so much can be tested as one server shows: that it is asked, and asked
//! anew; a client knows of no other.

#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

use std::cell::OnceCell;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::common::in_memory::InMemory;
use crate::common::stores::{TestStore, on_both_stores};
use crate::common::{ProxiedServer, SLACK, SOON, Script, built, now, timed, wait_for_a_waiter};
use crossbeam_channel::bounded;
use wheellock::{Client, Error, Lock, LostReason, ManualClock, Wait};
use wheellock_fixture::{Fault, Request, Server, wait_until};

const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(30);
const POLL_BOUND: Duration = SECOND;

/// A lock of each kind that can be nested or at least be taken twice in a row.
fn nestable(client: &Client) -> [Lock; 5] {
    let read_write = client.read_write_lock("read");
    [
        client.lock("plain"),
        client.fair_lock("fair"),
        client.spin_lock("spin"),
        read_write.read_lock(),
        client.read_write_lock("write").write_lock(),
    ]
}

/// A request that runs a script, for the lock of that name.
fn runs_a_script_for(name: &str) -> impl Fn(&Request) -> bool + Send + use<> {
    let name = name.as_bytes().to_vec();
    move |request| {
        matches!(request.name().as_str(), "EVALSHA" | "EVAL") && request.arguments.contains(&name)
    }
}

#[test]
fn d3_the_lease_of_one_hold_is_not_the_lease_of_the_next() {
    let setup = InMemory::new();
    let client = setup.client();
    for lock in nestable(&client) {
        let leased = lock.clone().with_lease(SECOND * 5);
        let ended = leased.lock().unwrap();
        let name = ended.name();
        assert!(setup.time_to_live(&name) <= SECOND * 5, "{name}");
        // Nobody unlocks it.
        setup.clock.advance(SECOND * 6);
        assert!(!ended.is_held(), "{name}");

        let watched = lock.lock().unwrap();
        assert_eq!(setup.time_to_live(&name), LEASE, "{name}");
        setup.clock.advance(SECOND * 50);
        assert!(watched.is_held(), "{name}");
        assert!(setup.time_to_live(&name) >= SECOND * 19, "{name}");
        drop(ended);
        assert!(watched.is_held(), "{name}: the end of the old hold is not its end");
        watched.unlock().unwrap();

        let again = leased.lock().unwrap();
        assert!(setup.time_to_live(&name) <= SECOND * 5, "{name}: nor the other way round");
        setup.clock.advance(SECOND * 6);
        assert_eq!(again.lost().try_recv(), Ok(LostReason::Expired), "{name}: it is not renewed");
    }
}

#[test]
fn d4_nested_lease_does_not_shorten_or_stop_outer_renewal() {
    let setup = InMemory::new();
    let client = setup.client();
    for lock in nestable(&client) {
        let outer = lock.lock().unwrap();
        let name = outer.name();
        let inner = lock.with_lease(SECOND * 5).lock().unwrap();
        assert_eq!(setup.time_to_live(&name), LEASE, "{name}: not shortened");
        assert!(outer.remaining() > SECOND * 25, "{name}");
        setup.clock.advance(SECOND * 40);
        assert!(setup.time_to_live(&name) >= SECOND * 19, "{name}: renewed beside the inner");
        assert!(outer.is_held() && inner.is_held(), "{name}");
        inner.unlock().unwrap();
        assert!(setup.time_to_live(&name) >= SECOND * 19, "{name}: not shortened at its end");
        setup.clock.advance(SECOND * 100);
        assert!(outer.is_held(), "{name}: renewed after the inner");
        assert!(setup.time_to_live(&name) >= SECOND * 19, "{name}");
        outer.unlock().unwrap();
    }
    assert_eq!(client.stats().lost, 0);
}

/// The waiters in the queue of the fair lock, and for how many milliseconds each still counts as
/// live.
fn line(server: &Server) -> Vec<(String, i64)> {
    let owners = server.command(&["LRANGE", "redisson_lock_queue:{a}", "0", "-1"]).texts();
    let left = |owner: String| {
        let moment = server.command(&["ZSCORE", "redisson_lock_timeout:{a}", &owner]).text();
        // After the moment: one who asks again between the two must not seem to be believed for
        // longer.
        let time = server.command(&["TIME"]).texts();
        let now = time[0].parse::<i64>().unwrap() * 1000 + time[1].parse::<i64>().unwrap() / 1000;
        (owner, moment.parse::<i64>().unwrap() - now)
    };
    owners.into_iter().map(left).collect()
}

#[test]
fn d5_leased_fair_waiter_has_same_deadline_as_watched_waiter() {
    // They are believed in for 30 s, and say so each time they ask, which both do once a second.
    let usual = 20_000..=30_000;
    let server = Server::start();
    let connect = || built(Client::builder().url(&server.url()));
    let (holder, early, late) = (connect(), connect(), connect());
    for lease in [None, Some(SECOND * 20)] {
        let wanted = |client: &Client| {
            let lock = client.fair_lock("a");
            lease.map_or(lock.clone(), |lease| lock.with_lease(lease))
        };
        let guard = holder.fair_lock("a").lock().unwrap();
        let (cancel, cancelled) = bounded::<()>(1);
        thread::scope(|scope| {
            let first = scope.spawn(|| {
                wanted(&early)
                    .try_lock_with(Wait::at_most(SECOND * 30).or_cancelled(&cancelled))
                    .map(drop)
            });
            wait_until("the first is in the queue", SOON, || line(&server).len() == 1);
            let second = scope.spawn(|| wanted(&late).try_lock_for(SECOND * 30).unwrap().is_some());
            wait_until("the second is in the queue", SOON, || line(&server).len() == 2);
            let both = line(&server);
            for (owner, left) in &both {
                assert!(usual.contains(left), "{owner} is believed in for {left} ms, {lease:?}");
            }

            drop(cancel);
            assert!(matches!(first.join().unwrap(), Err(Error::Cancelled { .. })));
            // Whoever looks takes the dead off the line.
            assert!(holder.fair_lock("a").with_owner("other").try_lock().unwrap().is_none());
            let left = line(&server);
            assert_eq!((left.len(), &left[0].0), (1, &both[1].0), "{lease:?}");
            assert!(usual.contains(&left[0].1), "pulled forward: {left:?}, {lease:?}");
            guard.unlock().unwrap();
            assert!(second.join().unwrap());
        });
    }
}

/// Ends a hold in Redisson's manner while the waiter's try is under way, so that the message comes
/// before its refusal.
fn wake_before_the_reply(
    setup: &ProxiedServer,
    source: &str,
    channel: &str,
    message: &str,
    lock: impl FnOnce(&Client) -> Lock,
) {
    let client = setup.patient();
    // A waiter for something else on the same subscription, which brings its messages in their
    // order.
    let order = setup.rival().lock("order").lock().unwrap();
    let hash = setup.server.command(&["SCRIPT", "LOAD", &crate::common::code(source)]).text();
    let mut tries = 0;
    let second_try = move |request: &Request| {
        let matches = request.name() == "EVALSHA" && request.argument(1) == hash;
        let is_of_a = matches && request.arguments.contains(&b"a".to_vec());
        tries += u32::from(is_of_a);
        is_of_a && tries == 2
    };
    thread::scope(|scope| {
        let in_order = scope.spawn(|| client.lock("order").lock().map(drop));
        wait_for_a_waiter(&client);
        let held_back = setup.proxy.on(second_try, Fault::HoldReply);
        let wanted = lock(&client);
        let waiting = scope.spawn(move || wanted.lock().map(|guard| (now(), drop(guard)).0));
        // The first try was refused and it listens. The second was refused too, and does not know
        // it yet.
        held_back.wait_for_hit(SOON);
        setup.server.command(&["DEL", "a"]);
        setup.server.command(&["PUBLISH", channel, message]);
        order.unlock().unwrap();
        in_order.join().unwrap().unwrap();
        let told_at = now();
        held_back.deliver();
        let took = waiting.join().unwrap().unwrap().saturating_duration_since(told_at);
        assert!(took < POLL_BOUND / 2, "it slept for {took:?}");
    });
}

#[test]
fn d7_a_wake_between_the_reply_and_the_sleep_is_not_lost() {
    let setup = ProxiedServer::new();
    setup.server.command(&["HSET", "a", "java:1", "1"]);
    setup.server.command(&["PEXPIRE", "a", "30000"]);
    let acquire = include_str!("../../src/ops/scripts/acquire.lua");
    let channel = "redisson_lock__channel:{a}";
    wake_before_the_reply(&setup, acquire, channel, "0", |client| client.lock("a"));
}

#[test]
fn d7_reader_wake_between_reply_and_sleep_is_not_lost() {
    let setup = ProxiedServer::new();
    setup.server.command(&["HSET", "a", "mode", "write", "java:1:write", "1"]);
    setup.server.command(&["PEXPIRE", "a", "30000"]);
    let acquire = include_str!("../../src/ops/scripts/read_acquire.lua");
    let read = |client: &Client| client.read_write_lock("a").read_lock();
    wake_before_the_reply(&setup, acquire, "redisson_rwlock:{a}", "1", read);
}

#[test]
fn d10_fenced_lock_without_expiry_is_busy_and_draws_no_token() {
    let server = Server::start();
    let connect = || built(Client::builder().url(&server.url()));
    let (holder, rival) = (connect(), connect());
    let guard = holder.fenced_lock("a").lock().unwrap();
    let wanted = rival.fenced_lock("a");
    server.command(&["PERSIST", "a"]);
    assert_eq!(wanted.remaining_lease().unwrap(), Some(Duration::MAX));
    assert!(wanted.try_lock().unwrap().is_none());
    let wait = Duration::from_millis(100);
    assert!(wanted.try_lock_for(wait).unwrap().is_none());
    assert!(wanted.clone().with_lease(LEASE).try_lock_for(wait).unwrap().is_none());
    assert_eq!(wanted.last_token().unwrap(), guard.token(), "no token was drawn");
    assert_eq!(wanted.hold_count(), 0);
    assert_eq!(server.command(&["HKEYS", "a"]).texts(), [guard.owner()]);
    assert!(guard.is_held());
}

on_both_stores! {
    fn d10_the_lease_of_a_fenced_lock_is_kept_to(setup: &TestStore) {
        let client = setup.client();
        let lease = Duration::from_millis(300);
        let guard = client.fenced_lock("a").with_lease(lease).lock().unwrap();
        assert!(guard.token() > 0 && guard.remaining() <= lease);
        assert!(setup.time_to_live("a").unwrap() <= lease);
        assert_eq!(guard.lost().recv_timeout(SOON), Ok(LostReason::Expired));
        let waiting = client.fenced_lock("a").with_lease(LEASE * 2).try_lock_for(SOON).unwrap();
        let next = waiting.unwrap();
        assert!(next.token() > guard.token());
        assert!(setup.time_to_live("a").unwrap() > LEASE);
    }

    fn d10_one_try_of_a_fenced_lock_that_is_busy_does_not_wait(setup: &TestStore) {
        let (holder, rival) = (setup.client(), setup.client());
        let guard = holder.fenced_lock("a").lock().unwrap();
        let (tried, took) = timed(|| rival.fenced_lock("a").try_lock());
        assert!(tried.unwrap().is_none());
        assert!(took < SLACK, "{took:?}");
        assert_eq!(rival.stats().waiters, 0);
        assert!(guard.is_held());
    }

    fn d14_whether_a_lock_is_held_is_asked_of_the_server_each_time(setup: &TestStore) {
        let (holder, other) = (setup.client(), setup.client());
        let [held, seen] = [&holder, &other].map(|client| client.lock("a"));
        for _ in 0..3 {
            let guard = held.lock().unwrap();
            assert!(held.is_locked().unwrap() && seen.is_locked().unwrap());
            assert!(seen.remaining_lease().unwrap().unwrap() > LEASE / 2);
            // Not even its holder answers from what it remembers.
            setup.delete("a");
            assert!(!held.is_locked().unwrap() && !seen.is_locked().unwrap());
            assert_eq!(held.remaining_lease().unwrap(), None);
            assert!(matches!(guard.unlock(), Err(Error::Lost { .. })));
        }
    }
}

#[test]
fn d11_leased_multi_lock_sets_no_expiry_on_queues_or_tokens() {
    let server = Server::start();
    let connect = || built(Client::builder().url(&server.url()));
    let (client, waiter) = (connect(), connect());
    let (fair, fenced) = (client.fair_lock("a"), client.fenced_lock("b"));
    let multi = client.multi_lock(&[&fair, &fenced]).with_lease(SECOND * 20);
    let outer = multi.lock().unwrap();
    thread::scope(|scope| {
        let behind = scope.spawn(|| waiter.fair_lock("a").lock().map(drop));
        wait_until("there is a waiter in the queue", SOON, || line(&server).len() == 1);
        let inner = multi.lock().unwrap();
        let tokens = "redisson_lock_token:{b}";
        for key in ["redisson_lock_queue:{a}", "redisson_lock_timeout:{a}", tokens] {
            assert_eq!(server.command(&["PTTL", key]).integer(), -1, "{key}");
        }
        inner.unlock().unwrap();
        outer.unlock().unwrap();
        behind.join().unwrap().unwrap();
        assert_eq!(server.command(&["PTTL", tokens]).integer(), -1);
    });
}

#[test]
fn d14_each_query_is_one_command_at_the_master() {
    let server = Server::start();
    let client = built(Client::builder().url(&server.url()));
    let _guard = client.lock("a").lock().unwrap();
    for command in ["exists", "pttl"] {
        let before = server.command_calls(command);
        for _ in 0..3 {
            if command == "exists" {
                assert!(client.lock("a").is_locked().unwrap());
            } else {
                assert!(client.lock("a").remaining_lease().unwrap().is_some());
            }
        }
        assert_eq!(server.command_calls(command), before + 3, "{command}");
    }
}

#[test]
fn d12_refused_renewal_script_does_not_stop_remaining_renewals() {
    let setup = ProxiedServer::new();
    let clock = ManualClock::new();
    // Eight scripts of five keys, of which four are on their way at the same time.
    let builder = Client::builder().url(&setup.proxy.url()).clock(Arc::new(clock.clone()));
    let client = built(builder.renewal_batch(5, 5));
    let guards: Vec<_> =
        (0..40).map(|number| client.lock(&format!("lock {number}")).lock().unwrap()).collect();
    let refusal = || Fault::AnswerInstead(b"-ERR no\r\n".to_vec());
    // The first of all, with each of the keys that it brings; and again whatever it is cut into.
    let is_renewal = setup.is_any(Script::Renew);
    let mut doomed: Option<Vec<Vec<u8>>> = None;
    let refused = setup
        .proxy
        .on(
            move |request| {
                let keys = || request.arguments[3..].iter().filter(|key| key.starts_with(b"lock "));
                if !is_renewal(request) {
                    return false;
                }
                let doomed = doomed.get_or_insert_with(|| keys().cloned().collect());
                keys().any(|key| doomed.contains(key))
            },
            refusal(),
        )
        .always();
    clock.jump(SECOND * 15);
    assert!(refused.hits() > 0);
    assert_eq!(client.stats().renewed, 35, "seven of eight scripts");
    clock.advance(SECOND * 30);
    let held = guards.iter().filter(|guard| guard.is_held()).count();
    assert_eq!((held, client.stats().lost), (35, 5));
    refused.withdraw();
    clock.advance(SECOND * 60);
    assert_eq!(client.stats().lost, 5);
}

/// What is taken and given back, and whether the server has it once and not at all.
type TakeAndReturn = fn(&ProxiedServer, &Client, &dyn Fn());

/// Each on servers of its own, at the same time: what has to be waited for are timeouts.
fn lose_the_replies(turns: &[TakeAndReturn]) {
    thread::scope(|scope| {
        for turn in turns {
            scope.spawn(|| lose_the_reply(*turn));
        }
    });
}

/// Takes it twice: the first time the server learns the scripts, the second time the reply is lost.
fn lose_the_reply(turn: TakeAndReturn) {
    for fault in [Fault::SwallowReply, Fault::ResetBeforeReply] {
        let setup = ProxiedServer::new();
        let client = built(setup.builder().command_timeout(SECOND));
        turn(&setup, &client, &|| {});
        let aimed = |fault: Fault| setup.proxy.on(runs_a_script_for("a"), fault);
        let aim = OnceCell::new();
        turn(&setup, &client, &|| drop(aim.set(aimed(fault.clone()))));
        assert_eq!(aim.get().unwrap().hits(), 1, "{fault:?}");
        wait_until("no release is queued", SOON, || client.stats().queued_releases == 0);
        turn(&setup, &client, &|| {});
    }
}

/// Takes a lock and finds its owner once; releases it and finds nothing.
fn lock_once(setup: &ProxiedServer, lock: &Lock, lose: &dyn Fn()) {
    lose();
    let guard = lock.lock().unwrap();
    let hash = setup.hash("a");
    let counts: Vec<&str> = hash
        .iter()
        .filter(|(field, _)| field.starts_with(guard.owner()))
        .map(|(_, count)| count.as_str())
        .collect();
    assert_eq!(counts, ["1"], "{hash:?}");
    guard.unlock().unwrap();
    assert!(!setup.exists("a"), "one release is enough");
}

#[test]
fn d13_an_acquire_whose_reply_was_lost_counts_once() {
    lose_the_replies(&[
        |setup, client, lose| lock_once(setup, &client.lock("a"), lose),
        |setup, client, lose| lock_once(setup, &client.fair_lock("a"), lose),
        |setup, client, lose| lock_once(setup, &client.non_reentrant_lock("a"), lose),
        |setup, client, lose| lock_once(setup, &client.read_write_lock("a").read_lock(), lose),
        |setup, client, lose| lock_once(setup, &client.read_write_lock("a").write_lock(), lose),
        |setup, client, lose| {
            lose();
            let guard = client.fenced_lock("a").lock().unwrap();
            assert_eq!(setup.hash("a"), [(guard.owner().to_owned(), "1".to_owned())]);
            assert_eq!(client.fenced_lock("a").last_token().unwrap(), guard.token());
            guard.unlock().unwrap();
            assert!(!setup.exists("a"), "one release is enough");
        },
    ]);
}

#[test]
fn d13_a_nested_acquire_whose_reply_was_lost_counts_once() {
    lose_the_reply(|setup, client, lose| {
        let outer = client.lock("a").lock().unwrap();
        lose();
        let inner = client.lock("a").lock().unwrap();
        assert_eq!(setup.count("a"), "2");
        inner.unlock().unwrap();
        assert_eq!(setup.count("a"), "1");
        outer.unlock().unwrap();
        assert!(!setup.exists("a"));
    });
}

#[test]
fn d13_permits_whose_acquire_lost_its_reply_are_taken_once() {
    lose_the_replies(&[
        |_, client, lose| {
            let semaphore = client.semaphore("a");
            semaphore.try_set_permits(5).unwrap();
            lose();
            semaphore.acquire(2).unwrap().forget();
            assert_eq!(semaphore.available_permits().unwrap(), 3);
            semaphore.release(2).unwrap();
            assert_eq!(semaphore.available_permits().unwrap(), 5);
        },
        |_, client, lose| {
            let semaphore = client.expirable_semaphore("a");
            semaphore.try_set_permits(5).unwrap();
            lose();
            let permits = semaphore.acquire_many(2).unwrap();
            assert_eq!(semaphore.available_permits().unwrap(), 3);
            permits.release().unwrap();
            assert_eq!(semaphore.available_permits().unwrap(), 5);
        },
    ]);
}
