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
/// A semaphore is created by [`try_set_permits`](Self::try_set_permits). A semaphore that does not
/// exist has no permits, and an acquire waits until the semaphore is created. Clients do not queue:
/// returned permits go to the first client to ask. Within one client waiters queue, and a waiter
/// for more permits than are free does not block later waiters for fewer permits.
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
    /// `permits` is at most 2,147,483,647. Zero permits are granted at once, without a request. The
    /// call waits for as long as fewer permits are free, or the semaphore does not exist.
    ///
    /// The wait does not poll: a release wakes the waiter. If the message is lost, the waiter tries
    /// again after at most one second.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidName`], [`Error::InvalidCount`] - the name cannot be used, or `permits` is
    ///   too large. Permanent; nothing was sent.
    /// * [`Error::WrongType`] - the key contains a non-numeric value. Permanent.
    /// * [`Error::Unreachable`], [`Error::Refused`], [`Error::Authentication`] - the server did not
    ///   execute the command. The call retries a transient failure for twice the [command
    ///   timeout](crate::ClientBuilder::command_timeout). A server that is out of memory refuses an
    ///   acquire, but not a release.
    /// * [`Error::OutcomeUnknown`] - the server did not answer for twice the command timeout.
    ///   Nothing is held; permits possibly taken by the command are given back in the background,
    ///   if the server answers again within a minute. Transient.
    /// * [`Error::NotReplicated`] - too few [replicas](crate::ClientBuilder::replica_acks) have
    ///   acknowledged the acquire. Nothing is held. Transient.
    /// * [`Error::Shutdown`] - the client was shut down. Permanent.
    /// * [`Error::Forked`] - this process is a fork of the client's. Permanent.
    pub fn acquire(&self, permits: u32) -> Result<SemaphoreGuard, Error> {
        if let Some(guard) = self.try_acquire_with(permits, Wait::forever())? {
            return Ok(guard);
        }
        // Not reached: a wait without a limit does not time out.
        Err(Error::Cancelled { name: self.named.current()?.1.shown() })
    }

    /// Acquires `permits`, all or none, in one try. Returns `None` if fewer permits are free, or
    /// the semaphore does not exist.
    ///
    /// # Errors
    ///
    /// See [`acquire`](Self::acquire). Also [`Error::OutcomeUnknown`] if fewer permits are free,
    /// and the server has not acknowledged an earlier release by this client. Transient.
    pub fn try_acquire(&self, permits: u32) -> Result<Option<SemaphoreGuard>, Error> {
        self.try_acquire_with(permits, Wait::none())
    }

    /// Acquires `permits`, all or none, and waits for [at most](Wait::at_most) `limit`. Returns
    /// `None` if the wait ends without the permits.
    ///
    /// # Errors
    ///
    /// See [`acquire`](Self::acquire). An error at the end of the wait is [`Error::Unreachable`] or
    /// [`Error::OutcomeUnknown`]: the server has not answered, or has not acknowledged an earlier
    /// release by this client. Nothing is held. Transient.
    pub fn try_acquire_for(
        &self,
        permits: u32,
        limit: Duration,
    ) -> Result<Option<SemaphoreGuard>, Error> {
        self.try_acquire_with(permits, limit)
    }

    /// Acquires `permits`, all or none, and waits within the limit of `wait`: a [`Wait`], a
    /// [`Duration`] or an [`Instant`](std::time::Instant). Returns `None` if the wait ends without
    /// the permits.
    ///
    /// # Errors
    ///
    /// See [`acquire`](Self::acquire). Also:
    ///
    /// * [`Error::Cancelled`] - the wait was [cancelled](Wait::or_cancelled). Nothing is held.
    /// * [`Error::Unreachable`], [`Error::OutcomeUnknown`] - the server has not answered by the end
    ///   of the wait. Nothing is held. Transient.
    /// * [`Error::OutcomeUnknown`] - the permits were refused, and the server has not acknowledged
    ///   an earlier release by this client. Nothing is held. Transient.
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

    /// Adds `permits` free permits, no matter which client acquired the permits, such as the
    /// permits of a [forgotten](SemaphoreGuard::forget) guard. Creates the semaphore if missing.
    /// Wakes waiters. Zero permits change nothing.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidName`] - permanent, nothing was sent.
    /// * [`Error::InvalidCount`] - `permits`, or the sum of free permits, would exceed
    ///   2,147,483,647. Nothing was changed.
    /// * [`Error::WrongType`] - the key contains a non-numeric value. Permanent.
    /// * [`Error::Unreachable`], [`Error::Refused`], [`Error::Authentication`] - the server did not
    ///   execute the command. The call retries a transient failure for twice the [command
    ///   timeout](crate::ClientBuilder::command_timeout).
    /// * [`Error::OutcomeUnknown`] - the server did not answer for twice the command timeout. The
    ///   command may have run, so a second call may add the permits twice. Transient.
    /// * [`Error::Shutdown`] - the client was shut down. Permanent.
    /// * [`Error::Forked`] - this process is a fork of the client's. Permanent.
    pub fn release(&self, permits: u32) -> Result<(), Error> {
        self.add(permits, false).map(|_| ())
    }

    /// Adds `permits` free permits as [`release`](Self::release) does, but only if the semaphore
    /// exists. Returns `true` if the permits were added, `false` if the semaphore does not exist.
    ///
    /// # Errors
    ///
    /// See [`release`](Self::release).
    pub fn release_if_exists(&self, permits: u32) -> Result<bool, Error> {
        self.add(permits, true)
    }

    /// The number of free permits: negative if [`add_permits`](Self::add_permits) removed more
    /// permits than were free, zero if the semaphore does not exist. One round trip.
    ///
    /// # Errors
    ///
    /// See [`release`](Self::release), except [`Error::InvalidCount`].
    pub fn available_permits(&self) -> Result<i64, Error> {
        self.named.number()
    }

    /// Acquires all free permits and returns their number. Zero means that no permit was free, or
    /// that the semaphore does not exist.
    ///
    /// The permits have no guard: give the permits back by [`release`](Self::release). If the
    /// number of free permits is negative, the call sets the number to zero, and returns the
    /// negative number.
    ///
    /// # Errors
    ///
    /// See [`acquire`](Self::acquire). After an error the call has taken no permits: permits
    /// possibly taken by the command are given back in the background, if the server answers again
    /// within a minute.
    pub fn drain_permits(&self) -> Result<i64, Error> {
        let (core, name) = self.named.current()?;
        drain(&core, name)
    }

    /// Creates the semaphore with `permits` free permits, and wakes waiters. Returns `true` if this
    /// call created the semaphore, `false` if the semaphore exists and was not changed.
    ///
    /// `permits` is at most 2,147,483,647.
    ///
    /// # Errors
    ///
    /// See [`release`](Self::release). A server that is out of memory refuses the call.
    pub fn try_set_permits(&self, permits: u32) -> Result<bool, Error> {
        let permits = check_count(permits)?;
        self.named.ask(|name, request| TrySetPermits::new(name, permits, 0, request))
    }

    /// Creates the semaphore as [`try_set_permits`](Self::try_set_permits) does, and has the server
    /// delete the semaphore after `ttl`. Returns `true` if this call created the semaphore, `false`
    /// if the semaphore exists and was not changed.
    ///
    /// `ttl` counts in whole milliseconds, by the server's clock. Waiters continue to wait after
    /// the deletion, until the semaphore is created again. A guard from before the deletion then
    /// adds its permits to the new semaphore.
    ///
    /// # Errors
    ///
    /// See [`release`](Self::release). A server that is out of memory refuses the call. Also
    /// [`Error::InvalidLease`] if `ttl` is shorter than 10 ms or longer than a hundred years:
    /// permanent, nothing was sent.
    pub fn try_set_permits_for(&self, permits: u32, ttl: Duration) -> Result<bool, Error> {
        let (permits, ttl) = (check_count(permits)?, Lease::named("time to live", ttl)?);
        self.named.ask(|name, request| TrySetPermits::new(name, permits, ttl.millis(), request))
    }

    /// Adds `change` free permits, or removes free permits if `change` is negative. The number of
    /// free permits may become negative. Creates the semaphore if missing. An addition wakes
    /// waiters. Zero changes nothing.
    ///
    /// # Errors
    ///
    /// See [`release`](Self::release). [`Error::InvalidCount`] if the sum does not fit in 32 bits:
    /// nothing was changed.
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
