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
/// to the wrong semaphore, which then grants too many permits. Use either name only: once a client
/// uses `x` or `{x}`, the client refuses the second name as an [`Error::InvalidName`].
///
/// A semaphore is created by [`try_set_permits`](Self::try_set_permits) or
/// [`set_permits`](Self::set_permits), and has no permits before. Clients do not queue: returned
/// permits go to the first client to ask. Within one client waiters queue, and a waiter for more
/// permits than are free does not block later waiters for fewer permits.
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
    /// The lease counts from before the acquire was sent, in whole milliseconds: at least 10 ms, at
    /// most a hundred years. Otherwise an acquire returns [`Error::InvalidLease`].
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
    /// acquire returns [`Error::WatchdogGone`].
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

    /// Acquires a permit, and waits without a limit.
    ///
    /// The wait does not poll: a release or the end of a lease wakes the waiter. If a message is
    /// lost, the waiter asks again after at most one second.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidName`], [`Error::InvalidLease`] - permanent, nothing was sent.
    /// * [`Error::WrongType`] - the keys contain values of a different type. Permanent.
    /// * [`Error::Unreachable`], [`Error::Refused`], [`Error::Authentication`] - the server did not
    ///   execute the command for twice the command timeout. A server that is out of memory refuses
    ///   an acquire, but not a release.
    /// * [`Error::OutcomeUnknown`] - the server did not answer for twice the command timeout.
    ///   Nothing is held; permits possibly taken by the command are given back in the background.
    /// * [`Error::NotReplicated`] - too few [replicas](crate::ClientBuilder::replica_acks) have
    ///   acknowledged the acquire. Nothing is held.
    /// * [`Error::Lost`] - the lease expired before the answer arrived. Transient.
    /// * [`Error::WatchdogGone`] - the permits are watched, and the watchdog does not run.
    /// * [`Error::Shutdown`] - the client was shut down. Permanent.
    /// * [`Error::Forked`] - this process is a fork of the client's. Permanent.
    pub fn acquire(&self) -> Result<Permit, Error> {
        match self.try_acquire_with(Wait::forever())? {
            Some(permit) => Ok(permit),
            // Not reached: a wait without a limit does not time out.
            None => Err(Error::Cancelled { name: self.named.current()?.1.shown() }),
        }
    }

    /// Acquires a permit in one try. Returns `None` if no permit is free.
    ///
    /// # Errors
    ///
    /// See [`acquire`](Self::acquire).
    pub fn try_acquire(&self) -> Result<Option<Permit>, Error> {
        self.try_acquire_with(Wait::none())
    }

    /// Acquires a permit, and waits for [at most](Wait::at_most) `limit`. Returns `None` on
    /// timeout.
    ///
    /// # Errors
    ///
    /// See [`try_acquire_with`](Self::try_acquire_with).
    pub fn try_acquire_for(&self, limit: Duration) -> Result<Option<Permit>, Error> {
        self.try_acquire_with(limit)
    }

    /// Acquires a permit, and waits within the limit of [`wait`](Wait). Returns `None` on timeout.
    ///
    /// # Errors
    ///
    /// See [`acquire`](Self::acquire). If the server has not answered by the end of the wait, the
    /// call returns an error. Also [`Error::Cancelled`].
    #[expect(single_use_lifetimes, reason = "it cannot be elided in an `impl Trait`")]
    pub fn try_acquire_with<'a>(&self, wait: impl Into<Wait<'a>>) -> Result<Option<Permit>, Error> {
        Ok(self.take(1, wait.into())?.and_then(Permit::new))
    }

    /// Acquires `permits` at once, all or none, and waits without a limit. `permits` is at least 1
    /// and at most 1,000.
    ///
    /// # Errors
    ///
    /// See [`acquire`](Self::acquire). Also [`Error::InvalidCount`]: permanent, nothing was sent.
    pub fn acquire_many(&self, permits: u32) -> Result<Permits, Error> {
        match self.try_acquire_many_with(permits, Wait::forever())? {
            Some(permits) => Ok(permits),
            // Not reached, as in `acquire`.
            None => Err(Error::Cancelled { name: self.named.current()?.1.shown() }),
        }
    }

    /// Acquires `permits` at once in one try. Returns `None` if fewer permits are free.
    ///
    /// # Errors
    ///
    /// See [`acquire_many`](Self::acquire_many).
    pub fn try_acquire_many(&self, permits: u32) -> Result<Option<Permits>, Error> {
        self.try_acquire_many_with(permits, Wait::none())
    }

    /// Acquires `permits` at once, and waits within the limit of [`wait`](Wait). Returns `None` on
    /// timeout.
    ///
    /// # Errors
    ///
    /// See [`try_acquire_with`](Self::try_acquire_with). Also [`Error::InvalidCount`].
    #[expect(single_use_lifetimes, reason = "it cannot be elided in an `impl Trait`")]
    pub fn try_acquire_many_with<'a>(
        &self,
        permits: u32,
        wait: impl Into<Wait<'a>>,
    ) -> Result<Option<Permits>, Error> {
        Ok(self.take(permits, wait.into())?.map(Permits::many))
    }

    /// Gives a permit back by `id`, no matter which client acquired the permit. Wakes waiters. `Ok`
    /// means the permit was held until now.
    ///
    /// # Errors
    ///
    /// See [`update_lease`](Self::update_lease). Also [`Error::Lost`] if the permit was no longer
    /// held: with [`LostReason::Expired`] if the lease had expired, with [`LostReason::Deleted`] if
    /// the server does not know the id.
    pub fn release(&self, id: &PermitId) -> Result<(), Error> {
        let reason = match self.release_ids(&[*id])? {
            Found::Own => return Ok(()),
            Found::Expired => LostReason::Expired,
            Found::Nothing | Found::OtherOwner => LostReason::Deleted,
        };
        Err(Error::Lost { name: self.named.current()?.1.shown(), reason })
    }

    /// Gives a permit back by `id`, no matter which client acquired the permit. Returns `true` if
    /// this call gave the permit back, even if the lease had just expired and the permit was not
    /// acquired again. Returns `false` if there is no such permit.
    ///
    /// # Errors
    ///
    /// See [`update_lease`](Self::update_lease).
    pub fn try_release(&self, id: &PermitId) -> Result<bool, Error> {
        self.release_all(&[*id])
    }

    /// Gives permits back by `ids`: all, or none if the server does not know an id. Returns `true`
    /// if the permits were given back. At most 1,000 ids are allowed.
    ///
    /// # Errors
    ///
    /// See [`update_lease`](Self::update_lease). Also [`Error::InvalidCount`].
    pub fn release_all(&self, ids: &[PermitId]) -> Result<bool, Error> {
        if ids.is_empty() {
            return self.named.current().map(|_| true);
        }
        Ok(self.release_ids(ids)?.is_released())
    }

    /// The number of free permits: negative if more permits are taken than
    /// [set](Self::set_permits).
    ///
    /// # Errors
    ///
    /// See [`update_lease`](Self::update_lease).
    pub fn available_permits(&self) -> Result<i64, Error> {
        self.count().map(|counts| counts.free)
    }

    /// The number of permits, free and taken. Zero if the semaphore does not exist.
    ///
    /// # Errors
    ///
    /// See [`update_lease`](Self::update_lease).
    pub fn permits(&self) -> Result<i64, Error> {
        self.count().map(|counts| counts.free.saturating_add(counts.taken))
    }

    /// The number of taken permits.
    ///
    /// # Errors
    ///
    /// See [`update_lease`](Self::update_lease).
    pub fn acquired_permits(&self) -> Result<i64, Error> {
        self.count().map(|counts| counts.taken)
    }

    /// Creates the semaphore with `permits`, and wakes waiters. Returns `false` if the semaphore
    /// exists.
    ///
    /// # Errors
    ///
    /// See [`update_lease`](Self::update_lease). Also [`Error::InvalidCount`].
    pub fn try_set_permits(&self, permits: u32) -> Result<bool, Error> {
        let permits = check_count(permits)?;
        self.named.ask(|name, request| TrySetPermits::new(name, permits, 0, request))
    }

    /// Sets the number of permits, free and taken. Creates the semaphore if missing. Wakes waiters.
    /// If more than `permits` are taken, the number of free permits is negative until enough are
    /// given back.
    ///
    /// # Errors
    ///
    /// See [`update_lease`](Self::update_lease). Also [`Error::InvalidCount`].
    pub fn set_permits(&self, permits: u32) -> Result<(), Error> {
        let permits = check_count(permits)?;
        self.named.ask(|name, request| SetPermits::new(name, permits, request))
    }

    /// Adds `change` permits, or removes permits if `change` is negative. Creates the semaphore if
    /// missing. An addition wakes waiters.
    ///
    /// # Errors
    ///
    /// See [`update_lease`](Self::update_lease). Also [`Error::InvalidCount`] if the sum does not
    /// fit in 32 bits.
    pub fn add_permits(&self, change: i32) -> Result<(), Error> {
        add_permits(&self.named, i64::from(change), false).map(|_| ())
    }

    /// Gives a permit a new lease, which begins now and may be shorter or longer. Returns `false`
    /// if the permit is no longer taken. A [`Permit`] with this id is not notified, and the next
    /// renewal of a watched permit prolongs a shorter lease.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidName`], [`Error::InvalidLease`] - permanent, nothing was sent.
    /// * [`Error::WrongType`] - the keys contain values of a different type. Permanent.
    /// * [`Error::Unreachable`], [`Error::Refused`], [`Error::Authentication`] - the server did not
    ///   execute the command for twice the command timeout.
    /// * [`Error::OutcomeUnknown`] - the server did not answer for twice the command timeout. The
    ///   command may have run.
    /// * [`Error::Shutdown`] - the client was shut down. Permanent.
    /// * [`Error::Forked`] - this process is a fork of the client's. Permanent.
    pub fn update_lease(&self, id: &PermitId, lease: Duration) -> Result<bool, Error> {
        let lease = Lease::new(lease)?;
        self.named.ask(|name, request| UpdateLease::new(&name, *id, Some(lease), request))
    }

    /// Removes a permit's lease, so the permit stays taken until the release. Returns `false` if
    /// the permit is no longer taken. A [`Permit`] with this id is not notified.
    ///
    /// # Errors
    ///
    /// See [`update_lease`](Self::update_lease).
    pub fn remove_lease(&self, id: &PermitId) -> Result<bool, Error> {
        self.named.ask(|name, request| UpdateLease::new(&name, *id, None, request))
    }

    /// The remaining lease of a permit, by the server's clock: [`Duration::MAX`] without a lease,
    /// `None` if the permit is no longer taken.
    ///
    /// # Errors
    ///
    /// See [`update_lease`](Self::update_lease).
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
