//! A job's runs: which slots have run, how often one was tried, and the fencing token of a run.
//!
//! A run holds a lock of its slot. Beside it is a record: a hash with the owner of the latest run,
//! the number of attempts, and whether one has succeeded. Only the holder of the lock writes it,
//! and a client whose begin got no reply, which gives its attempt back (DESIGN: jobs).

use std::sync::Arc;

use crate::model::lease::Lease;
use crate::model::name::LockName;
use crate::model::owner::Owner;
use crate::ops::fenced::next_token;
use crate::ops::keyspace::{Keyspace, WrongType};
use crate::ops::operation::{Argument, Operation, Request, Script, script};
use crate::ops::release::{Released, with_time};
use crate::ops::value::{FromReply, Unexpected, Value};

/// The keys of one slot of a job.
#[derive(Clone, Debug)]
pub(crate) struct JobKeys {
    pub(crate) lock: LockName,
    pub(crate) record: Arc<str>,
    /// The counter of fencing tokens of all slots.
    pub(crate) tokens: Arc<str>,
}

/// The fields of a record.
const STATE: &str = "state";
const OWNER: &str = "owner";
const ATTEMPTS: &str = "attempts";
const TOKEN: &str = "token";
/// The owners of the latest attempts, each followed by a blank, the latest first.
const COUNTED: &str = "counted";

/// The length of [`COUNTED`]: about twenty owners. An attempt that twenty others have followed is
/// not given back.
const COUNTED_BYTES: usize = 1024;

/// The states.
const RUNNING: &str = "running";
const DONE: &str = "done";

static BEGIN: Script = script!("run_begin");
static GIVE_BACK: Script = script!("run_give_back");
static FINISH: Script = script!("run_finish");

/// Asks whether the slot has run.
#[derive(Clone, Debug)]
pub(crate) struct HasRun(pub(crate) Arc<str>);

impl Operation for HasRun {
    type Reply = bool;

    fn request(&self) -> Request<'_> {
        let mut request = Request::command("ask whether it has run", "HGET", &self.0);
        request.arguments.push(Argument::Text(STATE));
        request
    }

    fn decode(&self, value: Value) -> Result<bool, Unexpected> {
        match value {
            Value::Nil => Ok(false),
            Value::Text(state) => Ok(state == DONE),
            other => Err(Unexpected(other)),
        }
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        Ok(keyspace.hash_get(&self.0, STATE)?.map_or(Value::Nil, Value::Text))
    }
}

/// Begins a run of a slot whose lock the owner has.
#[derive(Clone, Debug)]
pub(crate) struct BeginRun {
    pub(crate) keys: JobKeys,
    pub(crate) owner: Owner,
    pub(crate) max_attempts: u32,
    pub(crate) retention: Lease,
}

/// Whether a run may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunBegun {
    Begun {
        attempt: u32,
        token: u64,
    },
    RanAlready,
    AttemptsUsedUp,
    /// The owner does not have the lock any more.
    NotHeld,
}

impl FromReply for RunBegun {
    fn from_reply(value: Value) -> Result<Self, Unexpected> {
        let begun = match &value {
            Value::Integer(0) => Some(Self::NotHeld),
            Value::Integer(1) => Some(Self::RanAlready),
            Value::Integer(2) => Some(Self::AttemptsUsedUp),
            Value::Array(parts) => match parts.as_slice() {
                [Value::Text(attempt), Value::Text(token)] => attempt
                    .parse()
                    .ok()
                    .zip(token.parse().ok())
                    .map(|(attempt, token)| Self::Begun { attempt, token }),
                _ => None,
            },
            _ => None,
        };
        begun.ok_or(Unexpected(value))
    }
}

impl Operation for BeginRun {
    type Reply = RunBegun;

    fn request(&self) -> Request<'_> {
        let JobKeys { lock, record, tokens } = &self.keys;
        Request::script(
            "begin a run",
            &BEGIN,
            vec![lock.as_str(), record, tokens],
            vec![
                Argument::NotAfter,
                Argument::Owner(&self.owner),
                Argument::Number(self.max_attempts.into()),
                Argument::Number(self.retention.millis_i64()),
            ],
        )
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        let JobKeys { lock, record, tokens } = &self.keys;
        let owner = self.owner.to_string();
        if keyspace.hash_has(lock.as_str(), &owner) != Ok(true) {
            return Ok(Value::Integer(0));
        }
        if keyspace.hash_get(record, STATE)?.as_deref() == Some(DONE) {
            return Ok(Value::Integer(1));
        }
        if keyspace.hash_get(record, OWNER)?.as_ref() != Some(&owner) {
            let before: i64 = keyspace
                .hash_get(record, ATTEMPTS)?
                .and_then(|attempts| attempts.parse().ok())
                .unwrap_or(0);
            if before >= self.max_attempts.into() {
                return Ok(Value::Integer(2));
            }
            next_token(keyspace, tokens)?;
            let token = keyspace.text_get(tokens)?.unwrap_or_default();
            keyspace.hash_set(record, STATE, RUNNING)?;
            keyspace.hash_set(record, OWNER, &owner)?;
            keyspace.hash_set(record, ATTEMPTS, before + 1)?;
            keyspace.hash_set(record, TOKEN, token)?;
            let counted = keyspace.hash_get(record, COUNTED)?.unwrap_or_default();
            let mut counted = format!("{owner} {counted}");
            // Owners are ASCII.
            counted.truncate(COUNTED_BYTES);
            keyspace.hash_set(record, COUNTED, counted)?;
        }
        keyspace.expire(record, self.retention.millis_i64());
        keyspace.expire(tokens, self.retention.millis_i64());
        let mut field =
            |field| Ok(Value::Text(keyspace.hash_get(record, field)?.unwrap_or_default()));
        Ok(Value::Array(vec![field(ATTEMPTS)?, field(TOKEN)?]))
    }
}

/// Gives back the attempt of an owner whose run did not start. It may be sent any number of times.
#[derive(Clone, Debug)]
pub(crate) struct GiveBackAttempt {
    pub(crate) record: Arc<str>,
    pub(crate) owner: Owner,
}

impl Operation for GiveBackAttempt {
    type Reply = Released;

    fn request(&self) -> Request<'_> {
        Request::script(
            "give an attempt back",
            &GIVE_BACK,
            vec![&self.record],
            vec![Argument::Owner(&self.owner)],
        )
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        let counted = keyspace.hash_get(&self.record, COUNTED).ok().flatten().unwrap_or_default();
        let entry = format!("{} ", self.owner);
        let is_counted = counted.contains(&entry);
        if is_counted {
            let attempts: i64 = keyspace
                .hash_get(&self.record, ATTEMPTS)?
                .and_then(|attempts| attempts.parse().ok())
                .unwrap_or(0);
            keyspace.hash_set(&self.record, COUNTED, counted.replacen(&entry, "", 1))?;
            keyspace.hash_set(&self.record, ATTEMPTS, attempts - 1)?;
        }
        Ok(with_time(is_counted.into(), keyspace))
    }
}

/// Records that a slot has run, if the owner still has its lock. False if it does not.
#[derive(Clone, Debug)]
pub(crate) struct FinishRun {
    pub(crate) keys: JobKeys,
    pub(crate) owner: Owner,
    pub(crate) retention: Lease,
}

impl Operation for FinishRun {
    type Reply = bool;

    fn request(&self) -> Request<'_> {
        let JobKeys { lock, record, .. } = &self.keys;
        Request::script(
            "record a run",
            &FINISH,
            vec![lock.as_str(), record],
            vec![Argument::Owner(&self.owner), Argument::Number(self.retention.millis_i64())],
        )
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        let JobKeys { lock, record, .. } = &self.keys;
        let owner = self.owner.to_string();
        let is_done = keyspace.hash_get(record, STATE)?.as_deref() == Some(DONE)
            && keyspace.hash_get(record, OWNER)?.as_ref() == Some(&owner);
        if is_done {
            return Ok(Value::Integer(1));
        }
        if keyspace.hash_has(lock.as_str(), &owner) != Ok(true) {
            return Ok(Value::Integer(0));
        }
        keyspace.hash_set(record, STATE, DONE)?;
        keyspace.hash_set(record, OWNER, &owner)?;
        keyspace.expire(record, self.retention.millis_i64());
        Ok(Value::Integer(1))
    }
}
