//! The timer that runs closures compared with a sorted map: when each task runs, what a task does
//! from inside, and how a timer ends.

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, TryRecvError, unbounded};
use hashed_wheel::{Clock, HashedWheelTimer, MissedRuns, Period, ScheduleError, Timeout};
use parking_lot::Mutex;
use proptest::prelude::*;

use crate::model::operations::{Operation, operations};
use crate::model::sorted::{Entry, Inbox, Model, Repeat, Rule, Series, State};
use crate::model::tasks::{Action, Event, Handle, Shared};
use crate::model::{AheadClock, Point, TICK, deadline, duration, tick_of};

struct TimerAndModel {
    shared: Arc<Shared>,
    /// `None` after it was dropped. A task message it too, only while it runs.
    timer: Option<Arc<HashedWheelTimer>>,
    /// How often the panic hook was called.
    hooked: Arc<AtomicU64>,
    events: Receiver<Event>,
    receivers: BTreeMap<usize, Receiver<Instant>>,
    model: Model,
}

/// The result of scheduling a task, a periodic task or a channel.
type Scheduled = Result<(Handle, Option<Receiver<Instant>>), ScheduleError<()>>;

impl TimerAndModel {
    fn new(buckets: usize, limit: Option<usize>) -> Self {
        let clock = AheadClock::new();
        let start = clock.now();
        let hooked = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&hooked);
        let mut builder = HashedWheelTimer::builder()
            .tick_duration(Duration::from_nanos(TICK))
            .ticks_per_wheel(buckets)
            .clock(Arc::new(clock.clone()))
            .on_panic(move |_| {
                count.fetch_add(1, Ordering::SeqCst);
            });
        if let Some(limit) = limit {
            builder = builder.max_pending_timeouts(limit);
        }
        let timer = Arc::new(builder.build().unwrap());
        let (sender, events) = unbounded();
        let shared = Arc::new(Shared {
            clock,
            start,
            buckets,
            timer: OnceLock::from(Arc::downgrade(&timer)),
            handles: Mutex::default(),
            events: sender,
            ended: AtomicBool::new(false),
        });
        let model =
            Model { start: Some(start), limit, buckets, lateness: Some(0), ..Model::default() };
        Self { shared, timer: Some(timer), hooked, events, receivers: BTreeMap::new(), model }
    }

    fn timer(&self) -> &HashedWheelTimer {
        self.timer.as_ref().unwrap()
    }

    /// Compares what has run with what the model expects.
    fn follow(&mut self, follow: impl FnOnce(&mut Model, &mut VecDeque<Event>)) {
        let mut events = self.events.try_iter().collect();
        follow(&mut self.model, &mut events);
        assert!(events.is_empty(), "{events:?} ran early");
    }

    fn schedule(
        &mut self,
        entry: Entry,
        at: Option<i128>,
        schedule: impl FnOnce(&Self, usize) -> Scheduled,
    ) {
        let shared = Arc::clone(&self.shared);
        let mut handles = shared.handles.lock();
        let task = handles.len();
        let result = schedule(self, task);
        if self.model.limit == Some(self.model.used()) {
            assert!(matches!(result, Err(ScheduleError::Full(()))));
            self.model.rejected += 1;
            return;
        }
        let (handle, receiver) = result.unwrap();
        handles.push(handle);
        drop(handles);
        self.receivers.extend(receiver.map(|receiver| (task, receiver)));
        self.model.entries.push(entry);
        self.model.scheduled += 1;
        self.put(task, at);
    }

    /// Enters a task with a new deadline into the model.
    fn put(&mut self, task: usize, at: Option<i128>) {
        let (tick, elapsed) = (tick_of(at), self.model.elapsed());
        if tick > elapsed {
            self.model.put(task, tick);
            return;
        }
        // If it is due already, it runs at once or at the next tick.
        self.shared.clock.manual.wait_until_idle();
        let ran = match &self.shared.handles.lock()[task] {
            Handle::Once(timeout) => timeout.is_expired(),
            Handle::Periodic(timeout) => timeout.runs() > 0,
            Handle::None => !self.receivers[&task].is_empty(),
        };
        self.model.put(task, elapsed + u64::from(!ran));
        if ran {
            self.model.lateness = None;
        }
        self.follow(Model::fire_all);
    }

    fn schedule_channel(&mut self, length: Option<Duration>, at: Option<i128>, delay: Duration) {
        let repeat =
            length.map(|length| Repeat { length, rule: Rule::FixedRate(MissedRuns::default()) });
        let series =
            repeat.map(|repeat| Series { repeat, due: at.unwrap_or(i128::MAX / 2), left: None });
        let inbox = Some(Inbox { message: None, is_open: true });
        let entry = Entry { series, inbox, ..Entry::new(Action::Nothing) };
        self.schedule(entry, at, |setup, _| {
            let receiver = match length {
                Some(length) => setup.timer().interval(length).map(|(receiver, _)| receiver),
                None => setup.timer().after(delay).map(|(receiver, _)| receiver),
            };
            receiver.map(|receiver| (Handle::None, Some(receiver)))
        });
    }

    fn schedule_periodic(
        &mut self,
        first: Duration,
        at: Option<i128>,
        series: Series,
        does: Action,
    ) {
        let entry = Entry { series: Some(series), ..Entry::new(does) };
        self.schedule(entry, at, |setup, task| {
            let mut run = setup.shared.task(task, does);
            let period = series.repeat.period();
            let result = match series.left {
                None => setup.timer().schedule_periodic(first, period, run),
                Some(mut left) => setup.timer().schedule_while(first, period, move || {
                    left = left.saturating_sub(1);
                    run();
                    if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                }),
            };
            let timeout = result.map_err(|error| error.map(drop))?;
            Ok((Handle::Periodic(timeout), None))
        });
    }

    fn schedule_once(
        &mut self,
        at: Option<i128>,
        does: Action,
        schedule: impl FnOnce(&Self, Box<dyn FnMut() + Send>) -> Result<Timeout, ScheduleError<()>>,
    ) {
        self.schedule(Entry::new(does), at, |setup, task| {
            let timeout = schedule(setup, Box::new(setup.shared.task(task, does)))?;
            Ok((Handle::Once(timeout), None))
        });
    }

    fn apply(&mut self, operation: Operation) {
        let shared = Arc::clone(&self.shared);
        let now = i128::from(self.model.now);
        let nanos = |point: Point| point.nanos(self.model.now, shared.buckets);
        // A delay is not negative, and may never end.
        let ahead = |point: Point| {
            let at = nanos(point).map(|at| at.max(now));
            (at, at.map_or(Duration::MAX, |at| duration(at - now)))
        };
        match operation {
            Operation::Schedule(point, does) => {
                let (at, delay) = ahead(point);
                self.schedule_once(at, does, |setup, task| {
                    setup.timer().schedule(delay, task).map_err(|error| error.map(drop))
                });
            }
            Operation::ScheduleAt(point, does) => {
                let at = nanos(point);
                self.schedule_once(at, does, |setup, task| {
                    let deadline = deadline(shared.start, at);
                    setup.timer().schedule_at(deadline, task).map_err(|error| error.map(drop))
                });
            }
            Operation::Periodic(first, repeat, left, does) => {
                let (at, delay) = ahead(first);
                let series = Series { repeat, due: at.unwrap_or(i128::MAX / 2), left };
                self.schedule_periodic(delay, at, series, does);
            }
            Operation::After(point) => {
                let (at, delay) = ahead(point);
                self.schedule_channel(None, at, delay);
            }
            Operation::Interval(length) => {
                let at = now + i128::try_from(length.as_nanos()).unwrap();
                self.schedule_channel(Some(length), Some(at), length);
            }
            Operation::Receive(index) if !self.receivers.is_empty() => {
                let (task, receiver) =
                    self.receivers.iter().nth(index.index(self.receivers.len())).unwrap();
                let entry = &mut self.model.entries[*task];
                let message = entry.inbox.as_mut().and_then(|inbox| inbox.message.take());
                let expected = message.ok_or(if entry.state == State::Ran {
                    TryRecvError::Disconnected
                } else {
                    TryRecvError::Empty
                });
                assert_eq!(receiver.try_recv(), expected);
            }
            Operation::DropReceiver(index) if !self.receivers.is_empty() => {
                let task = *self.receivers.keys().nth(index.index(self.receivers.len())).unwrap();
                self.receivers.remove(&task);
                self.model.entries[task].inbox = Some(Inbox { message: None, is_open: false });
            }
            Operation::Cancel(index) if !self.model.entries.is_empty() => {
                let task = index.index(self.model.entries.len());
                assert_eq!(shared.handles.lock()[task].cancel(), self.model.cancel(task));
            }
            Operation::Take(index) if !self.model.entries.is_empty() => {
                let task = index.index(self.model.entries.len());
                if let Handle::Once(timeout) = &shared.handles.lock()[task] {
                    assert_eq!(timeout.take().is_some(), self.model.cancel(task));
                }
            }
            Operation::Reschedule(index, to) if !self.model.entries.is_empty() => {
                let (task, at) = (index.index(self.model.entries.len()), nanos(to));
                let moved = shared.handles.lock()[task].reschedule(deadline(shared.start, at));
                assert_eq!(moved, self.model.lift(task));
                if moved {
                    self.put(task, at);
                }
            }
            Operation::Advance(to) => self.pass(to, true),
            Operation::Jump(to) => self.pass(to, false),
            _ => {}
        }
        drop(shared);
        self.agree();
    }

    fn pass(&mut self, to: Point, stops_on_the_way: bool) {
        let nanos = to.nanos(self.model.now, self.model.buckets).unwrap_or(0);
        let Ok(target) = u64::try_from(nanos) else { return };
        // The clock does not go back, nor beyond the range of ticks.
        if target < self.model.now || target > u64::MAX / 2 {
            return;
        }
        let passes = target - self.model.now;
        if stops_on_the_way {
            self.shared.clock.manual.advance(Duration::from_nanos(passes));
            self.follow(|model, events| model.advance(passes, events));
        } else {
            self.shared.clock.manual.jump(Duration::from_nanos(passes));
            self.model.now = target;
            self.follow(Model::fire_all);
        }
    }

    fn agree(&self) {
        let (model, statistics) = (&self.model, self.timer().statistics());
        assert_eq!(
            [statistics.scheduled, statistics.fired, statistics.cancelled, statistics.rejected],
            [model.scheduled, model.fired, model.cancelled, model.rejected]
        );
        assert_eq!(statistics.pending, model.pending.len());
        assert_eq!(self.timer().pending_timeouts(), model.pending.len());
        assert_eq!(statistics.panicked, model.panicked);
        assert_eq!(self.hooked.load(Ordering::SeqCst), model.panicked);
        assert_eq!(statistics.longest_task, Duration::from_nanos(model.longest));
        if let Some(lateness) = model.lateness {
            assert_eq!(statistics.lateness.max, Duration::from_nanos(lateness));
        }
        self.agree_on_tasks(1 + model.entries.len() / 30);
    }

    /// Checks one task in `every`.
    fn agree_on_tasks(&self, every: usize) {
        let handles = self.shared.handles.lock();
        assert_eq!(handles.len(), self.model.entries.len());
        for (handle, entry) in handles.iter().zip(&self.model.entries).rev().step_by(every) {
            let due = match entry.state {
                State::Pending(tick, _) if entry.inbox.is_none() => self.model.instant(tick),
                _ => None,
            };
            assert_eq!(handle.deadline(), due);
            let (is_pending, is_expired) =
                (matches!(entry.state, State::Pending(..)), entry.state == State::Ran);
            match handle {
                Handle::Once(timeout) => {
                    assert_eq!(timeout.is_expired(), is_expired);
                    assert_eq!(timeout.is_cancelled(), !is_pending && !is_expired);
                }
                Handle::Periodic(timeout) => {
                    assert_eq!((timeout.runs(), timeout.is_ended()), (entry.runs, !is_pending));
                }
                Handle::None => {}
            }
        }
        // Exactly the tasks that have ended were dropped.
        let closures = self.model.pending.values().filter(|task| !self.is_channel(**task)).count();
        assert_eq!(Arc::strong_count(&self.shared), 1 + closures);
    }

    fn is_channel(&self, task: usize) -> bool {
        self.model.entries[task].inbox.is_some()
    }

    /// Stops the timer at a time for which the ticker was not woken.
    fn end(mut self, ending: Ending, ahead: u64) {
        // A ticker that was just woken would read the clock once more.
        self.shared.clock.manual.wait_until_idle();
        *self.shared.clock.ahead.lock() += Duration::from_nanos(ahead);
        self.model.now += ahead;
        let rest = match ending {
            Ending::Stop => Some(self.timer().stop().unwrap()),
            Ending::Drop => None,
        };
        let pending = mem::take(&mut self.model.pending);
        for task in pending.values() {
            self.model.entries[*task].state = State::Unprocessed;
        }
        if let Some(rest) = rest {
            self.shared.ended.store(true, Ordering::SeqCst);
            let due: Vec<_> = rest.iter().map(|unprocessed| unprocessed.deadline).collect();
            let expected: Vec<_> =
                pending.keys().map(|(tick, _)| self.model.instant(*tick)).collect();
            assert_eq!(due, expected);
            for unprocessed in rest {
                (unprocessed.value)();
            }
            let ran: Vec<_> = self.events.try_iter().map(|event| event.task).collect();
            for of_ticker in [false, true] {
                let of_one_thread = |task: &&usize| {
                    self.model.entries[**task].of_ticker == of_ticker && !self.is_channel(**task)
                };
                let expected: Vec<_> = pending.values().filter(of_one_thread).collect();
                assert_eq!(ran.iter().filter(of_one_thread).collect::<Vec<_>>(), expected);
            }
            self.agree();
            self.refuses_everything();
        } else {
            drop(Arc::into_inner(self.timer.take().unwrap()).unwrap());
            self.follow(|_, _| {});
            self.agree_on_tasks(1);
        }
        for receiver in self.receivers.into_values() {
            assert!(receiver.try_iter().count() <= 1);
            assert_eq!(receiver.try_recv(), Err(TryRecvError::Disconnected));
        }
    }

    fn refuses_everything(&self) {
        let timer = self.timer();
        let (moment, period) = (Duration::from_nanos(TICK), Period::fixed_delay(Duration::MAX));
        let proof = Arc::new(());
        let task = || {
            let proof = Arc::clone(&proof);
            move || drop(Arc::clone(&proof))
        };
        let now = self.shared.clock.now();
        for refused in [
            timer.schedule(moment, task()).map(drop),
            timer.schedule_at(now, task()).map(drop),
            timer.schedule_periodic(moment, period, task()).map(drop),
            timer.schedule_while(moment, period, || ControlFlow::Continue(())).map(drop),
        ] {
            let error = refused.unwrap_err();
            assert!(matches!(error, ScheduleError::Stopped(_)) && !error.is_transient());
            error.into_inner()();
        }
        assert!(matches!(timer.after(moment), Err(ScheduleError::Stopped(()))));
        assert!(matches!(timer.interval(moment), Err(ScheduleError::Stopped(()))));
        assert_eq!(Arc::strong_count(&proof), 1);
        assert!(timer.stop().unwrap().is_empty());
        for handle in &*self.shared.handles.lock() {
            assert!(!handle.cancel() && !handle.reschedule(now));
        }
        self.agree();
    }
}

#[derive(Clone, Copy, Debug)]
enum Ending {
    Stop,
    Drop,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn a_timer_behaves_like_a_sorted_map(
        buckets in prop_oneof![Just(8_usize), Just(64)],
        limit in prop_oneof![Just(None), (1..20_usize).prop_map(Some)],
        operations in prop_oneof![operations(false), operations(true)],
        ending in prop_oneof![Just(Ending::Stop), Just(Ending::Drop)],
        ahead in 0..TICK * 100,
    ) {
        let mut setup = TimerAndModel::new(buckets, limit);
        for operation in operations {
            setup.apply(operation);
        }
        setup.end(ending, ahead);
    }
}
