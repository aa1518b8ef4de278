//! What readers and writers of one lock share: how their holds stand on the server, forced ends and questions.
//!
//! One hash, with a field `mode`, a field for each reader and one for the writer, who may read as well. Beside it a key
//! for each level of nesting of each reader, with the time to live of that level.

use std::sync::Arc;

use super::operation::{ALL, Argument, Form, Operation, Script, UNLOCKED};
use super::request::Request;
use crate::keyspace::{Keyspace, WrongType};
use crate::name::LockName;
use crate::owner::Owner;
use crate::value::{ServerTime, Unexpected, Value};

/// The field that says who is in.
pub(super) const MODE: &str = "mode";

/// Who is in, or is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Read,
    Write,
}

impl Mode {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// The key of one level of a reader's nesting, counted from one. Redisson's name for it.
pub(super) fn level(name: &LockName, field: &str, number: u64) -> Arc<str> {
    name.suffixed(&format!("{field}:rwlock_timeout:{number}"))
}

/// What stands under a level's key.
pub(super) const LEVEL: u64 = 1;

/// The number of levels that a field speaks of: none, if it is not a count.
pub(super) fn levels(count: &str) -> u64 {
    count.parse().unwrap_or(0)
}

/// Gives a level at least `millis` to live, and makes it if it is not there.
pub(super) fn prolong_level(keyspace: &mut Keyspace, key: &str, millis: i64) {
    let millis = keyspace.time_to_live(key).max(millis);
    keyspace.text_set(key, LEVEL);
    keyspace.expire(key, millis);
}

/// How long the longest of all levels lasts; zero if none does.
pub(super) fn longest_level(keyspace: &mut Keyspace, name: &LockName) -> i64 {
    let mut longest = 0;
    for (field, count) in keyspace.fields(name.as_str()) {
        for number in 1..=levels(&count) {
            longest = longest.max(keyspace.time_to_live(&level(name, &field, number)));
        }
    }
    longest
}

/// Prolongs what a reader holds, as a renewal does. The number that the script answers.
pub(super) fn renew_reader(
    keyspace: &mut Keyspace,
    name: &LockName,
    owner: &Owner,
    millis: i64,
) -> i64 {
    let field = owner.to_string();
    match keyspace.hash_get(name.as_str(), &field) {
        Ok(Some(count)) => {
            keyspace.delete(&level(name, &field, levels(&count) + 1));
            keyspace.prolong(name.as_str(), millis);
            for number in 1..=levels(&count) {
                prolong_level(keyspace, &level(name, &field, number), millis);
            }
            1
        }
        Ok(None) if !keyspace.exists(name.as_str()) => 0,
        _ => -1,
    }
}

/// Ends whatever holds a read-write lock in one mode.
#[derive(Clone, Debug)]
pub(crate) struct ForceReleaseMode {
    name: LockName,
    channel: Arc<str>,
    mode: Mode,
    request: Request,
}

static FORCE_RELEASE: Script = Script::new(include_str!("read_write_force_release.lua"));

impl ForceReleaseMode {
    pub(crate) fn new(name: LockName, mode: Mode, request: Request) -> Self {
        Self { channel: name.read_write_channel(), name, mode, request }
    }

    fn message(&self) -> &'static str {
        match self.mode {
            Mode::Read => UNLOCKED,
            Mode::Write => ALL,
        }
    }
}

impl Operation for ForceReleaseMode {
    /// Whether anything held it in that mode.
    type Reply = bool;

    fn name(&self) -> &'static str {
        "force release"
    }

    fn form(&self) -> Form {
        Form::Script(&FORCE_RELEASE)
    }

    fn keys(&self) -> Vec<&str> {
        vec![self.name.as_str(), &self.channel, self.request.key()]
    }

    fn arguments(&self, not_after: ServerTime) -> Vec<Argument<'_>> {
        vec![
            Argument::Number(not_after.0),
            Argument::Text(self.mode.word()),
            Argument::Text(self.message()),
            Argument::Publish,
            self.request.remembered(),
        ]
    }

    fn decode(&self, value: Value) -> Result<bool, Unexpected> {
        yes_or_no(value)
    }

    fn apply(&self, keyspace: &mut Keyspace, not_after: ServerTime) -> Value {
        if let Some(late) = keyspace.late(not_after) {
            return late;
        }
        let key = self.name.as_str();
        match self.request.known(keyspace) {
            Err(WrongType) => return Value::wrong_type(),
            Ok(Some(known)) => return Value::Integer(known),
            Ok(None) => {}
        }
        let Ok(mode) = keyspace.hash_get(key, MODE) else {
            return Value::wrong_type();
        };
        let ended = mode.as_deref() == Some(self.mode.word());
        if ended {
            keyspace.delete(key);
            keyspace.publish(&self.channel, self.message());
        }
        self.request.remember(keyspace, i64::from(ended));
        Value::Integer(i64::from(ended))
    }
}

/// Whether anybody reads, or writes.
#[derive(Clone, Debug)]
pub(crate) struct IsLockedIn {
    pub(crate) name: LockName,
    pub(crate) mode: Mode,
}

static IS_LOCKED: Script = Script::new(include_str!("read_write_is_locked.lua"));

impl Operation for IsLockedIn {
    type Reply = bool;

    fn name(&self) -> &'static str {
        "is locked"
    }

    fn form(&self) -> Form {
        Form::Script(&IS_LOCKED)
    }

    fn keys(&self) -> Vec<&str> {
        vec![self.name.as_str()]
    }

    fn arguments(&self, _not_after: ServerTime) -> Vec<Argument<'_>> {
        vec![Argument::Text(self.mode.word())]
    }

    fn decode(&self, value: Value) -> Result<bool, Unexpected> {
        yes_or_no(value)
    }

    fn apply(&self, keyspace: &mut Keyspace, _not_after: ServerTime) -> Value {
        let Ok(mode) = keyspace.hash_get(self.name.as_str(), MODE) else {
            return Value::wrong_type();
        };
        let mode = mode.as_deref();
        let reads_too = || mode == Some(Mode::Write.word());
        let locked = mode == Some(self.mode.word())
            || (reads_too() && keyspace.fields(self.name.as_str()).len() > 2);
        Value::Integer(i64::from(locked))
    }
}

fn yes_or_no(value: Value) -> Result<bool, Unexpected> {
    match value {
        Value::Integer(answer @ (0 | 1)) => Ok(answer == 1),
        other => Err(Unexpected(other)),
    }
}
