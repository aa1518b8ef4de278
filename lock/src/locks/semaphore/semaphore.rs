//! The semaphore of permits without ids: a number, without owners and leases.

use std::sync::Arc;
use std::time::Duration;

use crate::core::named::{NamedObject, check_count, wait_for_grant};
use crate::error::Error;
use crate::events::acquires::AcquireKind;
use crate::locks::semaphore::acquire::{SemaphoreAcquire, drain};
use crate::locks::semaphore::guard::SemaphoreGuard;
use crate::model::lease::Lease;
use crate::model::wait::Wait;
use crate::ops::{AddPermits, AddPermitsReply, TrySetPermits};

/// A number of permits, shared by all clients of a server. Cheap to create, clone and share;
/// creation acquires no permits.
///
/// Returned by [`Client::semaphore`](crate::Client::semaphore).
///
/// ```
/// use std::time::Duration;
/// use wheellock::Client;
///
/// let client = Client::in_memory();
/// let downloads = client.semaphore("downloads");
/// downloads.try_set_permits(2)?;
/// if let Some(guard) = downloads.try_acquire_for(1, Duration::from_secs(5))? {
///     // At most two at a time.
///     guard.release()?; // or drop it
/// }
/// # Ok::<(), wheellock::Error>(())
/// ```
///
/// An acquire returns a [`SemaphoreGuard`], which gives the permits back on drop. Permits of a
/// [forgotten](SemaphoreGuard::forget) guard are given back by [`release`](Self::release), from any
/// client. **The permits of a process that dies stay taken.** If permits must return after a crash,
/// use an [`ExpirableSemaphore`](crate::ExpirableSemaphore).
///
/// A semaphore is created by [`try_set_permits`](Self::try_set_permits), and has no permits before.
/// Clients do not queue: returned permits go to the first client to ask. Within one client waiters
/// queue, and a waiter for more permits than are free does not block later waiters for fewer
/// permits.
///
/// Each call counts once, even if sent again: the server remembers the answer, under a separate
/// key. A client has as many of these keys as concurrent calls. The keys live for 72 s with the
/// default command timeout.
///
/// The idea, the key and the messages are Redisson's (`RSemaphore`), which follows
/// `java.util.concurrent`; semaphores are Dijkstra's (1962). Unlike in Redisson,
/// [`add_permits`](Self::add_permits) and [`drain_permits`](Self::drain_permits) do not change the
/// key's time to live.
#[derive(Clone, Debug)]
pub struct Semaphore {
    named: NamedObject,
}

impl Semaphore {
    /// Returns the semaphore `named`. Sends nothing.
    pub(crate) fn new(named: NamedObject) -> Self {
        Self { named }
    }

    /// Acquires `permits`, all or none, and waits without a limit.
    ///
    /// The wait does not poll: a release wakes the waiter. If the message is lost, the waiter asks
    /// again after at most one second.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidName`], [`Error::InvalidCount`] - permanent, nothing was sent.
    /// * [`Error::WrongType`] - the key contains a non-numeric value. Permanent.
    /// * [`Error::Unreachable`], [`Error::Refused`], [`Error::Authentication`] - the server did not
    ///   execute the command for twice the command timeout. A server that is out of memory refuses
    ///   an acquire, but not a release.
    /// * [`Error::OutcomeUnknown`] - the server did not answer for twice the command timeout.
    ///   Nothing is held; permits possibly taken by the command are given back in the background,
    ///   if the server answers again within a minute.
    /// * [`Error::NotReplicated`] - too few [replicas](crate::ClientBuilder::replica_acks) have
    ///   acknowledged the acquire. Nothing is held.
    /// * [`Error::Shutdown`] - the client was shut down. Permanent.
    /// * [`Error::Forked`] - this process is a fork of the client's. Permanent.
    pub fn acquire(&self, permits: u32) -> Result<SemaphoreGuard, Error> {
        if let Some(guard) = self.try_acquire_with(permits, Wait::forever())? {
            return Ok(guard);
        }
        // Not reached: a wait without a limit does not time out.
        Err(Error::Cancelled { name: self.named.current()?.1.shown() })
    }

    /// Acquires `permits` in one try. Returns `None` if fewer permits are free.
    ///
    /// # Errors
    ///
    /// See [`acquire`](Self::acquire).
    pub fn try_acquire(&self, permits: u32) -> Result<Option<SemaphoreGuard>, Error> {
        self.try_acquire_with(permits, Wait::none())
    }

    /// Acquires `permits`, and waits for [at most](Wait::at_most) `limit`. Returns `None` on
    /// timeout.
    ///
    /// # Errors
    ///
    /// See [`try_acquire_with`](Self::try_acquire_with).
    pub fn try_acquire_for(
        &self,
        permits: u32,
        limit: Duration,
    ) -> Result<Option<SemaphoreGuard>, Error> {
        self.try_acquire_with(permits, limit)
    }

    /// Acquires `permits`, and waits within the limit of [`wait`](Wait). Returns `None` on timeout.
    ///
    /// # Errors
    ///
    /// See [`acquire`](Self::acquire). If the server has not answered by the end of the wait, the
    /// call returns an error. Also [`Error::Cancelled`].
    #[expect(single_use_lifetimes, reason = "it cannot be elided in an `impl Trait`")]
    pub fn try_acquire_with<'a>(
        &self,
        permits: u32,
        wait: impl Into<Wait<'a>>,
    ) -> Result<Option<SemaphoreGuard>, Error> {
        let (core, name) = self.named.current()?;
        if check_count(permits)? == 0 {
            return Ok(Some(SemaphoreGuard::new(core, name, 0)));
        }
        let channel = name.semaphore_channel();
        let mut acquire = SemaphoreAcquire::new(&core, name.clone(), permits);
        let kind = AcquireKind::Semaphore;
        let granted = wait_for_grant(&core, kind, (&name, &channel), wait.into(), &mut acquire)?;
        Ok(granted.map(|undo| {
            // The guard comes first: if the clock panics, `undo` undoes the acquire.
            let guard = SemaphoreGuard::new(Arc::clone(&core), name, permits);
            undo.disarm();
            guard
        }))
    }

    /// Adds `permits`, no matter which client acquired them, such as the permits of a
    /// [forgotten](SemaphoreGuard::forget) guard. Creates the semaphore if missing. Wakes waiters.
    ///
    /// # Errors
    ///
    /// See [`acquire`](Self::acquire), but after an [`Error::OutcomeUnknown`] the command may have
    /// run. Also [`Error::InvalidCount`] if the sum exceeds 2,147,483,647.
    pub fn release(&self, permits: u32) -> Result<(), Error> {
        self.add(permits, false).map(|_| ())
    }

    /// Adds `permits` as [`release`](Self::release) does, if the semaphore exists. Returns `false`
    /// otherwise.
    ///
    /// # Errors
    ///
    /// See [`release`](Self::release).
    pub fn release_if_exists(&self, permits: u32) -> Result<bool, Error> {
        self.add(permits, true)
    }

    /// The number of free permits: negative if [`add_permits`](Self::add_permits) removed more
    /// permits than were free, zero if the semaphore does not exist.
    ///
    /// # Errors
    ///
    /// See [`acquire`](Self::acquire).
    pub fn available_permits(&self) -> Result<i64, Error> {
        self.named.number()
    }

    /// Acquires all free permits and returns their number. A negative number of free permits is set
    /// to zero.
    ///
    /// # Errors
    ///
    /// See [`acquire`](Self::acquire). Permits taken without a returned number are given back.
    pub fn drain_permits(&self) -> Result<i64, Error> {
        let (core, name) = self.named.current()?;
        drain(&core, name)
    }

    /// Creates the semaphore with `permits`, and wakes waiters. Returns `false` if the semaphore
    /// exists.
    ///
    /// # Errors
    ///
    /// See [`release`](Self::release).
    pub fn try_set_permits(&self, permits: u32) -> Result<bool, Error> {
        let permits = check_count(permits)?;
        self.named.ask(|name, request| TrySetPermits::new(name, permits, 0, request))
    }

    /// Creates the semaphore with `permits`, and deletes the semaphore after `ttl`. Returns `false`
    /// if the semaphore exists. Waiters continue to wait after the deletion, until the semaphore is
    /// created again.
    ///
    /// # Errors
    ///
    /// See [`release`](Self::release). Also [`Error::InvalidLease`] if `ttl` is shorter than 10 ms
    /// or longer than a hundred years.
    pub fn try_set_permits_for(&self, permits: u32, ttl: Duration) -> Result<bool, Error> {
        let (permits, ttl) = (check_count(permits)?, Lease::named("time to live", ttl)?);
        self.named.ask(|name, request| TrySetPermits::new(name, permits, ttl.millis(), request))
    }

    /// Adds `change` permits, or removes permits if `change` is negative, even if none are free.
    /// Creates the semaphore if missing. An addition wakes waiters.
    ///
    /// # Errors
    ///
    /// See [`release`](Self::release).
    pub fn add_permits(&self, change: i32) -> Result<(), Error> {
        add_permits(&self.named, i64::from(change), false).map(|_| ())
    }

    /// Adds `permits` free permits. Returns `false` if the semaphore does not exist and
    /// `must_exist` is set.
    fn add(&self, permits: u32, must_exist: bool) -> Result<bool, Error> {
        add_permits(&self.named, i64::from(check_count(permits)?), must_exist)
    }
}

/// Adds free permits, or removes permits if `permits` is negative. Returns `false` if the semaphore
/// does not exist and `must_exist` is set.
pub(crate) fn add_permits(
    named: &NamedObject,
    permits: i64,
    must_exist: bool,
) -> Result<bool, Error> {
    if permits == 0 && !must_exist {
        // Nothing to send, if the client and the name are valid.
        return named.current().map(|_| true);
    }
    match named.ask(|name, request| AddPermits::new(name, permits, must_exist, request))? {
        AddPermitsReply::Done => Ok(true),
        AddPermitsReply::Missing => Ok(false),
        AddPermitsReply::OutOfRange => {
            let reason = "the sum does not fit in 32 bits".to_owned();
            Err(Error::InvalidCount { count: permits.into(), reason })
        }
    }
}
