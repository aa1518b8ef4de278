//! Timeouts as channels, for use in a `select!`.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, TrySendError, bounded};

use super::period::Period;
use super::periodic::PeriodicTimeout;
use super::timeout::Timeout;
use super::weak_timer::WeakTimer;
use crate::error::ScheduleError;

impl WeakTimer {
    /// Returns a channel that receives a message after `delay`, and the handle of the timeout.
    ///
    /// The message is the instant of sending. Afterwards the channel is disconnected. The channel
    /// is also disconnected when the timer is dropped, or, after a
    /// [`stop`](crate::HashedWheelTimer::stop), when the task returned by the stop is dropped.
    ///
    /// Unlike [`crossbeam_channel::after`], the delay counts on the timer's clock, which may be
    /// manual. Cancelling the timeout disconnects the channel. After a drop of the receiver the
    /// timeout stays pending until due.
    ///
    /// # Errors
    ///
    /// [`ScheduleError`], without a value: `Full` (transient), `Stopped` or `Forked` (permanent).
    ///
    /// ```
    /// use std::time::Duration;
    /// use hashed_wheel::HashedWheelTimer;
    /// use hashed_wheel::crossbeam_channel::{self, select};
    ///
    /// let timer = HashedWheelTimer::builder().build()?;
    /// let (_sender, requests) = crossbeam_channel::unbounded::<u32>();
    /// let (timeout, _) = timer.after(Duration::from_millis(20))?;
    /// select! {
    ///     recv(requests) -> request => unreachable!("{request:?}"),
    ///     recv(timeout) -> sent => assert!(sent.is_ok()),
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn after(
        &self,
        delay: Duration,
    ) -> Result<(Receiver<Instant>, Timeout), ScheduleError<()>> {
        let (sender, receiver) = bounded(1);
        let clock = self.clock().clone();
        let send = move || {
            // Fails if the receiver was dropped, which is fine.
            let _sent = sender.try_send(clock.now());
        };
        let timeout = self.schedule(delay, send).map_err(|error| error.map(drop))?;
        Ok((receiver, timeout))
    }

    /// Returns a channel that receives a message at each `period`, and the handle of the timeout.
    ///
    /// The first message is sent after `period`. Each message is the instant of sending. The
    /// channel holds one message: until the message is received, further messages are left out, as
    /// with [`crossbeam_channel::tick`].
    ///
    /// The timeout ends when cancelled, or at the first message after the receiver was dropped. The
    /// channel is disconnected when the timer is dropped, or, after a
    /// [`stop`](crate::HashedWheelTimer::stop), when the task returned by the stop is dropped.
    ///
    /// # Errors
    ///
    /// [`ScheduleError`], without a value: `Full` (transient), `Stopped` or `Forked` (permanent).
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use hashed_wheel::{HashedWheelTimer, ManualClock};
    ///
    /// let clock = ManualClock::new();
    /// let timer = HashedWheelTimer::builder().clock(Arc::new(clock.clone())).build()?;
    /// let (ticks, interval) = timer.interval(Duration::from_secs(1))?;
    /// clock.advance(Duration::from_millis(2500));
    /// // The second message was left out, because the first was not yet received.
    /// assert_eq!(ticks.try_iter().count(), 1);
    /// assert!(interval.cancel());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn interval(
        &self,
        period: Duration,
    ) -> Result<(Receiver<Instant>, PeriodicTimeout), ScheduleError<()>> {
        let (sender, receiver) = bounded(1);
        let clock = self.clock().clone();
        let send = move || match sender.try_send(clock.now()) {
            Ok(()) | Err(TrySendError::Full(_)) => ControlFlow::Continue(()),
            Err(TrySendError::Disconnected(_)) => ControlFlow::Break(()),
        };
        let timeout = self
            .schedule_while(period, Period::fixed_rate(period), send)
            .map_err(|error| error.map(drop))?;
        Ok((receiver, timeout))
    }
}
