//! The settings of a timer, checked in one place.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, SystemClock};
use crate::error::BuildError;
use crate::task::Executor;
use crate::tick::TickDuration;
use crate::wheel::Wheel;

/// What is called with the number of living timers when there are many.
pub(crate) type CrowdHook = Arc<dyn Fn(usize) + Send + Sync>;

/// What is called with the payload of a panic.
pub(crate) type PanicHook = Arc<dyn Fn(&(dyn Any + Send)) + Send + Sync>;

/// The settings of a timer. [`HashedWheelTimer::builder`](crate::HashedWheelTimer::builder) gives the defaults.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use hashed_wheel::{HashedWheelTimer, ManualClock};
///
/// let timer = HashedWheelTimer::builder()
///     .tick_duration(Duration::from_millis(1))
///     .ticks_per_wheel(16_384)
///     .max_pending_timeouts(100_000)
///     .thread_name("request-timeouts")
///     .clock(Arc::new(ManualClock::new()))
///     .build()?;
/// assert_eq!(timer.pending_timeouts(), 0);
/// # Ok::<(), hashed_wheel::BuildError>(())
/// ```
#[derive(Clone)]
#[must_use = "a builder does nothing until it builds"]
pub struct TimerBuilder {
    tick_duration: Duration,
    ticks_per_wheel: usize,
    max_pending_timeouts: Option<usize>,
    thread_name: String,
    clock: Arc<dyn Clock>,
    executor: Option<Arc<dyn Executor>>,
    starts_lazily: bool,
    panic_hook: Option<PanicHook>,
    crowd_hook: Option<CrowdHook>,
}

/// Settings that passed the check.
pub(crate) struct Config {
    pub(crate) tick_duration: TickDuration,
    /// A number for which a wheel can be made.
    pub(crate) ticks_per_wheel: usize,
    pub(crate) max_pending_timeouts: Option<usize>,
    pub(crate) thread_name: String,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) starts_lazily: bool,
    pub(crate) panic_hook: Option<PanicHook>,
    pub(crate) crowd_hook: Option<CrowdHook>,
}

impl TimerBuilder {
    pub(crate) fn new() -> Self {
        Self {
            tick_duration: DEFAULT_TICK_DURATION,
            ticks_per_wheel: DEFAULT_TICKS_PER_WHEEL,
            max_pending_timeouts: None,
            thread_name: String::from("hashed-wheel"),
            clock: Arc::new(SystemClock),
            executor: None,
            starts_lazily: false,
            panic_hook: None,
            crowd_hook: None,
        }
    }

    /// How long a tick is: 10 ms unless set. A timeout is late by at most this, and timeouts that fall into one tick
    /// are run in one go.
    ///
    /// Netty's default is 100 ms, because its ticker wakes at every tick. This one wakes only when something is due,
    /// so a fine tick costs nothing while nothing is due. Zero is an error when the timer is built.
    pub const fn tick_duration(mut self, duration: Duration) -> Self {
        self.tick_duration = duration;
        self
    }

    /// How many buckets each of the timer's eight wheels has, rounded up to a power of two: 4096 unless set, which with
    /// the default tick makes laps of 41 s. A bucket takes 8 bytes.
    ///
    /// A wheel that holds much gives itself longer laps inside, so this matters little. What is due far beyond a lap takes
    /// logarithmic time in the number of distinct due ticks; nothing else changes. Zero, or more than
    /// [`TICKS_PER_WHEEL_MAX`](crate::TICKS_PER_WHEEL_MAX), is an error when the timer is built.
    pub const fn ticks_per_wheel(mut self, count: usize) -> Self {
        self.ticks_per_wheel = count;
        self
    }

    /// How many timeouts may be pending at once: as many as memory holds unless set. What comes beyond the bound is
    /// handed back with [`ScheduleError::Full`](crate::ScheduleError::Full). The bound is never exceeded. Nothing
    /// that fits is refused, unless other threads schedule and cancel at the same moment.
    ///
    /// A bound of 1024 or more costs next to nothing. A smaller one costs a counter that all threads share. Zero is an
    /// error when the timer is built.
    pub const fn max_pending_timeouts(mut self, count: usize) -> Self {
        self.max_pending_timeouts = Some(count);
        self
    }

    /// The name of the ticker thread: `hashed-wheel` unless set. A null byte in it is an error when the timer is built.
    pub fn thread_name(mut self, name: impl Into<String>) -> Self {
        self.thread_name = name.into();
        self
    }

    /// The clock that the timer goes by: [`SystemClock`] unless set. Tests pass a [`ManualClock`](crate::ManualClock).
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Where tasks run: on the ticker thread unless set. With an executor, a task that takes long, or waits, holds up
    /// nothing but what the executor itself runs after it. For [`build`](Self::build) only: a
    /// [`BatchTimer`](crate::BatchTimer) has a handler, which may hand on what it is given.
    ///
    /// [`Executor`] says what is asked of it, with an example.
    pub fn executor(mut self, executor: impl Executor) -> Self {
        self.executor = Some(Arc::new(executor));
        self
    }

    /// Lets the ticker thread start with the first timeout, or with
    /// [`HashedWheelTimer::start`](crate::HashedWheelTimer::start), instead of when the timer is built: for a timer that
    /// may never be needed.
    ///
    /// The system may then have no thread to give when the first timeout is scheduled, which is
    /// [`ScheduleError::NotStarted`](crate::ScheduleError::NotStarted).
    pub const fn start_lazily(mut self) -> Self {
        self.starts_lazily = true;
        self
    }

    /// What is called when more than 64 timers live in this process as this one is built, with how many there are. One
    /// timer serves a whole program, and each has a thread, so so many are mostly an error: a timer for each connection,
    /// say. (Netty logs the same.)
    ///
    /// The hook runs on the building thread, before the timer is returned. A panic in it is caught, and counted and
    /// reported as that of a task.
    ///
    /// ```
    /// use hashed_wheel::HashedWheelTimer;
    ///
    /// let timer = HashedWheelTimer::builder()
    ///     .on_many_timers(|living| eprintln!("{living} timers, each with a thread"))
    ///     .build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_many_timers(mut self, hook: impl Fn(usize) + Send + Sync + 'static) -> Self {
        self.crowd_hook = Some(Arc::new(hook));
        self
    }

    /// What is called with the payload when a task, a handler, the destructor of one of its values or the handler's own
    /// panics. Such a panic is counted and does no further harm; without a hook it is seen only in the count, and in
    /// what the process-wide panic hook prints. The same holds for a panic of the [`Clock`], which may end the timer.
    ///
    /// The hook runs where the panic was, with no lock held: on the ticker thread, on one of the executor's, or where the
    /// timer is ended. What it does on the ticker thread delays the timeouts behind it. If it panics itself, that panic
    /// is dropped.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use hashed_wheel::{HashedWheelTimer, ManualClock};
    ///
    /// let clock = ManualClock::new();
    /// let (sender, messages) = crossbeam_channel::unbounded();
    /// let timer = HashedWheelTimer::builder()
    ///     .clock(Arc::new(clock.clone()))
    ///     .on_panic(move |payload| {
    ///         sender.send(payload.downcast_ref::<&str>().copied()).ok();
    ///     })
    ///     .build()?;
    /// timer.schedule(Duration::from_secs(1), || panic!("a task's own mistake"))?;
    /// clock.advance(Duration::from_secs(2));
    /// assert_eq!(messages.try_recv()?, Some("a task's own mistake"));
    /// assert_eq!(timer.panics(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_panic(mut self, hook: impl Fn(&(dyn Any + Send)) + Send + Sync + 'static) -> Self {
        self.panic_hook = Some(Arc::new(hook));
        self
    }

    pub(crate) fn take_executor(&mut self) -> Option<Arc<dyn Executor>> {
        self.executor.take()
    }

    /// Checks everything, so that nothing later has to.
    pub(crate) fn check(self) -> Result<Config, BuildError> {
        if self.max_pending_timeouts == Some(0) {
            return Err(BuildError::MaxPendingTimeouts);
        }
        if self.thread_name.contains('\0') {
            return Err(BuildError::ThreadName);
        }
        Ok(Config {
            tick_duration: TickDuration::try_from(self.tick_duration)?,
            ticks_per_wheel: Wheel::<()>::bucket_count(self.ticks_per_wheel)?,
            max_pending_timeouts: self.max_pending_timeouts,
            thread_name: self.thread_name,
            clock: self.clock,
            starts_lazily: self.starts_lazily,
            panic_hook: self.panic_hook,
            crowd_hook: self.crowd_hook,
        })
    }
}

impl fmt::Debug for TimerBuilder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("TimerBuilder")
            .field("tick_duration", &self.tick_duration)
            .field("ticks_per_wheel", &self.ticks_per_wheel)
            .field("max_pending_timeouts", &self.max_pending_timeouts)
            .field("thread_name", &self.thread_name)
            .field("clock", &self.clock)
            .field("executor", &self.executor.is_some())
            .field("starts_lazily", &self.starts_lazily)
            .finish_non_exhaustive()
    }
}

/// Fine enough for a lease of seconds, coarse enough that 100,000 timers of some seconds share their wake-ups.
const DEFAULT_TICK_DURATION: Duration = Duration::from_millis(10);

/// Laps of 41 s at the default tick: the common timeouts, of up to half a minute, are within the lap. 256 KiB a timer.
const DEFAULT_TICKS_PER_WHEEL: usize = 4096;
