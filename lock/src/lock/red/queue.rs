//! The tasks of one server: which comes next, how many may be in flight, and whether the server is
//! stuck.
//!
//! At first one task is in flight at a time. Each answer that comes while others are queued allows
//! one more, up to [`MAX_IN_FLIGHT`]; a task without an answer reduces it to one. So a server that
//! is far away is sent several at the same time, and one that hangs keeps few threads. Beyond that
//! one release may be in flight: an acquire that was refused waits for the releases of its own
//! client, so all tasks in flight may be acquires that wait for a release that is queued here.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

const MAX_IN_FLIGHT: usize = 8;

/// An acquire beyond that is refused, as if the lock were busy.
const MAX_QUEUED_ACQUIRES: usize = 256;

/// A release beyond that is left to the client's watchdog.
const MAX_QUEUED_RELEASES: usize = 4096;

#[derive(Debug)]
pub(crate) struct TaskQueue<A, R> {
    acquires: VecDeque<A>,
    releases: VecDeque<R>,
    in_flight: Vec<InFlightTask>,
    /// How many may be in flight now.
    width: usize,
    threads: usize,
    last_id: u64,
}

#[derive(Debug)]
struct InFlightTask {
    id: u64,
    is_release: bool,
    /// While it waits for its answer: since when.
    since: Option<Instant>,
}

#[derive(Debug)]
pub(crate) enum Task<A, R> {
    Acquire(A),
    Release(R),
}

impl<A, R> TaskQueue<A, R> {
    pub(crate) fn new() -> Self {
        Self {
            acquires: VecDeque::new(),
            releases: VecDeque::new(),
            in_flight: Vec::new(),
            width: 1,
            threads: 0,
            last_id: 0,
        }
    }

    pub(crate) fn has_room_for(&self, task: &Task<A, R>) -> bool {
        match task {
            Task::Acquire(_) => self.acquires.len() < MAX_QUEUED_ACQUIRES,
            Task::Release(_) => self.releases.len() < MAX_QUEUED_RELEASES,
        }
    }

    /// Queues a task that there [is room for](Self::has_room_for).
    pub(crate) fn push(&mut self, task: Task<A, R>) {
        match task {
            Task::Acquire(acquire) => self.acquires.push_back(acquire),
            Task::Release(release) => self.releases.push_back(release),
        }
    }

    /// The next task for a thread, and its id. Releases come first, as other clients wait for them.
    pub(crate) fn next(&mut self) -> Option<(u64, Task<A, R>)> {
        if !self.has_place() {
            return None;
        }
        let release = self.releases.pop_front().map(Task::Release);
        let is_release = release.is_some();
        let task = release.or_else(|| self.acquires.pop_front().map(Task::Acquire))?;
        self.last_id += 1;
        self.in_flight.push(InFlightTask { id: self.last_id, is_release, since: None });
        Some((self.last_id, task))
    }

    /// Whether the next task may be in flight now. A release may be the only one beyond the width.
    fn has_place(&self) -> bool {
        self.in_flight.len() < self.width || (!self.releases.is_empty() && !self.has_release())
    }

    /// Whether a release is in flight.
    fn has_release(&self) -> bool {
        self.in_flight.iter().any(|other| other.is_release)
    }

    /// The task is sent now.
    pub(crate) fn sent(&mut self, id: u64, now: Instant) {
        if let Some(task) = self.in_flight.iter_mut().find(|other| other.id == id) {
            task.since = Some(now);
        }
    }

    /// The task has its answer, whatever the time says by now: the process may have stood still.
    pub(crate) fn answered(&mut self, id: u64) {
        if let Some(task) = self.in_flight.iter_mut().find(|other| other.id == id) {
            task.since = None;
        }
    }

    pub(crate) fn finished(&mut self, id: u64, answered: bool) {
        self.in_flight.retain(|other| other.id != id);
        if !answered {
            self.width = 1;
        } else if !self.is_empty() {
            self.width = (self.width + 1).min(MAX_IN_FLIGHT);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.acquires.is_empty() && self.releases.is_empty()
    }

    /// Whether the server seems to hang: tasks are in flight, and each has been for `timeout`.
    pub(crate) fn is_stuck(&self, now: Instant, timeout: Duration) -> bool {
        let hangs = |other: &InFlightTask| other.since.is_some_and(|since| since + timeout <= now);
        !self.in_flight.is_empty() && self.in_flight.iter().all(hangs)
    }

    /// Whether a task would only add to what a server that hangs is to do. A release does not while
    /// it can go beside the others: it finds out whether the server hangs, or this process was
    /// stopped while they were in flight.
    pub(crate) fn is_futile(&self, task: &Task<A, R>, now: Instant, timeout: Duration) -> bool {
        let goes_beside =
            matches!(task, Task::Release(_)) && self.releases.is_empty() && !self.has_release();
        !goes_beside && self.is_stuck(now, timeout)
    }

    /// Whether a task could run now, and all threads are busy.
    pub(crate) fn needs_thread(&self) -> bool {
        self.has_place() && !self.is_empty() && self.threads == self.in_flight.len()
    }

    /// Whether no task is queued or in flight.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.is_empty() && self.in_flight.is_empty()
    }

    pub(crate) fn has_threads(&self) -> bool {
        self.threads > 0
    }

    pub(crate) fn add_thread(&mut self) {
        self.threads += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::clock::origin;

    const TIMEOUT: Duration = Duration::from_millis(100);

    fn queued(acquires: usize) -> TaskQueue<usize, usize> {
        let mut tasks = TaskQueue::new();
        for task in 0..acquires {
            tasks.push(Task::Acquire(task));
        }
        tasks
    }

    fn take(tasks: &mut TaskQueue<usize, usize>) -> Option<u64> {
        tasks.next().map(|(id, _)| id)
    }

    #[test]
    fn answers_allow_more_in_flight_and_a_missing_answer_allows_one() {
        let mut tasks = queued(100);
        let mut in_flight = Vec::new();
        for most in [1, 2, 4, 8, 8] {
            while let Some(id) = take(&mut tasks) {
                in_flight.push(id);
            }
            assert_eq!(in_flight.len(), most);
            for id in in_flight.drain(..) {
                tasks.finished(id, true);
            }
        }
        let (one, other) = (take(&mut tasks).unwrap(), take(&mut tasks).unwrap());
        tasks.finished(one, false);
        assert_eq!(take(&mut tasks), None);
        tasks.finished(other, false);
        assert!(take(&mut tasks).is_some());
        assert_eq!(take(&mut tasks), None);
    }

    #[test]
    fn without_a_queue_one_is_in_flight_at_a_time() {
        let mut tasks = TaskQueue::<usize, usize>::new();
        for task in 0..10 {
            tasks.push(Task::Acquire(task));
            let id = take(&mut tasks).unwrap();
            tasks.finished(id, true);
        }
        tasks.push(Task::Acquire(0));
        tasks.push(Task::Acquire(1));
        assert!(take(&mut tasks).is_some());
        assert!(take(&mut tasks).is_none());
    }

    #[test]
    fn releases_come_first_and_have_room_when_acquires_have_none() {
        let mut tasks = queued(MAX_QUEUED_ACQUIRES);
        assert!(!tasks.has_room_for(&Task::Acquire(0)));
        assert!(tasks.has_room_for(&Task::Release(7)));
        tasks.push(Task::Release(7));
        assert!(matches!(tasks.next(), Some((_, Task::Release(7)))));
    }

    #[test]
    fn a_release_goes_beside_acquires_that_may_wait_for_it() {
        let mut tasks = queued(2);
        tasks.add_thread();
        assert!(take(&mut tasks).is_some());
        assert_eq!(take(&mut tasks), None);
        for release in [7, 8] {
            tasks.push(Task::Release(release));
        }
        assert!(tasks.needs_thread());
        let (id, task) = tasks.next().unwrap();
        assert!(matches!(task, Task::Release(7)));
        assert_eq!(take(&mut tasks), None);
        tasks.finished(id, true);
        assert!(matches!(tasks.next(), Some((_, Task::Release(8)))));
    }

    #[test]
    fn it_is_stuck_when_all_tasks_in_flight_are_old() {
        let (start, mut tasks) = (origin(), queued(2));
        assert!(!tasks.is_stuck(start + TIMEOUT, TIMEOUT));
        let id = take(&mut tasks).unwrap();
        assert!(!tasks.is_stuck(start + TIMEOUT, TIMEOUT));
        tasks.sent(id, start);
        assert!(!tasks.is_stuck(start, TIMEOUT));
        assert!(tasks.is_stuck(start + TIMEOUT, TIMEOUT));
        tasks.finished(id, false);
        assert!(!tasks.is_stuck(start + TIMEOUT, TIMEOUT));
    }

    #[test]
    fn a_task_that_is_answered_is_never_old() {
        let (start, mut tasks) = (origin(), queued(1));
        let id = take(&mut tasks).unwrap();
        tasks.sent(id, start);
        tasks.answered(id);
        assert!(!tasks.is_stuck(start + TIMEOUT, TIMEOUT));
    }

    #[test]
    fn beside_old_acquires_one_release_goes_and_no_acquire() {
        let (start, mut tasks) = (origin(), queued(1));
        let id = take(&mut tasks).unwrap();
        tasks.sent(id, start);
        let late = start + TIMEOUT;
        assert!(tasks.is_futile(&Task::Acquire(1), late, TIMEOUT));
        assert!(!tasks.is_futile(&Task::Release(7), late, TIMEOUT));
        tasks.push(Task::Release(7));
        assert!(tasks.is_futile(&Task::Release(8), late, TIMEOUT));
        let release = take(&mut tasks).unwrap();
        tasks.sent(release, start);
        assert!(tasks.is_futile(&Task::Release(8), late, TIMEOUT));
    }

    #[test]
    fn one_old_task_is_stuck_although_more_may_be_in_flight() {
        let (start, mut tasks) = (origin(), queued(2));
        let first = take(&mut tasks).unwrap();
        tasks.finished(first, true);
        let second = take(&mut tasks).unwrap();
        tasks.sent(second, start);
        assert!(tasks.is_stuck(start + TIMEOUT, TIMEOUT));
    }
}
