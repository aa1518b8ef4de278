//! Keys that hold something else than locks: what is recognized, released by force, and listed.

use crate::common::stores::TestStore;
use crate::common::{built, limit_user, limited_user};
use wheellock::{Client, Error, Lock};
use wheellock_fixture::{SeenCommand, Server};

const JAVA: &str = "7f9a3b7e-0f0e-4c3f-9a51-2f4a5d8f0c11:42";

/// The locks of the name `a`, with all layouts.
fn locks(client: &Client) -> [(&'static str, Lock); 6] {
    let shared = client.read_write_lock("a");
    [
        ("lock", client.lock("a")),
        ("fair", client.fair_lock("a")),
        ("spin", client.spin_lock("a")),
        ("simple", client.simple_lock("a")),
        ("read", shared.read_lock()),
        ("write", shared.write_lock()),
    ]
}

fn connected(server: &Server) -> Client {
    built(Client::builder().url(&server.url()))
}

/// What a key holds that is not a lock, and how errors name it.
const FOREIGN: &[(&[&str], &str)] = &[
    (&["HSET", "a", "user", "ann"], "a hash that is not a lock"),
    (&["HSET", "a", "sku:123", "2"], "a hash that is not a lock"),
    (&["HSET", "a", JAVA, "ann"], "a hash that is not a lock"),
    (&["HSET", "a", JAVA, "0"], "a hash that is not a lock"),
    (&["HSET", "a", "mode", "read"], "a hash that is not a lock"),
    (&["HSET", "a", "mode", "dark", JAVA, "1"], "a hash that is not a lock"),
    (&["SET", "a", "localhost:8080"], "a string that is not a lock"),
    (&["SET", "a", "123456789012345678901234"], "a string that is not a lock"),
    (&["RPUSH", "a", JAVA], "a list that is not a lock"),
    (&["XADD", "a", "*", JAVA, "1"], "a stream that is not a lock"),
];

#[test]
fn a_forced_release_leaves_what_was_never_a_lock() {
    let server = Server::start();
    let client = connected(&server);
    for (write, found) in FOREIGN {
        server.command(&["DEL", "a"]);
        assert!(!server.command(write).is_error());
        let before = server.command(&["DUMP", "a"]);
        for (kind, lock) in locks(&client) {
            let error = lock.force_unlock().unwrap_err();
            assert!(matches!(error, Error::WrongType { .. }), "{kind} over {write:?}: {error}");
            assert!(error.to_string().contains(found), "{kind} over {write:?}: {error}");
        }
        assert_eq!(server.command(&["DUMP", "a"]), before, "{write:?}");
    }
}

#[test]
fn a_forced_release_ends_only_locks_of_its_own_kind() {
    let server = Server::start();
    let client = connected(&server);
    let writing = format!("{JAVA}:write");
    let kept = format!("{JAVA}:kept");
    let cases: [(&[&str], &[&str], &str); 7] = [
        (&["HSET", "a", JAVA, "1"], &["lock", "fair", "spin"], "a hash with an owner"),
        (&["HSET", "a", &kept, "1"], &["lock", "fair", "spin"], "a hash with an owner"),
        (&["SET", "a", JAVA], &["simple"], "a simple lock"),
        (&["SET", "a", &kept], &["simple"], "a simple lock"),
        (&["HSET", "a", "mode", "read", JAVA, "1"], &["read"], "a read-write lock"),
        (&["HSET", "a", "mode", "write", &writing, "1"], &["write"], "a read-write lock"),
        (&["SET", "a", "3"], &[], "a number"),
    ];
    for (write, own, found) in cases {
        for (kind, lock) in locks(&client) {
            server.command(&["DEL", "a"]);
            assert!(!server.command(write).is_error());
            let ended = lock.force_unlock();
            if own.contains(&kind) {
                assert_eq!(ended, Ok(true), "{kind} over {write:?}");
            } else if own == ["read"] && kind == "write" || own == ["write"] && kind == "read" {
                assert_eq!(ended, Ok(false), "{kind} over {write:?}");
            } else {
                let error = ended.unwrap_err();
                assert!(error.to_string().contains(found), "{kind} over {write:?}: {error}");
            }
            let left = server.command(&["EXISTS", "a"]).integer() == 1;
            assert_eq!(left, !own.contains(&kind), "{kind} over {write:?}");
        }
    }
}

#[test]
fn in_memory_a_forced_release_refuses_what_a_server_refuses() {
    let memory = wheellock::Memory::new();
    let client = built(Client::builder().in_memory(&memory));
    memory.put_text("a");
    for (kind, lock) in locks(&client) {
        let error = lock.force_unlock().unwrap_err();
        assert!(error.to_string().contains("a string that is not a lock"), "{kind}: {error}");
    }
    assert_eq!(memory.text("a").as_deref(), Some("data"));
    memory.delete("a");
    let _reading = client.read_write_lock("a").read_lock().lock().unwrap();
    let error = client.lock("a").force_unlock().unwrap_err();
    assert!(error.to_string().contains("a read-write lock"), "{error}");
}

#[test]
fn a_status_of_foreign_data_is_an_error_that_names_it() {
    let server = Server::start();
    let client = connected(&server);
    for (write, found) in FOREIGN {
        server.command(&["DEL", "a"]);
        assert!(!server.command(write).is_error());
        let error = client.status("a").unwrap_err();
        assert!(matches!(error, Error::WrongType { .. }), "{write:?}: {error}");
        assert!(error.to_string().contains(found), "{write:?}: {error}");
        assert!(client.locks("*").next().is_none(), "{write:?}");
        let leader = client.leader_election("a").leader().unwrap_err();
        assert!(matches!(leader, Error::WrongType { .. }), "{write:?}: {leader}");
    }
}

#[test]
fn a_foreign_owner_with_a_lease_is_of_an_unknown_kind() {
    let server = Server::start();
    let client = connected(&server);
    server.command(&["HSET", "a", "worker-7/thread-1", "2"]);
    assert!(client.status("a").is_err(), "it has no time to live");
    server.command(&["PEXPIRE", "a", "60000"]);
    let holder = client.lock("a").holder().unwrap().unwrap();
    let found = (holder.owner.as_str(), holder.count, holder.kind.to_string());
    assert_eq!(found, ("worker-7/thread-1", 2, "unknown".to_owned()));
    assert!(client.lock("a").force_unlock().unwrap());
}

#[test]
fn a_hold_that_is_kept_is_shown_as_a_hold_of_its_client() {
    let server = Server::start();
    let client = connected(&server);
    let long = std::time::Duration::from_secs(60);
    let shared = client.read_write_lock("rw");
    for lock in [client.lock("a"), client.simple_lock("s"), shared.read_lock(), shared.write_lock()]
    {
        let lock = lock.with_min_hold(long);
        lock.lock().unwrap().unlock().unwrap();
        let holder = lock.holder().unwrap().unwrap();
        assert!(holder.owner.ends_with(":kept"), "{holder:?}");
        assert_eq!(holder.kind.to_string(), "wheellock");
        assert!(holder.label.is_some(), "{holder:?}");
        assert!(lock.force_unlock().unwrap());
    }
}

/// How often the server has run each of these commands.
fn calls<const COUNT: usize>(server: &Server, commands: [&str; COUNT]) -> [u64; COUNT] {
    commands.map(|command| server.command_calls(command))
}

#[test]
fn large_foreign_values_are_not_read() {
    let server = Server::start();
    let client = connected(&server);
    let large = "x".repeat(100_000);
    server.command(&["SET", "text", &large]);
    server.command(&["HSET", "hash", JAVA, &large]);
    server.command(&["HSET", "mode", "mode", &large, JAVA, "1"]);
    server.command(&["RPUSH", "redisson_lock_queue:{fair}", &large, &large]);
    let commands = ["get", "hget", "hgetall", "lrange"];
    let before = calls(&server, commands);
    assert!(client.locks("*").next().is_none());
    for name in ["text", "hash", "mode"] {
        assert!(matches!(client.status(name), Err(Error::WrongType { .. })));
        assert!(matches!(client.leader_election(name).leader(), Err(Error::WrongType { .. })));
    }
    assert!(client.status("fair").unwrap().waiters.queue.is_empty());
    let semaphore = client.semaphore("text");
    assert!(matches!(semaphore.available_permits(), Err(Error::WrongType { .. })));
    assert!(matches!(client.count_down_latch("text").count(), Err(Error::WrongType { .. })));
    assert_eq!(calls(&server, commands), before, "{commands:?}");
}

#[test]
fn no_number_reads_a_large_text() {
    let server = Server::start();
    let client = connected(&server);
    server.command(&["SET", "text", &"x".repeat(100_000)]);
    let (semaphore, latch) = (client.semaphore("text"), client.count_down_latch("text"));
    let permits = client.expirable_semaphore("text");
    let mut monitor = server.monitor();
    let refused = [
        ("set", semaphore.try_set_permits(1).map(drop)),
        ("acquire", semaphore.try_acquire(1).map(drop)),
        ("add", semaphore.add_permits(1).map(drop)),
        ("drain", semaphore.drain_permits().map(drop)),
        ("permits: set", permits.set_permits(1).map(drop)),
        ("permits: acquire", permits.try_acquire().map(drop)),
        ("permits: count", permits.available_permits().map(drop)),
        ("latch: set", latch.try_set_count(1).map(drop)),
        ("latch: count down", latch.count_down().map(drop)),
        ("latch: delete", latch.delete().map(drop)),
    ];
    for (call, refused) in refused {
        assert!(matches!(refused, Err(Error::WrongType { .. })), "{call}: {refused:?}");
    }
    let seen = monitor.seen();
    let reads_it = |seen: &&SeenCommand| seen.name() == "GET" && seen.arguments[1] == "text";
    assert_eq!(seen.iter().find(reads_it), None);
}

#[test]
fn keys_that_cannot_be_locks_do_not_end_the_list() {
    let server = Server::start();
    let client = connected(&server);
    let _guard = client.lock("held").lock().unwrap();
    server.command(&["SET", "", "1"]);
    server.command(&["HSET", &"k".repeat(70_000), JAVA, "1"]);
    server.command(&["HSET", "two\nlines", JAVA, "1"]);
    server.command(&[&b"HSET"[..], &b"\xff\xfe"[..], JAVA.as_bytes(), &b"1"[..]]);
    server.command(&["XADD", "stream", "*", "a", "1"]);
    server.command(&["PFADD", "guess", "a"]);
    server.command(&["SET", "wheellock_job_token:{nightly}", "7"]);
    server.command(&["SET", "redisson_unlock_latch:{a}:1", "1"]);
    server.command(&["HSET", "wheellock_job_record:{nightly}:1", "attempts", "1"]);
    server.command(&["PEXPIRE", "wheellock_job_record:{nightly}:1", "60000"]);
    // A page of these is larger than a reply may be.
    for number in 0..300 {
        server.command(&["SET", &format!("{number}{}", "x".repeat(20_000)), "data"]);
    }
    let names: Result<Vec<_>, _> =
        client.locks("*").map(|status| status.map(|status| status.name)).collect();
    let mut names = names.unwrap();
    names.sort();
    assert_eq!(names, ["held", "two\nlines"]);
}

#[test]
fn keys_of_several_slots_do_not_end_the_list() {
    let setup = TestStore::in_a_cluster();
    let TestStore::Cluster(cluster) = &setup else { unreachable!() };
    let client = built(Client::builder().url(&cluster.url()));
    let _guard = client.lock("held").lock().unwrap();
    setup.put_text("{}odd");
    let names: Result<Vec<_>, _> =
        client.locks("*").map(|status| status.map(|status| status.name)).collect();
    assert_eq!(names.unwrap(), ["held"]);
}

#[test]
fn keys_that_the_user_may_not_read_are_left_out_and_counted() {
    let server = Server::start();
    server.command(&["HSET", "orders:1", JAVA, "1"]);
    server.command(&["HSET", "secret:1", JAVA, "1"]);
    server.command(&["SET", "secret:2", "data"]);
    let user = limited_user(&server, &["resetkeys", "~*orders:*"]);
    let client = built(Client::builder().url(&user));
    let mut locks = client.locks("*");
    let names: Result<Vec<_>, _> = locks.by_ref().map(|lock| lock.map(|it| it.name)).collect();
    assert_eq!(names.unwrap(), ["orders:1"]);
    assert_eq!(locks.unreadable(), 2);
    assert!(!client.wait_graph("*").unwrap().is_complete);
    assert!(client.wait_graph("orders:*").unwrap().is_complete);
    let holder = connected(&server);
    let _guard = holder.lock("orders:2").lock().unwrap();
    // The record of the holder's client cannot be read.
    assert!(!client.wait_graph("orders:*").unwrap().is_complete);
    assert!(holder.wait_graph("orders:*").unwrap().is_complete);
    limit_user(&server, &["-evalsha", "-eval"]);
    let error = client.locks("*").next().unwrap().unwrap_err();
    assert!(error.to_string().contains("NOPERM"), "{error}");
}

#[test]
fn a_record_that_cannot_be_read_leaves_the_label_unknown() {
    let server = Server::start();
    let owner = "7f9a3b7e-0f0e-8c3f-9a51-2f4a5d8f0c11";
    server.command(&["HSET", "orders:1", &format!("{owner}:1"), "1"]);
    server.command(&["SET", &format!("wheellock_client:{owner}"), "data"]);
    let client = connected(&server);
    let names: Vec<_> = client.locks("*").map(|lock| lock.map(|it| it.name)).collect();
    assert_eq!(names, [Ok("orders:1".to_owned())], "a record of another type");
    let user = limited_user(&server, &["resetkeys", "~*orders:*"]);
    let holder = built(Client::builder().url(&user)).lock("orders:1").holder().unwrap().unwrap();
    assert_eq!(holder.label, None, "a record that the user may not read");
}
