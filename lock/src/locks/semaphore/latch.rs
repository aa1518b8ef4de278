//! The count-down latch: threads wait until a shared count is zero.

use std::time::{Duration, Instant};

use crate::core::client_core::ClientCore;
use crate::core::named::{NamedObject, not_a_number, wait_for_grant};
use crate::core::tries::{Try, TryAnswer};
use crate::error::Error;
use crate::events::acquires::AcquireKind;
use crate::model::name::LockName;
use crate::model::wait::Wait;
use crate::model::wait_mode::WakeHint;
use crate::ops::{Change, ChangeLatch, Number};
use crate::store::retry::{RetryPolicy, map_failure};

/// A count for clients to decrement, and for threads to wait for. Cheap to create, clone and share;
/// the count is on the server.
///
/// Returned by [`Client::count_down_latch`](crate::Client::count_down_latch).
///
/// The latch is open while there is no count: before [`try_set_count`](Self::try_set_count), and
/// after the count has reached zero. So a latch can be used again. A waiter must know whether the
/// count was set.
///
/// Each call counts once, even if sent again: the server remembers the answer, under a separate
/// key. A client has as many of these keys as concurrent calls. The keys live for 72 s with the
/// default command timeout. A dead process does not count down; a count has no lease.
///
/// The idea, the key and the messages are Redisson's (`RCountDownLatch`), which follows
/// `java.util.concurrent`. Unlike in Redisson, [`delete`](Self::delete) wakes the waiters.
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
    named: NamedObject,
}

impl CountDownLatch {
    /// Returns the latch `named`. Sends nothing.
    pub(crate) fn new(named: NamedObject) -> Self {
        Self { named }
    }

    /// Sets the count if there is none. Returns `false` if there is a count. `count` is at least 1,
    /// and at most 9,223,372,036,854,775,807.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidName`], [`Error::InvalidCount`] - permanent, nothing was sent.
    /// * [`Error::WrongType`] - the key contains a non-numeric value. Permanent.
    /// * [`Error::Unreachable`], [`Error::Refused`], [`Error::Authentication`] - the server did not
    ///   execute the command for twice the command timeout. A server that is out of memory refuses
    ///   to set a count, but not to count down.
    /// * [`Error::OutcomeUnknown`] - the server did not answer for twice the command timeout. The
    ///   command may have run.
    /// * [`Error::Shutdown`] - the client was shut down. Permanent.
    /// * [`Error::Forked`] - this process is a fork of the client's. Permanent.
    pub fn try_set_count(&self, count: u64) -> Result<bool, Error> {
        let reason = match i64::try_from(count) {
            Ok(0) => "a latch without a count is open already",
            Ok(count) => return self.change(Change::Set(count)),
            Err(_) => "the most is 9,223,372,036,854,775,807",
        };
        Err(Error::InvalidCount { count: count.into(), reason: reason.to_owned() })
    }

    /// Decrements the count. At zero all waiters wake. Without a count the call does nothing.
    ///
    /// # Errors
    ///
    /// See [`try_set_count`](Self::try_set_count).
    pub fn count_down(&self) -> Result<(), Error> {
        self.change(Change::CountDown).map(|_| ())
    }

    /// The count; zero if the latch is open.
    ///
    /// # Errors
    ///
    /// See [`try_set_count`](Self::try_set_count).
    pub fn count(&self) -> Result<u64, Error> {
        self.named.number().map(|count| u64::try_from(count).unwrap_or(0))
    }

    /// Deletes the count, which opens the latch and wakes all waiters. Returns `false` if there was
    /// no count.
    ///
    /// # Errors
    ///
    /// See [`try_set_count`](Self::try_set_count).
    pub fn delete(&self) -> Result<bool, Error> {
        self.change(Change::Delete)
    }

    /// Waits without a limit until the latch is open.
    ///
    /// The wait does not poll: the last count wakes the waiter. If the message is lost, or the key
    /// disappears without a message, the waiter asks again after at most one second.
    ///
    /// # Errors
    ///
    /// See [`try_set_count`](Self::try_set_count).
    pub fn wait(&self) -> Result<(), Error> {
        if self.wait_with(Wait::forever())? {
            return Ok(());
        }
        // Not reached: a wait without a limit does not time out.
        Err(Error::Cancelled { name: self.named.current()?.1.shown() })
    }

    /// Waits until the latch is open, for [at most](Wait::at_most) `limit`. Returns `false` on
    /// timeout.
    ///
    /// # Errors
    ///
    /// See [`wait_with`](Self::wait_with).
    pub fn wait_for(&self, limit: Duration) -> Result<bool, Error> {
        self.wait_with(limit)
    }

    /// Waits until the latch is open, within the limit of the argument. Returns `true` if the latch
    /// is open, and `false` on timeout. With [`Wait::none`] the call queries the count once.
    ///
    /// # Errors
    ///
    /// * [`Error::Cancelled`] - the wait was [cancelled](Wait::or_cancelled).
    /// * As [`wait`](Self::wait), also if the server has not answered by the end of the wait.
    #[expect(single_use_lifetimes, reason = "it cannot be elided in an `impl Trait`")]
    pub fn wait_with<'a>(&self, wait: impl Into<Wait<'a>>) -> Result<bool, Error> {
        let (core, name) = self.named.current()?;
        let channel = name.latch_channel();
        let kind = AcquireKind::Latch;
        let mut look = LatchTry { core: &core, name: &name };
        let opened = wait_for_grant(&core, kind, (&name, &channel), wait.into(), &mut look)?;
        Ok(opened.is_some())
    }

    /// Sends `change` of the count, and returns the server's answer: whether the change had an
    /// effect.
    fn change(&self, change: Change) -> Result<bool, Error> {
        self.named.ask(|name, request| ChangeLatch::new(name, change, request))
    }
}

/// Queries the count of a latch. Each waiter is granted the latch once there is no count.
struct LatchTry<'a> {
    core: &'a ClientCore,
    name: &'a LockName,
}

impl Try for LatchTry<'_> {
    type Grant = ();

    fn ask(&mut self, policy: &RetryPolicy<'_>, now: Instant) -> Result<TryAnswer<()>, Error> {
        let count = Number(self.name.clone());
        let answer = self.core.call_with_policy_at(now, &count, policy);
        match map_failure(answer, &count, self.name)?.reply {
            Some(1..) => Ok(TryAnswer::Busy(None, WakeHint::Wait)),
            // The latch is open for every waiter.
            Some(_) => Ok(TryAnswer::Granted((), WakeHint::MayTry)),
            None => Err(not_a_number(self.name)),
        }
    }
}
