//! Everything that can be held and waited for: how, and its keys and channels.

use std::thread;
use std::time::Duration;

use super::takings::taken;
use wheellock::{Client, Guard, Lock};

use super::{SOON, timed, wait_for_a_waiter};

/// Ends what is held.
pub(crate) type End = Box<dyn FnOnce()>;

/// Something that is held and waited for.
pub(crate) struct Kind {
    pub(crate) word: &'static str,
    pub(crate) hold: fn(&Client, &str) -> End,
    /// Whether it was had in time. What is had is given back.
    pub(crate) wait: fn(&Client, &str, Duration) -> bool,
    /// How the keys begin while it is held and waited for. `NAME` is the name, in braces unless it
    /// has some.
    pub(crate) keys: &'static [&'static str],
    /// How the channel begins, if there are messages.
    pub(crate) channel: Option<&'static str>,
}

fn hold<G: Guard + 'static>(lock: &Lock<G>) -> End {
    let guard = lock.lock().unwrap();
    Box::new(move || drop(guard))
}

fn wait<G: Guard>(lock: &Lock<G>, wait: Duration) -> bool {
    lock.try_lock_for(wait).unwrap().is_some()
}

const CHANNEL: Option<&str> = Some("redisson_lock__channel:NAME");
const READERS: Option<&str> = Some("redisson_rwlock:NAME");
const PERMITS: Option<&str> = Some("redisson_sc:NAME");

pub(crate) const KINDS: [Kind; 12] = [
    Kind {
        word: "lock",
        hold: |client, name| hold(&client.lock(name)),
        wait: |client, name, time| wait(&client.lock(name), time),
        keys: &["KEY"],
        channel: CHANNEL,
    },
    Kind {
        word: "non_reentrant_lock",
        hold: |client, name| hold(&client.non_reentrant_lock(name)),
        wait: |client, name, time| wait(&client.non_reentrant_lock(name), time),
        keys: &["KEY"],
        channel: CHANNEL,
    },
    Kind {
        word: "fenced_lock",
        hold: |client, name| hold(&client.fenced_lock(name)),
        wait: |client, name, time| wait(&client.fenced_lock(name), time),
        keys: &["KEY", "redisson_lock_token:NAME"],
        channel: CHANNEL,
    },
    Kind {
        word: "spin_lock",
        hold: |client, name| hold(&client.spin_lock(name)),
        wait: |client, name, time| wait(&client.spin_lock(name), time),
        keys: &["KEY"],
        channel: None,
    },
    Kind {
        word: "simple_lock",
        hold: |client, name| hold(&client.simple_lock(name)),
        wait: |client, name, time| wait(&client.simple_lock(name), time),
        keys: &["KEY"],
        channel: None,
    },
    Kind {
        word: "fair_lock",
        hold: |client, name| hold(&client.fair_lock(name)),
        wait: |client, name, time| wait(&client.fair_lock(name), time),
        keys: &["KEY", "redisson_lock_queue:NAME", "redisson_lock_timeout:NAME"],
        channel: CHANNEL,
    },
    Kind {
        word: "non_reentrant_fair_lock",
        hold: |client, name| hold(&client.non_reentrant_fair_lock(name)),
        wait: |client, name, time| wait(&client.non_reentrant_fair_lock(name), time),
        keys: &["KEY", "redisson_lock_queue:NAME", "redisson_lock_timeout:NAME"],
        channel: CHANNEL,
    },
    Kind {
        word: "read_lock",
        hold: |client, name| hold(&client.read_write_lock(name).read_lock()),
        wait: |client, name, time| wait(&client.read_write_lock(name).write_lock(), time),
        keys: &["KEY", "NAME:"],
        channel: READERS,
    },
    Kind {
        word: "write_lock",
        hold: |client, name| hold(&client.read_write_lock(name).write_lock()),
        wait: |client, name, time| wait(&client.read_write_lock(name).read_lock(), time),
        keys: &["KEY"],
        channel: READERS,
    },
    Kind {
        word: "semaphore",
        hold: |client, name| {
            let semaphore = client.semaphore(name);
            semaphore.try_set_permits(1).unwrap();
            semaphore.acquire(1).unwrap().forget();
            Box::new(move || semaphore.release(1).unwrap())
        },
        wait: |client, name, time| {
            let semaphore = client.semaphore(name);
            let had = semaphore.try_acquire_for(1, time).map(taken).unwrap();
            if had {
                semaphore.release(1).unwrap();
            }
            had
        },
        keys: &["KEY", "wheellock_request:OWN:"],
        channel: PERMITS,
    },
    Kind {
        word: "expirable_semaphore",
        hold: |client, name| {
            let semaphore = client.expirable_semaphore(name).with_lease(SOON * 3);
            semaphore.try_set_permits(1).unwrap();
            let permit = semaphore.acquire().unwrap();
            Box::new(move || permit.release().unwrap())
        },
        wait: |client, name, time| {
            client.expirable_semaphore(name).try_acquire_for(time).unwrap().is_some()
        },
        keys: &["KEY", "NAME:timeout"],
        channel: PERMITS,
    },
    Kind {
        word: "count_down_latch",
        hold: |client, name| {
            let latch = client.count_down_latch(name);
            latch.try_set_count(1).unwrap();
            Box::new(move || latch.count_down().unwrap())
        },
        wait: |client, name, time| client.count_down_latch(name).wait_for(time).unwrap(),
        keys: &["KEY", "wheellock_request:OWN:"],
        channel: Some("redisson_countdownlatch__channel__{KEY}"),
    },
];

/// What a pattern of a [`Kind`] stands for.
pub(crate) fn with_name(pattern: &str, name: &str) -> String {
    let has_braces = name.contains('{');
    let tagged = if has_braces { name.to_owned() } else { format!("{{{name}}}") };
    // In keys that Redisson does not have.
    let own = if has_braces { format!("{}:{name}", name.len()) } else { tagged.clone() };
    pattern.replace("NAME", &tagged).replace("OWN", &own).replace("KEY", name)
}

/// Has `kind` held by one client and waited for by another, looks at what is there, and hands it
/// over. Says how long that took.
pub(crate) fn contend(
    kind: &Kind,
    (holder, held): (&Client, &str),
    waiter: (&Client, &str),
    look: impl FnOnce(),
) -> Duration {
    let (client, awaited) = waiter;
    let end = (kind.hold)(holder, held);
    assert!(!(kind.wait)(client, awaited, Duration::ZERO), "{} excludes", kind.word);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| (kind.wait)(client, awaited, SOON));
        wait_for_a_waiter(client);
        look();
        let (had, took) = timed(|| {
            end();
            waiting.join().unwrap()
        });
        assert!(had, "{} is handed over", kind.word);
        took
    })
}
