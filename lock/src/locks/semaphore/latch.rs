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

/// A shared count: clients decrement the count, and threads wait until the count is zero. Cheap to
/// create, clone and share; the count is on the server.
///
/// Returned by [`Client::count_down_latch`](crate::Client::count_down_latch).
///
/// The latch is open while there is no count: before [`try_set_count`](Self::try_set_count), after
/// the count has reached zero, and after [`delete`](Self::delete). A wait for an open latch returns
/// at once, so set the count before any thread waits. An open latch accepts a new count, and can be
/// used again.
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

    /// Sets the count if there is none, and so closes the latch. Returns `true` if this call set
    /// the count, `false` if there is a count, which the call does not change.
    ///
    /// `count` is at least 1, and at most 9,223,372,036,854,775,807.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidName`], [`Error::InvalidCount`] - permanent, nothing was sent.
    /// * [`Error::WrongType`] - the key contains a non-numeric value. Permanent.
    /// * [`Error::Unreachable`], [`Error::Refused`], [`Error::Authentication`] - the server did not
    ///   execute the command. The call retries a transient failure for twice the [command
    ///   timeout](crate::ClientBuilder::command_timeout). A server that is out of memory refuses to
    ///   set a count, but not to count down.
    /// * [`Error::OutcomeUnknown`] - the server did not answer for twice the command timeout. The
    ///   command may have run. Transient.
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

    /// Decrements the count by one. At zero the latch opens, and all waiters wake. Without a count
    /// the call changes nothing and returns `Ok`.
    ///
    /// # Errors
    ///
    /// See [`try_set_count`](Self::try_set_count), except [`Error::InvalidCount`]. After
    /// [`Error::OutcomeUnknown`] a second call may count down twice.
    pub fn count_down(&self) -> Result<(), Error> {
        self.change(Change::CountDown).map(|_| ())
    }

    /// The count; zero if the latch is open. One round trip.
    ///
    /// # Errors
    ///
    /// See [`try_set_count`](Self::try_set_count), except [`Error::InvalidCount`].
    pub fn count(&self) -> Result<u64, Error> {
        self.named.number().map(|count| u64::try_from(count).unwrap_or(0))
    }

    /// Deletes the count, which opens the latch and wakes all waiters. Returns `true` if this call
    /// deleted a count, `false` if there was no count.
    ///
    /// # Errors
    ///
    /// See [`try_set_count`](Self::try_set_count), except [`Error::InvalidCount`].
    pub fn delete(&self) -> Result<bool, Error> {
        self.change(Change::Delete)
    }

    /// Waits without a limit until the latch is open. Returns at once if there is no count.
    ///
    /// The wait does not poll: the message of the last count-down wakes the waiter. If the message
    /// is lost, or the key disappears without a message, the waiter asks again after at most one
    /// second.
    ///
    /// # Errors
    ///
    /// See [`try_set_count`](Self::try_set_count), except [`Error::InvalidCount`]. An error says
    /// nothing about the latch.
    pub fn wait(&self) -> Result<(), Error> {
        if self.wait_with(Wait::forever())? {
            return Ok(());
        }
        // Not reached: a wait without a limit does not time out.
        Err(Error::Cancelled { name: self.named.current()?.1.shown() })
    }

    /// Waits until the latch is open, for [at most](Wait::at_most) `limit`. Returns `true` if the
    /// latch is open, `false` if the wait ends before.
    ///
    /// # Errors
    ///
    /// See [`try_set_count`](Self::try_set_count), except [`Error::InvalidCount`]. Also
    /// [`Error::Unreachable`] or [`Error::OutcomeUnknown`] if the server has not answered by the
    /// end of the wait. Transient.
    pub fn wait_for(&self, limit: Duration) -> Result<bool, Error> {
        self.wait_with(limit)
    }

    /// Waits until the latch is open, within the limit of `wait`: a [`Wait`], a [`Duration`] or an
    /// [`Instant`]. Returns `true` if the latch is open, `false` if the wait ends before. With
    /// [`Wait::none`] the call queries the count once.
    ///
    /// # Errors
    ///
    /// See [`try_set_count`](Self::try_set_count), except [`Error::InvalidCount`]. Also:
    ///
    /// * [`Error::Cancelled`] - the wait was [cancelled](Wait::or_cancelled).
    /// * [`Error::Unreachable`], [`Error::OutcomeUnknown`] - the server has not answered by the end
    ///   of the wait. Transient.
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
