//! Several locks as one: all of them or none, and no deadlock whatever order they are named in.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use hashed_wheel::{Clock, Parker};

use crate::back_off::BackOff;
use crate::bundle::Bundle;
use crate::call::{is_cancelled, park};
use crate::error::Error;
use crate::grip::Grip;
use crate::kind::Kind;
use crate::multi_guard::MultiGuard;
use crate::part::{AnyLock, Part};
use crate::plan::Wait;
use crate::wait::Until;

/// Several locks that are taken together: all of them, or none. Cheap to clone and to share; it holds nothing by
/// itself.
///
/// They may be of any kinds, of any clients and so on any servers, and each stays what it is: whoever takes one of them
/// alone excludes, and is excluded by, who takes them together. A thread that holds it may take it again: each of them
/// is nested, if it is of a kind that nests. One that is named twice is taken once.
///
/// **Order.** They are taken in the order of their servers' addresses and their names, not in the order in which they
/// are given. So two threads that name the same locks in opposite order do not wait for each other. Nobody waits for
/// one of them while holding others for longer than 100 ms, or half of the shortest lease: what is not had by then is
/// waited for with nothing held, then taken first, and the others after it. So two that cannot know the order - one
/// server under two addresses, or a Java `RedissonMultiLock`, which takes its locks as they are given - do not wait for
/// each other for ever either.
///
/// **Leases.** By default each is renewed by its own client's watchdog. With a lease, each counts from its own request;
/// the guard [holds](MultiGuard::is_held) as long as all do. If the first is over when the last is granted, all are
/// released, and it is an [`Error::Lost`].
///
/// On the servers there is nothing but the locks themselves. Redisson's is `RedissonMultiLock`.
///
/// ```
/// use std::time::Duration;
/// use wheellock::{Client, MultiLock};
///
/// let (one, other) = (Client::in_memory(), Client::in_memory());
/// let (order, stock) = (one.lock("orders:42"), other.fenced_lock("stock:7"));
/// let both = MultiLock::new(&[&order, &stock]);
/// if let Some(guard) = both.try_lock_for(Duration::from_secs(5))? {
///     // Alone with both.
///     guard.unlock()?;
/// }
/// # Ok::<(), wheellock::Error>(())
/// ```
#[derive(Clone)]
pub struct MultiLock {
    parts: Result<Arc<[Part]>, Error>,
}

/// For how long a thread waits for further locks while it holds some.
const WAIT_WHILE_HOLDING: Duration = Duration::from_millis(100);

/// Between rounds that ended with nothing.
const LONGEST_PAUSE: Duration = Duration::from_millis(64);

impl MultiLock {
    /// Of these locks: references to [`Lock`](crate::Lock)s of any kind. An empty list is an error when the multi-lock
    /// is taken, and so are locks of which one would wait for another: of two clients, or two owners, on one key.
    #[must_use]
    pub fn new(locks: &[&dyn AnyLock]) -> Self {
        Self { parts: ordered(locks.iter().map(|lock| lock.as_part()).collect()) }
    }

    /// The same locks, with holds that last for `lease` and are not renewed. As
    /// [`Lock::with_lease`](crate::Lock::with_lease) for each of them.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.parts = self.parts.map(|parts| {
            let mut parts = parts.to_vec();
            for part in &mut parts {
                part.plan.set_lease(lease);
            }
            parts.into()
        });
        self
    }

    /// Takes all the locks, and waits for them as long as it takes.
    ///
    /// # Errors
    ///
    /// As [`Lock::lock`](crate::Lock::lock), of any of them; nothing is held then. And [`Error::InvalidSetting`] for a
    /// list of locks that cannot be taken together.
    pub fn lock(&self) -> Result<MultiGuard, Error> {
        self.lock_with(None)
    }

    /// Takes all the locks if they are free: one try for each, no waiting. `None` if somebody else holds one.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    pub fn try_lock(&self) -> Result<Option<MultiGuard>, Error> {
        self.carry_out(Wait::No)
    }

    /// Takes all the locks, and waits for them for at most `wait` in all. `None` if they could not be had in that time.
    /// A `wait` of zero is a [`try_lock`](Self::try_lock).
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    pub fn try_lock_for(&self, wait: Duration) -> Result<Option<MultiGuard>, Error> {
        if wait.is_zero() {
            return self.try_lock();
        }
        // A deadline beyond what the clock can say is none.
        let deadline = self.clock()?.now().checked_add(wait);
        self.carry_out(Wait::For(Until { deadline, cancel: None }))
    }

    /// Takes all the locks, and waits for them until `deadline`, as [`try_lock_for`](Self::try_lock_for) does.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    pub fn try_lock_until(&self, deadline: Instant) -> Result<Option<MultiGuard>, Error> {
        self.try_lock_for(self.clock()?.remaining(deadline))
    }

    /// Takes all the locks, and waits for them until `cancel` has a message or has lost its senders. As
    /// [`Lock::lock_or_cancel`](crate::Lock::lock_or_cancel).
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), and [`Error::Cancelled`].
    pub fn lock_or_cancel(&self, cancel: &Receiver<()>) -> Result<MultiGuard, Error> {
        self.lock_with(Some(cancel))
    }

    /// Whether the calling thread, or each lock's owner, holds all of them for certain. Local: no round trip.
    #[must_use]
    pub fn is_held_by_current_thread(&self) -> bool {
        self.parts.as_ref().is_ok_and(|parts| parts.iter().all(Part::is_held))
    }

    fn lock_with(&self, cancel: Option<&Receiver<()>>) -> Result<MultiGuard, Error> {
        match self.carry_out(Wait::For(Until { deadline: None, cancel }))? {
            Some(guard) => Ok(guard),
            // A wait without a deadline does not end by time.
            None => Err(Error::Cancelled { name: shown(self.parts()?) }),
        }
    }

    fn parts(&self) -> Result<&[Part], Error> {
        self.parts.as_deref().map_err(Clone::clone)
    }

    /// The clock that a wait is measured by: that of the first lock's client.
    fn clock(&self) -> Result<Arc<dyn Clock>, Error> {
        let first = self.parts()?.first();
        first.map_or_else(|| Err(none()), Part::clock)
    }

    fn carry_out(&self, wait: Wait<'_>) -> Result<Option<MultiGuard>, Error> {
        let parts = self.parts()?;
        // Before anything is sent: what can never be taken.
        parts.iter().try_for_each(Part::check)?;
        let taking = Taking { parts, clock: self.clock()?, end: wait };
        let taken = match wait {
            Wait::No => taking.at_once()?,
            Wait::For(until) => taking.by_rounds(until)?,
        };
        let Some(bundle) = taken else {
            return Ok(None);
        };
        // What was granted first must still be there when the last is. Else all are released.
        bundle.check()?;
        Ok(Some(MultiGuard::new(bundle)))
    }
}

/// One call that takes all.
struct Taking<'a> {
    parts: &'a [Part],
    clock: Arc<dyn Clock>,
    end: Wait<'a>,
}

/// Grips by the places of their locks.
type Taken = BTreeMap<usize, Grip>;

impl Taking<'_> {
    /// One try for each. Dropping what was taken releases it.
    fn at_once(&self) -> Result<Option<Bundle>, Error> {
        let mut taken = Hand::default();
        for (place, part) in self.parts.iter().enumerate() {
            match part.take(Wait::No)? {
                Some(grip) => taken.0.insert(place, grip),
                None => return Ok(None),
            };
        }
        Ok(Some(taken.into_bundle()))
    }

    /// Round after round: one lock is waited for with nothing held, and then the others. The one that was missing is
    /// the next to be waited for.
    fn by_rounds(&self, until: Until<'_>) -> Result<Option<Bundle>, Error> {
        let back_off = BackOff::new(Duration::from_millis(1), LONGEST_PAUSE);
        let mut first = 0;
        let mut rounds = 0;
        loop {
            let mut taken = Hand::default();
            let Some(grip) = self.part(first)?.take(self.until(first, until.deadline)?)? else {
                return Ok(None);
            };
            taken.0.insert(first, grip);
            let Some(missing) = self.take_others(&mut taken, first, until)? else {
                return Ok(Some(taken.into_bundle()));
            };
            drop(taken);
            if until.deadline.is_some_and(|deadline| deadline <= self.clock.now()) {
                return Ok(None);
            }
            first = missing;
            // The missing one is waited for at once, so that the moment in which it is free is not missed. Only where
            // that has not helped before, others are let go first.
            if rounds > 0 {
                self.pause(back_off.pause(rounds - 1), until)?;
            }
            rounds = rounds.saturating_add(1);
        }
    }

    /// Takes all but `first`, which is held. Answers which one could not be had.
    fn take_others(
        &self,
        taken: &mut Hand,
        first: usize,
        until: Until<'_>,
    ) -> Result<Option<usize>, Error> {
        let hold_until = self.clock.now() + self.wait_while_holding()?;
        let deadline = until.deadline.map_or(hold_until, |deadline| deadline.min(hold_until));
        for (place, part) in self.parts.iter().enumerate() {
            if place == first {
                continue;
            }
            // Against the order there is no waiting at all.
            let in_order = place > first;
            let wait = if in_order { self.until(place, Some(deadline))? } else { Wait::No };
            match part.take(wait) {
                Ok(Some(grip)) => drop(taken.0.insert(place, grip)),
                Ok(None) => return Ok(Some(place)),
                // Its server is slow, or away. With nothing held there is more time to find out.
                Err(error) if in_order && deadline == hold_until && error.is_retryable() => {
                    return Ok(Some(place));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// The bound for waiting while holding.
    fn wait_while_holding(&self) -> Result<Duration, Error> {
        let mut bound = WAIT_WHILE_HOLDING;
        for part in self.parts {
            bound = bound.min(part.plan.lease()? / 2);
        }
        Ok(bound)
    }

    /// The wait for one lock until `deadline`, by the clock of its own client.
    fn until(&self, place: usize, deadline: Option<Instant>) -> Result<Wait<'_>, Error> {
        let cancel = match self.end {
            Wait::No => None,
            Wait::For(until) => until.cancel,
        };
        let Some(deadline) = deadline else {
            return Ok(Wait::For(Until { deadline: None, cancel }));
        };
        let left = deadline.saturating_duration_since(self.clock.now());
        let deadline = self.part(place)?.clock()?.now().checked_add(left);
        Ok(Wait::For(Until { deadline, cancel }))
    }

    fn part(&self, place: usize) -> Result<&Part, Error> {
        self.parts.get(place).ok_or_else(none)
    }

    fn pause(&self, pause: Duration, until: Until<'_>) -> Result<(), Error> {
        let end = self.clock.now() + pause;
        let end = until.deadline.map_or(end, |deadline| deadline.min(end));
        let parker = Parker::new();
        while self.clock.now() < end {
            if is_cancelled(until.cancel) {
                return Err(Error::Cancelled { name: shown(self.parts) });
            }
            park(&*self.clock, &parker, Some(end), until.cancel);
        }
        Ok(())
    }
}

/// What one round has taken. Dropping it lets go of all, of several servers at the same time.
#[derive(Default)]
struct Hand(Taken);

impl Hand {
    fn into_bundle(mut self) -> Bundle {
        Bundle::new(std::mem::take(&mut self.0))
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        drop(Bundle::new(std::mem::take(&mut self.0)));
    }
}

/// Puts the locks in the order in which everybody takes them.
fn ordered(mut parts: Vec<Part>) -> Result<Arc<[Part]>, Error> {
    if parts.is_empty() {
        return Err(none());
    }
    // Who writes and reads one key writes first: nobody can become a writer while reading.
    parts
        .sort_by_cached_key(|part| (part.server.clone(), part.key(), part.plan.kind == Kind::Read));
    // Neighbours only if they share a key, and few do.
    let mut different: Vec<Part> = Vec::with_capacity(parts.len());
    for part in parts {
        if different.iter().any(|other| other.is_the_same_as(&part)) {
            continue;
        }
        if let Some(other) = different.iter().find(|other| other.excludes(&part)) {
            let reason = format!("two owners of {:?} would wait for each other", other.shown());
            return Err(Error::InvalidSetting { setting: "multi_lock", reason });
        }
        different.push(part);
    }
    Ok(different.into())
}

fn none() -> Error {
    Error::InvalidSetting { setting: "multi_lock", reason: "there are no locks".to_owned() }
}

/// All the names, for messages.
fn shown(parts: &[Part]) -> String {
    parts.iter().map(Part::shown).collect::<Vec<_>>().join(", ")
}

impl fmt::Debug for MultiLock {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("MultiLock").field("parts", &self.parts).finish()
    }
}
