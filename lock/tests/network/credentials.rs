//! A credentials callback is called at each connect; its result may change, fail, or not come.

#![expect(clippy::panic, reason = "a callback that panics is what is tested")]

use std::sync::Arc;
use std::time::Duration;

use crate::common::{ProxiedServer, SLACK, SOON, Script, TIMEOUT, timed, wait_for_a_waiter};
use crossbeam_channel::bounded;
use parking_lot::Mutex;
use wheellock::{Client, ClientBuilder, Credentials, Error};
use wheellock_fixture::{Fault, Server, wait_until};

/// What the callback answers, and how often it was asked.
#[derive(Clone)]
struct Vault(Arc<Mutex<State>>);

struct State {
    answer: Answer,
    asked: usize,
}

#[derive(Clone)]
enum Answer {
    Password(&'static str),
    Fails,
    Panics,
}

impl Vault {
    fn new(password: &'static str) -> Self {
        Self(Arc::new(Mutex::new(State { answer: Answer::Password(password), asked: 0 })))
    }

    fn set(&self, answer: Answer) {
        self.0.lock().answer = answer;
    }

    fn asked(&self) -> usize {
        self.0.lock().asked
    }

    /// Asks it for the password of the URL's user.
    fn opens(&self, builder: ClientBuilder) -> ClientBuilder {
        let vault = self.clone();
        builder.credentials(move || {
            let answer = {
                let mut state = vault.0.lock();
                state.asked += 1;
                state.answer.clone()
            };
            match answer {
                Answer::Password(password) => Ok(Credentials::password(password)),
                Answer::Fails => Err("the vault is sealed".into()),
                Answer::Panics => panic!("on purpose"),
            }
        })
    }
}

const NOAUTH: &[u8] = b"-NOAUTH Authentication required.\r\n";

fn noauth() -> Fault {
    Fault::AnswerInstead(NOAUTH.to_vec())
}

/// Changes the password of the clients' user, and closes its connections.
fn change_password(server: &Server, from: &str, to: &str) {
    let (from, to) = (format!("<{from}"), format!(">{to}"));
    assert!(!server.command(&["ACL", "SETUSER", "family", &from, &to]).is_error());
    drop(server.command(&["CLIENT", "KILL", "USER", "family"]));
}

#[test]
fn a_new_connection_asks_for_a_changed_password() {
    let setup = ProxiedServer::new();
    let vault = Vault::new("password");
    let client = crate::common::built(
        vault.opens(setup.builder()).command_timeout(SOON).watchdog_lease(Duration::from_secs(6)),
    );
    let guard = client.lock("a").lock().unwrap();
    let rival = setup.rival();
    let held = rival.lock("b").lock().unwrap();
    let asked = vault.asked();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| client.lock("b").lock().map(drop));
        wait_for_a_waiter(&client);
        vault.set(Answer::Password("other"));
        change_password(&setup.server, "password", "other");
        // The callers', the renewals' and the subscription's connection.
        wait_until("all have asked", SOON, || vault.asked() >= asked + 3);
        let renewed = client.stats().renewed;
        wait_until("it is renewed", SOON, || client.stats().renewed > renewed);
        // The rival has no connection any more, and the old password.
        drop(held);
        drop(setup.server.command(&["DEL", "b"]));
        waiter.join().unwrap().unwrap();
    });
    assert!(guard.is_held());
    guard.unlock().unwrap();
}

#[test]
fn the_callback_replaces_the_credentials_of_the_url() {
    let server = Server::builder().user(&crate::common::user::RULE).start();
    let address = server.address();
    let url = format!("redis://nobody:wrong@{address}/");
    let builder = Client::builder().url(&url);
    assert!(matches!(builder.clone().build(), Err(Error::Authentication { .. })));
    let ask = || Ok(Credentials::new("family", "password"));
    let client = builder.credentials(ask).build().unwrap();
    drop(client.lock("a").lock().unwrap());
    let clients = server.command(&["CLIENT", "LIST"]).text();
    assert!(clients.contains("user=family"), "{clients}");
}

#[test]
fn a_connection_that_lost_its_authentication_is_replaced() {
    let setup = ProxiedServer::new();
    let vault = Vault::new("password");
    let client = crate::common::built(vault.opens(setup.builder().command_timeout(SOON)));
    client.lock("a").lock().unwrap().unlock().unwrap();
    let (asked, accepted) = (vault.asked(), setup.proxy.accepted());
    let aim = setup.on(Script::Acquire, "a", noauth());
    client.lock("a").lock().unwrap().unlock().unwrap();
    assert_eq!(aim.hits(), 1);
    assert_eq!((vault.asked(), setup.proxy.accepted()), (asked + 1, accepted + 1));
}

#[test]
fn a_refused_static_password_is_an_error_and_reconnects() {
    let setup = ProxiedServer::new();
    let client = setup.patient();
    client.lock("a").lock().unwrap().unlock().unwrap();
    let accepted = setup.proxy.accepted();
    setup.on(Script::Acquire, "a", noauth());
    let (result, took) = timed(|| client.lock("a").try_lock());
    let error = result.unwrap_err();
    assert!(matches!(error, Error::Authentication { .. }), "{error:?}");
    assert!(took < TIMEOUT + SLACK, "{took:?}");
    client.lock("a").lock().unwrap().unlock().unwrap();
    assert_eq!(setup.proxy.accepted(), accepted + 1);
}

#[test]
fn renewals_move_off_a_connection_that_lost_its_authentication() {
    let setup = ProxiedServer::new();
    let vault = Vault::new("password");
    let client =
        crate::common::built(vault.opens(setup.builder()).watchdog_lease(Duration::from_secs(6)));
    let guard = client.lock("a").lock().unwrap();
    let aim = setup.on(Script::Renew, "a", noauth());
    aim.wait_for_hit(SOON);
    wait_until("it is renewed", SOON, || client.stats().renewed > 0);
    assert!(guard.is_held());
    // The next connection has the present password, so no lock is in danger.
    assert!(client.warnings().is_empty());
    // Connecting asked once for the callers, once for the renewals and once more.
    assert!(vault.asked() >= 3, "{}", vault.asked());
    guard.unlock().unwrap();
}

#[test]
fn credentials_failure_or_panic_fails_connect_and_is_retried() {
    let setup = ProxiedServer::new();
    for (answer, reason) in
        [(Answer::Fails, "the vault is sealed"), (Answer::Panics, "it panicked")]
    {
        let vault = Vault::new("password");
        vault.set(answer.clone());
        // Long enough for a panic that prints where it was.
        let builder = || vault.opens(setup.builder()).command_timeout(SOON);
        let error = builder().build().unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
        assert!(error.to_string().contains(reason) && error.is_retryable(), "{error}");

        // It fails later, when the renewals and the subscription need it.
        vault.set(Answer::Password("password"));
        let lease = Duration::from_secs(6);
        let client = crate::common::built(builder().watchdog_lease(lease));
        let guard = client.lock("a").lock().unwrap();
        let rival = setup.rival();
        let held = rival.lock("b").lock().unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| client.lock("b").lock().map(drop));
            wait_for_a_waiter(&client);
            vault.set(answer.clone());
            setup.proxy.cut_all();
            let asked = vault.asked();
            wait_until("it was asked without success", SOON, || vault.asked() >= asked + 3);
            vault.set(Answer::Password("password"));
            let renewed = client.stats().renewed;
            wait_until("it is renewed", SOON, || client.stats().renewed > renewed);
            drop(held);
            waiter.join().unwrap().unwrap();
        });
        assert!(guard.is_held());
        guard.unlock().unwrap();
    }
}

#[test]
fn refused_password_is_requested_again_before_call_deadline() {
    let setup = ProxiedServer::new();
    let vault = Vault::new("password");
    let client = crate::common::built(vault.opens(setup.builder()).command_timeout(SOON));
    vault.set(Answer::Password("not yet"));
    setup.proxy.cut_all();
    let asked = vault.asked();
    std::thread::scope(|scope| {
        let call = scope.spawn(|| client.lock("a").lock().map(drop));
        wait_until("it was refused", SOON, || vault.asked() >= asked + 2);
        vault.set(Answer::Password("password"));
        call.join().unwrap().unwrap();
    });
}

#[test]
fn hanging_credentials_callback_ends_at_connect_timeout() {
    let setup = ProxiedServer::new();
    let (open, opened) = bounded::<()>(0);
    let builder = setup.builder().credentials(move || {
        // Until the test ends.
        assert!(opened.recv().is_err());
        Ok(Credentials::password("password"))
    });
    for _ in 0..3 {
        let (result, took) = timed(|| builder.clone().build());
        let error = result.unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
        assert!(took >= TIMEOUT && took < TIMEOUT + SLACK, "{took:?}");
    }
    drop(open);
}
