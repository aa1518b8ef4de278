//! What can go wrong, and what a caller can do about it.

use core::error::Error;
use core::fmt;
use core::time::Duration;

/// Why a timer or a [`Wheel`](crate::Wheel) could not be built. Permanent, except for
/// [`ThreadSpawn`](Self::ThreadSpawn): the same settings fail again.
///
/// ```
/// use hashed_wheel::{BuildError, Wheel};
///
/// assert!(matches!(Wheel::<u32>::new(0), Err(BuildError::TicksPerWheel(0))));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// The tick is zero, or longer than 2^64 - 1 nanoseconds (584 years).
    TickDuration(Duration),
    /// The wheel has no bucket, or more than [`TICKS_PER_WHEEL_MAX`](crate::TICKS_PER_WHEEL_MAX).
    TicksPerWheel(usize),
    /// The bound on pending timeouts is zero: nothing could ever be scheduled.
    MaxPendingTimeouts,
    /// The thread's name has a null byte in it, which no operating system takes.
    ThreadName,
    /// The operating system gave no thread. Transient: it may have one later.
    #[cfg(feature = "std")]
    ThreadSpawn(std::io::Error),
}

impl fmt::Display for BuildError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TickDuration(duration) => write!(
                formatter,
                "a tick of {duration:?} is out of range: it is 1 ns at least, 2^64 - 1 ns at most"
            ),
            Self::TicksPerWheel(count) => write!(
                formatter,
                "{count} ticks per wheel are out of range: 1 at least, 2^24 at most"
            ),
            Self::MaxPendingTimeouts => {
                formatter.write_str("a timer that may hold 0 pending timeouts can do nothing")
            }
            Self::ThreadName => formatter.write_str("the thread name contains a null byte"),
            #[cfg(feature = "std")]
            Self::ThreadSpawn(_) => formatter.write_str("the ticker thread could not be started"),
        }
    }
}

impl Error for BuildError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            #[cfg(feature = "std")]
            Self::ThreadSpawn(error) => Some(error),
            _ => None,
        }
    }
}

/// Why nothing was scheduled. It hands the value back: nothing of it has run, nothing of it is kept.
///
/// ```
/// use std::time::Duration;
/// use hashed_wheel::{HashedWheelTimer, ScheduleError};
///
/// let timer = HashedWheelTimer::builder().max_pending_timeouts(1).build_batch(|_: &mut Vec<u32>| {})?;
/// timer.schedule(Duration::from_secs(60), 7)?;
/// let error = timer.schedule(Duration::from_secs(60), 8).unwrap_err();
/// assert!(error.is_transient());
/// assert_eq!(error.into_inner(), 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg(feature = "std")]
#[non_exhaustive]
pub enum ScheduleError<T> {
    /// As many timeouts are pending as the timer may hold. Transient: a slot is free again as soon as one of them
    /// is due or cancelled.
    Full(T),
    /// The timer was stopped, or a panic of its [`Clock`](crate::Clock) has ended it. Permanent.
    Stopped(T),
    /// The timer was to start with its first timeout, and the operating system gave no thread. Transient: it may have
    /// one later. [`HashedWheelTimer::start`](crate::HashedWheelTimer::start) says what the system's reason is.
    NotStarted(T),
    /// The period of a periodic task is zero: it would run without end. Permanent.
    ZeroPeriod(T),
}

#[cfg(feature = "std")]
impl<T> ScheduleError<T> {
    /// The value that was to be scheduled.
    pub fn into_inner(self) -> T {
        match self {
            Self::Full(value)
            | Self::Stopped(value)
            | Self::NotStarted(value)
            | Self::ZeroPeriod(value) => value,
        }
    }

    /// Whether the same call may succeed later.
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::Full(_) | Self::NotStarted(_) => true,
            Self::Stopped(_) | Self::ZeroPeriod(_) => false,
        }
    }

    /// The same reason with another value, such as the one that was wrapped in what was to be scheduled.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> ScheduleError<U> {
        match self {
            Self::Full(value) => ScheduleError::Full(change(value)),
            Self::Stopped(value) => ScheduleError::Stopped(change(value)),
            Self::NotStarted(value) => ScheduleError::NotStarted(change(value)),
            Self::ZeroPeriod(value) => ScheduleError::ZeroPeriod(change(value)),
        }
    }
}

// By hand: a closure has no `Debug`, and an error must have one.
#[cfg(feature = "std")]
impl<T> fmt::Debug for ScheduleError<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Full(_) => "Full(..)",
            Self::Stopped(_) => "Stopped(..)",
            Self::NotStarted(_) => "NotStarted(..)",
            Self::ZeroPeriod(_) => "ZeroPeriod(..)",
        })
    }
}

#[cfg(feature = "std")]
impl<T> fmt::Display for ScheduleError<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Full(_) => "the timer holds as many pending timeouts as it may",
            Self::Stopped(_) => "the timer is stopped",
            Self::NotStarted(_) => "the ticker thread could not be started",
            Self::ZeroPeriod(_) => "a period of zero would never end",
        })
    }
}

#[cfg(feature = "std")]
impl<T> Error for ScheduleError<T> {}

/// Why a timer could not be stopped.
///
/// ```
/// use hashed_wheel::StopError;
///
/// assert_eq!(StopError::OnTickerThread.to_string(), "a task cannot stop the timer that runs it");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg(feature = "std")]
#[non_exhaustive]
pub enum StopError {
    /// The call came from the ticker's own thread: from a task, a handler or the panic hook. Stopping waits for that
    /// thread to end, so it would wait for itself. Nothing was stopped. Call it from another thread, or drop the
    /// timer, which does not wait when it happens on the ticker's thread.
    OnTickerThread,
}

#[cfg(feature = "std")]
impl fmt::Display for StopError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OnTickerThread => {
                formatter.write_str("a task cannot stop the timer that runs it")
            }
        }
    }
}

#[cfg(feature = "std")]
impl Error for StopError {}
