//! A job's runs: the slots already run, the attempts, and the fencing tokens.
//!
//! A run holds the lock of its slot. Beside the lock is a record: a hash with the owner of the
//! latest run, the number of attempts, and whether an attempt has succeeded. Only the lock's holder
//! writes the record, so a run without its lock records nothing. The exception is a client without
//! a reply to its begin, which gives the attempt back.
//!
//! An attempt counts when it begins: a job killing its process would otherwise be tried for ever.
//! Nobody records the death of a run: a dead run's owner does not hold the lock. The record
//! expires, so jobs do not leave a key for each night.
//!
//! Tokens belong to the job and not to the slot, as yesterday's run may still be at work. They are
//! at least the clock in microseconds, so the counter may expire with the records.

use std::sync::Arc;

use crate::model::lease::Lease;
use crate::model::name::LockName;
use crate::model::owner::Owner;
use crate::ops::fenced::next_token;
use crate::ops::keyspace::{Keyspace, WrongType};
use crate::ops::operation::{Argument, Operation, Request, Script, script};
use crate::ops::release::{Released, with_time};
use crate::ops::value::{FromReply, Unexpected, Value};

/// The keys of a slot of a job.
#[derive(Clone, Debug)]
pub(crate) struct JobKeys {
    pub(crate) lock: LockName,
    pub(crate) record: Arc<str>,
    /// The counter of fencing tokens of all slots.
    pub(crate) tokens: Arc<str>,
    /// The slots of the latest runs: a sorted set, by the begin of each slot's latest run.
    pub(crate) runs: Arc<str>,
}

/// The field of a record with the state of the latest run.
const STATE: &str = "state";
/// The field with the owner of the latest run.
const OWNER: &str = "owner";
/// The field with the number of attempts.
const ATTEMPTS: &str = "attempts";
/// The field with the fencing token of the latest run.
const TOKEN: &str = "token";
/// The field with the machine of the latest run.
const HOST: &str = "host";
/// The field with the begin of the latest run, in ms of the server's clock.
const STARTED: &str = "started";
/// The field with the end of the latest run, in ms of the server's clock; empty before the end.
const ENDED: &str = "ended";
/// The field with the exit code of the latest run; empty before the end, or without an exit code.
const EXIT: &str = "exit";
/// The field with the owners of the latest attempts, each followed by a blank, the latest first.
const COUNTED: &str = "counted";

/// The maximum length of the field [`COUNTED`]: about twenty owners. An attempt followed by twenty
/// newer attempts is not given back.
const COUNTED_BYTES: usize = 1024;

/// The state after a begin.
const RUNNING: &str = "running";
/// The state after an attempt has succeeded.
const DONE: &str = "done";
/// The state after the latest attempt has failed.
const FAILED: &str = "failed";

/// The maximum number of listed slots of a job.
const MOST_RUNS: usize = 100;

/// The maximum length of a listed slot, in bytes.
const LONGEST_LISTED: usize = 1024;

/// Begins a run.
static BEGIN: Script = script!("run_begin");
/// Gives an attempt back.
static GIVE_BACK: Script = script!("run_give_back");
/// Records the end of a run.
static FINISH: Script = script!("run_finish");
/// Reads the records of slots.
static READ: Script = script!("run_read");

/// Queries whether an attempt of the slot with this record has succeeded.
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

/// Begins a run of a slot, whose lock the owner holds.
#[derive(Clone, Debug)]
pub(crate) struct BeginRun {
    pub(crate) keys: JobKeys,
    pub(crate) slot: Arc<str>,
    pub(crate) owner: Owner,
    pub(crate) host: Arc<str>,
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
    /// The owner no longer holds the lock.
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
        let JobKeys { lock, record, tokens, runs } = &self.keys;
        Request::script(
            "begin a run",
            &BEGIN,
            vec![lock.as_str(), record, tokens, runs],
            vec![
                Argument::NotAfter,
                Argument::Owner(&self.owner),
                Argument::Number(self.max_attempts.into()),
                Argument::Number(self.retention.millis_i64()),
                Argument::Text(&self.host),
                Argument::Text(&self.slot),
            ],
        )
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        let JobKeys { lock, record, tokens, runs } = &self.keys;
        let owner = self.owner.to_string();
        if keyspace.hash_has(lock.as_str(), &owner) != Ok(true) {
            return Ok(Value::Integer(0));
        }
        if keyspace.hash_get(record, STATE)?.as_deref() == Some(DONE) {
            return Ok(Value::Integer(1));
        }
        let has_token = keyspace.hash_get(record, TOKEN)?.is_some();
        if !has_token || keyspace.hash_get(record, OWNER)?.as_ref() != Some(&owner) {
            let before: i64 = keyspace
                .hash_get(record, ATTEMPTS)?
                .and_then(|attempts| attempts.parse().ok())
                .unwrap_or(0);
            if before >= self.max_attempts.into() {
                return Ok(Value::Integer(2));
            }
            let now = keyspace.now().0;
            keyspace.expire(record, self.retention.millis_i64());
            if self.slot.len() <= LONGEST_LISTED {
                keyspace.sorted_set(runs, self.slot.as_bytes(), now)?;
                keyspace.sorted_keep_highest(runs, MOST_RUNS)?;
                keyspace.expire(runs, self.retention.millis_i64());
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
            keyspace.hash_set(record, HOST, &self.host)?;
            keyspace.hash_set(record, STARTED, now)?;
            keyspace.hash_set(record, ENDED, "")?;
            keyspace.hash_set(record, EXIT, "")?;
        }
        keyspace.expire(record, self.retention.millis_i64());
        keyspace.expire(tokens, self.retention.millis_i64());
        let mut field =
            |field| Ok(Value::Text(keyspace.hash_get(record, field)?.unwrap_or_default()));
        Ok(Value::Array(vec![field(ATTEMPTS)?, field(TOKEN)?]))
    }
}

/// Gives back the attempt of an owner whose run did not start. The request may be repeated any
/// number of times.
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

/// Records the end of a run if the owner still holds the lock. The reply says whether the end is
/// recorded.
#[derive(Clone, Debug)]
pub(crate) struct FinishRun {
    pub(crate) keys: JobKeys,
    pub(crate) owner: Owner,
    pub(crate) retention: Lease,
    /// Whether the attempt has succeeded. Otherwise the attempt has failed.
    pub(crate) is_done: bool,
    pub(crate) exit_code: Option<i32>,
}

impl FinishRun {
    /// Returns the state to record.
    fn state(&self) -> &'static str {
        if self.is_done { DONE } else { FAILED }
    }
}

impl Operation for FinishRun {
    type Reply = bool;

    fn request(&self) -> Request<'_> {
        let JobKeys { lock, record, .. } = &self.keys;
        Request::script(
            "record a run",
            &FINISH,
            vec![lock.as_str(), record],
            vec![
                Argument::Owner(&self.owner),
                Argument::Number(self.retention.millis_i64()),
                Argument::Text(self.state()),
                self.exit_code.map_or(Argument::Text(""), |code| Argument::Number(code.into())),
            ],
        )
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        let JobKeys { lock, record, .. } = &self.keys;
        let owner = self.owner.to_string();
        let is_recorded = keyspace.hash_get(record, STATE)?.as_deref() == Some(self.state())
            && keyspace.hash_get(record, OWNER)?.as_ref() == Some(&owner);
        if is_recorded {
            return Ok(Value::Integer(1));
        }
        if keyspace.hash_has(lock.as_str(), &owner) != Ok(true) {
            return Ok(Value::Integer(0));
        }
        let now = keyspace.now().0;
        keyspace.hash_set(record, STATE, self.state())?;
        keyspace.hash_set(record, OWNER, &owner)?;
        keyspace.hash_set(record, ENDED, now)?;
        let exit_code = self.exit_code.map(|code| code.to_string());
        keyspace.hash_set(record, EXIT, exit_code.unwrap_or_default())?;
        keyspace.expire(record, self.retention.millis_i64());
        Ok(Value::Integer(1))
    }
}

/// Lists the slots of a job's latest runs, the latest last.
#[derive(Clone, Debug)]
pub(crate) struct ListRuns(pub(crate) Arc<str>);

impl Operation for ListRuns {
    type Reply = Vec<String>;

    fn request(&self) -> Request<'_> {
        let mut request = Request::command("list the runs", "ZRANGE", &self.0);
        let most = i64::try_from(MOST_RUNS).unwrap_or(i64::MAX);
        request.arguments.extend([Argument::Number(-most), Argument::Number(-1)]);
        request
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        let text = |slot: Vec<u8>| Value::Text(String::from_utf8_lossy(&slot).into_owned());
        let slots = keyspace.sorted(&self.0)?;
        let latest = slots.len().saturating_sub(MOST_RUNS);
        Ok(Value::Array(slots.into_iter().skip(latest).map(|(slot, _)| text(slot)).collect()))
    }
}

impl FromReply for Vec<String> {
    fn from_reply(value: Value) -> Result<Self, Unexpected> {
        let Value::Array(texts) = value else { return Err(Unexpected(value)) };
        let text = |text| match text {
            Value::Text(text) => Ok(text),
            other => Err(Unexpected(other)),
        };
        texts.into_iter().map(text).collect()
    }
}

/// Reads the records of some slots of a job.
#[derive(Clone, Debug)]
pub(crate) struct ReadRuns {
    /// The lock and the record of each slot.
    pub(crate) keys: Vec<(Arc<str>, Arc<str>)>,
}

/// A slot's record of the latest run. Unknown numbers and malformed texts are `None`, or zero for
/// `attempts` and `token`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RunFields {
    /// `true` after an attempt has succeeded, `false` if the latest attempt has failed, `None` if
    /// the latest attempt has not ended.
    pub(crate) success: Option<bool>,
    pub(crate) owner: String,
    /// Whether `owner` holds the lock of the slot.
    pub(crate) is_held: bool,
    pub(crate) attempts: u32,
    pub(crate) token: u64,
    pub(crate) host: Option<String>,
    /// In milliseconds of the server's clock, as `ended`.
    pub(crate) started: Option<u64>,
    pub(crate) ended: Option<u64>,
    pub(crate) exit_code: Option<i32>,
}

/// The fields in the reply of [`READ`] for a slot. After the fields, the reply says whether the
/// owner holds the lock.
const FIELDS: [&str; 8] = [STATE, OWNER, ATTEMPTS, TOKEN, HOST, STARTED, ENDED, EXIT];

impl RunFields {
    /// Decodes one slot's part of the reply. `None` if there is no record, or if the record is not
    /// a job's.
    fn from_value(value: &Value) -> Option<Self> {
        let Value::Array(parts) = value else { return None };
        let (Value::Integer(held), texts) = parts.split_last()? else { return None };
        let text = |place: usize| match texts.get(place) {
            Some(Value::Text(text)) => Some(text.as_str()),
            _ => None,
        };
        let (state, owner) = (text(0)?, text(1)?);
        let success = match state {
            DONE => Some(true),
            FAILED => Some(false),
            _ => None,
        };
        // A begin by an older version does not clear the end of the run before.
        let of_end = |place| text(place).filter(|_| success.is_some());
        Some(Self {
            success,
            owner: owner.to_owned(),
            is_held: *held == 1,
            attempts: text(2)?.parse().unwrap_or(0),
            token: text(3)?.parse().unwrap_or(0),
            host: text(4).filter(|host| !host.is_empty()).map(str::to_owned),
            started: text(5).and_then(|millis| millis.parse().ok()),
            ended: of_end(6).and_then(|millis| millis.parse().ok()),
            exit_code: of_end(7).and_then(|code| code.parse().ok()),
        })
    }
}

impl FromReply for Vec<Option<RunFields>> {
    fn from_reply(value: Value) -> Result<Self, Unexpected> {
        match value {
            Value::Array(runs) => Ok(runs.iter().map(RunFields::from_value).collect()),
            other => Err(Unexpected(other)),
        }
    }
}

impl Operation for ReadRuns {
    type Reply = Vec<Option<RunFields>>;

    fn request(&self) -> Request<'_> {
        let keys = self.keys.iter().flat_map(|(lock, record)| [&**lock, &**record]);
        Request::script("read the runs", &READ, keys.collect(), Vec::new())
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        let mut read = |(lock, record): &(Arc<str>, Arc<str>)| {
            let mut parts = Vec::new();
            for field in FIELDS {
                match keyspace.hash_get(record, field) {
                    Ok(text) => parts.push(text.unwrap_or_default()),
                    Err(WrongType(_)) => return Value::Array(Vec::new()),
                }
            }
            let [state, owner, ..] = parts.as_slice() else { return Value::Array(Vec::new()) };
            if state.is_empty() {
                return Value::Array(Vec::new());
            }
            let is_held = keyspace.hash_has(lock, owner) == Ok(true);
            let mut parts: Vec<Value> = parts.into_iter().map(Value::Text).collect();
            parts.push(Value::Integer(is_held.into()));
            Value::Array(parts)
        };
        Ok(Value::Array(self.keys.iter().map(&mut read).collect()))
    }
}
