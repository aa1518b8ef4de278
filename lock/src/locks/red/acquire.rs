//! One acquire of a red lock: attempts at all servers at the same time, with pauses between the
//! attempts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::core::raw_guard::RawGuard;
use crate::core::release::SHORTEST_RELEASE;
use crate::error::Error;
use crate::locks::red::attempt::QuorumAttempt;
use crate::locks::red::guard::{RedGuard, RedHold};
use crate::locks::red::quorum::Quorum;
use crate::locks::red::requests::AcquireRequest;
use crate::model::backoff::Backoff;
use crate::model::owner::LocalHolder;
use crate::model::sync::{Parker, is_cancelled, park};
use crate::model::wait::WaitSpec;
use crate::store::retry::SHORTEST_CALL;

/// One call to acquire a red lock, with the settings of the lock and the limit of the wait.
pub(crate) struct RedAcquire<'a> {
    /// The quorum, whose threads belong to the current process.
    pub(crate) quorum: Quorum,
    /// How long an attempt waits for each server.
    pub(crate) server_timeout: Duration,
    pub(crate) backoff: Backoff,
    pub(crate) wait: WaitSpec<'a>,
}

/// The outcome of one attempt at all servers.
enum AttemptOutcome<T> {
    /// A majority has granted the lock.
    Granted(RedGuard<T>),
    /// Other owners hold too many of the members.
    Busy,
    /// Too many servers have failed, a lease ended before the majority was complete, or the upkeep
    /// cannot start.
    Failed(Error),
}

impl RedAcquire<'_> {
    /// Repeats attempts until the lock is granted or the wait ends. Returns `None` if other owners
    /// hold the lock at the end of the wait. Failures of too many servers are retried for
    /// [`retry_timeout`](Quorum::retry_timeout), and returned afterwards.
    pub(crate) fn acquire<T>(&self) -> Result<Option<RedGuard<T>>, Error> {
        let retry_timeout = self.quorum.retry_timeout();
        let mut failing_since: Option<Instant> = None;
        let mut attempts = 0;
        loop {
            let failure = match self.attempt()? {
                AttemptOutcome::Granted(guard) => return Ok(Some(guard)),
                AttemptOutcome::Busy => None,
                AttemptOutcome::Failed(error) if error.is_retryable() => Some(error),
                AttemptOutcome::Failed(error) => return Err(error),
            };
            let now = self.now();
            let time_is_up =
                !self.wait.waits || self.wait.deadline.is_some_and(|deadline| deadline <= now);
            match failure {
                None => failing_since = None,
                // The last answered attempt found the lock busy, and the time was up before a
                // further answer.
                Some(_) if time_is_up && attempts > 0 && failing_since.is_none() => {
                    return Ok(None);
                }
                Some(error) => {
                    let since = *failing_since.get_or_insert(now);
                    if time_is_up || now.saturating_duration_since(since) >= retry_timeout {
                        return Err(error);
                    }
                }
            }
            if time_is_up {
                return Ok(None);
            }
            if !self.wait.pause(self.quorum.shared.clock(), self.backoff.pause(attempts)) {
                return Err(self.quorum.cancelled_error());
            }
            attempts = attempts.saturating_add(1);
        }
    }

    /// Asks every server once, waits until a majority has granted the lock or cannot grant the lock
    /// any more, and returns the outcome. Without a majority, releases the granted members. Ends
    /// soon after the deadline. Returns an error only if the wait was cancelled.
    fn attempt<T>(&self) -> Result<AttemptOutcome<T>, Error> {
        let Quorum { members, size, shared } = &self.quorum;
        if is_cancelled(self.wait.cancel) {
            return Err(self.quorum.cancelled_error());
        }
        let parker = Parker::new();
        let (name, votes) = (self.quorum.name(), &shared.votes);
        let attempt = QuorumAttempt::new(name, members.len(), *size, votes, &parker);
        let attempt = Arc::new(attempt);
        let start = self.now();
        // 1. Ask all servers at the same time. The owner is this thread, not a sending thread.
        let caller = LocalHolder::current_thread();
        for position in 0..members.len() {
            let request = AcquireRequest::new(&attempt, members, &caller, position, None);
            shared.acquire(request, start, self.server_timeout);
        }
        // 2. Wait until there is a majority, or a majority is impossible.
        self.wait_until_decided(&attempt, &parker, start);
        drop(parker);
        // 3. With a majority the lock is held. Members granted later join the hold.
        if attempt.grant() {
            let (quorum, timeout) = (self.quorum.clone(), self.server_timeout);
            let hold = RedHold::new(attempt, quorum, caller, timeout, start);
            // If upkeep cannot start, the guard is dropped, which releases all members.
            let guard = RedGuard::new(hold);
            return Ok(guard.map_or_else(AttemptOutcome::Failed, AttemptOutcome::Granted));
        }
        // 4. Otherwise all granted members are released.
        self.roll_back(&attempt)
            .map(|error| error.map_or(AttemptOutcome::Busy, AttemptOutcome::Failed))
    }

    /// Parks the thread until `attempt` is decided, the wait is cancelled, or the server timeout,
    /// counted from `start`, or the deadline of the wait is over.
    fn wait_until_decided(&self, attempt: &QuorumAttempt, parker: &Parker, start: Instant) {
        let (clock, cancel) = (self.quorum.shared.clock(), self.wait.cancel);
        // An attempt begun just before the deadline waits long enough for answers, to avoid an
        // error.
        let deadline = self.wait.deadline.map(|deadline| deadline.max(start + SHORTEST_CALL));
        let end = start + self.server_timeout;
        let end = deadline.map_or(end, |deadline| deadline.min(end));
        while !attempt.is_decided() && !is_cancelled(cancel) && self.now() < end {
            park(clock, parker, Some(end), cancel);
        }
    }

    /// Releases the granted members of an attempt without a majority. Returns the attempt's
    /// failure, or `None` if other owners hold too many members. After a cancelled wait returns
    /// [`Error::Cancelled`].
    fn roll_back(&self, attempt: &QuorumAttempt) -> Result<Option<Error>, Error> {
        let Quorum { members, size, shared } = &self.quorum;
        let was_cancelled = !attempt.is_decided() && is_cancelled(self.wait.cancel);
        let (guards, mut errors, unanswered) = attempt.close();
        // A majority was granted, but a lease expired before the majority was complete.
        let late = guards.len() >= *size;
        let lost = late.then(|| guards.values().find_map(|guard| RawGuard::check(guard).err()));
        // A cancelled caller does not wait for releases.
        let end = if was_cancelled { Some(self.now()) } else { self.wait.deadline };
        let end = end.map(|end| end.max(self.now() + SHORTEST_RELEASE));
        shared.release(guards, *size, self.server_timeout, end, false);
        if was_cancelled {
            return Err(self.quorum.cancelled_error());
        }
        if let Some(lost) = lost.flatten() {
            return Ok(Some(lost));
        }
        errors.extend((0..unanswered).map(|_| Error::OutcomeUnknown {
            operation: "acquire",
            reason: format!("no answer within {:?}", self.server_timeout).into(),
        }));
        if errors.len() + size <= members.len() {
            return Ok(None);
        }
        // If the permanent errors alone leave a majority possible, the error is retryable: the next
        // attempt may find a majority.
        let permanent = errors.iter().filter(|error| !error.is_retryable());
        let is_permanent = permanent.count() + size > members.len();
        let error = errors.iter().find(|error| error.is_retryable() != is_permanent);
        Ok(error.cloned())
    }

    fn now(&self) -> Instant {
        self.quorum.shared.clock().now()
    }
}
