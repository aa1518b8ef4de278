//! A user without a command that the scripts call: whatever was done before the refusal is undone
//! or released, and the error names the command.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use wheellock::{Client, Error, LockGuard, RunOutcome, Warning};
use wheellock_fixture::Server;

use crate::common::takings::{KINDS, Kind, make_semaphores};
use crate::common::user::{RULE, user_url};
use crate::common::{SOON, built, settle};

/// What the client calls itself: refused there, a command does nothing.
const OUTSIDE_OF_SCRIPTS: [&str; 9] = [
    "auth",
    "select",
    "ping",
    "info",
    "client|setname",
    "eval",
    "evalsha",
    "subscribe",
    "unsubscribe",
];

const SHORT: Duration = Duration::from_millis(20);

/// Each run of the job is one of another slot.
static SLOTS: AtomicU64 = AtomicU64::new(0);

/// What [`KINDS`] leaves out.
const MORE: [Kind; 12] = [
    Kind {
        word: "nested",
        take: |client| {
            let lock = client.lock("nested");
            let guard = lock.try_lock()?;
            let inner = lock.try_lock()?;
            inner.map_or(Ok(()), LockGuard::unlock)?;
            Ok(guard.is_some())
        },
    },
    Kind {
        word: "nested-reader",
        take: |client| {
            let lock = client.read_write_lock("nested-reader").read_lock();
            let guard = lock.try_lock()?;
            let inner = lock.try_lock()?;
            inner.map_or(Ok(()), LockGuard::unlock)?;
            Ok(guard.is_some())
        },
    },
    Kind {
        word: "two-readers",
        take: |client| {
            let lock = client.read_write_lock("two-readers").read_lock().sendable();
            let (one, two) = (lock.try_lock()?, lock.try_lock()?);
            Ok(one.is_some() && two.is_some())
        },
    },
    Kind {
        word: "write-and-read",
        take: |client| {
            let lock = client.read_write_lock("write-and-read");
            let write = lock.write_lock().try_lock()?;
            let read = lock.read_lock().try_lock()?;
            drop(write);
            Ok(read.is_some())
        },
    },
    Kind {
        word: "kept",
        take: |client| {
            let lock = client.lock("kept").with_min_hold(SHORT);
            Ok(lock.try_lock_for(SOON)?.is_some())
        },
    },
    Kind {
        word: "kept-reader",
        take: |client| {
            let lock = client.read_write_lock("kept-reader").read_lock().with_min_hold(SHORT);
            Ok(lock.try_lock_for(SOON)?.is_some())
        },
    },
    Kind {
        word: "forced",
        take: |client| {
            let lock = client.lock("forced");
            let guard = lock.try_lock()?;
            lock.force_unlock()?;
            Ok(guard.is_some())
        },
    },
    Kind {
        word: "added",
        take: |client| {
            let semaphore = client.semaphore("added");
            semaphore.try_set_permits_for(2, SOON)?;
            semaphore.add_permits(1)?;
            semaphore.add_permits(-1)?;
            Ok(semaphore.available_permits()? == 2)
        },
    },
    Kind {
        word: "ended",
        take: |client| {
            let semaphore = client.expirable_semaphore("ended");
            semaphore.set_permits(1)?;
            let first = match semaphore.clone().with_lease(10 * SHORT).try_acquire_for(SOON) {
                // On a busy machine it ends before its caller has it.
                Err(Error::Lost { .. }) => true,
                first => first?.map(wheellock::Permit::into_id).is_some(),
            };
            let second = semaphore.with_lease(SOON).try_acquire_for(SOON)?;
            Ok(first && second.is_some())
        },
    },
    Kind {
        word: "latch",
        take: |client| {
            let latch = client.count_down_latch("latch");
            latch.try_set_count(2)?;
            latch.count_down()?;
            latch.count_down()?;
            let is_open = latch.count()? == 0;
            latch.try_set_count(1)?;
            Ok(latch.delete()? && is_open)
        },
    },
    Kind {
        word: "job",
        take: |client| {
            let slot = SLOTS.fetch_add(1, Ordering::Relaxed).to_string();
            let ran = client.job("job").run_once(&slot, |_| Ok::<_, Error>(()))?;
            Ok(matches!(ran, RunOutcome::Ran(())))
        },
    },
    Kind {
        word: "changed",
        take: |client| {
            let semaphore = client.expirable_semaphore("changed");
            semaphore.set_permits(1)?;
            let Some(permit) = semaphore.try_acquire()? else { return Ok(false) };
            let changed = semaphore.update_lease(&permit.id(), SOON)?;
            Ok(changed)
        },
    },
];

/// A server with the operations guide's user for the whole family, and that user's client.
fn with_user() -> (Server, Client) {
    let server = Server::builder().user(&RULE).start();
    let client = built(Client::builder().url(&user_url(&server.url())).command_timeout(SOON));
    make_semaphores(&client);
    (server, client)
}

fn set_permission(server: &Server, sign: &str, command: &str) {
    let rule = server.command(&["ACL", "SETUSER", "family", &format!("{sign}{command}")]);
    assert_eq!(rule.text(), "OK");
}

/// The keys that have no end and are not meant to have none.
fn endless(server: &Server) -> Vec<String> {
    const MEANT: [&str; 8] = [
        "redisson_lock_token:",
        "semaphore",
        "drain",
        "permits",
        "unleased",
        "ended",
        "changed",
        "latch",
    ];
    // And the leases of permits.
    let is_meant = |key: &str| {
        key.ends_with("}:timeout") || MEANT.iter().any(|beginning| key.starts_with(beginning))
    };
    let has_no_end = |key: &str| server.command(&["PTTL", key]).integer() == -1;
    let keys = server.command(&["KEYS", "*"]).texts();
    keys.into_iter().filter(|key| !is_meant(key) && has_no_end(key)).collect()
}

#[test]
fn a_refused_command_is_undone_or_released() {
    let (server, client) = with_user();
    let commands: Vec<&str> = RULE
        .split_whitespace()
        .filter_map(|word| word.strip_prefix('+'))
        .filter(|command| !OUTSIDE_OF_SCRIPTS.contains(command))
        .collect();
    for Kind { word, take } in KINDS.iter().chain(&MORE) {
        server.command(&["CONFIG", "RESETSTAT"]);
        assert_eq!(take(&client), Ok(true), "{word}");
        settle(&client);
        let is_called = |command: &&&str| server.command_calls(command) > 0;
        for command in commands.iter().filter(is_called).copied().collect::<Vec<_>>() {
            let place = format!("{word} without {command}");
            set_permission(&server, "-", command);
            let taken = take(&client);
            if let Err(error) = &taken {
                let (text, quoted) = (error.to_string(), format!("'{command}'"));
                assert!(text.contains(&quoted) && text.contains("NOPERM"), "{place}: {error}");
            }
            assert_eq!(endless(&server), [""; 0], "{place}");
            set_permission(&server, "+", command);
            settle(&client);
            // A caller whose release was refused has to release again.
            if ["semaphore", "drain"].contains(word) {
                let left = server.command(&["GET", word]).text();
                assert!(left == "2" || taken.is_err() && left == "0", "{place}: {left} are left");
                server.command(&["SET", word, "2"]);
            }
            assert_eq!(take(&client), Ok(true), "{place}, afterwards");
            settle(&client);
        }
    }
}

#[test]
fn without_publish_a_release_succeeds_and_warns_once() {
    let (server, client) = with_user();
    set_permission(&server, "-", "publish");
    for kind in KINDS {
        assert_eq!((kind.take)(&client), Ok(true), "{}", kind.word);
    }
    client.lock("lock").try_lock().unwrap().unwrap().unlock().unwrap();
    assert!(!client.lock("lock").is_locked().unwrap());
    settle(&client);
    let warnings = client.warnings();
    assert!(
        matches!(&*warnings, [Warning::ChannelsRefused { refusal, .. }] if refusal.contains("publish")),
        "{warnings:?}"
    );
}

#[test]
fn a_lock_whose_undoing_is_refused_too_is_released_later() {
    let (server, client) = with_user();
    set_permission(&server, "-", "pexpire");
    set_permission(&server, "-", "del");
    let error = client.lock("lock").try_lock().unwrap_err();
    assert!(error.to_string().contains("'pexpire'"), "{error}");
    assert_eq!(endless(&server), ["lock"]);
    assert!(client.stats().queued_releases > 0);
    set_permission(&server, "+", "del");
    settle(&client);
    assert_eq!(endless(&server), [""; 0]);
}
