//! The semaphore whose permits are a number: nobody owns one, and none ends by itself.

use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

use crate::caller::{Named, Wish, countable, wait};
use crate::error::Error;
use crate::lease::Lease;
use crate::op::{AddPermits, Added, MakeSemaphore};
use crate::taker::{NumberTaker, drain};

/// A number of permits, shared by all clients of a server. Cheap to make, to clone and to share; it holds nothing by
/// itself.
///
/// Whoever takes permits gives them back by [`release`](Self::release); anybody may. **What a process that dies had
/// taken stays taken.** Where that must not be, use an [`ExpirableSemaphore`](crate::ExpirableSemaphore).
///
/// A semaphore has to be made, by [`try_set_permits`](Self::try_set_permits); before, it has no permits. There is no
/// line among clients: whoever asks first when permits come back gets them. Within one client the first in line asks
/// first, and who wants more than there are lets those who want fewer go ahead.
///
/// Every call counts once, also if it has to be sent again: the server remembers what it answered, under a key of its
/// own, for 72 s with the default command timeout.
///
/// The idea, the key and the messages are Redisson's (`RSemaphore`), which has them from `java.util.concurrent`. It is
/// Dijkstra's (1962). Unlike Redisson's, [`add_permits`](Self::add_permits) and [`drain_permits`](Self::drain_permits)
/// leave the key's time to live as it is.
///
/// ```
/// use std::time::Duration;
/// use wheellock::Client;
///
/// let client = Client::in_memory();
/// let downloads = client.semaphore("downloads");
/// downloads.try_set_permits(2)?;
/// if downloads.try_acquire_for(1, Duration::from_secs(5))? {
///     // At most two at a time.
///     downloads.release(1)?;
/// }
/// # Ok::<(), wheellock::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore {
    named: Named,
}

impl Semaphore {
    pub(crate) fn new(named: Named) -> Self {
        Self { named }
    }

    /// Takes `permits`, and waits for them as long as it takes. None are taken at once.
    ///
    /// It waits without polling: a release wakes it. Should that message be lost, it asks again after a second at most.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidName`], [`Error::InvalidCount`] - permanent, nothing was sent.
    /// * [`Error::WrongType`] - the key holds something that is not a number.
    /// * [`Error::Unreachable`], [`Error::Refused`], [`Error::Authentication`] - the server did not do it, for twice
    ///   the command timeout. A server that is out of memory refuses to give permits; they can be released.
    /// * [`Error::OutcomeUnknown`] - the server did not answer for twice the command timeout. Nothing is held; what the
    ///   command may have taken is given back in the background, if the server answers again within a minute.
    /// * [`Error::NotReplicated`] - too few [replicas](crate::ClientBuilder::replica_acks) have heard of it. Nothing is
    ///   held.
    /// * [`Error::Shutdown`] - the client was shut down.
    pub fn acquire(&self, permits: u32) -> Result<(), Error> {
        self.take_or_cancel(permits, None)
    }

    /// Takes `permits` if there are as many. False if not.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    pub fn try_acquire(&self, permits: u32) -> Result<bool, Error> {
        self.take(permits, Wish::Once)
    }

    /// Takes `permits`, and waits for them for at most `wait`, by a monotonic clock. False if they could not be had in
    /// that time. A `wait` of zero is a [`try_acquire`](Self::try_acquire).
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), and by the end of the wait: a server that does not answer by then is an error.
    pub fn try_acquire_for(&self, permits: u32, wait: Duration) -> Result<bool, Error> {
        self.take(permits, self.named.within(wait, None)?)
    }

    /// Takes `permits`, and waits for them until `deadline`, as [`try_acquire_for`](Self::try_acquire_for) does. A
    /// `deadline` that has passed makes it a [`try_acquire`](Self::try_acquire).
    ///
    /// # Errors
    ///
    /// As [`try_acquire_for`](Self::try_acquire_for).
    pub fn try_acquire_until(&self, permits: u32, deadline: Instant) -> Result<bool, Error> {
        self.try_acquire_for(permits, self.named.until(deadline)?)
    }

    /// Takes `permits`, and waits for them for at most `wait`, or until `cancel` has a message or has lost its senders.
    ///
    /// # Errors
    ///
    /// As [`try_acquire_for`](Self::try_acquire_for), and [`Error::Cancelled`].
    pub fn try_acquire_for_or_cancel(
        &self,
        permits: u32,
        wait: Duration,
        cancel: &Receiver<()>,
    ) -> Result<bool, Error> {
        self.take(permits, self.named.within(wait, Some(cancel))?)
    }

    /// Takes `permits`, and waits for them until `cancel` has a message or has lost its senders. The message stays in
    /// the channel, so that it cancels every wait on it. It takes effect at once, except that a command that is under
    /// way is waited for, for one command timeout at most.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), and [`Error::Cancelled`].
    pub fn acquire_or_cancel(&self, permits: u32, cancel: &Receiver<()>) -> Result<(), Error> {
        self.take_or_cancel(permits, Some(cancel))
    }

    /// Adds `permits`, whoever took them and also if nobody did. Makes the semaphore if there is none. Wakes waiters.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), but that after an [`Error::OutcomeUnknown`] they may have been added or not. Also
    /// [`Error::InvalidCount`] if there would be more than 2,147,483,647.
    pub fn release(&self, permits: u32) -> Result<(), Error> {
        self.add(permits, false).map(|_| ())
    }

    /// Adds `permits` as [`release`](Self::release) does, if there is such a semaphore. False if not.
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release).
    pub fn release_if_exists(&self, permits: u32) -> Result<bool, Error> {
        self.add(permits, true)
    }

    /// How many permits are free. Less than zero if more were taken away by [`add_permits`](Self::add_permits) than
    /// there were; zero if there is no such semaphore.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    pub fn available_permits(&self) -> Result<i64, Error> {
        self.named.number()
    }

    /// Takes all permits that are free, and answers how many those were. If it was less than zero, it is zero now.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire): what it took and could not say is given back.
    pub fn drain_permits(&self) -> Result<i64, Error> {
        let (process, name) = self.named.current()?;
        drain(&process, name)
    }

    /// Makes the semaphore with `permits`, if there is none. False if there is one. Wakes waiters.
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release).
    pub fn try_set_permits(&self, permits: u32) -> Result<bool, Error> {
        let permits = countable(permits)?;
        self.named.ask(|name, request| MakeSemaphore::new(name, permits, 0, request))
    }

    /// Makes the semaphore with `permits`, if there is none, and lets it be gone after `lives`. Whoever waits for it
    /// then goes on waiting, for somebody to make it anew.
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release), and [`Error::InvalidLease`] if `lives` is shorter than 10 ms or longer than a
    /// hundred years.
    pub fn try_set_permits_for(&self, permits: u32, lives: Duration) -> Result<bool, Error> {
        let (permits, lives) = (countable(permits)?, Lease::new(lives)?);
        self.named.ask(|name, request| MakeSemaphore::new(name, permits, lives.millis(), request))
    }

    /// Changes how many permits there are by `change`, which may be less than zero. Then so many are taken away,
    /// whether they are free or not. Makes the semaphore if there is none. Wakes waiters if it gave some.
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release).
    pub fn add_permits(&self, change: i32) -> Result<(), Error> {
        self.change(i64::from(change), false).map(|_| ())
    }

    fn add(&self, permits: u32, must_exist: bool) -> Result<bool, Error> {
        let permits = countable(permits)?;
        self.change(i64::from(permits), must_exist)
    }

    fn change(&self, permits: i64, must_exist: bool) -> Result<bool, Error> {
        add_permits(&self.named, permits, must_exist)
    }

    fn take_or_cancel(&self, permits: u32, cancel: Option<&Receiver<()>>) -> Result<(), Error> {
        if self.take(permits, Wish::forever(cancel))? {
            return Ok(());
        }
        // A wait without a deadline does not end by time.
        Err(Error::Cancelled { name: self.named.current()?.1.shown() })
    }

    fn take(&self, permits: u32, wish: Wish<'_>) -> Result<bool, Error> {
        let (process, name) = self.named.current()?;
        if countable(permits)? == 0 {
            return Ok(true);
        }
        let channel = name.semaphore_channel();
        let mut taker = NumberTaker::new(&process, name.clone(), permits);
        let granted = wait(&process, &name, &channel, wish, |patience| taker.attempt(patience))?;
        Ok(granted.is_some())
    }
}

/// Changes how many permits are free. False if there is no such semaphore and it must exist.
pub(crate) fn add_permits(named: &Named, permits: i64, must_exist: bool) -> Result<bool, Error> {
    if permits == 0 && !must_exist {
        // Nothing to add, as long as it could be added.
        return named.current().map(|_| true);
    }
    match named.ask(|name, request| AddPermits::new(name, permits, must_exist, request))? {
        Added::Done => Ok(true),
        Added::Missing => Ok(false),
        Added::OutOfRange => {
            let reason = "the sum would not fit into 32 bits".to_owned();
            Err(Error::InvalidCount { count: permits, reason })
        }
    }
}
