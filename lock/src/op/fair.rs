//! The fair lock: taking it in turn, leaving it or its line, forcing it open.
//!
//! The line is Redisson's: a list of owners, and a sorted set that says until when each is believed to live. Redisson
//! sets such a moment once, five minutes further for each thread in line, and takes its own five minutes off the others
//! when it leaves. A waiter of ours moves its moment on each time it asks: to [`BELIEVED`] from then, and five minutes
//! more for each thread of Redisson's before it. So it keeps its place whatever those take off; ours add nothing up;
//! and dead ones of ours stop the line for [`BELIEVED`] at most, however many died together.

use std::sync::Arc;
use std::time::Duration;

use super::acquire::{Acquired, read_acquired};
use super::operation::{Argument, Form, Operation, Script, UNLOCKED};
use super::release::{Released, read_released};
use super::request::Request;
use crate::config::{LINE_POLL_BOUND, POLL_BOUND, REDISSON_FAIR_WAIT};
use crate::keyspace::{Keyspace, WrongType};
use crate::lease::Lease;
use crate::name::LockName;
use crate::owner::Owner;
use crate::value::{ServerTime, Unexpected, Value};

/// How long one who stands in line is believed to live after he asked: the default lease. The longest sleep is a sixth
/// of it.
const BELIEVED: Lease = crate::lease::DEFAULT;

static ACQUIRE: Script = Script::new(include_str!("fair_acquire.lua"));
static RELEASE: Script = Script::new(include_str!("fair_release.lua"));
static FORCE_RELEASE: Script = Script::new(include_str!("fair_force_release.lua"));

/// A fair lock's keys.
#[derive(Clone, Debug)]
struct Keys {
    name: LockName,
    queue: Arc<str>,
    deadlines: Arc<str>,
    channel: Arc<str>,
}

/// Takes a fair lock in turn.
#[derive(Clone, Debug)]
pub(crate) struct FairAcquire {
    keys: Keys,
    owner: Owner,
    lease: Lease,
    waits: bool,
}

/// Ends a hold, or a wait.
#[derive(Clone, Debug)]
pub(crate) struct FairRelease {
    keys: Keys,
    owner: Owner,
}

/// Ends whatever holds a fair lock.
#[derive(Clone, Debug)]
pub(crate) struct FairForceRelease {
    keys: Keys,
    request: Request,
}

impl FairAcquire {
    /// Only who waits stands in line.
    pub(crate) fn new(name: LockName, owner: Owner, lease: Lease, waits: bool) -> Self {
        Self { keys: Keys::new(name), owner, lease, waits }
    }
}

impl FairRelease {
    pub(crate) fn new(name: LockName, owner: Owner) -> Self {
        Self { keys: Keys::new(name), owner }
    }
}

impl FairForceRelease {
    pub(crate) fn new(name: LockName, request: Request) -> Self {
        Self { keys: Keys::new(name), request }
    }
}

impl Operation for FairAcquire {
    type Reply = Acquired;

    fn name(&self) -> &'static str {
        "acquire"
    }

    fn form(&self) -> Form {
        Form::Script(&ACQUIRE)
    }

    fn keys(&self) -> Vec<&str> {
        self.keys.all()
    }

    fn arguments(&self, not_after: ServerTime) -> Vec<Argument<'_>> {
        vec![
            Argument::Number(not_after.0),
            Argument::Owner(&self.owner),
            Argument::millis(self.lease.millis()),
            Argument::Number(i64::from(self.waits)),
            Argument::millis(BELIEVED.millis()),
            Argument::Number(millis(POLL_BOUND)),
            Argument::Number(millis(LINE_POLL_BOUND)),
            Argument::Text(UNLOCKED),
            Argument::Publish,
            Argument::Number(millis(REDISSON_FAIR_WAIT)),
        ]
    }

    fn decode(&self, value: Value) -> Result<Acquired, Unexpected> {
        read_acquired(value)
    }

    fn apply(&self, keyspace: &mut Keyspace, not_after: ServerTime) -> Value {
        if let Some(late) = keyspace.late(not_after) {
            return late;
        }
        self.take(&mut Line::new(keyspace, &self.keys))
            .unwrap_or_else(|WrongType| Value::wrong_type())
    }

    fn may_grant(&self) -> bool {
        true
    }

    fn grants(&self, value: &Value) -> bool {
        self.decode(value.clone()).is_ok_and(Acquired::is_granted)
    }
}

impl FairAcquire {
    fn take(&self, line: &mut Line<'_>) -> Result<Value, WrongType> {
        let (owner, lease) = (self.owner.to_string(), self.lease.millis().cast_signed());
        if line.keyspace.hash_has(line.lock, &owner)? {
            line.keyspace.prolong(line.lock, lease);
            return Ok(Value::Nil);
        }
        let purged = line.purge(Some(&owner))?;
        let head = line.head()?;
        if let Some(head) = head.as_ref().filter(|head| **head != owner) {
            line.cut(head)?;
        }
        if !line.keyspace.exists(line.lock) {
            if head.as_ref().is_none_or(|head| *head == owner) {
                line.remove(&owner)?;
                match line.head()? {
                    None => drop(line.keyspace.sorted_remove_until(line.deadlines, i64::MAX)?),
                    Some(following) if lease < millis(LINE_POLL_BOUND) => line.tell(&following),
                    Some(_) => {}
                }
                line.keyspace.hash_set(line.lock, &owner, 1)?;
                line.keyspace.expire(line.lock, lease);
                return Ok(Value::Nil);
            }
            if let Some(head) = head.as_ref().filter(|_| purged) {
                line.tell(head);
            }
        }
        if !self.waits {
            return Ok(Value::Integer(millis(POLL_BOUND)));
        }
        let place = line.stand(&owner)?;
        let sleep = if place == 0 {
            match line.keyspace.time_to_live(line.lock) {
                ..0 => millis(POLL_BOUND),
                left => left.clamp(1, millis(POLL_BOUND)),
            }
        } else {
            let longest = millis(if place == 1 { POLL_BOUND } else { LINE_POLL_BOUND });
            match line.left_of(place - 1)? {
                left @ 1.. => longest.min(left + 1),
                _ => longest,
            }
        };
        Ok(Value::Integer(sleep))
    }
}

impl Operation for FairRelease {
    type Reply = Released;

    fn name(&self) -> &'static str {
        "release"
    }

    fn form(&self) -> Form {
        Form::Script(&RELEASE)
    }

    fn keys(&self) -> Vec<&str> {
        self.keys.all()
    }

    fn arguments(&self, _not_after: ServerTime) -> Vec<Argument<'_>> {
        vec![Argument::Owner(&self.owner), Argument::Text(UNLOCKED), Argument::Publish]
    }

    fn decode(&self, value: Value) -> Result<Released, Unexpected> {
        read_released(value)
    }

    fn apply(&self, keyspace: &mut Keyspace, _not_after: ServerTime) -> Value {
        self.leave(&mut Line::new(keyspace, &self.keys))
            .unwrap_or_else(|WrongType| Value::wrong_type())
    }
}

impl FairRelease {
    fn leave(&self, line: &mut Line<'_>) -> Result<Value, WrongType> {
        let owner = self.owner.to_string();
        let answer = if line.keyspace.hash_has(line.lock, &owner) == Ok(true) {
            line.keyspace.delete(line.lock);
            1
        } else {
            line.forget(&owner);
            if line.keyspace.exists(line.lock) { -1 } else { 0 }
        };
        let answered = Value::Array(vec![Value::Integer(answer), Value::Integer(line.now)]);
        if !line.is_sound() {
            return Ok(answered);
        }
        line.purge(None)?;
        match line.head()? {
            None => drop(line.keyspace.delete(line.deadlines)),
            Some(head) if answer >= 0 => line.tell(&head),
            Some(_) => {}
        }
        Ok(answered)
    }
}

impl Operation for FairForceRelease {
    /// Whether there was something.
    type Reply = bool;

    fn name(&self) -> &'static str {
        "force release"
    }

    fn form(&self) -> Form {
        Form::Script(&FORCE_RELEASE)
    }

    fn keys(&self) -> Vec<&str> {
        let mut keys = self.keys.all();
        keys.push(self.request.key());
        keys
    }

    fn arguments(&self, not_after: ServerTime) -> Vec<Argument<'_>> {
        vec![
            Argument::Number(not_after.0),
            Argument::Text(UNLOCKED),
            Argument::Publish,
            self.request.remembered(),
        ]
    }

    fn decode(&self, value: Value) -> Result<bool, Unexpected> {
        match value {
            Value::Integer(ended @ (0 | 1)) => Ok(ended == 1),
            other => Err(Unexpected(other)),
        }
    }

    fn apply(&self, keyspace: &mut Keyspace, not_after: ServerTime) -> Value {
        if let Some(late) = keyspace.late(not_after) {
            return late;
        }
        match self.request.known(keyspace) {
            Err(WrongType) => return Value::wrong_type(),
            Ok(Some(known)) => return Value::Integer(known),
            Ok(None) => {}
        }
        self.force(&mut Line::new(keyspace, &self.keys))
            .unwrap_or_else(|WrongType| Value::wrong_type())
    }
}

impl FairForceRelease {
    fn force(&self, line: &mut Line<'_>) -> Result<Value, WrongType> {
        line.keyspace.hash_has(line.lock, "")?;
        let ended = line.keyspace.delete(line.lock);
        self.request.remember(line.keyspace, i64::from(ended));
        if !line.is_sound() {
            return Ok(Value::Integer(i64::from(ended)));
        }
        line.purge(None)?;
        match line.head()? {
            None => drop(line.keyspace.delete(line.deadlines)),
            Some(head) => line.tell(&head),
        }
        Ok(Value::Integer(i64::from(ended)))
    }
}

impl Keys {
    fn new(name: LockName) -> Self {
        Self {
            queue: name.queue(),
            deadlines: name.queue_deadlines(),
            channel: name.channel(),
            name,
        }
    }

    fn all(&self) -> Vec<&str> {
        vec![self.name.as_str(), &self.queue, &self.deadlines, &self.channel]
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// The line in memory: what the scripts have in common.
struct Line<'a> {
    keyspace: &'a mut Keyspace,
    lock: &'a str,
    queue: &'a str,
    deadlines: &'a str,
    channel: &'a str,
    now: i64,
}

impl<'a> Line<'a> {
    fn new(keyspace: &'a mut Keyspace, keys: &'a Keys) -> Self {
        let Keys { name, queue, deadlines, channel } = keys;
        let now = keyspace.now().0;
        Self { keyspace, lock: name.as_str(), queue, deadlines, channel, now }
    }

    fn believed_until(&self) -> i64 {
        self.now + BELIEVED.millis().cast_signed()
    }

    fn head(&mut self) -> Result<Option<String>, WrongType> {
        Ok(self.keyspace.list(self.queue)?.into_iter().next())
    }

    fn deadline(&mut self, owner: &str) -> Result<Option<i64>, WrongType> {
        self.keyspace.sorted_score(self.deadlines, owner.as_bytes())
    }

    /// How long who stands at this place is believed to live.
    fn left_of(&mut self, place: usize) -> Result<i64, WrongType> {
        let line = self.keyspace.list(self.queue)?;
        let owner = line.get(place).map_or("", String::as_str);
        Ok(self.deadline(owner)?.unwrap_or(0) - self.now)
    }

    fn remove(&mut self, owner: &str) -> Result<(), WrongType> {
        self.keyspace.sorted_remove(self.deadlines, owner.as_bytes())?;
        self.keyspace.list_remove(self.queue, owner)?;
        Ok(())
    }

    /// Whether list and set are what they should be, and nobody's data.
    fn is_sound(&mut self) -> bool {
        self.keyspace.list(self.queue).is_ok() && self.deadline("").is_ok()
    }

    /// Takes an owner out of list and set, as far as they are what they should be.
    fn forget(&mut self, owner: &str) {
        let _set = self.keyspace.sorted_remove(self.deadlines, owner.as_bytes());
        let _list = self.keyspace.list_remove(self.queue, owner);
    }

    /// Takes the dead off the front of the line, but for one who is known to live. Whether there were any.
    fn purge(&mut self, lives: Option<&str>) -> Result<bool, WrongType> {
        let mut purged = false;
        while let Some(head) = self.head()?.filter(|head| Some(head.as_str()) != lives) {
            if self.deadline(&head)?.is_some_and(|deadline| deadline > self.now) {
                break;
            }
            self.remove(&head)?;
            purged = true;
        }
        Ok(purged)
    }

    /// Takes off all moments by how much one of ours at the head is believed too long: nobody before it will take
    /// anything off any more.
    fn cut(&mut self, head: &str) -> Result<(), WrongType> {
        let least = self.believed_until();
        let less = self.deadline(head)?.unwrap_or(0) - least;
        if !Owner::is_ours(head) || less <= 0 {
            return Ok(());
        }
        for other in self.keyspace.list(self.queue)? {
            if let Some(moment) = self.deadline(&other)?.filter(|moment| *moment > least) {
                let moment = (moment - less).max(least);
                self.keyspace.sorted_set(self.deadlines, other.as_bytes(), moment)?;
            }
        }
        Ok(())
    }

    /// Stands in line, or says that he still lives. Answers his place.
    fn stand(&mut self, owner: &str) -> Result<usize, WrongType> {
        let own = self.deadline(owner)?.unwrap_or(0);
        let mut before = self.keyspace.list(self.queue)?;
        let place = before.iter().position(|other| other == owner);
        before.truncate(place.unwrap_or(before.len()));
        let moment = self.moment_behind(&before, own)?;
        if place.is_none() {
            self.keyspace.list_push(self.queue, owner)?;
        }
        self.keyspace.sorted_set(self.deadlines, owner.as_bytes(), moment)?;
        Ok(before.len())
    }

    /// Until when one who asks behind these, and was believed until `own`, is believed to live.
    fn moment_behind(&mut self, before: &[String], own: i64) -> Result<i64, WrongType> {
        let moment = self.believed_until();
        let Some(last) = before.last() else { return Ok(moment) };
        let until_then = self.deadline(last)?.unwrap_or(0);
        let lately = moment - 2 * millis(LINE_POLL_BOUND);
        if Owner::is_ours(last) && until_then <= moment && until_then > lately && own <= moment {
            return Ok(moment);
        }
        let mut behind = moment;
        let mut its = 0;
        for other in before.iter().filter(|other| !Owner::is_ours(other)) {
            behind += millis(REDISSON_FAIR_WAIT);
            its = self.deadline(other)?.unwrap_or(0);
        }
        Ok(behind.max(its))
    }

    fn tell(&mut self, owner: &str) {
        self.keyspace.publish(&format!("{}:{owner}", self.channel), UNLOCKED);
    }
}
