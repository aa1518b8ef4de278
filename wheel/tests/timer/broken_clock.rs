//! A clock that panics: no call hangs, no pending task is lost, and the panic is reported.

use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, unbounded};
use hashed_wheel::{
    BatchTimer, Clock, HashedWheelTimer, ManualClock, Parker, Period, ScheduleError, Task,
};

use crate::values;

const SECOND: Duration = Duration::from_secs(1);

/// A manual clock whose two methods can be made to panic, and repaired.
#[derive(Clone, Debug)]
struct BreakableClock {
    manual: ManualClock,
    now: Arc<AtomicBool>,
    park: Arc<AtomicBool>,
}

impl BreakableClock {
    fn new() -> Self {
        Self { manual: ManualClock::new(), now: Arc::default(), park: Arc::default() }
    }
}

impl Clock for BreakableClock {
    fn now(&self) -> Instant {
        panic_if(&self.now);
        self.manual.now()
    }

    fn park(&self, parker: &Parker, deadline: Option<Instant>, interrupt: &Receiver<()>) {
        panic_if(&self.park);
        self.manual.park(parker, deadline, interrupt);
    }
}

fn panic_if(broken: &AtomicBool) {
    if broken.load(Ordering::SeqCst) {
        panic::resume_unwind(Box::new("quietly"));
    }
}

/// A method that is to panic.
type Part = fn(&BreakableClock) -> &AtomicBool;

const PARTS: [Part; 2] = [|clock| &clock.now, |clock| &clock.park];

/// A timer with one pending value, due in a minute, whose ticker was ended by a panic of the clock.
fn ended(part: Part) -> (BreakableClock, BatchTimer<u32>, Receiver<()>) {
    let clock = BreakableClock::new();
    let (sender, reports) = unbounded();
    let timer = HashedWheelTimer::builder()
        .clock(Arc::new(clock.clone()))
        .on_panic(move |_| sender.send(()).unwrap())
        .build_batch(|_: &mut Vec<u32>| {})
        .unwrap();
    let first = timer.schedule(SECOND, 1).unwrap();
    timer.schedule(SECOND * 60, 2).unwrap();
    clock.manual.wait_until_idle();
    part(&clock).store(true, Ordering::SeqCst);
    // Wakes the ticker, and returns when it has ended.
    clock.manual.advance(SECOND);
    timer.cancel(first);
    (clock, timer, reports)
}

#[test]
fn a_timer_whose_clock_panics_reports_it_once_and_refuses() {
    for part in PARTS {
        let (clock, timer, reports) = ended(part);
        assert_eq!((timer.statistics().panicked, reports.try_iter().count()), (1, 1));
        let deadline = clock.manual.now() + SECOND;
        assert!(matches!(timer.schedule_at(deadline, 3), Err(ScheduleError::Stopped(3))));
        // Permanently, even if the clock works again.
        part(&clock).store(false, Ordering::SeqCst);
        assert!(matches!(timer.schedule(SECOND, 3), Err(ScheduleError::Stopped(3))));
    }
}

#[test]
fn timer_after_clock_panic_returns_pending_and_blocks_no_thread() {
    for part in PARTS {
        let (_clock, timer, _reports) = ended(part);
        assert_eq!(timer.pending_timeouts(), 1);
        assert_eq!(values(timer.stop()), [2]);
        assert_eq!(timer.stop(), Ok(vec![]));
        drop(ended(part));
    }
}

#[test]
fn a_value_due_when_the_clock_panics_is_returned_by_stop() {
    let clock = BreakableClock::new();
    let timer = HashedWheelTimer::builder().clock(Arc::new(clock.clone())).build().unwrap();
    timer.schedule(SECOND, || {}).unwrap();
    clock.manual.wait_until_idle();
    clock.now.store(true, Ordering::SeqCst);
    clock.manual.advance(SECOND * 2);
    assert_eq!((timer.stop().unwrap().len(), timer.statistics().panicked), (1, 1));
}

#[test]
fn the_timer_refuses_before_the_clock_panic_is_reported() {
    let clock = BreakableClock::new();
    let deadline = clock.manual.now() + SECOND;
    let (sender, refused) = unbounded();
    let timer = Arc::new(OnceLock::<BatchTimer<u32>>::new());
    let own = Arc::clone(&timer);
    let built = HashedWheelTimer::builder()
        .clock(Arc::new(clock.clone()))
        .on_panic(move |_| {
            let error = own.get().unwrap().schedule_at(deadline, 7).unwrap_err();
            sender.send(matches!(error, ScheduleError::Stopped(7))).unwrap();
        })
        .build_batch(|_: &mut Vec<u32>| {})
        .unwrap();
    built.schedule(SECOND, 1).unwrap();
    clock.manual.wait_until_idle();
    clock.now.store(true, Ordering::SeqCst);
    timer.get_or_init(|| built);
    clock.manual.advance(SECOND);
    assert_eq!(refused.try_recv(), Ok(true));
}

#[test]
fn a_clock_panic_between_two_tasks_loses_neither() {
    let clock = BreakableClock::new();
    let timer = HashedWheelTimer::builder().clock(Arc::new(clock.clone())).build().unwrap();
    let (sender, ran) = unbounded();
    for number in 0..4 {
        let (sender, broken) = (sender.clone(), Arc::clone(&clock.now));
        let task = move || {
            sender.send(number).unwrap();
            broken.store(number == 1, Ordering::SeqCst);
        };
        timer.schedule(SECOND, task).unwrap();
    }
    clock.manual.advance(SECOND);
    assert_eq!(ran.try_iter().collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(timer.statistics().panicked, 1);
    timer.schedule(SECOND, move || sender.send(4).unwrap()).unwrap();
    clock.manual.advance(SECOND);
    assert_eq!(ran.try_recv(), Ok(4));
}

#[test]
fn a_clock_panic_between_two_batches_loses_neither() {
    let clock = BreakableClock::new();
    let (sender, batches) = unbounded();
    let broken = Arc::clone(&clock.now);
    let timer = HashedWheelTimer::builder()
        .clock(Arc::new(clock.clone()))
        .build_batch(move |batch: &mut Vec<u32>| {
            // After the first batch the clock is read twice: at its end, and at the start of the
            // second.
            broken.store(batch.contains(&0), Ordering::SeqCst);
            sender.send(batch.split_off(0)).unwrap();
        })
        .unwrap();
    for value in 0..2000 {
        timer.schedule(SECOND, value).unwrap();
    }
    clock.manual.advance(SECOND);
    let handled: Vec<u32> = batches.try_iter().flatten().collect();
    assert_eq!((handled, timer.statistics().panicked), ((0..2000).collect(), 2));
}

#[test]
fn a_task_on_an_executor_runs_although_the_clock_panics() {
    let clock = BreakableClock::new();
    let (queue, tasks) = unbounded::<Task>();
    let timer = HashedWheelTimer::builder()
        .clock(Arc::new(clock.clone()))
        .build_with_executor(move |task| queue.send(task).unwrap())
        .unwrap();
    let (sender, ran) = unbounded();
    timer.schedule(SECOND, move || sender.send(()).unwrap()).unwrap();
    clock.manual.advance(SECOND);
    clock.now.store(true, Ordering::SeqCst);
    // The panic does not reach the executor's thread.
    tasks.recv().unwrap()();
    assert!(ran.try_recv().is_ok());
    assert_eq!(timer.statistics().panicked, 2);
}

#[test]
fn a_clock_panic_ends_a_periodic_task_and_frees_its_capacity() {
    /// If it were dropped while the clock's panic unwinds, the process would abort.
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic::resume_unwind(Box::new("quietly"));
        }
    }
    let clock = BreakableClock::new();
    let timer = HashedWheelTimer::builder()
        .clock(Arc::new(clock.clone()))
        .max_pending_timeouts(1)
        .build()
        .unwrap();
    let (broken, bomb) = (Arc::clone(&clock.now), Bomb);
    let task = move || {
        let _own = &bomb;
        broken.store(true, Ordering::SeqCst);
    };
    let timeout = timer.schedule_periodic(SECOND, Period::fixed_rate(SECOND), task).unwrap();
    clock.manual.advance(SECOND);
    clock.now.store(false, Ordering::SeqCst);
    assert!(timeout.is_ended());
    timer.schedule(SECOND, || {}).unwrap();
}

#[test]
fn a_clock_panic_in_schedule_takes_no_capacity() {
    let clock = BreakableClock::new();
    let timer = HashedWheelTimer::builder()
        .clock(Arc::new(clock.clone()))
        .max_pending_timeouts(1)
        .build()
        .unwrap();
    // The ticker must be parked, or it would read the clock.
    clock.manual.wait_until_idle();
    clock.now.store(true, Ordering::SeqCst);
    let once = || timer.schedule(SECOND, || {}).map(drop);
    let again = || timer.schedule_periodic(SECOND, Period::fixed_rate(SECOND), || {}).map(drop);
    assert!(catch_unwind(AssertUnwindSafe(once)).is_err());
    assert!(catch_unwind(AssertUnwindSafe(again)).is_err());
    assert_eq!((timer.statistics().panicked, timer.pending_timeouts()), (0, 0));
    clock.now.store(false, Ordering::SeqCst);
    timer.schedule(SECOND, || {}).unwrap();
    assert!(matches!(timer.schedule(SECOND, || {}), Err(ScheduleError::Full(_))));
}

#[test]
fn a_timer_cannot_be_built_on_a_clock_that_panics() {
    for part in PARTS {
        let clock = BreakableClock::new();
        part(&clock).store(true, Ordering::SeqCst);
        let builder = HashedWheelTimer::builder().clock(Arc::new(clock.clone()));
        assert!(catch_unwind(AssertUnwindSafe(|| builder.build())).is_err());
        clock.manual.wait_until_idle();
    }
}
