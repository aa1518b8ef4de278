//! The operations of semaphores whose permits are a number: acquire, undo, add, set, drain.

use std::sync::Arc;

use crate::model::name::LockName;
use crate::ops::keyspace::{Keyspace, WrongType};
use crate::ops::operation::{Argument, Grants, Operation, Request, Script, script};
use crate::ops::release::{Released, with_time};
use crate::ops::request::{Remembered, RequestId};
use crate::ops::value::{FromReply, Unexpected, Value};

/// The maximum number of permits: Java counts permits with 32 bits.
const MOST: i64 = i32::MAX as i64;
/// The minimum number of permits, which may be negative.
const LEAST: i64 = i32::MIN as i64;

/// Takes permits.
static ACQUIRE: Script = script!("semaphore_acquire");
/// Undoes an acquire or a drain.
static UNDO: Script = script!("semaphore_undo");
/// Adds or removes permits.
static ADD: Script = script!("semaphore_add");
/// Creates a semaphore with permits.
static SET: Script = script!("semaphore_set");
/// Takes all permits left.
static DRAIN: Script = script!("semaphore_drain");

/// Takes permits, if there are enough.
#[derive(Clone, Debug)]
pub(crate) struct TakePermits {
    pub(crate) name: LockName,
    pub(crate) permits: u32,
    pub(crate) request: RequestId,
}

/// The reply to a [`TakePermits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) granted: bool,
    /// The number of permits left.
    pub(crate) left: i64,
}

impl FromReply for Taken {
    fn from_reply(value: Value) -> Result<Self, Unexpected> {
        match value.as_integers() {
            Some([granted @ (0 | 1), left]) => Ok(Self { granted: granted == 1, left }),
            _ => Err(Unexpected(value)),
        }
    }
}

impl Operation for TakePermits {
    type Reply = Taken;

    fn request(&self) -> Request<'_> {
        Request::script(
            "acquire",
            &ACQUIRE,
            vec![self.name.as_str(), self.request.key()],
            vec![
                Argument::NotAfter,
                Argument::Number(i64::from(self.permits)),
                self.request.number(),
                self.request.dedup_ttl(),
            ],
        )
    }

    fn grants(&self) -> Grants {
        Grants::If(|value| Taken::from_reply(value.clone()).is_ok_and(|reply| reply.granted))
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        let remembered = self.request.remembered(keyspace)?;
        if remembered == Remembered::LaterCall {
            return Ok(Value::late(keyspace.now()));
        }
        let (granted, left) = self.take(keyspace, remembered)?;
        Ok(Value::Array(vec![Value::Integer(granted), Value::Integer(left)]))
    }
}

impl TakePermits {
    /// Takes the permits in memory if enough are free. A copy with a remembered reply takes nothing
    /// again, and is granted unless the call was undone. Returns 1 if granted or else 0, and the
    /// permits left.
    fn take(
        &self,
        keyspace: &mut Keyspace,
        remembered: Remembered,
    ) -> Result<(i64, i64), WrongType> {
        let (key, permits) = (self.name.as_str(), i64::from(self.permits));
        let left = keyspace.number(key)?.unwrap_or(0);
        if let Remembered::Reply(taken) = remembered {
            if taken != 0 {
                self.request.remember(keyspace, taken);
            }
            return Ok((i64::from(taken != 0), left));
        }
        if left < permits {
            return Ok((0, left));
        }
        keyspace.number_add(key, -permits)?;
        self.request.remember(keyspace, permits);
        Ok((1, left - permits))
    }
}

/// Undoes an acquire or a drain, and prevents late copies from taking permits.
#[derive(Clone, Debug)]
pub(crate) struct UndoAcquire {
    name: LockName,
    channel: Arc<str>,
    request: RequestId,
}

impl UndoAcquire {
    /// Undoes a [`TakePermits`] or a [`DrainPermits`] with this request.
    pub(crate) fn new(name: LockName, request: RequestId) -> Self {
        Self { channel: name.semaphore_channel(), name, request }
    }

    /// Gives back in memory the permits that the remembered call took, and wakes waiters. Remembers
    /// zero taken permits, so a late copy takes nothing. Returns 1 if permits were given back, else
    /// 0.
    fn undo(&self, keyspace: &mut Keyspace) -> Result<i64, WrongType> {
        let key = self.name.as_str();
        let taken = match self.request.remembered(keyspace)? {
            Remembered::LaterCall => return Ok(0),
            Remembered::Reply(taken) => taken,
            Remembered::Nothing => 0,
        };
        self.request.remember(keyspace, 0);
        if taken == 0 || !matches!(keyspace.number(key), Ok(Some(_))) {
            return Ok(0);
        }
        let left = keyspace.number_add(key, taken)?;
        tell(keyspace, &self.channel, left);
        Ok(1)
    }
}

impl Operation for UndoAcquire {
    type Reply = Released;

    fn request(&self) -> Request<'_> {
        Request::script(
            "undo an acquire",
            &UNDO,
            vec![self.name.as_str(), &self.channel, self.request.key()],
            vec![self.request.number(), self.request.dedup_ttl(), Argument::Publish],
        )
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        let answer = self.undo(keyspace)?;
        Ok(with_time(answer, keyspace))
    }
}

/// Adds permits, or removes permits; the number may become negative.
#[derive(Clone, Debug)]
pub(crate) struct AddPermits {
    name: LockName,
    channel: Arc<str>,
    permits: i64,
    /// Whether a missing semaphore is not created.
    must_exist: bool,
    request: RequestId,
}

/// The reply to adding permits to a semaphore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddPermitsReply {
    Done,
    /// There is no such semaphore, and none was to be created.
    Missing,
    /// The number would exceed Java's range.
    OutOfRange,
}

impl FromReply for AddPermitsReply {
    fn from_reply(value: Value) -> Result<Self, Unexpected> {
        match value.as_integers() {
            Some([1, _now]) => Ok(Self::Done),
            Some([0, _now]) => Ok(Self::Missing),
            Some([-1, _now]) => Ok(Self::OutOfRange),
            _ => Err(Unexpected(value)),
        }
    }
}

impl AddPermits {
    /// Makes a request to add `permits`, or to remove permits if negative. With `must_exist`, a
    /// missing semaphore is not created.
    pub(crate) fn new(name: LockName, permits: i64, must_exist: bool, request: RequestId) -> Self {
        Self { channel: name.semaphore_channel(), name, permits, must_exist, request }
    }

    /// Adds the permits in memory, and wakes waiters if the number grows. Returns 1; 0 without the
    /// semaphore if `must_exist`; or -1 if the sum is out of range. In the last two cases nothing
    /// changes.
    fn add(&self, keyspace: &mut Keyspace) -> Result<i64, WrongType> {
        let value = keyspace.number(self.name.as_str())?;
        let sum = value.unwrap_or(0).saturating_add(self.permits);
        if value.is_none() && self.must_exist {
            return Ok(0);
        }
        if !(LEAST..=MOST).contains(&sum) {
            return Ok(-1);
        }
        keyspace.number_add(self.name.as_str(), self.permits)?;
        if self.permits > 0 {
            tell(keyspace, &self.channel, sum);
        }
        Ok(1)
    }
}

impl Operation for AddPermits {
    type Reply = AddPermitsReply;

    fn request(&self) -> Request<'_> {
        Request::script(
            "add permits",
            &ADD,
            vec![self.name.as_str(), &self.channel, self.request.key()],
            vec![
                Argument::NotAfter,
                Argument::Number(self.permits),
                Argument::Number(i64::from(self.must_exist)),
                self.request.number(),
                self.request.dedup_ttl(),
                Argument::Publish,
            ],
        )
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        match self.request.once(keyspace, |keyspace| self.add(keyspace))? {
            Value::Integer(answer) => Ok(with_time(answer, keyspace)),
            late => Ok(late),
        }
    }
}

/// Gives back the permits of a guard, unless the semaphore is gone. A sum out of range is
/// [`Found::OtherOwner`](crate::ops::Found): somebody else has added permits.
#[derive(Clone, Debug)]
pub(crate) struct GiveBackPermits(AddPermits);

impl GiveBackPermits {
    pub(crate) fn new(name: LockName, permits: u32, request: RequestId) -> Self {
        Self(AddPermits::new(name, i64::from(permits), true, request))
    }
}

impl Operation for GiveBackPermits {
    type Reply = Released;

    fn request(&self) -> Request<'_> {
        Request { name: "release", ..self.0.request() }
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        self.0.apply(keyspace)
    }
}

/// Creates a semaphore, unless the semaphore exists.
#[derive(Clone, Debug)]
pub(crate) struct TrySetPermits {
    name: LockName,
    channel: Arc<str>,
    permits: u32,
    /// Zero for a semaphore without an expiry.
    lives: u64,
    request: RequestId,
}

impl TrySetPermits {
    /// Makes a request to create a semaphore, which expires after `lives` milliseconds, unless
    /// `lives` is zero.
    pub(crate) fn new(name: LockName, permits: u32, lives: u64, request: RequestId) -> Self {
        Self { channel: name.semaphore_channel(), name, permits, lives, request }
    }

    /// Creates the semaphore in memory, and wakes waiters. Returns 1, or 0 without effect if the
    /// semaphore exists.
    fn make(&self, keyspace: &mut Keyspace) -> Result<i64, WrongType> {
        let key = self.name.as_str();
        let made = keyspace.number(key)?.is_none();
        if made {
            keyspace.text_set(key, self.permits);
            if self.lives > 0 {
                keyspace.expire(key, i64::try_from(self.lives).unwrap_or(i64::MAX));
            }
            tell(keyspace, &self.channel, i64::from(self.permits));
        }
        Ok(i64::from(made))
    }
}

impl Operation for TrySetPermits {
    /// Whether the semaphore was created.
    type Reply = bool;

    fn request(&self) -> Request<'_> {
        Request::script(
            "set permits",
            &SET,
            vec![self.name.as_str(), &self.channel, self.request.key()],
            vec![
                Argument::NotAfter,
                Argument::Number(i64::from(self.permits)),
                Argument::millis(self.lives),
                self.request.number(),
                self.request.dedup_ttl(),
                Argument::Publish,
            ],
        )
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        self.request.once(keyspace, |keyspace| self.make(keyspace))
    }
}

/// Takes all permits left; a negative number of permits becomes zero.
#[derive(Clone, Debug)]
pub(crate) struct DrainPermits {
    pub(crate) name: LockName,
    pub(crate) request: RequestId,
}

impl DrainPermits {
    /// Sets the number of permits to zero in memory. Returns the number before, which may be
    /// negative.
    fn drain(&self, keyspace: &mut Keyspace) -> Result<i64, WrongType> {
        let left = keyspace.number(self.name.as_str())?.unwrap_or(0);
        if left != 0 {
            keyspace.number_add(self.name.as_str(), -left)?;
        }
        Ok(left)
    }
}

impl Operation for DrainPermits {
    /// The number of taken permits, which may be negative.
    type Reply = i64;

    fn request(&self) -> Request<'_> {
        Request::script(
            "drain permits",
            &DRAIN,
            vec![self.name.as_str(), self.request.key()],
            vec![Argument::NotAfter, self.request.number(), self.request.dedup_ttl()],
        )
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        if let Remembered::Reply(taken) = self.request.remembered(keyspace)? {
            self.request.remember(keyspace, taken);
        }
        self.request.once(keyspace, |keyspace| self.drain(keyspace))
    }

    fn grants(&self) -> Grants {
        Grants::If(|value| matches!(value, Value::Integer(taken) if *taken > 0))
    }
}

/// Publishes the number of permits in memory, if positive. Redisson wakes as many waiters as the
/// message says.
pub(crate) fn tell(keyspace: &mut Keyspace, channel: &str, left: i64) {
    if left > 0 {
        keyspace.publish(channel, &left.to_string());
    }
}
