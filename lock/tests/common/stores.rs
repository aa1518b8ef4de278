//! The stores, for suites that run in memory, on a real server, in a cluster, and behind the one
//! endpoint of a hidden cluster.

#![allow(
    unused_imports,
    unused_macros,
    reason = "every test file compiles all of this and uses a part"
)]

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use wheellock::{Client, ClientBuilder, ManualClock, Memory};
#[cfg(feature = "tls")]
use wheellock_fixture::{Certificates, ClientCertificates};
use wheellock_fixture::{Endpoint, Reply, Server};

use super::slots::Lent;
use super::user::{RULE, user_url};

/// Somewhere that locks are kept, and how to look at them from outside.
pub(crate) enum TestStore {
    Memory(Memory),
    Redis(Box<Reached>),
    Cluster(Lent),
    /// A cluster behind one address, as managed services have it.
    Endpoint(Endpoint, Lent),
}

/// A server, and how clients reach it. Tests look at it as themselves.
pub(crate) struct Reached {
    server: Server,
    road: Road,
}

pub(crate) enum Road {
    Tcp,
    #[cfg(unix)]
    Unix,
    #[cfg(feature = "tls")]
    Tls(Certificates),
}

impl Deref for Reached {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl Reached {
    pub(crate) fn by(road: Road) -> Self {
        let builder = Server::builder().user(&RULE);
        let builder = match &road {
            Road::Tcp => builder,
            #[cfg(unix)]
            Road::Unix => builder.unix_socket(),
            #[cfg(feature = "tls")]
            Road::Tls(certificates) => builder.tls(certificates, ClientCertificates::Required),
        };
        Self { server: builder.start(), road }
    }

    /// A client that may do what the operations guide says that it must be allowed, and no more.
    pub(crate) fn builder(&self) -> ClientBuilder {
        match &self.road {
            Road::Tcp => Client::builder().url(&user_url(&self.server.url())),
            #[cfg(unix)]
            Road::Unix => {
                let path = self.server.unix_socket().display();
                Client::builder().url(&format!("unix://{path}?user=family&pass=password"))
            }
            #[cfg(feature = "tls")]
            Road::Tls(certificates) => Client::builder()
                .url(&user_url(&self.server.tls_url()))
                .tls(super::certificates::believing(certificates)),
        }
    }
}

impl TestStore {
    pub(crate) fn in_memory() -> Self {
        Self::Memory(Memory::new())
    }

    pub(crate) fn on_a_server() -> Self {
        Self::by(Road::Tcp)
    }

    pub(crate) fn by(road: Road) -> Self {
        Self::Redis(Box::new(Reached::by(road)))
    }

    pub(crate) fn in_a_cluster() -> Self {
        Self::Cluster(Lent::take())
    }

    pub(crate) fn behind_an_endpoint() -> Self {
        let cluster = Lent::take();
        let endpoint = Endpoint::start(&cluster);
        // As services do.
        endpoint.refuse(&["CLUSTER", "INFO", "CLIENT", "CONFIG"]);
        Self::Endpoint(endpoint, cluster)
    }

    /// A command to the server that has the key.
    fn command(&self, key: &str, arguments: &[&str]) -> Reply {
        match self {
            Self::Memory(_) => panic!("there is no server: {arguments:?}"),
            Self::Redis(server) => server.command(arguments),
            Self::Cluster(cluster) | Self::Endpoint(_, cluster) => {
                cluster.home(key).command(arguments)
            }
        }
    }

    /// What stands under a key that is a text.
    pub(crate) fn text(&self, key: &str) -> Option<String> {
        match self {
            Self::Memory(memory) => memory.text(key),
            Self::Redis(_) | Self::Cluster(_) | Self::Endpoint(..) => {
                match self.command(key, &["GET", key]) {
                    reply @ Reply::Text(_) => Some(reply.text()),
                    _ => None,
                }
            }
        }
    }

    pub(crate) fn client(&self) -> Client {
        super::built(self.builder())
    }

    /// A client whose time stands still. Its waiters never poll: one that goes on was woken.
    pub(crate) fn without_polls(&self) -> Client {
        super::built(self.builder().clock(Arc::new(ManualClock::new())))
    }

    pub(crate) fn builder(&self) -> ClientBuilder {
        match self {
            Self::Memory(memory) => Client::builder().in_memory(memory),
            Self::Redis(server) => server.builder(),
            Self::Cluster(cluster) => super::slots::builder_of(cluster),
            Self::Endpoint(endpoint, _) => Client::builder().url(&user_url(&endpoint.url())),
        }
    }

    /// The owners stored under a key, with their counts.
    pub(crate) fn fields(&self, key: &str) -> Vec<(String, String)> {
        match self {
            Self::Memory(memory) => memory.fields(key),
            Self::Redis(_) | Self::Cluster(_) | Self::Endpoint(..) => {
                let texts = self.command(key, &["HGETALL", key]).texts();
                texts.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()
            }
        }
    }

    pub(crate) fn time_to_live(&self, key: &str) -> Option<Duration> {
        match self {
            Self::Memory(memory) => memory.time_to_live(key),
            Self::Redis(_) | Self::Cluster(_) | Self::Endpoint(..) => {
                let millis = self.command(key, &["PTTL", key]).integer();
                u64::try_from(millis).ok().map(Duration::from_millis)
            }
        }
    }

    pub(crate) fn delete(&self, key: &str) {
        match self {
            Self::Memory(memory) => memory.delete(key),
            Self::Redis(_) | Self::Cluster(_) | Self::Endpoint(..) => {
                drop(self.command(key, &["DEL", key]));
            }
        }
    }

    pub(crate) fn put_text(&self, key: &str) {
        match self {
            Self::Memory(memory) => memory.put_text(key),
            Self::Redis(_) | Self::Cluster(_) | Self::Endpoint(..) => {
                drop(self.command(key, &["SET", key, "data"]));
            }
        }
    }

    pub(crate) fn is_there(&self, key: &str) -> bool {
        match self {
            Self::Memory(memory) => {
                let locked = self.client().lock(key).is_locked();
                !memory.fields(key).is_empty() || locked.unwrap_or_else(|error| panic!("{error}"))
            }
            Self::Redis(_) | Self::Cluster(_) | Self::Endpoint(..) => {
                self.command(key, &["EXISTS", key]) == Reply::Integer(1)
            }
        }
    }
}

/// Each function becomes two tests, one on each store.
macro_rules! on_both_stores {
    ($($(#[$attribute:meta])* fn $name:ident($setup:ident: &TestStore) $body:block)*) => {
        $(fn $name($setup: &TestStore) $body)*

        mod in_memory {
            $(#[test] $(#[$attribute])* fn $name() {
                super::$name(&$crate::common::stores::TestStore::in_memory());
            })*
        }

        mod on_a_server {
            $(#[test] $(#[$attribute])* fn $name() {
                super::$name(&$crate::common::stores::TestStore::on_a_server());
            })*
        }
    };
}

pub(crate) use on_both_stores;

/// Each function becomes four tests: one on each store, one in a cluster, and one behind the one
/// endpoint of a cluster.
macro_rules! on_all_stores {
    ($($(#[$attribute:meta])* fn $name:ident($setup:ident: &TestStore) $body:block)*) => {
        $crate::common::stores::on_both_stores! {
            $($(#[$attribute])* fn $name($setup: &TestStore) $body)*
        }

        mod in_a_cluster {
            $(#[test] $(#[$attribute])* fn $name() {
                super::$name(&$crate::common::stores::TestStore::in_a_cluster());
            })*
        }

        mod behind_an_endpoint {
            $(#[test] $(#[$attribute])* fn $name() {
                super::$name(&$crate::common::stores::TestStore::behind_an_endpoint());
            })*
        }
    };
}

pub(crate) use on_all_stores;

/// Each function becomes a test on each store, in a cluster, and on a server that is reached over a
/// unix socket, and over TLS.
macro_rules! on_every_road {
    ($($(#[$attribute:meta])* fn $name:ident($setup:ident: &TestStore) $body:block)*) => {
        $crate::common::stores::on_all_stores! {
            $($(#[$attribute])* fn $name($setup: &TestStore) $body)*
        }

        #[cfg(unix)]
        mod over_a_unix_socket {
            use $crate::common::stores::{Road, TestStore};

            $(#[test] $(#[$attribute])* fn $name() {
                super::$name(&TestStore::by(Road::Unix));
            })*
        }

        #[cfg(feature = "tls")]
        mod over_tls {
            use wheellock_fixture::Certificates;

            use $crate::common::stores::{Road, TestStore};

            $(#[test] $(#[$attribute])* fn $name() {
                super::$name(&TestStore::by(Road::Tls(Certificates::new())));
            })*
        }
    };
}

pub(crate) use on_every_road;
