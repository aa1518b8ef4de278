//! The settings of a timer, checked in one place.

use std::any::Any;
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use super::task::Executor;
use crate::driver::panics::PanicHook;
use crate::error::BuildError;
use crate::time::clock::{Clock, SystemClock};
use crate::time::tick::TickDuration;
use crate::wheel::Wheel;

/// Called with the number of timers when there are many.
pub(crate) type ManyTimersHook = Arc<dyn Fn(usize) + Send + Sync>;

/// The settings of a timer. [`HashedWheelTimer::builder`](crate::HashedWheelTimer::builder) returns
/// the defaults.
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
    many_timers_hook: Option<ManyTimersHook>,
}

/// Settings that were checked.
pub(crate) struct Config {
    pub(crate) tick_duration: TickDuration,
    /// A power of two within the limit.
    pub(crate) bucket_count: usize,
    pub(crate) max_pending_timeouts: Option<usize>,
    pub(crate) thread_name: String,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) starts_lazily: bool,
    pub(crate) panic_hook: Option<PanicHook>,
    pub(crate) many_timers_hook: Option<ManyTimersHook>,
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
            many_timers_hook: None,
        }
    }

    /// The length of a tick: 10 ms unless set. A timeout is rounded up to a tick, and timeouts of
    /// one tick are run together.
    ///
    /// Netty's default is 100 ms, because its ticker wakes at every tick. This one wakes only when
    /// something is due, so a short tick costs nothing while nothing is due. Zero is an error when
    /// the timer is built.
    pub const fn tick_duration(mut self, duration: Duration) -> Self {
        self.tick_duration = duration;
        self
    }

    /// The number of buckets of each of the timer's eight wheels, rounded up to a power of two:
    /// 4096 unless set, which makes a lap of 41 s at the default tick. A bucket takes 8 bytes, in
    /// pages of 512; a page without pending timeouts takes none.
    ///
    /// A wheel with many timeouts lengthens its lap, so this matters little. A timeout that is due
    /// far beyond a lap takes logarithmic time in the number of distinct due ticks; nothing else
    /// changes. Zero, or more than [`TICKS_PER_WHEEL_MAX`](crate::TICKS_PER_WHEEL_MAX), is an error
    /// when the timer is built.
    pub const fn ticks_per_wheel(mut self, count: usize) -> Self {
        self.ticks_per_wheel = count;
        self
    }

    /// The most timeouts that may be pending at once: unlimited unless set. A timeout beyond the
    /// limit is returned with [`ScheduleError::Full`](crate::ScheduleError::Full). The limit is
    /// never exceeded, and a stop returns no more timeouts than that. No timeout within the limit
    /// is refused, unless other threads schedule and cancel at the same moment.
    ///
    /// A limit of 1024 or more costs next to nothing. A smaller one costs a counter that all
    /// threads share. Zero is an error when the timer is built.
    pub const fn max_pending_timeouts(mut self, count: usize) -> Self {
        self.max_pending_timeouts = Some(count);
        self
    }

    /// The name of the ticker thread: `hashed-wheel` unless set. A null byte in it is an error when
    /// the timer is built.
    pub fn thread_name(mut self, name: impl Into<String>) -> Self {
        self.thread_name = name.into();
        self
    }

    /// The clock of the timer: [`SystemClock`] unless set. Tests pass a
    /// [`ManualClock`](crate::ManualClock); with the feature `tsc` there is `TscClock`, which is
    /// cheaper to read.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Where tasks run: on the ticker thread unless set. With an executor, a slow task delays only
    /// what the executor runs after it. For [`build`](Self::build) only: the handler of a
    /// [`BatchTimer`](crate::BatchTimer) passes its values on itself, and
    /// [`build_batch`](Self::build_batch) returns an error.
    ///
    /// See [`Executor`] for its contract and an example.
    pub fn executor(mut self, executor: impl Executor) -> Self {
        self.executor = Some(Arc::new(executor));
        self
    }

    /// Starts the ticker thread with the first timeout, or with
    /// [`HashedWheelTimer::start`](crate::HashedWheelTimer::start), instead of when the timer is
    /// built: for a timer that may never be needed.
    ///
    /// If the operating system then refuses a thread, scheduling fails with
    /// [`ScheduleError::NotStarted`](crate::ScheduleError::NotStarted).
    pub const fn start_lazily(mut self) -> Self {
        self.starts_lazily = true;
        self
    }

    /// Called when the process has more than 64 timers once this one is built, with their number.
    /// One timer serves a whole program and each has a thread, so more than 64 are usually a
    /// mistake, such as a timer for each connection. (Netty logs the same.)
    ///
    /// The hook runs on the thread that builds the timer, before the timer is returned. A panic in
    /// it is caught, counted and reported like that of a task.
    ///
    /// ```
    /// use hashed_wheel::HashedWheelTimer;
    ///
    /// let timer = HashedWheelTimer::builder()
    ///     .on_many_timers(|count| eprintln!("{count} timers, each with a thread"))
    ///     .build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_many_timers(mut self, hook: impl Fn(usize) + Send + Sync + 'static) -> Self {
        self.many_timers_hook = Some(Arc::new(hook));
        self
    }

    /// Called with the payload when a task, a handler, or one of their destructors panics. Such a
    /// panic is counted and has no other effect; without a hook it shows only in the count, and in
    /// what the process-wide panic hook prints. A panic of the [`Clock`] on the ticker thread is
    /// reported too, and may end the timer.
    ///
    /// The hook runs on the thread that panicked, with no lock held: the ticker thread, one of the
    /// executor's, or the one that stops the timer. On the ticker thread it delays the timeouts
    /// behind it. If the hook panics, that panic is dropped.
    ///
    /// A panic is caught even if its payload panics when it is dropped. No library can catch a
    /// destructor that panics while another panic unwinds, as in a task that panics and owns a
    /// value whose destructor panics: Rust aborts the process then.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use hashed_wheel::{HashedWheelTimer, ManualClock, crossbeam_channel};
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

    pub(crate) const fn has_executor(&self) -> bool {
        self.executor.is_some()
    }

    pub(crate) fn take_executor(&mut self) -> Option<Arc<dyn Executor>> {
        self.executor.take()
    }

    /// Checks all settings, so that nothing later has to.
    pub(crate) fn check(self) -> Result<Config, BuildError> {
        if self.max_pending_timeouts == Some(0) {
            return Err(BuildError::MaxPendingTimeouts);
        }
        if self.thread_name.contains('\0') {
            return Err(BuildError::ThreadName);
        }
        Ok(Config {
            tick_duration: TickDuration::try_from(self.tick_duration)?,
            bucket_count: Wheel::<()>::bucket_count(self.ticks_per_wheel)?,
            max_pending_timeouts: self.max_pending_timeouts,
            thread_name: self.thread_name,
            clock: self.clock,
            starts_lazily: self.starts_lazily,
            panic_hook: self.panic_hook,
            many_timers_hook: self.many_timers_hook,
        })
    }
}

// A panic cannot leave settings half changed: a setter takes the builder and returns it.
impl UnwindSafe for TimerBuilder {}
impl RefUnwindSafe for TimerBuilder {}

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

/// Short enough for a lease of seconds, long enough that 100,000 timeouts of some seconds share
/// wake-ups.
const DEFAULT_TICK_DURATION: Duration = Duration::from_millis(10);

/// A lap of 41 s at the default tick: the common timeouts, of up to half a minute, are within the
/// lap.
const DEFAULT_TICKS_PER_WHEEL: usize = 4096;
