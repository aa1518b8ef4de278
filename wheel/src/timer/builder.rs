//! The settings of a timer, and the check of all settings.

use std::any::Any;
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use crate::driver::panics::PanicHook;
use crate::error::BuildError;
use crate::time::clock::{Clock, SystemClock};
use crate::time::tick::TickDuration;
use crate::wheel::Wheel;

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
    pub(super) max_pending_timeouts: Option<usize>,
    pub(super) thread_name: String,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) panic_hook: Option<PanicHook>,
}

impl TimerBuilder {
    pub(crate) fn new() -> Self {
        Self {
            tick_duration: DEFAULT_TICK_DURATION,
            ticks_per_wheel: DEFAULT_TICKS_PER_WHEEL,
            max_pending_timeouts: None,
            thread_name: String::from("hashed-wheel"),
            clock: Arc::new(SystemClock),
            panic_hook: None,
        }
    }

    /// Sets the length of a tick: 10 ms unless set. The deadline of a timeout is rounded up to a
    /// tick, and timeouts of the same tick are run together.
    ///
    /// Netty's default is 100 ms, because Netty's ticker wakes at every tick. The ticker of this
    /// crate wakes only when something is due, so a short tick costs nothing while nothing is due.
    ///
    /// With a tick of zero, or of more than 584 years, the build fails with
    /// [`BuildError::TickDuration`].
    pub const fn tick_duration(mut self, duration: Duration) -> Self {
        self.tick_duration = duration;
        self
    }

    /// Sets the number of buckets of each of the timer's eight wheels, rounded up to a power of
    /// two: 4096 unless set, which makes a lap of 41 s at the default tick. A bucket takes 8 bytes,
    /// in pages of 512; a page without pending timeouts takes no memory.
    ///
    /// A wheel with many timeouts lengthens the lap, so the setting matters little. A timeout due
    /// far beyond a lap takes time logarithmic in the number of distinct due ticks; nothing else
    /// changes. With zero, or more than [`TICKS_PER_WHEEL_MAX`](crate::TICKS_PER_WHEEL_MAX), the
    /// build fails with [`BuildError::TicksPerWheel`].
    pub const fn ticks_per_wheel(mut self, count: usize) -> Self {
        self.ticks_per_wheel = count;
        self
    }

    /// Sets the maximum number of pending timeouts: unlimited unless set.
    ///
    /// A timeout beyond the limit is returned with
    /// [`ScheduleError::Full`](crate::ScheduleError::Full). The limit is never exceeded, and a stop
    /// returns no more timeouts than the limit. No timeout within the limit is refused.
    ///
    /// A limit costs a counter that all threads share. With zero, the build fails with
    /// [`BuildError::MaxPendingTimeouts`].
    pub const fn max_pending_timeouts(mut self, count: usize) -> Self {
        self.max_pending_timeouts = Some(count);
        self
    }

    /// Sets the name of the ticker thread: `hashed-wheel` unless set. With a null byte in the name,
    /// the build fails with [`BuildError::ThreadName`].
    pub fn thread_name(mut self, name: impl Into<String>) -> Self {
        self.thread_name = name.into();
        self
    }

    /// Sets the clock of the timer: [`SystemClock`] unless set. Tests pass a
    /// [`ManualClock`](crate::ManualClock); with the feature `tsc` there is `TscClock`, which is
    /// cheaper to read.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Sets a hook, called with the payload of each panic in a task, in a handler, or in their
    /// destructors.
    ///
    /// A caught panic is counted and has no further effect; without a hook the panic shows only in
    /// the count, and in the output of the process-wide panic hook. A panic of the [`Clock`] on the
    /// ticker thread is reported too, and may end the timer.
    ///
    /// The hook runs on the thread that panicked, with no lock held: the ticker thread, a thread of
    /// the executor, or the thread that stops the timer. On the ticker thread the hook delays later
    /// timeouts. If the hook panics, the hook's panic is dropped.
    ///
    /// A panic is caught even if the payload panics when dropped. No library can catch a destructor
    /// that panics while another panic unwinds, as in a task that panics and owns a value whose
    /// destructor panics: Rust aborts the process then.
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
    /// assert_eq!(timer.statistics().panicked, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_panic(mut self, hook: impl Fn(&(dyn Any + Send)) + Send + Sync + 'static) -> Self {
        self.panic_hook = Some(Arc::new(hook));
        self
    }

    /// Checks all settings. Returns the tick and the number of buckets, a power of two.
    pub(super) fn check(&self) -> Result<(TickDuration, usize), BuildError> {
        if self.max_pending_timeouts == Some(0) {
            return Err(BuildError::MaxPendingTimeouts);
        }
        if self.thread_name.contains('\0') {
            return Err(BuildError::ThreadName);
        }
        let bucket_count = Wheel::<()>::bucket_count(self.ticks_per_wheel)?;
        Ok((TickDuration::try_from(self.tick_duration)?, bucket_count))
    }
}

// A panic cannot leave settings half changed: a setter takes and returns the builder.
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
            .finish_non_exhaustive()
    }
}

/// Short enough for a lease of seconds, long enough for 100,000 timeouts of some seconds to share
/// wake-ups.
const DEFAULT_TICK_DURATION: Duration = Duration::from_millis(10);

/// A lap of 41 s at the default tick: common timeouts, of up to half a minute, are within the lap.
const DEFAULT_TICKS_PER_WHEEL: usize = 4096;
