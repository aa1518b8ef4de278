//! A writer's part of a read-write lock: he comes in, nests, and goes.

use std::sync::Arc;

use super::acquire::{Acquired, read_acquired};
use super::operation::{ALL, Argument, Form, Operation, Script, UNLOCKED, WRITE};
use super::read_write::{MODE, Mode, longest_level};
use super::recount::{Recount, Recounted};
use super::release::{Released, read_released};
use crate::keyspace::Keyspace;
use crate::lease::Lease;
use crate::name::LockName;
use crate::owner::Owner;
use crate::value::{ServerTime, Unexpected, Value};

/// The field of a writer.
fn field(owner: &Owner) -> String {
    format!("{owner}{WRITE}")
}

/// Lets a new writer in.
#[derive(Clone, Debug)]
pub(crate) struct WriteAcquire {
    pub(crate) name: LockName,
    pub(crate) owner: Owner,
    pub(crate) lease: Lease,
}

static ACQUIRE: Script = Script::new(include_str!("write_acquire.lua"));

impl Operation for WriteAcquire {
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
            Argument::Writer(&self.owner),
            Argument::millis(self.lease.millis()),
        ]
    }

    fn decode(&self, value: Value) -> Result<Acquired, Unexpected> {
        read_acquired(value)
    }

    fn apply(&self, keyspace: &mut Keyspace, not_after: ServerTime) -> Value {
        if let Some(late) = keyspace.late(not_after) {
            return late;
        }
        let (key, writer) = (self.name.as_str(), field(&self.owner));
        match keyspace.hash_has(key, &writer) {
            Err(_) => return Value::wrong_type(),
            Ok(true) => {}
            Ok(false) if keyspace.exists(key) => {
                return Value::Integer(keyspace.time_to_live(key));
            }
            Ok(false) => {
                if keyspace.hash_set(key, &writer, 1).is_err() {
                    return Value::wrong_type();
                }
            }
        }
        if keyspace.hash_set(key, MODE, Mode::Write.word()).is_err() {
            return Value::wrong_type();
        }
        keyspace.prolong(key, self.lease.in_millis());
        Value::Nil
    }

    fn may_grant(&self) -> bool {
        true
    }

    fn grants(&self, value: &Value) -> bool {
        self.decode(value.clone()).is_ok_and(Acquired::is_granted)
    }
}

/// Writes a writer's count.
#[derive(Clone, Debug)]
pub(crate) struct WriteRecount(pub(crate) Recount);

impl Operation for WriteRecount {
    type Reply = Recounted;

    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn form(&self) -> Form {
        self.0.form()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys()
    }

    fn arguments(&self, not_after: ServerTime) -> Vec<Argument<'_>> {
        let with_ending = |argument| match argument {
            Argument::Owner(owner) => Argument::Writer(owner),
            other => other,
        };
        self.0.arguments(not_after).into_iter().map(with_ending).collect()
    }

    fn decode(&self, value: Value) -> Result<Recounted, Unexpected> {
        self.0.decode(value)
    }

    fn apply(&self, keyspace: &mut Keyspace, not_after: ServerTime) -> Value {
        self.0.apply_to(&field(&self.0.owner), keyspace, not_after)
    }
}

/// Lets a writer go.
#[derive(Clone, Debug)]
pub(crate) struct WriteRelease {
    name: LockName,
    channel: Arc<str>,
    owner: Owner,
}

static RELEASE: Script = Script::new(include_str!("write_release.lua"));

impl WriteRelease {
    pub(crate) fn new(name: LockName, owner: Owner) -> Self {
        Self { channel: name.read_write_channel(), name, owner }
    }
}

impl Operation for WriteRelease {
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
            Argument::Writer(&self.owner),
            Argument::Text(ALL),
            Argument::Text(UNLOCKED),
            Argument::Publish,
        ]
    }

    fn decode(&self, value: Value) -> Result<Released, Unexpected> {
        read_released(value)
    }

    fn apply(&self, keyspace: &mut Keyspace, _not_after: ServerTime) -> Value {
        let (key, writer) = (self.name.as_str(), field(&self.owner));
        let answer = if keyspace.hash_delete(key, &writer) == Ok(true) {
            let longest = longest_level(keyspace, &self.name);
            if longest > 0 && keyspace.hash_set(key, MODE, Mode::Read.word()).is_ok() {
                keyspace.expire(key, longest);
            } else {
                keyspace.delete(key);
            }
            keyspace.publish(&self.channel, ALL);
            keyspace.publish(&self.channel, UNLOCKED);
            1
        } else if keyspace.exists(key) {
            -1
        } else {
            0
        };
        Value::Array(vec![Value::Integer(answer), Value::Integer(keyspace.now().0)])
    }
}
