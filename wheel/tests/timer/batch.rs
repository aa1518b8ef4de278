//! The batch timer: batches, wake-ups, and a comparison with a list of deadlines.

use std::collections::BTreeMap;
use std::mem;
use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, unbounded};
use hashed_wheel::{
    BatchTimer, Clock, HashedWheelTimer, ManualClock, Parker, ScheduleError, StopError,
    TimerBuilder, TimerKey,
};
use proptest::prelude::*;

use crate::values;

const TICK: Duration = Duration::from_millis(10);
const SECOND: Duration = Duration::from_secs(1);

/// A timer whose handler sends each batch to a channel.
fn timer(
    settings: impl FnOnce(TimerBuilder) -> TimerBuilder,
) -> (ManualClock, BatchTimer<u64>, Receiver<Vec<u64>>) {
    let clock = ManualClock::new();
    let (sender, receiver) = unbounded();
    let builder = HashedWheelTimer::builder().tick_duration(TICK).clock(Arc::new(clock.clone()));
    let timer = settings(builder)
        .build_batch(move |batch: &mut Vec<u64>| sender.send(mem::take(batch)).unwrap())
        .unwrap();
    (clock, timer, receiver)
}

/// A manual clock that counts how often a thread parks on it: once for every time that it was
/// woken.
#[derive(Clone, Debug)]
struct Counting {
    clock: ManualClock,
    parks: Arc<AtomicUsize>,
}

impl Counting {
    fn new() -> Self {
        Self { clock: ManualClock::new(), parks: Arc::default() }
    }

    fn timer(&self) -> BatchTimer<u64> {
        let timer = HashedWheelTimer::builder()
            .tick_duration(TICK)
            .clock(Arc::new(self.clone()))
            .build_batch(|_: &mut Vec<u64>| {})
            .unwrap();
        self.clock.wait_until_idle();
        timer
    }

    /// How often a thread was woken by what `action` does.
    fn wake_ups(&self, action: impl FnOnce()) -> usize {
        let before = self.parks.load(Ordering::SeqCst);
        action();
        self.clock.wait_until_idle();
        self.parks.load(Ordering::SeqCst) - before
    }
}

impl Clock for Counting {
    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn park(&self, parker: &Parker, deadline: Option<Instant>, interrupt: &Receiver<()>) {
        self.parks.fetch_add(1, Ordering::SeqCst);
        self.clock.park(parker, deadline, interrupt);
    }
}

#[test]
fn values_due_together_come_in_one_batch() {
    let (clock, timer, batches) = timer(|builder| builder);
    for value in 0..10 {
        timer.schedule(SECOND, value).unwrap();
    }
    clock.advance(SECOND);
    assert_eq!(batches.try_iter().collect::<Vec<_>>(), [(0..10).collect::<Vec<_>>()]);
}

#[test]
fn batch_size_is_bounded_and_no_value_is_lost_between_batches() {
    let (clock, timer, batches) = timer(|builder| builder);
    for value in 0..5000 {
        timer.schedule(SECOND, value).unwrap();
    }
    clock.advance(SECOND);
    let batches: Vec<_> = batches.try_iter().collect();
    assert_eq!(batches.iter().map(Vec::len).collect::<Vec<_>>(), [1024, 1024, 1024, 1024, 904]);
    assert_eq!(batches.concat(), (0..5000).collect::<Vec<_>>());
}

#[test]
fn an_idle_timer_does_not_wake_up() {
    let counting = Counting::new();
    let timer = counting.timer();
    assert_eq!(counting.wake_ups(|| counting.clock.advance(SECOND * 3600)), 0);
    drop(timer);
}

#[test]
fn one_far_timeout_wakes_the_ticker_once_when_it_is_due() {
    let counting = Counting::new();
    let timer = counting.timer();
    let hours = TICK * 3_600_000;
    let wake_ups = counting.wake_ups(|| {
        timer.schedule(hours, 1).unwrap();
    });
    assert_eq!(wake_ups, 1, "it learns of the timeout");
    assert_eq!(counting.wake_ups(|| counting.clock.advance(TICK * 3_599_999)), 0);
    assert_eq!(counting.wake_ups(|| counting.clock.advance(TICK)), 1);
    assert_eq!(counting.wake_ups(|| counting.clock.advance(hours)), 0);
}

#[test]
fn schedule_and_cancel_on_idle_timer_wake_ticker_once_per_delay() {
    let counting = Counting::new();
    let timer = counting.timer();
    let wake_ups = counting.wake_ups(|| {
        for round in 0..1000 {
            let key = timer.schedule(SECOND, round).unwrap();
            assert_eq!(timer.cancel(key), Some(round));
            // Ten pairs per tick: ten seconds in all.
            if round % 10 == 0 {
                counting.clock.advance(TICK);
            }
        }
    });
    // One for the first, then at each next wake one that finds nothing and one for the next
    // timeout.
    assert!(wake_ups <= 4, "{wake_ups} wake-ups");
}

#[test]
fn a_value_due_after_the_next_wake_does_not_wake_the_ticker() {
    let counting = Counting::new();
    let timer = counting.timer();
    timer.schedule(SECOND, 0).unwrap();
    counting.clock.wait_until_idle();
    let wake_ups = counting.wake_ups(|| {
        // From several threads, so in several shards.
        thread::scope(|scope| {
            for thread in 0..8 {
                let timer = &timer;
                scope.spawn(move || {
                    for value in 0..100 {
                        timer.schedule(SECOND + TICK * thread, value).unwrap();
                    }
                });
            }
        });
    });
    assert_eq!(wake_ups, 0);
    assert_eq!(timer.pending_timeouts(), 801);
}

#[test]
fn a_value_due_before_the_next_wake_is_on_time() {
    let (clock, timer, batches) = timer(|builder| builder);
    for (value, seconds) in [(1, 100), (2, 50), (3, 10), (4, 1)] {
        timer.schedule(SECOND * seconds, value).unwrap();
        clock.wait_until_idle();
    }
    for (elapsed, expected) in [(1, 4), (9, 3), (40, 2), (50, 1)] {
        clock.advance(SECOND * elapsed);
        assert_eq!(batches.try_iter().collect::<Vec<_>>(), [[expected]]);
    }
}

#[test]
fn schedule_many_delivers_each_value_after_own_delay() {
    let (clock, timer, batches) = timer(|builder| builder);
    // The ticker sleeps to this one, and is woken for the others.
    timer.schedule(SECOND * 60, 60).unwrap();
    clock.wait_until_idle();
    let mut timeouts = vec![(SECOND * 3, 3), (SECOND, 1), (SECOND * 2, 2)];
    timer.schedule_many(&mut timeouts, &mut Vec::new()).unwrap();
    assert_eq!(timer.statistics().scheduled, 4);
    for seconds in 1..=3 {
        clock.advance(SECOND);
        assert_eq!(batches.try_iter().collect::<Vec<_>>(), [[seconds]]);
    }
}

#[test]
fn capacity_freed_on_second_thread_serves_schedule_many() {
    const LIMIT: usize = 1500;
    // The two threads usually have different shards.
    for _ in 0..4 {
        let (clock, timer, _batches) = timer(|builder| builder.max_pending_timeouts(LIMIT));
        let schedule = |count: usize| {
            let mut keys = Vec::new();
            timer.schedule_many(&mut vec![(SECOND, 0); count], &mut keys).unwrap();
            keys
        };
        thread::scope(|scope| {
            scope.spawn(|| timer.cancel_many(&schedule(LIMIT)[..50]));
        });
        let due = Some(clock.now() + SECOND);
        assert!(schedule(50).into_iter().all(|key| timer.deadline(key) == due));
    }
}

#[test]
fn a_handler_that_panics_loses_its_batch_and_nothing_else() {
    let clock = ManualClock::new();
    let (sender, receiver) = unbounded();
    let hooked = Arc::new(AtomicBool::new(false));
    let hook = Arc::clone(&hooked);
    let timer = HashedWheelTimer::builder()
        .clock(Arc::new(clock.clone()))
        .on_panic(move |_| hook.store(true, Ordering::SeqCst))
        .build_batch(move |batch: &mut Vec<u64>| {
            if batch.contains(&13) {
                panic::resume_unwind(Box::new("on purpose"));
            }
            sender.send(batch.split_off(0)).unwrap();
        })
        .unwrap();
    timer.schedule(SECOND, 13).unwrap();
    timer.schedule(SECOND * 2, 14).unwrap();
    clock.advance(SECOND * 2);
    assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [[14]]);
    assert_eq!(timer.statistics().panicked, 1);
    assert!(hooked.load(Ordering::SeqCst));
}

#[test]
fn unhandled_values_are_dropped_and_destructor_panic_is_caught() {
    struct Bomb(bool);
    impl Drop for Bomb {
        fn drop(&mut self) {
            if self.0 {
                panic::resume_unwind(Box::new("in a destructor"));
            }
        }
    }
    let clock = ManualClock::new();
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let timer = HashedWheelTimer::builder()
        .clock(Arc::new(clock.clone()))
        .build_batch(move |_: &mut Vec<Bomb>| {
            count.fetch_add(1, Ordering::SeqCst);
        })
        .unwrap();
    timer.schedule(SECOND, Bomb(true)).unwrap();
    timer.schedule(SECOND, Bomb(false)).unwrap();
    timer.schedule(SECOND * 2, Bomb(false)).unwrap();
    clock.advance(SECOND * 2);
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    assert_eq!(timer.statistics().panicked, 1);
}

#[test]
fn stop_returns_the_values_and_is_an_error_in_the_handler() {
    let clock = ManualClock::new();
    let timer = Arc::new(std::sync::OnceLock::<Arc<BatchTimer<u64>>>::new());
    let (sender, receiver) = unbounded();
    let inner = Arc::clone(&timer);
    let built = HashedWheelTimer::builder()
        .clock(Arc::new(clock.clone()))
        .build_batch(move |_: &mut Vec<u64>| {
            sender.send(inner.get().unwrap().stop()).unwrap();
        })
        .unwrap();
    let built = timer.get_or_init(|| Arc::new(built));
    built.schedule(SECOND, 1).unwrap();
    built.schedule(SECOND * 9, 9).unwrap();
    built.schedule(SECOND * 5, 5).unwrap();
    clock.advance(SECOND);
    assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [Err(StopError::OnTickerThread)]);
    assert_eq!(values(built.stop()), [5, 9]);
    assert_eq!(built.stop(), Ok(vec![]));
    let error = built.schedule(SECOND, 7).unwrap_err();
    assert!(matches!(error, ScheduleError::Stopped(7)));
    assert!(!error.is_transient());
}

#[test]
fn stop_returns_values_of_all_threads_in_tick_order() {
    let (_clock, timer, _batches) = timer(|builder| builder);
    for thread in 0..4_u32 {
        thread::scope(|scope| {
            scope.spawn(|| {
                for seconds in [9 - thread, 20 + thread] {
                    timer.schedule(SECOND * seconds, u64::from(seconds)).unwrap();
                }
            });
        });
    }
    assert_eq!(values(timer.stop()), [6, 7, 8, 9, 20, 21, 22, 23]);
}

#[test]
fn a_stop_during_a_backlog_neither_loses_nor_repeats_a_value() {
    let clock = ManualClock::new();
    let (sender, receiver) = unbounded();
    let (entered, wait_entered) = unbounded();
    let (release, released) = unbounded::<()>();
    let timer = HashedWheelTimer::builder()
        .clock(Arc::new(clock.clone()))
        .build_batch(move |batch: &mut Vec<u64>| {
            entered.send(()).unwrap();
            released.recv().ok();
            sender.send(batch.split_off(0)).unwrap();
        })
        .unwrap();
    for value in 0..10_000 {
        timer.schedule(SECOND, value).unwrap();
    }
    let unprocessed = thread::scope(|scope| {
        scope.spawn(|| clock.advance(SECOND));
        wait_entered.recv().unwrap();
        let stopper = scope.spawn(|| values(timer.stop()));
        // The first batch continues, and the ones after it do not block.
        drop(release);
        stopper.join().unwrap()
    });
    let mut seen: Vec<u64> = receiver.try_iter().flatten().chain(unprocessed).collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..10_000).collect::<Vec<_>>());
}

#[test]
fn after_a_stop_only_the_current_batch_of_a_backlog_is_handled() {
    let clock = ManualClock::new();
    let (sender, receiver) = unbounded();
    let (entered, wait_entered) = unbounded();
    let (release, released) = unbounded::<()>();
    let timer = HashedWheelTimer::builder()
        .clock(Arc::new(clock.clone()))
        .build_batch(move |batch: &mut Vec<u64>| {
            entered.send(()).unwrap();
            released.recv().ok();
            sender.send(batch.split_off(0)).unwrap();
        })
        .unwrap();
    for value in 0..3000 {
        timer.schedule(SECOND, value).unwrap();
    }
    let mut unprocessed = thread::scope(|scope| {
        scope.spawn(|| clock.advance(SECOND));
        wait_entered.recv().unwrap();
        let stopper = scope.spawn(|| values(timer.stop()));
        // Until the other thread is stopping the timer and waits for the handler.
        while timer.schedule(Duration::MAX, u64::MAX).map(|key| timer.cancel(key)).is_ok() {
            thread::yield_now();
        }
        drop(release);
        stopper.join().unwrap()
    });
    assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [(0..1024).collect::<Vec<_>>()]);
    // The stop may have come between scheduling a probe and cancelling it.
    unprocessed.retain(|value| *value != u64::MAX);
    assert_eq!(unprocessed, (1024..3000).collect::<Vec<_>>());
}

#[test]
fn a_key_works_from_any_thread() {
    let (_clock, timer, _batches) = timer(|builder| builder);
    let key = timer.schedule(SECOND, 7).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            assert!(timer.deadline(key).is_some());
            assert!(timer.reschedule(key, timer.clock().now() + SECOND * 2));
            assert_eq!(timer.cancel(key), Some(7));
        });
    });
    assert_eq!(timer.cancel(key), None);
    assert_eq!(timer.deadline(key), None);
}

#[test]
fn a_key_of_another_timer_does_nothing() {
    let (_clock, first, _batches) = timer(|builder| builder);
    let (_clock, second, _batches) = timer(|builder| builder);
    let (key, stranger) = (first.schedule(SECOND, 1).unwrap(), second.schedule(SECOND, 2).unwrap());
    assert_ne!(key, stranger);
    let deadline = first.deadline(key);
    assert!(!first.reschedule(stranger, first.clock().now() + SECOND * 2));
    assert_eq!(first.deadline(stranger), None);
    assert_eq!((first.cancel(stranger), first.get(stranger)), (None, None));
    assert!(first.cancel_many(&[stranger]).is_empty());
    assert_eq!((first.deadline(key), first.pending_timeouts()), (deadline, 1));
    // Nor does a key of a timer that was dropped.
    drop(second);
    let (_clock, third, _batches) = timer(|builder| builder);
    third.schedule(SECOND, 3).unwrap();
    assert_eq!((third.cancel(key), third.cancel(stranger)), (None, None));
    assert_eq!(first.cancel(key), Some(1));
    assert_eq!(size_of::<TimerKey>(), 16);
}

#[test]
fn a_timer_can_be_shared_and_sent() {
    fn shared<T: Send + Sync>() {}
    shared::<BatchTimer<std::cell::Cell<u8>>>();
    shared::<HashedWheelTimer>();
    shared::<hashed_wheel::Timeout>();
}

#[derive(Clone, Debug)]
enum Operation {
    Schedule(u64),
    ScheduleAt(i64),
    Cancel(prop::sample::Index),
    Reschedule(prop::sample::Index, u64),
    Advance(u64),
    Jump(u64),
}

/// In microseconds, so that most deadlines are between ticks; some are several laps of the small
/// wheel ahead.
fn delay() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0_u64..100_000,
        2 => (0_u64..30).prop_map(|ticks| ticks * 10_000),
        1 => 0_u64..10_000_000,
        1 => Just(u64::MAX),
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        4 => delay().prop_map(Operation::Schedule),
        2 => (-100_000_i64..1_000_000).prop_map(Operation::ScheduleAt),
        2 => index().prop_map(Operation::Cancel),
        2 => (index(), 0_u64..1_000_000).prop_map(|(at, to)| Operation::Reschedule(at, to)),
        3 => (0_u64..50_000).prop_map(Operation::Advance),
        1 => (0_u64..2_000_000).prop_map(Operation::Advance),
        1 => (0_u64..2_000_000).prop_map(Operation::Jump),
    ]
}

/// The instant of a delay, if there is one.
fn after(now: Instant, micros: u64) -> Option<Instant> {
    // `u64::MAX` microseconds, 584,942 years, stands for never.
    (micros != u64::MAX).then(|| now + Duration::from_micros(micros))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_batch_timer_behaves_like_a_list_of_deadlines(
        buckets in prop_oneof![Just(1_usize), Just(8), Just(4096)],
        operations in prop::collection::vec(operation(), 1..60),
    ) {
        let (clock, timer, batches) = timer(|builder| builder.ticks_per_wheel(buckets));
        let mut pending: BTreeMap<u64, (TimerKey, Option<Instant>)> = BTreeMap::new();
        let mut keys: Vec<(u64, TimerKey)> = Vec::new();
        let mut values = 0..;
        for operation in operations {
            let now = clock.now();
            match operation {
                Operation::Schedule(micros) => {
                    let value = values.next().unwrap();
                    let delay = after(now, micros).map_or(Duration::MAX, |end| end - now);
                    let key = timer.schedule(delay, value).unwrap();
                    keys.push((value, key));
                    pending.insert(value, (key, after(now, micros)));
                }
                Operation::ScheduleAt(micros) => {
                    let value = values.next().unwrap();
                    let offset = Duration::from_micros(micros.unsigned_abs());
                    let deadline =
                        if micros < 0 { now.checked_sub(offset).unwrap_or(now) } else { now + offset };
                    let key = timer.schedule_at(deadline, value).unwrap();
                    keys.push((value, key));
                    // A deadline that has passed is due now.
                    pending.insert(value, (key, Some(deadline.max(now))));
                }
                Operation::Cancel(at) if !keys.is_empty() => {
                    // A value that is due may be taken at any moment: wait for that first.
                    clock.wait_until_idle();
                    check_fired(&clock, &batches, &mut pending)?;
                    let (value, key) = *at.get(&keys);
                    let expected = pending.remove(&value).map(|_| value);
                    prop_assert_eq!(timer.cancel(key), expected);
                }
                Operation::Reschedule(at, micros) if !keys.is_empty() => {
                    clock.wait_until_idle();
                    check_fired(&clock, &batches, &mut pending)?;
                    let (value, key) = *at.get(&keys);
                    let deadline = now + Duration::from_micros(micros);
                    let is_pending = pending.get_mut(&value).map(|entry| entry.1 = Some(deadline));
                    prop_assert_eq!(timer.reschedule(key, deadline), is_pending.is_some());
                }
                Operation::Advance(micros) => clock.advance(Duration::from_micros(micros)),
                Operation::Jump(micros) => clock.jump(Duration::from_micros(micros)),
                _ => {}
            }
            clock.wait_until_idle();
            check_fired(&clock, &batches, &mut pending)?;
            prop_assert_eq!(timer.pending_timeouts(), pending.len());
            for (key, deadline) in pending.values() {
                match (timer.deadline(*key), deadline) {
                    (None, None) => {}
                    // Rounded up to a tick, and to the next one for a deadline that has passed.
                    (Some(due), Some(deadline)) => {
                        prop_assert!(due >= *deadline);
                        prop_assert!(due < (*deadline).max(clock.now()) + TICK + TICK);
                    }
                    (due, deadline) => prop_assert!(false, "{due:?} for {deadline:?}"),
                }
            }
        }
        let mut unprocessed = crate::values(timer.stop());
        unprocessed.sort_unstable();
        prop_assert_eq!(unprocessed, pending.into_keys().collect::<Vec<_>>());
    }
}

/// Every value that was handed over was pending and had reached its deadline; every value that is a
/// tick past its deadline was handed over.
fn check_fired(
    clock: &ManualClock,
    batches: &Receiver<Vec<u64>>,
    pending: &mut BTreeMap<u64, (TimerKey, Option<Instant>)>,
) -> Result<(), TestCaseError> {
    let now = clock.now();
    for value in batches.try_iter().flatten() {
        let fired = pending.remove(&value);
        prop_assert!(fired.is_some(), "{value} was not pending");
        let deadline = fired.and_then(|(_, deadline)| deadline);
        prop_assert!(deadline.is_some_and(|deadline| deadline <= now), "{value} was early");
    }
    for (value, (_, deadline)) in pending {
        prop_assert!(deadline.is_none_or(|deadline| deadline + TICK > now), "{value} is late");
    }
    Ok(())
}

#[test]
fn every_destructor_that_panics_is_caught() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic::resume_unwind(Box::new("quietly"));
        }
    }
    let clock = ManualClock::new();
    let timer = HashedWheelTimer::builder()
        .clock(Arc::new(clock.clone()))
        .on_panic(|_| {})
        .build_batch(|_: &mut Vec<Bomb>| {})
        .unwrap();
    for _ in 0..3 {
        assert!(timer.schedule(Duration::from_secs(1), Bomb).is_ok());
        assert!(timer.schedule(Duration::from_secs(60), Bomb).is_ok());
    }
    clock.advance(Duration::from_secs(2));
    assert_eq!(timer.statistics().panicked, 3);
    // Pending values are dropped the same way, and `drop` does not panic.
    drop(timer);
}
