//! Replica acknowledgements of a grant: enough, too few, none, and servers without `WAIT`.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::thread;
use std::time::Duration;

use crate::common::expected::Expected;
use crate::common::takings::{KINDS, Kind, left_at, make_semaphores};
use crate::common::user::{WITH_REPLICAS, rule_with};
use crate::common::{
    LIMIT, ProxiedServer, SLACK, SOON, Script, built, limited_user, pause, settle, timed,
    wait_for_a_waiter,
};
use wheellock::{Client, ClientBuilder, Error, Lock, Memory, Replicas, Warning};
use wheellock_fixture::{Fault, Request, Server, wait_until};

/// How long replicas may take. Long enough for one that runs, on a busy machine.
const PATIENT: Duration = Duration::from_millis(1500);
/// How long to wait for replicas that do not answer.
const SHORT: Duration = Duration::from_millis(50);

fn replica_of(master: &Server) -> Server {
    let replica = Server::builder().replica_of(master.address()).start();
    let entry = format!("port={},state=online", replica.address().port());
    let information = || master.command(&["INFO", "replication"]).text();
    wait_until("the replica has come", SOON, || information().contains(&entry));
    // It is called online before it takes what is written.
    let mut connection = master.connection();
    connection.command(&["SET", "probe", "1"]);
    let all = information().matches("state=online").count().to_string();
    assert_eq!(connection.command(&["WAIT", &all, "5000"]).integer().to_string(), all);
    connection.command(&["DEL", "probe"]);
    replica
}

fn asks(server: &Server) -> u64 {
    server.command_calls("wait")
}

fn is_wait(request: &Request) -> bool {
    request.name() == "WAIT"
}

/// A server whose user may do what the operations guide says that such a client needs.
fn setup() -> ProxiedServer {
    ProxiedServer::with(Server::builder().user(&rule_with(&[WITH_REPLICAS])).start())
}

fn builder(server: &Server) -> ClientBuilder {
    Client::builder().url(&server.url())
}

fn plain(server: &Server) -> Client {
    built(builder(server))
}

fn short(server: &Server) -> Client {
    built(builder(server).replica_acks(1, SHORT))
}

fn too_few(wanted: u32, acknowledged: u32) -> Expected {
    Expected::NotReplicated(wanted, acknowledged)
}

/// Repeats this until what it was granted was released before it returned. On a machine that stands
/// still for a moment, that is left to the background.
fn is_released_in_time(server: &Server, client: &Client, mut attempt: impl FnMut()) {
    wait_until("it is released in time", LIMIT, || {
        attempt();
        let is_released = client.stats().queued_releases == 0;
        settle(client);
        assert_nothing_is_left(server, client);
        is_released
    });
}

/// Nothing is held, queued or locked, and every permit is back.
fn assert_nothing_is_left(server: &Server, client: &Client) {
    let stats = client.stats();
    assert_eq!((stats.held, stats.queued_releases, stats.waiters), (0, 0, 0));
    let left = left_at(server);
    assert!(left.is_empty(), "{left:?}");
    let observer = plain(server);
    assert_eq!(observer.semaphore("semaphore").available_permits(), Ok(2));
    assert_eq!(observer.semaphore("drain").available_permits(), Ok(2));
    for name in ["permits", "unleased"] {
        assert_eq!(observer.expirable_semaphore(name).available_permits(), Ok(2));
    }
}

#[test]
fn what_was_granted_is_on_the_replica_before_the_caller_has_it() {
    let master = Server::start();
    let replica = replica_of(&master);
    let client = built(builder(&master).replica_acks(1, PATIENT));
    make_semaphores(&client);
    for kind in KINDS {
        // The server has its script then.
        assert_eq!((kind.take)(&client), Ok(true), "{}", kind.word);
        settle(&client);
        let before = asks(&master);
        assert_eq!((kind.take)(&client), Ok(true), "{}", kind.word);
        assert_eq!(asks(&master), before + 1, "{}", kind.word);
    }
    for number in 0..100 {
        let guard = client.lock(&number.to_string()).lock().unwrap();
        let there = replica.command(&["EXISTS", &number.to_string()]).integer();
        assert_eq!(there, 1, "{number}");
        drop(guard);
    }
    settle(&client);
    assert_nothing_is_left(&master, &client);
}

#[test]
fn try_lock_after_drop_succeeds_when_release_has_own_connection() {
    let master = Server::start();
    let _replica = replica_of(&master);
    let client = built(builder(&master).replica_acks(1, PATIENT));
    let lock = client.lock("own");
    for number in 0..500 {
        // The release is on another connection, and nothing orders the two at the server.
        assert!(lock.try_lock().unwrap().is_some(), "{number}");
    }
}

#[test]
fn grant_without_acknowledgements_is_released_before_return() {
    let master = Server::start();
    make_semaphores(&plain(&master));
    let refused = |of: &str| {
        let client = short(&master);
        for kind in KINDS {
            is_released_in_time(&master, &client, || {
                let (taken, took) = timed(|| (kind.take)(&client));
                assert_eq!(taken.map(drop), too_few(1, 0), "{} of {of}", kind.word);
                // A command timeout is longer.
                let most = SHORT * 2 + Duration::from_secs(2);
                assert!(took >= SHORT && took < most, "{} took {took:?}", kind.word);
            });
        }
    };
    refused("a server without replicas");
    let replica = replica_of(&master);
    replica.pause();
    refused("a server whose replica hangs");
    replica.resume();
    let client = built(builder(&master).replica_acks(1, PATIENT));
    for kind in KINDS {
        assert_eq!((kind.take)(&client), Ok(true), "{}", kind.word);
    }
}

#[test]
fn missing_acknowledgement_error_has_count_and_is_retryable() {
    let master = Server::start();
    let _replica = replica_of(&master);
    let client = built(builder(&master).replica_acks(2, PATIENT));
    let error = client.lock("a").try_lock().unwrap_err();
    assert_eq!(error, too_few(2, 1));
    assert!(error.is_retryable() && !error.is_outcome_unknown());
    assert_eq!(error.to_string(), "1 replicas acknowledged the grant, and 2 are wanted");
    let _another = replica_of(&master);
    assert!(client.lock("a").try_lock().unwrap().is_some());
}

#[test]
fn drawn_token_reaches_replica_before_caller() {
    let server = Server::start();
    let replica = replica_of(&server);
    let client = built(builder(&server).replica_acks(1, PATIENT));
    let guard = client.fair_lock("a").lock().unwrap();
    replica.pause();
    assert_eq!(guard.draw_token().unwrap_err(), too_few(1, 0));
    assert!(guard.is_held());
    replica.resume();
    let token = guard.draw_token().unwrap();
    let counter = replica.command(&["GET", "redisson_lock_token:{a}"]).text();
    assert_eq!(counter, token.to_string());
}

#[test]
fn a_contended_lock_needs_no_acknowledgements() {
    let master = Server::start();
    let (holder, client) = (plain(&master), short(&master));
    make_semaphores(&holder);
    let _held = [holder.lock("lock").lock().unwrap(), holder.fair_lock("fair").lock().unwrap()];
    let _written = holder.read_write_lock("write").write_lock().lock().unwrap();
    holder.semaphore("semaphore").acquire(1).unwrap().forget();
    let _permit = holder.expirable_semaphore("permits").acquire().unwrap();
    for kind in KINDS {
        if ["lock", "fair", "write", "semaphore", "permits"].contains(&kind.word) {
            assert_eq!((kind.take)(&client), Ok(false), "{}", kind.word);
        }
    }
    let before = asks(&master);
    assert!(client.lock("lock").try_lock_for(SHORT * 4).unwrap().is_none());
    assert!(asks(&master) > before);
}

#[test]
fn waiter_without_acknowledgements_fails_and_leaves_no_lock() {
    let master = Server::start();
    let (holder, client) = (plain(&master), short(&master));
    make_semaphores(&holder);
    let locks: [fn(&Client) -> Lock; 3] = [
        |client| client.lock("lock"),
        |client| client.fair_lock("fair"),
        |client| client.read_write_lock("read").write_lock(),
    ];
    for lock in locks {
        is_released_in_time(&master, &client, || {
            let held = lock(&holder).lock().unwrap();
            thread::scope(|scope| {
                let waiter = scope.spawn(|| lock(&client).lock().map(drop));
                wait_for_a_waiter(&client);
                held.unlock().unwrap();
                assert_eq!(waiter.join().unwrap(), too_few(1, 0));
            });
        });
    }
}

#[test]
fn renewals_releases_and_nested_guards_wait_for_no_replica() {
    let master = Server::start();
    let replica = replica_of(&master);
    let lease = Duration::from_secs(3);
    let client = built(builder(&master).replica_acks(1, PATIENT).watchdog_lease(lease));
    let guard = client.lock("a").lock().unwrap();
    let asked = asks(&master);
    // From here on an answer would take as long as it may.
    replica.pause();
    let renewals = || client.stats().renewed;
    let before = renewals();
    wait_until("it was renewed", SOON, || renewals() >= before + 3);
    let nested = client.lock("a").lock().unwrap();
    nested.unlock().unwrap();
    assert!(guard.is_held());
    guard.unlock().unwrap();
    assert_eq!(asks(&master), asked);
}

#[test]
fn failed_write_with_replica_acks_has_unknown_outcome() {
    let setup = setup();
    let attempt = |builder: ClientBuilder| {
        setup.proxy.close_port(false);
        let client = built(builder);
        wait_until("it has a connection", SOON, || {
            matches!(client.lock("a").try_lock(), Ok(_) | Err(Error::NotReplicated { .. }))
        });
        setup.proxy.close_port(true);
        setup.proxy.reset_all();
        wait_until("all have ended", SOON, || setup.proxy.open_connections() == 0);
        // Its connection is gone, so the write fails, and no other is made.
        client.lock("a").try_lock().unwrap_err()
    };
    let error = attempt(setup.builder());
    assert!(matches!(error, Error::Unreachable { .. }) && !error.is_outcome_unknown(), "{error}");
    // The failed write may have been that of the question alone.
    let error = attempt(setup.builder().replica_acks(1, SHORT));
    assert!(error.is_retryable() && error.is_outcome_unknown(), "{error}");
}

#[test]
fn wait_is_sent_in_the_same_write_as_the_acquire() {
    let setup = setup();
    let client = built(setup.builder().command_timeout(SOON).replica_acks(1, SHORT));
    let kept = setup.on(Script::Acquire, "a", Fault::HoldReply);
    thread::scope(|scope| {
        let taking = scope.spawn(|| client.lock("a").try_lock().map(drop));
        kept.wait_for_hit(SOON);
        wait_until("the server was asked", SOON, || asks(&setup.server) == 1);
        kept.deliver();
        assert_eq!(taking.join().unwrap(), too_few(1, 0));
    });
    settle(&client);
    assert!(!setup.exists("a"));
}

#[test]
fn a_lease_counts_from_before_the_replicas_were_waited_for() {
    let master = Server::start();
    let replica = replica_of(&master);
    let client = built(builder(&master).replica_acks(1, PATIENT));
    // Its script and connection are there then.
    assert!(client.lock("a").try_lock().unwrap().is_some());
    settle(&client);
    replica.pause();
    let waited = Duration::from_millis(200);
    let (guard, took) = thread::scope(|scope| {
        let taking = scope.spawn(|| timed(|| client.lock("a").with_owner("me").lock().unwrap()));
        wait_until("it is granted", SOON, || master.command(&["EXISTS", "a"]).integer() == 1);
        pause(waited);
        replica.resume();
        taking.join().unwrap()
    });
    assert!(took >= waited, "{took:?}");
    let lease = Duration::from_secs(30);
    assert!(guard.remaining() + lease / 100 + waited <= lease, "{:?}", guard.remaining());
}

#[test]
fn the_wait_for_replicas_ends_with_the_callers() {
    let master = Server::start();
    let client = built(builder(&master).replica_acks(1, PATIENT));
    let wait = Duration::from_millis(100);
    // A machine that stands still for a moment reads the answer too late.
    wait_until("it is answered in time", SOON, || {
        let (taken, took) = timed(|| client.lock("a").try_lock_for(wait).map(drop));
        assert!(took < wait + SLACK, "{took:?}");
        let error = taken.unwrap_err();
        assert!(error == too_few(1, 0) || error.is_outcome_unknown(), "{error}");
        error == too_few(1, 0)
    });
    settle(&client);
    assert_eq!(master.command(&["EXISTS", "a"]).integer(), 0);
}

#[test]
fn unacknowledged_grant_is_released_in_background_if_delayed() {
    let setup = setup();
    let client = built(setup.builder().command_timeout(PATIENT * 2).replica_acks(1, SHORT));
    let kept = setup.on(Script::Release, "a", Fault::DropRequest);
    assert_eq!(client.lock("a").try_lock().map(drop), too_few(1, 0));
    kept.wait_for_hit(SOON);
    setup.wait_until_gone("a");
    wait_until("it is acknowledged", SOON, || client.stats().queued_releases == 0);
}

#[test]
fn an_answer_about_replicas_that_is_lost_leaves_nothing_either() {
    let setup = setup();
    let _replica = replica_of(&setup.server);
    // It is a reset that ends the attempt, and not a timeout.
    let timeout = Duration::from_secs(3);
    let client = built(setup.builder().command_timeout(timeout).replica_acks(1, PATIENT));
    // One attempt gets no answer; the next finds its own hold, and asks again.
    let lost = setup.proxy.on(is_wait, Fault::ResetBeforeReply);
    let guard = client.lock("a").lock().unwrap();
    lost.wait_for_hit(SOON);
    assert_eq!(setup.hash("a"), [(guard.owner().to_owned(), "1".to_owned())]);
    guard.unlock().unwrap();
    setup.wait_until_gone("a");
    wait_until("it is acknowledged", SOON, || client.stats().queued_releases == 0);
}

/// Has everything live longer than any attempt would have it.
const LENGTHEN: &str = "
    for _, key in ipairs(redis.call('keys', '*')) do
        if redis.call('pttl', key) > 0 then
            redis.call('pexpire', key, 100000)
        end
        if redis.call('type', key).ok == 'zset' then
            for _, member in ipairs(redis.call('zrange', key, 0, -1)) do
                redis.call('zincrby', key, 100000, member)
            end
        end
    end";

/// How much has been written.
fn changes(server: &Server) -> u64 {
    let information = server.command(&["INFO", "persistence"]).text();
    let line =
        information.lines().find_map(|line| line.strip_prefix("rdb_changes_since_last_save:"));
    line.unwrap().parse().unwrap()
}

#[test]
fn a_retry_that_finds_its_earlier_grant_waits_for_replicas_too() {
    let setup = setup();
    let replica = replica_of(&setup.server);
    make_semaphores(&setup.rival());
    // The try ends by the cut, and not by this.
    let timeout = Duration::from_secs(8);
    let clients = KINDS.map(|Kind { word, take }| {
        // The server has its script then.
        assert_eq!(take(&setup.rival()), Ok(true), "{word}");
        let client = built(setup.builder().command_timeout(timeout).replica_acks(1, SHORT));
        let next = || setup.proxy.on(|request| request.name() == "EVALSHA", Fault::HoldReply);
        replica.pause();
        let first = next();
        thread::scope(|scope| {
            let taking = scope.spawn(|| take(&client));
            first.wait_for_hit(SOON);
            // Nothing has to be written for the sake of its lease.
            setup.server.command(&["EVAL", LENGTHEN, "0"]);
            let before = changes(&setup.server);
            let second = next();
            setup.proxy.cut_all();
            second.wait_for_hit(SOON);
            // A server waits for what the connection wrote, and for nothing else.
            assert!(changes(&setup.server) > before, "{word}: nothing was written");
            second.deliver();
            assert_eq!(taking.join().unwrap().map(drop), too_few(1, 0), "{word}");
        });
        replica.resume();
        client
    });
    // The first try may still arrive, as far as the clients know.
    for client in &clients {
        wait_until("no release is queued", LIMIT, || client.stats().queued_releases == 0);
        assert_nothing_is_left(&setup.server, client);
    }
}

#[test]
fn server_without_wait_command_fails_acquire_and_leaves_no_lock() {
    let forbidden = Server::start();
    make_semaphores(&plain(&forbidden));
    let url = limited_user(&forbidden, &["-wait"]);
    let client = built(Client::builder().url(&url).replica_acks(1, SHORT));
    for kind in KINDS {
        is_released_in_time(&forbidden, &client, || {
            let error = (kind.take)(&client).unwrap_err();
            let Error::Refused { operation, code, .. } = &error else { panic!("{error}") };
            assert_eq!((*operation, code.as_str()), ("replica_acks", "NOPERM"), "{}", kind.word);
            assert!(!error.is_retryable());
        });
    }
    // What is not granted is not asked about.
    let _held = plain(&forbidden).lock("lock").lock().unwrap();
    assert_eq!((KINDS[0].take)(&client), Ok(false));

    let setup = setup();
    make_semaphores(&setup.rival());
    let client = built(setup.builder().command_timeout(PATIENT * 2).replica_acks(1, SHORT));
    let unknown = Fault::AnswerInstead(b"-ERR unknown command 'WAIT'\r\n".to_vec());
    let answered = setup.proxy.on(is_wait, unknown);
    let error = (KINDS[0].take)(&client).unwrap_err();
    answered.wait_for_hit(SOON);
    assert!(matches!(&error, Error::Refused { code, .. } if code == "ERR"), "{error}");
    settle(&client);
    assert_nothing_is_left(&setup.server, &client);
}

#[test]
fn red_lock_counts_server_with_silent_replicas_as_refused() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let clients = [plain(&servers[0]), short(&servers[1]), plain(&servers[2])];
    let guard = Client::red_lock(&clients, "a").lock().unwrap();
    wait_until("it is given back", SOON, || servers[1].size() == 0);
    assert!(guard.is_held());
    guard.unlock().unwrap();
}

#[test]
fn a_multi_lock_with_such_a_part_holds_nothing_when_it_says_so() {
    let (good, silent) = (Server::start(), Server::start());
    let (one, other) = (plain(&good), short(&silent));
    let both = one.multi_lock(&[&one.lock("a"), &other.lock("b")]);
    assert_eq!(both.try_lock().map(drop), too_few(1, 0));
    let (taken, took) = timed(|| both.try_lock_for(SOON).map(drop));
    assert_eq!(taken, too_few(1, 0));
    assert!(took < SOON / 2, "{took:?}");
    [&one, &other].into_iter().for_each(settle);
    assert_eq!(good.command(&["EXISTS", "a"]).integer(), 0);
    assert_eq!(silent.command(&["EXISTS", "b"]).integer(), 0);
}

#[test]
fn a_refusal_of_many_locks_counts_whatever_replicas_say() {
    let server = Server::start();
    let (other, silent) = (plain(&server), short(&server));
    let names: Vec<String> = (0..3).map(|number| format!("many:{number}")).collect();
    let many = silent.lock_many(&names);
    let taken = other.lock_many(&names).lock().unwrap();
    assert!(many.try_lock().unwrap().is_none());
    assert!(many.available().unwrap().is_none());

    taken.unlock().unwrap();
    let _one = other.lock(&names[0]).lock().unwrap();
    assert_eq!(many.available().map(drop), too_few(1, 0));
    settle(&silent);
    let left = |name: &String| server.command(&["EXISTS", name]).integer();
    assert_eq!(names.iter().map(left).collect::<Vec<_>>(), [1, 0, 0]);
}

#[test]
fn a_setting_that_makes_no_sense_is_refused() {
    let server = Server::start();
    let timeout = Duration::from_secs(1);
    for (replicas, timeout) in [
        (0, timeout),
        (1, Duration::ZERO),
        (1, Duration::from_micros(999)),
        (1, timeout + Duration::from_millis(1)),
    ] {
        let builder = builder(&server).command_timeout(Duration::from_secs(2));
        let error = builder.replica_acks(replicas, timeout).build().map(drop);
        assert!(
            matches!(error, Err(Error::InvalidSetting { setting: "replica_acks", .. })),
            "{replicas} in {timeout:?}: {error:?}"
        );
    }
    let in_memory = Client::builder().in_memory(&Memory::new()).replica_acks(1, timeout).build();
    assert!(matches!(in_memory, Err(Error::InvalidSetting { setting: "replica_acks", .. })));
}

fn all(server: &Server) -> Client {
    built(builder(server).replica_acks(Replicas::AllConnected, PATIENT))
}

#[test]
fn all_connected_replicas_have_what_was_granted() {
    let master = Server::start();
    let client = all(&master);
    let has = |replica: &Server, name: &str| replica.command(&["EXISTS", name]).integer() == 1;
    // Without a replica there is nothing to wait for.
    let (alone, took) = timed(|| client.lock("alone").lock().unwrap());
    assert!(alone.is_held() && took < PATIENT, "{took:?}");
    // The number of replicas grows: the first grant after that waits for the new one too.
    let mut replicas = Vec::new();
    for number in 1..=2 {
        replicas.push(replica_of(&master));
        let before = asks(&master);
        for round in 0..50 {
            let name = format!("{number}:{round}");
            let _guard = client.lock(&name).lock().unwrap();
            assert!(replicas.iter().all(|replica| has(replica, &name)), "{name}");
        }
        // Only the first grant had to learn of the new replica.
        assert!(asks(&master) - before <= 51, "{} times WAIT", asks(&master) - before);
    }
    // One that hangs is connected still.
    replicas[1].pause();
    let error = client.lock("b").try_lock().unwrap_err();
    assert_eq!(error, Expected::NotReplicated(2, 1));
    settle(&client);
    // One that is gone is not.
    replicas.pop();
    let one = || master.command(&["INFO", "replication"]).text().contains("connected_slaves:1");
    wait_until("the replica has left", LIMIT, one);
    wait_until("the grant waits for one", LIMIT, || {
        let guard = client.lock("c").try_lock();
        guard.is_ok_and(|guard| guard.is_some_and(|guard| has(&replicas[0], &guard.name())))
    });
}

#[test]
fn all_connected_replicas_of_each_kind_of_lock_and_permit() {
    let master = Server::start();
    let _replica = replica_of(&master);
    let client = all(&master);
    make_semaphores(&client);
    for kind in KINDS {
        assert_eq!((kind.take)(&client), Ok(true), "{}", kind.word);
        settle(&client);
    }
    assert_nothing_is_left(&master, &client);
}

#[test]
fn acquire_without_role_permission_fails_and_leaves_no_lock() {
    let master = Server::start();
    let url = limited_user(&master, &["-role"]);
    let client = built(Client::builder().url(&url).replica_acks(Replicas::AllConnected, SHORT));
    let error = client.lock("a").try_lock().unwrap_err();
    assert!(matches!(&error, Error::Refused { code, .. } if code == "NOPERM"), "{error}");
    settle(&client);
    assert_eq!(master.command(&["EXISTS", "a"]).integer(), 0);
}

#[test]
fn grant_with_disk_acks_is_on_replica_disk_if_waitaof_exists() {
    let master = Server::start();
    let replica = replica_of(&master);
    let client = built(builder(&master).replica_acks_on_disk(1, PATIENT));
    let lock = client.lock("a");
    if master.command(&["WAITAOF", "0", "0", "1"]).is_error() {
        let error = lock.try_lock().unwrap_err();
        assert!(error.to_string().to_lowercase().contains("waitaof"), "{error}");
        settle(&client);
        assert_eq!(master.command(&["EXISTS", "a"]).integer(), 0);
        return;
    }
    // Without an append-only file the replica acknowledges nothing.
    assert_eq!(lock.try_lock().unwrap_err(), Expected::NotReplicated(1, 0));
    settle(&client);
    replica.command(&["CONFIG", "SET", "appendfsync", "always"]);
    replica.command(&["CONFIG", "SET", "appendonly", "yes"]);
    wait_until("the replica writes its file", LIMIT, || lock.try_lock().is_ok());
    settle(&client);
    assert!(lock.try_lock().unwrap().is_some());
}

#[test]
fn a_server_with_replicas_that_are_not_waited_for_is_a_warning() {
    let master = Server::start();
    let is_told = |client: &Client| {
        client.warnings().iter().any(|warning| matches!(warning, Warning::ReplicasNotAwaited))
    };
    assert!(!is_told(&plain(&master)));
    let _replica = replica_of(&master);
    let client = plain(&master);
    assert!(is_told(&client));
    assert!(client.warnings().iter().all(|warning| !warning.to_string().is_empty()));
    assert!(!is_told(&all(&master)) && !is_told(&short(&master)));
}
