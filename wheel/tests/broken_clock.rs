//! A clock that panics: nothing hangs, nothing that is pending is lost, and everybody is told.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, unbounded};
use hashed_wheel::{
    BatchTimer, Clock, HashedWheelTimer, ManualClock, Parker, Period, ScheduleError, Task,
};

const SECOND: Duration = Duration::from_secs(1);

/// A manual clock of which either method can be broken, and repaired.
#[derive(Clone, Debug)]
struct Fragile {
    manual: ManualClock,
    now: Arc<AtomicBool>,
    park: Arc<AtomicBool>,
}

impl Fragile {
    fn new() -> Self {
        Self { manual: ManualClock::new(), now: Arc::default(), park: Arc::default() }
    }
}

impl Clock for Fragile {
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

/// A method to break.
type Part = fn(&Fragile) -> &AtomicBool;

const PARTS: [Part; 2] = [|clock| &clock.now, |clock| &clock.park];

/// A timer on which nothing is pending but one value, due in a minute, and whose ticker the clock has ended.
fn ended(part: Part) -> (Fragile, BatchTimer<u32>, Receiver<()>) {
    let clock = Fragile::new();
    let (sender, reports) = unbounded();
    let timer = HashedWheelTimer::builder()
        .clock(Arc::new(clock.clone()))
        .on_panic(move |_| sender.send(()).unwrap())
        .build_batch(|_: &mut Vec<u32>| {})
        .unwrap();
    let first = timer.schedule(SECOND, 1).unwrap();
    timer.schedule(SECOND * 60, 2).unwrap();
    clock.manual.settle();
    part(&clock).store(true, Ordering::SeqCst);
    // It wakes the ticker, and returns when that has ended.
    clock.manual.advance(SECOND);
    timer.cancel(first);
    (clock, timer, reports)
}

#[test]
fn a_timer_whose_clock_panics_refuses_and_reports_it_once() {
    for part in PARTS {
        let (clock, timer, reports) = ended(part);
        assert_eq!((timer.panics(), reports.try_iter().count()), (1, 1));
        let deadline = clock.manual.now() + SECOND;
        assert!(matches!(timer.schedule_at(deadline, 3), Err(ScheduleError::Stopped(3))));
        // For good, whatever the clock does later.
        part(&clock).store(false, Ordering::SeqCst);
        timer.start().unwrap();
        assert!(matches!(timer.schedule(SECOND, 3), Err(ScheduleError::Stopped(3))));
    }
}

#[test]
fn a_timer_whose_clock_panics_gives_back_what_is_pending_and_hangs_nobody() {
    for part in PARTS {
        let (_clock, timer, _reports) = ended(part);
        assert_eq!(timer.pending_timeouts(), 1);
        assert_eq!(timer.stop(), Ok(vec![2]));
        assert_eq!(timer.stop(), Ok(vec![]));
        let (_clock, timer, _reports) = ended(part);
        assert_eq!(timer.drain(), Ok(vec![2]));
        drop(ended(part));
    }
}

#[test]
fn what_is_due_when_the_clock_panics_is_given_back_as_well() {
    let clock = Fragile::new();
    let timer = HashedWheelTimer::builder().clock(Arc::new(clock.clone())).build().unwrap();
    timer.schedule(SECOND, || {}).unwrap();
    clock.manual.settle();
    clock.now.store(true, Ordering::SeqCst);
    clock.manual.advance(SECOND * 2);
    assert_eq!((timer.stop().unwrap().len(), timer.panics()), (1, 1));
}

#[test]
fn a_clock_that_panics_in_the_last_turn_of_a_drain_ends_it() {
    let clock = Fragile::new();
    let timer = HashedWheelTimer::builder().clock(Arc::new(clock.clone())).build().unwrap();
    timer.schedule(SECOND, || {}).unwrap();
    clock.manual.settle();
    clock.now.store(true, Ordering::SeqCst);
    assert_eq!((timer.drain().unwrap().len(), timer.panics()), (1, 1));
}

#[test]
fn when_the_hook_hears_of_the_clock_the_timer_refuses_already() {
    let clock = Fragile::new();
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
    clock.manual.settle();
    clock.now.store(true, Ordering::SeqCst);
    timer.get_or_init(|| built);
    clock.manual.advance(SECOND);
    assert_eq!(refused.try_recv(), Ok(true));
}

#[test]
fn a_clock_that_panics_between_two_tasks_costs_none_of_them() {
    let clock = Fragile::new();
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
    assert_eq!(timer.panics(), 1);
    timer.schedule(SECOND, move || sender.send(4).unwrap()).unwrap();
    clock.manual.advance(SECOND);
    assert_eq!(ran.try_recv(), Ok(4));
}

#[test]
fn a_clock_that_panics_between_two_batches_costs_none_of_them() {
    let clock = Fragile::new();
    let (sender, batches) = unbounded();
    let broken = Arc::clone(&clock.now);
    let timer = HashedWheelTimer::builder()
        .clock(Arc::new(clock.clone()))
        .build_batch(move |batch: &mut Vec<u32>| {
            // After the first batch the clock is asked twice: when that has ended, and when the second begins.
            broken.store(batch.contains(&0), Ordering::SeqCst);
            sender.send(batch.split_off(0)).unwrap();
        })
        .unwrap();
    for value in 0..2000 {
        timer.schedule(SECOND, value).unwrap();
    }
    clock.manual.advance(SECOND);
    let handed: Vec<u32> = batches.try_iter().flatten().collect();
    assert_eq!((handed, timer.panics()), ((0..2000).collect(), 2));
}

#[test]
fn a_task_on_an_executor_runs_whatever_the_clock_does() {
    let clock = Fragile::new();
    let (queue, tasks) = unbounded::<Task>();
    let timer = HashedWheelTimer::builder()
        .clock(Arc::new(clock.clone()))
        .executor(move |task: Task| queue.send(task).unwrap())
        .build()
        .unwrap();
    let (sender, ran) = unbounded();
    timer.schedule(SECOND, move || sender.send(()).unwrap()).unwrap();
    clock.manual.advance(SECOND);
    clock.now.store(true, Ordering::SeqCst);
    // The executor's thread is spared the panic.
    tasks.recv().unwrap()();
    assert!(ran.try_recv().is_ok());
    assert_eq!(timer.panics(), 2);
}

#[test]
fn a_periodic_task_that_cannot_learn_the_time_ends_and_leaves_its_place() {
    let clock = Fragile::new();
    let timer = HashedWheelTimer::builder()
        .clock(Arc::new(clock.clone()))
        .max_pending_timeouts(1)
        .build()
        .unwrap();
    let broken = Arc::clone(&clock.now);
    let task = move || broken.store(true, Ordering::SeqCst);
    let timeout = timer.schedule_periodic(SECOND, Period::fixed_rate(SECOND), task).unwrap();
    clock.manual.advance(SECOND);
    clock.now.store(false, Ordering::SeqCst);
    assert!(timeout.is_ended());
    timer.schedule(SECOND, || {}).unwrap();
}

#[test]
fn a_clock_that_panics_in_a_callers_hands_costs_no_place() {
    let clock = Fragile::new();
    let timer = HashedWheelTimer::builder()
        .clock(Arc::new(clock.clone()))
        .max_pending_timeouts(1)
        .build()
        .unwrap();
    // The ticker is to be at rest, or it would be the one to learn of it.
    clock.manual.settle();
    clock.now.store(true, Ordering::SeqCst);
    let once = || timer.schedule(SECOND, || {}).map(drop);
    let again = || timer.schedule_periodic(SECOND, Period::fixed_rate(SECOND), || {}).map(drop);
    assert!(catch_unwind(AssertUnwindSafe(once)).is_err());
    assert!(catch_unwind(AssertUnwindSafe(again)).is_err());
    assert_eq!((timer.panics(), timer.pending_timeouts()), (0, 0));
    clock.now.store(false, Ordering::SeqCst);
    timer.schedule(SECOND, || {}).unwrap();
    assert!(matches!(timer.schedule(SECOND, || {}), Err(ScheduleError::Full(_))));
}

#[test]
fn a_lazy_timer_whose_clock_panics_at_the_start_can_be_started_later() {
    let clock = Fragile::new();
    let (sender, batches) = unbounded();
    let timer = HashedWheelTimer::builder()
        .clock(Arc::new(clock.clone()))
        .max_pending_timeouts(1)
        .start_lazily()
        .build_batch(move |batch: &mut Vec<u32>| sender.send(batch.split_off(0)).unwrap())
        .unwrap();
    clock.park.store(true, Ordering::SeqCst);
    assert!(catch_unwind(AssertUnwindSafe(|| timer.schedule(SECOND, 1))).is_err());
    assert!(catch_unwind(AssertUnwindSafe(|| timer.start())).is_err());
    // No thread is left behind that a manual clock would wait for.
    clock.manual.settle();
    clock.park.store(false, Ordering::SeqCst);
    timer.schedule(SECOND, 2).unwrap();
    clock.manual.advance(SECOND);
    assert_eq!(batches.try_recv(), Ok(vec![2]));
}

#[test]
fn a_timer_cannot_be_built_on_a_clock_that_panics() {
    for part in PARTS {
        let clock = Fragile::new();
        part(&clock).store(true, Ordering::SeqCst);
        let builder = HashedWheelTimer::builder().clock(Arc::new(clock.clone()));
        assert!(catch_unwind(AssertUnwindSafe(|| builder.build())).is_err());
        clock.manual.settle();
    }
}
