//! `Client::diagnose`: on each kind of server it finds what is wrong, says what to do, and leaves
//! nothing behind.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![expect(clippy::panic, reason = "an answer that cannot be is a failed test")]

#[path = "../common/mod.rs"]
mod common;

use std::collections::BTreeSet;
use std::time::Duration;

use common::user::{IN_A_CLUSTER, LOOKING, RULE, rule_with, user_url};
use common::{SOON, built};
use wheellock::{Check, CheckState, Client, ClientBuilder, Diagnosis, Replicas};
use wheellock_fixture::{Cluster, Endpoint, Sentinels, Server};

fn client_of(server: &Server) -> ClientBuilder {
    Client::builder().url(&server.url())
}

fn diagnosis(builder: ClientBuilder) -> Diagnosis {
    built(builder.command_timeout(SOON)).diagnose().unwrap()
}

fn check<'a>(diagnosis: &'a Diagnosis, name: &str) -> &'a Check {
    let Some(check) = diagnosis.checks.iter().find(|check| check.name == name) else {
        panic!("no {name} in {diagnosis:?}")
    };
    check
}

/// That this check has this state, and says all of these.
fn assert_check(diagnosis: &Diagnosis, name: &str, state: CheckState, said: &[&str]) {
    let check = check(diagnosis, name);
    assert_eq!(check.state, state, "{check:?}");
    let text = format!("{} -> {}", check.found, check.repair.as_deref().unwrap_or_default());
    for part in said {
        assert!(text.contains(part), "no {part:?} in {check:?}");
    }
}

fn config(server: &Server) -> Vec<String> {
    server.command(&["CONFIG", "GET", "*"]).texts()
}

#[test]
fn a_server_without_persistence_warns_and_keeps_nothing() {
    let server = Server::start();
    server.command(&["SET", "other", "data"]);
    let before = config(&server);
    let found = diagnosis(client_of(&server));
    assert_eq!(found.state, CheckState::Warn);
    for check in &found.checks {
        // On a busy machine the round trips may be too long to judge the clock.
        if check.name == "clock" && check.state == CheckState::NotChecked {
            continue;
        }
        let expected = if check.name == "persistence" { CheckState::Warn } else { CheckState::Ok };
        assert_eq!(check.state, expected, "{check:?}");
        assert_eq!(check.repair.is_some(), check.state == CheckState::Warn, "{check:?}");
    }
    assert_eq!(server.command(&["KEYS", "*"]).texts(), ["other"]);
    assert_eq!(config(&server), before);

    server.command(&["CONFIG", "SET", "appendonly", "yes"]);
    let found = diagnosis(client_of(&server));
    assert!(found.state <= CheckState::NotChecked, "{found:?}");
}

#[test]
fn an_eviction_policy_fails_once_there_is_a_limit() {
    let server = Server::builder().argument("--maxmemory-policy", "allkeys-lru").start();
    let repair = "CONFIG SET maxmemory-policy noeviction";
    let found = diagnosis(client_of(&server));
    assert_check(&found, "eviction", CheckState::Warn, &["allkeys-lru", repair]);
    server.command(&["CONFIG", "SET", "maxmemory", "100mb"]);
    server.command(&["CONFIG", "SET", "timeout", "5"]);
    let found = diagnosis(client_of(&server));
    assert_check(&found, "eviction", CheckState::Fail, &["allkeys-lru", repair]);
    assert_check(&found, "idle_connections", CheckState::Warn, &["5s", "every 10s"]);
    assert_eq!(found.state, CheckState::Fail);

    server.command(&repair.split(' ').collect::<Vec<_>>());
    assert_check(&diagnosis(client_of(&server)), "eviction", CheckState::Ok, &[]);
}

/// The commands of a rule, without those that every user of a client needs to connect, and without
/// the names of connections, which no lock depends on.
fn commands(rule: &str) -> BTreeSet<&str> {
    let needless = ["+auth", "+select", "+time", "+eval", "+evalsha", "+client|setname"];
    rule.split(' ').filter(|word| word.starts_with('+') && !needless.contains(word)).collect()
}

#[test]
fn a_user_that_pastes_the_lines_lacks_nothing() {
    let server = Server::start();
    let user = ["ACL", "SETUSER", "family", "on", ">password", "resetchannels", "-@all"];
    let least = ["+time", "+eval", "+evalsha", "~others:*"];
    assert_eq!(server.command(&[&user[..], &least].concat()).text(), "OK");
    let builder = || Client::builder().url(&user_url(&server.url())).key_prefix("orders:");

    let found = diagnosis(builder());
    let lock = check(&found, "permissions").repair.clone().unwrap();
    let others = check(&found, "permissions_other").repair.clone().unwrap();
    let lines = [lock.as_str(), others.as_str()];
    assert_check(&found, "permissions", CheckState::Fail, &["~orders:*", "+hset"]);
    assert_check(&found, "permissions_other", CheckState::Warn, &["+zadd", "+incr"]);
    assert_check(&found, "latency", CheckState::Fail, &["NOPERM"]);
    assert_eq!(server.command(&["KEYS", "*"]).texts(), [""; 0]);

    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        assert_eq!(server.command(&words).text(), "OK", "{line}");
    }
    let found = diagnosis(builder());
    for name in ["permissions", "permissions_other", "latency", "hand_over", "redisson"] {
        assert_check(&found, name, CheckState::Ok, &[]);
    }
    // What the settings are is not this user's business.
    assert_check(&found, "idle_connections", CheckState::NotChecked, &[]);

    // The doctor and the operations guide know the same commands.
    let guide = rule_with(&[LOOKING]);
    let printed: BTreeSet<&str> = lines.into_iter().flat_map(commands).collect();
    assert_eq!(printed, commands(&guide));
}

#[test]
fn one_missing_permission_is_named_with_its_user() {
    let server = Server::builder().user(&rule_with(&[LOOKING])).start();
    let builder = || Client::builder().url(&user_url(&server.url()));
    let found = diagnosis(builder());
    assert_check(&found, "permissions", CheckState::Ok, &["family"]);
    assert_check(&found, "permissions_other", CheckState::Ok, &[]);
    for (permission, name, state) in [
        ("set", "permissions", CheckState::Fail),
        ("subscribe", "permissions", CheckState::Warn),
        ("rpush", "permissions_other", CheckState::Warn),
    ] {
        let set = |sign: &str| {
            let rule = ["ACL", "SETUSER", "family", &format!("{sign}{permission}")];
            assert_eq!(server.command(&rule).text(), "OK");
        };
        set("-");
        let found = diagnosis(builder());
        set("+");
        assert_check(&found, name, state, &[&format!("+{permission}"), "ACL SETUSER family "]);
        assert_eq!(server.command(&["KEYS", "*"]).texts(), [""; 0]);
    }
}

#[test]
fn a_client_that_waits_for_replicas_needs_more_permissions() {
    let server = Server::builder().user(&rule_with(&[LOOKING])).start();
    let builder = || Client::builder().url(&user_url(&server.url()));
    let timeout = Duration::from_millis(100);
    let lacks = |builder: ClientBuilder, permission: &str| {
        let found = diagnosis(builder);
        assert_check(&found, "permissions", CheckState::Fail, &[permission]);
    };
    lacks(builder().replica_acks(1, timeout), "+wait");
    lacks(builder().replica_acks(Replicas::AllConnected, timeout), "+role");
    if !server.command(&["WAITAOF", "0", "0", "1"]).is_error() {
        lacks(builder().replica_acks_on_disk(1, timeout), "+waitaof");
    }
}

#[test]
fn in_a_cluster_each_master_is_asked() {
    let cluster = Cluster::builder().user(&rule_with(&[IN_A_CLUSTER, LOOKING])).start(2, 1);
    let builder = || Client::builder().url(&user_url(&cluster.url()));
    let found = diagnosis(builder());
    assert_check(&found, "topology", CheckState::Ok, &["2 masters"]);
    assert_check(&found, "permissions", CheckState::Ok, &[]);
    assert_check(&found, "permissions_other", CheckState::Ok, &[]);
    assert_check(&found, "latency", CheckState::Ok, &[]);
    // The user may not read the configuration.
    assert_check(&found, "failover", CheckState::NotChecked, &["cluster-node-timeout"]);

    let masters = cluster.masters();
    masters[1].command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    masters[1].command(&["CONFIG", "SET", "maxmemory", "100mb"]);
    masters[1].command(&["ACL", "SETUSER", "family", "-hset", "+config|get"]);
    let found = diagnosis(builder().watchdog_lease(Duration::from_millis(200)));
    let second = masters[1].address().to_string();
    assert_check(&found, "eviction", CheckState::Fail, &["allkeys-lru", &second]);
    assert_check(&found, "permissions", CheckState::Fail, &["ACL SETUSER family +hset"]);
    assert_check(&found, "failover", CheckState::Warn, &["cluster-node-timeout", "200ms"]);
    for node in cluster.nodes() {
        assert_eq!(node.command(&["KEYS", "*"]).texts(), [""; 0]);
    }
}

#[test]
fn behind_sentinels_the_lease_is_compared_with_the_failover() {
    let sentinels = Sentinels::start();
    let of = |lease: Duration| {
        let builder = Client::builder().url(&sentinels.url()).watchdog_lease(lease);
        diagnosis(builder)
    };
    let found = of(Duration::from_secs(600));
    assert_check(&found, "failover", CheckState::Ok, &["down-after-milliseconds"]);
    assert_check(&found, "topology", CheckState::Ok, &["3 sentinels"]);
    let repair = ["down-after-milliseconds", "watchdog_lease"];
    assert_check(&of(Duration::from_millis(100)), "failover", CheckState::Warn, &repair);
}

#[test]
fn a_hidden_cluster_is_found_whatever_it_refuses() {
    let cluster = Cluster::builder().user(&RULE).start(2, 0);
    let endpoint = Endpoint::start(&cluster);
    endpoint.refuse(&["CLUSTER", "INFO", "CLIENT", "CONFIG"]);
    let found = diagnosis(Client::builder().url(&user_url(&endpoint.url())));
    assert_check(&found, "topology", CheckState::Ok, &["a cluster behind one address"]);
    assert_check(&found, "permissions", CheckState::Ok, &[]);
    assert_check(&found, "latency", CheckState::Ok, &[]);
    assert_check(&found, "server", CheckState::Warn, &["version"]);
    assert_check(&found, "eviction", CheckState::Warn, &["noeviction"]);
    // With a hash tag in the prefix, all keys of the client are in one hash slot.
    let client = built(Client::builder().url(&user_url(&endpoint.url()))).with_prefix("{orders}:");
    let found = client.diagnose().unwrap();
    assert_check(&found, "topology", CheckState::Ok, &["is not known"]);
}

#[test]
fn a_replica_fails_with_the_address_of_its_master() {
    let master = Server::start();
    let replica = Server::builder().replica_of(master.address()).start();
    let address = master.address().to_string();
    let refused = client_of(&replica).build().unwrap_err();
    let found = Diagnosis::from_error(&refused);
    assert_check(&found, "connection", CheckState::Fail, &["replica", &address]);

    let short = Duration::from_millis(500);
    let client = client_of(&replica).connect_lazily().command_timeout(short).build().unwrap();
    let found = client.diagnose().unwrap();
    assert_check(&found, "replicas", CheckState::Fail, &["replica", &address]);
    assert_check(&found, "latency", CheckState::Fail, &["READONLY"]);
    assert_check(&found, "hand_over", CheckState::NotChecked, &[]);
}

#[test]
fn locks_of_redisson_are_seen() {
    let server = Server::start();
    let owner = "7f9a3b7e-0f0e-4c3f-9a51-2f4a5d8f0c11:42";
    server.command(&["HSET", "orders:1", owner, "1"]);
    let found = diagnosis(client_of(&server));
    assert_check(&found, "redisson", CheckState::Ok, &["holds 1 of the 1 locks"]);
}

#[test]
fn in_memory_there_is_nothing_but_the_connection() {
    let found = Client::in_memory().diagnose().unwrap();
    let names: Vec<&str> = found.checks.iter().map(|check| check.name).collect();
    assert_eq!((found.state, names), (CheckState::Ok, vec!["connection"]));
}
