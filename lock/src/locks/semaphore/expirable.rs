//! The semaphore of permits with ids and optional leases.

use std::sync::Arc;
use std::time::Duration;

use crate::core::named::{NamedObject, check_count, dedup_ttl, wait_for_grant};
use crate::error::{Error, LostReason};
use crate::ledger::log::AcknowledgedRelease;
use crate::ledger::release::ReleaseId;
use crate::locks::semaphore::acquire::PermitAcquire;
use crate::locks::semaphore::held::{HeldPermits, PermitLease};
use crate::locks::semaphore::permit::{Permit, Permits};
use crate::locks::semaphore::semaphore::add_permits;
use crate::model::kind::Kind;
use crate::model::lease::Lease;
use crate::model::permit_id::PermitId;
use crate::model::wait::Wait;
use crate::ops::{
    CountPermits, Found, LeaseOf, PermitCounts, ReleasePermits, SetPermits, TrySetPermits,
    UpdateLease,
};
use crate::store::retry::map_failure;

/// Permits with ids, shared by all clients of a server. Cheap to create, clone and share; creation
/// acquires no permits.
///
/// Returned by [`Client::expirable_semaphore`](crate::Client::expirable_semaphore).
///
/// Each acquired permit is a [`Permit`] guard, which gives the permit back on drop. With
/// [`with_lease`](Self::with_lease) the permit also returns when the lease ends, so the permits of
/// a dead process are not lost. [`watched`](Self::watched) permits have a lease too, renewed like a
/// lock's. With neither, a permit stays taken until the release, as in Redisson.
///
/// In Redisson's layout the names `x` and `{x}` share a set of leases: an expired permit may return
/// to the wrong semaphore, which then grants too many permits. Use only one of these names: once a
/// client uses `x` or `{x}`, the client refuses the second name as an [`Error::InvalidName`].
///
/// A semaphore is created by [`try_set_permits`](Self::try_set_permits),
/// [`set_permits`](Self::set_permits) or [`add_permits`](Self::add_permits). A semaphore that does
/// not exist has no permits, and an acquire waits until the semaphore is created. Clients do not
/// queue: returned permits go to the first client to ask. Within one client waiters queue, and a
/// waiter for more permits than are free does not block later waiters for fewer permits.
///
/// The idea, the keys and the messages are Redisson's (`RPermitExpirableSemaphore`). The server's
/// clock measures the leases; Redisson's clients use their own clocks.
///
/// ```
/// use std::time::Duration;
/// use wheellock::Client;
///
/// let client = Client::in_memory();
/// let seats = client.expirable_semaphore("seats").with_lease(Duration::from_secs(60));
/// seats.try_set_permits(2)?;
/// if let Some(permit) = seats.try_acquire_for(Duration::from_secs(5))? {
///     assert_eq!(seats.available_permits()?, 1);
///     permit.release()?;
/// }
/// # Ok::<(), wheellock::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ExpirableSemaphore {
    named: NamedObject,
    lease: Result<PermitLease, Error>,
}

/// The maximum number of permits in one call. A Redis script takes some thousands of keys and
/// arguments, and each permit adds a key and an argument.
const MAX_AT_ONCE: u32 = 1000;

impl ExpirableSemaphore {
    /// Returns the semaphore `named`, with permits that last until the release.
    pub(crate) fn new(named: NamedObject) -> Self {
        Self { named, lease: Ok(PermitLease::Endless) }
    }

    /// The same semaphore, with permits lasting for `lease`, without renewal.
    ///
    /// The lease counts from before the acquire was sent, in whole milliseconds. `lease` is at
    /// least 10 ms and at most a hundred years; otherwise each acquire returns
    /// [`Error::InvalidLease`]. The call replaces an earlier `with_lease` or
    /// [`watched`](Self::watched).
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = Lease::new(lease).map(PermitLease::Leased);
        self
    }

    /// The same semaphore, with permits renewed by the watchdog: each permit has the client's
    /// [watchdog lease](crate::ClientBuilder::watchdog_lease) and is renewed, like a lock, until
    /// the release. The permits of a dead process return when the lease ends.
    ///
    /// After a loss, [`Permit::is_valid`] returns `false`, and [`Permit::lost`] and
    /// [`on_lost`](crate::ClientBuilder::on_lost) report the loss. Each permit counts as a hold of
    /// the client: in [`Stats::held`](crate::Stats::held), and for
    /// [`max_hold`](crate::ClientBuilder::max_hold) and
    /// [`on_long_hold`](crate::ClientBuilder::on_long_hold). The client's
    /// [shutdown](crate::Client::shutdown) gives the permit back. If the watchdog does not run, an
    /// acquire returns [`Error::WatchdogGone`]. The call replaces an earlier
    /// [`with_lease`](Self::with_lease).
    ///
    /// Redisson has no such permits: a program must update the lease.
    ///
    /// ```
    /// use wheellock::Client;
    ///
    /// let client = Client::in_memory();
    /// let seats = client.expirable_semaphore("seats").watched();
    /// seats.try_set_permits(1)?;
    /// let permit = seats.acquire()?;
    /// // The permit stays valid, however long the work takes.
    /// assert!(permit.is_valid());
    /// permit.release()?;
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    #[must_use]
    pub fn watched(mut self) -> Self {
        self.lease = Ok(PermitLease::Watched);
        self
    }

    /// Acquires a permit, and waits without a limit. The call waits for as long as no permit is
    /// free, or the semaphore does not exist.
    ///
    /// The wait does not poll: a release or the end of a lease wakes the waiter. If a message is
    /// lost, the waiter tries again after at most one second.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidName`], [`Error::InvalidLease`] - permanent, nothing was sent.
    /// * [`Error::WrongType`] - the keys contain values of a different type. Permanent.
    /// * [`Error::Unreachable`], [`Error::Refused`], [`Error::Authentication`] - the server did not
    ///   execute the command. The call retries a transient failure for twice the [command
    ///   timeout](crate::ClientBuilder::command_timeout). A server that is out of memory refuses an
    ///   acquire, but not a release.
    /// * [`Error::OutcomeUnknown`] - the server did not answer for twice the command timeout.
    ///   Nothing is held; permits possibly taken by the command are given back in the background.
    ///   Transient.
    /// * [`Error::NotReplicated`] - too few [replicas](crate::ClientBuilder::replica_acks) have
    ///   acknowledged the acquire. Nothing is held. Transient.
    /// * [`Error::Lost`] - the lease expired before the answer arrived. Nothing is held. Another
    ///   call may succeed.
    /// * [`Error::WatchdogGone`] - the permits are watched, and the watchdog does not run.
    ///   Permanent for this client.
    /// * [`Error::Shutdown`] - the client was shut down. Permanent.
    /// * [`Error::Forked`] - this process is a fork of the client's. Permanent.
    pub fn acquire(&self) -> Result<Permit, Error> {
        match self.try_acquire_with(Wait::forever())? {
            Some(permit) => Ok(permit),
            // Not reached: a wait without a limit does not time out.
            None => Err(Error::Cancelled { name: self.named.current()?.1.shown() }),
        }
    }

    /// Acquires a permit in one try. Returns `None` if no permit is free, or the semaphore does not
    /// exist.
    ///
    /// # Errors
    ///
    /// See [`acquire`](Self::acquire). Also [`Error::OutcomeUnknown`] if no permit is free, and the
    /// server has not acknowledged an earlier release by this client. Transient.
    pub fn try_acquire(&self) -> Result<Option<Permit>, Error> {
        self.try_acquire_with(Wait::none())
    }

    /// Acquires a permit, and waits for [at most](Wait::at_most) `limit`. Returns `None` if the
    /// wait ends without a permit.
    ///
    /// # Errors
    ///
    /// See [`acquire`](Self::acquire). An error at the end of the wait is [`Error::Unreachable`] or
    /// [`Error::OutcomeUnknown`]: the server has not answered, or has not acknowledged an earlier
    /// release by this client. Nothing is held. Transient.
    pub fn try_acquire_for(&self, limit: Duration) -> Result<Option<Permit>, Error> {
        self.try_acquire_with(limit)
    }

    /// Acquires a permit, and waits within the limit of `wait`: a [`Wait`], a [`Duration`] or an
    /// [`Instant`](std::time::Instant). Returns `None` if the wait ends without a permit.
    ///
    /// # Errors
    ///
    /// See [`acquire`](Self::acquire). Also:
    ///
    /// * [`Error::Cancelled`] - the wait was [cancelled](Wait::or_cancelled). Nothing is held.
    /// * [`Error::Unreachable`], [`Error::OutcomeUnknown`] - the server has not answered by the end
    ///   of the wait. Nothing is held. Transient.
    /// * [`Error::OutcomeUnknown`] - the permit was refused, and the server has not acknowledged an
    ///   earlier release by this client. Nothing is held. Transient.
    #[expect(single_use_lifetimes, reason = "it cannot be elided in an `impl Trait`")]
    pub fn try_acquire_with<'a>(&self, wait: impl Into<Wait<'a>>) -> Result<Option<Permit>, Error> {
        Ok(self.take(1, wait.into())?.and_then(Permit::new))
    }

    /// Acquires `permits` at once, all or none, and waits without a limit. `permits` is at least 1
    /// and at most 1,000. The call waits for as long as fewer permits are free, or the semaphore
    /// does not exist.
    ///
    /// # Errors
    ///
    /// See [`acquire`](Self::acquire). Also [`Error::InvalidCount`] if `permits` is out of bounds:
    /// permanent, nothing was sent.
    pub fn acquire_many(&self, permits: u32) -> Result<Permits, Error> {
        match self.try_acquire_many_with(permits, Wait::forever())? {
            Some(permits) => Ok(permits),
            // Not reached, as in `acquire`.
            None => Err(Error::Cancelled { name: self.named.current()?.1.shown() }),
        }
    }

    /// Acquires `permits` at once, all or none, in one try. `permits` is at least 1 and at most
    /// 1,000. Returns `None` if fewer permits are free, or the semaphore does not exist.
    ///
    /// # Errors
    ///
    /// See [`acquire`](Self::acquire). Also:
    ///
    /// * [`Error::InvalidCount`] - `permits` is out of bounds. Permanent; nothing was sent.
    /// * [`Error::OutcomeUnknown`] - fewer permits are free, and the server has not acknowledged an
    ///   earlier release by this client. Transient.
    pub fn try_acquire_many(&self, permits: u32) -> Result<Option<Permits>, Error> {
        self.try_acquire_many_with(permits, Wait::none())
    }

    /// Acquires `permits` at once, all or none, and waits within the limit of `wait`: a [`Wait`], a
    /// [`Duration`] or an [`Instant`](std::time::Instant). `permits` is at least 1 and at most
    /// 1,000. Returns `None` if the wait ends without the permits.
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
    /// * [`Error::InvalidCount`] - `permits` is out of bounds. Permanent; nothing was sent.
    #[expect(single_use_lifetimes, reason = "it cannot be elided in an `impl Trait`")]
    pub fn try_acquire_many_with<'a>(
        &self,
        permits: u32,
        wait: impl Into<Wait<'a>>,
    ) -> Result<Option<Permits>, Error> {
        Ok(self.take(permits, wait.into())?.map(Permits::many))
    }

    /// Gives a permit back by `id`, no matter which client acquired the permit. Wakes waiters. `Ok`
    /// means that the permit was held until now.
    ///
    /// After an error the background does not repeat the release. A watched [`Permit`] with this id
    /// reports the loss at its next renewal; any other `Permit` is not notified.
    ///
    /// # Errors
    ///
    /// See [`update_lease`](Self::update_lease), except [`Error::InvalidLease`]. Also
    /// [`Error::Lost`]: permanent, and the permit is not taken. The reason is
    /// [`LostReason::Expired`] if the lease had ended and this call gave the permit back, and
    /// [`LostReason::Deleted`] if the server does not know the id, such as after an earlier
    /// release, or after the lease ended and another call freed the permit.
    pub fn release(&self, id: &PermitId) -> Result<(), Error> {
        let reason = match self.release_ids(&[*id])? {
            Found::Own => return Ok(()),
            Found::Expired => LostReason::Expired,
            Found::Nothing | Found::OtherOwner => LostReason::Deleted,
        };
        Err(Error::Lost { name: self.named.current()?.1.shown(), reason })
    }

    /// Gives a permit back by `id`, no matter which client acquired the permit. Wakes waiters.
    /// Returns `true` if this call gave the permit back, even if the lease had just ended. Returns
    /// `false` if the server does not know the id: the permit is not taken.
    ///
    /// # Errors
    ///
    /// See [`update_lease`](Self::update_lease), except [`Error::InvalidLease`].
    pub fn try_release(&self, id: &PermitId) -> Result<bool, Error> {
        self.release_all(&[*id])
    }

    /// Gives permits back by `ids`, no matter which client acquired the permits: all, or none if
    /// the server does not know an id. Wakes waiters. Returns `true` if the permits were given
    /// back, `false` if no permit was given back. `ids` has at most 1,000 ids. For an empty `ids`
    /// the result is `true`, and nothing is sent.
    ///
    /// # Errors
    ///
    /// See [`update_lease`](Self::update_lease), except [`Error::InvalidLease`]. Also
    /// [`Error::InvalidCount`] for more than 1,000 ids: permanent, nothing was sent.
    pub fn release_all(&self, ids: &[PermitId]) -> Result<bool, Error> {
        if ids.is_empty() {
            return self.named.current().map(|_| true);
        }
        Ok(self.release_ids(ids)?.is_released())
    }

    /// The number of free permits: negative if more permits are taken than
    /// [set](Self::set_permits), zero if the semaphore does not exist. One round trip, which also
    /// frees permits whose leases have ended.
    ///
    /// # Errors
    ///
    /// See [`update_lease`](Self::update_lease), except [`Error::InvalidLease`].
    pub fn available_permits(&self) -> Result<i64, Error> {
        self.count().map(|counts| counts.free)
    }

    /// The number of permits, free and taken. Zero if the semaphore does not exist. One round trip.
    ///
    /// # Errors
    ///
    /// See [`update_lease`](Self::update_lease), except [`Error::InvalidLease`].
    pub fn permits(&self) -> Result<i64, Error> {
        self.count().map(|counts| counts.free.saturating_add(counts.taken))
    }

    /// The number of taken permits, without permits whose leases have ended. Zero if the semaphore
    /// does not exist. One round trip.
    ///
    /// # Errors
    ///
    /// See [`update_lease`](Self::update_lease), except [`Error::InvalidLease`].
    pub fn acquired_permits(&self) -> Result<i64, Error> {
        self.count().map(|counts| counts.taken)
    }

    /// Creates the semaphore with `permits` free permits, and wakes waiters. Returns `true` if this
    /// call created the semaphore, `false` if the semaphore exists and was not changed. `permits`
    /// is at most 2,147,483,647.
    ///
    /// # Errors
    ///
    /// See [`update_lease`](Self::update_lease), except [`Error::InvalidLease`]. Also
    /// [`Error::InvalidCount`] if `permits` is too large: permanent, nothing was sent.
    pub fn try_set_permits(&self, permits: u32) -> Result<bool, Error> {
        let permits = check_count(permits)?;
        self.named.ask(|name, request| TrySetPermits::new(name, permits, 0, request))
    }

    /// Sets the number of permits, free and taken. Creates the semaphore if missing. Wakes waiters.
    /// If more than `permits` are taken, the number of free permits is negative until enough
    /// permits are given back. `permits` is at most 2,147,483,647.
    ///
    /// # Errors
    ///
    /// See [`update_lease`](Self::update_lease), except [`Error::InvalidLease`]. Also
    /// [`Error::InvalidCount`] if `permits` is too large: permanent, nothing was sent.
    pub fn set_permits(&self, permits: u32) -> Result<(), Error> {
        let permits = check_count(permits)?;
        self.named.ask(|name, request| SetPermits::new(name, permits, request))
    }

    /// Adds `change` free permits, or removes free permits if `change` is negative. The number of
    /// free permits may become negative. Creates the semaphore if missing. An addition wakes
    /// waiters. Zero changes nothing.
    ///
    /// # Errors
    ///
    /// See [`update_lease`](Self::update_lease), except [`Error::InvalidLease`]. Also
    /// [`Error::InvalidCount`] if the sum does not fit in 32 bits: nothing was changed. After
    /// [`Error::OutcomeUnknown`] a second call may add the permits twice.
    pub fn add_permits(&self, change: i32) -> Result<(), Error> {
        add_permits(&self.named, i64::from(change), false).map(|_| ())
    }

    /// Gives a permit a new lease, which begins now and may be shorter or longer. Returns `true` if
    /// the permit has the new lease, `false` if the permit is no longer taken.
    ///
    /// `lease` is at least 10 ms and at most a hundred years. A [`Permit`] with this id is not
    /// notified: after a shorter lease, [`Permit::is_valid`] may return `true` although the permit
    /// is no longer held. The next renewal of a watched permit prolongs a shorter lease.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidName`], [`Error::InvalidLease`] - permanent, nothing was sent.
    /// * [`Error::WrongType`] - the keys contain values of a different type. Permanent.
    /// * [`Error::Unreachable`], [`Error::Refused`], [`Error::Authentication`] - the server did not
    ///   execute the command. The call retries a transient failure for twice the [command
    ///   timeout](crate::ClientBuilder::command_timeout).
    /// * [`Error::OutcomeUnknown`] - the server did not answer for twice the command timeout. The
    ///   command may have run. Transient.
    /// * [`Error::Shutdown`] - the client was shut down. Permanent.
    /// * [`Error::Forked`] - this process is a fork of the client's. Permanent.
    pub fn update_lease(&self, id: &PermitId, lease: Duration) -> Result<bool, Error> {
        let lease = Lease::new(lease)?;
        self.named.ask(|name, request| UpdateLease::new(&name, *id, Some(lease), request))
    }

    /// Removes a permit's lease, so the permit stays taken until the release. Returns `true` if the
    /// permit has no lease now, `false` if the permit is no longer taken. A [`Permit`] with this id
    /// is not notified: unless the permit is watched, [`Permit::is_valid`] returns `false` after
    /// the end of the former lease.
    ///
    /// # Errors
    ///
    /// See [`update_lease`](Self::update_lease), except [`Error::InvalidLease`].
    pub fn remove_lease(&self, id: &PermitId) -> Result<bool, Error> {
        self.named.ask(|name, request| UpdateLease::new(&name, *id, None, request))
    }

    /// The remaining lease of a permit, by the server's clock: [`Duration::MAX`] without a lease,
    /// `None` if the permit is no longer taken. One round trip.
    ///
    /// # Errors
    ///
    /// See [`update_lease`](Self::update_lease), except [`Error::InvalidLease`].
    pub fn lease_of(&self, id: &PermitId) -> Result<Option<Duration>, Error> {
        self.named.ask(|name, _| LeaseOf::new(&name, *id))
    }

    /// Returns the numbers of free and taken permits, according to the server.
    fn count(&self) -> Result<PermitCounts, Error> {
        self.named.ask(|name, _| CountPermits::new(name))
    }

    /// Gives back the permits `ids`, all or none, and returns the server's finding. Retains a
    /// release of each permit in the ledger, to be sent again after a failover.
    fn release_ids(&self, ids: &[PermitId]) -> Result<Found, Error> {
        check_at_once(ids.len())?;
        let (core, name) = self.named.current()?;
        // The id alone does not exclude a late copy of the acquire.
        let dedup_ttl = dedup_ttl(&core);
        let release =
            ReleasePermits::new(name.clone(), ids.to_vec(), core.id.next_owner(), dedup_ttl);
        let answer = map_failure(core.call(&release), &release, &name)?;
        if answer.reply.found.is_released() {
            // After a failover each permit is released separately: a missing permit must not
            // prevent the release of the rest. Only the server knows the remaining leases.
            let lifetime = core.settings.watchdog_lease.duration();
            for permit in ids {
                let (owner, name) = (core.id.next_owner(), name.clone());
                let ids = vec![*permit];
                let one = ReleasePermits::new(name.clone(), ids, owner.clone(), Duration::ZERO);
                let id = ReleaseId { owner, kind: None, name };
                let release = AcknowledgedRelease::by_operation(id, Arc::new(one), lifetime);
                core.watchdog.releases.log(answer.sent_at, release);
            }
        }
        Ok(answer.reply.found)
    }

    /// Acquires `permits` permits with the semaphore's lease, all or none. Returns `None` if the
    /// wait ends without the permits.
    fn take(&self, permits: u32, wait: Wait<'_>) -> Result<Option<HeldPermits>, Error> {
        let (core, name) = self.named.current()?;
        let lease = self.lease.clone()?;
        check_at_once(usize::try_from(permits).unwrap_or(usize::MAX))?;
        let channel = name.semaphore_channel();
        let mut acquire = PermitAcquire::new(&core, name.clone(), permits, lease);
        let kind = Kind::Permit.into();
        wait_for_grant(&core, kind, (&name, &channel), wait, &mut acquire)
    }
}

/// Returns [`Error::InvalidCount`] unless `permits` is between 1 and [`MAX_AT_ONCE`].
fn check_at_once(permits: usize) -> Result<(), Error> {
    let count = i128::try_from(permits).unwrap_or(i128::MAX);
    if (1..=i128::from(MAX_AT_ONCE)).contains(&count) {
        return Ok(());
    }
    let reason = format!("one call is for 1 to {MAX_AT_ONCE} permits");
    Err(Error::InvalidCount { count, reason })
}
