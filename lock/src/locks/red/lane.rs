//! The threads that send one kind of request to one server, so that a server that hangs delays no
//! other.
//!
//! A lane is *stuck* when every request that its threads have sent is unanswered for longer than
//! callers wait. A stuck lane takes no request until one of its threads is free again, which takes
//! at most one command timeout. So requests do not pile up for a server that hangs.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashed_wheel::Clock;

use crate::core::client_core::ClientCore;
use crate::error::Reason;
use crate::model::panics::catch_panic;
use crate::model::sync::{Condvar, Mutex, thread};

/// A request to one server. Its drop reports the outcome, also of a request that was not sent.
pub(crate) trait Request: Send + 'static {
    /// Sends the request, at `now`, and keeps the answer.
    fn send(&mut self, now: Instant);

    /// Reports, when it is dropped, that it is not sent.
    fn refuse(self, refusal: Refusal);

    /// The client that counts a panic of the request.
    fn core(&self) -> Option<Arc<ClientCore>>;
}

/// Why a request is not sent.
pub(crate) enum Refusal {
    QueueFull,
    Stuck,
    NoThread(Reason),
}

/// At most this many threads send at the same time. A server that is far away needs several.
const MAX_THREADS: usize = 4;

/// A queue of requests, and threads that send them. The threads start when they are first needed,
/// and end when the lane is closed and its queue is empty.
#[derive(Debug)]
pub(crate) struct Lane<T> {
    clock: Arc<dyn Clock>,
    max_queued: usize,
    state: Mutex<State<T>>,
    /// There is a request, or the lane is closed.
    changed: Condvar,
}

/// A request that is to be sent, and when it was queued, if a thread was free for it. A wait for its
/// answer counts from then, so the lane is known to be stuck when the wait is over.
#[derive(Debug)]
struct Queued<T> {
    request: T,
    sent_at: Option<Instant>,
}

#[derive(Debug)]
struct State<T> {
    queue: VecDeque<Queued<T>>,
    threads: usize,
    /// How many of them have a request.
    busy: usize,
    /// When the threads sent the requests that are unanswered, by the number of the request.
    sent: BTreeMap<u64, Instant>,
    last_sent: u64,
    is_closed: bool,
}

impl<T: Request> Lane<T> {
    pub(crate) fn new(clock: &Arc<dyn Clock>, max_queued: usize) -> Arc<Self> {
        let state = State {
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

    /// Queues a request of a caller that waits for `timeout`, or refuses it.
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

    /// Starts a thread for one more request if all others are busy. If the system refuses it, the
    /// running threads do the work.
    fn start_thread_if_needed(self: &Arc<Self>, state: &mut State<T>) -> Result<(), Refusal> {
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

    /// A thread: sends one request after the other. Nothing is locked meanwhile, as a request calls
    /// clocks.
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
            // The request reports its answer. That is a call of its own, not part of the unwinding
            // above: the clock may panic again.
            catch_and_count(core.as_deref(), || drop(request));
            self.state.lock().busy -= 1;
        }
    }

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

    /// Ends the threads as soon as the queued requests are sent.
    pub(crate) fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_all();
    }
}

impl<T> State<T> {
    /// How many threads are free for a request.
    fn free(&self) -> usize {
        self.threads - self.busy
    }

    fn sent(&mut self, now: Instant) -> u64 {
        self.last_sent += 1;
        self.sent.insert(self.last_sent, now);
        self.last_sent
    }

    fn is_stuck(&self, now: Instant, timeout: Duration) -> bool {
        !self.sent.is_empty() && self.sent.values().all(|sent| *sent + timeout <= now)
    }
}

/// As [`catch_panic`]. The client counts the panic (DESIGN: foreign code).
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
    fn a_lane_is_stuck_when_each_request_is_unanswered_for_a_timeout() {
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
