//! A lock, of whatever kind: take it, ask about it, force it open.

use std::fmt;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

use crate::back_off::BackOff;
use crate::caller::remembered;
use crate::claim;
use crate::error::{Error, LostReason};
use crate::fenced_guard::FencedGuard;
use crate::guard::LockGuard;
use crate::guards::Guard;
use crate::hold::Hold;
use crate::kind::{Kind, Layout};
use crate::op::{self, LastToken, TimeToLive};
use crate::owned_guard::OwnedGuard;
use crate::owner::Holder;
use crate::part::{AnyLock, AsPart, Part};
use crate::plan::{Plan, Wait};
use crate::wait::Until;

/// A lock of one name. Cheap to make, to clone and to share; it holds nothing by itself.
///
/// What kind it is depends on who made it: [`Client::lock`](crate::Client::lock) and its siblings. All kinds are taken,
/// held, renewed and released in the same way, and give a guard `G`: a [`LockGuard`] that stays on its thread, a
/// [`FencedGuard`] with a number, or, [for an owner that is no thread](Self::with_owner), an [`OwnedGuard`].
///
/// All locks of one name and kind exclude each other: those of one client, of other processes, and Redisson's in Java.
/// [`lock`](crate::Client::lock), `fair_lock`, `fenced_lock`, `spin_lock` and the non-reentrant ones exclude each other
/// too, for their keys are alike; but each wakes only the waiters of its own kind at once, and the others find out
/// within a second. A thread that holds a lock may take it again, unless the kind says otherwise; it is free when the
/// last of its guards is gone. Two `Lock` objects of one client and name on one thread are one hold.
///
/// By default a hold is *watched*: its lease is renewed until its last guard is gone. [`with_lease`](Self::with_lease)
/// makes a hold that ends by itself.
///
/// The idea, the keys and the messages are Redisson's (`RLock`).
///
/// ```
/// use std::time::Duration;
/// use wheellock::Client;
///
/// let client = Client::in_memory();
/// let lock = client.lock("orders:42");
/// if let Some(guard) = lock.try_lock_for(Duration::from_secs(5))? {
///     // Alone.
///     guard.unlock()?;
/// }
/// # Ok::<(), wheellock::Error>(())
/// ```
pub struct Lock<G = LockGuard> {
    plan: Plan,
    /// `None`: the calling thread.
    owner: Option<Holder>,
    guards: PhantomData<fn() -> G>,
}

/// A lock whose guards have a [fencing token](FencedGuard::token).
///
/// ```
/// use wheellock::{Client, FencedLock};
///
/// let lock: FencedLock = Client::in_memory().fenced_lock("orders:42");
/// let token = lock.lock()?.token();
/// assert!(lock.lock()?.token() > token);
/// assert!(lock.last_token()? > token);
/// # Ok::<(), wheellock::Error>(())
/// ```
pub type FencedLock = Lock<FencedGuard>;

impl<G: Guard> Lock<G> {
    pub(crate) fn new(plan: Plan) -> Self {
        Self { plan, owner: None, guards: PhantomData }
    }

    /// The same lock, with holds that last for `lease` and are not renewed.
    ///
    /// The lease counts from before the acquire was sent, in whole milliseconds. The shortest is 10 ms, the longest a
    /// hundred years; outside of that, taking the lock is an [`Error::InvalidLease`].
    ///
    /// If the thread holds the lock already, its lease is never shortened; if one of its guards is watched, the hold is
    /// renewed as long as that guard is there.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.plan.set_lease(lease);
        self
    }

    /// Takes the lock, and waits for it as long as it takes.
    ///
    /// It waits without polling: the holder's release wakes it. Should that message be lost, it asks again after a
    /// second at most.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidName`], [`Error::InvalidLease`] - permanent, nothing was sent.
    /// * [`Error::WrongType`] - the key holds something that is not a lock.
    /// * [`Error::Unreachable`], [`Error::Refused`], [`Error::Authentication`] - the server did not do it, for twice the
    ///   command timeout.
    /// * [`Error::OutcomeUnknown`] - the server did not answer for twice the command timeout. Nothing is held; what the
    ///   command may have created is released in the background.
    /// * [`Error::NotReplicated`] - too few [replicas](crate::ClientBuilder::replica_acks) have heard of it. Nothing is
    ///   held.
    /// * [`Error::Lost`] - it was granted too late: the lease was over when the answer came.
    /// * [`Error::Shutdown`] - the client was shut down.
    /// * [`Error::WatchdogGone`] - nobody would renew the hold.
    pub fn lock(&self) -> Result<G, Error> {
        self.lock_with(None)
    }

    /// Takes the lock if it is free. `None` if somebody else holds it.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    pub fn try_lock(&self) -> Result<Option<G>, Error> {
        self.carry_out(Wait::No)
    }

    /// Takes the lock, and waits for it for at most `wait`, by a monotonic clock. `None` if it could not be had in that
    /// time, because somebody else held it or stood before this thread in the line. A `wait` of zero is a
    /// [`try_lock`](Self::try_lock).
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), and by the end of the wait: a server that does not answer by then is an error.
    pub fn try_lock_for(&self, wait: Duration) -> Result<Option<G>, Error> {
        self.try_lock_with(wait, None)
    }

    /// Takes the lock, and waits for it until `deadline`, as [`try_lock_for`](Self::try_lock_for) does. A `deadline`
    /// that has passed makes it a [`try_lock`](Self::try_lock).
    ///
    /// # Errors
    ///
    /// As [`try_lock_for`](Self::try_lock_for).
    pub fn try_lock_until(&self, deadline: Instant) -> Result<Option<G>, Error> {
        self.try_lock_for(self.plan.process()?.clock.remaining(deadline))
    }

    /// Takes the lock, and waits for it until `cancel` has a message or has lost its senders. The message stays in the
    /// channel, so that it cancels every wait on it. Any thread may send it. It takes effect at once, except that a
    /// command that is under way is waited for, for one command timeout at most.
    ///
    /// ```
    /// use wheellock::{Client, Error, Memory};
    ///
    /// let memory = Memory::new();
    /// let holder = Client::builder().in_memory(&memory).build()?;
    /// let waiter = Client::builder().in_memory(&memory).build()?;
    /// let _guard = holder.lock("orders:42").lock()?;
    ///
    /// let (cancel, cancelled) = crossbeam_channel::bounded(1);
    /// cancel.send(()).unwrap();
    /// let error = waiter.lock("orders:42").lock_or_cancel(&cancelled).unwrap_err();
    /// assert!(matches!(error, Error::Cancelled { .. }));
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), and [`Error::Cancelled`].
    pub fn lock_or_cancel(&self, cancel: &Receiver<()>) -> Result<G, Error> {
        self.lock_with(Some(cancel))
    }

    fn lock_with(&self, cancel: Option<&Receiver<()>>) -> Result<G, Error> {
        match self.carry_out(Wait::For(Until { deadline: None, cancel }))? {
            Some(guard) => Ok(guard),
            // A wait without a deadline does not end by time.
            None => Err(Error::Cancelled { name: self.plan.name()?.shown() }),
        }
    }

    /// Takes the lock, and waits for it for at most `wait`, or until `cancel` has a message or has lost its senders.
    ///
    /// # Errors
    ///
    /// As [`try_lock_for`](Self::try_lock_for), and [`Error::Cancelled`].
    pub fn try_lock_for_or_cancel(
        &self,
        wait: Duration,
        cancel: &Receiver<()>,
    ) -> Result<Option<G>, Error> {
        self.try_lock_with(wait, Some(cancel))
    }

    fn try_lock_with(
        &self,
        wait: Duration,
        cancel: Option<&Receiver<()>>,
    ) -> Result<Option<G>, Error> {
        if wait.is_zero() {
            return self.try_lock();
        }
        // A deadline beyond what the clock can say is none.
        let deadline = self.plan.process()?.now().checked_add(wait);
        self.carry_out(Wait::For(Until { deadline, cancel }))
    }

    /// The lock's name with the client's [prefix](crate::Client::with_prefix), cut short if it is very long; also if it
    /// is no name that a lock can have.
    ///
    /// ```
    /// use wheellock::Client;
    ///
    /// assert_eq!(Client::in_memory().fair_lock("orders:42").name(), "orders:42");
    /// ```
    #[must_use]
    pub fn name(&self) -> String {
        match self.plan.name() {
            Ok(name) => name.shown(),
            Err(Error::InvalidName { name, .. }) => name,
            // There is no other.
            Err(error) => error.to_string(),
        }
    }

    /// Whether anybody holds the lock, as the server says. One round trip.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    pub fn is_locked(&self) -> Result<bool, Error> {
        self.plan.ask(&claim::is_locked(self.plan.kind, self.plan.name()?))
    }

    /// How long the lock is held unless it is renewed, whoever holds it, as the server says. `None` if nobody does;
    /// [`Duration::MAX`] if its key has no expiry, which no lock of ours is without. One round trip.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    pub fn remaining_lease(&self) -> Result<Option<Duration>, Error> {
        self.plan.ask(&TimeToLive(self.plan.name()?))
    }

    /// Whether the calling thread, or the [owner](Self::with_owner), holds the lock for certain. Local: no round trip.
    #[must_use]
    pub fn is_held_by_current_thread(&self) -> bool {
        self.hold_count() > 0
    }

    /// How many guards of this lock the calling thread, or the [owner](Self::with_owner), has; zero if its hold was
    /// lost. Local: no round trip.
    #[must_use]
    pub fn hold_count(&self) -> u32 {
        self.plan.held_by(&self.holder()).map_or(0, |hold| hold.guards())
    }

    /// Ends whatever holds the lock, and wakes a waiter. Answers whether there was a hold.
    ///
    /// The holder is told: at once if it is this client, else at its next renewal. Until then two may believe that
    /// they hold the lock. It is meant for an operator.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    pub fn force_unlock(&self) -> Result<bool, Error> {
        let (name, kind) = (self.plan.name()?, self.plan.kind);
        let process = self.plan.process()?;
        let own = process.holds.of_name(&name);
        let request = op::Request::new(&name, &process.id.draw(), remembered(&process));
        let ended = self.plan.ask(&claim::force_release(kind, name, request))?;
        // What holds the lock may be of another layout: a writer may read too. Also if there was nothing: then an
        // earlier copy of the command has ended it, or it was gone before. Only a reader under his own write hold is
        // still there: the lock was not in mode read.
        let writes = |reader: &Hold| {
            own.iter().any(|hold| {
                hold.kind.layout() == Layout::Writer
                    && hold.has_holder_of(reader)
                    && hold.is_held(process.now())
            })
        };
        for hold in &own {
            let is_gone =
                hold.kind.layout() == kind.layout() && !(kind == Kind::Read && writes(hold));
            if ended || is_gone {
                process.watchdog.lose(hold, LostReason::Deleted);
            }
        }
        Ok(ended)
    }

    fn carry_out(&self, wait: Wait<'_>) -> Result<Option<G>, Error> {
        let grip = self.plan.carry_out(&self.holder(), wait)?;
        Ok(grip.map(G::from_grip))
    }

    fn holder(&self) -> Holder {
        self.owner.clone().unwrap_or_else(Holder::current_thread)
    }

    /// The same lock for an owner of that name instead of the calling thread: its guards may be sent to other threads.
    ///
    /// Whoever asks for the lock under the same owner's name, on this client, has it already and nests. So a name
    /// should stand for one task at a time. On the server an owner is still the client's identity and a number drawn
    /// anew for each hold; the name stays here. Another client's owner of the same name is somebody else.
    ///
    /// ```
    /// use wheellock::Client;
    ///
    /// let client = Client::in_memory();
    /// let lock = client.lock("orders:42").with_owner("request 7");
    /// let guard = lock.lock()?;
    /// std::thread::spawn(move || drop(guard)).join().unwrap();
    /// assert!(!lock.is_locked()?);
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    #[must_use]
    pub fn with_owner(self, owner: &str) -> Lock<OwnedGuard> {
        let owner = Some(Holder::named(owner));
        Lock { plan: self.plan, owner, guards: PhantomData }
    }

    /// The same lock with other pauses between tries. It matters to locks whose waiters poll:
    /// [`spin_lock`](crate::Client::spin_lock) and [`simple_lock`](crate::Client::simple_lock); the others are woken.
    #[must_use]
    pub fn with_back_off(mut self, back_off: BackOff) -> Self {
        self.plan.back_off = back_off;
        self
    }
}

impl Lock<FencedGuard> {
    /// The last fencing token that anybody was given, zero if nobody was. One round trip.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    pub fn last_token(&self) -> Result<u64, Error> {
        Ok(self.plan.ask(&LastToken::new(&self.plan.name()?))?.unwrap_or(0))
    }
}

impl Lock<OwnedGuard> {
    /// The last fencing token that anybody was given, zero if nobody was; `None` if the lock is not a fenced one. One
    /// round trip for a fenced one.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    pub fn last_token(&self) -> Result<Option<u64>, Error> {
        if self.plan.kind != Kind::Fenced {
            return Ok(None);
        }
        Ok(Some(self.plan.ask(&LastToken::new(&self.plan.name()?))?.unwrap_or(0)))
    }
}

impl<G: Guard> AnyLock for Lock<G> {}

impl<G: Guard> AsPart for Lock<G> {
    fn as_part(&self) -> Part {
        Part::new(self.plan.clone(), self.owner.clone())
    }
}

impl<G> Clone for Lock<G> {
    fn clone(&self) -> Self {
        Self { plan: self.plan.clone(), owner: self.owner.clone(), guards: PhantomData }
    }
}

impl<G> fmt::Debug for Lock<G> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Lock")
            .field("plan", &self.plan)
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}
