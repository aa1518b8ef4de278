//! The clock for tests: the time stands still until a test moves the clock.

use std::collections::HashSet;
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::{Arc, Weak};
use std::thread::{self, Thread, ThreadId};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use parking_lot::{Condvar, Mutex};

use super::clock::{Clock, Parker, ParkerInner, Sleep, SystemClock};

/// A clock whose time stands still until a test moves the clock. Clones share the time.
///
/// Created by [`new`](Self::new).
///
/// [`advance`](Self::advance) moves from deadline to deadline of the threads parked on this clock.
/// At each deadline the call waits until the woken threads park again. So an hour of a timer's work
/// takes only as long as the work. [`jump`](Self::jump) moves at once, as if the whole process had
/// been stopped for the duration.
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
    inner: Arc<Inner>,
}

struct Inner {
    state: Mutex<Time>,
    /// Notified whenever a thread parks.
    parked: Condvar,
    /// Locked by a call that moves the time: two interleaved advances would take a step of the
    /// concurrent advance for their own.
    moving: Mutex<()>,
}

struct Time {
    now: Instant,
    parkers: Vec<KnownParker>,
}

/// A parker on which a thread has parked.
struct KnownParker {
    parker: Weak<ParkerInner>,
    /// The last thread to park on the parker. `None` after only a first park without a sleep: such
    /// a park registers a parker for a thread that has not started.
    thread: Option<Thread>,
}

impl KnownParker {
    fn thread_id(&self) -> Option<ThreadId> {
        self.thread.as_ref().map(Thread::id)
    }

    fn thread_name(&self) -> String {
        let name = self.thread.as_ref().map(|thread| thread.name().unwrap_or("without a name"));
        name.unwrap_or("not started yet").to_owned()
    }
}

/// The longest time, by the real clock, which a thread may take to park again. A slower thread
/// waits for something besides this clock, and the test would hang. The limit is far longer than
/// thousands of tasks need on a busy machine.
const PARK_LIMIT: Duration = Duration::from_secs(120);

/// The longest time, by the real clock, for which [`pass_until`](Clock::pass_until) waits until all
/// threads are parked.
const PASS_LIMIT: Duration = Duration::from_secs(1);

impl ManualClock {
    /// Creates a clock at the present instant, standing still.
    #[must_use]
    pub fn new() -> Self {
        Self {
            inner: Arc::new(Inner {
                state: Mutex::new(Time { now: SystemClock.now(), parkers: Vec::new() }),
                parked: Condvar::new(),
                moving: Mutex::new(()),
            }),
        }
    }

    /// Moves the time forward by `duration`, stopping at every deadline on the way. Returns when
    /// every thread waiting on this clock is parked again, until a later instant. Between two
    /// parks, a task or a callback on such a thread may wait for a time of this clock.
    ///
    /// # Panics
    ///
    /// If a woken thread has not parked again or dropped its parker within 120 seconds of real
    /// time: the thread waits for something besides this clock. Call `advance` from the test's
    /// thread, never from a thread for which another thread waits, such as in a task or a callback.
    ///
    /// If the new time is out of the range of an [`Instant`]. The time has not moved then.
    pub fn advance(&self, duration: Duration) {
        let _moving = self.inner.moving.lock();
        self.wait_until_idle();
        let target = self.now() + duration;
        while let Some(deadline) = self.earliest_deadline().filter(|deadline| *deadline <= target) {
            self.move_to(deadline);
            self.wait_until_idle();
        }
        self.move_to(target);
        self.wait_until_idle();
    }

    /// Moves the time forward by `duration` at once, as if the process had been stopped for the
    /// duration. Returns when every thread waiting on this clock is parked again.
    ///
    /// # Panics
    ///
    /// If a thread has not parked again or dropped its parker within 120 seconds of real time, or
    /// if the new time is out of the range of an [`Instant`]. See [`advance`](Self::advance).
    pub fn jump(&self, duration: Duration) {
        let _moving = self.inner.moving.lock();
        self.wait_until_idle();
        self.move_to(self.now() + duration);
        self.wait_until_idle();
    }

    /// Waits until every thread waiting on this clock is parked, with nothing to do at the present
    /// instant. The time does not move.
    ///
    /// # Panics
    ///
    /// If a thread has not parked or dropped its parker within 120 seconds of real time.
    pub fn wait_until_idle(&self) {
        let busy = self.wait_for_others(PARK_LIMIT, None);
        assert!(
            busy.is_empty(),
            "threads that did not park on the manual clock within {PARK_LIMIT:?}: {}. They wait for something else",
            busy.join(", ")
        );
    }

    /// Waits until every thread but `except` is parked, for at most `limit` by the real clock.
    /// Returns the names of the threads still awake.
    fn wait_for_others(&self, limit: Duration, except: Option<ThreadId>) -> Vec<String> {
        let limit = SystemClock.now() + limit;
        let mut state = self.inner.state.lock();
        loop {
            state.parkers.retain(|known| known.parker.strong_count() > 0);
            let now = state.now;
            let sleeps = |known: &KnownParker| {
                Parker::upgrade(&known.parker).is_some_and(|parker| match *parker.sleep() {
                    None => false,
                    Some(Sleep::Until(deadline)) => deadline > now,
                    Some(Sleep::Forever) => true,
                })
            };
            // A thread asleep on any of its parkers is parked, even if a second parker has a
            // permit: the thread checks the second parker after waking.
            let (asleep, awake): (Vec<&KnownParker>, Vec<&KnownParker>) =
                state.parkers.iter().partition(|known| sleeps(known));
            let at_rest: HashSet<ThreadId> =
                asleep.iter().filter_map(|known| known.thread_id()).chain(except).collect();
            let is_awake =
                |thread: Option<ThreadId>| thread.is_none_or(|thread| !at_rest.contains(&thread));
            let busy: Vec<&KnownParker> =
                awake.into_iter().filter(|known| is_awake(known.thread_id())).collect();
            if busy.is_empty() || SystemClock.now() >= limit {
                return busy.into_iter().map(KnownParker::thread_name).collect();
            }
            // A dropped parker sends no notification, so the wait is short.
            self.inner.parked.wait_for(&mut state, Duration::from_millis(1));
        }
    }

    fn earliest_deadline(&self) -> Option<Instant> {
        let state = self.inner.state.lock();
        state
            .parkers
            .iter()
            .filter_map(|known| Parker::upgrade(&known.parker))
            .filter_map(|parker| match *parker.sleep() {
                Some(Sleep::Until(deadline)) => Some(deadline),
                Some(Sleep::Forever) | None => None,
            })
            .min()
    }

    /// Sets the time, never back, and unparks the threads whose deadline is reached.
    fn move_to(&self, instant: Instant) {
        let mut state = self.inner.state.lock();
        state.now = state.now.max(instant);
        let now = state.now;
        for parker in state.parkers.iter().filter_map(|known| Parker::upgrade(&known.parker)) {
            let due = matches!(*parker.sleep(), Some(Sleep::Until(deadline)) if deadline <= now);
            if due {
                parker.unpark();
            }
        }
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Instant {
        self.inner.state.lock().now
    }

    /// Moves to `deadline`, and then waits until the rest of the threads are parked, for at most a
    /// second of real time: a thread may wait for the caller. If a concurrent call moves the time,
    /// the concurrent call waits for the threads, and this call returns at once.
    fn pass_until(&self, parker: &Parker, deadline: Instant, _interrupt: &Receiver<()>) {
        if parker.take_permit() {
            return;
        }
        let moving = self.inner.moving.try_lock();
        self.move_to(deadline);
        if moving.is_some() {
            self.wait_for_others(PASS_LIMIT, Some(thread::current().id()));
        }
    }

    fn park(&self, parker: &Parker, deadline: Option<Instant>, interrupt: &Receiver<()>) {
        {
            let mut state = self.inner.state.lock();
            let weak = parker.downgrade();
            let is_it = |known: &KnownParker| known.parker.ptr_eq(&weak);
            let thread = thread::current();
            let position = state.parkers.iter().position(is_it).unwrap_or(state.parkers.len());
            if let Some(known) = state.parkers.get_mut(position) {
                known.thread = Some(thread.clone());
            } else {
                state.parkers.push(KnownParker { parker: weak, thread: None });
            }
            if deadline.is_some_and(|deadline| deadline <= state.now) {
                return;
            }
            let mut sleep = parker.sleep();
            // Under the lock of `sleep`: a later unpark clears `sleep` again.
            if parker.take_permit() {
                return;
            }
            *sleep = Some(deadline.map_or(Sleep::Forever, Sleep::Until));
            if let Some(known) = state.parkers.get_mut(position) {
                known.thread = Some(thread);
            }
            self.inner.parked.notify_all();
        }
        // No deadline: a call which moves the time unparks the thread.
        parker.wait(None, interrupt);
        *parker.sleep() = None;
    }
}

// A panic cannot leave the clock half changed: the state is consistent wherever a panic is
// possible.
impl UnwindSafe for ManualClock {}
impl RefUnwindSafe for ManualClock {}

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
