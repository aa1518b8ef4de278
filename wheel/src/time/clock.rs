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
///
/// A clock whose time is not the system's also lets [`SystemClock`] park the thread, without a
/// deadline, and gives the permit when its own time has come. A park may return early, so giving
/// one too many is harmless. This clock has the time of a simulation:
///
/// ```
/// use std::collections::HashMap;
/// use std::sync::{Arc, Mutex};
/// use std::thread::{self, ThreadId};
/// use std::time::{Duration, Instant};
/// use hashed_wheel::crossbeam_channel::{self, Receiver};
/// use hashed_wheel::{Clock, HashedWheelTimer, Parker, SystemClock};
///
/// #[derive(Debug)]
/// struct Simulated {
///     now: Mutex<Instant>,
///     /// What each thread that is parked sleeps on.
///     parked: Mutex<HashMap<ThreadId, Parker>>,
/// }
///
/// impl Simulated {
///     fn set(&self, now: Instant) {
///         *self.now.lock().unwrap() = now;
///         // Each looks at the time and parks again.
///         self.parked.lock().unwrap().values().for_each(Parker::unpark);
///     }
/// }
///
/// impl Clock for Simulated {
///     fn now(&self) -> Instant {
///         *self.now.lock().unwrap()
///     }
///
///     fn park(&self, parker: &Parker, deadline: Option<Instant>, interrupt: &Receiver<()>) {
///         // First, so that a `set` from now on gives the permit.
///         self.parked.lock().unwrap().insert(thread::current().id(), parker.clone());
///         if deadline.is_none_or(|deadline| deadline > self.now()) {
///             SystemClock.park(parker, None, interrupt);
///         }
///         self.parked.lock().unwrap().remove(&thread::current().id());
///     }
/// }
///
/// let start = SystemClock.now();
/// let clock = Arc::new(Simulated { now: Mutex::new(start), parked: Mutex::default() });
/// let timer = HashedWheelTimer::builder().clock(clock.clone()).build()?;
/// let (sender, receiver) = crossbeam_channel::bounded(1);
/// timer.schedule(Duration::from_secs(3600), move || sender.send(()).unwrap())?;
/// clock.set(start + Duration::from_secs(3600));
/// receiver.recv()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The present instant of this clock.
    fn now(&self) -> Instant;

    /// The present instant in nanoseconds since an origin of the clock's choice, always the same.
    /// `None`, the default, if the clock cannot tell them cheaper than [`now`](Self::now); then it
    /// never can.
    ///
    /// A timer counts a delay from here, so that `schedule` makes no instant. What is due is told
    /// by `now` alone.
    fn nanos(&self) -> Option<u64> {
        None
    }

    /// As [`nanos`](Self::nanos), or up to a millisecond more if that is cheaper, and never less:
    /// a timeout may be that much later, and is not early.
    fn late_nanos(&self) -> Option<u64> {
        self.nanos()
    }

    /// Parks the calling thread until `parker` is unparked, `deadline` has come, or `interrupt` has
    /// a message or is disconnected. Without a deadline it waits for one of the others.
    ///
    /// It takes the parker's permit, and leaves the message in the channel. It may return early for
    /// no reason, so a caller looks at its own state afterwards and parks again if there is nothing
    /// to do. Pass [`crossbeam_channel::never`] for no interrupt.
    fn park(&self, parker: &Parker, deadline: Option<Instant>, interrupt: &Receiver<()>);

    /// Lets the time pass until `deadline` comes, for what takes time on this clock though nothing
    /// else moves it, such as the network of a simulation. Parks the calling thread, as
    /// [`park`](Self::park) does; a [`ManualClock`](crate::ManualClock) moves to `deadline`
    /// instead. A clock that wraps another passes this on.
    ///
    /// ```
    /// use std::time::Duration;
    /// use hashed_wheel::{Clock, ManualClock, Parker, crossbeam_channel::never};
    ///
    /// let clock = ManualClock::new();
    /// let before = clock.now();
    /// clock.pass_until(&Parker::new(), before + Duration::from_secs(60), &never());
    /// assert_eq!(clock.now() - before, Duration::from_secs(60));
    /// ```
    fn pass_until(&self, parker: &Parker, deadline: Instant, interrupt: &Receiver<()>) {
        self.park(parker, Some(deadline), interrupt);
    }

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

    /// Whether the two share one permit: one is a clone of the other.
    ///
    /// ```
    /// use hashed_wheel::Parker;
    ///
    /// let parker = Parker::new();
    /// assert!(parker.is(&parker.clone()));
    /// assert!(!parker.is(&Parker::new()));
    /// ```
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

    /// Reads the same clock without the checks of an [`Instant`].
    #[cfg(target_os = "linux")]
    #[expect(clippy::cast_sign_loss, reason = "neither is negative on this clock")]
    fn nanos(&self) -> Option<u64> {
        use rustix::time::{ClockId, clock_gettime};
        let time = clock_gettime(ClockId::Monotonic);
        // The sum fits for 584 years after the machine was started.
        Some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }

    fn park(&self, parker: &Parker, deadline: Option<Instant>, interrupt: &Receiver<()>) {
        parker.wait(deadline, interrupt);
    }
}
