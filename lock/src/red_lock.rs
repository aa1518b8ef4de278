//! One lock on several independent servers, held by who holds it on a majority of them.

use std::fmt;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

use crate::back_off::BackOff;
use crate::client::Client;
use crate::error::Error;
use crate::owner::Holder;
use crate::part::{AnyLock, AsPart, Part};
use crate::red_guard::RedGuard;
use crate::team::{Team, Tried};
use crate::tied::{AnyThread, ThisThread};
use crate::wait::Until;

/// A lock on several servers that know nothing of each other. Whoever holds it on a majority of them holds it, so it
/// outlives the loss of a minority: their crash, their hanging, the loss of their keys.
///
/// **Taking it.** All servers are asked at the same time; as soon as a majority has granted it, it is held, and those
/// that answer later join. If a majority cannot be had, or has not answered within the
/// [server timeout](Self::with_server_timeout), everything is released everywhere, and it is tried again after a pause
/// with jitter. No server is ever waited on for the lock while others are held, so there is no deadlock. Each part
/// counts from before its own request was sent, less one hundredth and 2 ms; if a majority's time is over when it is
/// complete, it was not granted.
///
/// **Holding it.** Each part is renewed by its own client's watchdog; the lock is held as long as a majority of
/// the parts is. [`with_lease`](Self::with_lease) makes it end by itself. The same thread may take it again: its parts
/// nest, and parts that were missing are asked for again.
///
/// **Threads.** Each `RedLock` has a thread for each server, started when it is first taken and shared by its
/// clones and by [`with_name`](Self::with_name), so make one and keep it. Where many callers stand in line before a
/// server that answers, there come to be up to eight; beyond 256 in that line a caller is refused as if somebody else
/// had the lock. A server that hangs keeps its threads busy for one command timeout, and counts as not granting
/// meanwhile; it slows down nobody else.
///
/// **Load.** No message tells of a majority, so waiters poll, and each waiting thread does so for itself: at each try
/// every server is asked for an acquire, and for a release if it has granted. With the default
/// [pauses](Self::with_back_off) that is about ten tries a second of each waiter in the end.
///
/// **Servers.** What counts as one server is its host and port, whatever the database. One server under two names is
/// not noticed, and would have two votes.
///
/// On each server it is an ordinary lock. Redisson's is `RedissonRedLock`, which it excludes; the idea is Redis's
/// own (Distributed Locks with Redis). It does not fence: see [the crate's words](crate#what-it-does-not-do). A server
/// that restarts without its keys may grant what it granted before; start it after the longest lease has passed.
///
/// ```
/// use std::time::Duration;
/// use wheellock::{Client, RedLock};
///
/// let clients = [Client::in_memory(), Client::in_memory(), Client::in_memory()];
/// let lock = RedLock::new(&clients, "orders:42");
/// if let Some(guard) = lock.try_lock_for(Duration::from_secs(5))? {
///     guard.check()?;
///     // Alone.
///     guard.unlock()?;
/// }
/// # Ok::<(), wheellock::Error>(())
/// ```
pub struct RedLock<T = ThisThread> {
    team: Result<Team, Error>,
    server_timeout: Option<Duration>,
    back_off: BackOff,
    guards: PhantomData<fn() -> T>,
}

const SHORTEST_TIMEOUT: Duration = Duration::from_millis(50);
const LONGEST_TIMEOUT: Duration = Duration::from_millis(250);
/// A default timeout is this part of the lease, and one that is set at most the other.
const DEFAULT_PART_OF_LEASE: u32 = 20;
const LARGEST_PART_OF_LEASE: u32 = 3;

impl RedLock {
    /// The reentrant lock `name` on the servers of these clients, of which there must be three at least, each another.
    /// Five outlive the loss of two. An even number outlives no more than one less.
    ///
    /// A wrong list or name is an error when the lock is taken.
    #[must_use]
    pub fn new(clients: &[Client], name: &str) -> Self {
        let parts = clients.iter().map(|client| client.lock(name).as_part()).collect();
        Self::with_team(Team::new(parts))
    }

    /// Of these locks, which may be of any kind and of different names, as Redisson has it. Each must be on another
    /// server.
    ///
    /// ```
    /// use wheellock::{Client, RedLock};
    ///
    /// let [a, b, c] = [(); 3].map(|()| Client::in_memory().fenced_lock("orders:42"));
    /// let _guard = RedLock::of(&[&a, &b, &c]).lock()?;
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    #[must_use]
    pub fn of(locks: &[&dyn AnyLock]) -> Self {
        Self::with_team(Team::new(locks.iter().map(|lock| lock.as_part()).collect()))
    }

    fn with_team(team: Result<Team, Error>) -> Self {
        let back_off = BackOff::default();
        Self { team, server_timeout: None, back_off, guards: PhantomData }
    }
}

impl<T> RedLock<T> {
    /// The same lock for an owner of that name instead of the calling thread: its guards may be sent to other threads.
    /// As [`Lock::with_owner`](crate::Lock::with_owner) on each server.
    ///
    /// ```
    /// use wheellock::{Client, RedLock};
    ///
    /// let clients = [Client::in_memory(), Client::in_memory(), Client::in_memory()];
    /// let guard = RedLock::new(&clients, "orders:42").with_owner("request 7").lock()?;
    /// std::thread::spawn(move || guard.unlock()).join().unwrap()?;
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    #[must_use]
    pub fn with_owner(mut self, owner: &str) -> RedLock<AnyThread> {
        let owner = Holder::named(owner);
        self.change(|part| part.owner = Some(owner.clone()));
        let Self { team, server_timeout, back_off, .. } = self;
        RedLock { team, server_timeout, back_off, guards: PhantomData }
    }

    /// Another lock on the same servers, with the same settings and the same threads. Each client puts its
    /// [prefix](Client::with_prefix) before `name`.
    ///
    /// ```
    /// use wheellock::{Client, RedLock};
    ///
    /// let clients = [Client::in_memory(), Client::in_memory(), Client::in_memory()];
    /// let first = RedLock::new(&clients, "orders:42");
    /// let _both = (first.lock()?, first.with_name("orders:43").lock()?);
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    #[must_use]
    pub fn with_name(&self, name: &str) -> Self {
        let mut other = self.clone();
        other.change(|part| part.plan.set_name(name));
        other
    }

    /// The same lock, with holds that last for `lease` and are not renewed. As
    /// [`Lock::with_lease`](crate::Lock::with_lease).
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.change(|part| part.plan.set_lease(lease));
        self
    }

    /// How long the servers' answers are waited for, all of them together. A twentieth of the lease unless set, but
    /// at least 50 ms and at most 250. More than zero, and a third of the lease at most: far less than the lease, or
    /// little of it is left.
    #[must_use]
    pub fn with_server_timeout(mut self, timeout: Duration) -> Self {
        self.server_timeout = Some(timeout);
        self
    }

    /// The pauses between tries, which double while somebody else holds the lock. Waiters poll: no message tells of a
    /// majority.
    #[must_use]
    pub fn with_back_off(mut self, back_off: BackOff) -> Self {
        self.back_off = back_off;
        self
    }

    /// Takes the lock, and waits for it as long as it takes.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidSetting`] - there are fewer than three servers, one of them is there twice, or the server
    ///   timeout does not fit the lease. Permanent, nothing was sent.
    /// * What [`Lock::lock`](crate::Lock::lock) may return, if so many servers have failed that a majority cannot be
    ///   had: at once if it is permanent, else when that has lasted for twice the command timeout. Nothing is held;
    ///   what may have been granted is released in the background.
    pub fn lock(&self) -> Result<RedGuard<T>, Error> {
        self.lock_with(None)
    }

    /// Takes the lock if it is free: each server is asked once. `None` if others hold it on so many that there is no
    /// majority, also if nobody else has one.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), at once.
    pub fn try_lock(&self) -> Result<Option<RedGuard<T>>, Error> {
        self.carry_out(None)
    }

    /// Takes the lock, and waits for it for at most `wait`. `None` if it could not be had in that time. A `wait` of
    /// zero is a [`try_lock`](Self::try_lock).
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), and by the end of the wait.
    pub fn try_lock_for(&self, wait: Duration) -> Result<Option<RedGuard<T>>, Error> {
        self.try_lock_with(wait, None)
    }

    /// Takes the lock, and waits for it for at most `wait`, or until `cancel` has a message or has lost its senders. As
    /// [`Lock::try_lock_for_or_cancel`](crate::Lock::try_lock_for_or_cancel).
    ///
    /// # Errors
    ///
    /// As [`try_lock_for`](Self::try_lock_for), and [`Error::Cancelled`].
    pub fn try_lock_for_or_cancel(
        &self,
        wait: Duration,
        cancel: &Receiver<()>,
    ) -> Result<Option<RedGuard<T>>, Error> {
        self.try_lock_with(wait, Some(cancel))
    }

    /// Takes the lock, and waits for it until `deadline`, as [`try_lock_for`](Self::try_lock_for) does.
    ///
    /// # Errors
    ///
    /// As [`try_lock_for`](Self::try_lock_for).
    pub fn try_lock_until(&self, deadline: Instant) -> Result<Option<RedGuard<T>>, Error> {
        self.try_lock_for(self.team()?.crew.clock().remaining(deadline))
    }

    /// Takes the lock, and waits for it until `cancel` has a message or has lost its senders. As
    /// [`Lock::lock_or_cancel`](crate::Lock::lock_or_cancel).
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), and [`Error::Cancelled`].
    pub fn lock_or_cancel(&self, cancel: &Receiver<()>) -> Result<RedGuard<T>, Error> {
        self.lock_with(Some(cancel))
    }

    /// Whether the calling thread, or the locks' owner, holds it on a majority for certain. Local: no round trip.
    #[must_use]
    pub fn is_held_by_current_thread(&self) -> bool {
        self.team.as_ref().is_ok_and(|team| {
            team.parts.iter().filter(|part| part.is_held()).count() >= team.quorum
        })
    }

    fn lock_with(&self, cancel: Option<&Receiver<()>>) -> Result<RedGuard<T>, Error> {
        match self.carry_out(Some(Until { deadline: None, cancel }))? {
            Some(guard) => Ok(guard),
            // A wait without a deadline does not end by time.
            None => Err(self.team()?.cancelled()),
        }
    }

    fn try_lock_with(
        &self,
        wait: Duration,
        cancel: Option<&Receiver<()>>,
    ) -> Result<Option<RedGuard<T>>, Error> {
        if wait.is_zero() {
            return self.try_lock();
        }
        // A deadline beyond what the clock can say is none.
        let deadline = self.team()?.crew.clock().now().checked_add(wait);
        self.carry_out(Some(Until { deadline, cancel }))
    }

    fn team(&self) -> Result<&Team, Error> {
        self.team.as_ref().map_err(Clone::clone)
    }

    fn change(&mut self, change: impl Fn(&mut Part)) {
        if let Ok(team) = &mut self.team {
            let mut parts = team.parts.to_vec();
            parts.iter_mut().for_each(change);
            team.parts = parts.into();
        }
    }

    /// Once if there is no end to wait for.
    fn carry_out(&self, until: Option<Until<'_>>) -> Result<Option<RedGuard<T>>, Error> {
        let team = self.team()?;
        let limit = self.limit(team)?;
        let crew = team.crew.current();
        let Some(until) = until else {
            let once = Until { deadline: None, cancel: None };
            return match team.attempt(&crew, limit, once)? {
                Tried::Granted(guard) => Ok(Some(guard)),
                Tried::Busy => Ok(None),
                Tried::Failed(error) => Err(error),
            };
        };
        let patience = team.patience();
        let mut failing_since: Option<Instant> = None;
        let mut tries = 0;
        loop {
            let failure = match team.attempt(&crew, limit, until)? {
                Tried::Granted(guard) => return Ok(Some(guard)),
                Tried::Busy => None,
                Tried::Failed(error) if error.is_retryable() => Some(error),
                Tried::Failed(error) => return Err(error),
            };
            let now = crew.clock().now();
            let time_is_up = until.deadline.is_some_and(|deadline| deadline <= now);
            match failure {
                None => failing_since = None,
                // Others had it a moment ago, and the time was up before there was another answer.
                Some(_) if time_is_up && tries > 0 && failing_since.is_none() => return Ok(None),
                Some(error) => {
                    let since = *failing_since.get_or_insert(now);
                    if time_is_up || now.saturating_duration_since(since) >= patience {
                        return Err(error);
                    }
                }
            }
            if time_is_up {
                return Ok(None);
            }
            team.pause(&crew, self.back_off.pause(tries), until)?;
            tries = tries.saturating_add(1);
        }
    }

    /// How long the servers are waited for.
    fn limit(&self, team: &Team) -> Result<Duration, Error> {
        let mut lease = Duration::MAX;
        for part in &*team.parts {
            lease = lease.min(part.plan.lease()?);
        }
        let most = lease / LARGEST_PART_OF_LEASE;
        let Some(timeout) = self.server_timeout else {
            let part = lease / DEFAULT_PART_OF_LEASE;
            return Ok(part.clamp(SHORTEST_TIMEOUT, LONGEST_TIMEOUT).min(most));
        };
        if timeout.is_zero() || timeout > most {
            let reason = format!("{timeout:?} is not more than zero and {most:?} at most");
            return Err(Error::InvalidSetting { setting: "server_timeout", reason });
        }
        Ok(timeout)
    }
}

impl<T> Clone for RedLock<T> {
    fn clone(&self) -> Self {
        Self {
            team: self.team.clone(),
            server_timeout: self.server_timeout,
            back_off: self.back_off,
            guards: PhantomData,
        }
    }
}

impl<T> fmt::Debug for RedLock<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let team = self.team.as_ref().map(|team| &team.parts);
        formatter.debug_struct("RedLock").field("parts", &team).finish_non_exhaustive()
    }
}
