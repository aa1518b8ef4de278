//! Nodes that redirect a client to each other: how many redirections it follows, and for how long.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use crate::common::fake::{FakeServer, array};
use crate::common::{LIMIT, SLACK, TIMEOUT, built, code, pause, timed};
use wheellock::{Client, ClientBuilder, Error};
use wheellock_fixture::wait_until;

const ACQUIRE: &str = include_str!("../../src/ops/scripts/acquire.lua");
const RENEW: &str = include_str!("../../src/ops/scripts/renew.lua");
const RELEASE: &str = include_str!("../../src/ops/scripts/release.lua");

/// The node that is said to serve all slots, when that is known.
type Owner = Arc<OnceLock<SocketAddr>>;

/// A node that answers scripts as it is told.
fn node(
    owner: &Owner,
    script: impl Fn(&str, &[&str]) -> Vec<u8> + Send + Sync + 'static,
) -> FakeServer {
    let owner = Arc::clone(owner);
    FakeServer::start(move |words| match words {
        ["TIME"] => array(&["1700000000", "0"]),
        ["CLUSTER", "SLOTS"] => {
            let owner = owner.wait();
            let [host, port] = [owner.ip().to_string(), owner.port().to_string()];
            let name = "0".repeat(40);
            let range = format!("*3\r\n:0\r\n:16383\r\n*3\r\n${}\r\n{host}\r\n", host.len());
            format!("*1\r\n{range}:{port}\r\n$40\r\n{name}\r\n").into_bytes()
        }
        ["EVALSHA", ..] => b"-NOSCRIPT No matching script.\r\n".to_vec(),
        ["EVAL", source, _, rest @ ..] => script(source, rest),
        _ => array(&[]),
    })
}

fn moved(to: SocketAddr) -> Vec<u8> {
    format!("-MOVED 0 {to}\r\n").into_bytes()
}

fn builder(node: &FakeServer) -> ClientBuilder {
    Client::builder().url(&format!("redis-cluster://{}", node.address())).command_timeout(TIMEOUT)
}

#[test]
fn a_redirection_loop_ends_after_a_few_rounds() {
    let asked = Arc::new(AtomicUsize::new(0));
    let places: Arc<[OnceLock<SocketAddr>; 2]> = Arc::default();
    let nodes = [0, 1].map(|place| {
        let (asked, places) = (Arc::clone(&asked), Arc::clone(&places));
        let own = Arc::new(OnceLock::new());
        let node = node(&own, move |_, _| {
            asked.fetch_add(1, Ordering::SeqCst);
            moved(*places[1 - place].wait())
        });
        own.set(node.address()).unwrap();
        node
    });
    for (place, node) in places.iter().zip(&nodes) {
        place.set(node.address()).unwrap();
    }
    // Of its tries the last has most of it left for the answer.
    let timeout = TIMEOUT * 2;
    let client = built(builder(&nodes[0]).command_timeout(timeout));
    wait_until("the last try of a call is answered", LIMIT, || {
        let before = asked.load(Ordering::SeqCst);
        let (error, took) = timed(|| client.lock("a").try_lock().unwrap_err());
        assert!(error.is_retryable(), "{error}");
        assert!(took < timeout * 2 + SLACK, "{took:?}");
        // Four rounds in each attempt, of which a call makes half a dozen.
        let asked = asked.load(Ordering::SeqCst) - before;
        assert!((4..=40).contains(&asked), "{asked}");
        // On a busy machine it may be cut off, which is another error.
        let is_answered = matches!(&error, Error::Refused { code, .. } if code == "TRYAGAIN");
        assert!(!is_answered || !error.is_outcome_unknown());
        is_answered
    });
}

#[test]
fn redirected_renewals_delay_holds_of_node_at_most_a_timeout() {
    const SENT_AWAY: usize = 40;
    let answered = |keys: usize| {
        let ones = ":1\r\n".repeat(keys);
        format!("*{}\r\n:1700000000000\r\n{ones}", keys + 1).into_bytes()
    };
    let owner = Owner::default();
    let slow = node(&owner, move |_, _| {
        // Within the timeout of each, and not of all.
        pause(TIMEOUT / 2);
        answered(1)
    });
    let away = slow.address();
    let home = node(&owner, move |source, words| match source {
        _ if source == code(ACQUIRE) => b"$-1\r\n".to_vec(),
        _ if source == code(RENEW) && words[0] != "kept" => moved(away),
        _ if source == code(RENEW) => answered(1),
        _ if source == code(RELEASE) => b"*2\r\n:1\r\n:1700000000000\r\n".to_vec(),
        _ => b"-ERR what?\r\n".to_vec(),
    });
    owner.set(home.address()).unwrap();
    let lease = TIMEOUT * 8;
    let client = built(builder(&home).watchdog_lease(lease));
    let names = (0..SENT_AWAY).map(|number| format!("away:{number}"));
    let guards: Vec<_> = names.map(|name| client.lock(&name).lock().unwrap()).collect();
    let kept = client.lock("kept").lock().unwrap();
    // One after the other they would take as long as two leases and a half.
    pause(lease * 2);
    assert!(kept.is_held());
    drop(guards);
    kept.unlock().unwrap();
}
