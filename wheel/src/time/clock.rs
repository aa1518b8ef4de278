//! The clock: a source of time, for reading and for waiting.
//!
//! A timer with a direct call to the operating system's clock cannot be tested without sleeping. So
//! all waits of this crate go through a [`Clock`]: [`SystemClock`] in production, `ManualClock` in
//! tests.

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

use super::permit::Permit;
use super::sync::{Mutex, MutexGuard};

/// A source of time, for reading and for waiting.
///
/// Implement this trait to run a timer on another time. `now` must not go back.
///
/// The methods should not panic. A panic in a call from outside, such as scheduling, goes to the
/// caller, and the call has no effect. A panic on the ticker thread is caught, counted and reported
/// like a task's panic. If the panic happens while a timeout is fired, no run is lost; only a
/// periodic task whose next deadline cannot be computed has run for the last time. If the panic
/// happens between two batches, the ticker ends: the timer then refuses every call with
/// [`ScheduleError::Stopped`](crate::ScheduleError::Stopped), and stopping the timer returns the
/// pending entries.
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
/// A custom clock computes `now`, and lets [`SystemClock`] park the thread until the custom clock's
/// own deadline. This clock runs at twice the speed:
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
/// A clock with a time of its own also lets [`SystemClock`] park the thread, without a deadline,
/// and gives the permit once the clock's own time reaches the deadline. A park may return early, so
/// a superfluous permit is harmless. This clock has the time of a simulation:
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
///     /// The parker of each parked thread.
///     parked: Mutex<HashMap<ThreadId, Parker>>,
/// }
///
/// impl Simulated {
///     fn set(&self, now: Instant) {
///         *self.now.lock().unwrap() = now;
///         // Each thread reads the time and parks again.
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
    /// Returns the present instant of this clock.
    fn now(&self) -> Instant;

    /// Returns the present instant in nanoseconds since an origin of the clock's choice, always the
    /// same. `None`, the default, if the clock has no reading cheaper than [`now`](Self::now); then
    /// every call returns `None`.
    ///
    /// A timer counts a delay from this reading, which is 3 ns cheaper than an [`Instant`] and
    /// needs no conversion. Only `now` decides which timeouts are due.
    fn nanos(&self) -> Option<u64> {
        None
    }

    /// Returns the reading of [`nanos`](Self::nanos), or up to a millisecond more if such a reading
    /// is cheaper, and never less: a timeout may be up to a millisecond later, and is not early.
    /// The default calls `nanos`.
    fn late_nanos(&self) -> Option<u64> {
        self.nanos()
    }

    /// Parks the calling thread until `parker` is unparked, `deadline` is reached, or `interrupt`
    /// has a message or is disconnected. Without a deadline only the parker and the interrupt end
    /// the wait.
    ///
    /// The call takes the parker's permit, and leaves the message in the channel. The call may
    /// return early for no reason, so a caller checks its own state afterwards and parks again if
    /// there is nothing to do. Pass [`crossbeam_channel::never`] for no interrupt.
    fn park(&self, parker: &Parker, deadline: Option<Instant>, interrupt: &Receiver<()>);

    /// Lets the time pass until `deadline`, for work that takes time on this clock although no
    /// other thread moves the clock, such as the network of a simulation.
    ///
    /// Parks the calling thread, as [`park`](Self::park) does; a
    /// [`ManualClock`](crate::ManualClock) moves to `deadline` instead. A clock around another
    /// clock forwards this call.
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

    /// Returns the time until `deadline`, an instant of [`Instant::now`]; zero if `deadline` has
    /// passed.
    ///
    /// Override this method for a clock whose instants differ from [`Instant::now`], such as a
    /// clock that runs on while the machine is suspended.
    fn remaining(&self, deadline: Instant) -> Duration {
        deadline.saturating_duration_since(self.now())
    }
}

/// A permit on which a single thread sleeps: any thread can give the permit, and a park takes the
/// permit.
///
/// Created by [`new`](Self::new). A timer passes the parker of the ticker thread to
/// [`Clock::park`].
///
/// An [`unpark`](Self::unpark) before the [`park`](Clock::park) makes the park return at once. So a
/// wake-up between a thread's last check of its state and its sleep is never lost.
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

/// The state shared by the clones of a parker.
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

    /// Gives the permit: the parked thread continues, or the next park returns at once. A second
    /// permit has no effect while the first is available. Never blocks.
    pub fn unpark(&self) {
        // A thread with a permit counts as awake, or `ManualClock::advance` would not wait for the
        // thread. The sleep and the permit are changed under the lock, so no park happens in
        // between.
        let mut sleep = self.inner.sleep.lock();
        *sleep = None;
        self.inner.permit.give();
    }

    /// Returns whether the two parkers share a permit: both are clones of the same parker.
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

    /// Sleeps on the operating system's clock, and takes the permit if available.
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

// A panic cannot leave a parker half changed: no user code runs under the lock.
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

/// The operating system's monotonic clock, as read by [`Instant::now`].
///
/// The clock of every timer, unless [`TimerBuilder::clock`](crate::TimerBuilder::clock) sets a
/// different clock.
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
        // The sum fits for 584 years after the machine's start.
        Some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }

    fn park(&self, parker: &Parker, deadline: Option<Instant>, interrupt: &Receiver<()>) {
        parker.wait(deadline, interrupt);
    }
}
