//! The stores, for suites that run in memory, on a real server, and in a cluster.

#![allow(
    unused_imports,
    unused_macros,
    reason = "every test file compiles all of this and uses a part"
)]

use std::time::Duration;

use wheellock::{Client, Memory};
use wheellock_fixture::{Reply, Server};

use super::slots::Lent;

/// Somewhere that locks are kept, and how to look at them from outside.
pub(crate) enum World {
    Memory(Memory),
    Redis(Box<Server>),
    Cluster(Lent),
}

impl World {
    pub(crate) fn in_memory() -> Self {
        Self::Memory(Memory::new())
    }

    pub(crate) fn on_a_server() -> Self {
        Self::Redis(Box::new(Server::start()))
    }

    pub(crate) fn in_a_cluster() -> Self {
        Self::Cluster(Lent::take())
    }

    /// A command to the server that has the key.
    fn command(&self, key: &str, arguments: &[&str]) -> Reply {
        match self {
            Self::Memory(_) => panic!("there is no server: {arguments:?}"),
            Self::Redis(server) => server.command(arguments),
            Self::Cluster(cluster) => cluster.home(key).command(arguments),
        }
    }

    /// What stands under a key that is a text.
    pub(crate) fn text(&self, key: &str) -> Option<String> {
        match self {
            Self::Memory(memory) => memory.text(key),
            Self::Redis(_) | Self::Cluster(_) => match self.command(key, &["GET", key]) {
                reply @ Reply::Text(_) => Some(reply.text()),
                _ => None,
            },
        }
    }

    pub(crate) fn client(&self) -> Client {
        let builder = match self {
            Self::Memory(memory) => Client::builder().in_memory(memory),
            Self::Redis(server) => Client::builder().url(&server.url()),
            Self::Cluster(cluster) => Client::builder().url(&cluster.url()),
        };
        super::built(builder)
    }

    /// The owners stored under a key, with their counts.
    pub(crate) fn fields(&self, key: &str) -> Vec<(String, String)> {
        match self {
            Self::Memory(memory) => memory.fields(key),
            Self::Redis(_) | Self::Cluster(_) => {
                let texts = self.command(key, &["HGETALL", key]).texts();
                texts.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()
            }
        }
    }

    pub(crate) fn time_to_live(&self, key: &str) -> Option<Duration> {
        match self {
            Self::Memory(memory) => memory.time_to_live(key),
            Self::Redis(_) | Self::Cluster(_) => {
                let millis = self.command(key, &["PTTL", key]).integer();
                u64::try_from(millis).ok().map(Duration::from_millis)
            }
        }
    }

    pub(crate) fn delete(&self, key: &str) {
        match self {
            Self::Memory(memory) => memory.delete(key),
            Self::Redis(_) | Self::Cluster(_) => drop(self.command(key, &["DEL", key])),
        }
    }

    pub(crate) fn put_text(&self, key: &str) {
        match self {
            Self::Memory(memory) => memory.put_text(key),
            Self::Redis(_) | Self::Cluster(_) => drop(self.command(key, &["SET", key, "data"])),
        }
    }

    pub(crate) fn is_there(&self, key: &str) -> bool {
        match self {
            Self::Memory(memory) => {
                let locked = self.client().lock(key).is_locked();
                !memory.fields(key).is_empty() || locked.unwrap_or_else(|error| panic!("{error}"))
            }
            Self::Redis(_) | Self::Cluster(_) => {
                self.command(key, &["EXISTS", key]) == Reply::Integer(1)
            }
        }
    }
}

/// Each function becomes two tests, one on each store.
macro_rules! on_both_stores {
    ($($(#[$attribute:meta])* fn $name:ident($world:ident: &World) $body:block)*) => {
        $(fn $name($world: &World) $body)*

        mod in_memory {
            $(#[test] $(#[$attribute])* fn $name() {
                super::$name(&$crate::common::stores::World::in_memory());
            })*
        }

        mod on_a_server {
            $(#[test] $(#[$attribute])* fn $name() {
                super::$name(&$crate::common::stores::World::on_a_server());
            })*
        }
    };
}

pub(crate) use on_both_stores;

/// The same, and a third in a cluster.
macro_rules! on_all_stores {
    ($($(#[$attribute:meta])* fn $name:ident($world:ident: &World) $body:block)*) => {
        $crate::common::stores::on_both_stores! {
            $($(#[$attribute])* fn $name($world: &World) $body)*
        }

        mod in_a_cluster {
            $(#[test] $(#[$attribute])* fn $name() {
                super::$name(&$crate::common::stores::World::in_a_cluster());
            })*
        }
    };
}

pub(crate) use on_all_stores;
