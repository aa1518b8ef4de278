//! The storage of readers' and writers' holds, and queries.
//!
//! A lock is a hash with a field `mode`, a field for each reader and a field for the writer, which
//! may read as well. Each level of nesting of each reader has a key of its own, with the level's
//! time to live.

use std::sync::Arc;

use crate::model::name::LockName;
use crate::model::owner::Owner;
use crate::ops::keyspace::{Keyspace, WrongType};
use crate::ops::operation::{Argument, Operation, Request, Script, script};
use crate::ops::value::Value;

/// The field of a lock's hash with the mode.
pub(crate) const MODE: &str = "mode";

/// Whether a lock is held by readers or by a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Read,
    Write,
}

impl Mode {
    /// Returns the value of the field [`MODE`].
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// Returns the key of a level of a reader's nesting, counted from 1, as named by Redisson.
pub(crate) fn level(name: &LockName, field: &str, number: u64) -> Arc<str> {
    name.suffixed(&format!("{field}:rwlock_timeout:{number}"))
}

/// The value of a level's key.
pub(crate) const LEVEL: u64 = 1;

/// Returns the number of levels of a field with the value `count`; zero if `count` is not a number.
pub(crate) fn levels(count: &str) -> u64 {
    count.parse().unwrap_or(0)
}

/// Extends a level's time to live to `millis` in memory, and creates a missing level.
pub(crate) fn prolong_level(keyspace: &mut Keyspace, key: &str, millis: i64) {
    let millis = keyspace.time_to_live(key).max(millis);
    keyspace.text_set(key, LEVEL);
    keyspace.expire(key, millis);
}

/// Returns the longest time to live of all readers' levels, zero if there is none.
pub(crate) fn longest_level(keyspace: &mut Keyspace, name: &LockName) -> i64 {
    let mut longest = 0;
    for (field, count) in keyspace.fields(name.as_str()) {
        for number in 1..=levels(&count) {
            longest = longest.max(keyspace.time_to_live(&level(name, &field, number)));
        }
    }
    longest
}

/// Prolongs a reader's hold with all its levels in memory, as a renewal does. Returns 1; 0 without
/// the key; or -1 if the key has no such reader.
pub(crate) fn renew_reader(
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

/// Queries whether the lock is held in this mode. A lock held by a writer may be held in both
/// modes.
#[derive(Clone, Debug)]
pub(crate) struct IsLockedIn {
    pub(crate) name: LockName,
    pub(crate) mode: Mode,
}

/// Queries whether a read-write lock is held in a mode.
static IS_LOCKED: Script = script!("read_write_is_locked");

impl Operation for IsLockedIn {
    type Reply = bool;

    fn request(&self) -> Request<'_> {
        Request::script(
            "is locked",
            &IS_LOCKED,
            vec![self.name.as_str()],
            vec![Argument::Text(self.mode.word())],
        )
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        let mode = keyspace.hash_get(self.name.as_str(), MODE)?;
        let mode = mode.as_deref();
        let reads_too = || mode == Some(Mode::Write.word());
        let locked = mode == Some(self.mode.word())
            || (reads_too() && keyspace.fields(self.name.as_str()).len() > 2);
        Ok(Value::Integer(i64::from(locked)))
    }
}
