//! The semaphore whose permits have ids and leases: what a dead process had taken comes back.

use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

use crate::caller::{Named, Wish, answered, countable, remembered, wait};
use crate::error::{Error, LostReason};
use crate::lease::Lease;
use crate::op::{
    CountPermits, LeaseOf, MakeSemaphore, Operation, PermitCounts, PermitsFound, ReleasePermits,
    SetPermits, UpdateLease,
};
use crate::permit::Permit;
use crate::permit_id::PermitId;
use crate::permits::Permits;
use crate::semaphore::add_permits;
use crate::taken::{Taken, Term};
use crate::taker::PermitTaker;

/// Permits with ids, shared by all clients of a server. Cheap to make, to clone and to share; it holds nothing by
/// itself.
///
/// Each permit that is taken is a [`Permit`], which gives it back when it is dropped. With
/// [`with_lease`](Self::with_lease) it also comes back by itself when its lease ends, so what a process that dies had
/// taken is not lost. [`watched`](Self::watched), it has a lease too, which is renewed as a lock's is. Without either,
/// it stays taken until it is given back, as Redisson's do.
///
/// A semaphore has to be made, by [`try_set_permits`](Self::try_set_permits) or [`set_permits`](Self::set_permits);
/// before, it has no permits. There is no line among clients: whoever asks first when permits come back gets them.
/// Within one client the first in line asks first, and who wants more than there are lets those who want fewer go
/// ahead.
///
/// The idea, the keys and the messages are Redisson's (`RPermitExpirableSemaphore`). Leases are measured on the
/// server's clock; Redisson's clients measure theirs on their own.
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
    named: Named,
    term: Result<Term, Error>,
}

/// Redis gives a script room for some thousands of keys and arguments, and a permit has one of each.
const MOST_AT_ONCE: u32 = 1000;

impl ExpirableSemaphore {
    pub(crate) fn new(named: Named) -> Self {
        Self { named, term: Ok(Term::Endless) }
    }

    /// The same semaphore, with permits that last for `lease`.
    ///
    /// The lease counts from before the acquire was sent, in whole milliseconds. The shortest is 10 ms, the longest a
    /// hundred years; outside of that, taking a permit is an [`Error::InvalidLease`]. They are not renewed; those of a
    /// [`watched`](Self::watched) semaphore are.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.term = Lease::new(lease).map(Term::Leased);
        self
    }

    /// The same semaphore, with permits that last for as long as they are held: each has the client's
    /// [watchdog lease](crate::ClientBuilder::watchdog_lease) and is renewed, as a lock is, until it is given back.
    /// What a process that dies had taken comes back when that lease ends.
    ///
    /// If one is lost all the same, [`Permit::is_valid`] turns false, [`Permit::lost`] tells of it, and so does
    /// [`on_lost`](crate::ClientBuilder::on_lost). Each counts as a hold of the client: in
    /// [`Stats::held`](crate::Stats::held), for [`max_hold`](crate::ClientBuilder::max_hold) and
    /// [`on_long_hold`](crate::ClientBuilder::on_long_hold), and it is given back when the client is
    /// [shut down](crate::Client::shutdown). Taking one is an [`Error::WatchdogGone`] if nobody would renew it.
    ///
    /// Redisson has none like it: there a permit's lease is prolonged by hand.
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
        self.term = Ok(Term::Watched);
        self
    }

    /// Takes a permit, and waits for it as long as it takes.
    ///
    /// It waits without polling: a release wakes it, and so does the end of a lease. Should a message be lost, it asks
    /// again after a second at most.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidName`], [`Error::InvalidLease`] - permanent, nothing was sent.
    /// * [`Error::WrongType`] - the keys hold something that is not a semaphore.
    /// * [`Error::Unreachable`], [`Error::Refused`], [`Error::Authentication`] - the server did not do it, for twice
    ///   the command timeout. A server that is out of memory refuses to give permits; they can be released.
    /// * [`Error::OutcomeUnknown`] - the server did not answer for twice the command timeout. Nothing is held; what the
    ///   command may have taken is given back in the background.
    /// * [`Error::NotReplicated`] - too few [replicas](crate::ClientBuilder::replica_acks) have heard of it. Nothing is
    ///   held.
    /// * [`Error::Lost`] - it was granted too late: the lease was over when the answer came.
    /// * [`Error::Shutdown`] - the client was shut down.
    pub fn acquire(&self) -> Result<Permit, Error> {
        self.one_or_cancel(None)
    }

    /// Takes a permit if one is free. `None` if not.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    pub fn try_acquire(&self) -> Result<Option<Permit>, Error> {
        self.take_one(Wish::Once)
    }

    /// Takes a permit, and waits for it for at most `wait`, by a monotonic clock. `None` if it could not be had in that
    /// time. A `wait` of zero is a [`try_acquire`](Self::try_acquire).
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), and by the end of the wait: a server that does not answer by then is an error.
    pub fn try_acquire_for(&self, wait: Duration) -> Result<Option<Permit>, Error> {
        self.take_one(self.named.within(wait, None)?)
    }

    /// Takes a permit, and waits for it until `deadline`, as [`try_acquire_for`](Self::try_acquire_for) does. A
    /// `deadline` that has passed makes it a [`try_acquire`](Self::try_acquire).
    ///
    /// # Errors
    ///
    /// As [`try_acquire_for`](Self::try_acquire_for).
    pub fn try_acquire_until(&self, deadline: Instant) -> Result<Option<Permit>, Error> {
        self.try_acquire_for(self.named.until(deadline)?)
    }

    /// Takes a permit, and waits for it for at most `wait`, or until `cancel` has a message or has lost its senders.
    ///
    /// # Errors
    ///
    /// As [`try_acquire_for`](Self::try_acquire_for), and [`Error::Cancelled`].
    pub fn try_acquire_for_or_cancel(
        &self,
        wait: Duration,
        cancel: &Receiver<()>,
    ) -> Result<Option<Permit>, Error> {
        self.take_one(self.named.within(wait, Some(cancel))?)
    }

    /// Takes a permit, and waits for it until `cancel` has a message or has lost its senders. The message stays in the
    /// channel, so that it cancels every wait on it. It takes effect at once, except that a command that is under way
    /// is waited for, for one command timeout at most.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), and [`Error::Cancelled`].
    pub fn acquire_or_cancel(&self, cancel: &Receiver<()>) -> Result<Permit, Error> {
        self.one_or_cancel(Some(cancel))
    }

    /// Takes `permits` at once, and waits for them as long as it takes. All or none are taken. At least 1 and at most
    /// 1,000.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), and [`Error::InvalidCount`].
    pub fn acquire_many(&self, permits: u32) -> Result<Permits, Error> {
        self.many_or_cancel(permits, None)
    }

    /// Takes `permits` at once if so many are free. `None` if not.
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](Self::acquire_many).
    pub fn try_acquire_many(&self, permits: u32) -> Result<Option<Permits>, Error> {
        self.take_many(permits, Wish::Once)
    }

    /// Takes `permits` at once, and waits for them for at most `wait`, as [`try_acquire_for`](Self::try_acquire_for)
    /// does.
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](Self::acquire_many), and by the end of the wait.
    pub fn try_acquire_many_for(
        &self,
        permits: u32,
        wait: Duration,
    ) -> Result<Option<Permits>, Error> {
        self.take_many(permits, self.named.within(wait, None)?)
    }

    /// Takes `permits` at once, and waits for them until `deadline`, as [`try_acquire_until`](Self::try_acquire_until)
    /// does.
    ///
    /// # Errors
    ///
    /// As [`try_acquire_many_for`](Self::try_acquire_many_for).
    pub fn try_acquire_many_until(
        &self,
        permits: u32,
        deadline: Instant,
    ) -> Result<Option<Permits>, Error> {
        self.try_acquire_many_for(permits, self.named.until(deadline)?)
    }

    /// Takes `permits` at once, and waits for them for at most `wait`, or until cancelled, as
    /// [`try_acquire_for_or_cancel`](Self::try_acquire_for_or_cancel) does.
    ///
    /// # Errors
    ///
    /// As [`try_acquire_many_for`](Self::try_acquire_many_for), and [`Error::Cancelled`].
    pub fn try_acquire_many_for_or_cancel(
        &self,
        permits: u32,
        wait: Duration,
        cancel: &Receiver<()>,
    ) -> Result<Option<Permits>, Error> {
        self.take_many(permits, self.named.within(wait, Some(cancel))?)
    }

    /// Takes `permits` at once, and waits for them until cancelled, as [`acquire_or_cancel`](Self::acquire_or_cancel)
    /// does.
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](Self::acquire_many), and [`Error::Cancelled`].
    pub fn acquire_many_or_cancel(
        &self,
        permits: u32,
        cancel: &Receiver<()>,
    ) -> Result<Permits, Error> {
        self.many_or_cancel(permits, Some(cancel))
    }

    /// Gives a permit back by its id, whoever took it. Wakes waiters. `Ok` means that it was held until now.
    ///
    /// # Errors
    ///
    /// As [`update_lease`](Self::update_lease), and [`Error::Lost`] if it was no longer held: with
    /// [`LostReason::Expired`] if its lease had run out, with [`LostReason::Deleted`] if the server does not know it
    /// any more.
    pub fn release(&self, id: &PermitId) -> Result<(), Error> {
        let reason = match self.give_back(&[*id])? {
            PermitsFound::All => return Ok(()),
            PermitsFound::Late => LostReason::Expired,
            PermitsFound::Missing => LostReason::Deleted,
        };
        Err(Error::Lost { name: self.named.current()?.1.shown(), reason })
    }

    /// Gives a permit back by its id, whoever took it. True if this call gave it back, also if its lease had just run
    /// out and nobody else had it since. False if there is no such permit.
    ///
    /// # Errors
    ///
    /// As [`update_lease`](Self::update_lease).
    pub fn try_release(&self, id: &PermitId) -> Result<bool, Error> {
        self.release_all(&[*id])
    }

    /// Gives permits back by their ids: all of them, or none if there is one that the server does not know. True if
    /// they were given back. At most 1,000.
    ///
    /// # Errors
    ///
    /// As [`update_lease`](Self::update_lease), and [`Error::InvalidCount`].
    pub fn release_all(&self, ids: &[PermitId]) -> Result<bool, Error> {
        if ids.is_empty() {
            return self.named.current().map(|_| true);
        }
        Ok(self.give_back(ids)? != PermitsFound::Missing)
    }

    /// How many permits are free. Less than zero if more are taken than there are to be.
    ///
    /// # Errors
    ///
    /// As [`update_lease`](Self::update_lease).
    pub fn available_permits(&self) -> Result<i64, Error> {
        self.count().map(|counts| counts.free)
    }

    /// How many permits there are, free and taken. Zero if there is no such semaphore.
    ///
    /// # Errors
    ///
    /// As [`update_lease`](Self::update_lease).
    pub fn permits(&self) -> Result<i64, Error> {
        self.count().map(|counts| counts.free.saturating_add(counts.taken))
    }

    /// How many permits are taken.
    ///
    /// # Errors
    ///
    /// As [`update_lease`](Self::update_lease).
    pub fn acquired_permits(&self) -> Result<i64, Error> {
        self.count().map(|counts| counts.taken)
    }

    /// Makes the semaphore with `permits`, if there is none. False if there is one. Wakes waiters.
    ///
    /// # Errors
    ///
    /// As [`update_lease`](Self::update_lease), and [`Error::InvalidCount`].
    pub fn try_set_permits(&self, permits: u32) -> Result<bool, Error> {
        let permits = countable(permits)?;
        self.named.ask(|name, request| MakeSemaphore::new(name, permits, 0, request))
    }

    /// Sets how many permits there are, free and taken; makes the semaphore if there is none. Wakes waiters. If more
    /// are taken than that, fewer than zero are free until enough have come back.
    ///
    /// # Errors
    ///
    /// As [`update_lease`](Self::update_lease), and [`Error::InvalidCount`].
    pub fn set_permits(&self, permits: u32) -> Result<(), Error> {
        let permits = countable(permits)?;
        self.named.ask(|name, request| SetPermits::new(name, permits, request))
    }

    /// Changes how many permits there are by `change`, which may be less than zero. Makes the semaphore if there is
    /// none. Wakes waiters if it gave some.
    ///
    /// # Errors
    ///
    /// As [`update_lease`](Self::update_lease), and [`Error::InvalidCount`] if the sum would not fit into 32 bits.
    pub fn add_permits(&self, change: i32) -> Result<(), Error> {
        add_permits(&self.named, i64::from(change), false).map(|_| ())
    }

    /// Gives a permit another lease, which begins now and may be shorter or longer. False if it is not taken any more.
    /// A [`Permit`] of this id does not learn of it, and the next renewal of a watched one prolongs a shorter lease.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidName`], [`Error::InvalidLease`] - permanent, nothing was sent.
    /// * [`Error::WrongType`] - the keys hold something that is not a semaphore.
    /// * [`Error::Unreachable`], [`Error::Refused`], [`Error::Authentication`] - the server did not do it, for twice
    ///   the command timeout.
    /// * [`Error::OutcomeUnknown`] - the server did not answer for twice the command timeout. It may have done it or
    ///   not.
    /// * [`Error::Shutdown`] - the client was shut down.
    pub fn update_lease(&self, id: &PermitId, lease: Duration) -> Result<bool, Error> {
        let lease = Lease::new(lease)?;
        self.named.ask(|name, request| UpdateLease::new(&name, *id, Some(lease), request))
    }

    /// Lets a permit stay taken until it is given back. False if it is not taken any more. A [`Permit`] of this id does
    /// not learn of it.
    ///
    /// # Errors
    ///
    /// As [`update_lease`](Self::update_lease).
    pub fn remove_lease(&self, id: &PermitId) -> Result<bool, Error> {
        self.named.ask(|name, request| UpdateLease::new(&name, *id, None, request))
    }

    /// How long a permit is taken for, as the server says: [`Duration::MAX`] if it has no lease, `None` if it is not
    /// taken any more.
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

    fn give_back(&self, ids: &[PermitId]) -> Result<PermitsFound, Error> {
        check_number(ids.len())?;
        let (process, name) = self.named.current()?;
        // Whoever has only the id does not know whether a copy of its acquire is still on its way.
        let remembered = remembered(&process);
        let release =
            ReleasePermits::new(name.clone(), ids.to_vec(), process.id.draw(), remembered);
        let answer = answered(process.call(&release), release.name(), &name)?;
        Ok(answer.reply.found)
    }

    fn one_or_cancel(&self, cancel: Option<&Receiver<()>>) -> Result<Permit, Error> {
        match self.take_one(Wish::forever(cancel))? {
            Some(permit) => Ok(permit),
            // A wait without a deadline does not end by time.
            None => Err(Error::Cancelled { name: self.named.current()?.1.shown() }),
        }
    }

    fn many_or_cancel(
        &self,
        permits: u32,
        cancel: Option<&Receiver<()>>,
    ) -> Result<Permits, Error> {
        match self.take_many(permits, Wish::forever(cancel))? {
            Some(permits) => Ok(permits),
            None => Err(Error::Cancelled { name: self.named.current()?.1.shown() }),
        }
    }

    fn take_one(&self, wish: Wish<'_>) -> Result<Option<Permit>, Error> {
        Ok(self.take(1, wish)?.and_then(|taken| {
            let id = taken.ids().first().copied()?;
            Some(Permit::new(taken, id))
        }))
    }

    fn take_many(&self, permits: u32, wish: Wish<'_>) -> Result<Option<Permits>, Error> {
        Ok(self.take(permits, wish)?.map(Permits::new))
    }

    fn take(&self, permits: u32, wish: Wish<'_>) -> Result<Option<Taken>, Error> {
        let (process, name) = self.named.current()?;
        let term = self.term.clone()?;
        check_number(usize::try_from(permits).unwrap_or(usize::MAX))?;
        let channel = name.semaphore_channel();
        let mut taker = PermitTaker::new(&process, name.clone(), permits, term);
        wait(&process, &name, &channel, wish, |patience| taker.attempt(patience))
    }
}

fn check_number(permits: usize) -> Result<(), Error> {
    let count = i64::try_from(permits).unwrap_or(i64::MAX);
    if (1..=i64::from(MOST_AT_ONCE)).contains(&count) {
        return Ok(());
    }
    let reason = format!("it takes at least 1 and at most {MOST_AT_ONCE} at once");
    Err(Error::InvalidCount { count, reason })
}
