//! How a timer starts and stops: at once or with its first timeout; at once or after what is due
//! has run.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use hashed_wheel::{
    BatchTimer, BuildError, Clock, HashedWheelTimer, ManualClock, Parker, Period, ScheduleError,
    StopError, SystemClock,
};
use parking_lot::Mutex;

const SECOND: Duration = Duration::from_secs(1);

/// A manual clock that counts parks.
#[derive(Clone, Debug)]
struct CountingClock {
    manual: ManualClock,
    parks: Arc<Mutex<usize>>,
}

impl Clock for CountingClock {
    fn now(&self) -> Instant {
        self.manual.now()
    }

    fn park(&self, parker: &Parker, deadline: Option<Instant>, interrupt: &Receiver<()>) {
        *self.parks.lock() += 1;
        self.manual.park(parker, deadline, interrupt);
    }
}

fn counting_clock() -> CountingClock {
    CountingClock { manual: ManualClock::new(), parks: Arc::default() }
}

#[test]
fn a_lazy_timer_has_no_thread_before_its_first_timeout() {
    let clock = counting_clock();
    let timer =
        HashedWheelTimer::builder().clock(Arc::new(clock.clone())).start_lazily().build().unwrap();
    clock.manual.advance(SECOND);
    assert_eq!(*clock.parks.lock(), 0);
    let (sender, receiver) = unbounded();
    timer.schedule(SECOND, move || sender.send(()).unwrap()).unwrap();
    assert_ne!(*clock.parks.lock(), 0);
    clock.manual.advance(SECOND * 2);
    assert_eq!(receiver.try_iter().count(), 1);
}

#[test]
fn each_way_of_scheduling_a_value_starts_a_lazy_timer() {
    let ways: [fn(&BatchTimer<u32>, Instant) -> bool; 3] = [
        |timer, _| timer.schedule(SECOND, 1).is_ok(),
        |timer, now| timer.schedule_at(now + SECOND, 1).is_ok(),
        |timer, _| timer.schedule_many(&mut vec![(SECOND, 1)], &mut Vec::new()).is_ok(),
    ];
    for (number, schedule) in ways.into_iter().enumerate() {
        let clock = ManualClock::new();
        let builder = BatchTimer::builder().clock(Arc::new(clock.clone())).start_lazily();
        let timer = builder.build_batch(|_: &mut Vec<u32>| {}).unwrap();
        assert!(schedule(&timer, clock.now()));
        clock.advance(SECOND);
        assert_eq!(timer.statistics().fired, 1, "way {number}");
    }
}

#[test]
fn a_lazy_timer_can_be_started_explicitly_and_twice() {
    let clock = counting_clock();
    let timer =
        HashedWheelTimer::builder().clock(Arc::new(clock.clone())).start_lazily().build().unwrap();
    timer.start().unwrap();
    assert_ne!(*clock.parks.lock(), 0);
    timer.start().unwrap();
    timer.schedule(SECOND, || {}).unwrap();
    assert_eq!(timer.stop().unwrap().len(), 1);
}

#[test]
fn a_lazy_timer_that_never_started_stops_and_stays_stopped() {
    let timer = HashedWheelTimer::builder().start_lazily().build().unwrap();
    assert!(timer.stop().unwrap().is_empty());
    timer.start().unwrap();
    assert!(matches!(timer.schedule(SECOND, || {}), Err(ScheduleError::Stopped(_))));
    drop(HashedWheelTimer::builder().start_lazily().build().unwrap());
    assert!(
        HashedWheelTimer::builder().start_lazily().build().unwrap().drain().unwrap().is_empty()
    );
}

#[test]
fn drain_runs_what_is_due_and_returns_the_rest() {
    // The clock jumps, so the ticker has not yet taken what is due when the drain starts.
    let clock = counting_clock();
    let timer =
        Arc::new(HashedWheelTimer::builder().clock(Arc::new(clock.clone())).build().unwrap());
    let (sender, receiver) = unbounded();
    let (entered, running) = unbounded();
    let (release, held) = unbounded::<()>();
    timer
        .schedule(SECOND, move || {
            entered.send(()).unwrap();
            held.recv().unwrap();
        })
        .unwrap();
    for number in 0..3000_u32 {
        let sender = sender.clone();
        timer.schedule(SECOND, move || sender.send(number).unwrap()).unwrap();
    }
    let late = sender.clone();
    timer.schedule(SECOND * 60, move || late.send(u32::MAX).unwrap()).unwrap();
    let mover = {
        let clock = clock.manual.clone();
        std::thread::Builder::new().spawn(move || clock.jump(SECOND * 2)).unwrap()
    };
    running.recv().unwrap();
    let drainer = {
        let timer = Arc::clone(&timer);
        std::thread::Builder::new().spawn(move || timer.drain().unwrap()).unwrap()
    };
    // From the start of the drain nothing can be scheduled.
    while timer.schedule(SECOND * 60, || {}).map(|timeout| timeout.cancel()).is_ok() {
        std::thread::yield_now();
    }
    assert!(receiver.is_empty());
    release.send(()).unwrap();
    let rest = drainer.join().unwrap();
    mover.join().unwrap();
    assert_eq!(receiver.try_iter().collect::<Vec<_>>(), (0..3000).collect::<Vec<_>>());
    assert_eq!(rest.len(), 1);
}

#[test]
fn drain_returns_a_periodic_task_between_two_runs() {
    let clock = ManualClock::new();
    let timer = HashedWheelTimer::builder().clock(Arc::new(clock.clone())).build().unwrap();
    let timeout = timer.schedule_periodic(SECOND, Period::fixed_rate(SECOND), || {}).unwrap();
    clock.advance(SECOND);
    let rest = timer.drain().unwrap();
    assert_eq!((timeout.runs(), rest.len()), (1, 1));
    assert!(timeout.is_ended());
    assert!(timer.drain().unwrap().is_empty() && timer.stop().unwrap().is_empty());
}

#[test]
fn drain_in_a_task_is_an_error_and_stops_nothing() {
    let clock = ManualClock::new();
    let timer =
        Arc::new(HashedWheelTimer::builder().clock(Arc::new(clock.clone())).build().unwrap());
    let (sender, receiver) = unbounded();
    let own = Arc::downgrade(&timer);
    timer
        .schedule(SECOND, move || sender.send(own.upgrade().unwrap().drain().err()).unwrap())
        .unwrap();
    clock.advance(SECOND * 2);
    assert_eq!(receiver.try_recv().unwrap(), Some(StopError::OnTickerThread));
    timer.schedule(SECOND, || {}).unwrap();
}

#[test]
fn the_many_timers_hook_is_called_and_may_panic() {
    let timers: Vec<_> =
        (0..64).map(|_| HashedWheelTimer::builder().start_lazily().build().unwrap()).collect();
    let (sender, receiver) = unbounded();
    let build = || {
        let sender = sender.clone();
        HashedWheelTimer::builder()
            .clock(Arc::new(SystemClock))
            .on_many_timers(move |count| {
                sender.send(count).unwrap();
                std::panic::resume_unwind(Box::new("quietly"));
            })
            .build()
            .unwrap()
    };
    let one_more = build();
    // Other tests of this program have timers too.
    assert!(receiver.try_recv().unwrap() > 64);
    assert_eq!(one_more.panics(), 1);
    drop(timers);
}

#[test]
fn a_task_that_starts_its_timer_during_a_stop_does_not_deadlock() {
    let clock = ManualClock::new();
    let timer =
        Arc::new(HashedWheelTimer::builder().clock(Arc::new(clock.clone())).build().unwrap());
    let (entered, running) = unbounded();
    let own = Arc::clone(&timer);
    timer
        .schedule(SECOND, move || {
            entered.send(()).unwrap();
            // Until the other thread is stopping the timer and waits for this task.
            while own.schedule(SECOND, || {}).is_ok() {
                std::thread::yield_now();
            }
            own.start().unwrap();
        })
        .unwrap();
    let mover = std::thread::Builder::new().spawn(move || clock.advance(SECOND)).unwrap();
    running.recv().unwrap();
    timer.stop().unwrap();
    mover.join().unwrap();
}

/// Set in a process of one test that can start no threads.
const THREADLESS: &str = "HASHED_WHEEL_TEST_THREADLESS";

#[test]
fn a_thread_that_cannot_be_started_is_an_error_and_blocks_no_thread() {
    if std::env::var_os(THREADLESS).is_none() {
        // A stack for which no machine has the address space: every thread is refused.
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--test-threads=1"])
            .arg("lifecycle::a_thread_that_cannot_be_started_is_an_error_and_blocks_no_thread")
            .env("RUST_MIN_STACK", (usize::MAX / 2).to_string())
            .env(THREADLESS, "")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let clock = ManualClock::new();
    let builder = HashedWheelTimer::builder().clock(Arc::new(clock.clone()));
    assert!(matches!(builder.clone().build(), Err(BuildError::ThreadSpawn(_))));
    let timer = builder.start_lazily().max_pending_timeouts(1).build().unwrap();
    for _ in 0..2 {
        let error = timer.schedule(SECOND, || {}).unwrap_err();
        assert!(matches!(error, ScheduleError::NotStarted(..)) && error.is_transient());
        assert!(matches!(timer.start(), Err(BuildError::ThreadSpawn(_))));
    }
    // It would panic after two minutes if it waited for a ticker that does not exist.
    clock.advance(SECOND);
    assert!(timer.stop().unwrap().is_empty());
    assert!(matches!(timer.schedule(SECOND, || {}), Err(ScheduleError::Stopped(_))));
}

#[test]
fn a_panic_in_the_destructor_of_a_handler_is_caught() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            std::panic::resume_unwind(Box::new("quietly"));
        }
    }
    let (sender, reports) = unbounded();
    let build = |lazy: bool| {
        let (sender, bomb) = (sender.clone(), Bomb);
        let builder = HashedWheelTimer::builder().on_panic(move |_| sender.send(()).unwrap());
        let builder = if lazy { builder.start_lazily() } else { builder };
        builder
            .build_batch(move |_: &mut Vec<u32>| {
                let _own = &bomb;
            })
            .unwrap()
    };
    for lazy in [true, false] {
        let timer = build(lazy);
        timer.stop().unwrap();
        assert_eq!((timer.panics(), reports.try_iter().count()), (1, 1));
        drop(build(lazy));
        assert_eq!(reports.try_iter().count(), 1);
    }
}

#[test]
fn a_manual_clock_does_not_wait_for_the_destructor_of_a_handler() {
    struct Slow(Sender<()>, Receiver<()>);
    impl Drop for Slow {
        fn drop(&mut self) {
            self.0.send(()).unwrap();
            self.1.recv().ok();
        }
    }
    let clock = ManualClock::new();
    let (entered, dropping) = unbounded();
    let (release, held) = unbounded::<()>();
    let slow = Slow(entered, held);
    let timer = HashedWheelTimer::builder()
        .clock(Arc::new(clock.clone()))
        .build_batch(move |_: &mut Vec<u32>| {
            let _own = &slow;
        })
        .unwrap();
    std::thread::scope(|scope| {
        // Moved in here, so that it is dropped if the clock does wait and panics.
        let release = release;
        scope.spawn(|| timer.stop().unwrap());
        dropping.recv().unwrap();
        clock.advance(SECOND);
        drop(release);
    });
}

#[test]
fn a_thread_that_lets_time_pass_moves_a_manual_clock_and_what_is_due_runs() {
    let clock = ManualClock::new();
    let pass = |clock: &ManualClock, time| {
        clock.pass_until(&Parker::new(), clock.now() + time, &crossbeam_channel::never());
    };
    let timer = HashedWheelTimer::builder().clock(Arc::new(clock.clone())).build().unwrap();
    let (sender, ran) = unbounded();
    let start = clock.now();
    for delay in [SECOND, SECOND * 10] {
        let (own, sender) = (clock.clone(), sender.clone());
        // It takes time itself, on a thread that the clock waits for.
        let task = move || {
            pass(&own, SECOND);
            sender.send(own.now() - start).unwrap();
        };
        timer.schedule(delay, task).unwrap();
    }
    pass(&clock, SECOND * 2);
    assert_eq!(ran.try_recv(), Ok(SECOND * 3));
    clock.advance(SECOND * 10);
    assert_eq!(ran.try_recv().map(|at| at >= SECOND * 11), Ok(true));
    drop(timer.stop().unwrap());
}
