//! The subscription connection under faults: it breaks and comes back, is blocked, denied a
//! channel, or flooded. No caller waits for it, and no waiter is forgotten.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::fake::{FakeServer, array};
use crate::common::{
    LIMIT, ProxiedServer, SOON, Script, TIMEOUT, built, ended, limit_user, limited_user, now,
    pause, timed, wait_for_a_waiter, without_polls,
};
use crate::waiting_threads::{
    IN_TIME, POLL_BOUND, connect, listeners, scripts, start, take, wait_for_the_head,
    wait_for_waiters,
};
use crossbeam_channel::bounded;
use wheellock::{Client, ClientBuilder, Error, ManualClock, Wait};
use wheellock_fixture::{Fault, Proxy, Request, Server, wait_until};

#[test]
fn a_blocked_subscription_delays_nothing() {
    /// So many that their channels are more than the sockets on the way hold.
    const WAITERS: usize = 200;
    const WAIT: Duration = Duration::from_millis(50);
    /// A write would take a command timeout. What does not wait for it ends long before.
    const BOUND: Duration = Duration::from_secs(10);
    let setup = ProxiedServer::new();
    let client = built(setup.builder().command_timeout(BOUND * 2));
    let holder = setup.rival();
    let name = |number: usize| format!("{number}:{}", "x".repeat(60_000));
    let held: Vec<_> =
        (0..WAITERS).map(|number| holder.lock(&name(number)).lock().unwrap()).collect();
    let other: Vec<_> =
        (0..10).map(|number| holder.lock(&number.to_string()).lock().unwrap()).collect();
    let own = client.lock("own").lock().unwrap();
    let deaf = setup.proxy.on(|request| request.name() == "SUBSCRIBE", Fault::StopReading).always();
    let tries = setup.proxy.on(setup.is_any(Script::Acquire), Fault::PassOn).always();
    let (cancel, cancelled) = bounded::<()>(0);
    thread::scope(|scope| {
        let waiters: Vec<_> = (0..WAITERS)
            .map(|number| {
                let (client, cancelled) = (client.clone(), cancelled.clone());
                let wait = move || {
                    let outcome = client
                        .lock(&name(number))
                        .try_lock_with(Wait::forever().or_cancelled(&cancelled));
                    assert!(matches!(outcome, Err(Error::Cancelled { .. })), "{outcome:?}");
                    now()
                };
                thread::Builder::new().stack_size(128 * 1024).spawn_scoped(scope, wait).unwrap()
            })
            .collect();
        tries.wait_for_hits(WAITERS, 3 * SOON);
        deaf.wait_for_hit(SOON);
        for number in 0..other.len() {
            let lock = client.lock(&number.to_string());
            let (outcome, took) = timed(|| lock.try_lock_for(WAIT));
            // On a busy machine its one try may be cut off.
            assert!(!matches!(outcome, Ok(Some(_))), "{outcome:?}");
            assert!(took < BOUND, "a wait of {WAIT:?} took {took:?}");
        }
        let ((), took) = timed(|| drop(own));
        assert!(took < BOUND, "a release took {took:?}");
        let begun = now();
        drop(cancel);
        for waiter in waiters {
            let took = waiter.join().unwrap().saturating_duration_since(begun);
            assert!(took < BOUND, "a cancelled wait took {took:?}");
        }
    });
    let ((), took) = timed(|| drop(client));
    assert!(took < BOUND, "the end of the client took {took:?}");
    drop((held, other));
}

#[test]
fn a_blocked_subscription_is_replaced() {
    let setup = ProxiedServer::new();
    let (client, holder) = (setup.patient(), setup.rival());
    let names: Vec<String> =
        (0..100).map(|number| format!("{number}:{}", "x".repeat(60_000))).collect();
    let held: Vec<_> = names.iter().map(|name| holder.lock(name).lock().unwrap()).collect();
    let deaf = setup.proxy.on(|request| request.name() == "SUBSCRIBE", Fault::StopReading);
    let (cancel, cancelled) = bounded::<()>(0);
    thread::scope(|scope| {
        for name in &names {
            let wait =
                || drop(client.lock(name).try_lock_with(Wait::forever().or_cancelled(&cancelled)));
            thread::Builder::new().stack_size(128 * 1024).spawn_scoped(scope, wait).unwrap();
        }
        deaf.wait_for_hit(SOON);
        // The proxy has not read that the first connection was closed.
        let all = || names.iter().all(|name| listeners(&setup.server, name) > 0);
        wait_until("every channel is listened to", 2 * LIMIT, all);
        drop(cancel);
    });
    drop(held);
}

#[test]
fn a_denied_channel_goes_live_once_it_is_permitted() {
    let setup = ProxiedServer::new();
    limited_user(&setup.server, &["resetchannels", "&*{b*}"]);
    let url = format!("redis://limited:secret@{}/", setup.proxy.address());
    // Nobody polls.
    let clock = ManualClock::new();
    let client = built(Client::builder().url(&url).clock(Arc::new(clock.clone())));
    let rival = setup.rival();
    let guard = rival.lock("a").lock().unwrap();
    // When another channel is live, the refusal before it has been read.
    let read_refusal = |number| {
        let name = format!("b{number}");
        let other = rival.lock(&name).lock().unwrap();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| client.lock(&name).lock().unwrap().unlock().unwrap());
            wait_until("the other is listened to", SOON, || listeners(&setup.server, &name) > 0);
            other.unlock().unwrap();
            ended(&client, waiter);
        });
    };
    // Each subscribes anew, and is refused.
    let is_it = |request: &Request| request.name() == "SUBSCRIBE" && request.contains("{a}");
    let subscribes = setup.proxy.on(is_it, Fault::PassOn).times(3);
    for refused in 1..=3 {
        thread::scope(|scope| {
            let waiter = scope.spawn(|| client.lock("a").try_lock_for(TIMEOUT).unwrap().is_some());
            wait_for_a_waiter(&client);
            subscribes.wait_for_hits(refused, SOON);
            read_refusal(refused);
            clock.advance(TIMEOUT);
            assert!(!ended(&client, waiter));
        });
    }
    wait_until("it was refused", SOON, || !client.warnings().is_empty());
    limit_user(&setup.server, &["&*"]);
    let subscribe = setup.proxy.on(is_it, Fault::HoldRequest);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| client.lock("a").lock().unwrap().unlock().unwrap());
        subscribe.wait_for_hit(SOON);
        // No message of this arrives. When the channel is live, the waiter asks.
        guard.unlock().unwrap();
        subscribe.deliver();
        ended(&client, waiter);
    });
}

#[test]
fn one_denied_channel_does_not_affect_the_others() {
    let server = Server::start();
    let url = limited_user(&server, &["resetchannels", "&*{b}", "&*{c}"]);
    let (client, holder) =
        (built(Client::builder().url(&url)), built(Client::builder().url(&server.url())));
    let guards: Vec<_> = ["a", "b", "c"].map(|name| holder.lock(name).lock().unwrap()).into();
    thread::scope(|scope| {
        let (cancel, cancelled) = bounded::<()>(0);
        for name in ["a", "b", "c"] {
            let (client, cancelled) = (&client, cancelled.clone());
            scope.spawn(move || {
                drop(client.lock(name).try_lock_with(Wait::forever().or_cancelled(&cancelled)));
            });
        }
        let live = || listeners(&server, "b") == 1 && listeners(&server, "c") == 1;
        wait_until("those that are allowed are listened to", SOON, live);
        wait_until("the third is refused", SOON, || !client.warnings().is_empty());
        // All are subscribed again, at once.
        server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        wait_until("there is no subscriber", SOON, || !live());
        wait_until("those that are allowed are listened to again", SOON, live);
        drop(cancel);
    });
    drop(guards);
}

#[test]
fn an_oversized_message_does_not_delay_a_waiter() {
    let server = Server::start();
    let holder = built(Client::builder().url(&server.url()));
    let client = without_polls(&server.url());
    let guard = holder.lock("a").lock().unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| client.lock("a").lock().unwrap().unlock().unwrap());
        wait_for_a_waiter(&client);
        wait_until("it listens", SOON, || listeners(&server, "a") == 1);
        let made = client.stats().connections_made;
        let channel = "redisson_lock__channel:{a}";
        server.command(&["PUBLISH", channel, &"x".repeat(14 * 1024 * 1024)]);
        wait_until("it listens on a new connection", SOON, || {
            client.stats().connections_made > made && listeners(&server, "a") == 1
        });
        guard.unlock().unwrap();
        ended(&client, waiter);
    });
}

/// Oversized replies of a server, and what the error calls them.
fn excesses() -> [(Vec<u8>, &'static str); 4] {
    let parts = [&b"*1000000000\r\n"[..], &b":1\r\n".repeat(100_000)].concat();
    let nested = b"*1\r\n".repeat(100);
    let in_lists = [&b"*1000\r\n"[..], &b"*1000\r\n:1\r\n".repeat(50)].concat();
    [
        (parts, "more than 16384 parts"),
        (b"$400000000\r\nxxx".to_vec(), "more than 1048576 bytes"),
        ([b"+".to_vec(), b"x".repeat(2_000_000)].concat(), "more than 1048576 bytes"),
        ([nested, in_lists].concat(), "more than 8 deep"),
    ]
}

/// A client that gives nothing up while a test waits.
fn unhurried(server: &FakeServer) -> ClientBuilder {
    Client::builder().url(&format!("redis://{}/", server.address())).command_timeout(3 * SOON)
}

#[test]
fn an_oversized_reply_is_an_error_with_the_limit() {
    for (excess, bound) in excesses() {
        let server = FakeServer::start(move |_| excess.clone());
        let error = unhurried(&server).build().unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }) && error.is_retryable(), "{error:?}");
        assert!(error.to_string().contains(bound), "{error}");
    }
}

#[test]
fn a_call_with_an_oversized_reply_is_retried() {
    for (excess, _) in excesses() {
        let acquires = AtomicUsize::new(0);
        let server = FakeServer::start(move |words| match words {
            ["TIME"] => array(&["1700000000", "0"]),
            ["EVAL" | "EVALSHA", ..] if acquires.fetch_add(1, Ordering::SeqCst) == 0 => {
                excess.clone()
            }
            ["EVAL" | "EVALSHA", ..] => b":30000\r\n".to_vec(),
            _ => b"+OK\r\n".to_vec(),
        });
        let client = unhurried(&server).build().unwrap();
        assert!(client.lock("a").try_lock().unwrap().is_none());
    }
}

#[test]
fn a_subscription_that_is_flooded_is_replaced() {
    for (excess, _) in excesses() {
        let subscribes = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&subscribes);
        let server = FakeServer::start(move |words| match words {
            ["TIME"] => array(&["1700000000", "0"]),
            ["EVAL" | "EVALSHA", ..] => b":30000\r\n".to_vec(),
            ["SUBSCRIBE", ..] => {
                seen.fetch_add(1, Ordering::SeqCst);
                excess.clone()
            }
            _ => b"+OK\r\n".to_vec(),
        });
        // So long that it is not the silence that ends a connection.
        let client = unhurried(&server).build().unwrap();
        let (cancel, cancelled) = bounded::<()>(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                drop(client.lock("a").try_lock_with(Wait::forever().or_cancelled(&cancelled)));
            });
            wait_until("it subscribes anew", SOON, || subscribes.load(Ordering::SeqCst) > 2);
            drop(cancel);
        });
    }
}

#[test]
fn repeatedly_broken_subscription_is_not_retried_in_busy_loop() {
    let subscribes = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&subscribes);
    let server = FakeServer::start(move |words| match words {
        ["TIME"] => array(&["1700000000", "0"]),
        ["EVAL" | "EVALSHA", ..] => b":30000\r\n".to_vec(),
        ["SUBSCRIBE", channel] => {
            seen.fetch_add(1, Ordering::SeqCst);
            [array(&["subscribe", channel]), b"what?\r\n".to_vec()].concat()
        }
        _ => b"+OK\r\n".to_vec(),
    });
    let client = unhurried(&server).build().unwrap();
    let (cancel, cancelled) = bounded::<()>(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            drop(client.lock("a").try_lock_with(Wait::forever().or_cancelled(&cancelled)));
        });
        wait_until("it subscribes anew", SOON, || subscribes.load(Ordering::SeqCst) > 2);
        pause(Duration::from_secs(2));
        // Each pause is twice the one before.
        let subscribes = subscribes.load(Ordering::SeqCst);
        assert!(subscribes <= 12, "{subscribes} times");
        drop(cancel);
    });
}

#[test]
fn release_during_broken_subscription_is_seen_within_poll_bound() {
    let server = Server::start();
    let (holder, waiter) = (connect(&server), connect(&server));
    for _ in 0..3 {
        let guard = holder.lock("a").lock().unwrap();
        let before = scripts(&server);
        thread::scope(|scope| {
            let waiting = start(scope, || take(&waiter, "a"));
            wait_for_the_head(&server, &waiter, "a", before);
            server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
            let released_at = now();
            guard.unlock().unwrap();
            let delay = waiting.join().unwrap().saturating_duration_since(released_at);
            assert!(delay < POLL_BOUND + IN_TIME, "{delay:?}");
        });
    }
}

#[test]
fn release_before_subscription_is_noticed_at_confirmation() {
    let server = Server::start();
    let proxy = Proxy::start(server.address());
    let (holder, waiter) = (connect(&server), without_polls(&proxy.url()));
    let guard = holder.lock("a").lock().unwrap();
    let aim = proxy.on(|request| request.name() == "SUBSCRIBE", Fault::HoldRequest);
    thread::scope(|scope| {
        let waiting = start(scope, || take(&waiter, "a"));
        aim.wait_for_hit(LIMIT);
        guard.unlock().unwrap();
        aim.deliver();
        ended(&waiter, waiting);
    });
}

#[test]
fn a_release_after_the_subscription_broke_wakes_the_waiter() {
    let server = Server::start();
    let (holder, waiter) = (connect(&server), without_polls(&server.url()));
    let guard = holder.lock("a").lock().unwrap();
    thread::scope(|scope| {
        let waiting = start(scope, || take(&waiter, "a"));
        wait_for_waiters(&server, &waiter, "a", 1);
        server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        wait_until("there is no subscriber", LIMIT, || listeners(&server, "a") == 0);
        wait_until("it is subscribed again", LIMIT, || listeners(&server, "a") == 1);
        guard.unlock().unwrap();
        ended(&waiter, waiting);
    });
}
