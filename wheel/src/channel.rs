//! Timeouts as channels, to be waited for in a `select!` beside others.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, TrySendError, bounded};

use crate::error::ScheduleError;
use crate::period::Period;
use crate::timer::HashedWheelTimer;

impl HashedWheelTimer {
    /// A channel that gets one message when `delay` has passed: the instant at which it was sent. After that, or when
    /// the timer is dropped before, the channel is disconnected. After a stop it is so when what
    /// [`stop`](Self::stop) gave back is dropped.
    ///
    /// It is [`crossbeam_channel::after`] on the timer's clock, so on a manual clock it comes when the test says so.
    /// Dropping the receiver leaves the timeout pending until it is due.
    ///
    /// # Errors
    ///
    /// As [`schedule`](Self::schedule), with nothing to hand back.
    ///
    /// ```
    /// use std::time::Duration;
    /// use crossbeam_channel::select;
    /// use hashed_wheel::HashedWheelTimer;
    ///
    /// let timer = HashedWheelTimer::builder().build()?;
    /// let (_sender, requests) = crossbeam_channel::unbounded::<u32>();
    /// let patience = timer.after(Duration::from_millis(20))?;
    /// select! {
    ///     recv(requests) -> request => unreachable!("nobody sends {request:?}"),
    ///     recv(patience) -> sent => assert!(sent.is_ok()),
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn after(&self, delay: Duration) -> Result<Receiver<Instant>, ScheduleError<()>> {
        let (sender, receiver) = bounded(1);
        let clock = self.clock().clone();
        let send = move || {
            // Nobody waits any more: then there is nobody to tell.
            let _unheard = sender.try_send(clock.now());
        };
        self.schedule(delay, send).map_err(|error| error.map(drop))?;
        Ok(receiver)
    }

    /// A channel that gets a message at each `period`, the first after one period: the instant at which it was sent. It
    /// holds one message: what comes while that one has not been received is left out, as with
    /// [`crossbeam_channel::tick`].
    ///
    /// It ends at the first message after the receiver was dropped. When the timer is dropped, the channel is disconnected;
    /// after a stop, when what [`stop`](Self::stop) gave back is dropped.
    ///
    /// # Errors
    ///
    /// As [`schedule_periodic`](Self::schedule_periodic), with nothing to hand back.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use hashed_wheel::{HashedWheelTimer, ManualClock};
    ///
    /// let clock = ManualClock::new();
    /// let timer = HashedWheelTimer::builder().clock(Arc::new(clock.clone())).build()?;
    /// let beats = timer.interval(Duration::from_secs(1))?;
    /// clock.advance(Duration::from_millis(2500));
    /// assert_eq!(beats.try_iter().count(), 1); // the second found the first still there
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn interval(&self, period: Duration) -> Result<Receiver<Instant>, ScheduleError<()>> {
        let (sender, receiver) = bounded(1);
        let clock = self.clock().clone();
        let send = move || match sender.try_send(clock.now()) {
            Ok(()) | Err(TrySendError::Full(_)) => ControlFlow::Continue(()),
            Err(TrySendError::Disconnected(_)) => ControlFlow::Break(()),
        };
        self.schedule_while(period, Period::fixed_rate(period), send)
            .map_err(|error| error.map(drop))?;
        Ok(receiver)
    }
}
