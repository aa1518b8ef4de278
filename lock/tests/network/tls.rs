//! Locks over TLS: wake-ups, renewals and faults as without it, and only trusted servers are used.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![expect(clippy::print_stdout, reason = "figures for a reader, who asks for them")]

use std::error::Error as _;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::common::certificates::believing;
use crate::common::turns::take_in_turn;
use crate::common::{SLACK, SOON, built, timed, wait_for_a_waiter};
use wheellock::{Client, ClientBuilder, Error, LostReason, ManualClock, TlsSettings};
use wheellock_fixture::{Certificates, ClientCertificates, Server, wait_until};

/// Longer than a handshake takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(1);

fn server(certificates: &Certificates) -> Server {
    Server::builder().tls(certificates, ClientCertificates::Required).start()
}

fn builder(server: &Server, tls: TlsSettings) -> ClientBuilder {
    Client::builder().url(&server.tls_url()).tls(tls).command_timeout(TIMEOUT)
}

/// Why no client can be built, known within one timeout.
fn refused(builder: ClientBuilder) -> Error {
    let (result, took) = timed(|| builder.build());
    assert!(took < TIMEOUT + SLACK, "{took:?}");
    result.unwrap_err()
}

fn listeners(server: &Server) -> usize {
    server.command(&["CLIENT", "LIST", "TYPE", "pubsub"]).text().lines().count()
}

#[test]
fn a_waiter_is_woken_also_after_its_connection_was_cut() {
    let certificates = Certificates::new();
    let server = server(&certificates);
    let client = || built(builder(&server, believing(&certificates)));
    let (ann, ben) = (client(), client());
    for cut in [false, true] {
        let guard = ann.lock("a").lock().unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| ben.lock("a").lock().map(drop));
            wait_for_a_waiter(&ben);
            wait_until("it listens", SOON, || listeners(&server) == 1);
            if cut {
                let subscribed = server.command_calls("subscribe");
                drop(server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]));
                wait_until("it listens again", SOON, || {
                    server.command_calls("subscribe") > subscribed
                });
            }
            guard.unlock().unwrap();
            waiter.join().unwrap().unwrap();
        });
    }
}

#[test]
fn a_watched_hold_is_renewed_also_after_its_connection_was_cut() {
    let certificates = Certificates::new();
    let server = server(&certificates);
    let lease = Duration::from_secs(2);
    let client = built(builder(&server, believing(&certificates)).watchdog_lease(lease));
    let guard = client.lock("a").lock().unwrap();
    wait_until("it is renewed", SOON, || client.stats().renewed >= 2);
    let renewed = client.stats().renewed;
    drop(server.command(&["CLIENT", "KILL", "TYPE", "normal"]));
    wait_until("it is renewed again", SOON, || client.stats().renewed >= renewed + 2);
    assert!(guard.is_held());
    guard.unlock().unwrap();
}

#[test]
fn what_fills_many_records_goes_both_ways() {
    let certificates = Certificates::new();
    let server = server(&certificates);
    let client = || built(builder(&server, believing(&certificates)).command_timeout(SOON));
    let (ann, ben) = (client(), client());
    // One SUBSCRIBE for all of them is half a megabyte, and each message fills four records.
    let names: Vec<String> =
        (0..8).map(|number| format!("{number}{}", "n".repeat(60_000))).collect();
    let guards: Vec<_> = names.iter().map(|name| ann.lock(name).lock().unwrap()).collect();
    std::thread::scope(|scope| {
        let waiters: Vec<_> =
            names.iter().map(|name| scope.spawn(|| ben.lock(name).lock().map(drop))).collect();
        wait_until("all wait", SOON, || ben.stats().waiters == names.len());
        wait_until("it listens", SOON, || listeners(&server) == 1);
        let subscribed = server.command_calls("subscribe");
        drop(server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]));
        wait_until("it listens again", SOON, || server.command_calls("subscribe") > subscribed);
        drop(guards);
        for waiter in waiters {
            waiter.join().unwrap().unwrap();
        }
    });
}

#[test]
fn a_blocked_read_ends_at_once_when_the_client_ends() {
    let certificates = Certificates::new();
    let server = server(&certificates);
    let patient = Duration::from_secs(600);
    let client = || built(builder(&server, believing(&certificates)).command_timeout(patient));
    let (ann, ben) = (client(), client());
    let guard = ann.lock("a").lock().unwrap();
    wait_until("it listens", SOON, || {
        // On a busy machine its one try may be cut off.
        let waited = ben.lock("a").try_lock_for(Duration::from_millis(50));
        assert!(!matches!(waited, Ok(Some(_))), "{waited:?}");
        listeners(&server) == 1
    });
    drop(ben);
    wait_until("it listens no more", SOON, || listeners(&server) == 0);
    drop(guard);
}

#[test]
fn hanging_server_costs_single_timeout_in_handshake_and_command() {
    let certificates = Certificates::new();
    let server = server(&certificates);
    let client = built(builder(&server, believing(&certificates)));
    server.pause();
    let (result, took) = timed(|| client.lock("a").try_lock());
    let error = result.unwrap_err();
    assert!(error.is_outcome_unknown(), "{error:?}");
    assert!(took < TIMEOUT * 2 + SLACK, "{took:?}");
    let error = refused(builder(&server, believing(&certificates)));
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    assert!(error.to_string().contains("speaks no TLS"), "{error}");
    server.resume();
    client.lock("b").lock().unwrap().unlock().unwrap();
}

#[test]
fn a_server_without_a_trusted_certificate_is_refused() {
    let certificates = Certificates::new();
    let server_of =
        |shown: &Certificates| Server::builder().tls(shown, ClientCertificates::Ignored).start();
    let (elsewhere, expired) =
        (Certificates::for_host("elsewhere.example"), Certificates::expired());
    // The two authorities have one name and two keys.
    for (shown, believed, reason) in [
        (&certificates, &elsewhere, "BadSignature"),
        (&elsewhere, &elsewhere, "elsewhere.example"),
        (&expired, &expired, "expired"),
    ] {
        let server = server_of(shown);
        let tls = TlsSettings::new().authority_file(believed.authority().path());
        let error = refused(builder(&server, tls));
        assert!(matches!(error, Error::Tls { .. }), "{error:?}");
        assert!(error.to_string().contains(reason), "{error}");
        assert!(!error.is_retryable() && !error.is_outcome_unknown());
        // Nothing was said but the handshake, no password either.
        assert_eq!(server.command_calls("auth") + server.command_calls("time"), 0);
    }
    // By a name and by an address.
    let server = server_of(&certificates);
    let port = server.tls_address().port();
    for host in ["localhost", "127.0.0.1"] {
        let tls = TlsSettings::new().authority_file(certificates.authority().path());
        let url = format!("valkeys://{host}:{port}/");
        drop(built(Client::builder().url(&url).tls(tls).command_timeout(SOON)));
    }
    // Nor do the system's root certificates.
    let error = refused(Client::builder().url(&server.tls_url()).command_timeout(TIMEOUT));
    let known = matches!(error, Error::Tls { .. } | Error::InvalidSetting { setting: "tls", .. });
    assert!(known, "{error:?}");
}

#[test]
fn server_refuses_missing_or_untrusted_client_certificate() {
    let certificates = Certificates::new();
    let stranger = Certificates::new();
    for protocol in ["TLSv1.2", "TLSv1.3"] {
        let server = Server::builder()
            .tls(&certificates, ClientCertificates::Required)
            .argument("--tls-protocols", protocol)
            .start();
        let without_key = TlsSettings::new().authority_pem(certificates.authority().text());
        let other = without_key
            .clone()
            .client_certificate_files(stranger.client().path(), stranger.client_key().path());
        for tls in [without_key, other] {
            let error = refused(builder(&server, tls));
            assert!(matches!(error, Error::Tls { .. }), "{protocol}: {error:?}");
        }
        drop(built(builder(&server, believing(&certificates))));
    }
}

#[test]
fn tls_mismatch_between_client_and_server_fails_within_timeout() {
    let certificates = Certificates::new();
    let server = server(&certificates);
    let plain = format!("rediss://{}/", server.address());
    let error = refused(
        Client::builder().url(&plain).tls(believing(&certificates)).command_timeout(TIMEOUT),
    );
    assert!(matches!(error, Error::Unreachable { .. } | Error::Tls { .. }), "{error:?}");
    let encrypted = format!("redis://{}/", server.tls_address());
    let error = refused(Client::builder().url(&encrypted).command_timeout(TIMEOUT));
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
}

#[test]
fn invalid_tls_settings_fail_before_any_request() {
    let certificates = Certificates::new();
    let key = certificates.client_key();
    let why = |url: &str, tls: TlsSettings| match Client::builder()
        .url(url)
        .tls(tls)
        .build()
        .unwrap_err()
    {
        Error::InvalidSetting { setting: "tls", reason, .. } => reason,
        other => panic!("{other:?}"),
    };
    let url = "rediss://127.0.0.1:1/";
    let some = || TlsSettings::new().authority_pem(certificates.authority().text());
    let wrong = [
        (some().authority_file("/nowhere/at/all.pem"), "/nowhere/at/all.pem"),
        (some().authority_pem("s3cret"), "no certificate"),
        (some().authority_pem(key.text()), "no certificate"),
        (some().authority_pem("-----BEGIN CERTIFICATE-----\ns3cret\n"), "PEM"),
        (some().client_certificate_pem(certificates.client().text(), "s3cret"), "no private key"),
        (some().client_certificate_pem(key.text(), key.text()), "no certificate"),
        (
            some().client_certificate_pem(
                certificates.client().text(),
                certificates.server_key().text(),
            ),
            "the client's certificate",
        ),
    ];
    for (tls, part) in wrong {
        let reason = why(url, tls);
        assert!(reason.as_str().contains(part), "{reason}");
        assert!(!reason.as_str().contains("s3cret"), "{reason}");
    }
    assert!(why("redis://127.0.0.1:1/", some()).as_str().contains("rediss://"));
}

#[test]
fn tls_error_source_explains_certificate_failure() {
    let tls = TlsSettings::new().authority_file("/nowhere/at/all.pem");
    let error = Client::builder().url("rediss://127.0.0.1:1/").tls(tls).build().unwrap_err();
    let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    assert_eq!(source.map(io::Error::kind), Some(io::ErrorKind::NotFound), "{error:?}");

    let (certificates, others) = (Certificates::new(), Certificates::for_host("other.example"));
    let server = server(&certificates);
    let error = builder(&server, believing(&others)).build().unwrap_err();
    assert!(matches!(error, Error::Tls { .. }), "{error:?}");
    assert!(error.source().is_some(), "{error:?}");
}

#[test]
fn renewal_connection_persists_during_hold_and_detects_restart() {
    let certificates = Certificates::new();
    let server = server(&certificates);
    let clock = ManualClock::new();
    let lease = Duration::from_secs(600);
    let builder = builder(&server, believing(&certificates)).watchdog_lease(lease);
    let client = built(builder.clock(Arc::new(clock.clone())));
    let guard = client.lock("a").lock().unwrap();
    clock.advance(Duration::from_secs(3));
    let made = client.stats().connections_made;
    // What the session itself sends is no end of the connection.
    clock.advance(Duration::from_secs(20));
    assert_eq!(client.stats().connections_made, made);
    server.restart();
    clock.advance(Duration::from_secs(5));
    assert_eq!(guard.lost().try_recv(), Ok(LostReason::Deleted));
}

#[test]
fn turns_over_tls_never_find_the_lock_of_a_dropped_guard_held() {
    let certificates = Certificates::new();
    let server = server(&certificates);
    let client = built(builder(&server, believing(&certificates)).command_timeout(SOON));
    for (times, others) in [(2_000, 0), (500, 64)] {
        let (tries, again) = take_in_turn(&client, &server, times, others);
        println!("TLS, two threads beside {others}: {again} second questions in {tries} tries");
    }
}
