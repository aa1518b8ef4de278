//! Statistics, channels and executors.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{TryRecvError, unbounded};
use hashed_wheel::{Clock, HashedWheelTimer, ManualClock, Task, TimerBuilder};

const TICK: Duration = Duration::from_millis(10);
const SECOND: Duration = Duration::from_secs(1);

fn timer(settings: impl FnOnce(TimerBuilder) -> TimerBuilder) -> (ManualClock, HashedWheelTimer) {
    let clock = ManualClock::new();
    let builder = HashedWheelTimer::builder().tick_duration(TICK).clock(Arc::new(clock.clone()));
    (clock.clone(), settings(builder).build().unwrap())
}

#[test]
fn everything_that_happens_is_counted_once() {
    let (clock, timer) = timer(|builder| builder.max_pending_timeouts(4).on_panic(|_| {}));
    timer.schedule(SECOND, || {}).unwrap();
    timer.schedule(SECOND, || std::panic::resume_unwind(Box::new("quietly"))).unwrap();
    let cancelled = timer.schedule(SECOND, || {}).unwrap();
    let moved = timer.schedule(SECOND, || {}).unwrap();
    assert!(timer.schedule(SECOND, || {}).is_err());
    assert!(cancelled.cancel() && !cancelled.cancel());
    assert!(moved.reschedule(clock.now() + SECOND * 60));
    clock.advance(SECOND * 2);
    let statistics = timer.statistics();
    assert_eq!((statistics.scheduled, statistics.fired, statistics.cancelled), (4, 2, 1));
    assert_eq!((statistics.rejected, statistics.panicked, statistics.pending), (1, 1, 1));
}

#[test]
fn lateness_is_counted_from_the_tick_for_each_firing() {
    let (clock, timer) = timer(|builder| builder);
    for _ in 0..99 {
        timer.schedule(SECOND, || {}).unwrap();
    }
    clock.advance(SECOND);
    assert_eq!(timer.statistics().lateness.max, Duration::ZERO);
    timer.schedule(SECOND, || {}).unwrap();
    timer.schedule(SECOND * 2, || {}).unwrap();
    // As if the process had been stopped: both are late, each by a known time.
    clock.jump(SECOND * 5);
    let statistics = timer.statistics();
    assert_eq!(statistics.fired, 101);
    assert_eq!(statistics.lateness.p50, Duration::ZERO);
    assert_eq!(statistics.lateness.max, SECOND * 4);
    let exact = SECOND * 3;
    assert!(statistics.lateness.p99 >= exact && statistics.lateness.p99 <= exact + exact / 8);
}

#[test]
fn firings_of_a_batch_timer_are_counted() {
    let clock = ManualClock::new();
    let timer = HashedWheelTimer::builder()
        .clock(Arc::new(clock.clone()))
        .build_batch(|batch: &mut Vec<u32>| batch.clear())
        .unwrap();
    for number in 0..3000 {
        timer.schedule(SECOND * (1 + number % 2), number).unwrap();
    }
    clock.jump(SECOND * 3);
    let statistics = timer.statistics();
    assert_eq!((statistics.scheduled, statistics.fired, statistics.pending), (3000, 3000, 0));
    assert_eq!(statistics.lateness.max, SECOND * 2);
}

#[test]
fn a_task_on_an_executor_delays_nothing_on_the_timer() {
    let (queue, tasks) = unbounded::<Task>();
    let clock = ManualClock::new();
    let builder = HashedWheelTimer::builder().clock(Arc::new(clock.clone()));
    let timer = builder.build_with_executor(move |task| queue.send(task).unwrap()).unwrap();
    let (sender, receiver) = unbounded();
    let second = sender.clone();
    timer.schedule(SECOND, move || sender.send(1).unwrap()).unwrap();
    timer.schedule(SECOND, || std::panic::resume_unwind(Box::new("quietly"))).unwrap();
    timer.schedule(SECOND * 2, move || second.send(2).unwrap()).unwrap();
    clock.advance(SECOND * 3);
    assert!(receiver.is_empty());
    assert_eq!((timer.statistics().fired, timer.statistics().lateness.max), (3, Duration::ZERO));
    // The executor runs them when it likes, and the timer counts a panic there.
    for task in tasks.try_iter() {
        task();
    }
    assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [1, 2]);
    assert_eq!(timer.statistics().panicked, 1);
}

#[test]
fn an_executor_that_panics_is_called_for_the_next_task() {
    let clock = ManualClock::new();
    let builder = HashedWheelTimer::builder().clock(Arc::new(clock.clone()));
    let timer =
        builder.build_with_executor(|_task| std::panic::resume_unwind(Box::new("full"))).unwrap();
    for _ in 0..3 {
        timer.schedule(SECOND, || {}).unwrap();
    }
    clock.advance(SECOND * 2);
    let statistics = timer.statistics();
    assert_eq!((statistics.fired, statistics.panicked, statistics.pending), (3, 3, 0));
    assert!(timer.stop().unwrap().is_empty());
}

#[test]
fn after_sends_once_and_disconnects() {
    let (clock, timer) = timer(|builder| builder);
    let start = clock.now();
    let (receiver, _) = timer.after(SECOND).unwrap();
    clock.advance(TICK * 99);
    assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
    clock.advance(TICK);
    assert_eq!(receiver.try_recv(), Ok(start + SECOND));
    assert_eq!(receiver.try_recv(), Err(TryRecvError::Disconnected));
    let (orphan, _) = timer.after(SECOND).unwrap();
    drop(timer);
    assert_eq!(orphan.try_recv(), Err(TryRecvError::Disconnected));
}

#[test]
fn an_interval_holds_one_message_and_ends_with_its_receiver() {
    let (clock, timer) = timer(|builder| builder);
    let start = clock.now();
    let (receiver, _) = timer.interval(SECOND).unwrap();
    clock.advance(SECOND * 3);
    assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [start + SECOND]);
    clock.advance(SECOND);
    assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [start + SECOND * 4]);
    drop(receiver);
    clock.advance(SECOND);
    assert_eq!(timer.pending_timeouts(), 0);
}

#[test]
fn take_returns_the_cancelled_task() {
    let (clock, timer) = timer(|builder| builder);
    let (sender, receiver) = unbounded();
    let timeout = timer.schedule(SECOND, move || sender.send(7).unwrap()).unwrap();
    let task = timeout.take().unwrap();
    assert!(timeout.take().is_none() && !timeout.cancel() && timeout.is_cancelled());
    clock.advance(SECOND * 2);
    assert!(receiver.is_empty());
    task();
    assert_eq!(receiver.try_recv(), Ok(7));
}

#[test]
fn debug_shows_how_many_are_pending_and_when_the_next_is_due() {
    let (clock, timer) = timer(|builder| builder.on_panic(|_| {}));
    assert_eq!(
        format!("{timer:?}"),
        "HashedWheelTimer { pending: 0, next_due_in: None, panics: 0, .. }"
    );
    timer.schedule(Duration::MAX, || {}).unwrap();
    for seconds in 1..=40 {
        timer.schedule(SECOND * (41 - seconds), || {}).unwrap();
    }
    timer.schedule(SECOND, || std::panic::resume_unwind(Box::new("quietly"))).unwrap();
    clock.advance(SECOND * 3);
    assert_eq!(
        format!("{timer:?}"),
        "HashedWheelTimer { pending: 38, next_due_in: Some(1s), panics: 1, .. }"
    );
}
