//! Handles: those that reschedule by a delay, cancel when they are dropped, or keep no timer alive.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crossbeam_channel::{TryRecvError, unbounded};
use hashed_wheel::{
    BatchTimer, Clock, HashedWheelTimer, ManualClock, Period, ScheduleError, WeakTimer,
};

const SECOND: Duration = Duration::from_secs(1);

fn timer() -> (ManualClock, HashedWheelTimer) {
    let clock = ManualClock::new();
    let timer = HashedWheelTimer::builder().clock(Arc::new(clock.clone())).build().unwrap();
    (clock, timer)
}

/// A task that counts its runs.
fn counter() -> (Arc<AtomicUsize>, impl FnMut() + Clone + Send + 'static) {
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let count = move || {
        counted.fetch_add(1, Ordering::SeqCst);
    };
    (runs, count)
}

#[test]
fn weak_timer_task_reschedules_and_does_not_keep_timer_alive() {
    fn again(timer: &WeakTimer, alive: &Arc<()>) {
        let (weak, alive) = (timer.clone(), Arc::clone(alive));
        timer.schedule(SECOND, move || again(&weak, &alive)).ok();
    }
    let (clock, timer) = timer();
    let alive = Arc::new(());
    again(&timer.downgrade(), &alive);
    clock.advance(SECOND * 10);
    assert_eq!(timer.statistics().fired, 10);
    let weak = timer.downgrade();
    drop(timer);
    assert_eq!(Arc::strong_count(&alive), 1, "the pending task was dropped with its timer");
    let error = weak.schedule(SECOND, || {}).unwrap_err();
    assert!(matches!(error, ScheduleError::Stopped(_)));
    let error = weak.schedule_at(clock.now(), || {}).unwrap_err();
    assert!(matches!(error, ScheduleError::Stopped(_)));
    let error = weak.schedule_periodic(SECOND, Period::fixed_delay(SECOND), || {}).unwrap_err();
    assert!(matches!(error, ScheduleError::Stopped(_)));
}

#[test]
fn schedule_at_on_timer_or_weak_timer_runs_at_given_instant() {
    let (clock, timer) = timer();
    let (runs, count) = counter();
    let deadline = clock.now() + SECOND;
    let own = timer.schedule_at(deadline, count.clone()).unwrap();
    let weak = timer.downgrade().schedule_at(deadline, count).unwrap();
    assert_eq!((own.deadline(), weak.deadline()), (Some(deadline), Some(deadline)));
    clock.advance(SECOND);
    assert_eq!(runs.load(Ordering::SeqCst), 2);
}

#[test]
fn weak_batch_timer_works_until_timer_is_dropped() {
    let clock = ManualClock::new();
    let (sender, receiver) = unbounded();
    let timer = BatchTimer::builder()
        .clock(Arc::new(clock.clone()))
        .build_batch(move |batch: &mut Vec<u32>| {
            batch.drain(..).for_each(|value| sender.send(value).unwrap());
        })
        .unwrap();
    let weak = timer.downgrade();
    let early = weak.schedule(SECOND, 1).unwrap();
    let late = weak.schedule_at(clock.now() + SECOND, 2).unwrap();
    assert_eq!((timer.get(early), weak.get(late)), (Some(1), Some(2)));
    assert!(weak.reschedule_after(late, SECOND * 5));
    assert_eq!(timer.deadline(late), Some(clock.now() + SECOND * 5));
    assert!(weak.reschedule(late, clock.now() + SECOND * 3));
    clock.advance(SECOND * 2);
    assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [1]);
    assert_eq!((weak.cancel(early), timer.cancel(late)), (None, Some(2)));
    let mut keys = Vec::new();
    weak.schedule_many(&mut vec![(SECOND, 3), (SECOND, 4)], &mut keys).unwrap();
    assert_eq!(weak.cancel_many(&keys[..1]), [3]);
    assert_eq!(weak.clear(), [4]);
    drop(timer);
    let mut refused = vec![(SECOND, 5), (SECOND, 6)];
    assert!(matches!(weak.schedule_many(&mut refused, &mut keys), Err(ScheduleError::Stopped(()))));
    assert_eq!(refused, [(SECOND, 5), (SECOND, 6)]);
    assert!(matches!(weak.schedule(SECOND, 7), Err(ScheduleError::Stopped(7))));
    assert_eq!((weak.cancel(keys[1]), weak.deadline(keys[1])), (None, None));
}

#[test]
fn handler_schedules_on_own_timer_without_keeping_timer_alive() {
    let clock = ManualClock::new();
    let alive = Arc::new(1);
    let of_handler = Arc::clone(&alive);
    let builder = BatchTimer::builder().clock(Arc::new(clock.clone()));
    let built = builder.build_batch_cyclic(|timer| {
        // Due as usual, though there is no handler yet.
        timer.schedule(SECOND, 1).unwrap();
        move |batch: &mut Vec<u32>| {
            for number in batch.drain(..) {
                timer.schedule(SECOND, number + *of_handler).unwrap();
            }
        }
    });
    let timer = built.unwrap();
    clock.advance(SECOND * 10);
    assert_eq!((timer.statistics().fired, timer.clear()), (10, vec![11]));
    drop(timer);
    assert_eq!(Arc::strong_count(&alive), 1, "the handler is gone with its timer");
}

#[test]
fn no_handler_is_made_for_settings_that_are_out_of_range() {
    let builder = BatchTimer::builder;
    for builder in [builder().ticks_per_wheel(0), builder().max_pending_timeouts(0)] {
        let mut is_made = false;
        let built = builder.build_batch_cyclic(|_| {
            is_made = true;
            |_: &mut Vec<u32>| {}
        });
        assert!(built.is_err() && !is_made);
    }
}

#[test]
fn cancel_on_drop_handle_cancels_once_unless_disarmed() {
    let (clock, timer) = timer();
    let (runs, count) = counter();
    let (dropped, disarmed) = (count.clone(), count.clone());
    drop(timer.schedule(SECOND, dropped).unwrap().cancel_on_drop());
    timer.schedule(SECOND, disarmed).unwrap().cancel_on_drop().disarm();
    let periodic = timer.schedule_periodic(SECOND, Period::fixed_rate(SECOND), count);
    let handle = periodic.unwrap();
    let guard = handle.clone().cancel_on_drop();
    assert_eq!(timer.pending_timeouts(), 2);
    clock.advance(SECOND * 2);
    assert_eq!((runs.load(Ordering::SeqCst), guard.runs()), (3, 2));
    drop(guard);
    assert!(handle.is_ended());
    clock.advance(SECOND * 2);
    assert_eq!(runs.load(Ordering::SeqCst), 3);
}

#[test]
fn rescheduling_by_a_delay_counts_from_now() {
    let (clock, timer) = timer();
    let (runs, count) = counter();
    let timeout = timer.schedule(SECOND * 30, count).unwrap();
    clock.advance(SECOND * 20);
    assert!(timeout.reschedule_after(SECOND * 30));
    assert_eq!(timeout.deadline(), Some(clock.now() + SECOND * 30));
    clock.advance(SECOND * 29);
    assert_eq!(runs.load(Ordering::SeqCst), 0);
    clock.advance(SECOND);
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert!(!timeout.reschedule_after(SECOND));
}

#[test]
fn rescheduled_periodic_task_keeps_rate_from_new_deadline() {
    let (clock, timer) = timer();
    let start = clock.now();
    let beat = timer.schedule_periodic(SECOND, Period::fixed_rate(SECOND), || {}).unwrap();
    clock.advance(Duration::from_millis(3500));
    assert_eq!(beat.runs(), 3);
    assert!(beat.reschedule_after(Duration::from_millis(200)));
    clock.advance(Duration::from_millis(200));
    assert_eq!((beat.runs(), beat.deadline()), (4, Some(start + Duration::from_millis(4700))));
    assert!(beat.reschedule(start + SECOND * 9));
    clock.advance(SECOND * 6);
    assert_eq!((beat.runs(), beat.deadline()), (5, Some(start + SECOND * 10)));
    // Beyond all instants: it never runs, and can still be ended or called back.
    assert!(beat.reschedule_after(Duration::MAX));
    clock.advance(SECOND * 1000);
    assert_eq!((beat.runs(), beat.deadline()), (5, None));
    assert!(beat.reschedule(clock.now() + SECOND));
    clock.advance(SECOND);
    assert_eq!(beat.runs(), 6);
    assert!(beat.cancel() && !beat.reschedule_after(SECOND));
}

#[test]
fn a_channel_ends_with_its_handle() {
    let (clock, timer) = timer();
    let (after, timeout) = timer.after(SECOND).unwrap();
    let (interval, periodic) = timer.interval(SECOND).unwrap();
    assert!(timeout.cancel() && periodic.cancel());
    assert_eq!(after.try_recv(), Err(TryRecvError::Disconnected));
    assert_eq!(interval.try_recv(), Err(TryRecvError::Disconnected));
    assert_eq!(timer.pending_timeouts(), 0);
    clock.advance(SECOND * 2);
    assert_eq!(timer.statistics().fired, 0);
}
