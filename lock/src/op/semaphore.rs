//! The operations of semaphores, whose permits are a number: take, undo, add, make, drain.

use std::sync::Arc;

use super::operation::{Argument, Form, Operation, Script};
use super::release::{Found, Released};
use super::request::Request;
use crate::keyspace::{Keyspace, WrongType};
use crate::name::LockName;
use crate::value::{ServerTime, Unexpected, Value};

/// Java counts permits with 32 bits.
const MOST: i64 = i32::MAX as i64;
const LEAST: i64 = i32::MIN as i64;

static ACQUIRE: Script = Script::new(include_str!("semaphore_acquire.lua"));
static UNDO: Script = Script::new(include_str!("semaphore_undo.lua"));
static ADD: Script = Script::new(include_str!("semaphore_add.lua"));
static SET: Script = Script::new(include_str!("semaphore_set.lua"));
static DRAIN: Script = Script::new(include_str!("semaphore_drain.lua"));

/// Takes permits, if there are enough.
#[derive(Clone, Debug)]
pub(crate) struct TakePermits {
    pub(crate) name: LockName,
    pub(crate) permits: u32,
    pub(crate) request: Request,
}

/// How a try to take permits went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) granted: bool,
    /// How many are left for others.
    pub(crate) left: i64,
}

impl Operation for TakePermits {
    type Reply = Taken;

    fn name(&self) -> &'static str {
        "acquire"
    }

    fn form(&self) -> Form {
        Form::Script(&ACQUIRE)
    }

    fn keys(&self) -> Vec<&str> {
        vec![self.name.as_str(), self.request.key()]
    }

    fn arguments(&self, not_after: ServerTime) -> Vec<Argument<'_>> {
        vec![
            Argument::Number(not_after.0),
            Argument::Number(i64::from(self.permits)),
            self.request.remembered(),
        ]
    }

    fn decode(&self, value: Value) -> Result<Taken, Unexpected> {
        match value {
            Value::Array(parts) => match parts.as_slice() {
                [Value::Integer(granted @ (0 | 1)), Value::Integer(left)] => {
                    Ok(Taken { granted: *granted == 1, left: *left })
                }
                _ => Err(Unexpected(Value::Array(parts))),
            },
            other => Err(Unexpected(other)),
        }
    }

    fn apply(&self, keyspace: &mut Keyspace, not_after: ServerTime) -> Value {
        keyspace.late(not_after).unwrap_or_else(|| {
            let answer = self.take(keyspace).map(|(granted, left)| {
                Value::Array(vec![Value::Integer(granted), Value::Integer(left)])
            });
            answer.unwrap_or_else(|WrongType| Value::wrong_type())
        })
    }

    fn may_grant(&self) -> bool {
        true
    }

    fn grants(&self, value: &Value) -> bool {
        self.decode(value.clone()).is_ok_and(|answer| answer.granted)
    }
}

impl TakePermits {
    fn take(&self, keyspace: &mut Keyspace) -> Result<(i64, i64), WrongType> {
        let (key, permits) = (self.name.as_str(), i64::from(self.permits));
        let left = keyspace.number(key)?.unwrap_or(0);
        if let Some(known) = self.request.known(keyspace)? {
            if known != 0 {
                self.request.remember(keyspace, known);
            }
            return Ok((i64::from(known != 0), left));
        }
        if left < permits {
            return Ok((0, left));
        }
        keyspace.number_add(key, -permits)?;
        self.request.remember(keyspace, permits);
        Ok((1, left - permits))
    }
}

/// Gives back what a request took, or sees to it that no copy of it takes anything.
#[derive(Clone, Debug)]
pub(crate) struct UndoTake {
    name: LockName,
    channel: Arc<str>,
    request: Request,
}

impl UndoTake {
    /// Of a [`TakePermits`] or a [`DrainPermits`], whose request it was.
    pub(crate) fn new(name: LockName, request: Request) -> Self {
        Self { channel: name.semaphore_channel(), name, request }
    }

    fn undo(&self, keyspace: &mut Keyspace) -> Result<i64, WrongType> {
        let key = self.name.as_str();
        let taken = self.request.known(keyspace)?.unwrap_or(0);
        self.request.remember(keyspace, 0);
        if taken == 0 || !matches!(keyspace.number(key), Ok(Some(_))) {
            return Ok(0);
        }
        let left = keyspace.number_add(key, taken)?;
        tell(keyspace, &self.channel, left);
        Ok(1)
    }
}

impl Operation for UndoTake {
    type Reply = Released;

    fn name(&self) -> &'static str {
        "undo an acquire"
    }

    fn form(&self) -> Form {
        Form::Script(&UNDO)
    }

    fn keys(&self) -> Vec<&str> {
        vec![self.name.as_str(), &self.channel, self.request.key()]
    }

    fn arguments(&self, _not_after: ServerTime) -> Vec<Argument<'_>> {
        vec![self.request.remembered(), Argument::Publish]
    }

    fn decode(&self, value: Value) -> Result<Released, Unexpected> {
        match value {
            Value::Array(parts) => {
                let (found, at) = match parts.as_slice() {
                    [Value::Integer(1), Value::Integer(now)] => (Found::Own, *now),
                    [Value::Integer(0), Value::Integer(now)] => (Found::Nothing, *now),
                    _ => return Err(Unexpected(Value::Array(parts))),
                };
                Ok(Released { found, at: ServerTime(at) })
            }
            other => Err(Unexpected(other)),
        }
    }

    fn apply(&self, keyspace: &mut Keyspace, _not_after: ServerTime) -> Value {
        match self.undo(keyspace) {
            Ok(answer) => {
                Value::Array(vec![Value::Integer(answer), Value::Integer(keyspace.now().0)])
            }
            Err(WrongType) => Value::wrong_type(),
        }
    }
}

/// Adds permits, or takes some away whether they are there or not.
#[derive(Clone, Debug)]
pub(crate) struct AddPermits {
    name: LockName,
    channel: Arc<str>,
    permits: i64,
    must_exist: bool,
    request: Request,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Added {
    Done,
    /// There is no such semaphore, and none was to be made.
    Missing,
    /// The number would leave what Java counts with.
    OutOfRange,
}

impl AddPermits {
    /// With `must_exist`, a semaphore that is not there is not made.
    pub(crate) fn new(name: LockName, permits: i64, must_exist: bool, request: Request) -> Self {
        Self { channel: name.semaphore_channel(), name, permits, must_exist, request }
    }

    fn add(&self, keyspace: &mut Keyspace) -> Result<i64, WrongType> {
        if let Some(known) = self.request.known(keyspace)? {
            return Ok(known);
        }
        let value = keyspace.number(self.name.as_str())?;
        let sum = value.unwrap_or(0).saturating_add(self.permits);
        let answer = if value.is_none() && self.must_exist {
            0
        } else if !(LEAST..=MOST).contains(&sum) {
            -1
        } else {
            keyspace.number_add(self.name.as_str(), self.permits)?;
            if self.permits > 0 {
                tell(keyspace, &self.channel, sum);
            }
            1
        };
        self.request.remember(keyspace, answer);
        Ok(answer)
    }
}

impl Operation for AddPermits {
    type Reply = Added;

    fn name(&self) -> &'static str {
        "add permits"
    }

    fn form(&self) -> Form {
        Form::Script(&ADD)
    }

    fn keys(&self) -> Vec<&str> {
        vec![self.name.as_str(), &self.channel, self.request.key()]
    }

    fn arguments(&self, not_after: ServerTime) -> Vec<Argument<'_>> {
        vec![
            Argument::Number(not_after.0),
            Argument::Number(self.permits),
            Argument::Number(i64::from(self.must_exist)),
            self.request.remembered(),
            Argument::Publish,
        ]
    }

    fn decode(&self, value: Value) -> Result<Added, Unexpected> {
        match value {
            Value::Integer(1) => Ok(Added::Done),
            Value::Integer(0) => Ok(Added::Missing),
            Value::Integer(-1) => Ok(Added::OutOfRange),
            other => Err(Unexpected(other)),
        }
    }

    fn apply(&self, keyspace: &mut Keyspace, not_after: ServerTime) -> Value {
        keyspace.late(not_after).unwrap_or_else(|| number(self.add(keyspace)))
    }
}

/// Makes a semaphore, unless there is one.
#[derive(Clone, Debug)]
pub(crate) struct MakeSemaphore {
    name: LockName,
    channel: Arc<str>,
    permits: u32,
    /// Zero for one that stays.
    lives: u64,
    request: Request,
}

impl MakeSemaphore {
    /// It is gone after `lives` milliseconds, unless that is zero.
    pub(crate) fn new(name: LockName, permits: u32, lives: u64, request: Request) -> Self {
        Self { channel: name.semaphore_channel(), name, permits, lives, request }
    }

    fn make(&self, keyspace: &mut Keyspace) -> Result<i64, WrongType> {
        if let Some(known) = self.request.known(keyspace)? {
            return Ok(known);
        }
        let key = self.name.as_str();
        let made = keyspace.number(key)?.is_none();
        if made {
            keyspace.text_set(key, self.permits);
            if self.lives > 0 {
                keyspace.expire(key, i64::try_from(self.lives).unwrap_or(i64::MAX));
            }
            tell(keyspace, &self.channel, i64::from(self.permits));
        }
        self.request.remember(keyspace, i64::from(made));
        Ok(i64::from(made))
    }
}

impl Operation for MakeSemaphore {
    /// Whether it was made.
    type Reply = bool;

    fn name(&self) -> &'static str {
        "set permits"
    }

    fn form(&self) -> Form {
        Form::Script(&SET)
    }

    fn keys(&self) -> Vec<&str> {
        vec![self.name.as_str(), &self.channel, self.request.key()]
    }

    fn arguments(&self, not_after: ServerTime) -> Vec<Argument<'_>> {
        vec![
            Argument::Number(not_after.0),
            Argument::Number(i64::from(self.permits)),
            Argument::millis(self.lives),
            self.request.remembered(),
            Argument::Publish,
        ]
    }

    fn decode(&self, value: Value) -> Result<bool, Unexpected> {
        match value {
            Value::Integer(made @ (0 | 1)) => Ok(made == 1),
            other => Err(Unexpected(other)),
        }
    }

    fn apply(&self, keyspace: &mut Keyspace, not_after: ServerTime) -> Value {
        keyspace.late(not_after).unwrap_or_else(|| number(self.make(keyspace)))
    }
}

/// Takes all permits that are left.
#[derive(Clone, Debug)]
pub(crate) struct DrainPermits {
    pub(crate) name: LockName,
    pub(crate) request: Request,
}

impl DrainPermits {
    fn drain(&self, keyspace: &mut Keyspace) -> Result<i64, WrongType> {
        if let Some(known) = self.request.known(keyspace)? {
            self.request.remember(keyspace, known);
            return Ok(known);
        }
        let left = keyspace.number(self.name.as_str())?.unwrap_or(0);
        if left != 0 {
            keyspace.number_add(self.name.as_str(), -left)?;
        }
        self.request.remember(keyspace, left);
        Ok(left)
    }
}

impl Operation for DrainPermits {
    /// How many there were, which may be less than none.
    type Reply = i64;

    fn name(&self) -> &'static str {
        "drain permits"
    }

    fn form(&self) -> Form {
        Form::Script(&DRAIN)
    }

    fn keys(&self) -> Vec<&str> {
        vec![self.name.as_str(), self.request.key()]
    }

    fn arguments(&self, not_after: ServerTime) -> Vec<Argument<'_>> {
        vec![Argument::Number(not_after.0), self.request.remembered()]
    }

    fn decode(&self, value: Value) -> Result<i64, Unexpected> {
        match value {
            Value::Integer(left) => Ok(left),
            other => Err(Unexpected(other)),
        }
    }

    fn apply(&self, keyspace: &mut Keyspace, not_after: ServerTime) -> Value {
        keyspace.late(not_after).unwrap_or_else(|| number(self.drain(keyspace)))
    }

    fn may_grant(&self) -> bool {
        true
    }

    fn grants(&self, value: &Value) -> bool {
        matches!(value, Value::Integer(left) if *left > 0)
    }
}

fn number(answer: Result<i64, WrongType>) -> Value {
    answer.map_or_else(|WrongType| Value::wrong_type(), Value::Integer)
}

/// Redisson wakes as many waiters as the message says, so it is how many permits there are.
pub(super) fn tell(keyspace: &mut Keyspace, channel: &str, left: i64) {
    if left > 0 {
        keyspace.publish(channel, &left.to_string());
    }
}
