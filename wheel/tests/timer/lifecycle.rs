//! How a timer starts and stops, and what a clock waits for meanwhile.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use hashed_wheel::{BuildError, Clock, HashedWheelTimer, ManualClock, Parker};

const SECOND: Duration = Duration::from_secs(1);

/// Set in a process of one test that can start no threads.
const THREADLESS: &str = "HASHED_WHEEL_TEST_THREADLESS";

#[test]
fn failed_thread_start_is_an_error_and_blocks_no_thread() {
    if std::env::var_os(THREADLESS).is_none() {
        // A stack for which no machine has the address space: every thread is refused.
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--test-threads=1"])
            .arg("lifecycle::failed_thread_start_is_an_error_and_blocks_no_thread")
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
    assert!(matches!(builder.build(), Err(BuildError::ThreadSpawn(_))));
    // It would panic after two minutes if it waited for a ticker that does not exist.
    clock.advance(SECOND);
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
    let build = || {
        let (sender, bomb) = (sender.clone(), Bomb);
        HashedWheelTimer::builder()
            .on_panic(move |_| sender.send(()).unwrap())
            .build_batch(move |_: &mut Vec<u32>| {
                let _own = &bomb;
            })
            .unwrap()
    };
    let timer = build();
    timer.stop().unwrap();
    assert_eq!((timer.statistics().panicked, reports.try_iter().count()), (1, 1));
    drop(build());
    assert_eq!(reports.try_iter().count(), 1);
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
fn thread_passing_time_moves_manual_clock_and_runs_due_tasks() {
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
