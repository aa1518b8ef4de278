//! Sentinels and a master over TLS: a failover is followed, and only trusted servers are used.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![expect(clippy::panic, reason = "an answer that cannot be is a failed test")]

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use crate::SOON;
use crate::common::certificates::{believing, ours_over_tls};
use crate::common::user::{behind, known_to};
use crate::common::{SLACK, built, timed, wait_for_a_waiter};
use wheellock::{Client, ClientBuilder, Error, LostReason, TlsSettings};
use wheellock_fixture::{Certificates, ClientCertificates, Sentinels, Server, wait_until};

/// Longer than a handshake takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(2);

fn sentinels(certificates: &Certificates) -> Sentinels {
    let builder = Sentinels::builder().tls(certificates, ClientCertificates::Required);
    known_to(builder, &[]).start()
}

fn builder(sentinels: &Sentinels, certificates: &Certificates) -> ClientBuilder {
    behind(sentinels).tls(believing(certificates)).command_timeout(SOON)
}

fn exists(server: &Server, name: &str) -> bool {
    server.command(&["EXISTS", name]).integer() == 1
}

/// Why no client can be built, known within one timeout.
fn refused(builder: ClientBuilder) -> Error {
    let (result, took) = timed(|| builder.command_timeout(TIMEOUT).build());
    assert!(took < TIMEOUT + SLACK, "{took:?}");
    result.unwrap_err()
}

fn not_believed(error: &Error, stranger: SocketAddr) {
    let Error::Tls { server, reason, .. } = error else { panic!("{error:?}") };
    assert_eq!(*server, stranger.to_string());
    assert!(reason.as_str().contains("BadSignature"), "{reason}");
    assert!(!error.is_retryable());
}

#[test]
fn a_failover_is_followed_over_tls_only() {
    let certificates = Certificates::new();
    let sentinels = sentinels(&certificates);
    let (ann, ben) = (builder(&sentinels, &certificates), builder(&sentinels, &certificates));
    let (ann, ben) = (built(ann), built(ben));
    let held = ann.lock("held").lock().unwrap();
    let lost = ann.lock("lost").with_lease(SOON * 60).lock().unwrap();
    let replica = sentinels.replicas()[0];
    wait_until("both are replicated", SOON, || exists(replica, "held") && exists(replica, "lost"));
    replica.command(&["CONFIG", "SET", "replica-read-only", "no"]);
    replica.command(&["DEL", "lost"]);
    thread::scope(|scope| {
        let waiter =
            scope.spawn(|| ben.lock("held").try_lock_for(SOON * 3).unwrap().unwrap().unlock());
        wait_for_a_waiter(&ben);
        let new = sentinels.fail_over();
        assert_eq!(lost.lost().recv_timeout(SOON), Ok(LostReason::Deleted));
        wait_until("the waiter listens there", SOON, || {
            let reply = new.command(&["PUBSUB", "NUMSUB", "redisson_lock__channel:{held}"]);
            reply.array()[1].integer() == 1
        });
        assert!(held.is_held() && exists(new, "held"));
        held.unlock().unwrap();
        waiter.join().unwrap().unwrap();
        assert!(ours_over_tls(new, "family") >= 2);
    });
    let heard: usize =
        sentinels.sentinels().iter().map(|sentinel| ours_over_tls(sentinel, "watcher")).sum();
    assert!(heard >= 2, "{heard}");
}

#[test]
fn the_builder_s_own_way_to_the_sentinels_speaks_tls_too() {
    let certificates = Certificates::new();
    let sentinels = Sentinels::builder().tls(&certificates, ClientCertificates::Required).start();
    let addresses: Vec<String> = sentinels.addresses().iter().map(SocketAddr::to_string).collect();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let builder = Client::builder().sentinels(Sentinels::NAME, &addresses);
    let client = built(builder.tls(believing(&certificates)).command_timeout(SOON));
    let _guard = client.lock("a").lock().unwrap();
    assert!(exists(sentinels.master(), "a"));
}

#[test]
fn a_sentinel_with_an_untrusted_certificate_is_refused() {
    let (certificates, others) = (Certificates::new(), Certificates::new());
    let ours = sentinels(&certificates);
    let theirs = Sentinels::builder().replicas(0).sentinels(1);
    let theirs = theirs.tls(&others, ClientCertificates::Ignored).start();
    let stranger = &theirs.sentinels()[0];
    let asked = || {
        stranger.command_calls("sentinel|get-master-addr-by-name")
            + stranger.command_calls("sentinel|master")
            + stranger.command_calls("auth")
            + stranger.command_calls("subscribe")
    };
    let before = asked();
    let error = refused(builder(&theirs, &certificates));
    not_believed(&error, stranger.tls_address());

    // Beside others it is left out.
    let all = format!("@{},{}", stranger.tls_address(), ours.addresses()[0]);
    let url = format!("rediss-sentinel://family:password{all}/{}", Sentinels::NAME);
    let client = Client::builder().url(&url).sentinel_credentials(Some("watcher"), "password");
    let client = built(client.tls(believing(&certificates)).command_timeout(SOON));
    let guard = client.lock("a").lock().unwrap();
    assert!(exists(ours.master(), "a"));
    ours.fail_over();
    // Else the old master may grant what the new one then knows nothing of.
    ours.wait_until_all_is_well();
    client.lock("b").lock().unwrap().unlock().unwrap();
    drop(guard);
    assert_eq!(asked(), before);
}

#[test]
fn a_master_with_an_untrusted_certificate_is_refused() {
    let (certificates, others) = (Certificates::new(), Certificates::new());
    let sentinels = sentinels(&certificates);
    let stranger = Server::builder().tls(&others, ClientCertificates::Ignored).start();
    let (host, port) = (stranger.tls_address().ip().to_string(), stranger.tls_address().port());
    for sentinel in sentinels.sentinels() {
        let named = ["SENTINEL", "MONITOR", "stranger", &host, &port.to_string(), "2"];
        assert_eq!(sentinel.command(&named).text(), "OK");
    }
    let url = crate::common::user::user_url(&sentinels.url()).replace(Sentinels::NAME, "stranger");
    let client = Client::builder().url(&url).sentinel_credentials(Some("watcher"), "password");
    let error = refused(client.tls(believing(&certificates)));
    not_believed(&error, stranger.tls_address());
    assert_eq!(stranger.command_calls("auth") + stranger.command_calls("time"), 0);
}

#[test]
fn sentinels_refuse_missing_or_untrusted_client_certificate() {
    let certificates = Certificates::new();
    let stranger = Certificates::new();
    let sentinels = sentinels(&certificates);
    let without_key = TlsSettings::new().authority_pem(certificates.authority().text());
    let other = without_key
        .clone()
        .client_certificate_files(stranger.client().path(), stranger.client_key().path());
    // Either end may close first.
    for tls in [without_key, other].iter().cycle().take(20) {
        let error = refused(behind(&sentinels).tls(tls.clone()));
        assert!(matches!(error, Error::Tls { .. }), "{error:?}");
        assert!(!error.is_retryable());
    }
}

#[test]
fn tls_mismatch_between_client_and_server_fails_within_timeout() {
    let certificates = Certificates::new();
    let sentinels = sentinels(&certificates);
    let plain = behind(&sentinels);
    let url = sentinels.url().replace("rediss-", "redis-");
    let error = refused(plain.clone().url(&url));
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    let sentinels = Sentinels::builder().replicas(0).sentinels(1).start();
    let url = sentinels.url().replace("redis-", "rediss-");
    let error = refused(plain.url(&url).tls(believing(&certificates)));
    assert!(matches!(error, Error::Unreachable { .. } | Error::Tls { .. }), "{error:?}");
}
