//! The queue of a fair lock on a real server: its order, dead waiters, and faults.

#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::Duration;

use crate::common::fair_queue::{
    LIVENESS, OURS, deadline, deadlines, no_trace, put_waiter, queue, queued, time,
    wait_for_no_trace, wait_for_queue,
};
use crate::common::{
    ProxiedServer, SLACK, SOON, Script, TIMEOUT, built, is_late, now, pause, timed,
};
use crossbeam_channel::{bounded, unbounded};
use wheellock::{Client, Error, Wait};
use wheellock_fixture::{Fault, Reply, Server, wait_until};

const POLL_BOUND: Duration = Duration::from_secs(1);
/// How many scripts the server has run.
fn scripts(server: &Server) -> u64 {
    server.command_calls("evalsha") + server.command_calls("eval")
}

fn connect(server: &Server) -> Client {
    built(Client::builder().url(&server.url()))
}

/// Starts a thread with a stack so small that a thousand of them are no burden.
fn start<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    run: impl FnOnce() -> T + Send + 'scope,
) -> ScopedJoinHandle<'scope, T> {
    thread::Builder::new().stack_size(128 * 1024).spawn_scoped(scope, run).unwrap()
}

/// Takes a lock in turn and releases it.
fn take(client: &Client, name: &str) {
    client.fair_lock(name).lock().unwrap().unlock().unwrap();
}

#[test]
fn the_script_that_takes_a_fair_lock_answers_as_its_head_says() {
    let server = Server::start();
    let [one, two, three, four, five] = OURS;
    let acquire = include_str!("../../src/ops/scripts/fair_acquire.lua");
    let release = include_str!("../../src/ops/scripts/fair_release.lua");
    let (queue, deadlines) = (queue("a"), deadlines("a"));
    let keys = ["4", "a", &queue, &deadlines, "redisson_lock__channel:{a}"];
    let not_after = time(&server) + 60_000;
    let take = |owner: &str, waits: &str, not_after: i64| {
        let not_after = not_after.to_string();
        let limits = ["20000", waits, "30000", "1000", "5000", "0", "PUBLISH", "300000"];
        let rest = [&[not_after.as_str(), owner][..], &limits].concat();
        server.command(&[&["EVAL", acquire][..], &keys, &rest].concat())
    };
    let leave = |owner: &str| {
        let rest = [owner, "0", "PUBLISH"];
        let reply = server.command(&[&["EVAL", release][..], &keys, &rest].concat());
        assert!((time(&server) - reply.array()[1].integer()).abs() < 1000);
        reply.array()[0].integer()
    };
    let mut listener = server.connection();
    drop(listener.command(&["PSUBSCRIBE", "*"]));

    assert_eq!(take(one, "1", not_after), Reply::Nil);
    assert!(no_trace(&server, "a"), "an owner that is granted it at once never queues");
    assert_eq!(take(one, "1", not_after), Reply::Nil, "a copy");
    assert_eq!(take(two, "0", not_after), Reply::Integer(1000));
    assert!(no_trace(&server, "a"));
    assert_eq!(take(two, "1", not_after), Reply::Integer(1000));
    assert_eq!(take(two, "1", not_after), Reply::Integer(1000), "a copy");
    assert_eq!(take(three, "1", not_after), Reply::Integer(1000));
    assert_eq!(take(four, "1", not_after), Reply::Integer(5000));
    assert!(is_late(&take(five, "1", 5)));
    assert_eq!(queued(&server, "a"), [two, three, four]);
    for owner in [two, three, four] {
        let left = deadline(&server, "a", owner) - time(&server);
        assert!((LIVENESS - 1000..=LIVENESS).contains(&left), "{owner}: {left}");
    }

    assert_eq!(leave(three), -1, "it is another owner's");
    assert_eq!(leave(one), 1);
    assert_eq!(leave(one), 0);
    let message = listener.receive().unwrap().texts();
    assert_eq!(message[2..], [&format!("redisson_lock__channel:{{a}}:{two}"), "0"]);
    assert_eq!(take(four, "1", not_after), Reply::Integer(1000), "not its turn");
    assert_eq!(take(two, "1", not_after), Reply::Nil);
    assert_eq!(queued(&server, "a"), [four]);
    assert_eq!(server.command(&["ZCARD", &deadlines]).integer(), 1);
    let left = server.command(&["PTTL", "a"]).integer();
    assert!((19_000..=20_000).contains(&left), "{left}");
}

#[test]
fn waiters_acquire_in_queue_order_and_leave_nothing() {
    let server = Server::start();
    let (holder, clients) =
        (connect(&server), [connect(&server), connect(&server), connect(&server)]);
    let guard = holder.fair_lock("a").lock().unwrap();
    let (done, owners) = unbounded();
    thread::scope(|scope| {
        for place in 0..12 {
            let (client, done) = (&clients[place % 3], done.clone());
            start(scope, move || {
                let guard = client.fair_lock("a").lock().unwrap();
                done.send(guard.owner().to_owned()).unwrap();
                guard.unlock().unwrap();
            });
            wait_for_queue(&server, "a", place + 1);
        }
        let expected = queued(&server, "a");
        guard.unlock().unwrap();
        let order: Vec<String> = owners.iter().take(12).collect();
        assert_eq!(order, expected);
    });
    assert!(no_trace(&server, "a"));
    wait_until("there is no subscriber", SOON, || {
        server.command(&["PUBSUB", "CHANNELS", "redisson_lock__channel*"]).array().is_empty()
    });
}

#[test]
fn d1_a_dead_head_blocks_until_its_deadline_without_a_busy_loop() {
    let server = Server::start();
    let waiters: Vec<Client> = (0..4).map(|_| connect(&server)).collect();
    take(&waiters[0], "the scripts");
    put_waiter(&server, "a", "dead:1", 2500);
    let before = scripts(&server);
    let ((), took) = timed(|| {
        thread::scope(|scope| {
            for client in &waiters {
                start(scope, || take(client, "a"));
            }
        });
    });
    assert!(took >= Duration::from_millis(2300), "it lived until then: {took:?}");
    assert!(took < Duration::from_millis(2500) + POLL_BOUND + SLACK, "{took:?}");
    let asked = scripts(&server) - before;
    // Each asks when it comes, when it listens, when it is told, and releases; and those among
    // the first two also look twice in a poll bound.
    let looks = 2 + 2 * u64::try_from(took.as_millis() / POLL_BOUND.as_millis()).unwrap();
    // A wait of more than a second is named in its client's record until it ends, and the client reads
    // the owners of the lock and the record of the holder's client.
    let for_deadlocks = 4 * 4;
    assert!(asked <= 4 * 4 + 2 * looks + for_deadlocks, "{asked} scripts in {took:?}");
    assert!(no_trace(&server, "a"));
}

#[test]
fn many_dead_waiters_block_the_queue_no_longer_than_one() {
    let server = Server::start();
    let (holder, victim, waiter) = (connect(&server), connect(&server), connect(&server));
    let guard = holder.fair_lock("a").lock().unwrap();
    // As a client leaves them that is killed.
    let (cancel, cancelled) = bounded::<()>(1);
    thread::scope(|scope| {
        for place in 0..8 {
            start(scope, || {
                victim
                    .fair_lock("a")
                    .try_lock_with(Wait::forever().or_cancelled(&cancelled))
                    .map(drop)
            });
            wait_for_queue(&server, "a", place + 1);
        }
        let left = queued(&server, "a")
            .iter()
            .map(|owner| deadline(&server, "a", owner) - time(&server))
            .max()
            .unwrap();
        assert!(left <= LIVENESS, "the last of them keeps it for {left} ms");
        drop(cancel);
    });
    assert!(no_trace(&server, "a"));
    for dead in 0..8 {
        put_waiter(&server, "a", &format!("dead:{dead}"), 1200);
    }
    guard.unlock().unwrap();
    let ((), took) = timed(|| take(&waiter, "a"));
    assert!(took < Duration::from_millis(1200) + POLL_BOUND + SLACK, "{took:?}");
    assert!(no_trace(&server, "a"));
}

#[test]
fn a_waiter_asks_when_the_last_of_the_dead_ahead_is_due() {
    // The waiter directly ahead is due long before the two at the front.
    let server = Server::start();
    let waiter = connect(&server);
    take(&waiter, "the scripts");
    for (dead, millis) in [1500, 1500, 300].into_iter().enumerate() {
        put_waiter(&server, "a", &format!("dead:{dead}"), millis);
    }
    let ((), took) = timed(|| take(&waiter, "a"));
    assert!(took < Duration::from_millis(1500) + SLACK, "{took:?}");
    assert!(no_trace(&server, "a"));
}

#[test]
fn queue_entry_or_deadline_without_counterpart_blocks_nothing() {
    let server = Server::start();
    let client = connect(&server);
    server.command(&["RPUSH", &queue("a"), "nobody:1"]);
    server.command(&["ZADD", &deadlines("a"), "9000000000000", "nobody:2"]);
    let (guard, took) = timed(|| client.fair_lock("a").lock().unwrap());
    assert!(took < SLACK, "{took:?}");
    assert!(no_trace(&server, "a"));
    guard.unlock().unwrap();
    assert!(client.fair_lock("a").try_lock().unwrap().is_some());
}

#[test]
fn a_waiter_that_times_out_leaves_no_trace() {
    let server = Server::start();
    let (holder, early, late) = (connect(&server), connect(&server), connect(&server));
    let guard = holder.fair_lock("a").lock().unwrap();
    thread::scope(|scope| {
        let first = start(scope, || {
            early.fair_lock("a").try_lock_for(Duration::from_millis(700)).unwrap().is_some()
        });
        wait_for_queue(&server, "a", 1);
        let owner = queued(&server, "a").remove(0);
        let second = start(scope, || take(&late, "a"));
        wait_for_queue(&server, "a", 2);
        assert!(!first.join().unwrap());
        // The renewal thread tells the server.
        wait_for_queue(&server, "a", 1);
        assert_eq!(server.command(&["ZSCORE", &deadlines("a"), &owner]), Reply::Nil);
        guard.unlock().unwrap();
        second.join().unwrap();
    });
    assert!(no_trace(&server, "a"));
}

#[test]
fn removing_dead_waiters_wakes_the_next_if_the_lock_is_free() {
    let server = Server::start();
    let (client, waiter) = (connect(&server), connect(&server));
    take(&client, "the scripts");
    put_waiter(&server, "a", "dead:1", 60_000);
    put_waiter(&server, "a", "dead:2", 60_000);
    let before = scripts(&server);
    thread::scope(|scope| {
        let waiting = start(scope, || take(&waiter, "a"));
        // When it came and when it listened; for some seconds it sleeps now.
        wait_until("it asked twice", SOON, || scripts(&server) >= before + 2);
        server.command(&["ZADD", &deadlines("a"), "1", "dead:1", "1", "dead:2"]);
        assert!(client.fair_lock("a").try_lock().unwrap().is_none());
        let ((), took) = timed(|| waiting.join().unwrap());
        assert!(took < SLACK, "{took:?}");
    });
    assert!(no_trace(&server, "a"));
}

#[test]
fn d6_a_waiter_whose_replies_are_lost_leaves_no_queue_entry() {
    for fault in [Fault::SwallowReply, Fault::ResetBeforeReply, Fault::SwallowRequest] {
        let setup = ProxiedServer::new();
        let guard = setup.rival().fair_lock("a").lock().unwrap();
        let client = setup.client();
        let aim = setup.on(Script::FairAcquire, "a", fault.clone()).always();
        let outcome = client.fair_lock("a").try_lock_for(SOON);
        assert!(outcome.is_err(), "{fault:?}: {outcome:?}");
        aim.withdraw();
        wait_for_no_trace(&setup.server, "a");
        assert!(guard.is_held());
        wait_until("no release is queued", SOON, || client.stats().queued_releases == 0);
        assert!(no_trace(&setup.server, "a"));
    }
}

#[test]
fn d6_a_lost_reply_to_leaving_the_queue_is_retried() {
    for fault in [Fault::SwallowReply, Fault::SwallowRequest, Fault::ResetBeforeRequest] {
        let setup = ProxiedServer::new();
        let guard = setup.rival().fair_lock("a").lock().unwrap();
        let client = setup.retrying();
        let aim = setup.on(Script::FairRelease, "a", fault);
        let outcome = client.fair_lock("a").try_lock_for(TIMEOUT * 2);
        assert!(matches!(outcome, Ok(None)), "{outcome:?}");
        aim.wait_for_hit(SOON);
        wait_for_no_trace(&setup.server, "a");
        guard.unlock().unwrap();
    }
}

#[test]
fn d6_late_copy_of_departed_waiter_is_removed_from_queue() {
    let setup = ProxiedServer::new();
    let guard = setup.rival().fair_lock("a").lock().unwrap();
    let client = setup.patient();
    let kept = setup.withhold(Script::FairAcquire, "a");
    let (cancel, cancelled) = bounded::<()>(1);
    thread::scope(|scope| {
        scope.spawn(|| {
            kept.wait();
            setup.proxy.cut_all();
            wait_for_queue(&setup.server, "a", 1);
            drop(cancel);
        });
        let outcome = client.fair_lock("a").try_lock_with(Wait::forever().or_cancelled(&cancelled));
        assert!(matches!(outcome, Err(Error::Cancelled { .. })), "{outcome:?}");
    });
    wait_for_no_trace(&setup.server, "a");
    assert_eq!(kept.deliver(), Reply::Integer(1000), "the copy was to queue");
    wait_for_no_trace(&setup.server, "a");
    assert!(setup.now() <= kept.not_after() + 2000, "the clean-up comes right after the not-after");
    wait_until("no release is queued", SOON, || client.stats().queued_releases == 0);
    guard.unlock().unwrap();
}

#[test]
fn d6_a_copy_that_arrives_after_its_not_after_does_not_queue() {
    let setup = ProxiedServer::new();
    let guard = setup.rival().fair_lock("a").lock().unwrap();
    let kept = setup.withhold(Script::FairAcquire, "a");
    let outcome = setup.client().fair_lock("a").try_lock_for(TIMEOUT * 6);
    assert!(matches!(outcome, Ok(None)), "{outcome:?}");
    wait_for_no_trace(&setup.server, "a");
    assert!(is_late(&kept.deliver_late(&setup)));
    assert!(no_trace(&setup.server, "a"));
    guard.unlock().unwrap();
}

#[test]
fn a_queued_wait_ends_on_time_while_the_server_is_stopped() {
    let mut latenesses = Vec::new();
    for _ in 0..5 {
        let server = Server::start();
        let (holder, waiter) = (connect(&server), connect(&server));
        let _guard = holder.fair_lock("a").lock().unwrap();
        let (wait, before) = (Duration::from_millis(700), scripts(&server));
        thread::scope(|scope| {
            let waiting = start(scope, || {
                timed(|| waiter.fair_lock("a").try_lock_for(wait).map(|got| got.is_some()))
            });
            wait_for_queue(&server, "a", 1);
            // When it came and when it listened; then it sleeps.
            wait_until("it asked twice", SOON, || scripts(&server) >= before + 2);
            server.pause();
            let (outcome, took) = waiting.join().unwrap();
            assert_ne!(outcome, Ok(true));
            latenesses.push(took.saturating_sub(wait));
            server.resume();
        });
        // What is left of it in the queue is cleared up in the background.
        wait_for_no_trace(&server, "a");
    }
    latenesses.sort_unstable();
    // The best of them: the others are what a busy machine makes of it.
    assert!(latenesses[0] < Duration::from_millis(100), "{latenesses:?}");
}

#[test]
fn a_grant_whose_reply_is_lost_is_granted_once() {
    let setup = ProxiedServer::new();
    let client = setup.retrying();
    for fault in [Fault::SwallowReply, Fault::ResetBeforeReply, Fault::SwallowRequest] {
        let _aim = setup.on(Script::FairAcquire, "a", fault);
        let guard = client.fair_lock("a").lock().unwrap();
        assert_eq!(setup.hash("a"), [(guard.owner().to_owned(), "1".to_owned())]);
        guard.unlock().unwrap();
        wait_until("no release is queued", SOON, || client.stats().queued_releases == 0);
        assert!(!setup.exists("a") && no_trace(&setup.server, "a"));
    }
}

#[test]
fn waiter_keeps_queue_place_after_lost_connections_and_messages() {
    let setup = ProxiedServer::new();
    let (holder, waiter) = (setup.rival(), setup.patient());
    let guard = holder.fair_lock("a").lock().unwrap();
    thread::scope(|scope| {
        let waiting = start(scope, || take(&waiter, "a"));
        wait_for_queue(&setup.server, "a", 1);
        let owner = queued(&setup.server, "a");
        setup.server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        setup.server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
        let before = scripts(&setup.server);
        wait_until("it asks again", SOON, || scripts(&setup.server) > before);
        assert_eq!(queued(&setup.server, "a"), owner);
        setup.proxy.lose_messages(true);
        guard.unlock().unwrap();
        let ((), took) = timed(|| waiting.join().unwrap());
        assert!(took < POLL_BOUND + SLACK, "{took:?}");
    });
}

#[test]
fn a_live_waiter_that_was_removed_as_dead_queues_again() {
    let server = Server::start();
    let (holder, waiter, other) = (connect(&server), connect(&server), connect(&server));
    let guard = holder.fair_lock("a").lock().unwrap();
    thread::scope(|scope| {
        let waiting = start(scope, || take(&waiter, "a"));
        wait_for_queue(&server, "a", 1);
        let owner = queued(&server, "a");
        wait_until("it sleeps", SOON, || waiter.stats().waiters == 1);
        pause(Duration::from_millis(100));
        // As if it had been stopped for that long.
        server.command(&["ZADD", &deadlines("a"), "1", &owner[0]]);
        assert!(other.fair_lock("a").try_lock().unwrap().is_none());
        wait_for_queue(&server, "a", 1);
        assert_eq!(queued(&server, "a"), owner);
        assert!(deadline(&server, "a", &owner[0]) > time(&server));
        guard.unlock().unwrap();
        waiting.join().unwrap();
    });
    assert!(no_trace(&server, "a"));
}

#[test]
fn a_waiter_that_tries_extends_its_deadline() {
    let server = Server::start();
    let (holder, waiter) = (connect(&server), connect(&server));
    let guard = holder.fair_lock("a").lock().unwrap();
    thread::scope(|scope| {
        let waiting = start(scope, || take(&waiter, "a"));
        wait_for_queue(&server, "a", 1);
        let owner = queued(&server, "a").remove(0);
        let first = deadline(&server, "a", &owner);
        wait_until("it moves", SOON, || deadline(&server, "a", &owner) >= first + 900);
        guard.unlock().unwrap();
        waiting.join().unwrap();
    });
}

#[test]
fn next_waiter_owns_fair_lock_at_once_after_short_lease_ends() {
    let server = Server::start();
    let (holder, clients) =
        (connect(&server), [connect(&server), connect(&server), connect(&server)]);
    let guard = holder.fair_lock("a").lock().unwrap();
    let short = Duration::from_millis(600);
    let (kept, lost) = unbounded();
    thread::scope(|scope| {
        for (place, client) in clients.iter().enumerate() {
            let kept = kept.clone();
            start(scope, move || {
                // It never unlocks in time.
                let guard = client.fair_lock("a").with_lease(short).lock().unwrap();
                kept.send(now()).unwrap();
                wait_until("it is lost", SOON, || !guard.is_held());
                assert!(matches!(guard.unlock(), Err(Error::Lost { .. })));
            });
            wait_for_queue(&server, "a", place + 1);
        }
        guard.unlock().unwrap();
        let (held, took) = timed(|| lost.iter().take(3).count());
        assert_eq!(held, 3);
        assert!(took < short * 2 + SLACK, "{took:?}");
    });
}

#[test]
fn the_next_waiter_acquires_within_milliseconds_of_a_release() {
    let server = Server::start();
    let (holder, waiter) = (connect(&server), connect(&server));
    take(&holder, "the scripts");
    let mut delays = Vec::new();
    for round in 0..11 {
        let name = format!("round {round}");
        let guard = holder.fair_lock(&name).lock().unwrap();
        let before = scripts(&server);
        thread::scope(|scope| {
            let waiting = start(scope, || {
                let guard = waiter.fair_lock(&name).lock().unwrap();
                let owned_at = now();
                guard.unlock().unwrap();
                owned_at
            });
            wait_until("it asked twice", SOON, || scripts(&server) >= before + 2);
            wait_until("it sleeps", SOON, || waiter.stats().waiters == 1);
            let released_at = now();
            guard.unlock().unwrap();
            delays.push(waiting.join().unwrap().saturating_duration_since(released_at));
        });
    }
    delays.sort_unstable();
    // A message that is missed costs a second or more.
    assert!(delays[5] < Duration::from_millis(100), "a hand-over usually takes {:?}", delays[5]);
}

#[test]
fn a_server_out_of_memory_releases_a_fair_lock_and_its_queue() {
    let server = Server::start();
    let (holder, waiter) = (connect(&server), connect(&server));
    let guard = holder.fair_lock("a").lock().unwrap();
    take(&waiter, "the scripts");
    let (cancel, cancelled) = bounded::<()>(1);
    thread::scope(|scope| {
        let waiting = start(scope, || {
            waiter.fair_lock("a").try_lock_with(Wait::forever().or_cancelled(&cancelled)).map(drop)
        });
        wait_for_queue(&server, "a", 1);
        wait_until("it sleeps", SOON, || waiter.stats().waiters == 1);
        server.command(&["CONFIG", "SET", "maxmemory", "1"]);
        let before = scripts(&server);
        wait_until("it asks again", SOON, || scripts(&server) > before);
        drop(cancel);
        let outcome = waiting.join().unwrap();
        assert!(matches!(outcome, Err(Error::Cancelled { .. })), "{outcome:?}");
        assert!(no_trace(&server, "a"));
        guard.unlock().unwrap();
    });
    assert_eq!(server.command(&["EXISTS", "a"]).integer(), 0);
}

#[test]
fn a_thousand_waiters_are_served_in_order_with_two_scripts_each() {
    const WAITERS: usize = 1000;
    let server = Server::start();
    let (holder, client) = (connect(&server), connect(&server));
    let guard = holder.fair_lock("a").lock().unwrap();
    let (done, owners) = unbounded();
    thread::scope(|scope| {
        for place in 0..WAITERS {
            let (client, done) = (&client, done.clone());
            start(scope, move || {
                let guard = client.fair_lock("a").lock().unwrap();
                done.send(guard.owner().to_owned()).unwrap();
                guard.unlock().unwrap();
            });
            wait_until("it is in the queue", SOON, || {
                server.command(&["LLEN", &queue("a")]).integer()
                    == i64::try_from(place + 1).unwrap()
            });
        }
        let expected = queued(&server, "a");
        wait_until("all sleep", SOON, || client.stats().waiters == WAITERS);
        let (quiet, begun) = (scripts(&server), now());
        wait_until("two seconds have passed", SOON, || {
            now().saturating_duration_since(begun) > Duration::from_secs(2)
        });
        let idle = scripts(&server) - quiet;
        assert!(idle < 1000, "a thousand that wait ask {idle} times in 2 s");
        let (before, begun) = (scripts(&server), now());
        guard.unlock().unwrap();
        let order: Vec<String> = owners.iter().take(WAITERS).collect();
        let took = now().saturating_duration_since(begun);
        assert_eq!(order, expected);
        let asked = scripts(&server) - before;
        let looks = (took.as_secs() + 1) * 250;
        assert!(asked <= 2 * 1000 + 100 + looks, "{asked} scripts in {took:?}");
    });
    assert!(no_trace(&server, "a"));
}
