//! Tasks that do something when they run, and report the result.

use std::panic;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use hashed_wheel::{Clock, HashedWheelTimer, PeriodicTimeout, ScheduleError, StopError, Timeout};
use parking_lot::Mutex;
use proptest::sample::Index;

use crate::model::{AheadClock, Point, deadline};

/// What a task does when it runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    Nothing,
    Schedule(Point),
    Cancel(Index),
    Reschedule(Index, Point),
    StopTheTimer,
    Panic,
    /// Lets nanoseconds pass, in its first run.
    Take(u64),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Nothing,
    /// The deadline of what was scheduled.
    Scheduled(Result<Option<Instant>, Refusal>),
    /// Which task, and whether that call cancelled it.
    Cancelled(usize, bool),
    /// Which task, whether it was pending, and its deadline then.
    Rescheduled(usize, bool, Option<Instant>),
    /// The error of the stop.
    Stopped(Option<StopError>),
    Panicked,
    Took(u64),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Full,
    Other,
}

/// A task ran.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) task: usize,
    pub(crate) at: Instant,
    pub(crate) outcome: Outcome,
}

pub(crate) enum Handle {
    Once(Timeout),
    Periodic(PeriodicTimeout),
    /// A channel has no handle.
    None,
}

impl Handle {
    pub(crate) fn cancel(&self) -> bool {
        match self {
            Self::Once(timeout) => timeout.cancel(),
            Self::Periodic(timeout) => timeout.cancel(),
            Self::None => false,
        }
    }

    pub(crate) fn reschedule(&self, deadline: Instant) -> bool {
        matches!(self, Self::Once(timeout) if timeout.reschedule(deadline))
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Once(timeout) => timeout.deadline(),
            Self::Periodic(timeout) => timeout.deadline(),
            Self::None => None,
        }
    }
}

/// What the tasks share with the test. Each task that exists holds it, so its count is their
/// number.
pub(crate) struct Shared {
    pub(crate) clock: AheadClock,
    pub(crate) start: Instant,
    pub(crate) buckets: usize,
    pub(crate) timer: OnceLock<Weak<HashedWheelTimer>>,
    /// By the number of the task. Locked while one is scheduled, so that it cannot run before it
    /// has its number.
    pub(crate) handles: Mutex<Vec<Handle>>,
    pub(crate) events: Sender<Event>,
    /// The tasks only report that they run.
    pub(crate) ended: AtomicBool,
}

impl Shared {
    pub(crate) fn task(
        self: &Arc<Self>,
        task: usize,
        action: Action,
    ) -> impl FnMut() + Send + 'static {
        let shared = Arc::clone(self);
        let mut action = action;
        move || {
            let at = shared.clock.now();
            let outcome = if shared.ended.load(Ordering::SeqCst) {
                Outcome::Nothing
            } else {
                shared.act(action)
            };
            if matches!(action, Action::Take(_)) {
                action = Action::Nothing;
            }
            let panics = outcome == Outcome::Panicked;
            shared.events.send(Event { task, at, outcome }).unwrap();
            if panics {
                // Without calling the hook that prints panics.
                panic::resume_unwind(Box::new("on purpose"));
            }
        }
    }

    fn act(self: &Arc<Self>, action: Action) -> Outcome {
        let timer = self.timer.get().and_then(Weak::upgrade).unwrap();
        let now = u64::try_from((self.clock.now() - self.start).as_nanos()).unwrap();
        let deadline = |point: Point| deadline(self.start, point.nanos(now, self.buckets));
        let mut handles = self.handles.lock();
        match action {
            Action::Nothing => Outcome::Nothing,
            Action::Schedule(point) => {
                let task = self.task(handles.len(), Action::Nothing);
                Outcome::Scheduled(match timer.schedule_at(deadline(point), task) {
                    Ok(timeout) => {
                        let deadline = timeout.deadline();
                        handles.push(Handle::Once(timeout));
                        Ok(deadline)
                    }
                    Err(ScheduleError::Full(_)) => Err(Refusal::Full),
                    Err(_) => Err(Refusal::Other),
                })
            }
            Action::Cancel(index) => {
                let task = index.index(handles.len());
                Outcome::Cancelled(task, handles[task].cancel())
            }
            Action::Reschedule(index, point) => {
                let task = index.index(handles.len());
                let moved = handles[task].reschedule(deadline(point));
                Outcome::Rescheduled(task, moved, handles[task].deadline())
            }
            Action::StopTheTimer => Outcome::Stopped(timer.stop().err()),
            Action::Panic => Outcome::Panicked,
            Action::Take(nanos) => {
                *self.clock.ahead.lock() += Duration::from_nanos(nanos);
                Outcome::Took(nanos)
            }
        }
    }
}
