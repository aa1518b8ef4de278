//! The model of the timer that runs closures: a sorted map of what is pending, and what the
//! documentation says of it.

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::time::{Duration, Instant};

use hashed_wheel::{MissedRuns, Period, StopError};

use crate::model::tasks::{Action, Event, Outcome, Refusal};
use crate::model::{Point, TICK, instant, tick_of};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    FixedDelay,
    FixedRate(MissedRuns),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Repeat {
    pub(crate) length: Duration,
    pub(crate) rule: Rule,
}

impl Repeat {
    pub(crate) fn period(self) -> Period {
        match self.rule {
            // Missed runs mean nothing for a fixed delay, so this must have no effect.
            Rule::FixedDelay => Period::fixed_delay(self.length).missed(MissedRuns::CatchUp),
            Rule::FixedRate(MissedRuns::Skip) => Period::fixed_rate(self.length),
            Rule::FixedRate(missed) => Period::fixed_rate(self.length).missed(missed),
        }
    }

    /// When the run is due after the one that was due at `due` and ended at `now`, as the
    /// documentation of `Period` and `MissedRuns` has it. One whose tick has come at the end of the
    /// run before counts as missed.
    fn next(self, due: i128, now: i128) -> i128 {
        let length = i128::try_from(self.length.as_nanos()).unwrap();
        let on_time = due + length;
        let last_tick = now / i128::from(TICK) * i128::from(TICK);
        match self.rule {
            Rule::FixedRate(MissedRuns::CatchUp) => on_time,
            Rule::FixedRate(_) if on_time > last_tick => on_time,
            Rule::FixedRate(MissedRuns::Skip) => due + ((last_tick - due) / length + 1) * length,
            Rule::FixedDelay | Rule::FixedRate(_) => now + length,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Pending(u64, u64),
    /// Taken to be run, or being run.
    Taken,
    /// It ran, and does not run again.
    Ran,
    Cancelled,
    /// It was pending when the timer was stopped.
    Unprocessed,
}

/// A periodic task in the model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Series {
    pub(crate) repeat: Repeat,
    /// When its run is due, not rounded.
    pub(crate) due: i128,
    /// It ends itself after this number of runs.
    pub(crate) left: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Inbox {
    pub(crate) message: Option<Instant>,
    pub(crate) is_open: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) action: Action,
    pub(crate) series: Option<Series>,
    pub(crate) inbox: Option<Inbox>,
    /// A task scheduled it. Between threads there is no order.
    pub(crate) of_ticker: bool,
    pub(crate) state: State,
    pub(crate) runs: u64,
}

impl Entry {
    pub(crate) fn new(action: Action) -> Self {
        let state = State::Taken;
        Self { action, series: None, inbox: None, of_ticker: false, state, runs: 0 }
    }

    /// It keeps its capacity while it runs.
    fn has_place(&self) -> bool {
        match self.state {
            State::Pending(..) => true,
            State::Taken => self.series.is_some(),
            State::Ran | State::Cancelled | State::Unprocessed => false,
        }
    }
}

/// A timer without a wheel, a shard or a thread. Where the order of tasks is open, the events tell
/// in which order they ran, and the model tells whether that order is allowed.
#[derive(Default)]
pub(crate) struct Model {
    pub(crate) start: Option<Instant>,
    pub(crate) limit: Option<usize>,
    pub(crate) buckets: usize,
    /// In nanoseconds after the start.
    pub(crate) now: u64,
    pub(crate) sequence: u64,
    pub(crate) entries: Vec<Entry>,
    pub(crate) pending: BTreeMap<(u64, u64), usize>,
    /// Periodic tasks that were cancelled after they were taken, and are not dropped yet: they hold
    /// capacity.
    pub(crate) undropped: usize,
    pub(crate) scheduled: u64,
    pub(crate) fired: u64,
    pub(crate) cancelled: u64,
    pub(crate) rejected: u64,
    pub(crate) panicked: u64,
    pub(crate) longest: u64,
    /// In nanoseconds; `None` once a task ran at once, at a tick that no event tells.
    pub(crate) lateness: Option<u64>,
}

impl Model {
    pub(crate) fn elapsed(&self) -> u64 {
        self.now / TICK
    }

    pub(crate) fn instant(&self, tick: u64) -> Option<Instant> {
        instant(self.start.unwrap(), tick)
    }

    fn present(&self) -> Instant {
        self.start.unwrap() + Duration::from_nanos(self.now)
    }

    pub(crate) fn put(&mut self, task: usize, tick: u64) {
        self.sequence += 1;
        self.pending.insert((tick, self.sequence), task);
        self.entries[task].state = State::Pending(tick, self.sequence);
    }

    /// As [`put`](Self::put), for a deadline that a task reported. If it has passed, the entry is
    /// due at the next tick at the latest.
    fn put_reported(&mut self, task: usize, at: Option<i128>, reported: Option<Instant>) {
        let tick = tick_of(at);
        if tick > self.elapsed() {
            assert_eq!(reported, self.instant(tick));
            self.put(task, tick);
        } else {
            let nanos = (reported.unwrap() - self.start.unwrap()).as_nanos();
            let reported = u64::try_from(nanos).unwrap() / TICK;
            assert_eq!(u128::from(reported * TICK), nanos);
            assert!((tick..=self.elapsed() + 1).contains(&reported));
            self.put(task, reported);
        }
    }

    pub(crate) fn used(&self) -> usize {
        self.entries.iter().filter(|entry| entry.has_place()).count()
    }

    pub(crate) fn cancel(&mut self, task: usize) -> bool {
        let entry = &mut self.entries[task];
        if entry.inbox.is_some() {
            return false;
        }
        match entry.state {
            State::Pending(tick, sequence) => {
                self.pending.remove(&(tick, sequence));
                self.cancelled += 1;
            }
            // It was not pending, so it is not counted.
            State::Taken if entry.series.is_some() => self.undropped += 1,
            State::Taken | State::Ran | State::Cancelled | State::Unprocessed => return false,
        }
        entry.state = State::Cancelled;
        true
    }

    /// Takes a task out to give it another deadline. Returns whether it was pending.
    pub(crate) fn lift(&mut self, task: usize) -> bool {
        match self.entries[task] {
            Entry { state: State::Pending(tick, sequence), series: None, inbox: None, .. } => {
                self.pending.remove(&(tick, sequence)).is_some()
            }
            _ => false,
        }
    }

    /// Fires until nothing is due.
    pub(crate) fn fire_all(&mut self, events: &mut VecDeque<Event>) {
        while self.pending.first_key_value().is_some_and(|((due, _), _)| *due <= self.elapsed()) {
            self.fire_due(events);
        }
    }

    /// Lets time pass, with a stop at each tick at which something is due.
    pub(crate) fn advance(&mut self, passes: u64, events: &mut VecDeque<Event>) {
        let mut left = passes;
        loop {
            self.fire_all(events);
            let due = self.pending.first_key_value().map(|((due, _), _)| due.saturating_mul(TICK));
            let Some(wait) = due.map(|due| due - self.now).filter(|wait| *wait <= left) else {
                break;
            };
            self.now += wait;
            left -= wait;
        }
        self.now += left;
        self.fire_all(events);
    }

    /// Takes everything that is due, and runs it one by one.
    pub(crate) fn fire_due(&mut self, events: &mut VecDeque<Event>) {
        let now = self.elapsed();
        let later = self.pending.split_off(&(now + 1, 0));
        let mut batch = [VecDeque::new(), VecDeque::new()];
        for ((due, _), task) in mem::replace(&mut self.pending, later) {
            self.fired += 1;
            self.entries[task].state = State::Taken;
            batch[usize::from(self.entries[task].of_ticker)].push_back((due, task));
        }
        loop {
            // Channels, and tasks that were cancelled meanwhile: they report no event.
            for queue in &mut batch {
                while let Some((due, task)) = queue.pop_front() {
                    if self.entries[task].state == State::Cancelled {
                        self.undropped -= 1;
                        self.note_lateness(due);
                    } else if self.entries[task].inbox.is_some() {
                        self.note_lateness(due);
                        self.send(task, now);
                    } else {
                        queue.push_front((due, task));
                        break;
                    }
                }
            }
            if batch.iter().all(VecDeque::is_empty) {
                return;
            }
            let event = events.pop_front().unwrap();
            let queue = usize::from(self.entries[event.task].of_ticker);
            let (due, task) = batch[queue].pop_front().unwrap();
            assert_eq!((event.task, event.at), (task, self.present()));
            self.note_lateness(due);
            self.run(now, &event);
        }
    }

    fn note_lateness(&mut self, due: u64) {
        self.lateness = self.lateness.map(|lateness| lateness.max(self.now - due * TICK));
    }

    fn send(&mut self, task: usize, tick: u64) {
        let now = self.present();
        let inbox = self.entries[task].inbox.as_mut().unwrap();
        let is_open = inbox.is_open;
        if is_open {
            inbox.message.get_or_insert(now);
        }
        self.run_ended(task, tick, is_open);
    }

    fn run(&mut self, tick: u64, event: &Event) {
        let task = event.task;
        let is_first = self.entries[task].runs == 0;
        let at = |point: Point| point.nanos(self.now, self.buckets);
        match (self.entries[task].action, &event.outcome) {
            (Action::Nothing, Outcome::Nothing) => {}
            (Action::Schedule(point), Outcome::Scheduled(result)) => {
                let (at, used) = (at(point), self.used());
                match result {
                    Ok(reported) => {
                        assert!(self.limit.is_none_or(|limit| used < limit));
                        let task = self.entries.len();
                        let new = Entry { of_ticker: true, ..Entry::new(Action::Nothing) };
                        self.entries.push(new);
                        self.scheduled += 1;
                        self.put_reported(task, at, *reported);
                    }
                    Err(refusal) => {
                        assert_eq!(*refusal, Refusal::Full);
                        assert!(self.limit.is_some_and(|limit| used + self.undropped >= limit));
                        self.rejected += 1;
                    }
                }
            }
            (Action::Cancel(_), Outcome::Cancelled(other, cancelled)) => {
                assert_eq!(*cancelled, self.cancel(*other));
            }
            (Action::Reschedule(_, point), Outcome::Rescheduled(other, moved, reported)) => {
                let at = at(point);
                assert_eq!(*moved, self.lift(*other));
                if *moved {
                    self.put_reported(*other, at, *reported);
                }
            }
            (Action::StopTheTimer, Outcome::Stopped(error)) => {
                assert_eq!(*error, Some(StopError::OnTickerThread));
            }
            (Action::Panic, Outcome::Panicked) => self.panicked += 1,
            (Action::Take(nanos), Outcome::Took(took)) if is_first => {
                assert_eq!(nanos, *took);
                self.now += took;
                self.longest = self.longest.max(*took);
            }
            (Action::Take(_), Outcome::Nothing) if !is_first => {}
            (action, outcome) => unreachable!("{outcome:?} comes of {action:?}"),
        }
        let left = self.entries[task].series.as_mut().and_then(|series| series.left.as_mut());
        let is_last = left.is_some_and(|left| {
            *left = left.saturating_sub(1);
            *left == 0
        });
        // After a run that panics the next one takes place.
        self.run_ended(task, tick, !is_last || event.outcome == Outcome::Panicked);
    }

    fn run_ended(&mut self, task: usize, now_tick: u64, continues: bool) {
        let now = self.now.into();
        let entry = &mut self.entries[task];
        entry.runs += 1;
        match &mut entry.series {
            _ if entry.state == State::Cancelled => self.undropped -= 1,
            Some(series) if continues => {
                series.due = series.repeat.next(series.due, now);
                // At most one run per tick.
                let tick = tick_of(Some(series.due)).max(now_tick + 1);
                self.put(task, tick);
            }
            _ => entry.state = State::Ran,
        }
    }
}
