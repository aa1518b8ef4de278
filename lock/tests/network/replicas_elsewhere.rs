//! Replica acknowledgements in a cluster and behind sentinels: enough, too few, and after a
//! failover. The clients use the operations guide's user, with its line for this.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::common::expected::Expected;
use crate::common::slots::{builder_of, home, name_at};
use crate::common::takings::{KINDS, left_at, make_semaphores};
use crate::common::user::{IN_A_CLUSTER, WITH_REPLICAS, behind, known_to, rule_with};
use crate::common::{SOON, built, settle, timed};
use wheellock::{Client, ClientBuilder};
use wheellock_fixture::{Cluster, Sentinels, Server, wait_until};

/// How long replicas may take. One that has just come is sent nothing for a second.
const PATIENT: Duration = Duration::from_secs(5);
/// How long to wait for replicas that do not answer.
const SHORT: Duration = Duration::from_millis(50);
/// Short, so that renewals come soon.
const LEASE: Duration = Duration::from_secs(4);

const TOO_FEW: Expected = Expected::NotReplicated(1, 0);

/// A cluster in which a silent node is not soon taken for dead.
fn cluster(node_timeout: Duration) -> Cluster {
    let builder = Cluster::builder().user(&rule_with(&[IN_A_CLUSTER, WITH_REPLICAS]));
    builder.node_timeout(node_timeout).start(2, 1)
}

fn sentinels() -> Sentinels {
    known_to(Sentinels::builder(), &[WITH_REPLICAS]).start()
}

/// One that outlasts a failover.
fn patient(builder: ClientBuilder) -> Client {
    built(builder.command_timeout(SOON).replica_acks(1, PATIENT))
}

fn short(builder: ClientBuilder) -> Client {
    built(builder.replica_acks(1, SHORT))
}

fn asks(server: &Server) -> u64 {
    server.command_calls("wait")
}

/// Whether a client is warned of a master that grants locks without its replicas.
fn is_warned(builder: ClientBuilder) -> bool {
    let (tell, told) = crossbeam_channel::unbounded();
    let client = built(builder.on_warning(move |warning| tell.send(warning.to_string()).unwrap()));
    let is_that = |text: &String| text.contains("min-replicas-to-write");
    let kept = client.warnings().iter().map(ToString::to_string).filter(is_that).count();
    client.shutdown(SOON);
    let told = told.try_iter().filter(is_that).count();
    assert_eq!(told, kept, "it is told as it is kept");
    assert!(told <= 1);
    told == 1
}

fn demand_replicas(server: &Server, number: &str) {
    assert!(!server.command(&["CONFIG", "SET", "min-replicas-to-write", number]).is_error());
}

#[test]
fn sentinel_master_with_no_min_replicas_causes_warning() {
    let sentinels = sentinels();
    assert!(is_warned(behind(&sentinels)));
    // By its own address it is a server that nothing replaces.
    let alone = || Client::builder().url(&sentinels.master().url());
    assert!(!is_warned(alone()));
    demand_replicas(sentinels.master(), "1");
    assert!(!is_warned(behind(&sentinels)));
    let lag = ["CONFIG", "SET", "min-replicas-max-lag", "0"];
    assert!(!sentinels.master().command(&lag).is_error());
    assert!(is_warned(behind(&sentinels)));
    // One that may not ask is told nothing.
    for server in sentinels.servers() {
        server.command(&["ACL", "SETUSER", "family", "-info"]);
    }
    assert!(!is_warned(behind(&sentinels)));
}

#[test]
fn a_cluster_master_without_replicas_is_a_warning() {
    let cluster = cluster(SOON);
    for master in cluster.masters() {
        demand_replicas(&master, "1");
    }
    assert!(!is_warned(builder_of(&cluster)));
    demand_replicas(&cluster.masters()[1], "0");
    assert!(is_warned(builder_of(&cluster)));
    // Where there are no replicas, nothing takes over.
    let without = Cluster::builder().user(&rule_with(&[IN_A_CLUSTER])).start(2, 0);
    assert!(!is_warned(builder_of(&without)));
}

/// Everything is granted, and the server that has its name, as `home` gives it, was asked about it
/// once.
fn all_are_granted<S: Deref<Target = Server>>(client: &Client, home: impl Fn(&str) -> S) {
    for kind in KINDS {
        // The server has its script then.
        assert_eq!((kind.take)(client), Ok(true), "{}", kind.word);
        settle(client);
        let server = home(kind.word);
        let before = asks(&server);
        assert_eq!((kind.take)(client), Ok(true), "{}", kind.word);
        assert_eq!(asks(&server), before + 1, "{}", kind.word);
    }
}

/// Nothing is granted, and what was is given back before the caller knows.
fn all_are_refused(client: &Client, masters: &[impl Deref<Target = Server>]) {
    for kind in KINDS {
        // On a machine that stands still for a moment, a release is left to the background.
        wait_until("it is released in time", SOON, || {
            let (taken, took) = timed(|| (kind.take)(client));
            assert_eq!(taken.map(drop), TOO_FEW, "{}", kind.word);
            // A command timeout is longer.
            let most = SHORT * 2 + Duration::from_secs(2);
            assert!(took >= SHORT && took < most, "{} took {took:?}", kind.word);
            let is_released = client.stats().queued_releases == 0;
            settle(client);
            let left: Vec<String> = masters.iter().flat_map(|master| left_at(master)).collect();
            assert!(left.is_empty(), "{}: {left:?}", kind.word);
            let stats = client.stats();
            assert_eq!((stats.held, stats.waiters), (0, 0));
            is_released
        });
    }
    assert_eq!(client.semaphore("semaphore").available_permits(), Ok(2));
    assert_eq!(client.expirable_semaphore("permits").available_permits(), Ok(2));
}

/// A hold is renewed, nested and released without asking the replicas.
fn renewals_go_on(client: &Client, master: &Server, silence: impl FnOnce()) {
    let guard = client.lock("held").lock().unwrap();
    let asked = asks(master);
    silence();
    let renewed = client.stats().renewed;
    wait_until("it was renewed", SOON, || client.stats().renewed >= renewed + 2);
    client.lock("held").lock().unwrap().unlock().unwrap();
    assert!(guard.is_held() && guard.lost().try_recv().is_err());
    guard.unlock().unwrap();
    assert_eq!(asks(master), asked);
}

#[test]
fn behind_sentinels_unacknowledged_grants_are_released() {
    let sentinels = sentinels();
    let (master, replica) = (sentinels.master(), sentinels.replicas()[0]);
    let client = patient(behind(&sentinels).watchdog_lease(LEASE));
    make_semaphores(&client);
    all_are_granted(&client, |_| master);
    let guard = client.lock("copied").lock().unwrap();
    assert_eq!(replica.command(&["EXISTS", "copied"]).integer(), 1);
    drop(guard);
    renewals_go_on(&client, master, || replica.pause());
    all_are_refused(&short(behind(&sentinels)), &[master]);
    replica.resume();
    assert_eq!((KINDS[0].take)(&client), Ok(true));
}

#[test]
fn replica_acks_use_replicas_of_new_master_after_failover() {
    let sentinels = sentinels();
    let client = patient(behind(&sentinels));
    let held = client.lock("held").lock().unwrap();
    let old = sentinels.master();
    let new = sentinels.fail_over();
    sentinels.wait_until_all_is_well();
    let before = asks(new);
    let copied = client.lock("copied").lock().unwrap();
    assert!(asks(new) > before && held.is_held());
    assert_eq!(old.command(&["EXISTS", "copied"]).integer(), 1);
    drop((held, copied));
    old.pause();
    make_semaphores(&built(behind(&sentinels)));
    all_are_refused(&short(behind(&sentinels)), &[new]);
    old.resume();
}

#[test]
fn in_a_cluster_unacknowledged_grants_are_released() {
    let cluster = cluster(SOON * 6);
    let client = patient(builder_of(&cluster).watchdog_lease(LEASE));
    make_semaphores(&client);
    all_are_granted(&client, |name| home(&cluster, name));
    let masters = cluster.masters();
    let replicas: Vec<Arc<Server>> =
        masters.iter().map(|master| cluster.replicas_of(master).remove(0)).collect();
    let silence = || replicas.iter().for_each(|replica| replica.pause());
    renewals_go_on(&client, &home(&cluster, "held"), silence);
    all_are_refused(&short(builder_of(&cluster)), &masters);
    // Each master counts its own.
    for (place, master) in masters.iter().enumerate() {
        let name = name_at(&cluster, master);
        let silent = short(builder_of(&cluster)).lock(&name).try_lock().map(drop);
        assert_eq!(silent, TOO_FEW);
        replicas[place].resume();
        client.lock(&name).try_lock().unwrap().unwrap().unlock().unwrap();
    }
}

#[test]
fn in_a_cluster_the_new_masters_replicas_count_after_a_failover() {
    let cluster = cluster(Duration::from_millis(1500));
    let client = patient(builder_of(&cluster));
    let held = client.lock("a").lock().unwrap();
    let old = home(&cluster, "a");
    let new = cluster.fail_over(&old);
    cluster.wait_until_ok();
    let before = asks(&new);
    let copied = client.lock("{a}copied").lock().unwrap();
    assert!(asks(&new) > before && held.is_held());
    assert_eq!(cluster.replicas_of(&new).len(), 1);
    held.unlock().unwrap();
    copied.unlock().unwrap();
}
