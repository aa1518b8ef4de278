//! The guard of a red lock, and the upkeep of the hold.
//!
//! Missing members are acquired again. Otherwise a long hold would stay at a bare majority after a
//! minority was away for a minute, and a single server losing the keys would then allow two
//! holders. A timer on a thread of the red lock sends the requests and waits for nothing, so
//! renewals are not delayed. A member acquired again has a new owner, and joins only if a majority
//! is held for certain without the member. An ended hold never returns, so this majority was held
//! all the time: a rejoining member cannot hide another owner's majority. While a release of the
//! member's name is queued on the client, the member is not requested, so at most one acquire is
//! unanswered on the client.

use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

use crate::core::client_core::ClientCore;
use crate::error::{Error, LostReason};
use crate::hold::loss_signal::LossSignal;
use crate::hold::revocation::{Revocation, RevocationSignal, channel_of};
use crate::locks::guard::ThisThread;
use crate::locks::held_locks::{Extension, MemberHold};
use crate::locks::red::attempt::QuorumAttempt;
use crate::locks::red::lane::catch_and_count;
use crate::locks::red::quorum::Quorum;
use crate::locks::red::requests::{AcquireRequest, HoldTask, RELEASE};
use crate::model::PeriodicTimeout;
use crate::model::lease::Lease;
use crate::model::owner::LocalHolder;
use crate::model::panics;
use crate::ops::RENEW;

/// A held [`RedLock`](crate::RedLock), released on all servers when the guard is dropped.
///
/// Returned by [`RedLock::lock`](crate::RedLock::lock) and the other acquires of a red lock.
///
/// The guard works like a [`LockGuard`](crate::LockGuard), where held means held on a majority of
/// the servers. The guard belongs to the acquiring thread and cannot be sent to another thread,
/// unless the lock is [sendable](crate::RedLock::sendable) or has a [named
/// owner](crate::RedLock::with_owner). Each client renews the lock on the client's server. A lock
/// granted after the majority joins the hold.
///
/// Missing locks are requested again about once in a third of the lease, as
/// [`RedLock`](crate::RedLock) explains. When the majority is lost, the remaining locks are
/// released at once, in the background.
///
/// **Drop.** The drop sends the release to all servers at the same time, and does not wait for the
/// [answers](crate::guide::dropping). A server not accepting the release delays the drop by one
/// [server timeout](crate::RedLock::with_server_timeout) at most. Unacknowledged releases are
/// finished in the background. The drop never panics. [`unlock`](Self::unlock) waits for the
/// answers.
///
/// ```
/// use wheellock::{Client, LostReason, RedLock};
///
/// let clients = [Client::in_memory(), Client::in_memory(), Client::in_memory()];
/// let guard = Client::red_lock(&clients, "orders:42").lock()?;
/// assert!(guard.is_held() && guard.held_on() >= 2);
/// for client in &clients {
///     client.lock("orders:42").force_unlock()?;
/// }
/// assert!(!guard.is_held());
/// assert_eq!(guard.lost().recv(), Ok(LostReason::Deleted));
/// # Ok::<(), wheellock::Error>(())
/// ```
#[must_use = "the lock is released as soon as the guard is dropped"]
#[clippy::has_significant_drop]
pub struct RedGuard<T = ThisThread> {
    hold: Arc<RedHold>,
    /// Requests missing members. `None` if no member is watched.
    upkeep: Option<PeriodicTimeout>,
    lost: LossSignal,
    /// Whether the release has begun: a further release does nothing.
    released: bool,
    _tied: PhantomData<T>,
}

/// The hold of a guard: the granted attempt, and all parameters of a request for a missing member.
#[derive(Debug)]
pub(crate) struct RedHold {
    attempt: Arc<QuorumAttempt>,
    quorum: Quorum,
    /// The holder of members without an owner of their own.
    caller: LocalHolder,
    server_timeout: Duration,
    /// When the attempt began.
    since: Instant,
}

impl RedHold {
    /// Returns the hold of a granted `attempt`, begun at `since` by `caller`.
    pub(crate) fn new(
        attempt: Arc<QuorumAttempt>,
        quorum: Quorum,
        caller: LocalHolder,
        server_timeout: Duration,
        since: Instant,
    ) -> Self {
        Self { attempt, quorum, caller, server_timeout, since }
    }

    /// Returns the first running client of the members, which counts panics of the upkeep.
    fn core(&self) -> Option<Arc<ClientCore>> {
        self.quorum.members.iter().find_map(|member| member.spec.core().ok())
    }

    /// Returns the interval between requests for missing members: the shortest renewal interval of
    /// the members, `None` if no member is watched.
    fn interval(&self) -> Option<Duration> {
        self.quorum.members.iter().filter_map(|member| member.spec.renewal_interval()).min()
    }

    /// Starts the timer for missing members, and returns the timer, or `None` if no member is
    /// watched. The timer does not keep the hold alive.
    fn start_upkeep(self: &Arc<Self>) -> Result<Option<PeriodicTimeout>, Error> {
        let Some(interval) = self.interval() else { return Ok(None) };
        let hold = Arc::downgrade(self);
        let ask_for_missing = move || {
            if let Some(hold) = hold.upgrade() {
                let core = hold.core();
                catch_and_count(core.as_deref(), || hold.ask_for_missing());
            }
        };
        self.quorum.shared.every(interval, ask_for_missing).map(Some)
    }

    /// Returns the same hold with members that are watched when acquired again.
    fn watched(&self) -> Self {
        let mut quorum = self.quorum.clone();
        quorum.change(|member| member.spec.set_watched());
        let (attempt, caller) = (Arc::clone(&self.attempt), self.caller.clone());
        Self::new(attempt, quorum, caller, self.server_timeout, self.since)
    }

    /// Sends `extension` to the servers of all held members at the same time. Returns an error
    /// unless a majority has agreed.
    fn extend(&self, extension: Extension) -> Result<(), Error> {
        let Self { attempt, quorum, server_timeout, .. } = self;
        attempt.held.check()?;
        let task = |member: MemberHold| {
            let held = Arc::clone(&attempt.held);
            (member.position, Ok(HoldTask::Extend { held, member, extension }))
        };
        let tasks = attempt.held.members().into_iter().map(task).collect();
        let (results, unanswered) = quorum.shared.ask(tasks, quorum.size, *server_timeout, None);
        attempt.held.check()?;
        self.classify(RENEW, results, unanswered)
    }

    /// Derives the lock's result from the servers' `results` and the number of `unanswered`
    /// servers. Returns `Ok` if a majority has succeeded, an error with an unknown outcome if a
    /// majority may have succeeded, else a loss.
    fn classify(
        &self,
        operation: &'static str,
        results: Vec<Result<(), Error>>,
        unanswered: usize,
    ) -> Result<(), Error> {
        let Self { quorum, server_timeout, .. } = self;
        let done = results.iter().filter(|result| result.is_ok()).count();
        if done >= quorum.size {
            return Ok(());
        }
        let errors: Vec<Error> = results.into_iter().filter_map(Result::err).collect();
        let (lost, mut unknown): (Vec<Error>, Vec<Error>) =
            errors.into_iter().partition(|error| matches!(error, Error::Lost { .. }));
        // If a majority may have succeeded, the lock may have been held until now.
        let may_be_done = done + unanswered + unknown.len() >= quorum.size;
        if unanswered > 0 {
            let reason = format!("no answer within {server_timeout:?}").into();
            unknown.push(Error::OutcomeUnknown { operation, reason });
        }
        let first = if may_be_done { &unknown } else { &lost };
        match first.first().or(unknown.first()).or(lost.first()) {
            Some(error) => Err(error.clone()),
            // Not reached: without errors a majority has answered.
            None => Ok(()),
        }
    }

    /// Queues a request for each missing watched member if a majority is held, unless the member's
    /// last request is unanswered. Does not wait for answers.
    fn ask_for_missing(&self) {
        let Quorum { members, shared, .. } = &self.quorum;
        for position in self.attempt.held.missing(members.len()) {
            let interval = members.get(position).and_then(|member| member.spec.renewal_interval());
            if interval.is_some() && self.attempt.mark_unanswered(position) {
                let (attempt, since) = (&self.attempt, Some(self.since));
                let request = AcquireRequest::new(attempt, members, &self.caller, position, since);
                shared.acquire(request, shared.clock().now(), self.server_timeout);
            }
        }
    }
}

impl<T> RedGuard<T> {
    /// Returns the guard of `hold`, and starts the upkeep. If the upkeep cannot start, releases the
    /// lock and returns the error.
    pub(crate) fn new(hold: RedHold) -> Result<Self, Error> {
        let (lost, hold) = (LossSignal::new(), Arc::new(hold));
        let mut guard = Self { hold, upkeep: None, lost, released: false, _tied: PhantomData };
        guard.upkeep = guard.hold.start_upkeep()?;
        Ok(guard)
    }

    /// Whether the lock is held on a majority of the servers for certain. Once the result is
    /// `false`, the result stays `false`. Local: no round trip.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.hold.attempt.held.is_held()
    }

    /// Returns an error unless the lock is held on a majority of the servers for certain. Local: no
    /// round trip.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] - the majority is lost. Permanent. The reason is the reason for the loss of
    /// a server's lock.
    pub fn check(&self) -> Result<(), Error> {
        self.hold.attempt.held.check()
    }

    /// How long the lock is held on a majority for certain, without a further renewal. Zero once
    /// the majority is lost. Local: no round trip.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.hold.attempt.held.remaining()
    }

    /// Extends the lease on each server to at least `lease` from now on, and waits for the replies
    /// of a majority, for at most a [server timeout](crate::RedLock::with_server_timeout).
    ///
    /// All servers are asked at the same time, except servers with a missing lock. A lock that
    /// already lasts longer than `lease` keeps the later end. `lease` is between 10 ms and a
    /// hundred years. See [`LockGuard::extend`](crate::LockGuard::extend).
    ///
    /// ```
    /// use std::time::Duration;
    /// use wheellock::Client;
    ///
    /// let clients = [Client::in_memory(), Client::in_memory(), Client::in_memory()];
    /// let minute = Duration::from_secs(60);
    /// let guard = Client::red_lock(&clients, "report").with_lease(minute).lock()?;
    /// guard.extend(10 * minute)?;
    /// assert!(guard.remaining() > 9 * minute);
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidLease`] - `lease` is out of bounds. Permanent; nothing was sent.
    /// * [`Error::Lost`] - the lock is no longer held on a majority. Permanent.
    /// * [`Error::OutcomeUnknown`], [`Error::Unreachable`] or [`Error::Refused`] - too few servers
    ///   have agreed in time. Some servers may hold the lock for `lease`, until the release. A
    ///   server that answers later extends the lock too.
    pub fn extend(&self, lease: Duration) -> Result<(), Error> {
        let lease = Lease::new(lease)?;
        self.hold.extend(Extension::Lease(lease))
    }

    /// Makes each client's watchdog renew the lock on the client's server until the guard is gone,
    /// and requests missing locks, as if the lock had no [fixed lease](crate::RedLock::with_lease).
    ///
    /// The call waits for the replies of a majority, for at most a [server
    /// timeout](crate::RedLock::with_server_timeout). For a lock that is renewed already the call
    /// has no effect.
    ///
    /// ```
    /// use std::time::Duration;
    /// use wheellock::Client;
    ///
    /// let clients = [Client::in_memory(), Client::in_memory(), Client::in_memory()];
    /// let lock = Client::red_lock(&clients, "report").with_lease(Duration::from_secs(60));
    /// let mut guard = lock.lock()?;
    /// guard.watch()?;
    /// // The third server may join later.
    /// let is_watched = |client: &&Client| client.holds().iter().any(|hold| hold.watched);
    /// assert!(clients.iter().filter(is_watched).count() >= 2);
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// * [`Error::Lost`] - the lock is no longer held on a majority. Permanent.
    /// * [`Error::OutcomeUnknown`], [`Error::Unreachable`] or [`Error::Refused`] - too few servers
    ///   have agreed in time.
    /// * [`Error::WatchdogGone`] or [`Error::Thread`] - a thread needed for the renewal has ended,
    ///   or cannot be started.
    ///
    /// After an error some of the servers' locks may be renewed until the guard is gone; a second
    /// call completes the change.
    pub fn watch(&mut self) -> Result<(), Error> {
        self.check()?;
        let watched = Arc::new(self.hold.watched());
        let upkeep = watched.start_upkeep()?;
        let result = watched.extend(Extension::Watched);
        if result.is_ok() {
            self.hold = watched;
        }
        let ended = if result.is_ok() { mem::replace(&mut self.upkeep, upkeep) } else { upkeep };
        if let Some(ended) = ended {
            ended.cancel();
        }
        result
    }

    /// A channel for the loss of the majority, which receives as a single message the reason for
    /// the decisive loss of a server's lock. The channel closes without a message when the guard is
    /// gone.
    ///
    /// A loss before the first call is received too. There is no [`LostFuture`](crate::LostFuture)
    /// of a red lock: a client's thread wakes the client's tasks, and a red lock may outlive any
    /// client. An async program waits for this channel on a blocking thread, or polls
    /// [`is_held`](Self::is_held).
    #[must_use]
    pub fn lost(&self) -> &Receiver<LostReason> {
        self.lost.channel(|listener| self.hold.attempt.held.add_listener(listener))
    }

    /// Returns the signal of revocation requests for any member; `None` in the child of a fork. The
    /// first call subscribes the members' clients to the requests.
    fn signal(&self) -> Option<&Arc<RevocationSignal>> {
        self.lost.revocation(|listener| self.hold.attempt.held.subscribe_to_revocations(listener))
    }

    /// A channel for a [request](crate::Lock::ask) to release the lock on any of the servers, which
    /// receives the first request as a single message. The channel closes without a message when
    /// the guard is gone.
    ///
    /// A request is no loss: the holder ends the work and drops the guard, or continues. The first
    /// call for a client subscribes to requests, and returns at once: earlier requests are missed.
    /// See [`LockGuard::revocation`](crate::LockGuard::revocation).
    #[must_use]
    pub fn revocation(&self) -> &Receiver<Revocation> {
        channel_of(self.signal())
    }

    /// Whether a [request](crate::Lock::ask) to release the lock on any of the servers was
    /// received. Local: no round trip.
    ///
    /// The first call for a client subscribes to requests, as for [`revocation`](Self::revocation):
    /// earlier requests are missed. Once the result is `true`, the result stays `true`. In the
    /// child of a fork the result is `false`.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.signal().is_some_and(|signal| signal.is_asked())
    }

    /// The number of servers on which the lock is held for certain, or zero once the majority is
    /// lost. Local: no round trip.
    ///
    /// The number grows when a missing lock is granted, and falls when a server's lock is lost.
    #[must_use]
    pub fn held_on(&self) -> usize {
        self.hold.attempt.held.held()
    }

    /// The held locks, for inspection by a thread without the guard.
    #[cfg(all(test, wheellock_shuttle))]
    pub(crate) fn held_locks(&self) -> Arc<crate::locks::held_locks::HeldLocks> {
        Arc::clone(&self.hold.attempt.held)
    }

    /// The name of the lock on the first server, with the client's prefix. A name of more than 80
    /// characters is truncated.
    #[must_use]
    pub fn name(&self) -> String {
        self.hold.quorum.name()
    }

    /// Releases the lock on all servers, and waits for the answers of a majority, for at most a
    /// [server timeout](crate::RedLock::with_server_timeout). `Ok` means: a majority of the servers
    /// held the lock until now, and has released the lock.
    ///
    /// If the thread has other guards of the lock, the lock stays held, and only the count of the
    /// hold decreases.
    ///
    /// # Errors
    ///
    /// * [`Error::Lost`] - the lock was no longer held on a majority, with the reason. The
    ///   remaining locks are released. In the child of a fork the reason is [`LostReason::Forked`],
    ///   and the parent's hold is not touched.
    /// * [`Error::OutcomeUnknown`], [`Error::Unreachable`] or [`Error::Refused`] - too few servers
    ///   have acknowledged the release in time. The release is finished in the background, or by
    ///   the end of the leases.
    pub fn unlock(mut self) -> Result<(), Error> {
        self.release(false)
    }

    /// Ends the upkeep and releases all members, unless released before. With `on_drop`, does not
    /// wait for the answers. Returns the lock's loss, or the outcome of a majority of the releases.
    /// In the child of a fork only returns the loss.
    fn release(&mut self, on_drop: bool) -> Result<(), Error> {
        if mem::replace(&mut self.released, true) {
            return Ok(());
        }
        let RedHold { attempt, quorum, server_timeout, .. } = &*self.hold;
        if !quorum.shared.is_current() {
            // The hold belongs to the parent, and a thread of the parent may have locked the
            // mutexes. So the hold is never dropped.
            mem::forget((Arc::clone(&self.hold), self.upkeep.take()));
            return self.check();
        }
        // The upkeep is cancelled before the clock is read, because the clock may panic.
        if let Some(upkeep) = self.upkeep.take() {
            upkeep.cancel();
        }
        let held = self.check();
        let (guards, _, _) = attempt.close();
        let (results, unanswered) =
            quorum.shared.release(guards, quorum.size, *server_timeout, None, on_drop);
        held?;
        self.hold.classify(RELEASE, results, unanswered)
    }
}

impl<T> Drop for RedGuard<T> {
    fn drop(&mut self) {
        // A failed release is queued. If the clock panics, each remaining guard is dropped.
        panics::catch_panic(|| drop(self.release(true)));
        drop(self.hold.attempt.held.close());
    }
}

impl<T> fmt::Debug for RedGuard<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("RedGuard")
            .field("name", &self.name())
            .field("held_on", &self.held_on())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
