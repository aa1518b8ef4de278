//! Servers that cells use one after the other.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use wheellock::{Client, ClientBuilder};
use wheellock_fixture::{RawConnection, Reply, Sentinels, wait_until};

use crate::common::{SOON, pause};
use crate::sends::teach;
use crate::servers::{Kind, Proxies, Servers};

/// Servers, and a connection that passes by the proxies.
pub(crate) struct Place {
    pub(crate) kind: Kind,
    servers: Arc<Servers>,
    direct: Mutex<Option<RawConnection>>,
}

/// The places that are free.
#[derive(Default)]
pub(crate) struct FreePlaces(Mutex<Vec<Place>>);

impl FreePlaces {
    pub(crate) fn take(&self, kind: Kind) -> Place {
        let free = {
            let mut free = self.0.lock();
            let found = free.iter().position(|place| place.kind == kind);
            found.map(|place| free.swap_remove(place))
        };
        free.unwrap_or_else(|| Place::new(kind))
    }

    pub(crate) fn give_back(&self, place: Place) {
        self.0.lock().push(place);
    }
}

impl Place {
    pub(crate) fn new(kind: Kind) -> Self {
        let place =
            Self { kind, servers: Arc::new(Servers::start(kind)), direct: Mutex::new(None) };
        place.wait_until_well();
        place
    }

    pub(crate) fn servers(&self) -> Arc<Servers> {
        Arc::clone(&self.servers)
    }

    /// The address of the server behind the proxies.
    pub(crate) fn url(&self) -> String {
        match self.kind {
            Kind::InCluster => format!("redis-cluster://{}", self.servers.server().address()),
            _ => self.servers.server().url(),
        }
    }

    /// How a client is built that goes through these proxies.
    pub(crate) fn builder(&self, proxies: &Proxies, timeout: Duration) -> ClientBuilder {
        let address = proxies.server.address();
        let url = match (self.kind, &proxies.other) {
            (Kind::BehindSentinels, Some(sentinel)) => {
                format!("redis-sentinel://{}/{}", sentinel.address(), Sentinels::NAME)
            }
            (Kind::InCluster, _) => format!("redis-cluster://{address}"),
            _ => format!("redis://{address}"),
        };
        let builder = Client::builder().url(&url).command_timeout(timeout);
        match self.kind {
            Kind::WithReplica => builder.replica_acks(1, timeout / 2),
            _ => builder,
        }
    }

    /// Makes the server as one that was just started and knows the scripts.
    pub(crate) fn clear(&self) {
        self.command(&["FLUSHALL"]);
        teach(|command| self.command(command));
    }

    /// Waits until the server does what it is there for, as some time after it was started again.
    pub(crate) fn wait_until_well(&self) {
        self.servers.resume();
        wait_until("the server is well", SOON, || match self.kind {
            Kind::Alone | Kind::BehindSentinels => true,
            Kind::InCluster => {
                self.command(&["CLUSTER", "INFO"]).text().contains("cluster_state:ok")
            }
            Kind::WithReplica => {
                // A replica that has just come hears once, and then nothing for up to a second.
                (0..6).all(|_| {
                    pause(Duration::from_millis(250));
                    self.command(&["SET", "probe", "1"]);
                    let heard = self.command(&["WAIT", "1", "50"]) == Reply::Integer(1);
                    self.command(&["DEL", "probe"]);
                    heard
                })
            }
        });
    }

    /// The slot of a key.
    pub(crate) fn slot(&self, key: &str) -> i64 {
        self.command(&["CLUSTER", "KEYSLOT", key]).integer()
    }

    /// A command that passes by the proxy.
    pub(crate) fn command(&self, arguments: &[&str]) -> Reply {
        let mut direct = self.direct.lock();
        let mut reply = None;
        // The server may have restarted since the last one, or be about to.
        wait_until("the server answers", SOON, || {
            if direct.is_none() {
                *direct = RawConnection::open(self.servers.server().address()).ok();
            }
            reply = direct.as_mut().and_then(|open| open.try_command(arguments).ok());
            if reply.is_none() {
                *direct = None;
            }
            reply.is_some()
        });
        reply.unwrap()
    }

    /// All keys, each with its time to live in ms; -1 for none.
    pub(crate) fn keys(&self) -> Vec<(String, i64)> {
        const LOOK: &str = "local found = {} for _, key in ipairs(redis.call('keys', '*')) do \
            found[#found + 1] = {key, redis.call('pttl', key)} end return found";
        let reply = self.command(&["EVAL", LOOK, "0"]);
        reply
            .array()
            .iter()
            .map(|pair| (pair.array()[0].text(), pair.array()[1].integer()))
            .collect()
    }

    /// The text under a key; empty if there is none.
    pub(crate) fn text(&self, key: &str) -> String {
        match self.command(&["GET", key]) {
            Reply::Nil => String::new(),
            Reply::Error(message) => message,
            reply => reply.text(),
        }
    }
}
