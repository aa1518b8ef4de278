//! Writers of a read-write lock: acquire, release.

use std::sync::Arc;

use crate::model::lease::Lease;
use crate::model::name::LockName;
use crate::model::owner::Owner;
use crate::ops::acquire::Acquired;
use crate::ops::keyspace::{Keyspace, WrongType};
use crate::ops::operation::{ALL, Argument, Operation, Request, Script, UNLOCKED, WRITE};
use crate::ops::read_write::{MODE, Mode, longest_level};
use crate::ops::release::{Released, other_or_nothing, with_time};
use crate::ops::value::Value;

/// The field of a writer.
fn field(owner: &Owner) -> String {
    format!("{owner}{WRITE}")
}

/// Takes a write lock for a new owner.
#[derive(Clone, Debug)]
pub(crate) struct WriteAcquire {
    pub(crate) name: LockName,
    pub(crate) owner: Owner,
    pub(crate) lease: Lease,
}

static ACQUIRE: Script = Script::new(include_str!("scripts/write_acquire.lua"));

impl Operation for WriteAcquire {
    type Reply = Acquired;

    fn request(&self) -> Request<'_> {
        Request::script(
            "acquire",
            &ACQUIRE,
            vec![self.name.as_str()],
            vec![
                Argument::NotAfter,
                Argument::Writer(&self.owner),
                Argument::millis(self.lease.millis()),
            ],
        )
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        let (key, writer) = (self.name.as_str(), field(&self.owner));
        if !keyspace.hash_has(key, &writer)? {
            if keyspace.exists(key) {
                return Ok(Value::Integer(keyspace.time_to_live(key)));
            }
            keyspace.hash_set(key, &writer, 1)?;
        }
        keyspace.hash_set(key, MODE, Mode::Write.word())?;
        keyspace.prolong(key, self.lease.millis_i64());
        Ok(Value::Nil)
    }
}

/// Releases a writer.
#[derive(Clone, Debug)]
pub(crate) struct WriteRelease {
    name: LockName,
    channel: Arc<str>,
    owner: Owner,
}

static RELEASE: Script = Script::new(include_str!("scripts/write_release.lua"));

impl WriteRelease {
    pub(crate) fn new(name: LockName, owner: Owner) -> Self {
        Self { channel: name.read_write_channel(), name, owner }
    }
}

impl Operation for WriteRelease {
    type Reply = Released;

    fn request(&self) -> Request<'_> {
        Request::script(
            "release",
            &RELEASE,
            vec![self.name.as_str(), &self.channel],
            vec![
                Argument::Writer(&self.owner),
                Argument::Text(ALL),
                Argument::Text(UNLOCKED),
                Argument::Publish,
            ],
        )
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
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
        } else {
            other_or_nothing(keyspace, key)
        };
        Ok(with_time(answer, keyspace))
    }
}
