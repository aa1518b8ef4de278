//! The semaphore whose permits have ids, and leases if wanted.

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

/// Permits with ids, shared by all clients of a server. Cheap to make, to clone and to share; it
/// holds nothing by itself.
///
/// Each acquired permit is a [`Permit`], which gives it back when it is dropped. With
/// [`with_lease`](Self::with_lease) it also returns when its lease ends, so the permits of a
/// process that dies are not lost. [`watched`](Self::watched), it has a lease too, which is renewed
/// like a lock's. Without either it stays taken until it is given back, as in Redisson.
///
/// In Redisson's layout the names `x` and `{x}` have one set of leases: a permit of one that ends
/// is given to the other, which grants more than it has. Use one of the two; a client that uses one
/// refuses the other as an [`Error::InvalidName`].
///
/// A semaphore is created by [`try_set_permits`](Self::try_set_permits) or
/// [`set_permits`](Self::set_permits); before that it has no permits. Clients do not queue: the
/// first that asks when permits return gets them. Within one client waiters queue, and one that
/// wants more permits than there are does not block those behind it that want fewer.
///
/// The idea, the keys and the messages are Redisson's (`RPermitExpirableSemaphore`). Leases are
/// measured by the server's clock; Redisson's clients measure theirs by their own.
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

/// A Redis script takes some thousands of keys and arguments, and each permit adds one of both.
const MAX_AT_ONCE: u32 = 1000;

impl ExpirableSemaphore {
    pub(crate) fn new(named: NamedObject) -> Self {
        Self { named, lease: Ok(PermitLease::Endless) }
    }

    /// The same semaphore, with permits that last for `lease` and are not renewed.
    ///
    /// The lease counts from before the acquire was sent, in whole milliseconds: at least 10 ms, at
    /// most a hundred years. Outside of that an acquire is an [`Error::InvalidLease`].
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = Lease::new(lease).map(PermitLease::Leased);
        self
    }

    /// The same semaphore, with permits that last as long as they are held: each has the client's
    /// [watchdog lease](crate::ClientBuilder::watchdog_lease) and is renewed, like a lock, until it
    /// is given back. The permits of a process that dies return when that lease ends.
    ///
    /// If one is lost, [`Permit::is_valid`] turns false, and [`Permit::lost`] and
    /// [`on_lost`](crate::ClientBuilder::on_lost) report it. Each counts as a hold of the client:
    /// in [`Stats::held`](crate::Stats::held), for [`max_hold`](crate::ClientBuilder::max_hold) and
    /// [`on_long_hold`](crate::ClientBuilder::on_long_hold), and it is given back when the client
    /// is [shut down](crate::Client::shutdown). If the watchdog does not run, an acquire is an
    /// [`Error::WatchdogGone`].
    ///
    /// Redisson has no such permits: there a program updates the lease itself.
    ///
    /// ```
    /// use wheellock::Client;
    ///
    /// let client = Client::in_memory();
    /// let seats = client.expirable_semaphore("seats").watched();
    /// seats.try_set_permits(1)?;
    /// let permit = seats.acquire()?;
    /// // However long this takes.
    /// assert!(permit.is_valid());
    /// permit.release()?;
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    #[must_use]
    pub fn watched(mut self) -> Self {
        self.lease = Ok(PermitLease::Watched);
        self
    }

    /// Acquires a permit, and waits as long as it takes.
    ///
    /// The wait does not poll: a release wakes it, and so does the end of a lease. If a message is
    /// lost, it asks again after at most one second.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidName`], [`Error::InvalidLease`] - permanent, nothing was sent.
    /// * [`Error::WrongType`] - the keys hold something that is not a semaphore. Permanent.
    /// * [`Error::Unreachable`], [`Error::Refused`], [`Error::Authentication`] - the server did not
    ///   do it, for twice the command timeout. A server that is out of memory refuses an acquire,
    ///   but not a release.
    /// * [`Error::OutcomeUnknown`] - the server did not answer for twice the command timeout.
    ///   Nothing is held; what the command may have taken is given back in the background.
    /// * [`Error::NotReplicated`] - too few [replicas](crate::ClientBuilder::replica_acks) have
    ///   acknowledged it. Nothing is held.
    /// * [`Error::Lost`] - the lease expired before the answer came. Transient.
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

    /// Acquires a permit if one is free: one attempt. `None` if not.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    pub fn try_acquire(&self) -> Result<Option<Permit>, Error> {
        self.try_acquire_with(Wait::none())
    }

    /// Acquires a permit, and waits for [at most](Wait::at_most) `limit`. `None` if that was not
    /// enough.
    ///
    /// # Errors
    ///
    /// As [`try_acquire_with`](Self::try_acquire_with).
    pub fn try_acquire_for(&self, limit: Duration) -> Result<Option<Permit>, Error> {
        self.try_acquire_with(limit)
    }

    /// Acquires a permit, and waits as long as [`wait`](Wait) says. `None` if that was not enough.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), at the end of the wait at the latest: a server that has not
    /// answered by then is an error. And [`Error::Cancelled`].
    #[expect(single_use_lifetimes, reason = "it cannot be elided in an `impl Trait`")]
    pub fn try_acquire_with<'a>(&self, wait: impl Into<Wait<'a>>) -> Result<Option<Permit>, Error> {
        Ok(self.take(1, wait.into())?.and_then(Permit::new))
    }

    /// Acquires `permits` at once, all or none, and waits as long as it takes. At least 1 and at
    /// most 1,000.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), and [`Error::InvalidCount`]: permanent, nothing was sent.
    pub fn acquire_many(&self, permits: u32) -> Result<Permits, Error> {
        match self.try_acquire_many_with(permits, Wait::forever())? {
            Some(permits) => Ok(permits),
            // As in `acquire`.
            None => Err(Error::Cancelled { name: self.named.current()?.1.shown() }),
        }
    }

    /// Acquires `permits` at once if that many are free: one attempt. `None` if not.
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](Self::acquire_many).
    pub fn try_acquire_many(&self, permits: u32) -> Result<Option<Permits>, Error> {
        self.try_acquire_many_with(permits, Wait::none())
    }

    /// Acquires `permits` at once, and waits as long as [`wait`](Wait) says. `None` if that was not
    /// enough.
    ///
    /// # Errors
    ///
    /// As [`try_acquire_with`](Self::try_acquire_with), and [`Error::InvalidCount`].
    #[expect(single_use_lifetimes, reason = "it cannot be elided in an `impl Trait`")]
    pub fn try_acquire_many_with<'a>(
        &self,
        permits: u32,
        wait: impl Into<Wait<'a>>,
    ) -> Result<Option<Permits>, Error> {
        Ok(self.take(permits, wait.into())?.map(Permits::many))
    }

    /// Gives a permit back by its id, no matter which client acquired it. Wakes waiters. `Ok` means
    /// that it was held until now.
    ///
    /// # Errors
    ///
    /// As [`update_lease`](Self::update_lease), and [`Error::Lost`] if it was not held any more:
    /// with [`LostReason::Expired`] if its lease had expired, with [`LostReason::Deleted`] if the
    /// server does not know the id.
    pub fn release(&self, id: &PermitId) -> Result<(), Error> {
        let reason = match self.release_ids(&[*id])? {
            Found::Own => return Ok(()),
            Found::Expired => LostReason::Expired,
            Found::Nothing | Found::OtherOwner => LostReason::Deleted,
        };
        Err(Error::Lost { name: self.named.current()?.1.shown(), reason })
    }

    /// Gives a permit back by its id, no matter which client acquired it. True if this call gave it
    /// back, even if its lease had just expired and it was not acquired again since. False if there
    /// is no such permit.
    ///
    /// # Errors
    ///
    /// As [`update_lease`](Self::update_lease).
    pub fn try_release(&self, id: &PermitId) -> Result<bool, Error> {
        self.release_all(&[*id])
    }

    /// Gives permits back by their ids: all of them, or none if the server does not know one of
    /// them. True if they were given back. At most 1,000.
    ///
    /// # Errors
    ///
    /// As [`update_lease`](Self::update_lease), and [`Error::InvalidCount`].
    pub fn release_all(&self, ids: &[PermitId]) -> Result<bool, Error> {
        if ids.is_empty() {
            return self.named.current().map(|_| true);
        }
        Ok(self.release_ids(ids)?.is_released())
    }

    /// The number of free permits. It is negative if more are taken than [set](Self::set_permits).
    ///
    /// # Errors
    ///
    /// As [`update_lease`](Self::update_lease).
    pub fn available_permits(&self) -> Result<i64, Error> {
        self.count().map(|counts| counts.free)
    }

    /// The number of permits, free and taken. Zero if there is no such semaphore.
    ///
    /// # Errors
    ///
    /// As [`update_lease`](Self::update_lease).
    pub fn permits(&self) -> Result<i64, Error> {
        self.count().map(|counts| counts.free.saturating_add(counts.taken))
    }

    /// The number of permits that are taken.
    ///
    /// # Errors
    ///
    /// As [`update_lease`](Self::update_lease).
    pub fn acquired_permits(&self) -> Result<i64, Error> {
        self.count().map(|counts| counts.taken)
    }

    /// Creates the semaphore with `permits`. False if it exists. Wakes waiters.
    ///
    /// # Errors
    ///
    /// As [`update_lease`](Self::update_lease), and [`Error::InvalidCount`].
    pub fn try_set_permits(&self, permits: u32) -> Result<bool, Error> {
        let permits = check_count(permits)?;
        self.named.ask(|name, request| TrySetPermits::new(name, permits, 0, request))
    }

    /// Sets the number of permits, free and taken. Creates the semaphore if it does not exist.
    /// Wakes waiters. If more are taken than that, the number of free ones is negative until enough
    /// have been given back.
    ///
    /// # Errors
    ///
    /// As [`update_lease`](Self::update_lease), and [`Error::InvalidCount`].
    pub fn set_permits(&self, permits: u32) -> Result<(), Error> {
        let permits = check_count(permits)?;
        self.named.ask(|name, request| SetPermits::new(name, permits, request))
    }

    /// Adds `change` permits, or removes some if it is negative. Creates the semaphore if it does
    /// not exist. Wakes waiters if it added some.
    ///
    /// # Errors
    ///
    /// As [`update_lease`](Self::update_lease), and [`Error::InvalidCount`] if the sum does not fit
    /// in 32 bits.
    pub fn add_permits(&self, change: i32) -> Result<(), Error> {
        add_permits(&self.named, i64::from(change), false).map(|_| ())
    }

    /// Gives a permit another lease, which begins now and may be shorter or longer. False if the
    /// permit is not taken any more. A [`Permit`] of this id does not learn of it, and the next
    /// renewal of a watched one prolongs a shorter lease.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidName`], [`Error::InvalidLease`] - permanent, nothing was sent.
    /// * [`Error::WrongType`] - the keys hold something that is not a semaphore. Permanent.
    /// * [`Error::Unreachable`], [`Error::Refused`], [`Error::Authentication`] - the server did not
    ///   do it, for twice the command timeout.
    /// * [`Error::OutcomeUnknown`] - the server did not answer for twice the command timeout. The
    ///   command may have run.
    /// * [`Error::Shutdown`] - the client was shut down. Permanent.
    /// * [`Error::Forked`] - this process is a fork of the client's. Permanent.
    pub fn update_lease(&self, id: &PermitId, lease: Duration) -> Result<bool, Error> {
        let lease = Lease::new(lease)?;
        self.named.ask(|name, request| UpdateLease::new(&name, *id, Some(lease), request))
    }

    /// Removes a permit's lease, so that it stays taken until it is given back. False if the permit
    /// is not taken any more. A [`Permit`] of this id does not learn of it.
    ///
    /// # Errors
    ///
    /// As [`update_lease`](Self::update_lease).
    pub fn remove_lease(&self, id: &PermitId) -> Result<bool, Error> {
        self.named.ask(|name, request| UpdateLease::new(&name, *id, None, request))
    }

    /// What is left of a permit's lease, as the server measures it: [`Duration::MAX`] if it has
    /// none, `None` if the permit is not taken any more.
    ///
    /// # Errors
    ///
    /// As [`update_lease`](Self::update_lease).
    pub fn lease_of(&self, id: &PermitId) -> Result<Option<Duration>, Error> {
        self.named.ask(|name, _| LeaseOf::new(&name, *id))
    }

    fn count(&self) -> Result<PermitCounts, Error> {
        self.named.ask(|name, _| CountPermits::new(name))
    }

    fn release_ids(&self, ids: &[PermitId]) -> Result<Found, Error> {
        check_at_once(ids.len())?;
        let (core, name) = self.named.current()?;
        // From the id alone it is not known whether a late copy of the acquire may arrive.
        let dedup_ttl = dedup_ttl(&core);
        let release =
            ReleasePermits::new(name.clone(), ids.to_vec(), core.id.next_owner(), dedup_ttl);
        let answer = map_failure(core.call(&release), &release, &name)?;
        if answer.reply.found.is_released() {
            // After a failover each is released by itself: one that is gone must not keep the others
            // from being given back. What was left of their leases only the server knows.
            let lifetime = core.settings.watchdog_lease.duration();
            for permit in ids {
                let (owner, name) = (core.id.next_owner(), name.clone());
                let ids = vec![*permit];
                let one = ReleasePermits::new(name.clone(), ids, owner.clone(), Duration::ZERO);
                let id = ReleaseId { owner, kind: None, name };
                let release = AcknowledgedRelease::of_request(id, Arc::new(one), lifetime);
                core.watchdog.releases.log(answer.sent_at, release);
            }
        }
        Ok(answer.reply.found)
    }

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

fn check_at_once(permits: usize) -> Result<(), Error> {
    let count = i128::try_from(permits).unwrap_or(i128::MAX);
    if (1..=i128::from(MAX_AT_ONCE)).contains(&count) {
        return Ok(());
    }
    let reason = format!("one call is for 1 to {MAX_AT_ONCE} permits");
    Err(Error::InvalidCount { count, reason })
}
