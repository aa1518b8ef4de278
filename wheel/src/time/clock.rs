//! The clock: a source of time that also makes threads wait.
//!
//! A timer that asks the operating system for the time cannot be tested without sleeping. So
//! everything in this crate that waits does so through a [`Clock`]: [`SystemClock`] in production,
//! `ManualClock` in tests.

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

use super::permit::Permit;
use super::sync::{Mutex, MutexGuard};

/// A source of time that also makes threads wait.
///
/// Implement it to run a timer on another time. `now` must not go back.
///
/// Neither method should panic. A panic in a call from outside, such as scheduling, goes to the
/// caller, and the call has done nothing. A panic on the ticker thread is caught, counted and
/// reported like that of a task. If it happens while something is fired, no run is lost; only a
/// periodic task whose next deadline cannot be computed has run for the last time. If it happens
/// between two batches, the ticker ends: the timer then refuses everything with
/// [`ScheduleError::Stopped`](crate::ScheduleError::Stopped), and stopping it returns what is
/// pending.
///
/// ```
/// use std::time::Duration;
/// use hashed_wheel::{Clock, ManualClock};
///
/// let clock = ManualClock::new();
/// let before = clock.now();
/// clock.advance(Duration::from_secs(3600));
/// assert_eq!(clock.now() - before, Duration::from_secs(3600));
/// ```
///
/// # Implementing a clock
///
/// A clock of your own computes `now`, and lets [`SystemClock`] park the thread, until the instant
/// at which its own deadline comes. This one runs at twice the speed:
///
/// ```
/// use std::sync::Arc;
/// use std::time::{Duration, Instant};
/// use hashed_wheel::crossbeam_channel::{self, Receiver};
/// use hashed_wheel::{Clock, HashedWheelTimer, Parker, SystemClock};
///
/// #[derive(Debug)]
/// struct DoubleSpeed {
///     start: Instant,
/// }
///
/// impl Clock for DoubleSpeed {
///     fn now(&self) -> Instant {
///         self.start + SystemClock.now().duration_since(self.start) * 2
///     }
///
///     fn park(&self, parker: &Parker, deadline: Option<Instant>, interrupt: &Receiver<()>) {
///         let deadline = deadline.map(|instant| SystemClock.now() + self.time_until(instant) / 2);
///         SystemClock.park(parker, deadline, interrupt);
///     }
/// }
///
/// impl DoubleSpeed {
///     fn time_until(&self, instant: Instant) -> Duration {
///         instant.saturating_duration_since(self.now())
///     }
/// }
///
/// let clock = DoubleSpeed { start: SystemClock.now() };
/// let timer = HashedWheelTimer::builder().clock(Arc::new(clock)).build()?;
/// let (sender, receiver) = crossbeam_channel::bounded(1);
/// let before = SystemClock.now();
/// timer.schedule(Duration::from_millis(100), move || sender.send(()).unwrap())?;
/// receiver.recv()?;
/// assert!(SystemClock.now() - before >= Duration::from_millis(50));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The present instant of this clock.
    fn now(&self) -> Instant;

    /// Parks the calling thread until `parker` is unparked, `deadline` has come, or `interrupt` has
    /// a message or is disconnected. Without a deadline it waits for one of the others.
    ///
    /// It takes the parker's permit, and leaves the message in the channel. It may return early for
    /// no reason, so a caller looks at its own state afterwards and parks again if there is nothing
    /// to do. Pass [`crossbeam_channel::never`] for no interrupt.
    fn park(&self, parker: &Parker, deadline: Option<Instant>, interrupt: &Receiver<()>);

    /// The time until `deadline`, an instant that the caller took from [`Instant::now`]; zero if it
    /// has passed.
    ///
    /// Override it for a clock whose instants differ from those of [`Instant::now`], such as one
    /// that runs on while the machine is suspended.
    fn remaining(&self, deadline: Instant) -> Duration {
        deadline.saturating_duration_since(self.now())
    }
}

/// What one thread sleeps on. It has one permit, which any thread can give and a park takes.
///
/// An [`unpark`](Self::unpark) that comes before the [`park`](Clock::park) makes that park return
/// at once. So a wake-up between a thread's last look at its state and its sleep is never lost.
///
/// Clones share the permit.
///
/// ```
/// use hashed_wheel::{Clock, Parker, SystemClock, crossbeam_channel};
///
/// let parker = Parker::new();
/// parker.unpark();
/// // The permit is available, so this returns at once.
/// SystemClock.park(&parker, None, &crossbeam_channel::never());
/// ```
#[derive(Clone)]
pub struct Parker {
    inner: Arc<ParkerInner>,
}

/// The state that the clones of a parker share.
pub(super) struct ParkerInner {
    permit: Permit,
    /// Set while the thread sleeps on a manual clock.
    sleep: Mutex<Option<Sleep>>,
}

/// How long a thread sleeps on a manual clock.
#[derive(Clone, Copy)]
pub(super) enum Sleep {
    Until(Instant),
    Forever,
}

impl Parker {
    /// Creates a parker without a permit.
    #[must_use]
    pub fn new() -> Self {
        let inner = ParkerInner { permit: Permit::new(), sleep: Mutex::new(None) };
        Self { inner: Arc::new(inner) }
    }

    /// Gives the permit: the thread that is parked continues, or the next park returns at once. A
    /// second permit has no effect while the first is available. Never blocks.
    pub fn unpark(&self) {
        // A thread with a permit counts as awake, or `ManualClock::advance` would not wait for it.
        // Both are changed under the lock, so that no park comes in between.
        let mut sleep = self.inner.sleep.lock();
        *sleep = None;
        self.inner.permit.give();
    }

    /// Whether the two share one permit.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Sleeps on the operating system's clock, and takes the permit if it is available.
    pub(super) fn wait(&self, deadline: Option<Instant>, interrupt: &Receiver<()>) {
        self.inner.permit.wait(deadline, interrupt);
    }

    pub(super) fn take_permit(&self) -> bool {
        self.inner.permit.take()
    }

    pub(super) fn sleep(&self) -> MutexGuard<'_, Option<Sleep>> {
        self.inner.sleep.lock()
    }

    pub(super) fn downgrade(&self) -> Weak<ParkerInner> {
        Arc::downgrade(&self.inner)
    }

    pub(super) fn upgrade(weak: &Weak<ParkerInner>) -> Option<Self> {
        weak.upgrade().map(|inner| Self { inner })
    }
}

// A panic cannot leave it half changed: no code of a user runs under its lock.
impl UnwindSafe for Parker {}
impl RefUnwindSafe for Parker {}

impl Default for Parker {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Parker {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Parker")
            .field("permit", &self.inner.permit.is_available())
            .finish_non_exhaustive()
    }
}

/// The operating system's monotonic clock, as [`Instant::now`] reads it.
///
/// ```
/// use hashed_wheel::{Clock, SystemClock};
///
/// let earlier = SystemClock.now();
/// assert!(SystemClock.now() >= earlier);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn park(&self, parker: &Parker, deadline: Option<Instant>, interrupt: &Receiver<()>) {
        parker.wait(deadline, interrupt);
    }
}
