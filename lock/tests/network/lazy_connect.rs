//! Clients that are built while their server is down.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::thread;
use std::time::Duration;

use crate::common::expected::Expected;
use crate::common::slots;
use crate::common::user::{behind, known_to, user_url};
use crate::common::{SLACK, SOON, TIMEOUT, timed};
use crossbeam_channel::unbounded;
use wheellock::{Client, ClientBuilder, Error, LostReason};
use wheellock_fixture::{Sentinels, Server, wait_until};

/// What a call has, and some more on a busy machine.
const LONGEST: Duration = TIMEOUT.saturating_mul(2).saturating_add(SLACK);
/// Long enough for a busy machine, where the server is there.
const PATIENT: Duration = Duration::from_secs(5);

/// Builds it without a connection.
fn lazily(builder: ClientBuilder) -> Client {
    let client = builder.connect_lazily().build().unwrap();
    assert_eq!(client.stats().connections_made, 0);
    client
}

fn is_unreachable<T>(result: Result<T, Error>) -> bool {
    result.is_err_and(|error| matches!(error, Error::Unreachable { .. }) && error.is_retryable())
}

/// Every kind of call is a typed error within its own time, and leaves nothing.
fn says_that_nobody_is_there(client: &Client) {
    let calls: [(&str, &dyn Fn() -> bool); 6] = [
        ("ping", &|| is_unreachable(client.ping())),
        ("lock", &|| is_unreachable(client.lock("a").lock())),
        ("try_lock", &|| is_unreachable(client.lock("a").try_lock())),
        ("a wait", &|| is_unreachable(client.fair_lock("b").try_lock_for(TIMEOUT))),
        ("a query", &|| is_unreachable(client.lock("a").is_locked())),
        ("a semaphore", &|| is_unreachable(client.semaphore("s").try_acquire(1))),
    ];
    for (call, is_unreachable) in calls {
        let (is_unreachable, took) = timed(is_unreachable);
        assert!(is_unreachable && took < LONGEST, "{call}: {took:?}");
    }
    let stats = client.stats();
    assert_eq!((stats.connections_made, stats.held, stats.waiters), (0, 0, 0));
}

/// A hold is had, renewed, waited for and lost as with any client.
fn is_usable(client: &Client) {
    wait_until("the server answers", SOON * 6, || client.ping().is_ok());
    let guard = client.lock("usable").sendable().try_lock_for(SOON).unwrap().unwrap();
    assert!(client.stats().connections_made > 0);
    thread::scope(|scope| {
        let waiter =
            scope.spawn(|| client.lock("usable").try_lock_for(SOON).unwrap().unwrap().unlock());
        wait_until("it waits", SOON, || client.stats().waiters == 1);
        guard.unlock().unwrap();
        waiter.join().unwrap().unwrap();
    });
    let renewed = client.stats().renewed;
    let guard = client.lock("renewed").lock().unwrap();
    wait_until("it is renewed", SOON, || client.stats().renewed > renewed);
    client.lock("renewed").force_unlock().unwrap();
    assert_eq!(guard.lost().recv_timeout(SOON), Ok(LostReason::Deleted));
}

/// A client whose calls fail soon, and one for when the server is there.
fn both(builder: &ClientBuilder) -> (Client, Client) {
    let builder = builder.clone().watchdog_lease(Duration::from_secs(4));
    (lazily(builder.clone().command_timeout(TIMEOUT)), lazily(builder.command_timeout(PATIENT)))
}

#[test]
fn a_server_may_start_after_its_client() {
    let server = Server::start();
    server.kill();
    let (hasty, patient) = both(&Client::builder().url(&server.url()));
    says_that_nobody_is_there(&hasty);
    // A call that is under way when the server starts finds it.
    thread::scope(|scope| {
        let waiting = scope.spawn(|| patient.lock("a").sendable().lock());
        server.start_again();
        waiting.join().unwrap().unwrap().unlock().unwrap();
    });
    is_usable(&patient);
    wait_until("it is there for both", SOON, || hasty.ping().is_ok());
}

#[test]
fn a_master_and_its_sentinels_may_start_after_their_client() {
    let sentinels = known_to(Sentinels::builder().replicas(0).sentinels(1), &[]).start();
    for server in sentinels.sentinels().iter().chain(sentinels.servers()) {
        server.kill();
    }
    let (hasty, patient) = both(&behind(&sentinels));
    says_that_nobody_is_there(&hasty);
    for server in sentinels.servers().iter().chain(sentinels.sentinels()) {
        server.start_again();
    }
    is_usable(&patient);
    wait_until("it is there for both", SOON, || hasty.ping().is_ok());
}

#[test]
fn a_cluster_may_start_after_its_client() {
    let cluster = slots::start(3, 0);
    let nodes = cluster.nodes();
    for node in &nodes {
        node.kill();
    }
    let (hasty, patient) = both(&slots::builder_of(&cluster));
    says_that_nobody_is_there(&hasty);
    for node in &nodes {
        node.start_again();
    }
    cluster.wait_until_ok();
    is_usable(&patient);
    wait_until("it is there for both", SOON, || hasty.ping().is_ok());
    // It asks every master.
    nodes[1].kill();
    assert!(is_unreachable(hasty.ping()));
}

#[test]
fn a_client_whose_server_never_starts_ends_at_once() {
    let server = Server::start();
    server.kill();
    let client = lazily(Client::builder().url(&server.url()).command_timeout(TIMEOUT));
    says_that_nobody_is_there(&client);
    let (report, took) = timed(|| client.shutdown(SOON));
    assert!(report.unreleased.is_empty() && took < LONGEST, "{took:?}");
    assert!(matches!(client.ping(), Err(Error::Shutdown)));
    let ((), took) = timed(|| drop(client));
    assert!(took < PATIENT, "{took:?}");
}

#[test]
fn a_limit_too_short_for_the_server_is_named_in_the_error() {
    let server = Server::start();
    let client = lazily(Client::builder().url(&server.url()));
    server.pause();
    let wait = || client.lock("a").try_lock_for(Duration::from_micros(200)).map(drop);
    let alone = wait().unwrap_err().to_string();
    assert!(alone.contains("did not answer in time"), "{alone}");
    assert!(alone.contains("that the call had left"), "{alone}");
    // Those behind another thread send nothing.
    let together = thread::scope(|scope| {
        let waits: Vec<_> = (0..8).map(|_| scope.spawn(wait)).collect();
        waits.into_iter().map(|wait| wait.join().unwrap()).collect::<Vec<_>>()
    });
    for outcome in together {
        let error = outcome.unwrap_err();
        assert!(error.is_retryable() && !error.to_string().contains("be reached"), "{error}");
    }
    server.resume();
}

#[test]
fn a_server_that_accepts_and_never_answers_is_unreachable() {
    let server = Server::start();
    server.pause();
    let (client, patient) = both(&Client::builder().url(&server.url()));
    says_that_nobody_is_there(&client);
    server.resume();
    is_usable(&patient);
    // With a connection, too.
    assert_eq!(client.ping(), Ok(()));
    server.pause();
    let (unanswered, took) = timed(|| client.ping());
    assert!(is_unreachable(unanswered) && took < TIMEOUT + SLACK, "{took:?}");
    server.resume();
    wait_until("it answers again", SOON, || client.ping().is_ok());
}

#[test]
fn a_wrong_password_shows_at_the_first_use() {
    let server = Server::builder().argument("--requirepass", "right").start();
    let url = |password| format!("redis://:{password}@{}/", server.address());
    let client = lazily(Client::builder().url(&url("s3cret")));
    let errors = [
        client.ping().unwrap_err(),
        client.lock("a").lock().unwrap_err(),
        client.semaphore("s").try_acquire(1).unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, Error::Authentication { .. }) && !error.is_retryable(), "{error}");
        assert!(!format!("{error} {error:?}").contains("s3cret"), "{error}");
    }
    is_usable(&lazily(Client::builder().url(&url("right")).watchdog_lease(Duration::from_secs(4))));
}

#[test]
fn what_is_wrong_without_a_server_is_an_error_of_build() {
    let build = |builder: ClientBuilder| builder.connect_lazily().build().unwrap_err();
    for url in ["", "http://127.0.0.1/", "redis://", "redis://127.0.0.1:99999/"] {
        let error = build(Client::builder().url(url));
        assert!(matches!(error, Error::InvalidUrl { .. }), "{url:?}: {error}");
    }
    let nowhere = || Client::builder().url("redis://127.0.0.1:1/");
    let setting = |error: Error| match error {
        Error::InvalidSetting { setting, .. } => setting,
        error => error.to_string().leak(),
    };
    assert_eq!(setting(build(Client::builder())), "url");
    assert_eq!(setting(build(nowhere().max_connections(0))), "max_connections");
    assert_eq!(setting(build(nowhere().refuse_eviction())), "connect_lazily");
    assert!(matches!(build(nowhere().watchdog_lease(TIMEOUT / 1000)), Error::InvalidLease { .. }));
}

#[test]
fn a_server_that_evicts_is_warned_of_when_there_is_a_hold() {
    let server = Server::builder().argument("--maxmemory-policy", "allkeys-lru").start();
    let (tell, told) = unbounded();
    let builder = Client::builder().url(&server.url());
    let client = lazily(builder.on_warning(move |warning| tell.send(warning.clone()).unwrap()));
    assert!(client.warnings().is_empty());
    let _guard = client.lock("a").lock().unwrap();
    let warning = Expected::Eviction("allkeys-lru".to_owned());
    assert_eq!(told.recv_timeout(SOON).unwrap(), warning);
    assert_eq!(client.warnings(), [warning]);
}

#[test]
fn ping_needs_only_documented_rights_and_reconnects() {
    let server = Server::builder().user(&crate::common::user::RULE).start();
    let client = lazily(Client::builder().url(&user_url(&server.url())));
    assert_eq!(client.ping(), Ok(()));
    assert_eq!(client.stats().connections_made, 1);
    server.restart();
    assert_eq!(client.ping(), Ok(()), "a new connection is made");
}
