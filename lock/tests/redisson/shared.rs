//! Shared by the tests: one server, two Java programs, and the rule that one test runs at a time.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{Builder, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use wheellock::{Client, Clock, SystemClock};
use wheellock_fixture::{Server, wait_until};

use crate::kind::Kind;
use crate::peer::{JavaThread, Peer};

/// How long to wait for what must happen. Nothing waits that long unless it fails.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// The server of all tests. Names are unique, so the tests do not affect each other.
pub(crate) static SERVER: LazyLock<Server> = LazyLock::new(Server::start);

/// The Java program of all tests that do not kill it: a start takes a second.
pub(crate) static JAVA: LazyLock<Peer> = LazyLock::new(|| Peer::start(&[], &[&SERVER]));

/// A second process beside [`JAVA`].
pub(crate) static SECOND_JAVA: LazyLock<Peer> = LazyLock::new(|| Peer::start(&[], &[&SERVER]));

/// Lets one test run at a time: some measure how long something takes, and others keep every
/// processor busy.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock()
}

/// A name that no other test uses. The word is only for the eye.
pub(crate) fn fresh(word: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // Only the uniqueness of the number counts, hence no ordering.
    format!("{word}:{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

pub(crate) fn connect() -> Client {
    Client::connect(&SERVER.url()).unwrap()
}

pub(crate) fn now() -> Instant {
    SystemClock.now()
}

/// Starts a thread of a test.
pub(crate) fn start<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    run: impl FnOnce() -> T + Send + 'scope,
) -> ScopedJoinHandle<'scope, T> {
    Builder::new().spawn_scoped(scope, run).unwrap()
}

/// The tries of a waiter, counted by the server.
#[derive(Clone, Copy)]
pub(crate) struct Tries {
    commands: &'static [&'static str],
    before: u64,
}

impl Tries {
    /// To be called before the waiter begins, on a server that has the scripts of both sides and
    /// nothing else to do.
    pub(crate) fn begin() -> Self {
        Self::of(&["evalsha", "eval"])
    }

    /// As [`begin`](Self::begin), where a try is not a script but one of these commands.
    pub(crate) fn of(commands: &'static [&'static str]) -> Self {
        Self { commands, before: calls(commands) }
    }

    /// Waits until a waiter has tried this often: for the last time before it sleeps. What it
    /// gets later, it was woken for.
    pub(crate) fn wait_until_asleep(&self, tries: u64) {
        let so_often = || calls(self.commands) >= self.before + tries;
        wait_until("a waiter has tried without success", LIMIT, so_often);
    }
}

/// How often the server ran these commands, for any client and in scripts.
fn calls(commands: &[&str]) -> u64 {
    commands.iter().map(|command| SERVER.command_calls(command)).sum()
}

/// Takes the lock and releases it on both sides. Then the server has the scripts, and the JVM its
/// classes.
pub(crate) fn warm_up(kind: &Kind, client: &Client, java: &JavaThread<'_>) {
    let name = fresh(kind.word);
    (kind.open)(client, &name).lock().unwrap().unlock().unwrap();
    java.call(kind.word, &name, "lock");
    java.call(kind.word, &name, "unlock");
}

/// As PTTL has it. Zero when there is no key.
pub(crate) fn time_to_live(name: &str) -> Duration {
    let millis = SERVER.command(&["PTTL", name]).integer();
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}
