//! A cluster over TLS: redirections are followed over TLS, and only trusted nodes are used.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::common::certificates::{believing, ours_over_tls};
use crate::common::slots::{
    AT_ONCE, builder_of, calls, cluster, elsewhere, home, name_at, owner_of, wait_for_a_listener,
};
use crate::common::{SLACK, SOON, built, timed, wait_for_a_waiter};
use wheellock::{Client, ClientBuilder, Error, TlsSettings};
use wheellock_fixture::{Certificates, ClientCertificates, Cluster, Server, wait_until};

/// Longer than a handshake takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(2);

fn start(certificates: &Certificates, masters: u16, replicas: u16) -> Cluster {
    cluster().tls(certificates, ClientCertificates::Required).start(masters, replicas)
}

fn client(cluster: &Cluster, certificates: &Certificates) -> Client {
    built(builder_of(cluster).tls(believing(certificates)).command_timeout(SOON))
}

/// How many connections the clients have, all of which must have come over TLS.
fn connections(cluster: &Cluster) -> usize {
    cluster.nodes().iter().map(|node| ours_over_tls(node, "family")).sum()
}

fn refusals(node: &Server, code: &str) -> u64 {
    let errors = node.command(&["INFO", "errorstats"]).text();
    let beginning = format!("errorstat_{code}:count=");
    let count = errors.lines().find_map(|line| line.strip_prefix(&beginning));
    count.map_or(0, |count| count.trim().parse().unwrap())
}

/// Why no client can be built, known within one timeout.
fn refused(builder: ClientBuilder) -> Error {
    let (result, took) = timed(|| builder.command_timeout(TIMEOUT).build());
    assert!(took < TIMEOUT + SLACK, "{took:?}");
    result.unwrap_err()
}

#[test]
fn redirections_are_followed_over_tls() {
    let certificates = Certificates::new();
    let cluster = start(&certificates, 3, 0);
    let client = client(&cluster, &certificates);
    for master in cluster.masters() {
        let name = name_at(&cluster, &master);
        client.lock(&name).lock().unwrap().unlock().unwrap();
        assert!(ours_over_tls(&master, "family") > 0);
    }
    // Its slot has moved, and the client learns it only from the old node.
    let (old, new) = (home(&cluster, "a"), elsewhere(&cluster, "a"));
    let moved = refusals(&old, "MOVED");
    cluster.move_slot(cluster.slot_of("a"), &new);
    let guard = client.lock("a").lock().unwrap();
    assert_eq!(owner_of(&cluster, "a").as_deref(), Some(guard.owner()));
    assert!(refusals(&old, "MOVED") > moved);
    guard.unlock().unwrap();
    // Its slot is on the way, and its key is there already.
    let slot = cluster.slot_of("b");
    let (old, new) = (home(&cluster, "b"), elsewhere(&cluster, "b"));
    let moving = cluster.begin_move(slot, &new).unwrap();
    let asked = calls(&cluster, "asking");
    let guard = client.lock("b").lock().unwrap();
    assert!(calls(&cluster, "asking") > asked && refusals(&old, "ASK") > 0);
    assert_eq!(new.command(&["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()]).integer(), 1);
    moving.move_all_keys().unwrap();
    moving.finish().unwrap();
    guard.unlock().unwrap();
    assert!(connections(&cluster) >= 3);
}

#[test]
fn a_waiter_is_woken_in_the_shard_to_which_its_slot_has_moved() {
    let certificates = Certificates::new();
    let cluster = start(&certificates, 2, 0);
    let (holder, waiter) = (client(&cluster, &certificates), client(&cluster, &certificates));
    let guard = holder.lock("a").lock().unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| waiter.lock("a").lock().unwrap().unlock());
        wait_for_a_waiter(&waiter);
        wait_for_a_listener(&cluster, "a");
        cluster.move_slot(cluster.slot_of("a"), &elsewhere(&cluster, "a"));
        wait_for_a_listener(&cluster, "a");
        let ((), took) = timed(|| {
            guard.unlock().unwrap();
            waiting.join().unwrap().unwrap();
        });
        assert!(took < AT_ONCE, "{took:?}");
    });
    connections(&cluster);
}

#[test]
fn a_hold_is_renewed_and_released_at_the_replica_that_took_over() {
    let certificates = Certificates::new();
    let cluster = start(&certificates, 2, 1);
    let lease = Duration::from_secs(2);
    let builder = builder_of(&cluster).tls(believing(&certificates)).command_timeout(SOON);
    let client = built(builder.watchdog_lease(lease));
    let guard = client.lock("a").lock().unwrap();
    let old = home(&cluster, "a");
    let new: Arc<Server> = cluster.fail_over(&old);
    let renewed = client.stats().renewed;
    wait_until("it is renewed", SOON, || client.stats().renewed > renewed + 1);
    assert!(guard.is_held() && ours_over_tls(&new, "family") > 0);
    guard.unlock().unwrap();
    assert_eq!(new.command(&["EXISTS", "a"]).integer(), 0);
    connections(&cluster);
}

#[test]
fn a_node_with_an_untrusted_certificate_is_refused() {
    let (certificates, others) = (Certificates::new(), Certificates::new());
    let ours = start(&certificates, 2, 0);
    let theirs = Cluster::builder().tls(&others, ClientCertificates::Ignored).start(1, 0);
    let stranger = &theirs.nodes()[0];
    let asked = || stranger.command_calls("cluster|slots") + stranger.command_calls("auth");
    let before = asked();
    let error = refused(builder_of(&theirs).tls(believing(&certificates)));
    let Error::Tls { server, reason, .. } = &error else { panic!("{error:?}") };
    assert_eq!(*server, stranger.tls_address().to_string());
    assert!(reason.as_str().contains("BadSignature") && !error.is_retryable(), "{reason}");

    // Beside others it is left out.
    let seeds: [SocketAddr; 2] = [stranger.tls_address(), ours.nodes()[0].tls_address()];
    let urls = seeds.map(|seed| format!("rediss://family:password@{seed}"));
    let client = Client::builder().cluster(urls).tls(believing(&certificates));
    let client = built(client.command_timeout(SOON));
    for number in 0..10 {
        client.lock(&number.to_string()).lock().unwrap().unlock().unwrap();
    }
    assert_eq!(asked(), before);
}

#[test]
fn cluster_refuses_missing_or_untrusted_client_certificate() {
    let certificates = Certificates::new();
    let stranger = Certificates::new();
    let cluster = start(&certificates, 1, 0);
    let without_key = TlsSettings::new().authority_pem(certificates.authority().text());
    let other = without_key
        .clone()
        .client_certificate_files(stranger.client().path(), stranger.client_key().path());
    // Either end may close first.
    for tls in [without_key, other].iter().cycle().take(20) {
        let error = refused(builder_of(&cluster).tls(tls.clone()));
        assert!(matches!(error, Error::Tls { .. }), "{error:?}");
        assert!(!error.is_retryable());
    }
    let plain = cluster.url().replace("rediss-", "redis-");
    let error = refused(Client::builder().url(&plain));
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
}
