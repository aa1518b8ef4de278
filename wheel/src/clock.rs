//! Time as something a program is given: what the hour is, and how a thread waits.
//!
//! A timer that asks the operating system for the time cannot be tested without sleeping. So everything here that
//! waits, waits through a [`Clock`]: [`SystemClock`] in production, [`ManualClock`] in tests.
//!
//! A [`Parker`] is what one thread sleeps on. It carries one permit: an [`unpark`](Parker::unpark) that comes before
//! the [`park`](Clock::park) makes that park return at once, so a wake-up between a thread's last look and its sleep
//! is never lost.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use parking_lot::{Condvar, Mutex};

use crate::sync::{Mutex as RestLock, Permit};

/// A source of time that also owns waiting.
///
/// Implement it to run a timer on a time of your own. `now` must not go back.
///
/// Neither method should panic. A panic in a call of yours, such as scheduling, is yours, and the call has done nothing.
/// On the ticker thread it is caught, counted and reported like that of a task. While something is fired it costs no
/// run; only a periodic task that cannot learn when it is due next has had its last. Between two turns it ends the
/// ticker: the timer then refuses everything with [`ScheduleError::Stopped`](crate::ScheduleError::Stopped), and
/// stopping it gives back what is pending.
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
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The present instant of this clock.
    fn now(&self) -> Instant;

    /// Parks the calling thread until `parker` is unparked, `deadline` has come, or `interrupt` has a message or has
    /// lost its sender. Without a deadline the wait has no end of its own.
    ///
    /// It takes the parker's permit, and leaves the message where it is. A caller looks at its own state afterwards and
    /// parks again if there is nothing to do: a park may return early for no reason at all. Pass
    /// [`crossbeam_channel::never`] for no interrupt.
    fn park(&self, parker: &Parker, deadline: Option<Instant>, interrupt: &Receiver<()>);

    /// How long it is until `deadline`, an instant that the caller took from [`Instant::now`]; zero if it has passed.
    ///
    /// A clock whose instants are not those of [`Instant::now`], as one that runs on during suspend, overrides this.
    fn remaining(&self, deadline: Instant) -> Duration {
        deadline.saturating_duration_since(self.now())
    }
}

/// What one thread sleeps on: one permit, given by any thread, taken by the one that parks.
///
/// Clones share the permit.
///
/// ```
/// use hashed_wheel::{Clock, Parker, SystemClock};
///
/// let parker = Parker::new();
/// parker.unpark();
/// // The permit is there already, so this returns at once.
/// SystemClock.park(&parker, None, &crossbeam_channel::never());
/// ```
#[derive(Clone)]
pub struct Parker {
    inner: Arc<ParkerInner>,
}

struct ParkerInner {
    permit: Permit,
    /// Some while the thread sleeps on a manual clock: until when, or for ever.
    rest: RestLock<Option<Rest>>,
}

#[derive(Clone, Copy)]
enum Rest {
    Until(Instant),
    ForEver,
}

impl Parker {
    /// A parker without a permit.
    #[must_use]
    pub fn new() -> Self {
        let inner = ParkerInner { permit: Permit::new(), rest: RestLock::new(None) };
        Self { inner: Arc::new(inner) }
    }

    /// Gives the permit. The thread that is parked, or the next to park, goes on. A permit that is there already
    /// stays the only one. Never blocks.
    pub fn unpark(&self) {
        // A thread that is owed a wake-up is not at rest, or `ManualClock::advance` would go on without it. Both happen
        // under the lock, so that no park comes between them.
        let mut rest = self.inner.rest.lock();
        *rest = None;
        self.inner.permit.give();
    }

    /// Whether the two share one permit.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Sleeps on the operating system's clock, and takes the permit if it is there.
    fn sleep(&self, deadline: Option<Instant>, interrupt: &Receiver<()>) {
        self.inner.permit.wait(deadline, interrupt);
    }
}

impl Default for Parker {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Parker {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Parker")
            .field("permit", &self.inner.permit.is_there())
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
        parker.sleep(deadline, interrupt);
    }
}

/// A clock that stands still until a test moves it. Clones share the time.
///
/// [`advance`](Self::advance) moves from deadline to deadline of the threads that are parked on this clock, and lets
/// each run until it parks again, before it goes on. So an hour of a timer's work takes as long as the work itself.
/// [`jump`](Self::jump) moves at once, as if the whole process had been stopped for that long.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU32, Ordering};
/// use std::time::Duration;
/// use hashed_wheel::{HashedWheelTimer, ManualClock};
///
/// let clock = ManualClock::new();
/// let timer = HashedWheelTimer::builder().clock(Arc::new(clock.clone())).build()?;
/// let ran = Arc::new(AtomicU32::new(0));
/// let counter = Arc::clone(&ran);
/// timer.schedule(Duration::from_secs(3600), move || {
///     counter.fetch_add(1, Ordering::Relaxed);
/// })?;
/// clock.advance(Duration::from_secs(3601));
/// assert_eq!(ran.load(Ordering::Relaxed), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct ManualClock {
    inner: Arc<ManualInner>,
}

struct ManualInner {
    state: Mutex<ManualState>,
    /// Signalled whenever a thread comes to rest.
    rested: Condvar,
    /// One mover at a time: two interleaved advances would each count the other's steps as their own.
    moving: Mutex<()>,
}

struct ManualState {
    now: Instant,
    parkers: Vec<Weak<ParkerInner>>,
}

/// How long, by the real clock, a moved thread may take to come to rest. A thread that takes longer waits on
/// something that is not this clock, and the test would hang without a word.
const REST_LIMIT: Duration = Duration::from_secs(30);

impl ManualClock {
    /// A clock that stands at the present instant.
    #[must_use]
    pub fn new() -> Self {
        Self {
            inner: Arc::new(ManualInner {
                state: Mutex::new(ManualState { now: SystemClock.now(), parkers: Vec::new() }),
                rested: Condvar::new(),
                moving: Mutex::new(()),
            }),
        }
    }

    /// Moves the time forward by `duration`, stopping at every deadline on the way, and returns when every thread
    /// that waits on this clock has come to rest.
    ///
    /// # Panics
    ///
    /// If a thread that was woken has not parked again or dropped its parker within 30 seconds of real time. Call it
    /// from the test's thread, never from one that others wait for.
    pub fn advance(&self, duration: Duration) {
        let _moving = self.inner.moving.lock();
        self.settle();
        let target = self.now() + duration;
        while let Some(deadline) = self.earliest_deadline().filter(|deadline| *deadline <= target) {
            self.move_to(deadline);
            self.settle();
        }
        self.move_to(target);
        self.settle();
    }

    /// Moves the time forward by `duration` at once, as if the process had been stopped for that long, and returns
    /// when every thread that waits on this clock has come to rest.
    ///
    /// # Panics
    ///
    /// As [`advance`](Self::advance).
    pub fn jump(&self, duration: Duration) {
        let _moving = self.inner.moving.lock();
        self.settle();
        self.move_to(self.now() + duration);
        self.settle();
    }

    /// Returns when every thread that waits on this clock has come to rest at the present instant.
    ///
    /// # Panics
    ///
    /// As [`advance`](Self::advance).
    pub fn settle(&self) {
        let limit = SystemClock.now() + REST_LIMIT;
        let mut state = self.inner.state.lock();
        loop {
            state.parkers.retain(|parker| parker.strong_count() > 0);
            let now = state.now;
            let restless = state
                .parkers
                .iter()
                .filter_map(Weak::upgrade)
                .filter(|parker| match *parker.rest.lock() {
                    None => true,
                    Some(Rest::Until(deadline)) => deadline <= now,
                    Some(Rest::ForEver) => false,
                })
                .count();
            if restless == 0 {
                return;
            }
            // A parker may be dropped without a word, so the wait is a short one.
            self.inner.rested.wait_for(&mut state, Duration::from_millis(1));
            assert!(
                SystemClock.now() < limit,
                "{restless} thread(s) of a manual clock did not come to rest: they wait on something else"
            );
        }
    }

    fn earliest_deadline(&self) -> Option<Instant> {
        let state = self.inner.state.lock();
        state
            .parkers
            .iter()
            .filter_map(Weak::upgrade)
            .filter_map(|parker| match *parker.rest.lock() {
                Some(Rest::Until(deadline)) => Some(deadline),
                Some(Rest::ForEver) | None => None,
            })
            .min()
    }

    /// Sets the time, never back, and wakes who is due.
    fn move_to(&self, instant: Instant) {
        let mut state = self.inner.state.lock();
        state.now = state.now.max(instant);
        let now = state.now;
        for inner in state.parkers.iter().filter_map(Weak::upgrade) {
            let due = matches!(*inner.rest.lock(), Some(Rest::Until(deadline)) if deadline <= now);
            if due {
                Parker { inner }.unpark();
            }
        }
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Instant {
        self.inner.state.lock().now
    }

    fn park(&self, parker: &Parker, deadline: Option<Instant>, interrupt: &Receiver<()>) {
        {
            let mut state = self.inner.state.lock();
            let address = Arc::as_ptr(&parker.inner);
            if !state.parkers.iter().any(|known| known.as_ptr() == address) {
                state.parkers.push(Arc::downgrade(&parker.inner));
            }
            if deadline.is_some_and(|deadline| deadline <= state.now) {
                return;
            }
            let mut rest = parker.inner.rest.lock();
            // With the rest lock held: an unpark that comes later takes the mark away again.
            if parker.inner.permit.take() {
                return;
            }
            *rest = Some(deadline.map_or(Rest::ForEver, Rest::Until));
            self.inner.rested.notify_all();
        }
        // The clock's own mover wakes it when the deadline has come.
        parker.sleep(None, interrupt);
        *parker.inner.rest.lock() = None;
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ManualClock").field("now", &self.now()).finish_non_exhaustive()
    }
}
