//! The limits of a call's wait.

use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use hashed_wheel::Clock;

use crate::model::sync::{Parker, is_cancelled, park};

/// How long a call waits: for a single try, for a time, until an instant, or without a limit.
///
/// Created by [`none`](Self::none), [`at_most`](Self::at_most), [`until`](Self::until) or
/// [`forever`](Self::forever). A [`Duration`] and an [`Instant`] convert into a `Wait`:
/// [`try_lock_with`](crate::Lock::try_lock_with)`(Duration::from_secs(5))` works. [A
/// message](Self::or_cancelled) can also end each wait.
///
/// **The end of the time.** A call with a limit returns `None` or `false` if the server has refused
/// a try since the wait began: another owner holds the lock or is ahead in the queue, there are too
/// few permits, or the latch is closed. The waiting threads of a client form one queue. The first
/// thread tries for all of them, and the refusal of its try counts for each. While another thread
/// of the client has the lock, no thread tries, and the call also returns `None`.
///
/// If the server has answered no waiting thread in time, and no thread of the client had the lock,
/// the call returns an error, mostly [`Error::Unreachable`](crate::Error::Unreachable) or
/// [`Error::OutcomeUnknown`](crate::Error::OutcomeUnknown), which are
/// [retryable](crate::Error::is_retryable). A call whose own last try is unanswered returns such an
/// error too: the server may have granted the try, and the client sends the release in the
/// background. The call waits for the server at most 10 ms beyond the limit.
///
/// ```
/// use std::time::Duration;
/// use wheellock::crossbeam_channel::bounded;
/// use wheellock::{Client, Error, Memory, Wait};
///
/// let memory = Memory::new();
/// let holder = Client::builder().in_memory(&memory).build()?;
/// let waiter = Client::builder().in_memory(&memory).build()?.lock("orders:42");
/// let _guard = holder.lock("orders:42").lock()?;
///
/// assert!(waiter.try_lock_with(Duration::from_millis(10))?.is_none());
///
/// let (cancel, cancelled) = bounded(1);
/// cancel.send(()).unwrap(); // from any thread, at any time
/// let wait = Wait::at_most(Duration::from_secs(5)).or_cancelled(&cancelled);
/// assert!(matches!(waiter.try_lock_with(wait), Err(Error::Cancelled { .. })));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Wait<'a> {
    limit: Limit,
    cancel: Option<&'a Receiver<()>>,
}

/// The limit of a [`Wait`], as given by the caller.
#[derive(Clone, Copy, Debug)]
enum Limit {
    None,
    AtMost(Duration),
    Until(Instant),
    Forever,
}

impl<'a> Wait<'a> {
    /// Returns the wait of a single try: a refusal ends the call.
    ///
    /// The try itself may take up to twice the [command
    /// timeout](crate::ClientBuilder::command_timeout) if the server does not answer.
    #[must_use]
    pub const fn none() -> Self {
        Self::new(Limit::None)
    }

    /// Returns the wait without a limit.
    #[must_use]
    pub const fn forever() -> Self {
        Self::new(Limit::Forever)
    }

    /// Returns the wait of at most `limit`, by the client's
    /// [clock](crate::ClientBuilder::clock), from the begin of the call.
    ///
    /// Zero is a [single try](Self::none). A limit beyond the range of the clock is no limit.
    #[must_use]
    pub const fn at_most(limit: Duration) -> Self {
        Self::new(Limit::AtMost(limit))
    }

    /// Returns the wait until `deadline`, an instant of [`Instant::now`], or of the client's
    /// [clock](crate::ClientBuilder::clock) if the program has set a clock.
    ///
    /// A deadline in the past is a [single try](Self::none).
    #[must_use]
    pub const fn until(deadline: Instant) -> Self {
        Self::new(Limit::Until(deadline))
    }

    /// Returns the same wait with a cancellation: the waiting call ends early with
    /// [`Error::Cancelled`](crate::Error::Cancelled) when `cancel` has a message or all its senders
    /// are dropped.
    ///
    /// Any thread may send the message. The call leaves the message in the channel: one message
    /// cancels every wait with the same channel. A call that sleeps ends at once. A call that has
    /// sent a command first waits for the reply, for one [command
    /// timeout](crate::ClientBuilder::command_timeout) at most; if the reply is a grant, the call
    /// returns the lock. The cancellation has no effect on a [single try](Self::none).
    #[must_use]
    pub const fn or_cancelled(self, cancel: &'a Receiver<()>) -> Self {
        Self { cancel: Some(cancel), ..self }
    }

    const fn new(limit: Limit) -> Self {
        Self { limit, cancel: None }
    }

    /// Begins the wait now, by `clock`.
    pub(crate) fn begin(self, clock: &dyn Clock) -> WaitSpec<'a> {
        let limit = match self.limit {
            Limit::None => Some(Duration::ZERO),
            Limit::AtMost(limit) => Some(limit),
            Limit::Until(deadline) => Some(clock.remaining(deadline)),
            Limit::Forever => None,
        };
        if limit == Some(Duration::ZERO) {
            return WaitSpec::ONE_TRY;
        }
        // A deadline beyond the clock's range is no limit.
        let deadline = limit.and_then(|limit| clock.now().checked_add(limit));
        WaitSpec { waits: true, deadline, cancel: self.cancel }
    }
}

impl From<Duration> for Wait<'_> {
    /// Returns the wait of at most `limit`, by [`Wait::at_most`].
    fn from(limit: Duration) -> Self {
        Self::at_most(limit)
    }
}

impl From<Instant> for Wait<'_> {
    /// Returns the wait until `deadline`, by [`Wait::until`].
    fn from(deadline: Instant) -> Self {
        Self::until(deadline)
    }
}

/// A wait which has begun, by the clock of one client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitSpec<'a> {
    /// False for one try, which ends by the deadline.
    pub(crate) waits: bool,
    /// `None` for no limit.
    pub(crate) deadline: Option<Instant>,
    /// A message, or the end of all senders, cancels.
    pub(crate) cancel: Option<&'a Receiver<()>>,
}

impl WaitSpec<'_> {
    /// One try, without a deadline of the caller and without a cancellation.
    pub(crate) const ONE_TRY: Self = Self { waits: false, deadline: None, cancel: None };

    /// Whether the wait only ends with success, an error or a cancellation.
    pub(crate) fn is_unlimited(&self) -> bool {
        self.waits && self.deadline.is_none()
    }

    /// Sleeps for `pause`, but not beyond the end of the wait. Returns false if the wait was
    /// cancelled.
    pub(crate) fn pause(self, clock: &dyn Clock, pause: Duration) -> bool {
        let end = clock.now() + pause;
        let end = self.deadline.map_or(end, |deadline| deadline.min(end));
        let parker = Parker::new();
        while clock.now() < end {
            if is_cancelled(self.cancel) {
                return false;
            }
            park(clock, &parker, Some(end), self.cancel);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use hashed_wheel::SystemClock;

    use super::*;
    use crate::model::clock::origin;

    #[test]
    fn zero_wait_is_a_single_try_and_overflowing_wait_is_unlimited() {
        let (_cancel, cancelled) = crossbeam_channel::bounded(1);
        for wait in [Wait::none(), Duration::ZERO.into(), origin().into()] {
            let spec = wait.or_cancelled(&cancelled).begin(&SystemClock);
            assert!(!spec.waits && spec.deadline.is_none() && spec.cancel.is_none(), "{wait:?}");
        }
        for wait in [Wait::forever(), Duration::MAX.into()] {
            let spec = wait.or_cancelled(&cancelled).begin(&SystemClock);
            assert!(spec.is_unlimited() && spec.cancel.is_some(), "{wait:?}");
        }
        let spec = Wait::from(Duration::from_secs(1)).begin(&SystemClock);
        assert!(spec.waits && !spec.is_unlimited());
    }
}
