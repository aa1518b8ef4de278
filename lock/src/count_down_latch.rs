//! The latch: many wait until others have counted down to zero.

use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

use crate::call::{Patience, call};
use crate::caller::{Named, Wish, wait};
use crate::error::Error;
use crate::name::LockName;
use crate::op::{Change, ChangeLatch, Number, Operation};
use crate::process::Process;
use crate::wait::{Attempt, Others};

/// A count that others count down, and that threads wait for. Cheap to make, to clone and to share; it holds nothing by
/// itself.
///
/// It is open while there is no count: before [`try_set_count`](Self::try_set_count), and again when the count has come
/// to zero. So it can be used again. Whoever waits must know that the count was set.
///
/// Every call counts once, also if it has to be sent again: the server remembers what it answered, under a key of its
/// own, for 72 s with the default command timeout. A process that dies does not count down; a count has no lease.
///
/// The idea, the key and the messages are Redisson's (`RCountDownLatch`), which has them from `java.util.concurrent`.
/// Unlike Redisson's, [`delete`](Self::delete) wakes those who wait.
///
/// ```
/// use wheellock::Client;
///
/// let client = Client::in_memory();
/// let parts = client.count_down_latch("parts");
/// parts.try_set_count(2)?;
/// std::thread::scope(|scope| {
///     for _ in 0..2 {
///         scope.spawn(|| parts.count_down());
///     }
///     parts.wait()
/// })?;
/// assert_eq!(parts.count()?, 0);
/// # Ok::<(), wheellock::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct CountDownLatch {
    named: Named,
}

impl CountDownLatch {
    pub(crate) fn new(named: Named) -> Self {
        Self { named }
    }

    /// Sets the count, if there is none. False if there is one. At least 1, and at most 9,223,372,036,854,775,807.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidName`], [`Error::InvalidCount`] - permanent, nothing was sent.
    /// * [`Error::WrongType`] - the key holds something that is not a number.
    /// * [`Error::Unreachable`], [`Error::Refused`], [`Error::Authentication`] - the server did not do it, for twice
    ///   the command timeout. A server that is out of memory refuses to set a count; it can be counted down.
    /// * [`Error::OutcomeUnknown`] - the server did not answer for twice the command timeout. It may have done it or
    ///   not.
    /// * [`Error::Shutdown`] - the client was shut down.
    pub fn try_set_count(&self, count: u64) -> Result<bool, Error> {
        let wrong =
            |count, reason: &str| Err(Error::InvalidCount { count, reason: reason.to_owned() });
        match i64::try_from(count) {
            Ok(0) => wrong(0, "a latch without a count is open already"),
            Ok(count) => self.change(Change::Set(count)),
            Err(_) => wrong(i64::MAX, "it does not fit into 63 bits"),
        }
    }

    /// Counts down by one. At zero everybody who waits goes on. Without a count it does nothing.
    ///
    /// # Errors
    ///
    /// As [`try_set_count`](Self::try_set_count).
    pub fn count_down(&self) -> Result<(), Error> {
        self.change(Change::CountDown).map(|_| ())
    }

    /// The count; zero if the latch is open.
    ///
    /// # Errors
    ///
    /// As [`try_set_count`](Self::try_set_count).
    pub fn count(&self) -> Result<u64, Error> {
        self.named.number().map(|count| u64::try_from(count).unwrap_or(0))
    }

    /// Deletes the count, which opens the latch: everybody who waits goes on. False if there was none.
    ///
    /// # Errors
    ///
    /// As [`try_set_count`](Self::try_set_count).
    pub fn delete(&self) -> Result<bool, Error> {
        self.change(Change::Delete)
    }

    /// Waits until the latch is open, as long as it takes.
    ///
    /// It waits without polling: the last count wakes it. Should that message be lost, or the key be gone without one,
    /// it asks again after a second at most.
    ///
    /// # Errors
    ///
    /// As [`try_set_count`](Self::try_set_count).
    pub fn wait(&self) -> Result<(), Error> {
        self.wait_or_cancelled(None)
    }

    /// Waits until the latch is open, for at most `wait`, by a monotonic clock. False if it was not by then.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait), and by the end of the wait: a server that does not answer by then is an error.
    pub fn wait_for(&self, wait: Duration) -> Result<bool, Error> {
        self.wait_until_open(self.named.within(wait, None)?)
    }

    /// Waits until the latch is open, or until `deadline`, as [`wait_for`](Self::wait_for) does. A `deadline` that has
    /// passed makes it one look.
    ///
    /// # Errors
    ///
    /// As [`wait_for`](Self::wait_for).
    pub fn wait_until(&self, deadline: Instant) -> Result<bool, Error> {
        self.wait_for(self.named.until(deadline)?)
    }

    /// Waits until the latch is open, for at most `wait`, or until `cancel` has a message or has lost its senders.
    /// False if it was not open by then.
    ///
    /// # Errors
    ///
    /// As [`wait_for`](Self::wait_for), and [`Error::Cancelled`].
    pub fn wait_for_or_cancel(&self, wait: Duration, cancel: &Receiver<()>) -> Result<bool, Error> {
        self.wait_until_open(self.named.within(wait, Some(cancel))?)
    }

    /// Waits until the latch is open, or until `cancel` has a message or has lost its senders. The message stays in the
    /// channel, so that it cancels every wait on it. It takes effect at once, except that a command that is under way
    /// is waited for, for one command timeout at most.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait), and [`Error::Cancelled`].
    pub fn wait_or_cancel(&self, cancel: &Receiver<()>) -> Result<(), Error> {
        self.wait_or_cancelled(Some(cancel))
    }

    fn change(&self, change: Change) -> Result<bool, Error> {
        self.named.ask(|name, request| ChangeLatch::new(name, change, request))
    }

    fn wait_or_cancelled(&self, cancel: Option<&Receiver<()>>) -> Result<(), Error> {
        if self.wait_until_open(Wish::forever(cancel))? {
            return Ok(());
        }
        // A wait without a deadline does not end by time.
        Err(Error::Cancelled { name: self.named.current()?.1.shown() })
    }

    fn wait_until_open(&self, wish: Wish<'_>) -> Result<bool, Error> {
        let (process, name) = self.named.current()?;
        let channel = name.latch_channel();
        let opened =
            wait(&process, &name, &channel, wish, |patience| look(&process, &name, patience))?;
        Ok(opened.is_some())
    }
}

/// Looks once whether the latch is open. When it is, it is for all.
fn look(process: &Process, name: &LockName, patience: &Patience<'_>) -> Result<Attempt<()>, Error> {
    let count = Number(name.clone());
    match call(&process.store, &*process.clock, &count, patience) {
        Ok(answer) => match answer.reply {
            Some(1..) => Ok(Attempt::Busy(None, Others::Wait)),
            Some(_) => Ok(Attempt::Granted((), Others::MayTry)),
            None => Err(Error::WrongType { name: name.shown() }),
        },
        Err(gave_up) => Err(gave_up.failure.into_error(count.name(), name)),
    }
}
