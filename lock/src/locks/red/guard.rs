//! The guard of a red lock.

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

/// A held [`RedLock`](crate::RedLock). Dropping it releases the lock everywhere.
///
/// It does what a [`LockGuard`](crate::LockGuard) does, where held means on a majority of the
/// servers. It belongs to the thread that made the acquire, or to an
/// [owner](crate::RedLock::with_owner), and then it can be sent to another thread. Each server's
/// lock is renewed by its own client. One that is granted after the majority joins the hold.
///
/// Locks that are missing are asked for again about once in a third of the lease, as
/// [`RedLock`](crate::RedLock) explains. When the majority is lost, the remaining locks are
/// released at once, in the background.
///
/// **Drop.** It sends the release to all servers at the same time, and does not wait for the
/// [answers](crate::guide::dropping). A server that does not take it delays it by one
/// [server timeout](crate::RedLock::with_server_timeout) at most. What is not acknowledged is
/// released in the background. It never panics. [`unlock`](Self::unlock) waits for the answers.
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
    /// Asks for missing members. `None` if none of them is watched.
    upkeep: Option<PeriodicTimeout>,
    lost: LossSignal,
    released: bool,
    _tied: PhantomData<T>,
}

/// What a guard holds, and what is needed to ask for its missing members.
#[derive(Debug)]
pub(crate) struct RedHold {
    attempt: Arc<QuorumAttempt>,
    quorum: Quorum,
    /// Holds the members that have no named owner.
    caller: LocalHolder,
    server_timeout: Duration,
    /// When the attempt began.
    since: Instant,
}

impl RedHold {
    pub(crate) fn new(
        attempt: Arc<QuorumAttempt>,
        quorum: Quorum,
        caller: LocalHolder,
        server_timeout: Duration,
        since: Instant,
    ) -> Self {
        Self { attempt, quorum, caller, server_timeout, since }
    }

    /// A client that counts panics.
    fn core(&self) -> Option<Arc<ClientCore>> {
        self.quorum.members.iter().find_map(|member| member.spec.core().ok())
    }

    /// How often missing members are asked for; `None` if none of them is watched.
    fn interval(&self) -> Option<Duration> {
        self.quorum.members.iter().filter_map(|member| member.spec.renewal_interval()).min()
    }

    /// Starts to ask for missing members, if any is watched.
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

    /// The same, whose members are watched when they are acquired again.
    fn watched(&self) -> Self {
        let mut quorum = self.quorum.clone();
        quorum.change(|member| member.spec.set_watched());
        let (attempt, caller) = (Arc::clone(&self.attempt), self.caller.clone());
        Self::new(attempt, quorum, caller, self.server_timeout, self.since)
    }

    /// Asks the servers that hold it, at the same time. An error unless a majority has agreed.
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

    /// What the servers' answers mean for the lock.
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
        // If a majority may have done it, it may have been held until now.
        let may_be_done = done + unanswered + unknown.len() >= quorum.size;
        if unanswered > 0 {
            let reason = format!("no answer within {server_timeout:?}").into();
            unknown.push(Error::OutcomeUnknown { operation, reason });
        }
        let first = if may_be_done { &unknown } else { &lost };
        match first.first().or(unknown.first()).or(lost.first()) {
            Some(error) => Err(error.clone()),
            // Not reached: without errors there are as many answers as a majority.
            None => Ok(()),
        }
    }

    /// If a majority is held, asks for every watched member that is missing and has answered the
    /// last time. Waits for no answer.
    fn ask_for_missing(&self) {
        let Quorum { members, shared, .. } = &self.quorum;
        for position in self.attempt.held.missing(members.len()) {
            let interval = members.get(position).and_then(|member| member.spec.renewal_interval());
            if interval.is_some() && self.attempt.ask_again(position) {
                let (attempt, since) = (&self.attempt, Some(self.since));
                let request = AcquireRequest::new(attempt, members, &self.caller, position, since);
                shared.acquire(request, shared.clock().now(), self.server_timeout);
            }
        }
    }
}

impl<T> RedGuard<T> {
    /// An error if the upkeep cannot start. Then it is released.
    pub(crate) fn new(hold: RedHold) -> Result<Self, Error> {
        let (lost, hold) = (LossSignal::new(), Arc::new(hold));
        let mut guard = Self { hold, upkeep: None, lost, released: false, _tied: PhantomData };
        guard.upkeep = guard.hold.start_upkeep()?;
        Ok(guard)
    }

    /// Whether the lock is held on a majority of the servers for certain. Once it is `false` it
    /// stays so. Local: no round trip.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.hold.attempt.held.is_held()
    }

    /// An error unless the lock is held on a majority of the servers for certain. Local: no round
    /// trip.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] - it is not, and the reason for which one of the servers' locks was lost.
    pub fn check(&self) -> Result<(), Error> {
        self.hold.attempt.held.check()
    }

    /// How long a majority holds for certain, without a further renewal. Zero once it is lost.
    /// Local: no round trip.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.hold.attempt.held.remaining()
    }

    /// Asks the servers, at the same time, to keep the lock for `lease` from now on, and waits for
    /// the replies of a majority, for at most a
    /// [server timeout](crate::RedLock::with_server_timeout). As
    /// [`LockGuard::extend`](crate::LockGuard::extend). Servers on which it is missing are not
    /// asked.
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
    /// * [`Error::Lost`] - a majority does not hold it any more. Permanent.
    /// * [`Error::OutcomeUnknown`], [`Error::Unreachable`] or [`Error::Refused`] - too few servers
    ///   have agreed in time. The lock is held as long as it was; some servers may keep it for
    ///   `lease`, until it is released.
    pub fn extend(&self, lease: Duration) -> Result<(), Error> {
        let lease = Lease::new(lease)?;
        self.hold.extend(Extension::Lease(lease))
    }

    /// From now on each client's watchdog renews its server's lock until the guard is gone, and
    /// missing locks are asked for, as if the lock had no
    /// [lease of its own](crate::RedLock::with_lease). Waits for the replies of a majority, as
    /// [`extend`](Self::extend) does.
    ///
    /// ```
    /// use std::time::Duration;
    /// use wheellock::Client;
    ///
    /// let clients = [Client::in_memory(), Client::in_memory(), Client::in_memory()];
    /// let lock = Client::red_lock(&clients, "report").with_lease(Duration::from_secs(60));
    /// let mut guard = lock.lock()?;
    /// guard.watch()?;
    /// assert!(clients.iter().filter(|client| client.holds()[0].watched).count() >= 2);
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`extend`](Self::extend), and [`Error::WatchdogGone`] or [`Error::Thread`]: a thread that
    /// the renewal needs has ended, or cannot be started. After an error some of the servers' locks
    /// may be renewed until the guard is gone; a second call completes them.
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

    /// A channel that gets one message when the majority is lost: the reason for the loss that
    /// caused it. It closes without a message when the guard is dropped.
    ///
    /// There is no [`LostFuture`](crate::LostFuture) of it: a client's thread wakes its tasks, and
    /// a red lock may outlive any of its clients. An async program waits for this channel on a
    /// blocking thread, or asks [`is_held`](Self::is_held).
    #[must_use]
    pub fn lost(&self) -> &Receiver<LostReason> {
        self.lost.channel(|listener| self.hold.attempt.held.add_listener(listener))
    }

    fn signal(&self) -> Option<&Arc<RevocationSignal>> {
        self.lost.revocation(|listener| self.hold.attempt.held.hear_requests(listener))
    }

    /// A channel that gets one message when somebody [asks](crate::Lock::ask) for the lock on one of the servers. As
    /// [`LockGuard::revocation`](crate::LockGuard::revocation).
    #[must_use]
    pub fn revocation(&self) -> &Receiver<Revocation> {
        channel_of(self.signal())
    }

    /// Whether somebody has asked for the lock on one of the servers. As
    /// [`LockGuard::is_asked`](crate::LockGuard::is_asked).
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.signal().is_some_and(|signal| signal.is_asked())
    }

    /// On how many servers it is held for certain; 0 once the majority is lost. The number grows
    /// when a missing lock is granted. Local: no round trip.
    #[must_use]
    pub fn held_on(&self) -> usize {
        self.hold.attempt.held.held()
    }

    /// What it holds, for a thread that looks at it from outside.
    #[cfg(all(test, wheellock_shuttle))]
    pub(crate) fn held_locks(&self) -> Arc<crate::locks::held_locks::HeldLocks> {
        Arc::clone(&self.hold.attempt.held)
    }

    /// The name of the lock, truncated if it is very long: that on the first server, if they
    /// differ.
    #[must_use]
    pub fn name(&self) -> String {
        self.hold.quorum.name()
    }

    /// Releases the lock on all servers and returns the outcome. `Ok` means that a majority held it
    /// until now, and has released it.
    ///
    /// # Errors
    ///
    /// * [`Error::Lost`] - a majority did not hold it any more. The rest is released.
    /// * [`Error::OutcomeUnknown`], [`Error::Unreachable`] or [`Error::Refused`] - too few servers
    ///   have acknowledged the release in time. It is finished in the background, or by the end of
    ///   the leases.
    pub fn unlock(mut self) -> Result<(), Error> {
        self.release(false)
    }

    /// If `on_drop`, its releases are sent and their answers not waited for.
    fn release(&mut self, on_drop: bool) -> Result<(), Error> {
        if mem::replace(&mut self.released, true) {
            return Ok(());
        }
        let RedHold { attempt, quorum, server_timeout, .. } = &*self.hold;
        if !quorum.shared.is_current() {
            // The parent's, with mutexes that a thread of the parent may have locked. Never
            // dropped.
            mem::forget((Arc::clone(&self.hold), self.upkeep.take()));
            return self.check();
        }
        // Before the clock is asked, which may panic.
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
        // A release that fails is queued. If the clock panics, each guard that is left is dropped.
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
