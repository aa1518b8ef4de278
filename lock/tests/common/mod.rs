//! Shared by the tests: a server, a proxy before it, and faults for the library's own scripts.

#![expect(clippy::panic, reason = "the helpers of a test fail it with a message")]
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![expect(dead_code, reason = "every test file compiles all of this and uses a part")]

#[cfg(feature = "tls")]
pub(crate) mod certificates;
pub(crate) mod contended;
pub(crate) mod expected;
pub(crate) mod fair_queue;
pub(crate) mod fake;
pub(crate) mod fleet;
pub(crate) mod forked;
pub(crate) mod in_memory;
pub(crate) mod slots;
pub(crate) mod stores;
pub(crate) mod takings;
pub(crate) mod turns;
pub(crate) mod user;

use std::sync::Arc;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use wheellock::{Client, ClientBuilder, Clock, Error, ManualClock, SystemClock};
use wheellock_fixture::{Aim, Fault, Proxy, Reply, Request, Server, ServerBuilder, wait_until};

use self::user::{RULE, user_url};

/// How long to wait for what must happen. Nothing waits that long unless it fails.
pub(crate) const SOON: Duration = Duration::from_secs(10);

/// The command timeout of clients that are meant to run into it.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(250);

/// What a busy machine may add to a time limit. What is meant to show that a waiter did not poll
/// has no time limit: it waits where nobody polls, [`without_polls`].
pub(crate) const SLACK: Duration = Duration::from_secs(2);

/// Longer than anything takes on a machine that does much else.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A client whose time stands still. Its waiters never poll: one that goes on was woken.
pub(crate) fn without_polls(url: &str) -> Client {
    built(Client::builder().url(url).clock(Arc::new(ManualClock::new())))
}

/// Waits until a thread of `client` ends. If it does not, the client is shut down: where nobody
/// polls it would wait for ever, and the test with it.
pub(crate) fn ended<T>(client: &Client, thread: ScopedJoinHandle<'_, T>) -> T {
    let limit = now() + LIMIT;
    while !thread.is_finished() && now() < limit {
        pause(Duration::from_millis(1));
    }
    if !thread.is_finished() {
        client.shutdown(Duration::ZERO);
    }
    thread.join().unwrap()
}

/// Waits until a thread of `client` sleeps for a lock.
pub(crate) fn wait_for_a_waiter(client: &Client) {
    wait_until("a waiter", SOON, || client.stats().waiters > 0);
}

/// Waits until the server has acknowledged every release of dropped guards, and all others.
pub(crate) fn settle(client: &Client) {
    wait_until("every release is acknowledged", SOON, || {
        let stats = client.stats();
        stats.unread_releases == 0 && stats.queued_releases == 0
    });
}

/// What the library sends of a script: all but its comments. Flags for Dragonfly are sent.
pub(crate) fn code(script: &str) -> String {
    let is_code = |line: &&str| {
        let line = line.trim_start();
        !line.starts_with("--") || line.starts_with("--!")
    };
    script.split_inclusive('\n').filter(is_code).collect()
}

/// The library's scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Script {
    Acquire,
    Recount,
    Release,
    Renew,
    ForceRelease,
    FairAcquire,
    FairRelease,
    Keep,
}

impl Script {
    const ALL: [Self; 8] = [
        Self::Acquire,
        Self::Recount,
        Self::Release,
        Self::Renew,
        Self::ForceRelease,
        Self::FairAcquire,
        Self::FairRelease,
        Self::Keep,
    ];

    fn source(self) -> &'static str {
        match self {
            Self::Acquire => include_str!("../../src/ops/scripts/acquire.lua"),
            Self::Recount => include_str!("../../src/ops/scripts/set_count.lua"),
            Self::Release => include_str!("../../src/ops/scripts/release.lua"),
            Self::Renew => include_str!("../../src/ops/scripts/renew.lua"),
            Self::ForceRelease => concat!(
                include_str!("../../src/ops/scripts/recognize.lua"),
                include_str!("../../src/ops/scripts/force_release.lua")
            ),
            Self::FairAcquire => include_str!("../../src/ops/scripts/fair_acquire.lua"),
            Self::FairRelease => include_str!("../../src/ops/scripts/fair_release.lua"),
            Self::Keep => include_str!("../../src/ops/scripts/keep.lua"),
        }
    }
}

/// A server, and a proxy that leads to it.
pub(crate) struct ProxiedServer {
    // Before the server: it ends first.
    pub(crate) proxy: Proxy,
    pub(crate) server: Server,
    hashes: [(Script, String); 8],
}

impl ProxiedServer {
    pub(crate) fn new() -> Self {
        Self::of(Server::builder())
    }

    /// A server with options of its own.
    pub(crate) fn of(builder: ServerBuilder) -> Self {
        Self::with(builder.user(&RULE).start())
    }

    /// A server that knows the operations guide's user already.
    pub(crate) fn with(server: Server) -> Self {
        let proxy = Proxy::start(server.address());
        // The library need not send a script's text first: each operation is one request.
        let hashes = Script::ALL.map(|script| {
            (script, server.command(&["SCRIPT", "LOAD", &code(script.source())]).text())
        });
        Self { proxy, server, hashes }
    }

    /// A client behind the proxy, which gives an attempt up after [`TIMEOUT`].
    pub(crate) fn client(&self) -> Client {
        built(self.builder())
    }

    /// A client behind the proxy that loses an attempt soon, and has time for the next on a machine
    /// that is busy.
    pub(crate) fn retrying(&self) -> Client {
        built(self.builder().command_timeout(Duration::from_secs(1)))
    }

    /// A client behind the proxy whose attempts take as long as they take.
    pub(crate) fn patient(&self) -> Client {
        built(self.builder().command_timeout(Duration::from_secs(3)))
    }

    pub(crate) fn builder(&self) -> ClientBuilder {
        Client::builder().url(&user_url(&self.proxy.url())).command_timeout(TIMEOUT)
    }

    /// A client that the proxy does not see.
    pub(crate) fn rival(&self) -> Client {
        built(Client::builder().url(&user_url(&self.server.url())))
    }

    /// Whether a request is this script for this key.
    pub(crate) fn is(
        &self,
        script: Script,
        name: &str,
    ) -> impl Fn(&Request) -> bool + Send + use<> {
        let is_script = self.is_any(script);
        let name = name.as_bytes().to_vec();
        move |request| is_script(request) && request.arguments.contains(&name)
    }

    /// Whether a request is this script, whatever its keys.
    pub(crate) fn is_any(&self, script: Script) -> impl Fn(&Request) -> bool + Send + use<> {
        let hash = self
            .hashes
            .iter()
            .find(|(known, _)| *known == script)
            .map_or_else(String::new, |(_, hash)| hash.clone());
        move |request| match request.name().as_str() {
            "EVALSHA" => request.argument(1) == hash,
            "EVAL" => request.argument(1) == code(script.source()),
            _ => false,
        }
    }

    /// Aims a fault at the next run of a script on this key.
    pub(crate) fn on(&self, script: Script, name: &str, fault: Fault) -> Aim {
        self.proxy.on(self.is(script, name), fault)
    }

    /// Withholds the next run of a script on this key.
    pub(crate) fn withhold(&self, script: Script, name: &str) -> Withheld {
        let is = self.is(script, name);
        let request = Arc::new(Mutex::new(None));
        let seen = Arc::clone(&request);
        let matcher = move |candidate: &Request| {
            let matches = is(candidate);
            if matches {
                *seen.lock() = Some(candidate.clone());
            }
            matches
        };
        let keys = match script {
            Script::Acquire | Script::Recount | Script::Release | Script::Renew | Script::Keep => 1,
            Script::ForceRelease => 3,
            Script::FairAcquire | Script::FairRelease => 4,
        };
        Withheld { aim: self.proxy.on(matcher, Fault::HoldRequest), request, keys }
    }

    /// The server's clock in milliseconds.
    pub(crate) fn now(&self) -> i64 {
        let parts: Vec<i64> = self
            .server
            .command(&["TIME"])
            .texts()
            .iter()
            .map(|part| part.parse().unwrap_or_default())
            .collect();
        parts[0] * 1000 + parts[1] / 1000
    }

    /// The hash behind a name as owner and count. Empty when there is none.
    pub(crate) fn hash(&self, name: &str) -> Vec<(String, String)> {
        let flat = self.server.command(&["HGETALL", name]).texts();
        flat.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()
    }

    /// The count of a hash with one owner.
    pub(crate) fn count(&self, name: &str) -> String {
        let hash = self.hash(name);
        assert_eq!(hash.len(), 1, "one owner is expected: {hash:?}");
        hash[0].1.clone()
    }

    /// As PTTL has it.
    pub(crate) fn ttl(&self, name: &str) -> i64 {
        self.server.command(&["PTTL", name]).integer()
    }

    pub(crate) fn exists(&self, name: &str) -> bool {
        self.server.command(&["EXISTS", name]).integer() == 1
    }

    /// Waits until nothing is left of a name, long before its lease ends by itself.
    pub(crate) fn wait_until_gone(&self, name: &str) {
        wait_until(&format!("{name:?} is gone"), SOON, || !self.exists(name));
    }
}

/// A request that is withheld.
pub(crate) struct Withheld {
    aim: Aim,
    request: Arc<Mutex<Option<Request>>>,
    keys: usize,
}

impl Withheld {
    pub(crate) fn wait(&self) {
        self.aim.wait_for_hit(SOON);
    }

    /// Delivers it now.
    pub(crate) fn deliver(&self) -> Reply {
        self.aim.deliver().remove(0)
    }

    /// Delivers it when its not-after has passed.
    pub(crate) fn deliver_late(&self, setup: &ProxiedServer) -> Reply {
        let not_after = self.not_after();
        wait_until("the not-after has passed", SOON, || setup.now() > not_after);
        self.deliver()
    }

    pub(crate) fn not_after(&self) -> i64 {
        let request = self.request.lock();
        // Name, script and number of keys come before the keys.
        let not_after = request.as_ref().map(|request| request.argument(3 + self.keys));
        not_after.and_then(|text| text.parse().ok()).unwrap_or_default()
    }
}

/// A client. To build one takes several round trips in one short timeout, which a busy machine may
/// not have for them.
pub(crate) fn built(builder: ClientBuilder) -> Client {
    let limit = now() + LIMIT;
    while now() < limit {
        match builder.clone().build() {
            Ok(client) => return client,
            Err(error) => assert!(error.is_retryable(), "no client: {error}"),
        }
    }
    match builder.build() {
        Ok(client) => client,
        Err(error) => panic!("no client: {error}"),
    }
}

pub(crate) fn now() -> Instant {
    SystemClock.now()
}

/// A user that may do everything except what `rules` take away, and its URL.
pub(crate) fn limited_user(server: &Server, rules: &[&str]) -> String {
    let user = ["ACL", "SETUSER", "limited", "on", ">secret", "~*", "&*", "+@all"];
    assert!(!server.command(&[&user, rules].concat()).is_error(), "{rules:?}");
    format!("redis://limited:secret@{}/", server.address())
}

/// Other rules for that user.
pub(crate) fn limit_user(server: &Server, rules: &[&str]) {
    let user = ["ACL", "SETUSER", "limited"];
    assert!(!server.command(&[&user, rules].concat()).is_error(), "{rules:?}");
}

/// Whether an error says that the key of this name holds something else.
pub(crate) fn is_wrong_type(error: &Error, of: &str) -> bool {
    matches!(error, Error::WrongType { key, .. } if key == of)
}

/// Does something and says how long it took.
pub(crate) fn timed<T>(action: impl FnOnce() -> T) -> (T, Duration) {
    let start = now();
    let result = action();
    (result, now().saturating_duration_since(start))
}

/// Lets time pass. Not to wait for an effect, but to leave room for one that must not come.
pub(crate) fn pause(length: Duration) {
    let _nothing = crossbeam_channel::never::<()>().recv_timeout(length);
}

/// Whether a reply is a script's refusal of a copy that came too late.
pub(crate) fn is_late(reply: &Reply) -> bool {
    matches!(reply, Reply::Array(parts) if parts.first() == Some(&Reply::Text(b"LATE".to_vec())))
}
