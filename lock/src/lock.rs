//! The reentrant lock: take it, ask about it, force it open.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

use crate::call::{Attempts, Patience, call};
use crate::error::{Error, LostReason};
use crate::guard::LockGuard;
use crate::hold::Hold;
use crate::lease::Lease;
use crate::name::LockName;
use crate::op::{
    Acquire, Acquired, Exists, ForceRelease, Operation, Recount, Recounted, TimeToLive,
};
use crate::owner::Owner;
use crate::process::Process;
use crate::value::ServerTime;
use crate::wait::{Attempt, Until, Waited};

/// A reentrant lock of one name. Cheap to make, to clone and to share; it holds nothing by itself.
///
/// All locks of one name exclude each other: those of one client, of other processes, and Redisson's `RLock` in Java.
/// A thread that holds it may take it again; it is free when the last of its guards is gone. Two `Lock` objects of one
/// client and name on one thread are one hold.
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
#[derive(Clone, Debug)]
pub struct Lock {
    process: Arc<Process>,
    name: Result<LockName, Error>,
    terms: Result<Terms, Error>,
}

/// How a hold lasts.
#[derive(Clone, Copy, Debug)]
struct Terms {
    lease: Lease,
    watched: bool,
}

/// How an acquire ends, seen from its thread.
type Acquisition = Result<Option<LockGuard>, Error>;

impl Lock {
    pub(crate) fn new(process: Arc<Process>, name: &str) -> Self {
        let terms = Terms { lease: process.settings.watchdog_lease, watched: true };
        Self { process, name: LockName::parse(name), terms: Ok(terms) }
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
        self.terms = Lease::new(lease).map(|lease| Terms { lease, watched: false });
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
    /// * [`Error::Lost`] - it was granted too late: the lease was over when the answer came.
    /// * [`Error::Shutdown`] - the client was shut down.
    /// * [`Error::WatchdogGone`] - nobody would renew the hold.
    pub fn lock(&self) -> Result<LockGuard, Error> {
        self.lock_with(None)
    }

    /// Takes the lock if it is free. `None` if somebody else holds it.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    pub fn try_lock(&self) -> Acquisition {
        let process = self.current()?;
        self.acquire_or_nest(&process, None, None, false)
    }

    /// Takes the lock, and waits for it for at most `wait`, by a monotonic clock. `None` if it could not be had in that
    /// time, because somebody else held it or stood before this thread in the line. A `wait` of zero is a
    /// [`try_lock`](Self::try_lock).
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), and by the end of the wait: a server that does not answer by then is an error.
    pub fn try_lock_for(&self, wait: Duration) -> Acquisition {
        self.try_lock_with(wait, None)
    }

    /// Takes the lock, and waits for it until `deadline`, as [`try_lock_for`](Self::try_lock_for) does. A `deadline` that
    /// has passed makes it a [`try_lock`](Self::try_lock).
    ///
    /// # Errors
    ///
    /// As [`try_lock_for`](Self::try_lock_for).
    pub fn try_lock_until(&self, deadline: Instant) -> Acquisition {
        let process = self.current()?;
        self.try_lock_for(process.clock.remaining(deadline))
    }

    /// Takes the lock, and waits for it until `cancel` has a message or has lost its senders. The message stays in the
    /// channel, so that it cancels every wait on it. Any thread may send it. It takes effect at once, except that a command
    /// that is under way is waited for, for one command timeout at most.
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
    pub fn lock_or_cancel(&self, cancel: &Receiver<()>) -> Result<LockGuard, Error> {
        self.lock_with(Some(cancel))
    }

    fn lock_with(&self, cancel: Option<&Receiver<()>>) -> Result<LockGuard, Error> {
        let process = self.current()?;
        match self.acquire_or_nest(&process, None, cancel, true)? {
            Some(guard) => Ok(guard),
            // A wait without a deadline does not end by time.
            None => Err(Error::Cancelled { name: self.name()?.shown() }),
        }
    }

    /// Takes the lock, and waits for it for at most `wait`, or until `cancel` has a message or has lost its senders.
    ///
    /// # Errors
    ///
    /// As [`try_lock_for`](Self::try_lock_for), and [`Error::Cancelled`].
    pub fn try_lock_for_or_cancel(&self, wait: Duration, cancel: &Receiver<()>) -> Acquisition {
        self.try_lock_with(wait, Some(cancel))
    }

    fn try_lock_with(&self, wait: Duration, cancel: Option<&Receiver<()>>) -> Acquisition {
        if wait.is_zero() {
            return self.try_lock();
        }
        let process = self.current()?;
        // A deadline beyond what the clock can say is none.
        let deadline = process.now().checked_add(wait);
        self.acquire_or_nest(&process, deadline, cancel, true)
    }

    /// Whether anybody holds the lock, as the server says. One round trip.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    pub fn is_locked(&self) -> Result<bool, Error> {
        self.ask(&Exists(self.name()?))
    }

    /// How long the lock is held unless it is renewed, whoever holds it, as the server says. `None` if nobody does;
    /// [`Duration::MAX`] if its key has no expiry, which no lock of ours is without. One round trip.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    pub fn remaining_lease(&self) -> Result<Option<Duration>, Error> {
        self.ask(&TimeToLive(self.name()?))
    }

    /// Whether the calling thread holds the lock for certain. Local: no round trip.
    #[must_use]
    pub fn is_held_by_current_thread(&self) -> bool {
        self.hold_count() > 0
    }

    /// How many guards of this lock the calling thread has; zero if its hold was lost. Local: no round trip.
    #[must_use]
    pub fn hold_count(&self) -> u32 {
        let (Ok(process), Ok(name)) = (self.process.current(), &self.name) else {
            return 0;
        };
        process
            .holds
            .find(name, thread::current().id())
            .filter(|hold| hold.is_held(process.now()))
            .map_or(0, |hold| hold.guards())
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
        let name = self.name()?;
        let process = self.current()?;
        let own = process.holds.of_name(&name);
        let ended = self.ask(&ForceRelease::new(name))?;
        // Also if there was nothing: then an earlier copy of the command has ended it, or it was gone before.
        for hold in own {
            process.watchdog.lose(&hold, LostReason::Deleted);
        }
        Ok(ended)
    }

    fn name(&self) -> Result<LockName, Error> {
        self.name.clone()
    }

    fn current(&self) -> Result<Arc<Process>, Error> {
        let process = self.process.current()?;
        if process.is_shut_down() { Err(Error::Shutdown) } else { Ok(process) }
    }

    fn ask<O: Operation>(&self, operation: &O) -> Result<O::Reply, Error> {
        let name = self.name()?;
        match self.current()?.call(operation) {
            Ok(answer) => Ok(answer.reply),
            Err(gave_up) => Err(gave_up.failure.into_error::<O>(&name)),
        }
    }

    /// Re-enters a hold of this thread, or takes the lock anew.
    fn acquire_or_nest(
        &self,
        process: &Arc<Process>,
        deadline: Option<Instant>,
        cancel: Option<&Receiver<()>>,
        waits: bool,
    ) -> Acquisition {
        let (name, terms) = (self.name()?, self.terms.clone()?);
        // Until when one call goes on trying.
        let until = || {
            let now = process.now();
            let patience = now + process.settings.patience();
            deadline
                .filter(|_| waits)
                .map_or(patience, |deadline| patience.min(deadline.max(now + SHORTEST_CALL)))
        };
        // If the old hold turns out to be lost, it has been told so. Whoever asks now gets a new one, or waits for it.
        if let Some(hold) = process.holds.find(&name, thread::current().id())
            && let Some(guard) = nest(process, &hold, terms, until(), cancel)?
        {
            return Ok(Some(guard));
        }
        let mut acquirer = Acquirer::new(process, name.clone(), terms);
        if !waits {
            return match acquirer.attempt(until(), cancel)? {
                Attempt::Granted(guard) => Ok(Some(guard)),
                Attempt::Busy(_) => Ok(None),
            };
        }
        let end = Until { deadline, cancel };
        let channel = name.channel();
        let waited = process
            .channels
            .wait(&process.store, &channel, end, || acquirer.attempt(until(), cancel))?;
        match waited {
            Waited::Granted(guard) => Ok(Some(guard)),
            Waited::TimedOut => Ok(None),
            Waited::Cancelled => Err(Error::Cancelled { name: name.shown() }),
            Waited::Closed => Err(Error::Shutdown),
        }
    }
}

/// A call that is begun just before a deadline has at least this long, so that a short wait is not an error.
const SHORTEST_CALL: Duration = Duration::from_millis(10);

/// One acquire of a new hold, over all its attempts. If it ends without a guard although a copy of an attempt may
/// still reach the server, a release is owed.
struct Acquirer<'a> {
    process: &'a Arc<Process>,
    terms: Terms,
    name: LockName,
    owner: Owner,
    doubt: Option<ServerTime>,
}

impl<'a> Acquirer<'a> {
    fn new(process: &'a Arc<Process>, name: LockName, terms: Terms) -> Self {
        Self { process, terms, name, owner: process.id.draw(), doubt: None }
    }

    fn attempt(
        &mut self,
        until: Instant,
        cancel: Option<&Receiver<()>>,
    ) -> Result<Attempt<LockGuard>, Error> {
        let process = self.process;
        renewable(process, self.terms)?;
        let acquire =
            Acquire { name: self.name.clone(), owner: self.owner.clone(), lease: self.terms.lease };
        let patience = patience(process, until, cancel);
        let answer = match call(&process.store, &*process.clock, &acquire, &patience) {
            Ok(answer) => answer,
            Err(gave_up) => {
                self.doubt = self.doubt.max(gave_up.doubt);
                return Err(gave_up.failure.into_error::<Acquire>(&self.name));
            }
        };
        self.doubt = self.doubt.max(answer.doubt);
        match answer.reply {
            Acquired::Busy(busy) => Ok(Attempt::Busy(busy)),
            Acquired::Granted => self.granted(answer.sent_at).map(Attempt::Granted),
        }
    }

    fn granted(&mut self, sent_at: Instant) -> Result<LockGuard, Error> {
        let process = self.process;
        let Terms { lease, watched } = self.terms;
        // From here on the hold answers for the doubt.
        let doubt = self.doubt.take();
        let (name, owner) = (self.name.clone(), self.owner.clone());
        let hold = Arc::new(Hold::new(name, owner, lease, watched, sent_at, doubt));
        let in_time = hold.is_held(process.now());
        if !in_time {
            // The server counts from when the request arrived, and that was late.
            hold.ask_for(lease);
        }
        process.holds.insert(&hold);
        process.watchdog.watch(&hold, sent_at);
        let guard = LockGuard::new(Arc::clone(process), hold, watched);
        if process.is_shut_down() {
            // The shutdown may have ended all holds before this one was among them. Dropping the guard releases it.
            return Err(Error::Shutdown);
        }
        if in_time {
            return Ok(guard);
        }
        // Granted, and over before the answer was here. Unlocking it says so, and cleans up.
        guard.unlock()?;
        Err(Error::Lost { name: self.name.shown(), reason: LostReason::Expired })
    }
}

impl Drop for Acquirer<'_> {
    fn drop(&mut self) {
        if let Some(doubt) = self.doubt {
            let (name, owner) = (self.name.clone(), self.owner.clone());
            self.process.watchdog.owe_release(name, owner, self.terms.lease, Some(doubt));
        }
    }
}

/// What an acquire keeps trying for: until its end, a cancellation or a shutdown.
fn patience<'a>(
    process: &'a Process,
    until: Instant,
    cancel: Option<&'a Receiver<()>>,
) -> Patience<'a> {
    Patience {
        until,
        attempt: process.settings.command_timeout,
        attempts: Attempts::UntilAnswered,
        closed: Some(process.channels.closed()),
        cancel,
    }
}

/// An error if the hold would be watched, and nobody is there to renew it.
fn renewable(process: &Process, terms: Terms) -> Result<(), Error> {
    if terms.watched && process.watchdog.is_gone() { Err(Error::WatchdogGone) } else { Ok(()) }
}

/// One more guard of a hold that this thread has. `None` if it turns out to be lost.
fn nest(
    process: &Arc<Process>,
    hold: &Arc<Hold>,
    terms: Terms,
    until: Instant,
    cancel: Option<&Receiver<()>>,
) -> Acquisition {
    let Terms { lease, watched } = terms;
    if !hold.is_held(process.now()) {
        process.watchdog.lose(hold, hold.reason_of_end());
        return Ok(None);
    }
    renewable(process, terms)?;
    let recount = Recount {
        name: hold.name.clone(),
        owner: hold.owner.clone(),
        count: hold.guards() + 1,
        lease: Some(lease),
    };
    // Before it is sent: the hold may end before the answer is here.
    hold.ask_for(lease);
    let patience = patience(process, until, cancel);
    let answer = match call(&process.store, &*process.clock, &recount, &patience) {
        Ok(answer) => answer,
        // The count on the server may be one too high. No decision reads it.
        Err(gave_up) => return Err(gave_up.failure.into_error::<Recount>(&hold.name)),
    };
    if answer.reply == Recounted::Gone {
        process.watchdog.lose(hold, LostReason::Deleted);
        return Ok(None);
    }
    if !hold.extend(process.now(), lease, answer.sent_at) {
        // It ended while the answer was on its way. Whoever saw that first owes its release.
        process.watchdog.lose(hold, hold.reason_of_end());
        return Ok(None);
    }
    hold.nest(lease, watched);
    process.watchdog.watch(hold, answer.sent_at);
    Ok(Some(LockGuard::new(Arc::clone(process), Arc::clone(hold), watched)))
}
