//! The batch timer compared with a sorted map: every method, every way to stop, and when exactly
//! the handler is called.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::mem;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, TryRecvError, unbounded};
use hashed_wheel::{BatchTimer, Clock, ScheduleError, TimerKey, Unprocessed};
use proptest::prelude::*;
use proptest::sample::Index;

use crate::model::{AheadClock, Point, TICK, deadline, duration, instant, point, step, tick_of};

/// The most values that the handler gets at once.
const MAX_BATCH_VALUES: usize = 1024;

#[derive(Clone, Copy, Debug)]
enum Operation {
    Schedule(usize, Point),
    ScheduleAt(Point),
    /// On another thread, so perhaps in another shard.
    ScheduleElsewhere(Point),
    Cancel(Index),
    /// All in one call.
    ScheduleMany(usize, Point),
    /// Cancels many in a row, in one call.
    CancelMany(Index, usize),
    Clear,
    Reschedule(Index, Point),
    RescheduleAfter(Index, Point),
    Advance(Point),
    Jump(Point),
}

/// Operations of which one schedules or cancels `many` at most.
fn operations(many: usize) -> impl Strategy<Value = Vec<Operation>> {
    let index = any::<Index>;
    let operation = prop_oneof![
        6 => (1..=many, point()).prop_map(|(count, at)| Operation::Schedule(count, at)),
        6 => point().prop_map(Operation::ScheduleAt),
        2 => point().prop_map(Operation::ScheduleElsewhere),
        2 => (1..=many, point()).prop_map(|(count, at)| Operation::ScheduleMany(count, at)),
        3 => index().prop_map(Operation::Cancel),
        1 => (index(), 1..=many).prop_map(|(from, count)| Operation::CancelMany(from, count)),
        1 => Just(Operation::Clear),
        4 => (index(), point()).prop_map(|(of, to)| Operation::Reschedule(of, to)),
        2 => (index(), point()).prop_map(|(of, to)| Operation::RescheduleAfter(of, to)),
        4 => step().prop_map(Operation::Advance),
        1 => (0..u64::MAX / 8).prop_map(|years| Operation::Advance(Point::Ahead(years))),
        2 => step().prop_map(Operation::Jump),
    ];
    prop::collection::vec(operation, 1..200)
}

#[derive(Clone, Copy, Debug)]
enum Ending {
    Stop,
    Drop,
}

fn ending() -> impl Strategy<Value = Ending> {
    prop_oneof![Just(Ending::Stop), Just(Ending::Drop)]
}

/// A timer without a wheel, a shard or a thread.
#[derive(Default)]
struct Model {
    /// In nanoseconds after the start.
    now: u64,
    sequence: u64,
    /// The numbers of the values, by due tick and the order in which they were scheduled for it.
    pending: BTreeMap<(u64, u64), usize>,
    /// The position of each pending value.
    positions: Vec<Option<(u64, u64)>>,
    scheduled: u64,
    fired: u64,
    cancelled: u64,
    rejected: u64,
}

impl Model {
    fn elapsed(&self) -> u64 {
        self.now / TICK
    }

    fn put(&mut self, number: usize, tick: u64) {
        self.sequence += 1;
        self.pending.insert((tick, self.sequence), number);
        self.positions[number] = Some((tick, self.sequence));
    }

    fn remove(&mut self, number: usize) -> bool {
        let position = self.positions[number].take();
        position.is_some_and(|position| self.pending.remove(&position).is_some())
    }

    /// Takes out what is due by now: ticks and numbers.
    fn take_due(&mut self) -> Vec<(u64, usize)> {
        let later = self.pending.split_off(&(self.elapsed() + 1, 0));
        let due = mem::replace(&mut self.pending, later);
        self.fired += due.len() as u64;
        due.into_iter()
            .map(|((tick, _), number)| {
                self.positions[number] = None;
                (tick, number)
            })
            .collect()
    }
}

struct TimerAndModel {
    buckets: usize,
    limit: Option<usize>,
    clock: AheadClock,
    start: Instant,
    timer: BatchTimer<Arc<usize>>,
    handed_over: Receiver<(Instant, Vec<Arc<usize>>)>,
    /// By number. Their reference counts tell whether the timer still has them.
    values: Vec<Arc<usize>>,
    keys: Vec<TimerKey>,
    /// What other threads have scheduled.
    elsewhere: BTreeSet<usize>,
    model: Model,
}

impl TimerAndModel {
    fn new(buckets: usize, limit: Option<usize>) -> Self {
        let clock = AheadClock::new();
        let (sender, handed_over) = unbounded();
        let mut builder = BatchTimer::builder()
            .tick_duration(Duration::from_nanos(TICK))
            .ticks_per_wheel(buckets)
            .clock(Arc::new(clock.clone()));
        if let Some(limit) = limit {
            builder = builder.max_pending_timeouts(limit);
        }
        let of_handler = clock.clone();
        let timer = builder
            .build_batch(move |batch: &mut Vec<Arc<usize>>| {
                sender.send((of_handler.now(), mem::take(batch))).unwrap();
            })
            .unwrap();
        Self {
            buckets,
            limit,
            start: clock.now(),
            clock,
            timer,
            handed_over,
            values: Vec::new(),
            keys: Vec::new(),
            elsewhere: BTreeSet::new(),
            model: Model::default(),
        }
    }

    /// What the handler got, and when.
    fn fired(&self) -> Vec<(Instant, usize)> {
        let batches = self.handed_over.try_iter().inspect(|(_, batch)| {
            assert!((1..=MAX_BATCH_VALUES).contains(&batch.len()));
        });
        batches.flat_map(|(at, batch)| batch.into_iter().map(move |value| (at, *value))).collect()
    }

    /// The same values at the same times, and in the same order as far as one thread has scheduled
    /// them.
    fn compare<T: Copy + Debug + Ord>(&self, given: &[(T, usize)], expected: &[(T, usize)]) {
        let times = |values: &[(T, usize)]| values.iter().map(|(at, _)| *at).collect::<Vec<_>>();
        let here = |values: &[(T, usize)]| {
            let here = values.iter().filter(|(_, number)| !self.elsewhere.contains(number));
            here.copied().collect::<Vec<_>>()
        };
        let sorted = |values: &[(T, usize)]| values.iter().copied().collect::<BTreeSet<_>>();
        assert_eq!(given.len(), expected.len());
        assert_eq!(here(given), here(expected));
        assert_eq!((times(given), sorted(given)), (times(expected), sorted(expected)));
    }

    fn schedule(
        &mut self,
        at: Option<i128>,
        schedule: impl FnOnce(&Self, Arc<usize>) -> Result<TimerKey, ScheduleError<Arc<usize>>>,
    ) {
        let number = self.values.len();
        let value = Arc::new(number);
        let result = schedule(self, Arc::clone(&value));
        if self.limit == Some(self.model.pending.len()) {
            let error = result.unwrap_err();
            assert!(matches!(&error, ScheduleError::Full(_)) && error.is_transient());
            assert!(Arc::ptr_eq(&error.into_inner(), &value));
            self.model.rejected += 1;
            return;
        }
        self.values.push(value);
        self.keys.push(result.unwrap());
        self.model.positions.push(None);
        self.model.scheduled += 1;
        self.put(number, tick_of(at));
    }

    /// Schedules many in one call. What a full timer refuses stays in the vector.
    fn schedule_many(&mut self, count: usize, at: Option<i128>, delay: Duration) {
        let first = self.values.len();
        let free = self.limit.map_or(count, |limit| limit - self.model.pending.len());
        let mut timeouts: Vec<_> =
            (first..first + count).map(|number| (delay, Arc::new(number))).collect();
        let mut values: Vec<_> = timeouts.iter().map(|(_, value)| Arc::clone(value)).collect();
        let before = self.keys.len();
        let result = self.timer.schedule_many(&mut timeouts, &mut self.keys);
        assert_eq!(result.is_err(), free < count);
        if let Err(error) = result {
            assert!(matches!(error, ScheduleError::Full(())));
            self.model.rejected += 1;
        }
        let scheduled = self.keys.len() - before;
        assert_eq!(scheduled, free.min(count));
        let refused: Vec<_> = timeouts.iter().map(|(_, value)| **value).collect();
        assert_eq!(refused, (first + scheduled..first + count).collect::<Vec<_>>());
        values.truncate(scheduled);
        self.values.append(&mut values);
        self.model.scheduled += scheduled as u64;
        for number in first..first + scheduled {
            self.model.positions.push(None);
            self.put(number, tick_of(at));
        }
    }

    /// Cancels what the model has pending of these, in one call.
    fn cancel_many(&mut self, numbers: impl Iterator<Item = usize> + Clone) {
        let keys: Vec<_> = numbers.clone().map(|number| self.keys[number]).collect();
        let expected: Vec<_> = numbers.filter(|number| self.model.remove(*number)).collect();
        self.model.cancelled += expected.len() as u64;
        let cancelled: Vec<_> =
            self.timer.cancel_many(&keys).into_iter().map(|value| ((), *value)).collect();
        let expected: Vec<_> = expected.into_iter().map(|number| ((), number)).collect();
        self.compare(&cancelled, &expected);
    }

    fn clear(&mut self) {
        let mut expected: Vec<_> = mem::take(&mut self.model.pending).into_values().collect();
        self.model.cancelled += expected.len() as u64;
        for number in &expected {
            self.model.positions[*number] = None;
        }
        let mut cleared: Vec<_> = self.timer.clear().into_iter().map(|value| *value).collect();
        cleared.sort_unstable();
        expected.sort_unstable();
        assert_eq!(cleared, expected);
    }

    /// Enters a value with a new deadline into the model.
    fn put(&mut self, number: usize, tick: u64) {
        if tick > self.model.elapsed() {
            self.model.put(number, tick);
            return;
        }
        // If it is due already, it runs at once or at the next tick.
        self.clock.manual.wait_until_idle();
        let fired = self.fired();
        if fired.is_empty() {
            self.model.put(number, self.model.elapsed() + 1);
        } else {
            assert_eq!(fired, [(self.clock.now(), number)]);
            self.model.fired += 1;
        }
    }

    fn cancel(&mut self, number: usize) {
        let expected = self.model.remove(number);
        self.model.cancelled += u64::from(expected);
        let value = self.timer.cancel(self.keys[number]);
        assert_eq!(value, expected.then(|| Arc::clone(&self.values[number])));
    }

    /// Moves the clock, and checks that exactly what is due comes, each at its own tick or all at
    /// once.
    fn pass(&mut self, to: Point, stops_on_the_way: bool) {
        let nanos = to.nanos(self.model.now, self.buckets).unwrap_or(0);
        let Ok(target) = u64::try_from(nanos) else { return };
        // The clock does not go back, nor beyond the range of ticks.
        if target < self.model.now || target > u64::MAX / 2 {
            return;
        }
        let passes = Duration::from_nanos(target - self.model.now);
        self.model.now = target;
        if stops_on_the_way {
            self.clock.manual.advance(passes);
        } else {
            self.clock.manual.jump(passes);
        }
        let due = self.model.take_due().into_iter().map(|(tick, number)| {
            let at = if stops_on_the_way {
                instant(self.start, tick).unwrap()
            } else {
                self.clock.now()
            };
            (at, number)
        });
        self.compare(&self.fired(), &due.collect::<Vec<_>>());
    }

    fn apply(&mut self, operation: Operation) {
        let count = self.values.len();
        match operation {
            Operation::Schedule(count, point) => {
                let at = point.nanos(self.model.now, self.buckets);
                // A delay is not negative.
                let at = at.map(|at| at.max(self.model.now.into()));
                let now = i128::from(self.model.now);
                let delay = at.map_or(Duration::MAX, |at| duration(at - now));
                for _ in 0..count {
                    self.schedule(at, |setup, value| setup.timer.schedule(delay, value));
                }
            }
            Operation::ScheduleMany(count, point) => {
                let at = point.nanos(self.model.now, self.buckets);
                let now = i128::from(self.model.now);
                // Not due at once: all of them would be, or some.
                let at = at.map(|at| at.max(now + 1));
                let delay = at.map_or(Duration::MAX, |at| duration(at - now));
                self.schedule_many(count, at, delay);
            }
            Operation::Clear => self.clear(),
            Operation::ScheduleAt(point) => {
                let at = point.nanos(self.model.now, self.buckets);
                self.schedule(at, |setup, value| {
                    setup.timer.schedule_at(deadline(setup.start, at), value)
                });
            }
            Operation::ScheduleElsewhere(point) => {
                let at = point.nanos(self.model.now, self.buckets);
                self.schedule(at, |setup, value| {
                    let deadline = deadline(setup.start, at);
                    thread::scope(|scope| {
                        scope.spawn(|| setup.timer.schedule_at(deadline, value)).join().unwrap()
                    })
                });
                self.elsewhere.extend(count..self.values.len());
            }
            Operation::Cancel(index) if count > 0 => self.cancel(index.index(count)),
            Operation::CancelMany(index, many) if count > 0 => {
                let first = index.index(count);
                self.cancel_many(first..count.min(first + many));
            }
            Operation::Reschedule(index, point) if count > 0 => {
                let number = index.index(count);
                let at = point.nanos(self.model.now, self.buckets);
                let expected = self.model.remove(number);
                let deadline = deadline(self.start, at);
                assert_eq!(self.timer.reschedule(self.keys[number], deadline), expected);
                if expected {
                    self.put(number, tick_of(at));
                }
            }
            Operation::RescheduleAfter(index, point) if count > 0 => {
                let number = index.index(count);
                let now = i128::from(self.model.now);
                let at = point.nanos(self.model.now, self.buckets).map(|at| at.max(now));
                let delay = at.map_or(Duration::MAX, |at| duration(at - now));
                let expected = self.model.remove(number);
                assert_eq!(self.timer.reschedule_after(self.keys[number], delay), expected);
                if expected {
                    self.put(number, tick_of(at));
                }
            }
            Operation::Advance(to) => self.pass(to, true),
            Operation::Jump(to) => self.pass(to, false),
            Operation::Cancel(_)
            | Operation::CancelMany(..)
            | Operation::Reschedule(..)
            | Operation::RescheduleAfter(..) => {}
        }
        self.agree(1 + self.keys.len() / 30);
    }

    /// Checks one key in `every`.
    fn agree(&self, every: usize) {
        let (model, statistics) = (&self.model, self.timer.statistics());
        assert_eq!(
            [statistics.scheduled, statistics.fired, statistics.cancelled, statistics.rejected],
            [model.scheduled, model.fired, model.cancelled, model.rejected]
        );
        assert_eq!(statistics.pending, model.pending.len());
        assert_eq!(self.timer.pending_timeouts(), model.pending.len());
        assert!(self.limit.is_none_or(|limit| model.pending.len() <= limit));
        for (key, position) in self.keys.iter().zip(&model.positions).rev().step_by(every) {
            let due = position.and_then(|(tick, _)| instant(self.start, tick));
            assert_eq!(self.timer.deadline(*key), due);
        }
        assert_eq!(statistics.panicked, 0);
    }

    /// Stops the timer at a time for which the ticker was not woken.
    fn end(mut self, ending: Ending, ahead: u64) {
        self.agree(1);
        // A ticker that was just woken would read the clock once more.
        self.clock.manual.wait_until_idle();
        *self.clock.ahead.lock() = Duration::from_nanos(ahead);
        self.model.now += ahead;
        let rest = match ending {
            Ending::Stop => self.timer.stop().unwrap(),
            Ending::Drop => {
                drop(self.timer);
                assert_eq!(self.handed_over.try_recv(), Err(TryRecvError::Disconnected));
                assert!(self.values.iter().all(|value| Arc::strong_count(value) == 1));
                return;
            }
        };
        self.compare(&self.fired(), &[]);
        let positions = mem::take(&mut self.model.positions);
        let tick = |number: usize| positions[number].map(|(tick, _)| tick);
        let rest = rest.into_iter().inspect(|Unprocessed { deadline, value, .. }| {
            assert_eq!(*deadline, tick(**value).and_then(|tick| instant(self.start, tick)));
        });
        let rest: Vec<_> = rest.map(|Unprocessed { value, .. }| (tick(*value), *value)).collect();
        let pending = mem::take(&mut self.model.pending).into_values();
        let expected: Vec<_> = pending.map(|number| (tick(number), number)).collect();
        self.compare(&rest, &expected);
        self.model.positions = vec![None; self.values.len()];
        self.agree(1);

        let late = Arc::new(0);
        for (schedule_at, instant) in [(false, self.start), (true, self.clock.now())] {
            let value = Arc::clone(&late);
            let error = if schedule_at {
                self.timer.schedule_at(instant, value).unwrap_err()
            } else {
                self.timer.schedule(Duration::ZERO, value).unwrap_err()
            };
            assert!(matches!(&error, ScheduleError::Stopped(_)) && !error.is_transient());
            assert!(Arc::ptr_eq(&error.into_inner(), &late));
        }
        assert!(self.timer.stop().unwrap().is_empty());
        for key in &self.keys {
            assert!(self.timer.cancel(*key).is_none());
            assert!(!self.timer.reschedule(*key, self.clock.now()));
        }
        self.agree(1);
        assert!(self.values.iter().all(|value| Arc::strong_count(value) == 1));
    }
}

fn run(
    buckets: usize,
    limit: Option<usize>,
    operations: Vec<Operation>,
    ending: Ending,
    ahead: u64,
) {
    let mut setup = TimerAndModel::new(buckets, limit);
    for operation in operations {
        setup.apply(operation);
    }
    setup.end(ending, ahead);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_batch_timer_behaves_like_a_sorted_map(
        buckets in prop_oneof![Just(8_usize), Just(64)],
        limit in prop_oneof![Just(None), (1..20_usize).prop_map(Some)],
        operations in operations(2),
        ending in ending(),
        ahead in 0..TICK * 100,
    ) {
        run(buckets, limit, operations, ending, ahead);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// More than one batch, and limits with allowances.
    #[test]
    fn a_large_batch_timer_behaves_like_a_sorted_map(
        buckets in prop_oneof![Just(8_usize), Just(64)],
        limit in prop_oneof![Just(None), (1000..3000_usize).prop_map(Some)],
        operations in operations(600),
        ending in ending(),
        ahead in 0..TICK * 100,
    ) {
        run(buckets, limit, operations, ending, ahead);
    }
}
