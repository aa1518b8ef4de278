//! A reader's part of a read-write lock: he comes in, nests, and goes.

use std::sync::Arc;

use super::acquire::{Acquired, read_acquired};
use super::operation::{Argument, Form, Operation, Script, UNLOCKED, WRITE};
use super::read_write::{MODE, Mode, level, levels, prolong_level};
use super::recount::{Recounted, recounted};
use super::release::{Released, read_released};
use crate::keyspace::{Keyspace, WrongType};
use crate::lease::Lease;
use crate::name::LockName;
use crate::owner::Owner;
use crate::value::{ServerTime, Unexpected, Value};

/// Lets a new reader in.
#[derive(Clone, Debug)]
pub(crate) struct ReadAcquire {
    pub(crate) name: LockName,
    pub(crate) owner: Owner,
    pub(crate) lease: Lease,
    /// The writer under whose hold he may read.
    pub(crate) under: Option<Owner>,
}

static ACQUIRE: Script = Script::new(include_str!("read_acquire.lua"));

impl ReadAcquire {
    fn is_open(&self, keyspace: &mut Keyspace, owner: &str) -> Result<bool, WrongType> {
        let key = self.name.as_str();
        let Some(mode) = keyspace.hash_get(key, MODE)? else {
            return Ok(!keyspace.exists(key));
        };
        if mode == Mode::Read.word() {
            return Ok(true);
        }
        let under = self.under.as_ref().map(|writer| format!("{writer}{WRITE}"));
        let under = under.is_some_and(|field| keyspace.hash_has(key, &field) == Ok(true));
        Ok(mode == Mode::Write.word() && (under || keyspace.hash_has(key, owner)?))
    }
}

impl Operation for ReadAcquire {
    type Reply = Acquired;

    fn name(&self) -> &'static str {
        "acquire"
    }

    fn form(&self) -> Form {
        Form::Script(&ACQUIRE)
    }

    fn keys(&self) -> Vec<&str> {
        vec![self.name.as_str()]
    }

    fn arguments(&self, not_after: ServerTime) -> Vec<Argument<'_>> {
        vec![
            Argument::Number(not_after.0),
            Argument::Owner(&self.owner),
            Argument::millis(self.lease.millis()),
            self.under.as_ref().map_or(Argument::Text(""), Argument::Writer),
        ]
    }

    fn decode(&self, value: Value) -> Result<Acquired, Unexpected> {
        read_acquired(value)
    }

    fn apply(&self, keyspace: &mut Keyspace, not_after: ServerTime) -> Value {
        if let Some(late) = keyspace.late(not_after) {
            return late;
        }
        let (key, owner) = (self.name.as_str(), self.owner.to_string());
        match self.is_open(keyspace, &owner) {
            Err(_) => return Value::wrong_type(),
            Ok(false) => return Value::Integer(keyspace.time_to_live(key)),
            Ok(true) => {}
        }
        for (field, value) in [(MODE, Mode::Read.word()), (owner.as_str(), "1")] {
            if keyspace.hash_has(key, field) == Ok(false)
                && keyspace.hash_set(key, field, value).is_err()
            {
                return Value::wrong_type();
            }
        }
        let lease = self.lease.in_millis();
        keyspace.prolong(key, lease);
        prolong_level(keyspace, &level(&self.name, &owner, 1), lease);
        Value::Nil
    }

    fn may_grant(&self) -> bool {
        true
    }

    fn grants(&self, value: &Value) -> bool {
        self.decode(value.clone()).is_ok_and(Acquired::is_granted)
    }
}

/// Writes a reader's count.
#[derive(Clone, Debug)]
pub(crate) struct ReadRecount {
    pub(crate) name: LockName,
    pub(crate) owner: Owner,
    pub(crate) count: u32,
    /// The lease of a hold that was nested; none when a nested guard is released.
    pub(crate) lease: Option<Lease>,
}

static RECOUNT: Script = Script::new(include_str!("read_recount.lua"));

impl Operation for ReadRecount {
    type Reply = Recounted;

    fn name(&self) -> &'static str {
        "recount"
    }

    fn form(&self) -> Form {
        Form::Script(&RECOUNT)
    }

    fn keys(&self) -> Vec<&str> {
        vec![self.name.as_str()]
    }

    fn arguments(&self, not_after: ServerTime) -> Vec<Argument<'_>> {
        vec![
            Argument::Number(not_after.0),
            Argument::Owner(&self.owner),
            Argument::Number(i64::from(self.count)),
            Argument::Number(self.lease.map_or(0, Lease::in_millis)),
        ]
    }

    fn decode(&self, value: Value) -> Result<Recounted, Unexpected> {
        recounted(value)
    }

    fn apply(&self, keyspace: &mut Keyspace, not_after: ServerTime) -> Value {
        if let Some(late) = keyspace.late(not_after) {
            return late;
        }
        let (key, owner) = (self.name.as_str(), self.owner.to_string());
        let had = match keyspace.hash_get(key, &owner) {
            Err(_) => return Value::wrong_type(),
            Ok(None) => return Value::Integer(0),
            Ok(Some(had)) => levels(&had),
        };
        let (count, lease) = (u64::from(self.count), self.lease.map_or(0, Lease::in_millis));
        keyspace.prolong(key, lease);
        if keyspace.hash_set(key, &owner, count).is_err() {
            return Value::wrong_type();
        }
        let level = |number| level(&self.name, &owner, number);
        if lease > 0 {
            for number in count.min(had + 1)..=count {
                prolong_level(keyspace, &level(number), lease);
            }
        }
        let mut longest = 0;
        keyspace.delete(&level(had.max(count) + 1));
        for number in count + 1..=had {
            longest = longest.max(keyspace.time_to_live(&level(number)));
            keyspace.delete(&level(number));
        }
        if longest > 0 && longest > keyspace.time_to_live(&level(1)) {
            prolong_level(keyspace, &level(1), longest);
        }
        Value::Integer(1)
    }
}

/// Lets a reader go.
#[derive(Clone, Debug)]
pub(crate) struct ReadRelease {
    name: LockName,
    channel: Arc<str>,
    owner: Owner,
}

static RELEASE: Script = Script::new(include_str!("read_release.lua"));

/// What the lock's time to live may be ahead of the longest level's, in milliseconds.
const CREEP: i64 = 50;

/// At how many fields a leave looks, with that of the mode: enough for every lock that few read.
const FEW: u8 = 10;

impl ReadRelease {
    pub(crate) fn new(name: LockName, owner: Owner) -> Self {
        Self { channel: name.read_write_channel(), name, owner }
    }

    /// Whether others are left. Sees to it that the lock lives as long as they do.
    fn others_are_left(&self, keyspace: &mut Keyspace) -> bool {
        let key = self.name.as_str();
        let mut fields = keyspace.fields(key);
        if fields.len() <= 1 {
            return false;
        }
        if keyspace.hash_get(key, MODE).unwrap_or_default().as_deref() != Some(Mode::Read.word()) {
            return true;
        }
        let others = fields.split_off(usize::from(FEW).min(fields.len()));
        let mut longest = self.longest_of(keyspace, fields);
        let all = others.is_empty() || longest == 0;
        if longest == 0 {
            longest = self.longest_of(keyspace, others);
        }
        let lasts = keyspace.time_to_live(key);
        if longest > 0 && (lasts < longest || all && lasts > longest + CREEP) {
            keyspace.expire(key, longest);
        }
        longest > 0
    }

    /// How long the longest level of these fields lasts; zero if none does. A reader without one is dead, and goes.
    fn longest_of(&self, keyspace: &mut Keyspace, fields: Vec<(String, String)>) -> i64 {
        let mut longest = 0;
        for (field, count) in fields {
            let mut lasts = 0;
            for number in 1..=levels(&count) {
                lasts = lasts.max(keyspace.time_to_live(&level(&self.name, &field, number)));
            }
            if lasts == 0 && count.parse::<u64>().is_ok() {
                // It is a hash: it has that field.
                let _hash = keyspace.hash_delete(self.name.as_str(), &field);
            }
            longest = longest.max(lasts);
        }
        longest
    }
}

impl Operation for ReadRelease {
    type Reply = Released;

    fn name(&self) -> &'static str {
        "release"
    }

    fn form(&self) -> Form {
        Form::Script(&RELEASE)
    }

    fn keys(&self) -> Vec<&str> {
        vec![self.name.as_str(), &self.channel]
    }

    fn arguments(&self, _not_after: ServerTime) -> Vec<Argument<'_>> {
        vec![
            Argument::Owner(&self.owner),
            Argument::Text(UNLOCKED),
            Argument::Publish,
            Argument::Number(i64::from(FEW)),
        ]
    }

    fn decode(&self, value: Value) -> Result<Released, Unexpected> {
        read_released(value)
    }

    fn apply(&self, keyspace: &mut Keyspace, _not_after: ServerTime) -> Value {
        let (key, owner) = (self.name.as_str(), self.owner.to_string());
        let answer = if let Ok(Some(count)) = keyspace.hash_get(key, &owner) {
            // It is a hash: it has that field.
            let _hash = keyspace.hash_delete(key, &owner);
            for number in 1..=levels(&count) {
                keyspace.delete(&level(&self.name, &owner, number));
            }
            if !self.others_are_left(keyspace) {
                keyspace.delete(key);
                keyspace.publish(&self.channel, UNLOCKED);
            }
            1
        } else {
            // Whoever took the field away has left the levels.
            let mut number = 1;
            while keyspace.delete(&level(&self.name, &owner, number)) {
                number += 1;
            }
            if keyspace.exists(key) { -1 } else { 0 }
        };
        Value::Array(vec![Value::Integer(answer), Value::Integer(keyspace.now().0)])
    }
}
