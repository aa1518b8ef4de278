//! Acquires a multi-lock: with a single try for each lock, or in rounds.
//!
//! A round waits for a lock with nothing held, and then for all further locks for a short time.
//! Without success, a round releases all locks. So no lock is held for long during a wait, and
//! callers with different orders do not deadlock.

use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashed_wheel::Clock;

use crate::core::raw_guard::RawGuard;
use crate::core::release::SHORTEST_RELEASE;
use crate::error::Error;
use crate::locks::any_lock::{MemberLock, shown};
use crate::locks::held_locks::RawGuards;
use crate::locks::multi::plain_locks::PlainLocks;
use crate::locks::multi::release::{ReleaseMode, release_all};
use crate::model::backoff::Backoff;
use crate::model::kind::Kind;
use crate::model::sync::is_cancelled;
use crate::model::wait::WaitSpec;

/// A call that acquires the members of a multi-lock.
pub(crate) struct MultiAcquire<'a> {
    /// In the acquire order of all clients.
    pub(crate) members: &'a [MemberLock],
    /// The clock of the wait.
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) backoff: Backoff,
}

/// The bound of the first round: how long all further locks are waited for while some locks are
/// held.
const FIRST_BOUND: Duration = Duration::from_millis(100);

/// The maximum number of plain locks to acquire in sequence after a refused batch. Contended locks
/// are hardly ever free at the same instant: of four, a waiter for all at once had none after 30 s,
/// a waiter in sequence all after 50 ms. For thousands, a sequence would be thousands of requests.
const FEW: usize = 64;

/// The longest bound of a round. The bound doubles while servers answer slowly: otherwise no client
/// could have many locks of a distant server. More locks on a still slower server are never
/// acquired together.
const LONGEST_BOUND: Duration = Duration::from_secs(3);

/// A lock that a round has not acquired.
struct Missing {
    position: usize,
    /// `None`: another owner holds the lock. Otherwise the retryable error of the server.
    error: Option<Error>,
}

impl MultiAcquire<'_> {
    /// Acquires all locks or none, and returns the guards by position. Returns `None` if another
    /// owner holds a lock at the end of the wait. Without success, releases the locks acquired so
    /// far.
    pub(crate) fn acquire(&self, wait: WaitSpec<'_>) -> Result<Option<RawGuards>, Error> {
        if wait.waits { self.acquire_in_rounds(wait) } else { self.acquire_at_once() }
    }

    /// Acquires all locks with a single try for each, or none. Returns `None` if a lock is busy.
    fn acquire_at_once(&self) -> Result<Option<RawGuards>, Error> {
        let mut partial = PartialAcquire::new(self, None);
        if let Some(plain) = PlainLocks::of(self.members)? {
            let all = (0..self.members.len()).collect();
            let busy = plain.acquire(self, &mut partial, all, WaitSpec::ONE_TRY, true)?;
            return if busy.is_empty() { partial.complete().map(Some) } else { Ok(None) };
        }
        for (position, member) in self.members.iter().enumerate() {
            match member.acquire(WaitSpec::ONE_TRY)? {
                Some(guard) => partial.add(position, guard),
                None => return self.check_servers(position, WaitSpec::ONE_TRY).map(|()| None),
            }
        }
        partial.complete().map(Some)
    }

    /// Acquires all locks in rounds until the wait ends. Each round waits for a lock with nothing
    /// held, and then for the remaining locks for a short time. The next round first waits for the
    /// missing lock. Plain locks of the same client are tried together before the first wait. After
    /// a refusal up to [`FEW`] plain locks are acquired in sequence, and so need not all be free at
    /// the same instant.
    fn acquire_in_rounds(&self, wait: WaitSpec<'_>) -> Result<Option<RawGuards>, Error> {
        let (mut bound, longest) = self.bounds()?;
        let mut plain = PlainLocks::of(self.members)?;
        let mut first = plain.is_none().then_some(0);
        let mut rounds = 0;
        let mut was_busy = false;
        loop {
            // 1. Wait for the first lock, with nothing held.
            let mut partial = PartialAcquire::new(self, wait.deadline);
            if let Some(first) = first {
                let Some(guard) = self.acquire_member(first, wait)? else {
                    return Ok(None);
                };
                partial.add(first, guard);
            }
            // 2. Acquire the remaining locks within `bound`.
            let Some(missing) =
                self.acquire_others(&mut partial, plain.as_ref(), first, wait, bound)?
            else {
                return partial.complete().map(Some);
            };
            // 3. Release all.
            drop(partial);
            was_busy |= missing.error.is_none();
            if wait.deadline.is_some_and(|deadline| deadline <= self.clock.now()) {
                // If another owner ever held a member, the wait was for the owner: no error.
                return missing.error.filter(|_| !was_busy).map_or(Ok(None), Err);
            }
            self.check_servers(missing.position, wait)?;
            if missing.error.is_some() {
                bound = (bound * 2).min(longest);
            }
            first = Some(self.first_of_its_key(missing.position));
            plain = plain.filter(|_| self.members.len() > FEW);
            // 4. The second round waits for the missing lock at once, so as not to miss the moment
            // of the release. If the round did not help, pause with nothing held.
            if rounds > 0 && !wait.pause(&*self.clock, self.backoff.pause(rounds - 1)) {
                return Err(self.cancelled_error());
            }
            rounds = rounds.saturating_add(1);
        }
    }

    /// Acquires the free locks, with a single try for each, and returns the guards by position.
    /// Returns `None` if no lock is free.
    pub(crate) fn acquire_available(&self) -> Result<Option<RawGuards>, Error> {
        let mut partial = PartialAcquire::new(self, None);
        if let Some(plain) = PlainLocks::of(self.members)? {
            let all = (0..self.members.len()).collect();
            let _busy = plain.acquire(self, &mut partial, all, WaitSpec::ONE_TRY, false)?;
        } else {
            for (position, member) in self.members.iter().enumerate() {
                if let Some(guard) = member.acquire(WaitSpec::ONE_TRY)? {
                    partial.add(position, guard);
                }
            }
        }
        let guards = partial.complete()?;
        Ok(Some(guards).filter(|guards| !guards.is_empty()))
    }

    /// Acquires all locks but `first`, which is held, within `bound`, and adds the guards to
    /// `partial`. `plain` locks get a single try. Returns the first missing lock, or `None` if all
    /// locks are acquired.
    fn acquire_others(
        &self,
        partial: &mut PartialAcquire<'_>,
        plain: Option<&PlainLocks>,
        first: Option<usize>,
        wait: WaitSpec<'_>,
        bound: Duration,
    ) -> Result<Option<Missing>, Error> {
        let others = (0..self.members.len()).filter(|position| Some(*position) != first);
        if let Some(plain) = plain {
            return match plain.acquire(self, partial, others.collect(), wait, true) {
                Ok(busy) => Ok(busy.first().map(|at| Missing { position: *at, error: None })),
                Err(_) if is_cancelled(wait.cancel) => Err(self.cancelled_error()),
                // The next round waits for the first lock with nothing held, as for a single lock.
                Err(error) if error.is_retryable() && first.is_some() => {
                    Ok(Some(Missing { position: 0, error: Some(error) }))
                }
                Err(error) => Err(error),
            };
        }
        let end = self.clock.now() + bound;
        let end = wait.deadline.map_or(end, |deadline| deadline.min(end));
        for position in others {
            // A lock before `first` in the order gets a single try: a wait could be a deadlock.
            let wait = WaitSpec { waits: Some(position) > first, deadline: Some(end), ..wait };
            match self.acquire_member(position, wait) {
                Ok(Some(guard)) => partial.add(position, guard),
                Ok(None) => return Ok(Some(Missing { position, error: None })),
                Err(_) if is_cancelled(wait.cancel) => return Err(self.cancelled_error()),
                // The server is slow or away. The next round waits for this lock with nothing held,
                // and so for longer.
                Err(error) if error.is_retryable() => {
                    return Ok(Some(Missing { position, error: Some(error) }));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Acquires the member at `position`. Returns `None` if the wait ends without the lock. The
    /// deadline of `wait` is converted to the clock of the member's client.
    pub(crate) fn acquire_member(
        &self,
        position: usize,
        wait: WaitSpec<'_>,
    ) -> Result<Option<RawGuard>, Error> {
        let member = self.members.get(position).ok_or_else(no_locks)?;
        let Some(deadline) = wait.deadline else {
            return member.acquire(wait);
        };
        let left = deadline.saturating_duration_since(self.clock.now());
        let deadline = member.clock()?.now().checked_add(left);
        member.acquire(WaitSpec { deadline, ..wait })
    }

    /// Returns an error if the member at `missing` has the key of another member under a second
    /// address of the server: both can never be held together, however long the wait.
    fn check_servers(&self, missing: usize, wait: WaitSpec<'_>) -> Result<(), Error> {
        let missing = self.members.get(missing).ok_or_else(no_locks)?;
        let is_read = |member: &MemberLock| member.spec.kind == Kind::Read;
        let excludes = |other: &&MemberLock| {
            !(is_read(other) && is_read(missing)) && other.same_key_elsewhere(missing, wait)
        };
        let Some(other) = self.members.iter().find(excludes) else { return Ok(()) };
        let (name, [one, another]) = (missing.shown(), [other, missing].map(MemberLock::host));
        let reason = format!("{one} and {another} are one server, so {name:?} is given twice");
        Err(Error::invalid_setting("multi_lock", reason))
    }

    /// Returns the bound of the first round and the longest bound of a round, each at most half of
    /// the shortest lease.
    fn bounds(&self) -> Result<(Duration, Duration), Error> {
        let mut half = Duration::MAX;
        for member in self.members {
            half = half.min(member.spec.lease()? / 2);
        }
        Ok((FIRST_BOUND.min(half), LONGEST_BOUND.min(half)))
    }

    /// Returns the position of the first member with the key of the member at `position`: a write
    /// lock before a read lock, as a reader cannot become a writer.
    fn first_of_its_key(&self, position: usize) -> usize {
        let Some(missing) = self.members.get(position) else {
            return position;
        };
        let first = self.members.iter().position(|member| member.same_key(missing));
        first.unwrap_or(position)
    }

    /// Returns the error of a cancelled acquire.
    pub(crate) fn cancelled_error(&self) -> Error {
        Error::Cancelled { name: shown(self.members) }
    }
}

/// The guards acquired so far by a round. A drop releases all guards, by the deadline or within
/// [`SHORTEST_RELEASE`], whichever is later; without a deadline, within the time of a call.
pub(crate) struct PartialAcquire<'a> {
    guards: RawGuards,
    clock: &'a dyn Clock,
    deadline: Option<Instant>,
}

impl<'a> PartialAcquire<'a> {
    /// Returns a round of `acquire` without guards, to be released by `deadline`.
    fn new(acquire: &'a MultiAcquire<'_>, deadline: Option<Instant>) -> Self {
        Self { guards: RawGuards::new(), clock: &*acquire.clock, deadline }
    }

    /// Adds the `guard` of the member at `position`.
    pub(crate) fn add(&mut self, position: usize, guard: RawGuard) {
        // Each position is acquired once, so nothing is replaced and released here.
        drop(self.guards.insert(position, guard));
    }

    /// Returns the guards of a complete round. If a guard is lost by now, returns an error and
    /// releases all guards.
    fn complete(mut self) -> Result<RawGuards, Error> {
        self.guards.values().try_for_each(RawGuard::check)?;
        Ok(mem::take(&mut self.guards))
    }
}

impl Drop for PartialAcquire<'_> {
    fn drop(&mut self) {
        let guards = mem::take(&mut self.guards);
        let end = self.deadline.map(|end| end.max(self.clock.now() + SHORTEST_RELEASE));
        drop(release_all(guards, ReleaseMode::Once(end.map(|end| (self.clock, end)))));
    }
}

/// Returns the error for an empty list of locks.
pub(crate) fn no_locks() -> Error {
    Error::invalid_setting("multi_lock", "the list of locks is empty")
}
