//! A dropped guard does not wait for the server: what it costs, what follows from its reply, and
//! that no acquire of its own client meets what it is about to release.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::any::Any;
use std::time::Duration;

use wheellock::{Client, ClientBuilder, LostReason, Memory};
use wheellock_fixture::{Fault, Server, wait_until};

use crate::common::{ProxiedServer, SOON, Script, built, settle, timed};

/// No dropped guard of these tests is allowed to take that long.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Much less, and more than a busy machine needs to write a few bytes.
const AT_ONCE: Duration = Duration::from_secs(5);

fn builder(server: &Server) -> ClientBuilder {
    Client::builder().url(&server.url()).command_timeout(TIMEOUT)
}

/// The keys of holds and permits that are taken.
fn taken(server: &Server) -> usize {
    let keys = server.command(&["KEYS", "*"]).texts();
    keys.iter().filter(|key| *key != "permits").count()
}

/// Acquires something, and returns its guard.
type Take = (&'static str, fn(&Client) -> Box<dyn Any>);

fn permits(client: &Client) -> wheellock::ExpirableSemaphore {
    client.expirable_semaphore("permits")
}

const KINDS: [Take; 13] = [
    ("lock", |client| Box::new(client.lock("a").lock().unwrap())),
    ("lock with a lease", |client| Box::new(client.lock("a").with_lease(TIMEOUT).lock().unwrap())),
    ("lock of a named owner", |client| {
        Box::new(client.lock("a").with_owner("job").lock().unwrap())
    }),
    ("fair", |client| Box::new(client.fair_lock("a").lock().unwrap())),
    ("fenced", |client| Box::new(client.fenced_lock("a").lock().unwrap())),
    ("spin", |client| Box::new(client.spin_lock("a").lock().unwrap())),
    ("simple", |client| Box::new(client.simple_lock("a").lock().unwrap())),
    ("read", |client| Box::new(client.read_write_lock("a").read_lock().lock().unwrap())),
    ("write", |client| Box::new(client.read_write_lock("a").write_lock().lock().unwrap())),
    ("multi", |client| {
        let (one, other) = (client.lock("a"), client.lock("b"));
        Box::new(client.multi_lock(&[&one, &other]).lock().unwrap())
    }),
    ("permits without ids", |client| Box::new(client.semaphore("permits").acquire(2).unwrap())),
    ("permits", |client| Box::new(permits(client).acquire_many(2).unwrap())),
    ("watched permits", |client| Box::new(permits(client).watched().acquire_many(2).unwrap())),
];

/// A server with permits.
fn server() -> Server {
    let server = Server::start();
    built(builder(&server)).expirable_semaphore("permits").try_set_permits(2).unwrap();
    server
}

#[test]
fn drop_of_every_guard_kind_returns_while_server_is_stopped() {
    let server = server();
    for (kind, take) in KINDS {
        let client = built(builder(&server));
        // The server knows the script of the release from now on.
        drop(take(&client));
        settle(&client);
        let guard = take(&client);
        assert!(taken(&server) > 0, "{kind}");
        server.pause();
        let ((), took) = timed(|| drop(guard));
        assert!(took < AT_ONCE, "{kind} took {took:?}");
        assert_eq!(client.stats().held, 0, "{kind}");
        assert!(client.stats().unread_releases > 0, "{kind}");
        server.resume();
        settle(&client);
        let stats = client.stats();
        assert_eq!((stats.lost, stats.abandoned_releases, stats.panics), (0, 0, 0), "{kind}");
        let left = server.command(&["ZCARD", "redisson_lock_timeout_set:{a}"]).integer();
        assert_eq!((left, permits(&client).available_permits()), (0, Ok(2)), "{kind}");
        let held = server.command(&["EXISTS", "a", "b"]).integer();
        assert_eq!(held, 0, "{kind}");
    }
}

/// Has `count` guards of each kind dropped at a stopped server.
fn drop_many_while_stopped(builder: impl Fn(&Server) -> ClientBuilder, count: usize) {
    let timeout = Duration::from_secs(1);
    let server = Server::start();
    let permits: u32 = count.try_into().unwrap();
    let semaphore = built(builder(&server)).expirable_semaphore("permits");
    semaphore.try_set_permits(permits).unwrap();
    let take: [Take; 6] = [
        ("locks", |client| Box::new(client.lock(&number(client)).lock().unwrap())),
        ("fair locks", |client| Box::new(client.fair_lock(&number(client)).lock().unwrap())),
        ("nested locks", |client| Box::new(client.lock("nested").lock().unwrap())),
        ("permits without ids", |client| Box::new(client.semaphore("permits").acquire(1).unwrap())),
        ("permits", |client| Box::new(self::permits(client).acquire().unwrap())),
        ("watched permits", |client| Box::new(self::permits(client).watched().acquire().unwrap())),
    ];
    for (kind, take) in take {
        let client = built(builder(&server).command_timeout(timeout));
        let guards: Vec<_> = (0..count).map(|_| take(&client)).collect();
        server.pause();
        let ((), took) = timed(|| drop(guards));
        server.resume();
        // Each that waits takes a whole timeout.
        assert!(took < timeout * 2, "{kind} took {took:?}");
        settle(&client);
        let left = server.command(&["KEYS", "[0-9]*"]).texts();
        assert_eq!((left.len(), server.command(&["EXISTS", "nested"]).integer()), (0, 0), "{kind}");
        assert_eq!(semaphore.available_permits(), Ok(i64::from(permits)), "{kind}");
        // The server answers again: the next one is sent by the drop.
        let guard = take(&client);
        drop(guard);
        assert_eq!(client.stats().queued_releases, 0, "{kind}");
        settle(&client);
    }
}

/// Another name for each hold.
fn number(client: &Client) -> String {
    client.stats().held.to_string()
}

#[test]
fn guards_dropped_at_a_stopped_server_wait_for_it_once() {
    drop_many_while_stopped(|server| Client::builder().url(&server.url()), 30);
}

#[test]
fn guards_that_wait_on_drop_wait_for_a_stopped_server_once() {
    drop_many_while_stopped(|server| Client::builder().url(&server.url()).wait_on_drop(true), 5);
}

#[test]
fn a_dropped_red_guard_returns_while_all_servers_are_stopped() {
    let servers = [(); 3].map(|()| Server::start());
    let clients: Vec<Client> = servers.iter().map(|server| built(builder(server))).collect();
    let lock = Client::red_lock(&clients, "a").with_server_timeout(SOON);
    drop(lock.lock().unwrap());
    clients.iter().for_each(settle);
    let guard = lock.lock().unwrap();
    wait_until("every member has joined", SOON, || guard.held_on() == 3);
    servers.iter().for_each(Server::pause);
    let ((), took) = timed(|| drop(guard));
    assert!(took < AT_ONCE, "{took:?}");
    servers.iter().for_each(Server::resume);
    clients.iter().for_each(settle);
    for server in &servers {
        assert_eq!(server.command(&["EXISTS", "a"]).integer(), 0);
    }
    assert!(lock.try_lock().unwrap().is_some());
}

#[test]
fn guard_drop_with_wait_on_drop_returns_after_release() {
    let server = server();
    for (kind, take) in KINDS {
        let client = built(builder(&server).wait_on_drop(true));
        for _ in 0..20 {
            drop(take(&client));
            let stats = client.stats();
            assert_eq!((stats.unread_releases, stats.queued_releases), (0, 0), "{kind}");
            assert_eq!(server.command(&["EXISTS", "a", "b"]).integer(), 0, "{kind}");
            assert_eq!(permits(&client).available_permits(), Ok(2), "{kind}");
        }
    }
    let short = Duration::from_millis(300);
    let client = built(builder(&server).command_timeout(short).wait_on_drop(true));
    let guard = client.lock("a").lock().unwrap();
    server.pause();
    let ((), took) = timed(|| drop(guard));
    assert!(took >= short, "{took:?}");
    server.resume();
    settle(&client);
}

#[test]
fn the_renewal_thread_reads_what_no_call_reads() {
    let server = Server::start();
    let client = built(builder(&server));
    for _ in 0..3 {
        let guards = ["a", "b", "c"].map(|name| client.lock(name).lock().unwrap());
        drop(guards);
        settle(&client);
        assert_eq!(server.command(&["EXISTS", "a", "b", "c"]).integer(), 0);
    }
}

#[test]
fn nested_guard_drop_sends_nothing_and_last_guard_releases() {
    let server = Server::start();
    let client = built(builder(&server));
    let lock = client.lock("a");
    let outer = lock.lock().unwrap();
    drop(lock.lock().unwrap());
    let inner = lock.lock().unwrap();
    let count = || server.command(&["HVALS", "a"]).texts();
    assert_eq!(count(), ["2"]);
    server.pause();
    let ((), took) = timed(|| drop(inner));
    assert!(took < AT_ONCE, "{took:?}");
    assert!(outer.is_held());
    server.resume();
    // The next nested guard writes the count of guards that are alive.
    lock.lock().unwrap().unlock().unwrap();
    assert_eq!(count(), ["1"]);
    drop(lock.lock().unwrap());
    assert_eq!(count(), ["2"]);
    outer.unlock().unwrap();
    assert_eq!(server.command(&["EXISTS", "a"]).integer(), 0);
}

/// Each call succeeds at once, whatever its thread has just dropped.
fn take_and_drop(client: &Client, times: usize, mut between: impl FnMut(usize)) {
    let lock = client.lock("own");
    for number in 0..times {
        drop(lock.try_lock().unwrap().unwrap_or_else(|| missed(number)));
        between(number);
    }
}

#[expect(clippy::panic, reason = "the test fails")]
fn missed(number: usize) -> ! {
    panic!("the {number}th try met what the last one has dropped")
}

#[test]
fn a_try_lock_right_after_a_drop_succeeds_10_000_times() {
    let server = Server::start();
    let client = built(builder(&server));
    take_and_drop(&client, 10_000, |_| {});
    settle(&client);
    assert_eq!(client.stats().lost, 0);
    assert_eq!(server.command(&["EXISTS", "own"]).integer(), 0);
}

#[test]
fn try_lock_after_guard_drop_succeeds_despite_script_flush() {
    let server = Server::start();
    let client = built(builder(&server));
    let mut connection = server.connection();
    let lock = client.lock("own");
    for number in 0..1000 {
        let guard = lock.try_lock().unwrap().unwrap_or_else(|| missed(number));
        connection.command(&["SCRIPT", "FLUSH"]);
        drop(guard);
    }
    settle(&client);
    assert_eq!(client.stats().lost, 0);
}

#[test]
fn a_try_lock_of_every_kind_right_after_a_drop_succeeds() {
    let server = server();
    let client = built(builder(&server));
    let tries: [fn(&Client) -> bool; 11] = [
        |client| client.lock("a").try_lock().unwrap().is_some(),
        |client| client.fair_lock("a").try_lock().unwrap().is_some(),
        |client| client.fenced_lock("a").try_lock().unwrap().is_some(),
        |client| client.spin_lock("a").try_lock().unwrap().is_some(),
        |client| client.simple_lock("b").try_lock().unwrap().is_some(),
        |client| client.read_write_lock("c").read_lock().try_lock().unwrap().is_some(),
        |client| client.read_write_lock("c").write_lock().try_lock().unwrap().is_some(),
        |client| {
            let (one, other) = (client.lock("d"), client.lock("e"));
            client.multi_lock(&[&one, &other]).try_lock().unwrap().is_some()
        },
        |client| client.semaphore("permits").try_acquire(2).unwrap().is_some(),
        |client| permits(client).try_acquire_many(2).unwrap().is_some(),
        |client| permits(client).watched().try_acquire_many(2).unwrap().is_some(),
    ];
    let mut connection = server.connection();
    for number in 0..100 {
        for (kind, try_once) in tries.iter().enumerate() {
            if number % tries.len() == kind {
                connection.command(&["SCRIPT", "FLUSH"]);
            }
            assert!(try_once(&client), "{number}, kind {kind}");
        }
    }
}

#[test]
fn a_try_lock_right_after_a_drop_succeeds_on_a_slow_link() {
    for delay in [Duration::from_micros(500), Duration::from_millis(5)] {
        let setup = ProxiedServer::new();
        let client = setup.patient();
        setup.proxy.delay_requests(delay);
        setup.proxy.delay_replies(delay);
        take_and_drop(&client, 100, |number| {
            if number % 10 == 0 {
                setup.server.command(&["SCRIPT", "FLUSH"]);
            }
        });
    }
}

#[test]
fn a_release_that_an_unread_reply_refuses_is_sent_again() {
    let answers = [
        "-NOSCRIPT No matching script.\r\n",
        "-LOADING Redis is loading the dataset in memory\r\n",
        "-READONLY You can't write against a read only replica.\r\n",
        "-MOVED 15495 127.0.0.1:1\r\n",
        "-BUSY Redis is busy running a script.\r\n",
        "-OOM command not allowed\r\n",
        "-NOPERM this user has no permissions\r\n",
        ":7\r\n",
    ];
    let setup = ProxiedServer::new();
    for answer in answers {
        let client = setup.patient();
        let guard = client.lock("a").lock().unwrap();
        let fault = Fault::AnswerInstead(answer.as_bytes().to_vec());
        let aim = setup.on(Script::Release, "a", fault);
        drop(guard);
        let (again, took) = timed(|| client.lock("a").try_lock().unwrap());
        assert!(again.is_some(), "{answer:?}");
        assert!(took < AT_ONCE, "{answer:?} took {took:?}");
        aim.wait_for_hit(SOON);
        drop(again);
        settle(&client);
        assert_eq!(client.stats().lost, 0, "{answer:?}");
        setup.wait_until_gone("a");
    }
}

#[test]
fn release_is_resent_when_connection_ends_before_reply() {
    let faults = [
        Fault::DropRequest,
        Fault::CutRequestAfter(9),
        Fault::ResetBeforeRequest,
        Fault::CutReplyAfter(0),
        Fault::CutReplyAfter(3),
        Fault::ResetBeforeReply,
        Fault::SwallowRequest,
        Fault::SwallowReply,
        Fault::Vanish,
    ];
    for fault in faults {
        for calls in [false, true] {
            let setup = ProxiedServer::new();
            let client = setup.retrying();
            let guard = client.lock("a").lock().unwrap();
            let aim = setup.on(Script::Release, "a", fault.clone());
            drop(guard);
            aim.wait_for_hit(SOON);
            if calls {
                // A call on the same connection may be the first to find out.
                let _whatever = client.lock("b").try_lock();
            }
            settle(&client);
            setup.wait_until_gone("a");
            assert_eq!(client.stats().lost, 0, "{fault:?}");
        }
    }
}

/// Tries the lock `a` at once and for a time, and expects an error that tells to try again.
fn assert_unsettled(client: &Client, case: &str) {
    let lock = client.lock("a");
    for tried in [lock.try_lock(), lock.try_lock_for(Duration::from_millis(50))] {
        let error = tried.map(|guard| guard.is_some()).unwrap_err();
        assert!(error.is_retryable(), "{case}: {error}");
        assert!(error.to_string().contains("released"), "{case}: {error}");
    }
}

#[test]
fn a_lock_that_only_a_dropped_guard_holds_is_never_called_busy() {
    // Refused for good, as by an access list, and never answered.
    let refused = || Fault::AnswerInstead(b"-NOPERM this user has no permissions\r\n".to_vec());
    for (case, fault) in [("refused", refused()), ("unanswered", Fault::SwallowRequest)] {
        let setup = ProxiedServer::new();
        let client = setup.client();
        let guard = client.lock("a").lock().unwrap();
        let aim = setup.on(Script::Release, "a", fault).always();
        drop(guard);
        aim.wait_for_hit(SOON);
        for _ in 0..3 {
            assert_unsettled(&client, case);
        }
        assert!(setup.exists("a"), "{case}");
        aim.withdraw();
        settle(&client);
        assert!(client.lock("a").try_lock().unwrap().is_some(), "{case}");
    }
}

#[test]
fn lock_held_by_second_client_stays_busy_after_own_releases() {
    let setup = ProxiedServer::new();
    let client = setup.client();
    drop(client.lock("a").lock().unwrap());
    settle(&client);
    let _held = setup.rival().lock("a").lock().unwrap();
    drop(client.lock("b").lock().unwrap());
    assert!(client.lock("a").try_lock().unwrap().is_none());
    assert!(client.lock("a").try_lock_for(Duration::from_millis(50)).unwrap().is_none());
}

#[test]
fn a_loss_that_an_unread_reply_tells_is_reported() {
    let server = Server::start();
    let (lost, losses) = crossbeam_channel::unbounded();
    let client = built(builder(&server).on_lost(move |hold| {
        let _gone = lost.send((hold.name().to_owned(), hold.reason()));
    }));
    let guards = ["deleted", "taken"].map(|name| client.lock(name).lock().unwrap());
    server.command(&["DEL", "deleted", "taken"]);
    server.command(&["HSET", "taken", "7f9a3b7e-0f0e-4c3f-9a51-2f4a5d8f0c11:1", "1"]);
    drop(guards);
    let mut told: Vec<_> = (0..2).map(|_| losses.recv_timeout(SOON).unwrap()).collect();
    told.sort_by_key(|(name, _)| name.clone());
    let reasons: Vec<LostReason> = told.into_iter().map(|(_, reason)| reason).collect();
    assert_eq!(reasons, [LostReason::Deleted, LostReason::TakenOver]);
    settle(&client);
    assert_eq!(client.stats().lost, 2);
}

#[test]
fn a_shutdown_and_the_last_handle_leave_no_dropped_guard_behind() {
    let setup = ProxiedServer::new();
    for shuts_down in [false, true] {
        for slow in [Duration::ZERO, Duration::from_millis(40), Duration::from_millis(400)] {
            let client = setup.patient();
            let names = ["a", "b", "c"];
            let guards = names.map(|name| client.lock(name).lock().unwrap());
            setup.proxy.delay_replies(slow);
            drop(guards);
            if shuts_down {
                let report = client.shutdown(SOON);
                assert_eq!(report.unreleased, Vec::<String>::new());
            }
            drop(client);
            setup.proxy.delay_replies(Duration::ZERO);
            for name in names {
                setup.wait_until_gone(name);
            }
        }
    }
}

#[test]
fn in_memory_a_dropped_guard_has_released_and_nothing_is_unread() {
    let memory = Memory::new();
    let client = Client::builder().in_memory(&memory).build().unwrap();
    drop(client.lock("a").lock().unwrap());
    assert_eq!(client.stats().unread_releases, 0);
    assert!(memory.fields("a").is_empty());
    memory.lose_replies(true);
    assert!(client.lock("a").try_lock().is_err());
}
