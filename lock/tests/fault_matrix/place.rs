//! A worker's server, used by one cell after the other, and the library's scripts by their names.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use wheellock_fixture::{RawConnection, Reply, Request, Server, wait_until};

use crate::common::SOON;

/// What an operation sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sends {
    /// The file of the script.
    Script(&'static str),
    /// The name of the command.
    Command(&'static str),
}

impl Sends {
    /// Whether a request is this operation.
    pub(crate) fn matcher(self) -> impl Fn(&Request) -> bool + Send + use<> {
        let hash = match self {
            Sends::Script(name) => hash_of(name),
            Sends::Command(_) => String::new(),
        };
        move |request| match (self, request.name().as_str()) {
            (Sends::Command(command), name) => name == command,
            (Sends::Script(_), "EVALSHA") => request.argument(1) == hash,
            (Sends::Script(name), "EVAL") => request.argument(1) == source_of(name),
            _ => false,
        }
    }
}

/// A server of one's own.
pub(crate) struct Place {
    server: Arc<Server>,
    direct: Mutex<Option<RawConnection>>,
}

/// Every script, by its file.
macro_rules! scripts {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../src/op/", $name, ".lua")))),*]
    };
}

pub(crate) const SCRIPTS: &[(&str, &str)] = scripts![
    "acquire",
    "draw_token",
    "fair_acquire",
    "fair_force_release",
    "fair_release",
    "fenced_acquire",
    "force_release",
    "latch_count_down",
    "latch_delete",
    "latch_set",
    "permits_acquire",
    "permits_count",
    "permits_lease",
    "permits_lease_of",
    "permits_release",
    "permits_renew",
    "permits_set",
    "read_acquire",
    "read_recount",
    "read_release",
    "read_write_force_release",
    "read_write_is_locked",
    "recount",
    "release",
    "renew",
    "renew_readers",
    "semaphore_acquire",
    "semaphore_add",
    "semaphore_drain",
    "semaphore_set",
    "semaphore_undo",
    "text_acquire",
    "text_force_release",
    "text_release",
    "text_renew",
    "write_acquire",
    "write_release",
];

/// The names under which servers know the scripts: the same on all.
static HASHES: OnceLock<Vec<String>> = OnceLock::new();

impl Place {
    pub(crate) fn new() -> Self {
        let place = Self { server: Arc::new(Server::start()), direct: Mutex::new(None) };
        place.clear();
        place
    }

    pub(crate) fn server(&self) -> Arc<Server> {
        Arc::clone(&self.server)
    }

    pub(crate) fn url(&self) -> String {
        self.server.url()
    }

    /// Makes the server as one that was just started and knows the scripts.
    pub(crate) fn clear(&self) {
        self.command(&["FLUSHALL"]);
        let hashes: Vec<String> = SCRIPTS
            .iter()
            .map(|(_, source)| self.command(&["SCRIPT", "LOAD", source]).text())
            .collect();
        HASHES.get_or_init(|| hashes);
    }

    /// A command that passes by the proxy.
    pub(crate) fn command(&self, arguments: &[&str]) -> Reply {
        let mut direct = self.direct.lock();
        let mut reply = None;
        // The server may have been started anew since the last one, or be just about to.
        wait_until("the server answers", SOON, || {
            if direct.is_none() {
                *direct = RawConnection::open(self.server.address()).ok();
            }
            reply = direct.as_mut().and_then(|open| open.try_command(arguments).ok());
            if reply.is_none() {
                *direct = None;
            }
            reply.is_some()
        });
        reply.unwrap()
    }

    /// All keys, and for how long each lives, in ms; -1 for ever.
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

fn place_of(name: &str) -> usize {
    match SCRIPTS.iter().position(|(known, _)| *known == name) {
        Some(place) => place,
        None => panic!("there is no script {name}"),
    }
}

fn hash_of(name: &str) -> String {
    HASHES.get().map(|hashes| hashes[place_of(name)].clone()).unwrap_or_default()
}

fn source_of(name: &str) -> &'static str {
    SCRIPTS[place_of(name)].1
}
