//! The servers of the locks: one behind a proxy, one with replicas and sentinels, and a cluster.

use wheellock_fixture::{Cluster, Proxy, Reply, Sentinels, Server, wait_until};

use crate::times::{LEASE, LIMIT, SLACK, now};

pub(crate) const PROCESSES: usize = 4;

pub(crate) const THREADS: usize = 8;

pub(crate) const LOCKS: usize = 16;

/// How the servers of a lock belong together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Single,
    Sentinel,
    Cluster,
}

impl Kind {
    /// Whether the servers keep every lock that they have granted until its lease has ended. A
    /// failover forgets some.
    pub(crate) const fn keeps_its_locks(self) -> bool {
        matches!(self, Self::Single)
    }
}

/// Where locks are kept.
pub(crate) const IN_USE: &[Kind] = &[Kind::Single, Kind::Sentinel, Kind::Cluster];

/// Where a lock is kept.
pub(crate) const fn kind_of(lock: usize) -> Kind {
    IN_USE[lock % IN_USE.len()]
}

pub(crate) fn locks_of(kind: Kind) -> Vec<usize> {
    (0..LOCKS).filter(|lock| kind_of(*lock) == kind).collect()
}

pub(crate) fn name_of(lock: usize) -> String {
    format!("soak:{lock}")
}

/// The servers themselves. Those that are not in use are not there.
#[derive(Debug)]
pub(crate) struct Servers {
    // Before its server: it ends first.
    pub(crate) proxy: Proxy,
    pub(crate) server: Server,
    sentinels: Option<Sentinels>,
    cluster: Option<Cluster>,
}

impl Servers {
    pub(crate) fn start() -> Self {
        let server = Server::start();
        Self {
            proxy: Proxy::start(server.address()),
            server,
            sentinels: IN_USE
                .contains(&Kind::Sentinel)
                .then(|| Sentinels::builder().quick_to_miss().start()),
            cluster: IN_USE.contains(&Kind::Cluster).then(|| Cluster::start(3, 1)),
        }
    }

    pub(crate) fn sentinels(&self) -> &Sentinels {
        self.sentinels.as_ref().expect("there are no sentinels")
    }

    pub(crate) fn cluster(&self) -> &Cluster {
        self.cluster.as_ref().expect("there is no cluster")
    }

    pub(crate) fn url(&self, kind: Kind) -> String {
        match kind {
            Kind::Single => self.proxy.url(),
            Kind::Sentinel => self.sentinels().url(),
            Kind::Cluster => self.cluster().url(),
        }
    }

    /// Waits until the servers are as they should be.
    pub(crate) fn wait_until_well(&self) {
        if let Some(sentinels) = &self.sentinels {
            sentinels.wait_until_all_is_well();
        }
        if let Some(cluster) = &self.cluster {
            cluster.wait_until_ok();
        }
    }

    /// What is left when the leases of the dead have ended, but for the counters of tokens, which
    /// have no expiry.
    pub(crate) fn left_over(&self) -> Vec<String> {
        let end = now() + LEASE + SLACK;
        let mut left = Vec::new();
        wait_until("nothing is left or the time is over", LIMIT, || {
            left = IN_USE.iter().flat_map(|kind| self.all_but_tokens(*kind)).collect();
            left.is_empty() || now() > end
        });
        left
    }

    /// How many counters of tokens there are.
    pub(crate) fn counters(&self) -> usize {
        IN_USE
            .iter()
            .map(|kind| self.keys(*kind).iter().filter(|key| is_counter(key)).count())
            .sum()
    }

    fn all_but_tokens(&self, kind: Kind) -> Vec<String> {
        self.keys(kind).into_iter().filter(|key| !is_counter(key)).collect()
    }

    /// Each key with its time to live.
    fn keys(&self, kind: Kind) -> Vec<String> {
        let of = |server: &Server| -> Vec<String> {
            let keys = match server.try_command(&["KEYS", "*"]) {
                Ok(keys @ Reply::Array(_)) => keys.texts(),
                other => return vec![format!("the keys of a server: {other:?}")],
            };
            let named = |key: String| {
                let lives = server.command(&["PTTL", &key]).integer();
                format!("{key} {lives}")
            };
            let is_record = |key: &String| key.starts_with("wheellock_client:");
            keys.into_iter().filter(|key| !is_record(key)).map(named).collect()
        };
        match kind {
            Kind::Single => of(&self.server),
            Kind::Sentinel => of(self.sentinels().master()),
            Kind::Cluster => {
                self.cluster().masters().iter().flat_map(|server| of(server)).collect()
            }
        }
    }
}

/// A token counter that is never removed.
fn is_counter(key: &str) -> bool {
    key.starts_with("redisson_lock_token:") && key.ends_with(" -1")
}
