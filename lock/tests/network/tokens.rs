//! A service with tokens for passwords ends each token after hours, and closes the connections that
//! were authenticated with it or refuses what they send. No hold is lost, and no call fails.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use wheellock::{Client, ClientBuilder, Credentials, LockGuard, ManualClock, Warning};
use wheellock_fixture::{Fault, Request, Server, wait_until};

use crate::common::slots::cluster;
use crate::common::user::{RULE, user_url};
use crate::common::{ProxiedServer, SOON, built, ended, settle, wait_for_a_waiter};

const LEASE: Duration = Duration::from_secs(3);
const ROUNDS: u64 = 6;
/// What each thread does in a round.
const CALLS: u64 = 20;
const NOAUTH: &[u8] = b"-NOAUTH Authentication required.\r\n";

/// The tokens of the clients' user. One is valid at a time.
#[derive(Clone)]
struct Tokens(Arc<Mutex<u64>>);

impl Tokens {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(0)))
    }

    fn token(number: u64) -> String {
        if number == 0 { "password".to_owned() } else { format!("token-{number}") }
    }

    /// Lets a client ask for the present token at each connect.
    fn given_to(&self, builder: ClientBuilder) -> ClientBuilder {
        let tokens = self.clone();
        builder.credentials(move || Ok(Credentials::password(Self::token(*tokens.0.lock()))))
    }

    /// A new token. The old token is refused from now on, and its connections are closed.
    fn change(&self, servers: &[Arc<Server>]) {
        let mut number = self.0.lock();
        let (old, new) = (Self::token(*number), Self::token(*number + 1));
        for server in servers {
            let rule = server.command(&["ACL", "SETUSER", "family", &format!(">{new}")]);
            assert_eq!(rule.text(), "OK");
        }
        *number += 1;
        drop(number);
        for server in servers {
            let rule = server.command(&["ACL", "SETUSER", "family", &format!("<{old}")]);
            assert_eq!(rule.text(), "OK");
            server.command(&["CLIENT", "KILL", "USER", "family"]);
        }
    }
}

/// Threads that do all kinds of things, while the tokens end one after the other.
fn work_while_tokens_end(servers: &[Arc<Server>], builder: ClientBuilder) {
    let tokens = Tokens::new();
    let builder = tokens.given_to(builder).watchdog_lease(LEASE);
    let (client, other) = (built(builder.clone()), built(builder));
    let names = ["held:a", "held:b", "held:c"];
    let held: Vec<LockGuard> = names.iter().map(|name| client.lock(name).lock().unwrap()).collect();
    client.expirable_semaphore("permits").set_permits(2).unwrap();
    let permit = client.expirable_semaphore("permits").watched().acquire().unwrap();
    let calls = AtomicU64::new(0);
    let work = &|number: usize| {
        let client = if number.is_multiple_of(2) { &client } else { &other };
        for _ in 0..CALLS {
            client.lock(&format!("own:{number}")).lock().unwrap().unlock().unwrap();
            drop(client.lock("shared").lock().unwrap());
            client.fair_lock("line").lock().unwrap().unlock().unwrap();
            drop(client.expirable_semaphore("permits").acquire().unwrap());
            calls.fetch_add(1, Ordering::Relaxed);
        }
    };
    for round in 0..ROUNDS {
        thread::scope(|scope| {
            for number in 0..4 {
                scope.spawn(move || work(number));
            }
            // In the middle of it.
            wait_until("calls", SOON, || calls.load(Ordering::Relaxed) > round * CALLS * 4 + 4);
            tokens.change(servers);
        });
        let renewed = client.stats().renewed;
        wait_until("renewals", SOON, || client.stats().renewed >= renewed + 4);
    }
    for client in [&client, &other] {
        settle(client);
        let stats = client.stats();
        assert_eq!((stats.lost, stats.abandoned_releases), (0, 0), "{stats:?}");
        // A connection for each of its threads, its renewals and its messages, at each server.
        let most = ROUNDS * 16 * servers.len() as u64;
        assert!(stats.connections_made <= most, "{stats:?}");
        let is_refusal = |warning: &Warning| matches!(warning, Warning::ChannelsRefused { .. });
        assert!(!client.warnings().iter().any(is_refusal));
    }
    for guard in held {
        guard.unlock().unwrap();
    }
    permit.release().unwrap();
}

#[test]
fn tokens_that_end_fail_no_call_and_lose_no_hold() {
    let server = Arc::new(Server::builder().user(&RULE).start());
    let builder = Client::builder().url(&user_url(&server.url()));
    work_while_tokens_end(&[server], builder);
}

#[test]
fn tokens_that_end_in_a_cluster_fail_no_call_and_lose_no_hold() {
    let cluster = cluster().start(3, 0);
    let builder = Client::builder().url(&user_url(&cluster.url()));
    work_while_tokens_end(&cluster.nodes(), builder);
}

#[test]
fn a_subscription_that_lost_its_authentication_is_made_again() {
    let setup = ProxiedServer::new();
    let builder = || Tokens::new().given_to(setup.builder().command_timeout(SOON));
    let client = built(builder().clock(Arc::new(ManualClock::new())));
    let holder = setup.rival();
    // So that the connection of the messages is there and was authenticated.
    let wake = |name: &str| {
        let guard = holder.lock(name).lock().unwrap();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| client.lock(name).lock().unwrap().unlock());
            wait_for_a_waiter(&client);
            drop(guard);
            ended(&client, waiter).unwrap();
        });
    };
    wake("a");
    let subscribes = |request: &Request| request.name() == "SUBSCRIBE";
    let aim = setup.proxy.on(subscribes, Fault::AnswerInstead(NOAUTH.to_vec()));
    wake("b");
    assert_eq!(aim.hits(), 1);
    assert!(client.warnings().is_empty());
}

#[test]
fn ping_is_retried_on_connection_with_lost_authentication() {
    let setup = ProxiedServer::new();
    let client = built(Tokens::new().given_to(setup.builder().command_timeout(SOON)));
    let pings = |request: &Request| request.name() == "PING";
    let aim = setup.proxy.on(pings, Fault::AnswerInstead(NOAUTH.to_vec()));
    client.ping().unwrap();
    assert_eq!(aim.hits(), 1);
}

#[test]
fn dropped_guard_release_is_retried_after_lost_authentication() {
    let setup = ProxiedServer::new();
    let client = built(Tokens::new().given_to(setup.builder().command_timeout(SOON)));
    let guard = client.lock("a").lock().unwrap();
    let aim = setup.on(crate::common::Script::Release, "a", Fault::AnswerInstead(NOAUTH.to_vec()));
    drop(guard);
    setup.wait_until_gone("a");
    settle(&client);
    assert_eq!((aim.hits(), client.stats().abandoned_releases), (1, 0));
}
