//! The rights that the operations guide lists for a user of the server are sufficient and
//! necessary.

#![expect(
    clippy::panic,
    reason = "a test that cannot read the operations guide fails, and says why"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use wheellock::{Client, Error};
use wheellock_fixture::{Server, wait_until};

/// Much longer than any wait here takes, so that only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(30);

/// Renewed soon, and long enough not to end on a busy machine.
const LEASE: Duration = Duration::from_secs(3);

/// For waits that time out.
const SHORT: Duration = Duration::from_millis(700);

/// The commands that scripts do not call: to connect, to run scripts, and to subscribe. The command
/// that publishes is an argument of a script.
const BASICS: [&str; 11] = [
    "auth",
    "select",
    "ping",
    "info",
    "time",
    "client|setname",
    "eval",
    "evalsha",
    "subscribe",
    "unsubscribe",
    "publish",
];

const GUIDE: &str = include_str!("../../../lock/docs/operations.md");

/// The command in the operations guide that creates a user, in words.
fn readme_words(user: &str) -> Vec<&'static str> {
    let beginning = format!("ACL SETUSER {user} ");
    match GUIDE.lines().find(|line| line.starts_with(&beginning)) {
        Some(line) => line.split_whitespace().collect(),
        None => panic!("the operations guide has no line {beginning:?}"),
    }
}

#[test]
fn the_commands_in_the_readme_suffice() -> Result<(), Error> {
    let server = Server::start();
    assert!(!server.command(&readme_words("locks")).is_error());
    // Database 1, so that it has to be selected. A short timeout, after which a silent subscription
    // is pinged.
    let url = format!("redis://locks:password@{}/1", server.address());
    let client = || {
        Client::builder()
            .url(&url)
            .watchdog_lease(LEASE)
            .command_timeout(Duration::from_secs(1))
            .build()
    };
    let (ann, ben) = (client()?, client()?);
    let lock = ann.lock("orders:42");

    let guard = lock.lock()?;
    let nested = lock.lock()?;
    nested.unlock()?;
    assert!(lock.is_locked()?);
    assert!(lock.remaining_lease()?.is_some());
    wait_until("it is renewed", PATIENCE, || ann.stats().renewed > 0);

    let pings = server.command_calls("ping");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| ben.lock("orders:42").lock()?.unlock());
        wait_until("a client waits, and sends a PING", PATIENCE, || {
            ben.stats().waiters == 1 && server.command_calls("ping") > pings
        });
        guard.unlock()?;
        waiter.join().unwrap_or(Err(Error::Shutdown))
    })?;
    // A channel without waiters is unsubscribed after a while.
    wait_until("a channel is unsubscribed", PATIENCE, || server.command_calls("unsubscribe") > 0);

    let _guard = ann.lock("orders:42").lock()?;
    assert!(ben.lock("orders:42").force_unlock()?);

    let refused = server.command(&["ACL", "LOG"]);
    assert!(refused.array().is_empty(), "{refused:?}");

    // Each of them has run.
    let named: BTreeSet<_> = readme_words("locks")
        .iter()
        .filter_map(|word| word.strip_prefix('+'))
        .map(str::to_owned)
        .collect();
    let unused: Vec<_> = named.iter().filter(|name| server.command_calls(name) == 0).collect();
    assert!(unused.is_empty(), "the operations guide lists commands that are not used: {unused:?}");
    Ok(())
}

#[test]
fn the_commands_in_the_readme_suffice_for_all_kinds() -> Result<(), Error> {
    let server = Server::start();
    assert!(!server.command(&readme_words("family")).is_error());
    let url = format!("redis://family:password@{}/", server.address());
    let client = Client::builder().url(&url).watchdog_lease(LEASE).build()?;
    let other = Client::connect(&url)?;

    let prices = client.read_write_lock("orders:rw");
    let kinds = [
        client.fair_lock("orders:fair"),
        client.spin_lock("orders:spin"),
        client.simple_lock("orders:simple"),
        prices.write_lock(),
        prices.read_lock(),
    ];
    for lock in kinds {
        let guard = lock.lock()?;
        let renewed = client.stats().renewed;
        wait_until("it is renewed", PATIENCE, || client.stats().renewed > renewed);
        assert!(lock.is_locked()?);
        guard.unlock()?;
        let guard = lock.lock()?;
        assert!(lock.force_unlock()?);
        drop(guard);
    }
    let fair = client.fair_lock("orders:fair").lock()?;
    assert!(other.fair_lock("orders:fair").try_lock_for(SHORT)?.is_none());
    fair.unlock()?;
    let writing = prices.write_lock().lock()?;
    let reading = prices.read_lock().lock()?;
    let nested = prices.read_lock().lock()?;
    writing.unlock()?;
    let beside = other.read_write_lock("orders:rw").read_lock().lock()?;
    nested.unlock()?;
    reading.unlock()?;
    beside.unlock()?;

    let plain = client.lock("orders:fenced").lock()?;
    assert!(client.fenced_lock("orders:fenced").lock()?.token() > 0);
    assert!(client.fenced_lock("orders:fenced").last_token()? > 0);
    drop(plain);

    let semaphore = client.semaphore("orders:semaphore");
    assert!(semaphore.try_set_permits(2)?);
    let taken = semaphore.acquire(1)?;
    assert!(semaphore.try_acquire_for(2, SHORT)?.is_none());
    taken.release()?;
    semaphore.add_permits(1)?;
    assert_eq!(semaphore.drain_permits()?, 3);

    let permits = client.expirable_semaphore("orders:permits").with_lease(PATIENCE);
    assert!(permits.try_set_permits(2)?);
    let permit = permits.acquire()?;
    assert!(permits.update_lease(&permit.id(), PATIENCE)?);
    assert!(permits.lease_of(&permit.id())?.is_some());
    permits.set_permits(3)?;
    permits.add_permits(1)?;
    assert_eq!((permits.permits()?, permits.acquired_permits()?), (4, 1));
    permit.release()?;

    let latch = client.count_down_latch("orders:latch");
    assert!(latch.try_set_count(2)?);
    latch.count_down()?;
    assert!(!latch.wait_for(SHORT)?);
    assert_eq!(latch.count()?, 1);
    assert!(latch.delete()?);

    let refused = server.command(&["ACL", "LOG"]);
    assert!(refused.array().is_empty(), "{refused:?}");
    Ok(())
}

#[test]
fn the_readme_lists_for_all_kinds_exactly_what_the_scripts_call() {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lock/src/ops/scripts");
    let mut called: BTreeSet<String> = BASICS.iter().map(|name| (*name).to_owned()).collect();
    for entry in fs::read_dir(scripts).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ending| ending == "lua") {
            let script = fs::read_to_string(path).unwrap();
            for call in script.split("call('").skip(1) {
                called.extend(call.split('\'').next().map(str::to_owned));
            }
        }
    }
    // A line of its own, as a user may be without it: then the number of waiters is unknown.
    assert!(GUIDE.contains("ACL SETUSER family +pubsub|numsub +pubsub|shardnumsub +scan"));
    assert!(called.remove("pubsub") && called.remove("scan"));
    let named: BTreeSet<String> = readme_words("family")
        .iter()
        .filter_map(|word| word.strip_prefix('+'))
        .map(str::to_owned)
        .collect();
    assert_eq!(named, called);
}
