//! Readers of a read-write lock: acquire, release.

use std::sync::Arc;

use crate::model::kind::Layout;
use crate::model::lease::Lease;
use crate::model::name::LockName;
use crate::model::owner::Owner;
use crate::ops::acquire::{Acquired, check_lock, field};
use crate::ops::keyspace::{Keyspace, WrongType};
use crate::ops::operation::{Argument, Grants, Operation, Request, Script, UNLOCKED, script};
use crate::ops::read_write::{MODE, Mode, level, levels, prolong_level};
use crate::ops::release::{Released, other_or_nothing, with_time};
use crate::ops::value::Value;

/// Takes a read lock for a new owner.
#[derive(Clone, Debug)]
pub(crate) struct ReadAcquire {
    pub(crate) name: LockName,
    pub(crate) owner: Owner,
    pub(crate) lease: Lease,
    /// The write hold of the same holder, under which the holder may read.
    pub(crate) under: Option<Owner>,
}

/// Acquires the read lock of a read-write lock.
static ACQUIRE: Script = script!("read_acquire");

impl ReadAcquire {
    /// Returns whether a reader may enter: the lock is free, readers hold the lock, or the writer
    /// is the reader's own holder.
    fn is_open(&self, keyspace: &mut Keyspace, owner: &str) -> Result<bool, WrongType> {
        let key = self.name.as_str();
        let Some(mode) = keyspace.hash_get(key, MODE)? else {
            return Ok(!keyspace.exists(key));
        };
        if mode == Mode::Read.word() {
            return Ok(true);
        }
        let under = self.under.as_ref().map(|writer| field(Layout::Writer, writer));
        let under = under.is_some_and(|field| keyspace.hash_has(key, &field) == Ok(true));
        Ok(mode == Mode::Write.word() && (under || keyspace.hash_has(key, owner)?))
    }
}

impl Operation for ReadAcquire {
    type Reply = Acquired;

    fn request(&self) -> Request<'_> {
        Request::script(
            "acquire",
            &ACQUIRE,
            vec![self.name.as_str()],
            vec![
                Argument::NotAfter,
                Argument::Owner(&self.owner),
                Argument::millis(self.lease.millis()),
                self.under.as_ref().map_or(Argument::Text(""), Argument::Writer),
            ],
        )
    }

    fn grants(&self) -> Grants {
        Acquired::GRANTS
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        let (key, owner) = (self.name.as_str(), self.owner.to_string());
        let is_open = self.is_open(keyspace, &owner)?;
        if !is_open || keyspace.time_to_live(key) == -1 {
            check_lock(keyspace, key, Layout::Reader)?;
        }
        if !is_open {
            return Ok(Value::Integer(keyspace.time_to_live(key)));
        }
        for (field, value) in [(MODE, Mode::Read.word()), (owner.as_str(), "1")] {
            if !keyspace.hash_has(key, field)? {
                keyspace.hash_set(key, field, value)?;
            }
        }
        let lease = self.lease.millis_i64();
        keyspace.prolong(key, lease);
        prolong_level(keyspace, &level(&self.name, &owner, 1), lease);
        Ok(Value::Nil)
    }
}

/// Ends a reader's hold with all its levels. Wakes the waiters if no other reader is left.
#[derive(Clone, Debug)]
pub(crate) struct ReadRelease {
    name: LockName,
    channel: Arc<str>,
    owner: Owner,
}

/// Ends a reader's hold.
static RELEASE: Script = script!("read_release");

/// The maximum by which the lock's time to live may exceed the longest level's, in milliseconds.
const MAX_TTL_EXCESS_MILLIS: i64 = 50;

/// The number of fields that a release inspects first, including the field of the mode: enough for
/// every lock with few readers.
const FIRST_FIELDS: u8 = 10;

impl ReadRelease {
    pub(crate) fn new(name: LockName, owner: Owner) -> Self {
        Self { channel: name.read_write_channel(), name, owner }
    }

    /// Returns whether any reader or writer is left. Adapts the lock's time to live to the longest
    /// of the readers' levels.
    fn others_are_left(&self, keyspace: &mut Keyspace) -> bool {
        let key = self.name.as_str();
        let mut fields = keyspace.fields(key);
        if fields.len() <= 1 {
            return false;
        }
        if keyspace.hash_get(key, MODE).unwrap_or_default().as_deref() != Some(Mode::Read.word()) {
            return true;
        }
        let others = fields.split_off(usize::from(FIRST_FIELDS).min(fields.len()));
        let mut longest = self.longest_of(keyspace, fields);
        let all = others.is_empty() || longest == 0;
        if longest == 0 {
            longest = self.longest_of(keyspace, others);
        }
        let lasts = keyspace.time_to_live(key);
        if longest > 0 && (lasts < longest || all && lasts > longest + MAX_TTL_EXCESS_MILLIS) {
            keyspace.expire(key, longest);
        }
        longest > 0
    }

    /// Returns the longest time to live of the levels of these fields, zero if there is no level.
    /// Removes readers without a level, which are dead.
    fn longest_of(&self, keyspace: &mut Keyspace, fields: Vec<(String, String)>) -> i64 {
        let mut longest = 0;
        for (field, count) in fields {
            let mut lasts = 0;
            for number in 1..=levels(&count) {
                lasts = lasts.max(keyspace.time_to_live(&level(&self.name, &field, number)));
            }
            if lasts == 0 && count.parse::<u64>().is_ok() {
                // The key is a hash, so this cannot fail.
                let _hash = keyspace.hash_delete(self.name.as_str(), &field);
            }
            longest = longest.max(lasts);
        }
        longest
    }
}

impl Operation for ReadRelease {
    type Reply = Released;

    fn request(&self) -> Request<'_> {
        Request::script(
            "release",
            &RELEASE,
            vec![self.name.as_str(), &self.channel],
            vec![
                Argument::Owner(&self.owner),
                Argument::Text(UNLOCKED),
                Argument::Publish,
                Argument::Number(i64::from(FIRST_FIELDS)),
            ],
        )
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        let (key, owner) = (self.name.as_str(), self.owner.to_string());
        let answer = if let Ok(Some(count)) = keyspace.hash_get(key, &owner) {
            // The key is a hash, so this cannot fail.
            let _hash = keyspace.hash_delete(key, &owner);
            // Like the script, which begins with the level above the highest of a living hold.
            for number in 1..=levels(&count) + 1 {
                keyspace.delete(&level(&self.name, &owner, number));
            }
            if !self.others_are_left(keyspace) {
                keyspace.delete(key);
                keyspace.publish(&self.channel, UNLOCKED);
            }
            1
        } else {
            // Something else removed the field and left the levels.
            let mut number = 1;
            while keyspace.delete(&level(&self.name, &owner, number)) {
                number += 1;
            }
            other_or_nothing(keyspace, key)
        };
        Ok(with_time(answer, keyspace))
    }
}
