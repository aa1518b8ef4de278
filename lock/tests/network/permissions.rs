//! A user without one of the permissions that the operations guide lists: a typed error names the
//! permission, and nothing is left.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![expect(clippy::panic, reason = "an answer that cannot be is a failed test")]

use std::sync::Arc;
use std::time::Duration;

use crate::common::slots::{builder_of, elsewhere, home};
use crate::common::takings::{KINDS, make_semaphores};
use crate::common::user::{
    IN_A_CLUSTER, WITH_REPLICAS, behind, known_to, refusals, rule_that_begins, rule_with, user_url,
};
use crate::common::{SLACK, SOON, built, timed};
use wheellock::{Client, ClientBuilder, Error, LockGuard};
use wheellock_fixture::{Cluster, Sentinels, Server};

/// What no refusal takes to be told.
const TIMEOUT: Duration = Duration::from_secs(3);
const SHORT: Duration = Duration::from_millis(50);

/// Does this while a user lacks a permission, and gives it back.
fn without<T>(servers: &[&Server], user: &str, permission: &str, action: impl FnOnce() -> T) -> T {
    let set = |sign: &str| {
        for server in servers {
            let rule = ["ACL", "SETUSER", user, &format!("{sign}{permission}")];
            assert_eq!(server.command(&rule).text(), "OK");
        }
    };
    set("-");
    let result = action();
    set("+");
    result
}

/// A client that is told so when it connects, at once.
fn does_not_connect(builder: &ClientBuilder, permission: &str) {
    let (result, took) = timed(|| builder.clone().command_timeout(TIMEOUT).build());
    let error = result.unwrap_err();
    names(&error, permission);
    assert!(matches!(error, Error::Authentication { .. } | Error::Refused { .. }), "{error:?}");
    assert!(took < TIMEOUT + SLACK, "{permission}: {took:?}");
}

/// A permanent error that names the denied command.
fn names(error: &Error, permission: &str) {
    let text = error.to_string();
    assert!(text.contains("NOPERM") && text.contains(&format!("'{permission}'")), "{error:?}");
    assert!(!error.is_retryable() && !error.is_outcome_unknown(), "{error:?}");
}

/// A refusal of that operation.
fn refuses(error: &Error, operation: &str, permission: &str) {
    names(error, permission);
    let Error::Refused { operation: told, code, .. } = error else { panic!("{error:?}") };
    assert_eq!((*told, code.as_str()), (operation, "NOPERM"));
}

#[test]
fn behind_sentinels_a_missing_permission_is_named() {
    let sentinels = known_to(Sentinels::builder(), &[WITH_REPLICAS]).start();
    let servers: Vec<&Server> = sentinels.servers().iter().collect();
    let watchers: Vec<&Server> = sentinels.sentinels().iter().collect();
    let builder = behind(&sentinels);
    for permission in ["time", "role", "eval", "evalsha"] {
        without(&servers, "family", permission, || does_not_connect(&builder, permission));
    }
    for permission in ["sentinel|master", "sentinel|sentinels", "sentinel|get-master-addr-by-name"]
    {
        without(&watchers, "watcher", permission, || does_not_connect(&builder, permission));
    }
    let in_third = behind(&sentinels).url(&format!("{}/3", user_url(&sentinels.url())));
    without(&servers, "family", "select", || does_not_connect(&in_third, "select"));

    let client = built(builder.replica_acks(1, SHORT));
    for (permission, operation) in [("evalsha", "acquire"), ("wait", "replica_acks")] {
        let taken = without(&servers, "family", permission, || client.lock("a").try_lock());
        refuses(&taken.unwrap_err(), operation, permission);
    }
    assert_eq!(sentinels.master().size(), 0);
    assert_eq!(client.stats().queued_releases, 0);
}

#[test]
fn in_a_cluster_a_missing_permission_is_named() {
    let builder = Cluster::builder().user(&rule_with(&[IN_A_CLUSTER, WITH_REPLICAS]));
    let cluster = builder.start(2, 0);
    let nodes = cluster.nodes();
    let servers: Vec<&Server> = nodes.iter().map(Arc::as_ref).collect();
    let builder = builder_of(&cluster).command_timeout(TIMEOUT);
    for permission in ["time", "cluster|slots", "eval", "evalsha"] {
        without(&servers, "family", permission, || does_not_connect(&builder, permission));
    }
    let client = built(builder.clone().replica_acks(1, SHORT));
    for (permission, operation) in [("evalsha", "acquire"), ("wait", "replica_acks")] {
        let taken = without(&servers, "family", permission, || client.lock("a").try_lock());
        refuses(&taken.unwrap_err(), operation, permission);
    }
    assert_eq!(home(&cluster, "a").command(&["EXISTS", "a"]).integer(), 0);
    // Of a slot that is on its way.
    let moving = cluster.begin_move(cluster.slot_of("a"), &elsewhere(&cluster, "a")).unwrap();
    let client = built(builder);
    let take = || timed(|| client.lock("a").try_lock());
    let (taken, took) = without(&servers, "family", "asking", take);
    refuses(&taken.unwrap_err(), "acquire", "asking");
    assert!(took < TIMEOUT, "{took:?}");
    let guard = client.lock("a").try_lock().unwrap().unwrap();
    moving.move_all_keys().unwrap();
    moving.finish().unwrap();
    guard.unlock().unwrap();
}

/// A line of the guide for the user of `lock`, by its first word, and all that it is for.
type Addition = (&'static str, fn(&Client) -> Result<(), Error>);

const ADDITIONS: [Addition; 3] = [
    ("+hdel", |client| {
        let lock = client.lock("orders:kept").with_min_hold(SHORT);
        drop(lock.try_lock_for(TIMEOUT)?);
        lock.try_lock_for(TIMEOUT)?.map_or(Ok(()), LockGuard::keep_until_lease_ends)
    }),
    ("~redisson_lock_queue:*", |client| {
        let lock = client.lock("orders:asked");
        let _guard = lock.lock()?;
        assert!(lock.waiters()?.elsewhere.is_some());
        assert!(lock.holder()?.is_some());
        assert_eq!(lock.holders()?.len(), 1);
        client.status("orders:asked").map(drop)
    }),
    ("~redisson_lock_token:*", |client| {
        drop(client.fenced_lock("orders:fenced").lock()?);
        client.fenced_lock("orders:fenced").last_token().map(drop)
    }),
];

/// Does everything that a line is for as the user that it makes. What was refused, in words.
fn refused_as(server: &Server, rule: &str, action: fn(&Client) -> Result<(), Error>) -> String {
    server.command(&["FLUSHALL"]);
    server.command(&["ACL", "DELUSER", "locks"]);
    server.command(&["ACL", "LOG", "RESET"]);
    let words: Vec<&str> = ["ACL", "SETUSER"].into_iter().chain(rule.split(' ')).collect();
    assert_eq!(server.command(&words).text(), "OK");
    let url = format!("redis://locks:password@{}/", server.address());
    let client = Client::builder().url(&url).command_timeout(TIMEOUT).build().unwrap();
    let error = action(&client).err().map(|error| error.to_string());
    client.shutdown(TIMEOUT);
    refusals(server).into_iter().chain(error).collect()
}

#[test]
fn each_line_for_the_user_of_lock_suffices_and_none_is_too_long() {
    let server = Server::start();
    let base = rule_that_begins("locks on ");
    for (first, action) in ADDITIONS {
        let line = rule_that_begins(&format!("locks {first}"));
        let added: Vec<&str> = line.split(' ').skip(1).collect();
        let rule = |added: &[&str]| format!("{base} {}", added.join(" "));
        assert_eq!(refused_as(&server, &rule(&added), action), "", "{line}");
        for word in &added {
            let others: Vec<&str> = added.iter().copied().filter(|other| other != word).collect();
            let refused = refused_as(&server, &rule(&others), action);
            assert_ne!(refused, "", "{word} is not needed in {line}");
        }
    }
}

#[test]
fn behind_sentinels_the_readmes_users_are_refused_nothing() {
    let sentinels = known_to(Sentinels::builder(), &[WITH_REPLICAS]).start();
    let client = built(behind(&sentinels).command_timeout(SOON).replica_acks(1, SOON / 2));
    make_semaphores(&client);
    let take_all = || {
        for kind in KINDS {
            assert_eq!((kind.take)(&client), Ok(true), "{}", kind.word);
        }
    };
    take_all();
    sentinels.fail_over();
    sentinels.wait_until_all_is_well();
    take_all();
    let all = sentinels.servers().iter().chain(sentinels.sentinels());
    let refused: Vec<String> = all.flat_map(refusals).collect();
    assert!(refused.is_empty(), "{refused:?}");
}

#[test]
fn in_a_cluster_the_readmes_user_is_refused_nothing() {
    let builder = Cluster::builder().user(&rule_with(&[IN_A_CLUSTER, WITH_REPLICAS]));
    let cluster = builder.start(2, 1);
    let builder = builder_of(&cluster).command_timeout(SOON);
    let client = built(builder.replica_acks(1, SOON / 2));
    make_semaphores(&client);
    for kind in KINDS {
        assert_eq!((kind.take)(&client), Ok(true), "{}", kind.word);
        let slot = cluster.slot_of(kind.word);
        cluster.move_slot(slot, &elsewhere(&cluster, kind.word));
        assert_eq!((kind.take)(&client), Ok(true), "{} after a move", kind.word);
    }
    let moving = cluster.begin_move(cluster.slot_of("lock"), &elsewhere(&cluster, "lock")).unwrap();
    let guard = client.lock("lock").lock().unwrap();
    moving.move_all_keys().unwrap();
    moving.finish().unwrap();
    guard.unlock().unwrap();
    let refused: Vec<String> = cluster.nodes().iter().flat_map(|node| refusals(node)).collect();
    assert!(refused.is_empty(), "{refused:?}");
}
