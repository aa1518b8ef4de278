//! Where locks are kept: one suite runs in memory and on a real server.

use std::time::Duration;

use wheellock::{Client, Memory};
use wheellock_fixture::{Reply, Server};

/// Somewhere that locks are kept, and how to look at them from outside.
pub(crate) enum World {
    Memory(Memory),
    Redis(Box<Server>),
}

impl World {
    pub(crate) fn in_memory() -> Self {
        Self::Memory(Memory::new())
    }

    pub(crate) fn on_a_server() -> Self {
        Self::Redis(Box::new(Server::start()))
    }

    pub(crate) fn client(&self) -> Client {
        let builder = match self {
            Self::Memory(memory) => Client::builder().in_memory(memory),
            Self::Redis(server) => Client::builder().url(&server.url()),
        };
        builder.build().unwrap()
    }

    /// The owners stored under a key, with their counts.
    pub(crate) fn fields(&self, key: &str) -> Vec<(String, String)> {
        match self {
            Self::Memory(memory) => memory.fields(key),
            Self::Redis(server) => {
                let texts = server.command(&["HGETALL", key]).texts();
                texts.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()
            }
        }
    }

    pub(crate) fn time_to_live(&self, key: &str) -> Option<Duration> {
        match self {
            Self::Memory(memory) => memory.time_to_live(key),
            Self::Redis(server) => {
                let millis = server.command(&["PTTL", key]).integer();
                u64::try_from(millis).ok().map(Duration::from_millis)
            }
        }
    }

    pub(crate) fn delete(&self, key: &str) {
        match self {
            Self::Memory(memory) => memory.delete(key),
            Self::Redis(server) => drop(server.command(&["DEL", key])),
        }
    }

    pub(crate) fn put_text(&self, key: &str) {
        match self {
            Self::Memory(memory) => memory.put_text(key),
            Self::Redis(server) => drop(server.command(&["SET", key, "data"])),
        }
    }

    pub(crate) fn is_there(&self, key: &str) -> bool {
        match self {
            Self::Memory(memory) => {
                !memory.fields(key).is_empty() || self.client().lock(key).is_locked().unwrap()
            }
            Self::Redis(server) => server.command(&["EXISTS", key]) == Reply::Integer(1),
        }
    }
}

/// Each function becomes two tests, one on each store.
macro_rules! on_both_stores {
    ($($(#[$attribute:meta])* fn $name:ident($world:ident: &World) $body:block)*) => {
        $(fn $name($world: &World) $body)*

        mod in_memory {
            $(#[test] $(#[$attribute])* fn $name() {
                super::$name(&$crate::common::world::World::in_memory());
            })*
        }

        mod on_a_server {
            $(#[test] $(#[$attribute])* fn $name() {
                super::$name(&$crate::common::world::World::on_a_server());
            })*
        }
    };
}

pub(crate) use on_both_stores;
