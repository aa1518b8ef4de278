//! Behind sentinels: how the master is found, and what happens to holds and waiters at a failover.

#![expect(clippy::unwrap_used, reason = "the helpers of a test may fail it as the test itself may")]

#[path = "../common/mod.rs"]
mod common;
mod fake;
mod silent;
mod switch;
#[cfg(feature = "tls")]
mod tls;

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use common::user::{behind, known_to};
use common::{LIMIT, SLACK, TIMEOUT, built, pause, timed, wait_for_a_waiter};
use fake::FakeSentinel;
use wheellock::{Client, ClientBuilder, Error, LostReason, Warning};
use wheellock_fixture::{Monitor, ReservedPort, Sentinels, Server, wait_until};

const SECOND: Duration = Duration::from_secs(1);
/// Longer than a failover takes on a busy machine: a sentinel that was kept from its processor for two
/// seconds does nothing for 30 more (TILT).
const SOON: Duration = Duration::from_secs(60);

/// Sentinels with the users of the operations guide.
fn start() -> Sentinels {
    known_to(Sentinels::builder(), &[]).start()
}

/// Sentinels with the users of the operations guide, which soon miss a master that is lost.
fn start_quick_to_miss() -> Sentinels {
    known_to(Sentinels::builder().quick_to_miss(), &[]).start()
}

fn client(sentinels: &Sentinels) -> Client {
    // Calls are to outlast a failover.
    built(behind(sentinels).command_timeout(SOON))
}

/// A client that asks these, and gives an attempt up after a second.
fn asking(sentinels: &[&FakeSentinel]) -> ClientBuilder {
    let addresses: Vec<String> =
        sentinels.iter().map(|sentinel| sentinel.address().to_string()).collect();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    Client::builder().sentinels("mymaster", &addresses).command_timeout(SECOND)
}

fn exists(server: &Server, name: &str) -> bool {
    server.command(&["EXISTS", name]).integer() == 1
}

fn pair(client: &Client, name: &str) {
    let guard = client.lock(name).try_lock_for(SOON).unwrap().unwrap();
    guard.unlock().unwrap();
}

/// Takes a lock and gives it back until the client does so at this master. What the old one still
/// granted is not there.
fn wait_until_at(client: &Client, new: &Server) {
    wait_until("the client is at the new master", SOON, || {
        let guard = client.lock("b").try_lock_for(SOON).unwrap().unwrap();
        let released = guard.unlock();
        assert!(matches!(released, Ok(()) | Err(Error::Lost { .. })), "{released:?}");
        new.command_calls("evalsha") + new.command_calls("eval") > 0
    });
}

/// Waits for the lock `a`, longer than any failover takes, and gives it back.
fn wait_for_it(client: &Client) {
    let guard = client.lock("a").try_lock_for(SOON * 2).unwrap().unwrap();
    guard.unlock().unwrap();
}

/// What a server was told to do with locks since this was asked last: the scripts that have keys.
fn scripts(monitor: &mut Monitor) -> Vec<String> {
    let seen = monitor.seen().into_iter();
    let with_keys = seen.filter(|command| command.arguments.get(2).is_some_and(|keys| keys != "0"));
    with_keys.map(|command| command.name()).filter(|name| name.starts_with("EVAL")).collect()
}

fn texts(sentinels: &Sentinels) -> Vec<String> {
    sentinels.addresses().iter().map(SocketAddr::to_string).collect()
}

/// The master in the opinion of one sentinel.
fn master_known_to<'a>(sentinel: &Server, all: &'a Sentinels) -> &'a Server {
    let command = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", Sentinels::NAME];
    let port = sentinel.command(&command).texts()[1].clone();
    all.servers().iter().find(|server| server.address().port().to_string() == port).unwrap()
}

/// Waits until one of these is listened to, and says which. A busy machine may take another for
/// silent first.
fn listened(sentinels: &[FakeSentinel]) -> usize {
    let mut place = None;
    wait_until("one is listened to", SOON, || {
        place = sentinels.iter().position(|sentinel| sentinel.listeners() > 0);
        place.is_some()
    });
    place.unwrap()
}

/// Waits until one is listened to and was asked what it does not tell any more: from then on it
/// says nothing unasked.
fn wait_until_followed(sentinel: &FakeSentinel) {
    // By the client that was built, and by the thread that listens.
    wait_until("it is followed", SOON, || sentinel.listeners() > 0 && sentinel.asked() >= 2);
}

/// Makes a server lose a key that its master has.
fn lose(replica: &Server, name: &str) {
    wait_until("the replica has the key", SOON, || exists(replica, name));
    replica.command(&["CONFIG", "SET", "replica-read-only", "no"]);
    assert_eq!(replica.command(&["DEL", name]).integer(), 1);
}

#[test]
fn lock_is_acquired_and_released_at_master_by_url_and_builder() {
    let sentinels = start();
    let addresses = texts(&sentinels);
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let by_builder = built(Client::builder().sentinels(Sentinels::NAME, &addresses));
    for client in [client(&sentinels), by_builder] {
        let guard = client.lock("a").lock().unwrap();
        assert!(exists(sentinels.master(), "a"));
        guard.unlock().unwrap();
        assert!(!exists(sentinels.master(), "a"));
    }
}

#[test]
fn one_sentinel_is_enough_and_the_others_are_learnt_from_it() {
    let sentinels = start();
    let first = &sentinels.sentinels()[0];
    let url = format!("redis-sentinel://{}/{}", first.address(), Sentinels::NAME);
    let client = built(Client::builder().url(&url));
    let _guard = client.lock("a").lock().unwrap();
    first.kill();
    wait_until_at(&client, sentinels.fail_over());
}

#[test]
fn a_database_and_both_passwords_are_given() {
    let sentinels = Sentinels::builder().password("data").sentinel_password("watch").start();
    let addresses = texts(&sentinels).join(",");
    let url = format!("redis-sentinel://:data@{addresses}/{}/3", Sentinels::NAME);
    let builder = Client::builder().url(&url).sentinel_credentials(None, "watch");
    let shown = format!("{builder:?}");
    assert!(!shown.contains("data@") && !shown.contains("watch\""), "{shown}");
    let client = built(builder);
    assert!(!format!("{client:?}").contains("watch\""));
    let _guard = client.lock("a").lock().unwrap();
    let is_there = |server: &Server| {
        let mut connection = server.connection();
        connection.command(&["SELECT", "3"]);
        connection.command(&["EXISTS", "a"]).integer() == 1
    };
    assert!(is_there(sentinels.master()) && !exists(sentinels.master(), "a"));
    wait_until("it is replicated", SOON, || is_there(sentinels.replicas()[0]));
    let new = sentinels.fail_over();
    wait_until_at(&client, new);
    // There too it is in that database, and in no other.
    assert!(is_there(new) && client.lock("a").is_locked().unwrap());
    let fourth = url.replace("/3", "/4");
    let other = built(Client::builder().url(&fourth).sentinel_credentials(None, "watch"));
    other.lock("a").try_lock().unwrap().unwrap().unlock().unwrap();
    let beyond = url.replace("/3", "/99");
    let beyond = Client::builder().url(&beyond).sentinel_credentials(None, "watch").build();
    match beyond {
        Err(error @ Error::InvalidUrl { .. }) => assert!(!error.is_retryable()),
        other => panic!("{other:?}"),
    }

    let refused = |builder: ClientBuilder| match builder.build() {
        Err(error @ Error::Authentication { .. }) => error,
        other => panic!("{other:?}"),
    };
    for builder in [
        Client::builder().url(&url),
        Client::builder().url(&url).sentinel_credentials(None, "wrong"),
        Client::builder().url(&url.replace("data", "wrong")).sentinel_credentials(None, "watch"),
    ] {
        let error = refused(builder).to_string();
        assert!(!error.contains("wrong") && !error.contains("data"), "{error}");
    }
}

#[test]
fn hold_replicated_to_new_master_survives_and_is_renewed_there() {
    let sentinels = start();
    let client = client(&sentinels);
    let watched = client.lock("watched").lock().unwrap();
    let leased = client.lock("leased").with_lease(SECOND * 60).lock().unwrap();
    let replica = sentinels.replicas()[0];
    wait_until("it is replicated", SOON, || {
        exists(replica, "watched") && exists(replica, "leased")
    });
    let new = sentinels.fail_over();
    wait_until("all holds are asked for", SOON, || client.stats().renewed >= 2);
    assert!(watched.is_held() && leased.is_held());
    assert!(new.command(&["PTTL", "watched"]).integer() > 29_000);
    let left = new.command(&["PTTL", "leased"]).integer();
    assert!(left > 40_000 && left <= 60_000, "{left}");
    assert!(leased.remaining() < SECOND * 60);
    watched.unlock().unwrap();
    leased.unlock().unwrap();
    assert!(!exists(new, "watched") && !exists(new, "leased"));
}

#[test]
fn a_hold_unknown_to_the_new_master_is_soon_reported_lost() {
    let sentinels = start();
    let (tell, told) = crossbeam_channel::unbounded();
    let on_lost = move |lost: &wheellock::LostLock| tell.send(lost.reason()).unwrap();
    // The renewal is minutes away, so the loss was found because of the failover.
    let client = built(behind(&sentinels).watchdog_lease(SECOND * 600).on_lost(on_lost));
    let watched = client.lock("watched").lock().unwrap();
    let leased = client.lock("leased").with_lease(SECOND * 600).lock().unwrap();
    let taken = client.lock("taken").lock().unwrap();
    let kept = client.lock("kept").with_lease(SECOND * 600).lock().unwrap();
    let replica = sentinels.replicas()[0];
    wait_until("all is replicated", SOON, || exists(replica, "kept"));
    for name in ["watched", "leased", "taken"] {
        lose(replica, name);
    }
    replica.command(&["HSET", "taken", "7f9a3b7e-0f0e-4c3f-9a51-2f4a5d8f0c11:1", "1"]);
    replica.command(&["PEXPIRE", "taken", "60000"]);
    sentinels.fail_over();
    // One sentinel hears of it from another within two seconds, and the client within two more.
    let limit = SOON;
    assert_eq!(watched.lost().recv_timeout(limit), Ok(LostReason::Deleted));
    assert_eq!(leased.lost().recv_timeout(limit), Ok(LostReason::Deleted));
    assert_eq!(taken.lost().recv_timeout(limit), Ok(LostReason::TakenOver));
    assert!(!watched.is_held() && !leased.is_held() && !taken.is_held());
    assert_eq!((0..3).filter(|_| told.recv_timeout(limit).is_ok()).count(), 3);
    assert!(kept.is_held());
    assert!(matches!(kept.check(), Ok(())));
}

#[test]
fn thousands_of_holds_are_verified_at_new_master_in_seconds() {
    let sentinels = start();
    let client = client(&sentinels);
    let lock = |number| client.lock(&format!("lock-{number}"));
    let guards: Vec<_> = (0..5000)
        .map(|number| match number % 2 {
            0 => lock(number).lock().unwrap(),
            _ => lock(number).with_lease(SECOND * 600).lock().unwrap(),
        })
        .collect();
    let replica = sentinels.replicas()[0];
    wait_until("all is replicated", SOON, || exists(replica, "lock-4999"));
    lose(replica, "lock-17");
    lose(replica, "lock-4000");
    let before = client.stats();
    sentinels.fail_over();
    let all_renewed = || client.stats().renewed >= before.renewed + 4998;
    wait_until("all holds are asked for", LIMIT, all_renewed);
    wait_until("two are lost", LIMIT, || client.stats().lost >= 2);
    let held: Vec<bool> = guards.iter().map(wheellock::LockGuard::is_held).collect();
    assert!(!held[17] && !held[4000]);
    assert_eq!(held.iter().filter(|held| **held).count(), 4998);
    // In many scripts, so that others come between.
    assert!(client.stats().renewal_scripts - before.renewal_scripts >= 50);
}

#[test]
fn waiter_subscribes_and_acquires_lock_at_new_master() {
    let sentinels = start();
    let client = client(&sentinels);
    let old = sentinels.master();
    old.command(&["HSET", "a", "7f9a3b7e-0f0e-4c3f-9a51-2f4a5d8f0c11:1", "1"]);
    old.command(&["PEXPIRE", "a", "600000"]);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| wait_for_it(&client));
        wait_for_a_waiter(&client);
        let replica = sentinels.replicas()[0];
        wait_until("it is replicated", SOON, || exists(replica, "a"));
        let new = sentinels.fail_over();
        wait_until("it listens at the new master", SOON, || {
            let reply = new.command(&["PUBSUB", "NUMSUB", "redisson_lock__channel:{a}"]);
            reply.array()[1].integer() == 1
        });
        assert!(!waiter.is_finished());
        new.command(&["DEL", "a"]);
        new.command(&["PUBLISH", "redisson_lock__channel:{a}", "0"]);
        waiter.join().unwrap();
    });
}

#[test]
fn a_waiter_without_a_message_acquires_within_the_poll_bound() {
    let sentinels = start();
    let client = client(&sentinels);
    sentinels.master().command(&["HSET", "a", "7f9a3b7e-0f0e-4c3f-9a51-2f4a5d8f0c11:1", "1"]);
    sentinels.master().command(&["PEXPIRE", "a", "600000"]);
    lose(sentinels.replicas()[0], "a");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| wait_for_it(&client));
        wait_for_a_waiter(&client);
        // A failover that was given up has brought the key back. Nobody publishes a message.
        sentinels.fail_over().command(&["HDEL", "a", "7f9a3b7e-0f0e-4c3f-9a51-2f4a5d8f0c11:1"]);
        // Without another try the waiter would wait for the lease, which is ten minutes.
        waiter.join().unwrap();
    });
}

#[test]
fn acquire_pending_while_master_hangs_is_granted_by_new_master() {
    let sentinels = Sentinels::builder().quick_to_miss().old_master_lingers(SECOND * 20);
    let sentinels = known_to(sentinels, &[]).start();
    let client = client(&sentinels);
    pair(&client, "a");
    let old = sentinels.master();
    old.pause();
    let guard = client.lock("a").lock().unwrap();
    let new = sentinels.wait_for_another_master(old);
    assert!(exists(new, "a") && guard.is_held());

    // It resumes, still thinks that it is a master, and is not written to.
    old.resume();
    let mut monitor = old.monitor();
    for _ in 0..200 {
        pair(&client, "b");
    }
    assert_eq!(scripts(&mut monitor), [""; 0]);
    assert_eq!(old.command(&["ROLE"]).array()[0].text(), "master");
    assert!(guard.is_held());
    guard.unlock().unwrap();
}

#[test]
fn old_master_receives_no_writes_after_switch_is_seen() {
    let sentinels = known_to(Sentinels::builder().old_master_lingers(SECOND * 20), &[]).start();
    let client = client(&sentinels);
    let holds: Vec<_> =
        (0..20).map(|number| client.lock(&format!("held-{number}")).lock().unwrap()).collect();
    let replica = sentinels.replicas()[0];
    wait_until("all is replicated", SOON, || exists(replica, "held-19"));
    let old = sentinels.master();
    // Several connections for calls are idle when the switch comes.
    let made = client.stats().connections_made;
    wait_until("there are several connections", SOON, || {
        thread::scope(|scope| {
            for thread in 0..8 {
                let client = &client;
                scope.spawn(move || (0..20).for_each(|_| pair(client, &format!("pair-{thread}"))));
            }
        });
        client.stats().connections_made >= made + 3
    });
    sentinels.fail_over();
    // Nobody asks but at the new one: by themselves they are renewed after ten seconds.
    wait_until("all holds are asked for", SOON, || client.stats().renewed >= 20);
    let mut monitor = old.monitor();
    thread::scope(|scope| {
        for thread in 0..4 {
            let client = &client;
            scope.spawn(move || (0..50).for_each(|_| pair(client, &format!("pair-{thread}"))));
        }
    });
    assert_eq!(scripts(&mut monitor), [""; 0]);
    assert_eq!(old.command(&["ROLE"]).array()[0].text(), "master");
    assert!(holds.iter().all(wheellock::LockGuard::is_held));
}

#[test]
fn an_old_master_that_is_a_replica_now_is_not_used() {
    let sentinels = start_quick_to_miss();
    let client = client(&sentinels);
    pair(&client, "a");
    let old = sentinels.master();
    old.kill();
    pair(&client, "a");
    old.start_again();
    sentinels.wait_until_all_is_well();
    sentinels.lose_no_more();
    let mut monitor = old.monitor();
    thread::scope(|scope| {
        for thread in 0..4 {
            let client = &client;
            scope.spawn(move || (0..50).for_each(|_| pair(client, &format!("pair-{thread}"))));
        }
    });
    // What the scripts of the new master wrote comes to it, and no script.
    assert_eq!(scripts(&mut monitor), [""; 0]);
}

#[test]
fn all_waiters_acquire_lock_in_turn_after_master_was_killed() {
    let sentinels = start_quick_to_miss();
    let client = client(&sentinels);
    let old = sentinels.master();
    old.command(&["HSET", "a", "7f9a3b7e-0f0e-4c3f-9a51-2f4a5d8f0c11:1", "1"]);
    old.command(&["PEXPIRE", "a", "600000"]);
    let replica = sentinels.replicas()[0];
    wait_until("it is replicated", SOON, || exists(replica, "a"));
    thread::scope(|scope| {
        let waiters: Vec<_> = (0..100).map(|_| scope.spawn(|| wait_for_it(&client))).collect();
        wait_until("all wait", SOON, || client.stats().waiters == 100);
        old.kill();
        let new = sentinels.wait_for_another_master(old);
        new.command(&["DEL", "a"]);
        new.command(&["PUBLISH", "redisson_lock__channel:{a}", "0"]);
        for waiter in waiters {
            waiter.join().unwrap();
        }
    });
}

#[test]
fn hanging_sentinel_costs_bounded_time_and_failover_is_followed() {
    let sentinels = start_quick_to_miss();
    let hung = &sentinels.sentinels()[0];
    hung.pause();
    let (client, took) = timed(|| client(&sentinels));
    assert!(took < SECOND + SLACK, "{took:?}");
    pair(&client, "a");
    // It fails over by the two others.
    let old = master_known_to(&sentinels.sentinels()[1], &sentinels);
    old.kill();
    pair(&client, "a");
    wait_until("both know it", SOON, || {
        let known = |number| master_known_to(&sentinels.sentinels()[number], &sentinels).address();
        known(1) != old.address() && known(2) != old.address()
    });
    hung.resume();
}

#[test]
fn client_continues_at_known_master_without_any_sentinel() {
    let sentinels = start();
    let client = client(&sentinels);
    let guard = client.lock("held").lock().unwrap();
    for sentinel in sentinels.sentinels() {
        sentinel.kill();
    }
    thread::scope(|scope| {
        for thread in 0..8 {
            let client = &client;
            scope.spawn(move || (0..20).for_each(|_| pair(client, &format!("pair-{thread}"))));
        }
    });
    guard.unlock().unwrap();
    let builder = behind(&sentinels).command_timeout(TIMEOUT);
    let (built, took) = timed(|| builder.build());
    assert!(took < TIMEOUT + SLACK, "{took:?}");
    match built {
        Err(error @ Error::Unreachable { .. }) => {
            assert!(error.is_retryable());
            assert!(error.to_string().contains("sentinel"), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn sentinel_with_later_failover_epoch_overrules_stale_sentinel() {
    let (old, new) = (Server::start(), Server::start());
    let behind = FakeSentinel::start(Some((old.address(), 5)));
    let mut ahead = FakeSentinel::start(Some((new.address(), 6)));
    let client = built(asking(&[&behind, &ahead]));
    pair(&client, "a");
    assert!(new.command_calls("evalsha") + new.command_calls("eval") > 0);
    assert_eq!(old.command_calls("evalsha") + old.command_calls("eval"), 0);
    // Nor is it trusted when it is the only one left, and queried because the master is gone.
    ahead.stop();
    new.kill();
    let error = client.lock("a").try_lock().unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert_eq!(old.command_calls("evalsha") + old.command_calls("eval"), 0);
}

#[test]
fn replica_named_as_master_is_skipped_and_sentinel_is_requeried() {
    let (master, replica) = (Server::start(), Server::start());
    let [host, port] = [master.address().ip().to_string(), master.address().port().to_string()];
    replica.command(&["REPLICAOF", &host, &port]);
    let mut monitor = replica.monitor();
    let sentinel = FakeSentinel::start(Some((replica.address(), 5)));
    let (built_client, took) = timed(|| asking(&[&sentinel]).build());
    assert!(took < SECOND + SLACK, "{took:?}");
    match built_client {
        Err(error @ Error::Unreachable { .. }) => {
            assert!(error.to_string().contains("replica"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    thread::scope(|scope| {
        let builder = asking(&[&sentinel]).command_timeout(SOON);
        let building = scope.spawn(|| built(builder));
        let asked = sentinel.asked();
        wait_until("it is asked again", SOON, || sentinel.asked() > asked + 3);
        sentinel.says(master.address(), 6);
        pair(&building.join().unwrap(), "a");
    });
    assert_eq!(scripts(&mut monitor), [""; 0]);
}

#[test]
fn master_behind_sentinels_that_writes_alone_is_a_warning() {
    let master = Server::start();
    let _replica = Server::builder().replica_of(master.address()).start();
    let has_come = || master.command(&["INFO", "replication"]).text().contains("state=online");
    wait_until("the replica has come", SOON, has_come);
    let sentinel = FakeSentinel::start(Some((master.address(), 5)));
    let behind_sentinel = || built(asking(&[&sentinel]).command_timeout(SOON));
    let is_told = |client: &Client| {
        client.warnings().iter().any(|warning| matches!(warning, Warning::WritesWithoutReplicas))
    };
    assert!(is_told(&behind_sentinel()));
    // Without sentinels no other server takes the place of the master.
    assert!(!is_told(&built(Client::builder().url(&master.url()).command_timeout(SOON))));
    // The maximum lag is ten seconds unless it is set.
    master.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    assert!(!is_told(&behind_sentinel()));
}

#[test]
fn a_master_that_refuses_as_a_replica_does_is_left_at_once() {
    let (old, new) = (Server::start(), Server::start());
    let sentinel = FakeSentinel::start(Some((old.address(), 5)));
    let client = built(asking(&[&sentinel]).command_timeout(SECOND * 3));
    let held = client.lock("held").lock().unwrap();
    pair(&client, "a");
    wait_until_followed(&sentinel);
    let [host, port] = [new.address().ip().to_string(), new.address().port().to_string()];
    old.command(&["REPLICAOF", &host, &port]);
    // No message: a query to the sentinels finds it.
    sentinel.says(new.address(), 6);
    let asked = sentinel.asked();
    let ((), took) = timed(|| pair(&client, "a"));
    // The thread that looks for itself does so every two seconds.
    assert!(took < SECOND, "{took:?}");
    assert!(sentinel.asked() > asked);
    assert_eq!(held.lost().recv_timeout(SOON), Ok(LostReason::Deleted));
}

#[test]
fn an_idle_client_notices_that_its_master_was_demoted() {
    let (old, new) = (Server::start(), Server::start());
    let sentinel = FakeSentinel::start(Some((old.address(), 5)));
    let client = built(asking(&[&sentinel]));
    let held = client.lock("held").with_lease(SECOND * 600).lock().unwrap();
    wait_until_followed(&sentinel);
    let [host, port] = [new.address().ip().to_string(), new.address().port().to_string()];
    old.command(&["REPLICAOF", &host, &port]);
    sentinel.says(new.address(), 6);
    // By asking it for its role.
    assert_eq!(held.lost().recv_timeout(SOON), Ok(LostReason::Deleted));
}

#[test]
fn a_failover_is_followed_with_and_without_a_message() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let [one, two, three] = [0, 1, 2].map(|server| servers[server].address());
    let sentinels = [FakeSentinel::start(Some((one, 5))), FakeSentinel::start(Some((one, 5)))];
    let client = built(asking(&[&sentinels[0], &sentinels[1]]));
    let [first, second] =
        ["first", "second"].map(|name| client.lock(name).with_lease(SECOND * 600));
    let held = first.lock().unwrap();
    let place = listened(&sentinels);
    let (told, other) = (&sentinels[place], &sentinels[1 - place]);
    // Of another name that is no news, and messages come in order.
    told.tell_of("other", one, three);
    // One reports it, and the other still reports the old master: the client does not go back.
    told.says(two, 6);
    told.tell(one, two);
    assert_eq!(held.lost().recv_timeout(SOON), Ok(LostReason::Deleted));
    let asked = [told.asked(), other.asked()];
    let held = second.lock().unwrap();
    assert!(exists(&servers[1], "second"));
    wait_until("the other is asked", SOON, || other.asked() > asked[1] + 1);
    assert!(held.is_held() && exists(&servers[1], "second"));
    // A message of a sentinel that is behind is no failover.
    told.tell(three, one);
    wait_until("it is asked for the master", SOON, || told.asked() > asked[0]);
    pair(&client, "third");
    assert_eq!(servers[0].command_calls("hset"), 1);
    // Only the other knows of the next one, and is queried in its turn.
    other.says(three, 7);
    assert_eq!(held.lost().recv_timeout(SOON), Ok(LostReason::Deleted));
}

#[test]
fn a_switch_message_that_no_sentinel_confirms_changes_nothing() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let [one, two, three] = [0, 1, 2].map(|server| servers[server].address());
    let sentinels = [7, 7, 7].map(|epoch| FakeSentinel::start(Some((one, epoch))));
    let client = built(asking(&[&sentinels[0], &sentinels[1], &sentinels[2]]));
    let held = client.lock("held").with_lease(SECOND * 600).lock().unwrap();
    let told = &sentinels[listened(&sentinels)];
    wait_until_followed(told);
    // It was so once, and was undone since.
    let asked = told.asked();
    (0..3).for_each(|_| told.tell(one, two));
    // Messages come in order, and this one always has it asked.
    told.promote();
    wait_until("all were heard", SOON, || told.asked() > asked);
    pair(&client, "a");
    assert_eq!(servers[1].command_calls("evalsha") + servers[1].command_calls("eval"), 0);
    assert!(held.is_held());
    // The next failover has the next number, and one that knows of it is enough.
    told.says(three, 8);
    told.tell(one, three);
    assert_eq!(held.lost().recv_timeout(SOON), Ok(LostReason::Deleted));
    wait_until_at(&client, &servers[2]);
}

#[test]
fn the_error_contains_what_the_sentinels_replied() {
    let server = Server::start();
    // On a busy machine a sentinel may not reply within its share of the timeout. Then the error
    // does not contain its reply, and the reports of the others may be enough to connect.
    let wait_for_error = |sentinels: &[&FakeSentinel], words: &str| {
        wait_until(&format!("the error contains {words:?}"), SOON, || {
            let (built, took) = timed(|| asking(sentinels).build());
            assert!(took < SECOND + SLACK, "{took:?}");
            match built {
                Err(error @ Error::Unreachable { .. }) => {
                    assert!(error.is_retryable());
                    error.to_string().contains(words)
                }
                Err(error) => panic!("{error}"),
                Ok(_) => false,
            }
        });
    };
    let knows_none = FakeSentinel::start(None);
    wait_for_error(&[&knows_none], "knows no master of that name");
    let one = FakeSentinel::start(Some((server.address(), 5)));
    let unused_port = ReservedPort::new().unwrap();
    let other = FakeSentinel::start(Some((unused_port.address(), 5)));
    wait_for_error(&[&one, &other], "disagree");
    wait_for_error(&[&other], "refused");
    // One that knows is enough.
    let client = built(asking(&[&knows_none, &one]));
    pair(&client, "a");
}

#[test]
fn sentinels_are_never_queried_in_a_busy_loop() {
    let server = Server::start();
    let sentinels = [5, 5, 5].map(|epoch| FakeSentinel::start(Some((server.address(), epoch))));
    let client = built(asking(&[&sentinels[0], &sentinels[1], &sentinels[2]]));
    listened(&sentinels);
    let asked = || sentinels.iter().map(FakeSentinel::asked).sum::<usize>();
    let accepted = || sentinels.iter().map(FakeSentinel::accepted).sum::<usize>();
    let (before, roles) = (asked(), server.command_calls("role"));
    pause(SECOND * 5);
    assert!(asked() - before <= 4, "{}", asked() - before);
    assert!(server.command_calls("role") - roles <= 4);
    // One that is listened to, two that are asked, and what was opened for the first question.
    assert!(accepted() <= 8, "{}", accepted());

    // Without a master they are queried several times a second, by callers and by the thread.
    server.kill();
    let (before, made) = (asked(), accepted());
    let (result, took) = timed(|| client.lock("a").try_lock());
    assert!(result.is_err_and(|error| error.is_retryable()));
    assert!(took < SECOND * 2 + SLACK, "{took:?}");
    assert!(asked() - before <= 120 && accepted() - made <= 120, "{} {}", asked(), accepted());
}

#[test]
fn sentinel_connections_end_with_the_client_without_a_wait() {
    let server = Server::start();
    let sentinels = [5, 5].map(|epoch| FakeSentinel::start(Some((server.address(), epoch))));
    let client = built(asking(&[&sentinels[0], &sentinels[1]]));
    pair(&client, "a");
    listened(&sentinels);
    let ((), took) = timed(|| drop(client));
    assert!(took < SLACK, "{took:?}");
    let open = || sentinels.iter().map(FakeSentinel::open).sum::<usize>();
    let ((), took) = timed(|| wait_until("all are closed", SOON, || open() == 0));
    assert!(took < SLACK, "{took:?}");
    let asked: Vec<_> = sentinels.iter().map(FakeSentinel::asked).collect();
    // Also of a client that was never built.
    server.kill();
    assert!(asking(&[&sentinels[0], &sentinels[1]]).build().is_err());
    wait_until("all are closed", SOON, || open() == 0);
    assert!(sentinels[0].asked() > asked[0]);
}

#[test]
fn sentinel_credentials_without_sentinels_are_invalid_setting() {
    let server = Server::start();
    let builder = Client::builder().url(&server.url()).sentinel_credentials(None, "secret");
    match builder.build() {
        Err(error @ Error::InvalidSetting { setting: "sentinel_credentials", .. }) => {
            assert!(!error.to_string().contains("secret"));
        }
        other => panic!("{other:?}"),
    }
}
