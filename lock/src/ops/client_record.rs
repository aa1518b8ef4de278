//! The record of a client: label, process, start, long waits and values of leaders.
//!
//! An owner on the server names only a client and a number. Status queries read the rest from the
//! record.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::ops::keyspace::{Keyspace, WrongType};
use crate::ops::operation::{Argument, Operation, Request, Script, script};
use crate::ops::value::{FromReply, Unexpected, Value};

/// Returns the key of a client's record, and the name of the channel of requests to this client,
/// such as the release of a cached lock. The key has no prefix: readers know only the client's
/// identity.
pub(crate) fn client_record_key(client: impl fmt::Display) -> Arc<str> {
    Arc::from(format!("wheellock_client:{client}"))
}

/// Writes a client's record.
#[derive(Clone, Debug)]
pub(crate) struct WriteClientRecord {
    pub(crate) key: Arc<str>,
    pub(crate) label: Arc<str>,
    pub(crate) process: u32,
    /// How long ago the client started.
    pub(crate) age: Duration,
    /// The record's time to live. Zero removes the record.
    pub(crate) lifetime: Duration,
    /// Whether locks stay with the client between two uses.
    pub(crate) caches: bool,
    /// The [field](value_field) and the value of each leader of the client.
    pub(crate) values: Vec<(String, Arc<str>)>,
    /// The threads with long waits and the awaited locks, as
    /// [encoded](crate::ops::long_waits::encode).
    pub(crate) waits: Option<String>,
}

/// Returns the field of a leader's value in the client record. `owner` is the owner of the leader's
/// hold.
pub(crate) fn value_field(owner: &str) -> String {
    format!("value:{owner}")
}

/// Writes or removes a client record.
static WRITE: Script = script!("client_record");

impl Operation for WriteClientRecord {
    /// When the record was written, in ms of the server's clock.
    type Reply = i64;

    fn request(&self) -> Request<'_> {
        let mut arguments = vec![
            Argument::NotAfter,
            Argument::Text(&self.label),
            Argument::Number(i64::from(self.process)),
            Argument::millis(millis(self.age)),
            Argument::millis(millis(self.lifetime)),
            Argument::Number(self.caches.into()),
        ];
        for (field, value) in &self.values {
            arguments.extend([Argument::Text(field), Argument::Text(value)]);
        }
        if let Some(waits) = &self.waits {
            arguments.extend([Argument::Text(WAITS), Argument::Text(waits)]);
        }
        Request::script("write the client's record", &WRITE, vec![&*self.key], arguments)
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        let age = i64::try_from(millis(self.age)).unwrap_or(i64::MAX);
        let started = keyspace.now().0.saturating_sub(age);
        // A key of another type is an error, and stays.
        keyspace.hash_get(&self.key, LABEL)?;
        keyspace.delete(&self.key);
        keyspace.hash_set(&self.key, LABEL, &self.label)?;
        keyspace.hash_set(&self.key, PROCESS, self.process)?;
        keyspace.hash_set(&self.key, STARTED, started)?;
        keyspace.hash_set(&self.key, CACHES, u8::from(self.caches))?;
        for (field, value) in &self.values {
            keyspace.hash_set(&self.key, field, value)?;
        }
        if let Some(waits) = &self.waits {
            keyspace.hash_set(&self.key, WAITS, waits)?;
        }
        keyspace.hash_set(&self.key, WRITTEN, keyspace.now().0)?;
        keyspace.expire(&self.key, i64::try_from(millis(self.lifetime)).unwrap_or(i64::MAX));
        Ok(Value::Integer(keyspace.now().0))
    }
}

/// The field of a client record with the client's label.
const LABEL: &str = "label";
/// The field with the number of the client's process.
const PROCESS: &str = "process";
/// The field with the start of the client, in ms of the server's clock.
const STARTED: &str = "started";
/// The field with 1 if locks stay with the client between two uses, else 0.
const CACHES: &str = "caches";
/// The field with the long waits, as encoded.
const WAITS: &str = "waits";
/// The field with the time of the write, in ms of the server's clock.
const WRITTEN: &str = "written";

/// Reads a client's record.
#[derive(Clone, Debug)]
pub(crate) struct ReadClientRecord(pub(crate) Arc<str>);

/// The content of a client's record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientRecord {
    pub(crate) label: String,
    pub(crate) process: u32,
    /// How long ago the client started, by the server's clock.
    pub(crate) age: Duration,
    /// Whether locks may stay with the client between two uses.
    pub(crate) caches: bool,
    /// The threads with long waits, for [`decode`]; empty if there is none.
    ///
    /// [`decode`]: crate::ops::long_waits::decode
    pub(crate) waits: String,
    /// When the record was written, in ms of the server's clock. Zero for a client of an older
    /// version.
    pub(crate) written: i64,
}

/// Reads a client record.
static READ: Script = script!("client_record_of");

impl FromReply for Option<ClientRecord> {
    fn from_reply(value: Value) -> Result<Self, Unexpected> {
        if let Value::Array(parts) = &value {
            match parts.as_slice() {
                [] => return Ok(None),
                [
                    Value::Text(label),
                    Value::Integer(process),
                    Value::Integer(age),
                    Value::Integer(caches),
                    Value::Text(waits),
                    Value::Integer(written),
                ] => {
                    let label = label.clone();
                    let process = u32::try_from(*process).unwrap_or(0);
                    // The server's clock may have been set back since the record was written.
                    let age = Duration::from_millis(u64::try_from(*age).unwrap_or(0));
                    let (caches, waits, written) = (*caches == 1, waits.clone(), *written);
                    return Ok(Some(ClientRecord { label, process, age, caches, waits, written }));
                }
                _ => {}
            }
        }
        Err(Unexpected(value))
    }
}

impl Operation for ReadClientRecord {
    type Reply = Option<ClientRecord>;

    fn request(&self) -> Request<'_> {
        Request::script("read a client's record", &READ, vec![&*self.0], Vec::new())
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        let label = keyspace.hash_get(&self.0, LABEL)?;
        let mut number = |field| {
            let text = keyspace.hash_get(&self.0, field)?;
            Ok(text.and_then(|text| text.parse::<i64>().ok()))
        };
        let (process, started) = (number(PROCESS)?, number(STARTED)?);
        let (caches, written) = (number(CACHES)?.unwrap_or(0), number(WRITTEN)?.unwrap_or(0));
        let waits = keyspace.hash_get(&self.0, WAITS)?.unwrap_or_default();
        let parts = match (label, process, started) {
            (Some(label), Some(process), Some(started)) => {
                let age = keyspace.now().0 - started;
                let numbers = [process, age, caches].map(Value::Integer);
                let [process, age, caches] = numbers;
                vec![
                    Value::Text(label),
                    process,
                    age,
                    caches,
                    Value::Text(waits),
                    Value::Integer(written),
                ]
            }
            _ => Vec::new(),
        };
        Ok(Value::Array(parts))
    }
}

impl FromReply for Option<String> {
    fn from_reply(value: Value) -> Result<Self, Unexpected> {
        match value {
            Value::Nil => Ok(None),
            Value::Text(text) => Ok(Some(text)),
            other => Err(Unexpected(other)),
        }
    }
}

/// Reads a leader's value from the record of the leader's client.
#[derive(Clone, Debug)]
pub(crate) struct ReadValue {
    pub(crate) key: Arc<str>,
    pub(crate) field: String,
}

impl Operation for ReadValue {
    type Reply = Option<String>;

    fn request(&self) -> Request<'_> {
        let mut request = Request::command("read a leader's value", "HGET", &self.key);
        request.arguments.push(Argument::Text(&self.field));
        request
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        Ok(keyspace.hash_get(&self.key, &self.field)?.map_or(Value::Nil, Value::Text))
    }
}

/// Returns whole milliseconds of `duration`; saturates.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
