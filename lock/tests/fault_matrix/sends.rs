//! What an operation sends: a command, or one of the library's scripts, by its hash or whole.

use std::sync::OnceLock;

use wheellock_fixture::{Reply, Request};

use crate::common::code;

/// What an operation sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sends {
    /// The file of the script.
    Script(&'static str),
    /// The name of the command, and what it begins with if that matters.
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
            (Sends::Command(words), name) => {
                let (command, with) = words.split_once(' ').unwrap_or((words, ""));
                name == command && (with.is_empty() || request.argument(1) == with)
            }
            (Sends::Script(_), "EVALSHA") => request.argument(1) == hash,
            (Sends::Script(name), "EVAL") => request.argument(1) == code(source_of(name)),
            _ => false,
        }
    }
}

/// Every script, by its file, behind the part that it shares with others.
macro_rules! scripts {
    ($($name:literal $(after $part:literal)?),* $(,)?) => {
        &[$(($name, concat!(
            $(include_str!(concat!("../../src/ops/scripts/", $part, ".lua")),)?
            include_str!(concat!("../../src/ops/scripts/", $name, ".lua"))
        ))),*]
    };
}

pub(crate) const SCRIPTS: &[(&str, &str)] = scripts![
    "acquire",
    "acquire_many",
    "client_record",
    "client_record_of",
    "draw_token",
    "fair_acquire",
    "fair_force_release" after "recognize",
    "fair_release",
    "fenced_acquire",
    "force_release" after "recognize",
    "inspect" after "recognize",
    "keep",
    "latch_count_down",
    "latch_delete",
    "latch_set",
    "leader" after "recognize",
    "permits_acquire",
    "permits_count",
    "permits_lease",
    "permits_lease_of",
    "permits_release",
    "permits_renew",
    "permits_set",
    "read_acquire",
    "read_keep",
    "read_set_count",
    "read_release",
    "read_write_force_release" after "recognize",
    "read_write_is_locked",
    "set_count",
    "release",
    "release_many",
    "renew",
    "renew_readers",
    "run_begin",
    "run_finish",
    "run_give_back",
    "run_read",
    "revoke",
    "scan",
    "semaphore_acquire",
    "semaphore_add",
    "semaphore_drain",
    "semaphore_set",
    "semaphore_undo",
    "simple_acquire",
    "simple_force_release" after "recognize",
    "simple_keep",
    "simple_release",
    "simple_renew",
    "write_acquire",
    "write_keep",
    "write_release",
];

/// The names under which servers know the scripts: the same on all.
static HASHES: OnceLock<Vec<String>> = OnceLock::new();

/// Makes a server know all scripts.
pub(crate) fn teach(command: impl Fn(&[&str]) -> Reply) {
    let hashes = HASHES.get_or_init(|| {
        SCRIPTS
            .iter()
            .map(|(_, source)| command(&["SCRIPT", "LOAD", &code(source)]).text())
            .collect()
    });
    let mut question = vec!["SCRIPT", "EXISTS"];
    question.extend(hashes.iter().map(String::as_str));
    for (known, (_, source)) in command(&question).array().iter().zip(SCRIPTS) {
        if known.integer() == 0 {
            command(&["SCRIPT", "LOAD", &code(source)]);
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
