//! How a timer begins and ends: at once or with its first timeout; now, or when what is due has run.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use hashed_wheel::{
    BuildError, Clock, HashedWheelTimer, ManualClock, Parker, Period, ScheduleError, StopError,
    SystemClock,
};
use parking_lot::Mutex;

const SECOND: Duration = Duration::from_secs(1);

/// A clock that stands still and knows who has parked on it.
#[derive(Clone, Debug)]
struct Watched {
    manual: ManualClock,
    parks: Arc<Mutex<usize>>,
}

impl Clock for Watched {
    fn now(&self) -> Instant {
        self.manual.now()
    }

    fn park(&self, parker: &Parker, deadline: Option<Instant>, interrupt: &Receiver<()>) {
        *self.parks.lock() += 1;
        self.manual.park(parker, deadline, interrupt);
    }
}

fn watched() -> Watched {
    Watched { manual: ManualClock::new(), parks: Arc::default() }
}

#[test]
fn a_lazy_timer_has_no_thread_before_its_first_timeout() {
    let clock = watched();
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
fn a_lazy_timer_can_be_started_by_hand_and_twice() {
    let clock = watched();
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
fn drain_runs_what_is_due_and_gives_back_the_rest() {
    // A clock that nobody moves step by step: what is due was not yet seen by the ticker when the draining begins.
    let clock = watched();
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
    // From the beginning of the draining on nothing is taken in.
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
fn a_periodic_task_comes_back_from_a_drain_with_its_next_run_ahead() {
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
fn drain_in_a_task_is_an_error_and_ends_nothing() {
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
fn the_hook_hears_of_many_timers_and_may_panic() {
    let timers: Vec<_> =
        (0..64).map(|_| HashedWheelTimer::builder().start_lazily().build().unwrap()).collect();
    let (sender, receiver) = unbounded();
    let build = || {
        let sender = sender.clone();
        HashedWheelTimer::builder()
            .clock(Arc::new(SystemClock))
            .on_many_timers(move |living| {
                sender.send(living).unwrap();
                std::panic::resume_unwind(Box::new("quietly"));
            })
            .build()
            .unwrap()
    };
    let one_more = build();
    // The other tests of this file have timers too.
    assert!(receiver.try_recv().unwrap() > 64);
    assert_eq!(one_more.panics(), 1);
    drop(timers);
}

#[test]
fn a_task_that_starts_its_timer_while_it_is_stopped_hangs_nobody() {
    let clock = ManualClock::new();
    let timer =
        Arc::new(HashedWheelTimer::builder().clock(Arc::new(clock.clone())).build().unwrap());
    let (entered, running) = unbounded();
    let own = Arc::clone(&timer);
    timer
        .schedule(SECOND, move || {
            entered.send(()).unwrap();
            // Until the other thread is in the middle of stopping, and waits for this task.
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

/// Set in a process of a test's own that gets no more threads.
const THREADLESS: &str = "HASHED_WHEEL_TEST_THREADLESS";

#[test]
fn a_thread_that_cannot_be_started_is_waited_for_by_nobody() {
    if std::env::var_os(THREADLESS).is_none() {
        // A stack for which no machine has the address space: the system refuses every thread that is asked for.
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--test-threads=1"])
            .arg("a_thread_that_cannot_be_started_is_waited_for_by_nobody")
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
        assert!(matches!(error, ScheduleError::NotStarted(_)) && error.is_transient());
        assert!(matches!(timer.start(), Err(BuildError::ThreadSpawn(_))));
    }
    // It would panic after half a minute if it waited for a ticker that is not there.
    clock.advance(SECOND);
    assert!(timer.stop().unwrap().is_empty());
    assert!(matches!(timer.schedule(SECOND, || {}), Err(ScheduleError::Stopped(_))));
}

#[test]
fn a_handler_whose_destructor_panics_ends_as_quietly_as_any_other() {
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
        // In here, so that it is dropped if the clock does wait and gives up.
        let release = release;
        scope.spawn(|| timer.stop().unwrap());
        dropping.recv().unwrap();
        clock.advance(SECOND);
        drop(release);
    });
}
