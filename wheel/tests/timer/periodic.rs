//! Periodic tasks: when they run, how often, and how they end.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, unbounded};
use hashed_wheel::{
    Clock, HashedWheelTimer, ManualClock, MissedRuns, Parker, Period, PeriodicTimeout,
    ScheduleError, Task, TimerBuilder,
};
use parking_lot::Mutex;

const TICK: Duration = Duration::from_millis(10);
const SECOND: Duration = Duration::from_secs(1);

fn timer(settings: impl FnOnce(TimerBuilder) -> TimerBuilder) -> (ManualClock, HashedWheelTimer) {
    let clock = ManualClock::new();
    let builder = HashedWheelTimer::builder().tick_duration(TICK).clock(Arc::new(clock.clone()));
    (clock.clone(), settings(builder).build().unwrap())
}

fn counter() -> (Arc<AtomicUsize>, impl FnMut() + Send + 'static) {
    let count = Arc::new(AtomicUsize::new(0));
    let shared = Arc::clone(&count);
    (count, move || {
        shared.fetch_add(1, Ordering::SeqCst);
    })
}

/// A manual clock on which a task can let time pass while it runs: it is ahead of the manual one by
/// the time that tasks have taken so far.
#[derive(Clone, Debug)]
struct TakingClock {
    manual: ManualClock,
    taken: Arc<Mutex<Duration>>,
}

impl Clock for TakingClock {
    fn now(&self) -> Instant {
        self.manual.now() + *self.taken.lock()
    }

    fn park(&self, parker: &Parker, deadline: Option<Instant>, interrupt: &Receiver<()>) {
        let taken = *self.taken.lock();
        let deadline = deadline.map(|deadline| deadline.checked_sub(taken).unwrap());
        self.manual.park(parker, deadline, interrupt);
    }
}

/// The times, in milliseconds, at which a task runs whose first run takes 3.5 seconds.
fn runs_after_a_slow_one(period: Period) -> Vec<u128> {
    let clock = TakingClock { manual: ManualClock::new(), taken: Arc::default() };
    let timer = HashedWheelTimer::builder()
        .tick_duration(TICK)
        .clock(Arc::new(clock.clone()))
        .build()
        .unwrap();
    let start = clock.now();
    let (sender, receiver) = unbounded();
    let task_clock = clock.clone();
    let mut takes = Duration::from_millis(3500);
    timer
        .schedule_periodic(SECOND, period, move || {
            sender.send((task_clock.now() - start).as_millis()).unwrap();
            *task_clock.taken.lock() += std::mem::take(&mut takes);
        })
        .unwrap();
    clock.manual.advance(Duration::from_millis(3600));
    assert_eq!(timer.statistics().longest_task, Duration::from_millis(3500));
    receiver.try_iter().collect()
}

#[test]
fn a_fixed_rate_keeps_to_multiples_of_its_period() {
    let (clock, timer) = timer(|builder| builder);
    let (count, task) = counter();
    // Not a multiple of the tick: the rounding of each run must not add up.
    let period = Duration::from_micros(33_333);
    timer.schedule_periodic(period, Period::fixed_rate(period), task).unwrap();
    clock.advance(SECOND * 10);
    assert_eq!(count.load(Ordering::SeqCst), 300);
}

#[test]
fn missed_runs_are_skipped_made_up_for_or_delay_the_rate() {
    let rate = Period::fixed_rate(SECOND);
    assert_eq!(runs_after_a_slow_one(rate), [1000, 5000, 6000, 7000]);
    assert_eq!(
        runs_after_a_slow_one(rate.missed(MissedRuns::CatchUp)),
        [1000, 4500, 4510, 4520, 5000, 6000, 7000]
    );
    assert_eq!(runs_after_a_slow_one(rate.missed(MissedRuns::Delay)), [1000, 5500, 6500]);
    assert_eq!(runs_after_a_slow_one(Period::fixed_delay(SECOND)), [1000, 5500, 6500]);
}

#[test]
fn lateness_by_rounding_to_ticks_misses_no_run() {
    let work = Duration::from_millis(3);
    for half_millis in 0..20 {
        for missed in [MissedRuns::Skip, MissedRuns::CatchUp, MissedRuns::Delay] {
            let phase = Duration::from_micros(500) * half_millis;
            let clock = TakingClock { manual: ManualClock::new(), taken: Arc::default() };
            let timer = HashedWheelTimer::builder()
                .tick_duration(TICK)
                .clock(Arc::new(clock.clone()))
                .build()
                .unwrap();
            let start = clock.now();
            let task_clock = clock.clone();
            let task = move || *task_clock.taken.lock() += work;
            let period = Period::fixed_rate(TICK).missed(missed);
            let timeout = timer.schedule_periodic(phase, period, task).unwrap();
            clock.manual.advance(SECOND);
            let periods = (clock.now() - start).as_nanos() / TICK.as_nanos();
            assert!(
                u128::from(timeout.runs()) + 1 >= periods,
                "{missed:?}, phase {phase:?}: {} runs in {periods} periods",
                timeout.runs()
            );
        }
    }
}

#[test]
fn a_period_shorter_than_a_tick_runs_once_per_tick() {
    let (clock, timer) = timer(|builder| builder);
    let mut counts = Vec::new();
    for length in [TICK / 10, Duration::ZERO] {
        let rate = Period::fixed_rate(length);
        let (late, again) = (rate.missed(MissedRuns::Delay), rate.missed(MissedRuns::CatchUp));
        for period in [rate, late, again, Period::fixed_delay(length)] {
            let (count, task) = counter();
            timer.schedule_periodic(TICK, period, task).unwrap();
            counts.push(count);
        }
    }
    clock.advance(TICK * 10);
    let counts: Vec<_> = counts.iter().map(|count| count.load(Ordering::SeqCst)).collect();
    assert_eq!(counts, [10; 8]);
}

#[test]
fn out_of_range_delay_or_period_never_ends_until_cancelled() {
    let (clock, timer) = timer(|builder| builder);
    let (count, task) = counter();
    let never =
        timer.schedule_periodic(Duration::MAX, Period::fixed_rate(Duration::MAX), task).unwrap();
    clock.advance(SECOND);
    assert_eq!((count.load(Ordering::SeqCst), never.deadline()), (0, None));
    assert!(!never.is_ended() && never.cancel() && never.is_ended());
    let (count, task) = counter();
    let once = timer.schedule_periodic(TICK, Period::fixed_rate(Duration::MAX), task).unwrap();
    clock.advance(SECOND * 100);
    assert_eq!((count.load(Ordering::SeqCst), once.runs()), (1, 1));
    assert!(!once.is_ended() && once.cancel());
    assert_eq!(timer.pending_timeouts(), 0);
}

#[test]
fn cancel_ends_the_task_once_and_drops_the_closure() {
    let (clock, timer) = timer(|builder| builder);
    let (count, task) = counter();
    let timeout = timer.schedule_periodic(SECOND, Period::fixed_rate(SECOND), task).unwrap();
    clock.advance(SECOND * 3);
    assert_eq!(Arc::strong_count(&count), 2);
    assert!(timeout.cancel());
    assert_eq!(Arc::strong_count(&count), 1);
    assert!(!timeout.cancel() && timeout.is_ended());
    clock.advance(SECOND * 3);
    assert_eq!((count.load(Ordering::SeqCst), timeout.runs()), (3, 3));
    let statistics = timer.statistics();
    assert_eq!((statistics.scheduled, statistics.fired, statistics.cancelled), (1, 3, 1));
}

#[test]
fn a_run_may_cancel_its_own_task() {
    let (clock, timer) = timer(|builder| builder);
    let (sender, receiver) = unbounded::<PeriodicTimeout>();
    let (count, mut task) = counter();
    let timeout = timer
        .schedule_periodic(SECOND, Period::fixed_rate(SECOND), move || {
            task();
            assert!(receiver.recv().unwrap().cancel());
        })
        .unwrap();
    sender.send(timeout.clone()).unwrap();
    clock.advance(SECOND * 5);
    assert_eq!((count.load(Ordering::SeqCst), timer.pending_timeouts()), (1, 0));
    assert!(timeout.is_ended());
    assert_eq!(Arc::strong_count(&count), 1);
}

#[test]
fn a_panic_ends_only_that_run() {
    let (clock, timer) = timer(|builder| builder.on_panic(|_| {}));
    let timeout = timer
        .schedule_periodic(SECOND, Period::fixed_rate(SECOND), || {
            std::panic::resume_unwind(Box::new("quietly"));
        })
        .unwrap();
    clock.advance(SECOND * 3);
    assert_eq!((timeout.runs(), timer.statistics().panicked), (3, 3));
    assert!(!timeout.is_ended());
}

#[test]
fn it_keeps_its_capacity_while_it_runs() {
    let (clock, timer) = timer(|builder| builder.max_pending_timeouts(1));
    let timer = Arc::new(timer);
    let rival = Arc::downgrade(&timer);
    let (sender, receiver) = unbounded();
    let timeout = timer
        .schedule_periodic(SECOND, Period::fixed_rate(SECOND), move || {
            let refused = rival.upgrade().unwrap().schedule(SECOND, || {});
            sender.send(matches!(refused, Err(ScheduleError::Full(_)))).unwrap();
        })
        .unwrap();
    clock.advance(SECOND * 3);
    assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [true; 3]);
    // However the task ends, its capacity is free.
    assert!(timeout.cancel());
    let last = || ControlFlow::Break(());
    timer.schedule_while(SECOND, Period::fixed_rate(SECOND), last).unwrap();
    assert!(matches!(timer.schedule(SECOND, || {}), Err(ScheduleError::Full(_))));
    clock.advance(SECOND);
    timer.schedule(SECOND, || {}).unwrap();
    assert!(matches!(timer.schedule(SECOND, || {}), Err(ScheduleError::Full(_))));
}

#[test]
fn executor_dropping_task_ends_timeout_and_frees_capacity() {
    let clock = ManualClock::new();
    let builder = HashedWheelTimer::builder().clock(Arc::new(clock.clone()));
    let timer = builder.max_pending_timeouts(1).build_with_executor(drop).unwrap();
    let (count, task) = counter();
    let timeout = timer.schedule_periodic(SECOND, Period::fixed_rate(SECOND), task).unwrap();
    clock.advance(SECOND);
    assert!(timeout.is_ended() && !timeout.cancel());
    assert_eq!((count.load(Ordering::SeqCst), Arc::strong_count(&count)), (0, 1));
    timer.schedule(SECOND, || {}).unwrap();
}

#[test]
fn on_an_executor_runs_do_not_overlap() {
    let (queue, tasks) = unbounded::<Task>();
    let clock = ManualClock::new();
    let builder = HashedWheelTimer::builder().clock(Arc::new(clock.clone()));
    let timer = builder.build_with_executor(move |task| queue.send(task).unwrap()).unwrap();
    let timeout = timer.schedule_periodic(SECOND, Period::fixed_rate(SECOND), || {}).unwrap();
    clock.advance(SECOND * 5);
    assert_eq!(tasks.len(), 1);
    tasks.recv().unwrap()();
    assert_eq!(timeout.runs(), 1);
    clock.advance(SECOND);
    assert_eq!(tasks.len(), 1);
    // It does not run if it is cancelled before the executor runs it.
    assert!(timeout.cancel());
    tasks.recv().unwrap()();
    assert_eq!(timeout.runs(), 1);
}

#[test]
fn stop_returns_a_periodic_task_once() {
    let (clock, timer) = timer(|builder| builder);
    let (count, task) = counter();
    let timeout = timer.schedule_periodic(SECOND, Period::fixed_rate(SECOND), task).unwrap();
    clock.advance(SECOND * 2);
    let mut unprocessed = timer.stop().unwrap();
    assert!(timeout.is_ended() && !timeout.cancel());
    assert_eq!(unprocessed.len(), 1);
    (unprocessed.remove(0).value)();
    assert_eq!((count.load(Ordering::SeqCst), Arc::strong_count(&count)), (3, 1));
}
