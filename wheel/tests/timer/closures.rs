//! The timer that runs closures: what it promises to its users, on a manual clock.

use std::cell::Cell;
use std::error::Error;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, never, unbounded};
use hashed_wheel::{
    BuildError, Clock, HashedWheelTimer, ManualClock, Parker, ScheduleError, StopError,
    SystemClock, Task, TimerBuilder,
};
use parking_lot::Mutex;

const TICK: Duration = Duration::from_millis(10);
const SECOND: Duration = Duration::from_secs(1);

/// A timer, the clock that moves it, and a channel for its tasks to write to.
struct TestTimer {
    clock: ManualClock,
    timer: HashedWheelTimer,
    sender: Sender<u32>,
    receiver: Receiver<u32>,
}

impl TestTimer {
    fn new() -> Self {
        Self::with(|builder| builder)
    }

    fn with(settings: impl FnOnce(TimerBuilder) -> TimerBuilder) -> Self {
        let clock = ManualClock::new();
        let builder =
            HashedWheelTimer::builder().tick_duration(TICK).clock(Arc::new(clock.clone()));
        let timer = settings(builder).build().unwrap();
        let (sender, receiver) = unbounded();
        Self { clock, timer, sender, receiver }
    }

    /// A task that sends a number.
    fn send(&self, number: u32) -> impl FnOnce() + Send + 'static {
        let sender = self.sender.clone();
        move || sender.send(number).unwrap()
    }

    fn sent(&self) -> Vec<u32> {
        self.receiver.try_iter().collect()
    }
}

/// Sets a flag when it is dropped.
struct Flag(Arc<AtomicBool>);

impl Drop for Flag {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn flag() -> (Flag, Arc<AtomicBool>) {
    let dropped = Arc::new(AtomicBool::new(false));
    (Flag(Arc::clone(&dropped)), dropped)
}

#[test]
fn a_task_runs_not_before_its_delay_and_at_most_a_tick_after() {
    let setup = TestTimer::new();
    // Between two ticks, so that it is rounded.
    setup.clock.advance(Duration::from_millis(3));
    let delay = Duration::from_millis(25);
    let timeout = setup.timer.schedule(delay, setup.send(1)).unwrap();
    let deadline = setup.timer.clock().now() + delay;
    assert!(timeout.deadline().unwrap() >= deadline);
    assert!(timeout.deadline().unwrap() < deadline + TICK);
    setup.clock.advance(delay.checked_sub(Duration::from_nanos(1)).unwrap());
    assert_eq!(setup.sent(), []);
    assert!(!timeout.is_expired());
    assert_eq!(setup.timer.pending_timeouts(), 1);
    setup.clock.advance(TICK);
    assert_eq!(setup.sent(), [1]);
    assert!(timeout.is_expired());
    assert!(!timeout.is_cancelled());
    assert_eq!(timeout.deadline(), None);
    assert_eq!(setup.timer.pending_timeouts(), 0);
}

#[test]
fn tasks_of_same_thread_run_by_tick_then_by_schedule_order() {
    let setup = TestTimer::new();
    for (number, ticks) in [(0, 3), (1, 1), (2, 3), (3, 2), (4, 1), (5, 100_000), (6, 5000)] {
        setup.timer.schedule(TICK * ticks, setup.send(number)).unwrap();
    }
    // One jump: all of them are due in one batch.
    setup.clock.jump(TICK * 100_000);
    assert_eq!(setup.sent(), [1, 4, 3, 0, 2, 6, 5]);
}

#[test]
fn past_deadline_and_zero_delay_run_by_next_tick() {
    let setup = TestTimer::new();
    setup.clock.advance(SECOND);
    let now = setup.timer.clock().now();
    setup.timer.schedule(Duration::ZERO, setup.send(1)).unwrap();
    setup.timer.schedule_at(now.checked_sub(SECOND).unwrap(), setup.send(2)).unwrap();
    setup.timer.schedule_at(now.checked_sub(SECOND * 100).unwrap_or(now), setup.send(3)).unwrap();
    setup.clock.advance(TICK);
    let mut sent = setup.sent();
    sent.sort_unstable();
    assert_eq!(sent, [1, 2, 3]);
}

#[test]
fn a_delay_that_never_ends_can_be_cancelled() {
    let setup = TestTimer::new();
    let timeout = setup.timer.schedule(Duration::MAX, setup.send(1)).unwrap();
    assert_eq!(timeout.deadline(), None);
    assert!(!timeout.is_expired());
    setup.clock.advance(SECOND * 1_000_000);
    assert_eq!(setup.timer.pending_timeouts(), 1);
    assert!(timeout.cancel());
    assert_eq!(setup.timer.pending_timeouts(), 0);
}

#[test]
fn cancel_drops_the_task_at_once_and_returns_true_only_once() {
    let setup = TestTimer::new();
    let (flag, dropped) = flag();
    let timeout = setup.timer.schedule(SECOND, move || drop(flag)).unwrap();
    assert!(!dropped.load(Ordering::SeqCst));
    assert!(timeout.cancel());
    assert!(dropped.load(Ordering::SeqCst));
    assert!(timeout.is_cancelled());
    assert!(!timeout.is_expired());
    assert!(!timeout.cancel());
    assert_eq!(setup.timer.pending_timeouts(), 0);
}

#[test]
fn cancel_after_expiry_returns_false() {
    let setup = TestTimer::new();
    let timeout = setup.timer.schedule(SECOND, setup.send(1)).unwrap();
    setup.clock.advance(SECOND + TICK);
    assert!(!timeout.cancel());
    assert!(timeout.is_expired());
    assert!(!timeout.is_cancelled());
    assert!(!timeout.reschedule(setup.timer.clock().now() + SECOND));
    assert_eq!(setup.sent(), [1]);
}

#[test]
fn either_cancel_or_expiry_gets_the_task() {
    const TASKS: usize = 64;
    let setup = TestTimer::new();
    for _ in 0..50 {
        let ran = Arc::new(AtomicUsize::new(0));
        let timeouts: Vec<_> = (0..TASKS)
            .map(|_| {
                let ran = Arc::clone(&ran);
                let task = move || {
                    ran.fetch_add(1, Ordering::SeqCst);
                };
                setup.timer.schedule(TICK, task).unwrap()
            })
            .collect();
        let start = Barrier::new(2);
        let won = thread::scope(|scope| {
            let canceller = scope.spawn(|| {
                start.wait();
                timeouts.iter().filter(|timeout| timeout.cancel()).count()
            });
            start.wait();
            setup.clock.advance(TICK * 2);
            canceller.join().unwrap()
        });
        setup.clock.wait_until_idle();
        assert_eq!(won + ran.load(Ordering::SeqCst), TASKS);
        assert_eq!(timeouts.iter().filter(|timeout| timeout.is_cancelled()).count(), won);
        assert_eq!(timeouts.iter().filter(|timeout| timeout.is_expired()).count(), TASKS - won);
    }
}

#[test]
fn rescheduling_moves_a_task_both_ways() {
    let setup = TestTimer::new();
    let start = setup.timer.clock().now();
    let later = setup.timer.schedule(SECOND, setup.send(1)).unwrap();
    let sooner = setup.timer.schedule(SECOND * 100, setup.send(2)).unwrap();
    assert!(later.reschedule(start + SECOND * 5));
    assert!(sooner.reschedule(start + SECOND * 2));
    assert_eq!(later.deadline(), Some(start + SECOND * 5));
    setup.clock.advance(SECOND);
    assert_eq!(setup.sent(), []);
    setup.clock.advance(SECOND);
    assert_eq!(setup.sent(), [2]);
    setup.clock.advance(SECOND * 3);
    assert_eq!(setup.sent(), [1]);
    assert!(!later.is_cancelled());
}

#[test]
fn a_panic_stops_neither_the_rest_of_its_batch_nor_the_timer() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let hook_seen = Arc::clone(&seen);
    let setup = TestTimer::with(|builder| {
        builder.on_panic(move |payload| {
            let message = payload.downcast_ref::<&str>().copied().unwrap_or("not a text");
            hook_seen.lock().push(message);
        })
    });
    setup.timer.schedule(TICK, setup.send(1)).unwrap();
    // `resume_unwind` prints no message.
    setup.timer.schedule(TICK, || panic::resume_unwind(Box::new("on purpose"))).unwrap();
    setup.timer.schedule(TICK, setup.send(2)).unwrap();
    setup.timer.schedule(TICK * 2, setup.send(3)).unwrap();
    setup.clock.advance(TICK);
    assert_eq!(setup.sent(), [1, 2]);
    assert_eq!(setup.timer.statistics().panicked, 1);
    assert_eq!(*seen.lock(), ["on purpose"]);
    setup.clock.advance(TICK);
    assert_eq!(setup.sent(), [3]);
}

#[test]
fn panics_of_the_panic_hook_and_of_a_payload_are_caught() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic::resume_unwind(Box::new("in the destructor of the payload"));
        }
    }
    let setup =
        TestTimer::with(|builder| builder.on_panic(|_| panic::resume_unwind(Box::new("hook"))));
    setup.timer.schedule(TICK, || panic::resume_unwind(Box::new("task"))).unwrap();
    setup.timer.schedule(TICK * 2, setup.send(1)).unwrap();
    setup.clock.advance(TICK * 2);
    assert_eq!(setup.sent(), [1]);

    let setup = TestTimer::new();
    setup.timer.schedule(TICK, || panic::resume_unwind(Box::new(Bomb))).unwrap();
    setup.timer.schedule(TICK * 2, setup.send(2)).unwrap();
    setup.clock.advance(TICK * 2);
    assert_eq!(setup.sent(), [2]);
    assert_eq!(setup.timer.statistics().panicked, 1);

    // Both at once, with the hook's own payload: none is dropped while another panic unwinds.
    let setup =
        TestTimer::with(|builder| builder.on_panic(|_| panic::resume_unwind(Box::new(Bomb))));
    setup.timer.schedule(TICK, || panic::resume_unwind(Box::new(Bomb))).unwrap();
    setup.timer.schedule(TICK * 2, setup.send(3)).unwrap();
    setup.clock.advance(TICK * 2);
    assert_eq!(setup.sent(), [3]);
    assert_eq!(setup.timer.statistics().panicked, 1);
}

#[test]
fn manual_clock_overflow_panics_and_leaves_time_unchanged() {
    let setup = TestTimer::new();
    setup.timer.schedule(SECOND, setup.send(1)).unwrap();
    let now = setup.clock.now();
    for movement in [ManualClock::advance, ManualClock::jump] {
        let beyond = AssertUnwindSafe(|| movement(&setup.clock, Duration::MAX));
        assert!(panic::catch_unwind(beyond).is_err());
        assert_eq!((setup.clock.now(), setup.sent()), (now, vec![]));
    }
    setup.clock.advance(SECOND);
    assert_eq!(setup.sent(), [1]);
}

#[test]
fn a_task_may_schedule_and_cancel_on_its_own_timer() {
    let clock = ManualClock::new();
    let timer = HashedWheelTimer::builder().clock(Arc::new(clock.clone())).build().unwrap();
    let timer = Arc::new(timer);
    let (sender, receiver) = unbounded();
    let victim = timer.schedule(SECOND * 9, || unreachable!("it is cancelled")).unwrap();
    let inner = Arc::clone(&timer);
    timer
        .schedule(SECOND, move || {
            assert!(victim.cancel());
            let sent = sender.clone();
            inner.schedule(SECOND, move || sent.send("second").unwrap()).unwrap();
            sender.send("first").unwrap();
        })
        .unwrap();
    clock.advance(SECOND);
    assert_eq!(receiver.try_iter().collect::<Vec<_>>(), ["first"]);
    clock.advance(SECOND);
    assert_eq!(receiver.try_iter().collect::<Vec<_>>(), ["second"]);
    assert_eq!(timer.pending_timeouts(), 0);
    assert_eq!(timer.statistics().panicked, 0);
}

#[test]
fn zero_delay_self_rescheduling_task_does_not_block_clock() {
    fn again(timer: &Arc<HashedWheelTimer>, runs: &Arc<AtomicUsize>) {
        let (next, count) = (Arc::clone(timer), Arc::clone(runs));
        timer
            .schedule(Duration::ZERO, move || {
                count.fetch_add(1, Ordering::SeqCst);
                again(&next, &count);
            })
            .unwrap();
    }
    let clock = ManualClock::new();
    let timer = HashedWheelTimer::builder().tick_duration(TICK).clock(Arc::new(clock.clone()));
    let timer = Arc::new(timer.build().unwrap());
    let runs = Arc::new(AtomicUsize::new(0));
    again(&timer, &runs);
    clock.advance(TICK * 100);
    let runs = runs.load(Ordering::SeqCst);
    assert!((100..=101).contains(&runs), "once a tick, not {runs} times");
    // The task holds the timer and the timer the task: break the cycle.
    timer.stop().unwrap();
}

#[test]
fn a_task_may_drop_the_timer_that_runs_it() {
    let clock = ManualClock::new();
    let timer = HashedWheelTimer::builder().clock(Arc::new(clock.clone())).build().unwrap();
    let cell = Arc::new(Mutex::new(None));
    let (sender, receiver) = unbounded();
    let (flag, dropped) = flag();
    let of_task = Arc::clone(&cell);
    timer
        .schedule(SECOND, move || {
            let timer: Option<HashedWheelTimer> = of_task.lock().take();
            drop(timer);
            sender.send("dropped").unwrap();
        })
        .unwrap();
    let pending = timer.schedule(SECOND * 2, move || drop(flag)).unwrap();
    *cell.lock() = Some(timer);
    clock.advance(SECOND * 3);
    assert_eq!(receiver.recv_timeout(SECOND * 10), Ok("dropped"));
    assert!(dropped.load(Ordering::SeqCst), "what was pending was dropped with the timer");
    assert!(pending.is_cancelled());
}

#[test]
fn stop_returns_exactly_the_pending_tasks_in_order() {
    let setup = TestTimer::new();
    let start = setup.timer.clock().now();
    for (number, seconds) in [(1, 1), (2, 9), (3, 3), (4, 5)] {
        setup.timer.schedule(SECOND * seconds, setup.send(number)).unwrap();
    }
    let cancelled = setup.timer.schedule(SECOND * 4, setup.send(5)).unwrap();
    let never = setup.timer.schedule(Duration::MAX, setup.send(6)).unwrap();
    let expired = setup.timer.schedule(SECOND, setup.send(7)).unwrap();
    assert!(cancelled.cancel());
    setup.clock.advance(SECOND * 2);
    assert_eq!(setup.sent(), [1, 7]);

    let unprocessed = setup.timer.stop().unwrap();
    let deadlines: Vec<_> = unprocessed.iter().map(|unprocessed| unprocessed.deadline).collect();
    let expected = [3, 5, 9].map(|seconds| Some(start + SECOND * seconds));
    assert_eq!(deadlines[..3], expected);
    assert_eq!(deadlines[3], None);
    for unprocessed in unprocessed {
        (unprocessed.value)();
    }
    assert_eq!(setup.sent(), [3, 4, 2, 6]);
    assert!(never.is_cancelled() && !never.is_expired());
    assert!(cancelled.is_cancelled() && !cancelled.is_expired());
    assert!(expired.is_expired() && !expired.is_cancelled());
    assert_eq!(setup.timer.pending_timeouts(), 0);
}

#[test]
fn stop_is_idempotent_and_the_clock_goes_on_without_the_timer() {
    let setup = TestTimer::new();
    setup.timer.schedule(SECOND, setup.send(1)).unwrap();
    assert_eq!(setup.timer.stop().unwrap().len(), 1);
    assert_eq!(setup.timer.stop().unwrap().len(), 0);
    setup.clock.advance(SECOND * 2);
    assert_eq!(setup.sent(), []);
}

#[test]
fn stop_in_a_task_is_an_error_and_stops_nothing() {
    let clock = ManualClock::new();
    let timer = HashedWheelTimer::builder().clock(Arc::new(clock.clone())).build().unwrap();
    let timer = Arc::new(timer);
    let (sender, receiver) = unbounded();
    for seconds in 1..=2 {
        let (inner, sender) = (Arc::downgrade(&timer), sender.clone());
        let task = move || {
            sender.send(inner.upgrade().unwrap().stop().map(|_| ())).unwrap();
        };
        timer.schedule(SECOND * seconds, task).unwrap();
    }
    clock.advance(SECOND * 3);
    let refused = Err(StopError::OnTickerThread);
    assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [refused, refused]);
    assert_eq!(timer.stop().unwrap().len(), 0);
}

#[test]
fn scheduling_after_stop_is_a_permanent_error_with_the_task() {
    let setup = TestTimer::new();
    setup.timer.stop().unwrap();
    for _ in 0..2 {
        let error = setup.timer.schedule(SECOND, setup.send(1)).unwrap_err();
        assert!(matches!(error, ScheduleError::Stopped(_)));
        assert!(!error.is_transient());
        let task: Task = error.into_inner();
        task();
        assert_eq!(setup.sent(), [1]);
    }
}

#[test]
fn stop_waits_for_the_task_that_is_running() {
    let setup = TestTimer::new();
    let (entered, wait_entered) = unbounded();
    let (release, released) = unbounded::<()>();
    let finished = Arc::new(AtomicBool::new(false));
    let mark = Arc::clone(&finished);
    setup
        .timer
        .schedule(Duration::ZERO, move || {
            entered.send(()).unwrap();
            released.recv().unwrap();
            mark.store(true, Ordering::SeqCst);
        })
        .unwrap();
    thread::scope(|scope| {
        scope.spawn(|| setup.clock.advance(TICK));
        wait_entered.recv().unwrap();
        let stopper = scope.spawn(|| {
            let unprocessed = setup.timer.stop().unwrap();
            assert!(finished.load(Ordering::SeqCst));
            unprocessed.len()
        });
        release.send(()).unwrap();
        assert_eq!(stopper.join().unwrap(), 0);
    });
}

#[test]
fn a_full_timer_returns_the_task_until_capacity_is_free() {
    let setup = TestTimer::with(|builder| builder.max_pending_timeouts(2));
    let first = setup.timer.schedule(SECOND, setup.send(1)).unwrap();
    setup.timer.schedule(SECOND * 2, setup.send(2)).unwrap();
    let error = setup.timer.schedule(SECOND, setup.send(3)).unwrap_err();
    assert!(matches!(error, ScheduleError::Full(_)));
    assert!(error.is_transient());
    error.into_inner()();
    assert_eq!(setup.sent(), [3]);

    assert!(first.cancel());
    setup.timer.schedule(SECOND, setup.send(4)).unwrap();
    assert!(!first.cancel(), "and a second cancel frees no capacity");
    assert!(setup.timer.schedule(SECOND, setup.send(5)).is_err());

    setup.clock.advance(SECOND * 2);
    assert_eq!(setup.sent(), [4, 2]);
    for number in 0..2 {
        setup.timer.schedule(SECOND, setup.send(number)).unwrap();
    }
    assert!(setup.timer.schedule(SECOND, setup.send(6)).is_err());
}

#[test]
fn many_threads_never_exceed_the_limit() {
    // Two limits that are nearly reached: a small one, and one with allowances.
    for limit in [10, 1500] {
        never_exceeds(limit, 3);
    }
}

fn never_exceeds(limit: usize, free: usize) {
    let setup = TestTimer::with(|builder| builder.max_pending_timeouts(limit));
    let scheduled = AtomicUsize::new(0);
    for _ in free..limit {
        setup.timer.schedule(SECOND, || {}).unwrap();
    }
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..5000 {
                    let Ok(timeout) = setup.timer.schedule(SECOND, || {}) else {
                        continue;
                    };
                    assert!(scheduled.fetch_add(1, Ordering::SeqCst) < free);
                    scheduled.fetch_sub(1, Ordering::SeqCst);
                    assert!(timeout.cancel());
                }
            });
        }
    });
    assert_eq!(setup.timer.pending_timeouts(), limit - free);
    for _ in 0..free {
        setup.timer.schedule(SECOND, || {}).unwrap();
    }
    assert!(setup.timer.schedule(SECOND, || {}).is_err());
}

#[test]
fn stop_returns_at_most_limit_tasks_while_threads_schedule() {
    for limit in [100, 3000] {
        for _ in 0..10 {
            stop_while_eight_threads_schedule(limit);
        }
    }
}

fn stop_while_eight_threads_schedule(limit: usize) {
    let setup = TestTimer::with(|builder| builder.max_pending_timeouts(limit));
    let taken_in = AtomicUsize::new(0);
    // One thread for each shard.
    let barrier = Barrier::new(9);
    let given_back = thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                barrier.wait();
                loop {
                    match setup.timer.schedule(SECOND, || {}) {
                        Ok(_) => {
                            taken_in.fetch_add(1, Ordering::SeqCst);
                        }
                        Err(ScheduleError::Stopped(_)) => break,
                        Err(_) => thread::yield_now(),
                    }
                }
            });
        }
        barrier.wait();
        while setup.timer.pending_timeouts() < limit {
            thread::yield_now();
        }
        setup.timer.stop().unwrap().len()
    });
    assert_eq!(given_back, taken_in.into_inner());
    assert!(given_back <= limit, "{given_back} with a limit of {limit}");
}

#[test]
fn a_schedule_error_can_be_shared_by_threads_and_keeps_the_task() {
    fn passed_on(timer: &HashedWheelTimer) -> Result<(), Box<dyn Error + Send + Sync>> {
        // The task owns a value that is `Send` and not `Sync`.
        let own = Cell::new(1);
        timer.schedule(SECOND, move || own.set(2))?;
        Ok(())
    }
    fn is_for_all_threads<E: Error + Send + Sync + 'static>() {}
    is_for_all_threads::<BuildError>();
    is_for_all_threads::<StopError>();
    is_for_all_threads::<ScheduleError<()>>();
    is_for_all_threads::<ScheduleError<Task>>();

    let setup = TestTimer::new();
    setup.timer.stop().unwrap();
    let error = passed_on(&setup.timer).unwrap_err();
    let error = error.downcast::<ScheduleError<Task>>().unwrap();
    let task = error.into_inner();
    task();
    let own = Cell::new(3);
    let refused = setup.timer.schedule(SECOND, move || assert_eq!(own.replace(4), 3)).unwrap_err();
    thread::scope(|scope| {
        scope.spawn(refused.into_inner());
    });
}

#[test]
fn dropping_the_timer_drops_and_cancels_pending_tasks() {
    let setup = TestTimer::new();
    let (flag, dropped) = flag();
    let timeout = setup.timer.schedule(SECOND, move || drop(flag)).unwrap();
    drop(setup.timer);
    assert!(dropped.load(Ordering::SeqCst));
    assert!(timeout.is_cancelled());
    assert!(!timeout.cancel());
    assert_eq!(timeout.deadline(), None);
    setup.clock.advance(SECOND * 2);
}

#[test]
fn settings_out_of_range_are_errors() {
    let builder = HashedWheelTimer::builder;
    for tick in [Duration::ZERO, Duration::MAX] {
        let refused = builder().tick_duration(tick).build();
        assert!(matches!(refused, Err(BuildError::TickDuration(duration)) if duration == tick));
    }
    for count in [0, 1 << (usize::BITS - 1)] {
        let refused = builder().ticks_per_wheel(count).build();
        assert!(matches!(refused, Err(BuildError::TicksPerWheel(wrong)) if wrong == count));
    }
    let refused = builder().max_pending_timeouts(0).build();
    assert!(matches!(refused, Err(BuildError::MaxPendingTimeouts)));
    let refused = builder().thread_name("null\0byte").build();
    assert!(matches!(refused, Err(BuildError::ThreadName)));
}

#[test]
fn the_ticker_thread_has_the_configured_name() {
    let setup = TestTimer::with(|builder| builder.thread_name("timeouts of the test"));
    let (sender, receiver) = unbounded();
    let task = move || {
        sender.send(thread::current().name().map(String::from)).unwrap();
    };
    setup.timer.schedule(TICK, task).unwrap();
    setup.clock.advance(TICK);
    assert_eq!(receiver.try_recv().unwrap().as_deref(), Some("timeouts of the test"));
}

#[test]
fn no_task_scheduled_by_many_threads_is_lost() {
    const THREADS: u32 = 4;
    const TASKS: u32 = 2000;
    let setup = TestTimer::new();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let schedulers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let setup = &setup;
                scope.spawn(move || {
                    for number in 0..TASKS {
                        let delay = Duration::from_micros(u64::from(number * 37 % 50_000));
                        setup.timer.schedule(delay, setup.send(thread * TASKS + number)).unwrap();
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                setup.clock.advance(Duration::from_millis(1));
            }
        });
        for scheduler in schedulers {
            scheduler.join().unwrap();
        }
        done.store(true, Ordering::SeqCst);
    });
    setup.clock.advance(SECOND);
    let mut sent = setup.sent();
    sent.sort_unstable();
    assert_eq!(sent, (0..THREADS * TASKS).collect::<Vec<_>>());
}

#[test]
fn on_the_real_clock_nothing_is_early_and_no_wake_up_is_lost() {
    let timer = HashedWheelTimer::builder()
        .tick_duration(Duration::from_micros(100))
        .clock(Arc::new(SystemClock))
        .build()
        .unwrap();
    let (sender, receiver) = unbounded();
    // One at a time: the ticker sleeps without a deadline before each, so a lost wake-up fails the
    // receive.
    for round in 0..500_u64 {
        let deadline = timer.clock().now() + Duration::from_micros(round % 7 * 60);
        let (sender, clock) = (sender.clone(), Arc::clone(timer.clock()));
        timer
            .schedule_at(deadline, move || {
                sender.send((deadline, clock.now())).unwrap();
            })
            .unwrap();
        let (deadline, ran) = receiver.recv_timeout(Duration::from_secs(20)).unwrap();
        assert!(ran >= deadline);
    }
    // All at once.
    for number in 0..1000 {
        let deadline = timer.clock().now() + Duration::from_micros(number * 50);
        let (sender, clock) = (sender.clone(), Arc::clone(timer.clock()));
        timer
            .schedule_at(deadline, move || {
                sender.send((deadline, clock.now())).unwrap();
            })
            .unwrap();
    }
    for _ in 0..1000 {
        let (deadline, ran) = receiver.recv_timeout(Duration::from_secs(20)).unwrap();
        assert!(ran >= deadline);
    }
}

#[test]
fn a_task_may_wait_for_a_time_of_the_manual_clock() {
    let clock = ManualClock::new();
    let timer = HashedWheelTimer::builder().clock(Arc::new(clock.clone())).build().unwrap();
    let (done, is_done) = unbounded();
    let of_task = clock.clone();
    let begin = clock.now();
    let task = move || {
        let (parker, end) = (Parker::new(), begin + Duration::from_secs(8));
        while of_task.now() < end {
            of_task.park(&parker, Some(end), &never());
        }
        done.send(of_task.now().saturating_duration_since(begin)).unwrap();
    };
    timer.schedule(Duration::from_secs(1), task).unwrap();
    clock.advance(Duration::from_secs(7));
    assert!(is_done.try_recv().is_err());
    clock.advance(Duration::from_secs(7));
    assert_eq!(is_done.try_recv(), Ok(Duration::from_secs(8)));
}
