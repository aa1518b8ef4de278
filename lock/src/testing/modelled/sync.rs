//! Locks, threads, sleep and time as shuttle runs them: one thread at a time, in an order that a
//! seed decides. Only tests with `--cfg wheellock_shuttle` have this.
//!
//! Time stands still until a test [moves](move_time) it. While it stands, a wait with a deadline
//! is one without: a thread that is not woken never goes on, and shuttle reports the deadlock. In a
//! simulation (`simulated`) time moves from one event to the next.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LockResult, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use hashed_wheel::Clock;
use shuttle::rand::Rng;
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};

pub(crate) use shuttle::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub(crate) use shuttle::thread;

struct Time {
    origin: Instant,
    /// In nanoseconds.
    passed: AtomicU64,
    moves: AtomicBool,
    /// What threads sleep on that are woken when time moves. Never locked while shuttle switches.
    sleeps: std::sync::Mutex<Vec<Sleep>>,
    sleep_numbers: AtomicU64,
}

/// A sleep that ends when time moves.
#[derive(Clone)]
struct Sleep {
    number: u64,
    on: Arc<shuttle::sync::Condvar>,
    /// `None` without a deadline, and once it was woken at its deadline.
    until: Option<Instant>,
    /// Whether that has passed.
    is_due: bool,
}

shuttle::lazy_static! {
    /// The time of one run.
    static ref TIME: Time = Time {
        origin: hashed_wheel::SystemClock.now(),
        passed: AtomicU64::new(0),
        moves: AtomicBool::new(false),
        sleeps: std::sync::Mutex::default(),
        sleep_numbers: AtomicU64::new(0),
    };
}

/// From now on deadlines count: the test goes on to move time until all threads have ended.
pub(crate) fn let_time_move() {
    TIME.moves.store(true, Ordering::SeqCst);
}

/// Moves time, and lets every thread with a deadline or a cancellation look at it.
pub(crate) fn move_time(by: Duration) {
    let nanos = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
    TIME.passed.fetch_add(nanos, Ordering::SeqCst);
    let sleeps = TIME.sleeps.lock().unwrap_or_else(PoisonError::into_inner).clone();
    for sleep in &sleeps {
        sleep.on.notify_all();
    }
}

/// The earliest deadline of a thread that sleeps.
pub(crate) fn next_deadline() -> Option<Instant> {
    let sleeps = TIME.sleeps.lock().unwrap_or_else(PoisonError::into_inner);
    sleeps.iter().filter_map(|sleep| sleep.until).min()
}

/// Moves time to `now`, unless it is later already, and wakes the threads whose deadline that is.
pub(crate) fn move_time_to(now: Instant) {
    let passed = now.saturating_duration_since(TIME.origin).as_nanos();
    TIME.passed.fetch_max(u64::try_from(passed).unwrap_or(u64::MAX), Ordering::SeqCst);
    let mut due = Vec::new();
    for sleep in &mut *TIME.sleeps.lock().unwrap_or_else(PoisonError::into_inner) {
        if sleep.until.is_some_and(|until| until <= now) {
            sleep.until = None;
            sleep.is_due = true;
            due.push(Arc::clone(&sleep.on));
        }
    }
    for sleep in due {
        sleep.notify_all();
    }
}

/// Wakes the threads once more whose deadline has passed: one that was about to sleep when it
/// passed was not woken. Returns whether there may be such a thread.
pub(crate) fn wake_overdue() -> bool {
    let sleeps = TIME.sleeps.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let mut overdue = sleeps.iter().filter(|sleep| sleep.is_due).peekable();
    let is_any = overdue.peek().is_some();
    overdue.for_each(|sleep| sleep.on.notify_all());
    is_any
}

/// Sleeps until time has moved so far.
pub(crate) fn sleep(duration: Duration) {
    let until = SystemClock.now() + duration;
    Parker::new().park(false, Some(until), || SystemClock.now() >= until);
}

/// A random number below `limit`, of the run.
pub(crate) fn below(limit: usize) -> usize {
    shuttle::rand::thread_rng().gen_range(0..limit)
}

/// The time of the run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        TIME.origin + Duration::from_nanos(TIME.passed.load(Ordering::SeqCst))
    }

    /// The threads of a run sleep on another [`Parker`].
    fn park(&self, _: &hashed_wheel::Parker, _: Option<Instant>, _: &Receiver<()>) {}
}

/// shuttle's, with a timeout.
#[derive(Debug, Default)]
pub(crate) struct Condvar(Arc<shuttle::sync::Condvar>);

impl Condvar {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }

    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        self.0.wait(guard)
    }

    /// Ends when time moves, too.
    pub(crate) fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, ())> {
        let until = SystemClock.now().checked_add(timeout);
        let _woken = TIME.moves.load(Ordering::SeqCst).then(|| TimedSleep::begin(self, until));
        self.0
            .wait(guard)
            .map(|guard| (guard, ()))
            .map_err(|poisoned| PoisonError::new((poisoned.into_inner(), ())))
    }
}

/// The number of a [`Sleep`], which ends when this is dropped.
struct TimedSleep(u64);

impl TimedSleep {
    fn begin(on: &Condvar, until: Option<Instant>) -> Self {
        let number = TIME.sleep_numbers.fetch_add(1, Ordering::SeqCst);
        let sleep = Sleep { number, on: Arc::clone(&on.0), until, is_due: false };
        TIME.sleeps.lock().unwrap_or_else(PoisonError::into_inner).push(sleep);
        Self(number)
    }
}

impl Drop for TimedSleep {
    fn drop(&mut self) {
        let mut sleeps = TIME.sleeps.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = sleeps.iter().position(|sleep| sleep.number == self.0) {
            sleeps.swap_remove(own);
        }
    }
}

/// As [`hashed_wheel::Parker`].
#[derive(Clone, Default)]
pub(crate) struct Parker(Arc<Permit>);

#[derive(Default)]
struct Permit {
    is_given: Mutex<bool>,
    given: Condvar,
}

impl Parker {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn unpark(&self) {
        *self.0.is_given.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.given.notify_all();
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Sleeps until it is unparked, or time has moved and it `is_over`.
    pub(crate) fn park(
        &self,
        is_cancellable: bool,
        deadline: Option<Instant>,
        is_over: impl Fn() -> bool,
    ) {
        let deadline = deadline.filter(|_| TIME.moves.load(Ordering::SeqCst));
        let may_end = is_cancellable || deadline.is_some();
        let mut is_given = self.0.is_given.lock().unwrap_or_else(PoisonError::into_inner);
        while !std::mem::take(&mut *is_given) && !is_over() {
            let _woken = may_end.then(|| TimedSleep::begin(&self.0.given, deadline));
            is_given = self.0.given.wait(is_given).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl fmt::Debug for Parker {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Parker")
    }
}

/// Runs `test` in many interleavings: half of them random, half by PCT, which finds what needs few
/// changes of threads at certain points. `SCHEDULES` says how many; `SEED` begins another run.
/// A failure prints the schedule, which `SCHEDULE` repeats.
/// Returns how many there were.
#[expect(clippy::print_stdout, reason = "a failure shows what repeats it")]
pub(crate) fn explore(runs: usize, test: impl Fn() + Send + Sync + 'static) -> usize {
    let test = Arc::new(test);
    if let Ok(schedule) = std::env::var("SCHEDULE") {
        shuttle::replay(move || test(), &schedule);
        return 1;
    }
    let runs = number("SCHEDULES").unwrap_or(runs);
    let seed = number("SEED").unwrap_or(1);
    println!("{runs} runs, SEED={seed}");
    let run = |scheduler: Box<dyn Scheduler + Send>| {
        let mut config = shuttle::Config::new();
        config.silence_warnings = true;
        config.stack_size = 256 * 1024;
        config.max_steps = shuttle::MaxSteps::FailAfter(200_000);
        let test = Arc::clone(&test);
        shuttle::Runner::new(scheduler, config).run(move || test());
    };
    run(Box::new(RandomScheduler::new_from_seed(seed, runs / 2)));
    run(Box::new(PctScheduler::new_from_seed(seed, 3, runs - runs / 2)));
    runs
}

pub(crate) fn number<N: FromStr>(variable: &str) -> Option<N> {
    std::env::var(variable).ok().and_then(|value| value.parse().ok())
}
