//! The errors, and the caller's options for each.

use core::error::Error;
use core::fmt;
use core::time::Duration;
#[cfg(feature = "std")]
use std::io;

/// Why a timer or a [`Wheel`](crate::Wheel) could not be built. Permanent,
/// except for [`ThreadSpawn`](Self::ThreadSpawn): the same settings fail again.
///
/// Returned by [`Wheel::new`](crate::Wheel::new), and by the methods of a `TimerBuilder` that build
/// a timer.
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
    /// The number of buckets is zero, or more than
    /// [`TICKS_PER_WHEEL_MAX`](crate::TICKS_PER_WHEEL_MAX).
    TicksPerWheel(usize),
    /// The limit on pending timeouts is zero: nothing could ever be scheduled.
    MaxPendingTimeouts,
    /// The thread's name contains a null byte, which no operating system accepts.
    ThreadName,
    /// The operating system refused a thread, for this reason. Transient: a thread may be available
    /// later.
    #[cfg(feature = "std")]
    ThreadSpawn(io::Error),
}

impl fmt::Display for BuildError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TickDuration(duration) => write!(
                formatter,
                "tick duration {duration:?} is out of range: use 1 ns to 2^64 - 1 ns"
            ),
            Self::TicksPerWheel(count) => {
                write!(formatter, "{count} ticks per wheel is out of range: use 1 to 2^24")
            }
            Self::MaxPendingTimeouts => {
                formatter.write_str("the limit on pending timeouts is 0: use at least 1")
            }
            Self::ThreadName => {
                formatter.write_str("the thread name contains a null byte: use a name without one")
            }
            #[cfg(feature = "std")]
            Self::ThreadSpawn(_) => formatter.write_str(
                "the operating system refused a thread for the timer: try again when it has fewer",
            ),
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

#[cfg(feature = "std")]
const FORKED: &str =
    "this process is a forked child, and the timer is its parent's: build a timer in the child";

/// Why nothing was scheduled, with the refused value. The value has not run, and the timer does not
/// retain it.
///
/// Returned by [`WeakTimer::schedule`](crate::WeakTimer::schedule),
/// [`WeakBatchTimer::schedule`](crate::WeakBatchTimer::schedule) and the other methods that
/// schedule.
///
/// The error can be returned with `?`, also as a `Box<dyn Error + Send + Sync>`, because a
/// [`Task`](crate::Task) is [`Sync`]. A value of another type without `Sync` must be dropped first:
/// `map_err(|error| error.map(drop))`.
///
/// ```
/// use std::time::Duration;
/// use hashed_wheel::{HashedWheelTimer, ScheduleError};
///
/// let builder = HashedWheelTimer::builder().max_pending_timeouts(1);
/// let timer = builder.build_batch(|_: &mut Vec<u32>| {})?;
/// timer.schedule(Duration::from_secs(60), 7)?;
/// let error = timer.schedule(Duration::from_secs(60), 8).unwrap_err();
/// assert!(error.is_transient());
/// assert_eq!(error.into_inner(), 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg(feature = "std")]
#[non_exhaustive]
pub enum ScheduleError<T> {
    /// The [limit](crate::TimerBuilder::max_pending_timeouts) on pending timeouts is reached, or
    /// nearly 2^32 timeouts are pending in one of the timer's eight wheels. Transient: a timeout
    /// can be scheduled when a pending timeout is due or cancelled.
    Full(T),
    /// The timer was stopped, or a panic of its [`Clock`](crate::Clock) has ended it. Permanent.
    Stopped(T),
    /// The timer was built in a process of which this process is a forked child. The child has no
    /// ticker thread, so nothing would ever be due. Permanent: build a timer in the child.
    Forked(T),
}

#[cfg(feature = "std")]
impl<T> ScheduleError<T> {
    /// Returns the value that was not scheduled.
    pub fn into_inner(self) -> T {
        match self {
            Self::Full(value) | Self::Stopped(value) | Self::Forked(value) => value,
        }
    }

    /// Returns whether the same call may succeed later: `true` for [`Full`](Self::Full) only.
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Full(_))
    }

    /// Returns an error of the same variant, with the value replaced by `change(value)`.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> ScheduleError<U> {
        match self {
            Self::Full(value) => ScheduleError::Full(change(value)),
            Self::Stopped(value) => ScheduleError::Stopped(change(value)),
            Self::Forked(value) => ScheduleError::Forked(change(value)),
        }
    }
}

// Not derived: a closure has no `Debug`, and an error must implement `Debug`.
#[cfg(feature = "std")]
impl<T> fmt::Debug for ScheduleError<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Full(_) => "Full(..)",
            Self::Stopped(_) => "Stopped(..)",
            Self::Forked(_) => "Forked(..)",
        })
    }
}

#[cfg(feature = "std")]
impl<T> fmt::Display for ScheduleError<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Full(_) => {
                "the timer is full: try again when a timeout is due or cancelled, or raise its limit"
            }
            Self::Stopped(_) => "the timer is stopped: schedule on another timer",
            Self::Forked(_) => FORKED,
        })
    }
}

#[cfg(feature = "std")]
impl<T> Error for ScheduleError<T> {}

/// Why a timer could not be stopped.
///
/// Returned by [`HashedWheelTimer::stop`](crate::HashedWheelTimer::stop) and
/// [`BatchTimer::stop`](crate::BatchTimer::stop).
///
/// ```
/// use hashed_wheel::StopError;
///
/// let error = StopError::OnTickerThread;
/// assert!(error.to_string().starts_with("a task cannot stop the timer that runs it"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg(feature = "std")]
#[non_exhaustive]
pub enum StopError {
    /// The call came from the ticker thread: from a task, a handler or the panic hook. A stop waits
    /// for the ticker thread to end, so the thread would wait for itself. Nothing was stopped. Call
    /// `stop` from another thread, or drop the timer: on the ticker thread a drop does not wait.
    OnTickerThread,
    /// The timer was built in a process of which this process is a forked child. The parent's timer
    /// runs on, and the pending timeouts are the parent's.
    Forked,
}

#[cfg(feature = "std")]
impl fmt::Display for StopError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::OnTickerThread => {
                "a task cannot stop the timer that runs it: stop it on another thread, or drop it"
            }
            Self::Forked => FORKED,
        })
    }
}

#[cfg(feature = "std")]
impl Error for StopError {}
