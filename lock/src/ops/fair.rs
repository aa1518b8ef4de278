//! The fair lock: acquire in turn, release or leave the queue, force release.
//!
//! The queue is Redisson's: a list of owners, and a sorted set with each waiter's liveness
//! deadline. Redisson sets a deadline once, five minutes later for each waiter ahead, and a leaving
//! waiter subtracts five minutes from the remaining deadlines. A waiter of this library moves its
//! deadline at each try: to [`LIVENESS`] from now, plus five minutes for each waiter of
//! Redisson ahead. So the waiter retains its place whatever Redisson's waiters subtract, the
//! deadlines of this library's waiters do not add up, and dead waiters of this library block the
//! queue for [`LIVENESS`] at most, however many die together.

use std::sync::Arc;
use std::time::Duration;

use crate::model::kind::Layout;
use crate::model::lease::Lease;
use crate::model::name::LockName;
use crate::model::owner::Owner;
use crate::model::settings::{POLL_BOUND, QUEUE_POLL_BOUND, REDISSON_FAIR_WAIT};
use crate::ops::acquire::{Acquired, check_lock};
use crate::ops::keyspace::{Keyspace, WrongType};
use crate::ops::operation::{Argument, Grants, Operation, Request, Script, UNLOCKED, script};
use crate::ops::recognize::{Content, recognize};
use crate::ops::release::{Released, other_or_nothing};
use crate::ops::request::{Remembered, RequestId};
use crate::ops::value::Value;

/// How long a waiter counts as alive after a try: the default lease, six times the longest
/// sleep between two tries.
const LIVENESS: Lease = crate::model::lease::DEFAULT;

/// Acquires a fair lock, or enters the queue.
static ACQUIRE: Script = script!("fair_acquire");
/// Ends a hold of a fair lock, or leaves the queue.
static RELEASE: Script = script!("fair_release");
/// Ends any hold of a fair lock.
static FORCE_RELEASE: Script = script!("recognize", "fair_force_release");

/// A fair lock's keys.
#[derive(Clone, Debug)]
struct Keys {
    name: LockName,
    queue: Arc<str>,
    deadlines: Arc<str>,
    channel: Arc<str>,
}

/// Acquires a fair lock if free and the owner's turn. If not and the owner `waits`, enters the
/// queue or renews the place there.
#[derive(Clone, Debug)]
pub(crate) struct FairAcquire {
    keys: Keys,
    owner: Owner,
    lease: Lease,
    waits: bool,
}

/// Ends the owner's hold of a fair lock, or removes the owner from the queue.
#[derive(Clone, Debug)]
pub(crate) struct FairRelease {
    keys: Keys,
    owner: Owner,
}

/// Ends any hold of a fair lock.
#[derive(Clone, Debug)]
pub(crate) struct FairForceRelease {
    keys: Keys,
    request: RequestId,
}

impl FairAcquire {
    /// Makes the request. The owner enters the queue only if `waits`.
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
    pub(crate) fn new(name: LockName, request: RequestId) -> Self {
        Self { keys: Keys::new(name), request }
    }
}

impl Operation for FairAcquire {
    type Reply = Acquired;

    fn request(&self) -> Request<'_> {
        Request::script(
            "acquire",
            &ACQUIRE,
            self.keys.all(),
            vec![
                Argument::NotAfter,
                Argument::Owner(&self.owner),
                Argument::millis(self.lease.millis()),
                Argument::Number(i64::from(self.waits)),
                Argument::millis(LIVENESS.millis()),
                Argument::Number(millis(POLL_BOUND)),
                Argument::Number(millis(QUEUE_POLL_BOUND)),
                Argument::Text(UNLOCKED),
                Argument::Publish,
                Argument::Number(millis(REDISSON_FAIR_WAIT)),
            ],
        )
    }

    fn grants(&self) -> Grants {
        Acquired::GRANTS
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        self.acquire(&mut FairQueue::new(keyspace, &self.keys))
    }
}

impl FairAcquire {
    /// Applies the acquire in memory. Returns nil if granted, else the milliseconds to sleep.
    fn acquire(&self, queue: &mut FairQueue<'_>) -> Result<Value, WrongType> {
        let (owner, lease) = (self.owner.to_string(), self.lease.millis().cast_signed());
        if queue.keyspace.hash_has(queue.lock, &owner)? {
            queue.keyspace.prolong(queue.lock, lease);
            return Ok(Value::Nil);
        }
        check_lock(queue.keyspace, queue.lock, Layout::Counted)?;
        let purged = queue.purge(Some(&owner))?;
        let head = queue.head()?;
        if let Some(head) = head.as_ref().filter(|head| **head != owner) {
            queue.cut(head)?;
        }
        if !queue.keyspace.exists(queue.lock) {
            if head.as_ref().is_none_or(|head| *head == owner) {
                queue.remove(&owner)?;
                match queue.head()? {
                    None => drop(queue.keyspace.sorted_remove_until(queue.deadlines, i64::MAX)?),
                    Some(following) if lease < millis(QUEUE_POLL_BOUND) => queue.wake(&following),
                    Some(_) => {}
                }
                queue.keyspace.hash_set(queue.lock, &owner, 1)?;
                queue.keyspace.expire(queue.lock, lease);
                return Ok(Value::Nil);
            }
            if let Some(head) = head.as_ref().filter(|_| purged) {
                queue.wake(head);
            }
        }
        if !self.waits {
            return Ok(Value::Integer(millis(POLL_BOUND)));
        }
        let place = queue.enqueue(&owner)?;
        let sleep = if place == 0 {
            match queue.keyspace.time_to_live(queue.lock) {
                ..0 => millis(POLL_BOUND),
                left => left.clamp(1, millis(POLL_BOUND)),
            }
        } else {
            let longest = millis(if place == 1 { POLL_BOUND } else { QUEUE_POLL_BOUND });
            match queue.time_until_dead_before(place)? {
                left @ 1.. => longest.min(left + 1),
                _ => longest,
            }
        };
        Ok(Value::Integer(sleep))
    }
}

impl Operation for FairRelease {
    type Reply = Released;

    fn request(&self) -> Request<'_> {
        Request::script(
            "release",
            &RELEASE,
            self.keys.all(),
            vec![Argument::Owner(&self.owner), Argument::Text(UNLOCKED), Argument::Publish],
        )
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        self.leave(&mut FairQueue::new(keyspace, &self.keys))
    }
}

impl FairRelease {
    /// Ends the owner's hold, or removes the owner from the queue, in memory. Wakes the next waiter
    /// if the lock is free. Returns the release's answer and the time.
    fn leave(&self, queue: &mut FairQueue<'_>) -> Result<Value, WrongType> {
        let owner = self.owner.to_string();
        let answer = if queue.keyspace.hash_has(queue.lock, &owner) == Ok(true) {
            queue.keyspace.delete(queue.lock);
            1
        } else {
            queue.forget(&owner);
            other_or_nothing(queue.keyspace, queue.lock)
        };
        let answered = Value::Array(vec![Value::Integer(answer), Value::Integer(queue.now)]);
        if !queue.is_sound() {
            return Ok(answered);
        }
        queue.purge(None)?;
        match queue.head()? {
            None => drop(queue.keyspace.delete(queue.deadlines)),
            Some(head) if answer >= 0 => queue.wake(&head),
            Some(_) => {}
        }
        Ok(answered)
    }
}

impl Operation for FairForceRelease {
    /// Whether there was a hold.
    type Reply = bool;

    fn request(&self) -> Request<'_> {
        let mut keys = self.keys.all();
        keys.push(self.request.key());
        let arguments = vec![
            Argument::NotAfter,
            Argument::Text(UNLOCKED),
            Argument::Publish,
            self.request.number(),
            self.request.dedup_ttl(),
        ];
        Request::script("force release", &FORCE_RELEASE, keys, arguments)
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        let found = recognize(keyspace, self.keys.name.as_str());
        let is_own = matches!(found, Content::Nothing | Content::Owners { mode: None, .. });
        if !is_own && self.request.remembered(keyspace)? == Remembered::Nothing {
            return Ok(found.refusal());
        }
        self.request
            .once(keyspace, |keyspace| Self::force(&mut FairQueue::new(keyspace, &self.keys)))
    }
}

impl FairForceRelease {
    /// Deletes the lock in memory, and wakes the next waiter. Returns 1 if there was a hold, else
    /// 0.
    fn force(queue: &mut FairQueue<'_>) -> Result<i64, WrongType> {
        let ended = i64::from(queue.keyspace.delete(queue.lock));
        if !queue.is_sound() {
            return Ok(ended);
        }
        queue.purge(None)?;
        match queue.head()? {
            None => drop(queue.keyspace.delete(queue.deadlines)),
            Some(head) => queue.wake(&head),
        }
        Ok(ended)
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

    /// Returns the keys in the order of the scripts.
    fn all(&self) -> Vec<&str> {
        vec![self.name.as_str(), &self.queue, &self.deadlines, &self.channel]
    }
}

/// Returns whole milliseconds of `duration`; saturates.
fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// The queue of a fair lock in memory, with the steps common to the scripts.
struct FairQueue<'a> {
    keyspace: &'a mut Keyspace,
    lock: &'a str,
    queue: &'a str,
    deadlines: &'a str,
    channel: &'a str,
    now: i64,
}

impl<'a> FairQueue<'a> {
    fn new(keyspace: &'a mut Keyspace, keys: &'a Keys) -> Self {
        let Keys { name, queue, deadlines, channel } = keys;
        let now = keyspace.now().0;
        Self { keyspace, lock: name.as_str(), queue, deadlines, channel, now }
    }

    /// Returns the liveness deadline of a waiter who tries now, with no waiter of Redisson
    /// ahead.
    fn live_until(&self) -> i64 {
        self.now + LIVENESS.millis().cast_signed()
    }

    /// Returns the first waiter of the queue; `None` if the queue is empty.
    fn head(&mut self) -> Result<Option<String>, WrongType> {
        Ok(self.keyspace.list(self.queue)?.into_iter().next())
    }

    /// Returns the liveness deadline of a waiter; `None` if the waiter has none.
    fn deadline(&mut self, owner: &str) -> Result<Option<i64>, WrongType> {
        self.keyspace.sorted_set_score(self.deadlines, owner.as_bytes())
    }

    /// Returns the milliseconds until the waiter just before `place` counts as dead, together with
    /// all waiters further ahead whose deadlines pass within the longest sleep.
    fn time_until_dead_before(&mut self, place: usize) -> Result<i64, WrongType> {
        let mut ahead = self.keyspace.list(self.queue)?;
        ahead.truncate(place);
        let mut longest = i64::MIN;
        for owner in ahead.iter().rev() {
            let left = self.deadline(owner)?.unwrap_or(0) - self.now;
            if longest != i64::MIN && longest.max(left) > millis(QUEUE_POLL_BOUND) {
                break;
            }
            longest = longest.max(left);
        }
        Ok(longest)
    }

    /// Removes an owner from list and set. Returns an error if a key has another type.
    fn remove(&mut self, owner: &str) -> Result<(), WrongType> {
        self.keyspace.sorted_remove(self.deadlines, owner.as_bytes())?;
        self.keyspace.list_remove(self.queue, owner)?;
        Ok(())
    }

    /// Returns whether list and set have the right types.
    fn is_sound(&mut self) -> bool {
        self.keyspace.list(self.queue).is_ok() && self.deadline("").is_ok()
    }

    /// Removes an owner from list and set. A key of another type is left alone.
    fn forget(&mut self, owner: &str) {
        let _set = self.keyspace.sorted_remove(self.deadlines, owner.as_bytes());
        let _list = self.keyspace.list_remove(self.queue, owner);
    }

    /// Removes dead waiters from the front of the queue, up to `lives`, a waiter known to be alive.
    /// Returns whether any waiter was removed.
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

    /// If the head is a waiter of this library with a deadline beyond [`LIVENESS`], moves all later
    /// deadlines back by the excess: no waiter of Redisson ahead is left to subtract anything.
    fn cut(&mut self, head: &str) -> Result<(), WrongType> {
        let least = self.live_until();
        let less = self.deadline(head)?.unwrap_or(0) - least;
        if !Owner::is_ours(head) || less <= 0 {
            return Ok(());
        }
        for other in self.keyspace.list(self.queue)? {
            if let Some(deadline) = self.deadline(&other)?.filter(|deadline| *deadline > least) {
                let deadline = (deadline - less).max(least);
                self.keyspace.sorted_set(self.deadlines, other.as_bytes(), deadline)?;
            }
        }
        Ok(())
    }

    /// Adds an owner to the end of the queue, or renews the liveness deadline of a waiter. Returns
    /// the number of waiters ahead.
    fn enqueue(&mut self, owner: &str) -> Result<usize, WrongType> {
        let own = self.deadline(owner)?.unwrap_or(0);
        let mut before = self.keyspace.list(self.queue)?;
        let place = before.iter().position(|other| other == owner);
        before.truncate(place.unwrap_or(before.len()));
        let deadline = self.deadline_behind(&before, own)?;
        if place.is_none() {
            self.keyspace.list_push(self.queue, owner)?;
        }
        self.keyspace.sorted_set(self.deadlines, owner.as_bytes(), deadline)?;
        Ok(before.len())
    }

    /// Returns the liveness deadline of a waiter behind the waiters `before`. The waiter's present
    /// deadline is `own`, or zero.
    fn deadline_behind(&mut self, before: &[String], own: i64) -> Result<i64, WrongType> {
        let deadline = self.live_until();
        let Some(last) = before.last() else { return Ok(deadline) };
        let until_then = self.deadline(last)?.unwrap_or(0);
        let recent = deadline - 2 * millis(QUEUE_POLL_BOUND);
        if Owner::is_ours(last) && until_then <= deadline && until_then > recent && own <= deadline
        {
            return Ok(deadline);
        }
        let mut behind = deadline;
        let mut its = 0;
        for other in before.iter().filter(|other| !Owner::is_ours(other)) {
            behind += millis(REDISSON_FAIR_WAIT);
            its = self.deadline(other)?.unwrap_or(0);
        }
        Ok(behind.max(its))
    }

    /// Publishes a wake on the waiter's own channel.
    fn wake(&mut self, owner: &str) {
        self.keyspace.publish(&format!("{}:{owner}", self.channel), UNLOCKED);
    }
}
