//! A timer of the parent in a forked child: each call is refused, a drop is quiet, and nothing of
//! the parent's is waited for or run.

use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{self, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{bounded, never, unbounded};
use fork::{Fork, fork, waitpid, waitpid_nohang};
use hashed_wheel::{
    BatchTimer, Clock, HashedWheelTimer, ManualClock, Parker, Period, ScheduleError, StopError,
    SystemClock, Timeout, Wheel,
};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// Set in a process of one test.
const ALONE: &str = "HASHED_WHEEL_TEST_ALONE";
/// The exit code of a child that hangs.
const HANGS: i32 = 3;

/// Runs the test in a process of its own, and returns true where that was done. Threads of other
/// tests, which start and end, would keep locks of the standard library in the child.
fn ran_alone(test: &str) -> bool {
    if env::var_os(ALONE).is_some() {
        return false;
    }
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "--test-threads=1", &format!("forks::{test}")])
        .env(ALONE, "")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}{errors}");
    true
}

/// Ends this process if it is still there in half a minute.
fn end_if_it_hangs() {
    let (begins, begun) = bounded(0);
    let alarm = move || {
        begins.send(()).unwrap();
        let end = SystemClock.now() + SECOND * 30;
        while SystemClock.now() < end {
            SystemClock.park(&Parker::new(), Some(end), &never());
        }
        process::exit(HANGS);
    };
    thread::Builder::new().spawn(alarm).unwrap();
    begun.recv().unwrap();
}

/// Does this in a fork, which then ends, and fails if it fails or hangs.
fn in_a_child(action: impl FnOnce()) {
    match fork().unwrap() {
        Fork::Parent(child) => assert_eq!(waitpid(child).map(exit_code).unwrap(), 0),
        Fork::Child => {
            end_if_it_hangs();
            let done = catch_unwind(AssertUnwindSafe(action));
            process::exit(i32::from(done.is_err()));
        }
    }
}

/// Of the status of a process that has ended by itself.
fn exit_code(status: i32) -> i32 {
    assert_eq!(status & 0x7f, 0, "a signal ended the child: status {status}");
    status >> 8
}

fn is_forked<T, V>(result: Result<T, ScheduleError<V>>) -> bool {
    matches!(result, Err(error @ ScheduleError::Forked(_)) if !error.is_transient())
}

#[test]
fn each_call_of_a_timer_of_closures_is_refused_in_a_child() {
    if ran_alone("each_call_of_a_timer_of_closures_is_refused_in_a_child") {
        return;
    }
    let timer = HashedWheelTimer::new().unwrap();
    let weak = timer.downgrade();
    let (sender, ran) = unbounded();
    let in_parent = sender.clone();
    let timeout = timer.schedule(HOUR, move || in_parent.send(process::id()).unwrap()).unwrap();
    let period = Period::fixed_rate(HOUR);
    let periodic = timer.schedule_periodic(HOUR, period, || {}).unwrap();
    in_a_child(|| {
        let now = SystemClock.now();
        assert!(is_forked(timer.schedule(SECOND, || {})));
        assert!(is_forked(timer.schedule_at(now, || {})));
        assert!(is_forked(timer.schedule_periodic(SECOND, period, || {})));
        assert!(is_forked(timer.after(SECOND)) && is_forked(timer.interval(SECOND)));
        assert!(is_forked(weak.schedule(SECOND, || {})) && is_forked(weak.schedule_at(now, || {})));
        assert!(is_forked(weak.schedule_periodic(SECOND, period, || {})));
        assert!(matches!(timer.stop(), Err(StopError::Forked)));

        assert!(!timeout.cancel() && timeout.take().is_none());
        assert!(!timeout.reschedule(now) && !timeout.reschedule_after(SECOND));
        assert!(timeout.is_cancelled() && !timeout.is_expired());
        assert!(!periodic.cancel() && periodic.is_ended());
        assert!(!periodic.reschedule(now) && !periodic.reschedule_after(SECOND));
        assert_eq!((timeout.deadline(), periodic.deadline()), (None, None));
        assert_eq!((timer.pending_timeouts(), timer.statistics().pending), (0, 0));
        assert!(!format!("{timer:?} {weak:?} {timeout:?} {periodic:?}").is_empty());
        drop(timeout.cancel_on_drop());

        // The child can build a timer of its own, and a wheel is plain data.
        let own = HashedWheelTimer::new().unwrap();
        let (done, received) = bounded(1);
        own.schedule(Duration::ZERO, move || done.send(()).unwrap()).unwrap();
        received.recv().unwrap();
        let mut wheel = Wheel::new(8).unwrap();
        let key = wheel.insert(5, 7);
        assert_eq!(wheel.cancel(key), Some(7));
    });
    // In the parent it goes on.
    assert_eq!(timer.pending_timeouts(), 2);
    timer.schedule(Duration::ZERO, move || sender.send(0).unwrap()).unwrap();
    assert_eq!(ran.recv().unwrap(), 0);
    assert_eq!(timer.stop().unwrap().len(), 2);
}

#[test]
fn each_call_of_a_timer_of_values_is_refused_in_a_child() {
    if ran_alone("each_call_of_a_timer_of_values_is_refused_in_a_child") {
        return;
    }
    let timer = BatchTimer::builder().build_batch(|_: &mut Vec<u32>| {}).unwrap();
    let weak = timer.downgrade();
    let key = timer.schedule(HOUR, 7).unwrap();
    in_a_child(|| {
        let now = SystemClock.now();
        assert!(is_forked(timer.schedule(SECOND, 1)) && is_forked(timer.schedule_at(now, 1)));
        assert!(is_forked(weak.schedule(SECOND, 1)) && is_forked(weak.schedule_at(now, 1)));
        let mut values = vec![(SECOND, 1), (SECOND, 2)];
        assert!(is_forked(timer.schedule_many(&mut values, &mut Vec::new())));
        assert_eq!(values, [(SECOND, 1), (SECOND, 2)]);
        assert_eq!((timer.cancel(key), timer.get(key), timer.deadline(key)), (None, None, None));
        assert_eq!((timer.cancel_many(&[key]), timer.clear()), (vec![], vec![]));
        assert!(!timer.reschedule(key, now) && !timer.reschedule_after(key, SECOND));
        assert!(matches!(timer.stop(), Err(StopError::Forked)));
        assert_eq!(timer.statistics().pending, 0);
    });
    assert_eq!(timer.cancel(key), Some(7));
}

/// Exits with another code if the child drops it.
struct OfTheParent(u32);

impl Drop for OfTheParent {
    fn drop(&mut self) {
        if self.0 != process::id() {
            process::exit(4);
        }
    }
}

#[test]
fn a_drop_in_a_child_is_quiet_and_drops_nothing_that_is_pending() {
    if ran_alone("a_drop_in_a_child_is_quiet_and_drops_nothing_that_is_pending") {
        return;
    }
    let timer = HashedWheelTimer::new().unwrap();
    let value = OfTheParent(process::id());
    timer.schedule(HOUR, move || drop(value)).unwrap();
    let mut timer = Some(timer);
    in_a_child(|| drop(timer.take()));
    in_a_child(|| {
        // A panic of the drop would abort the process.
        let timer = timer.take();
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            let _timer = timer;
            std::panic::resume_unwind(Box::new("quietly"));
        }));
        assert!(unwound.is_err());
    });
    assert_eq!(timer.unwrap().stop().unwrap().len(), 1);
}

#[test]
fn a_child_waits_for_no_lock_that_a_thread_of_the_parent_has() {
    const FORKS: usize = 50;
    if ran_alone("a_child_waits_for_no_lock_that_a_thread_of_the_parent_has") {
        return;
    }
    let timer = Arc::new(HashedWheelTimer::new().unwrap());
    let periodic =
        Arc::new(timer.schedule_periodic(HOUR, Period::fixed_rate(HOUR), || {}).unwrap());
    let ends = Arc::new(AtomicBool::new(false));
    let busy: Vec<_> = (0..2)
        .map(|_| {
            let (timer, periodic) = (Arc::clone(&timer), Arc::clone(&periodic));
            let ends = Arc::clone(&ends);
            let work = move || {
                while !ends.load(Ordering::Relaxed) {
                    let timeouts: Vec<Timeout> =
                        (0..50).map(|_| timer.schedule(HOUR, || {}).unwrap()).collect();
                    assert!(periodic.reschedule_after(HOUR));
                    for timeout in timeouts {
                        assert!(timeout.cancel());
                    }
                }
            };
            thread::Builder::new().spawn(work).unwrap()
        })
        .collect();
    for _ in 0..FORKS {
        let timeout = timer.schedule(HOUR, || {}).unwrap();
        let mut shared = Some(Arc::clone(&timer));
        in_a_child(|| {
            assert!(is_forked(timer.schedule(SECOND, || {})));
            assert!(!timeout.cancel() && !periodic.cancel());
            assert_eq!(timer.pending_timeouts(), 0);
            assert!(timer.stop().is_err());
            drop(shared.take());
        });
    }
    ends.store(true, Ordering::Relaxed);
    for thread in busy {
        thread.join().unwrap();
    }
    assert!(timer.stop().unwrap().len() > FORKS);
}

/// The thread of the timer is the only one in the child. Where it ends, the child does.
#[test]
#[cfg(target_os = "linux")]
fn in_the_child_of_a_task_that_forks_no_other_task_runs() {
    if ran_alone("in_the_child_of_a_task_that_forks_no_other_task_runs") {
        return;
    }
    let clock = ManualClock::new();
    let timer = HashedWheelTimer::builder().clock(Arc::new(clock.clone())).build().unwrap();
    let (children, child) = bounded(1);
    let parent = process::id();
    let ran = Arc::new(AtomicBool::new(false));
    let (seen, left) = (Arc::clone(&ran), OfTheParent(parent));
    let forks = move || {
        if let Fork::Parent(child) = fork().unwrap() {
            children.send(child).unwrap();
        }
    };
    let other = move || {
        let _left = &left;
        if process::id() == parent {
            seen.store(true, Ordering::Relaxed);
        } else {
            process::exit(5);
        }
    };
    timer.schedule(SECOND, forks).unwrap();
    timer.schedule(SECOND, other).unwrap();
    timer.schedule_periodic(SECOND, Period::fixed_rate(SECOND), || {}).unwrap();
    clock.advance(SECOND * 2);
    assert!(ran.load(Ordering::Relaxed));
    let child = child.recv().unwrap();
    let limit = SystemClock.now() + SECOND * 30;
    let status = loop {
        if let Some(status) = waitpid_nohang(child).unwrap() {
            break status;
        }
        if SystemClock.now() > limit {
            let killed = Command::new("kill").args(["-9", &child.to_string()]).status();
            panic!("the child's thread goes on: {killed:?}");
        }
        thread::yield_now();
    };
    assert_eq!(exit_code(status), 0);
}
