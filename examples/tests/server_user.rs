//! What the README says a user of the server needs is enough, and all of it is needed.

#![expect(clippy::panic, reason = "a test that meets what it cannot read fails, and says why")]

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use wheellock::{Client, Error};
use wheellock_fixture::{Server, wait_until};

/// Long beside anything that is waited for here, so that only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(30);

const README: &str = include_str!("../../README.md");

/// The command in the README that makes the user, in words.
fn readme_words() -> Vec<&'static str> {
    match README.lines().find(|line| line.starts_with("ACL SETUSER")) {
        Some(line) => line.split_whitespace().collect(),
        None => panic!("the README does not say what a user needs"),
    }
}

#[test]
fn the_commands_that_the_readme_names_are_enough() -> Result<(), Error> {
    let server = Server::start();
    assert!(!server.command(&readme_words()).is_error());
    // Database 1, so that it has to be selected. A short timeout, after which a silent subscription is pinged.
    let url = format!("redis://locks:password@{}/1", server.address());
    let client = || {
        Client::builder()
            .url(&url)
            .watchdog_lease(Duration::from_millis(300))
            .command_timeout(Duration::from_millis(200))
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
        wait_until("somebody waits, and asks whether the server is there", PATIENCE, || {
            ben.stats().waiters == 1 && server.command_calls("ping") > pings
        });
        guard.unlock()?;
        waiter.join().unwrap_or(Err(Error::Shutdown))
    })?;
    // A channel that nobody waits on is given up after a while, or when its connection is asked.
    wait_until("a channel is given up", PATIENCE, || server.command_calls("unsubscribe") > 0);

    let _guard = ann.lock("orders:42").lock()?;
    assert!(ben.lock("orders:42").force_unlock()?);

    let refused = server.command(&["ACL", "LOG"]);
    assert!(refused.array().is_empty(), "{refused:?}");

    // None is named for nothing: each of them has run.
    let named: BTreeSet<_> = readme_words()
        .iter()
        .filter_map(|word| word.strip_prefix('+'))
        .map(str::to_owned)
        .collect();
    let unused: Vec<_> = named.iter().filter(|name| server.command_calls(name) == 0).collect();
    assert!(unused.is_empty(), "{unused:?} are named and not used");
    Ok(())
}
