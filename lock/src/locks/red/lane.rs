//! The threads sending one kind of request to one server, so a hanging server delays no other
//! server.
//!
//! A lane is *stuck* when every request sent by the lane's threads is unanswered for longer than
//! callers wait. A stuck lane takes no request until a thread is free again, after at most one
//! command timeout. So requests do not pile up for a hanging server.
//!
//! Callers count the server timeout from the start of the attempt, including the time in the queue.
//! Counting from the sending of each request, with an adaptive limit of requests in flight, took
//! 320 lines more and helped only callers queued for longer than the timeout.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashed_wheel::Clock;

use crate::core::client_core::ClientCore;
use crate::error::Reason;
use crate::model::panics::catch_panic;
use crate::model::sync::{Condvar, Mutex, thread};

/// A request to one server. The drop reports the outcome, even if the request was not sent.
pub(crate) trait Request: Send + 'static {
    /// Sends the request at `now`, and stores the answer for the report.
    fn send(&mut self, now: Instant);

    /// Drops the request, which reports the refusal.
    fn refuse(self, refusal: Refusal);

    /// Returns the client that counts a panic of the request, if known.
    fn core(&self) -> Option<Arc<ClientCore>>;
}

/// The reason for not sending a request.
pub(crate) enum Refusal {
    /// The lane has its maximum of queued requests.
    QueueFull,
    /// All requests sent by the lane's threads are unanswered for longer than the caller waits.
    Stuck,
    /// The lane has no thread, and the operating system refused a thread.
    NoThread(Reason),
}

/// The maximum number of threads of a lane. A distant server needs several threads.
const MAX_THREADS: usize = 4;

/// A queue of requests, and the sending threads. The threads start when first needed, and end when
/// the lane is closed and the queue is empty.
#[derive(Debug)]
pub(crate) struct Lane<T> {
    clock: Arc<dyn Clock>,
    max_queued: usize,
    state: Mutex<LaneState<T>>,
    /// Notified when there is a request, or the lane is closed.
    changed: Condvar,
}

/// A request to be sent, and the time of queueing, if a thread was free. The wait for the answer
/// counts from this time, so the lane is known to be stuck when the caller's wait is over.
#[derive(Debug)]
struct Queued<T> {
    request: T,
    sent_at: Option<Instant>,
}

/// The queue of a lane, and the state of the lane's threads.
#[derive(Debug)]
struct LaneState<T> {
    queue: VecDeque<Queued<T>>,
    /// The number of started threads. A thread ends only when the lane is closed.
    threads: usize,
    /// The number of threads with a request.
    busy: usize,
    /// The times of sending of the unanswered requests, by request number.
    sent: BTreeMap<u64, Instant>,
    /// The number of the request sent last.
    last_sent: u64,
    is_closed: bool,
}

impl<T: Request> Lane<T> {
    /// Returns a lane without threads, for at most `max_queued` queued requests.
    pub(crate) fn new(clock: &Arc<dyn Clock>, max_queued: usize) -> Arc<Self> {
        let state = LaneState {
            queue: VecDeque::new(),
            threads: 0,
            busy: 0,
            sent: BTreeMap::new(),
            last_sent: 0,
            is_closed: false,
        };
        let (clock, state, changed) = (Arc::clone(clock), Mutex::new(state), Condvar::new());
        Arc::new(Self { clock, max_queued, state, changed })
    }

    /// Queues `request` at `now`, and starts a thread if needed. If the lane is full, has no
    /// thread, or is stuck for a caller that waits for `timeout`, refuses the request instead.
    pub(crate) fn send(self: &Arc<Self>, request: T, now: Instant, timeout: Duration) {
        let mut state = self.state.lock();
        let refusal = if state.is_stuck(now, timeout) {
            Some(Refusal::Stuck)
        } else if state.queue.len() >= self.max_queued {
            Some(Refusal::QueueFull)
        } else {
            self.start_thread_if_needed(&mut state).err()
        };
        if let Some(refusal) = refusal {
            drop(state);
            return request.refuse(refusal);
        }
        let is_free = state.queue.len() < state.free();
        state.queue.push_back(Queued { request, sent_at: is_free.then_some(now) });
        drop(state);
        self.changed.notify_one();
    }

    /// Starts a thread for a further request if no thread is free and fewer than [`MAX_THREADS`]
    /// run. If the operating system refuses the thread, the running threads do the work. Returns an
    /// error if no thread runs.
    fn start_thread_if_needed(self: &Arc<Self>, state: &mut LaneState<T>) -> Result<(), Refusal> {
        if state.queue.len() < state.free() || state.threads == MAX_THREADS {
            return Ok(());
        }
        let lane = Arc::clone(self);
        let thread = thread::Builder::new().name("lock-member".to_owned());
        match thread.spawn(move || lane.run()) {
            Ok(_) => state.threads += 1,
            Err(error) if state.threads == 0 => return Err(Refusal::NoThread(error.into())),
            Err(_) => {}
        }
        Ok(())
    }

    /// The loop of a thread, which sends queued requests in order. Nothing is locked meanwhile,
    /// because a request reads clocks.
    fn run(&self) {
        while let Some(Queued { mut request, sent_at }) = self.next() {
            let (core, mut number) = (request.core(), None);
            catch_and_count(core.as_deref(), || {
                let now = self.clock.now();
                number = Some(self.state.lock().sent(sent_at.unwrap_or(now)));
                request.send(now);
            });
            if let Some(number) = number {
                self.state.lock().sent.remove(&number);
            }
            // The request reports the answer when dropped. This call is separate from the unwinding
            // above, because the clock may panic again.
            catch_and_count(core.as_deref(), || drop(request));
            self.state.lock().busy -= 1;
        }
    }

    /// Removes the next request from the queue and counts the calling thread as busy. Waits while
    /// the queue is empty. Returns `None` once the lane is closed and the queue is empty.
    fn next(&self) -> Option<Queued<T>> {
        let mut state = self.state.lock();
        loop {
            if let Some(queued) = state.queue.pop_front() {
                state.busy += 1;
                return Some(queued);
            }
            if state.is_closed {
                return None;
            }
            self.changed.wait(&mut state);
        }
    }

    /// Closes the lane: the threads end as soon as the queued requests are sent.
    pub(crate) fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_all();
    }
}

impl<T> LaneState<T> {
    /// Returns how many threads have no request.
    fn free(&self) -> usize {
        self.threads - self.busy
    }

    /// Records a request as sent at `now`, and returns the request's number.
    fn sent(&mut self, now: Instant) -> u64 {
        self.last_sent += 1;
        self.sent.insert(self.last_sent, now);
        self.last_sent
    }

    /// Returns whether there are unanswered requests, and all were sent `timeout` or longer before
    /// `now`.
    fn is_stuck(&self, now: Instant, timeout: Duration) -> bool {
        !self.sent.is_empty() && self.sent.values().all(|sent| *sent + timeout <= now)
    }
}

/// Runs `action` within [`catch_panic`]. The client `core`, if any, counts a panic.
pub(crate) fn catch_and_count(core: Option<&ClientCore>, action: impl FnOnce()) {
    if let (None, Some(core)) = (catch_panic(action), core) {
        core.watchdog.context.counters.panicked();
    }
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::{Receiver, Sender, unbounded};
    use hashed_wheel::ManualClock;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(1);
    /// For what happens on another thread.
    const LIMIT: Duration = Duration::from_secs(60);

    #[derive(Debug, PartialEq, Eq)]
    enum Step {
        Sent,
        Reported,
        Refused(&'static str),
    }

    /// A request that tells its steps, and is answered and reports when the test lets it.
    struct Stepwise {
        steps: Sender<Step>,
        may_answer: Receiver<()>,
        may_report: Receiver<()>,
        is_refused: bool,
    }

    impl Request for Stepwise {
        fn send(&mut self, _now: Instant) {
            self.steps.send(Step::Sent).unwrap();
            self.may_answer.recv_timeout(LIMIT).unwrap();
        }

        fn refuse(mut self, refusal: Refusal) {
            self.is_refused = true;
            let refusal = match refusal {
                Refusal::QueueFull => "full",
                Refusal::Stuck => "stuck",
                Refusal::NoThread(_) => "no thread",
            };
            self.steps.send(Step::Refused(refusal)).unwrap();
        }

        fn core(&self) -> Option<Arc<ClientCore>> {
            None
        }
    }

    impl Drop for Stepwise {
        fn drop(&mut self) {
            if !self.is_refused {
                self.steps.send(Step::Reported).unwrap();
                self.may_report.recv_timeout(LIMIT).unwrap();
            }
        }
    }

    struct Test {
        clock: ManualClock,
        lane: Arc<Lane<Stepwise>>,
        steps: (Sender<Step>, Receiver<Step>),
        answers: (Sender<()>, Receiver<()>),
        reports: (Sender<()>, Receiver<()>),
    }

    impl Test {
        fn new(max_queued: usize) -> Self {
            let clock = ManualClock::new();
            let shared: Arc<dyn Clock> = Arc::new(clock.clone());
            let lane = Lane::new(&shared, max_queued);
            Self { clock, lane, steps: unbounded(), answers: unbounded(), reports: unbounded() }
        }

        fn send(&self) {
            let request = Stepwise {
                steps: self.steps.0.clone(),
                may_answer: self.answers.1.clone(),
                may_report: self.reports.1.clone(),
                is_refused: false,
            };
            self.lane.send(request, self.clock.now(), TIMEOUT);
        }

        fn step(&self) -> Step {
            self.steps.1.recv_timeout(LIMIT).unwrap()
        }

        fn answer(&self, requests: usize) {
            for _ in 0..requests {
                self.answers.0.send(()).unwrap();
            }
        }

        fn let_report(&self, requests: usize) {
            for _ in 0..requests {
                self.reports.0.send(()).unwrap();
            }
        }
    }

    impl Drop for Test {
        fn drop(&mut self) {
            self.answer(100);
            self.let_report(100);
            self.lane.close();
        }
    }

    #[test]
    fn lane_is_stuck_when_each_request_exceeds_the_timeout() {
        let test = Test::new(8);
        test.send();
        assert_eq!(test.step(), Step::Sent);
        test.clock.jump(TIMEOUT / 2);
        test.send();
        assert_eq!(test.step(), Step::Sent);
        test.clock.jump(TIMEOUT / 2);
        test.send();
        assert_eq!(test.step(), Step::Sent, "the second may be answered in time");
        test.clock.jump(TIMEOUT);
        test.send();
        assert_eq!(test.step(), Step::Refused("stuck"));
    }

    #[test]
    fn a_lane_is_not_stuck_while_a_request_reports_its_answer() {
        let test = Test::new(8);
        test.send();
        assert_eq!(test.step(), Step::Sent);
        test.clock.jump(TIMEOUT);
        test.answer(1);
        assert_eq!(test.step(), Step::Reported);
        test.send();
        assert_eq!(test.step(), Step::Sent);
    }

    #[test]
    fn a_few_requests_are_sent_at_once_and_some_are_queued() {
        let test = Test::new(2);
        for _ in 0..MAX_THREADS {
            test.send();
            assert_eq!(test.step(), Step::Sent);
        }
        test.send();
        test.send();
        test.send();
        assert_eq!(test.step(), Step::Refused("full"));
        test.let_report(1);
        test.answer(1);
        assert_eq!((test.step(), test.step()), (Step::Reported, Step::Sent));
    }

    #[test]
    fn a_closed_lane_sends_what_is_queued() {
        let test = Test::new(8);
        for _ in 0..=MAX_THREADS {
            test.send();
        }
        test.lane.close();
        test.let_report(MAX_THREADS + 1);
        test.answer(MAX_THREADS + 1);
        let sent = (0..2 * (MAX_THREADS + 1)).filter(|_| test.step() == Step::Sent).count();
        assert_eq!(sent, MAX_THREADS + 1);
    }
}
