//! Runs calls that may never return, such as name resolution or a callback of the program. Each
//! call runs on its own thread, so that the callers have a deadline.

use std::fmt;
use std::io;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use hashed_wheel::Clock;

use crate::model::panics::catch_panic;
use crate::model::sync::{Condvar, Mutex, SystemClock};

/// Runs tasks that may never return, on separate threads. Calls with the same key share a flight:
/// one task and one result. A call with another key, or after the result, begins another flight. A
/// thread that does not return cannot be ended, so the number of threads is bounded.
pub(crate) struct SingleFlight<T> {
    relaunch: Relaunch,
    shared: Arc<FlightShared<T>>,
}

/// When a task without a result is started again, on a thread beside the running threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Relaunch {
    /// Time between two starts, while a caller waits.
    pub(crate) after: Duration,
    /// Largest number of threads, for all keys.
    pub(crate) max_threads: usize,
}

/// The state that callers and the threads of the tasks share.
struct FlightShared<T> {
    state: Mutex<FlightState<T>>,
    /// Signalled when a thread ends.
    thread_ended: Condvar,
}

/// The latest flight, and the number of threads of all flights.
struct FlightState<T> {
    latest: Option<Arc<Flight<T>>>,
    /// Time of the last start of a thread for the latest flight.
    launched_at: Option<Instant>,
    /// Threads that have not ended.
    threads: usize,
}

/// A key, and the result of its task once there is a result.
struct Flight<T> {
    key: String,
    /// The first result. Set with the state locked.
    result: OnceLock<Result<T, Arc<io::Error>>>,
}

impl<T: Clone + Send + Sync + 'static> SingleFlight<T> {
    /// Creates flights whose task is started once, even if the task never returns.
    pub(crate) fn new() -> Self {
        Self::with_relaunch(Relaunch { after: Duration::MAX, max_threads: 1 })
    }

    /// Creates flights whose task is started again while there is no result.
    pub(crate) fn with_relaunch(relaunch: Relaunch) -> Self {
        let state = Mutex::new(FlightState { latest: None, launched_at: None, threads: 0 });
        Self { relaunch, shared: Arc::new(FlightShared { state, thread_ended: Condvar::new() }) }
    }

    /// Runs `task` on a thread `lock-connect`, or joins the flight of `key`, and returns the
    /// result. Fails if the task fails, panics, or does not return within `timeout`; the reason for
    /// the timeout is `late`.
    pub(crate) fn call(
        &self,
        key: &str,
        task: impl FnOnce() -> io::Result<T> + Clone + Send + 'static,
        timeout: Duration,
        late: &str,
    ) -> io::Result<T> {
        let deadline = SystemClock.now() + timeout;
        let mut state = self.shared.state.lock();
        let flight = state.join(key);
        loop {
            // 1. A result serves every caller that waits for this flight.
            match flight.result.get() {
                Some(Ok(value)) => return Ok(value.clone()),
                Some(Err(error)) => return Err(io::Error::new(error.kind(), Arc::clone(error))),
                None => {}
            }
            let now = SystemClock.now();
            if deadline <= now {
                return Err(io::Error::new(io::ErrorKind::TimedOut, late));
            }
            // 2. The caller that finds a start due makes the start, the first or a later start.
            let mut wake_at = deadline;
            if let Some(due) = state.due_at(&flight, self.relaunch, now) {
                if due <= now {
                    launch(&self.shared, &flight, task.clone())?;
                    state.launched_at = Some(now);
                    state.threads += 1;
                    continue;
                }
                wake_at = deadline.min(due);
            }
            // 3. A thread that ends may leave the result, or make room for another start.
            self.shared.thread_ended.wait_for(&mut state, wake_at.saturating_duration_since(now));
        }
    }
}

impl<T> FlightState<T> {
    /// Returns the latest flight if its key is `key` and there is no result yet. Otherwise begins
    /// and returns a new flight.
    fn join(&mut self, key: &str) -> Arc<Flight<T>> {
        match &self.latest {
            Some(latest) if latest.key == key && latest.result.get().is_none() => {
                Arc::clone(latest)
            }
            _ => {
                let flight = Flight { key: key.to_owned(), result: OnceLock::new() };
                self.launched_at = None;
                Arc::clone(self.latest.insert(Arc::new(flight)))
            }
        }
    }

    /// Returns when to start a thread for `flight`. `None` while there are too many threads, after
    /// the start of a task that is started once only, and if another flight has replaced `flight`.
    fn due_at(&self, flight: &Arc<Flight<T>>, relaunch: Relaunch, now: Instant) -> Option<Instant> {
        let is_latest = self.latest.as_ref().is_some_and(|latest| Arc::ptr_eq(latest, flight));
        if !is_latest || self.threads >= relaunch.max_threads {
            return None;
        }
        match self.launched_at {
            Some(launched_at) => launched_at.checked_add(relaunch.after),
            None => Some(now),
        }
    }
}

/// Starts a thread that runs `task` and sets the result of `flight`, unless another thread was
/// faster.
fn launch<T: Send + Sync + 'static>(
    shared: &Arc<FlightShared<T>>,
    flight: &Arc<Flight<T>>,
    task: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<()> {
    let (shared, flight) = (Arc::clone(shared), Arc::clone(flight));
    let run = move || {
        // The message of a panic may contain a secret, so the message is not passed on.
        let result = catch_panic(task).unwrap_or_else(|| Err(io::Error::other("it panicked")));
        let mut state = shared.state.lock();
        state.threads -= 1;
        flight.result.get_or_init(|| result.map_err(Arc::new));
        shared.thread_ended.notify_all();
    };
    thread::Builder::new().name("lock-connect".to_owned()).spawn(run).map(drop)
}

/// Omits the result, which may be a secret.
impl<T> fmt::Debug for SingleFlight<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("SingleFlight").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use crossbeam_channel::{Receiver, Sender, bounded};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);
    const BRIEFLY: Duration = Duration::from_millis(10);

    /// Tasks that return one after the other, when the test sends their results.
    struct Tasks {
        flights: SingleFlight<usize>,
        started: Arc<AtomicUsize>,
        result: Sender<usize>,
        results: Receiver<usize>,
    }

    impl Tasks {
        fn new(flights: SingleFlight<usize>) -> Self {
            let (result, results) = bounded(0);
            Self { flights, started: Arc::default(), result, results }
        }

        fn call(&self, key: &str, timeout: Duration) -> io::Result<usize> {
            let (started, results) = (Arc::clone(&self.started), self.results.clone());
            let task = move || {
                started.fetch_add(1, Ordering::SeqCst);
                results.recv().map_err(io::Error::other)
            };
            self.flights.call(key, task, timeout, "late")
        }

        fn threads(&self) -> usize {
            self.flights.shared.state.lock().threads
        }

        /// The callers and threads of the latest flight.
        fn participants(&self) -> usize {
            let state = self.flights.shared.state.lock();
            state.latest.as_ref().map_or(0, |latest| Arc::strong_count(latest) - 1)
        }

        fn wait_until_started(&self, number: usize) {
            while self.started.load(Ordering::SeqCst) < number {
                thread::yield_now();
            }
        }
    }

    #[test]
    fn a_call_with_another_key_does_not_wait_for_one_that_hangs() {
        let tasks =
            Tasks::new(SingleFlight::with_relaunch(Relaunch { after: LIMIT, max_threads: 2 }));
        assert_eq!(tasks.call("hangs", BRIEFLY).unwrap_err().kind(), io::ErrorKind::TimedOut);
        thread::scope(|scope| {
            let other = scope.spawn(|| tasks.call("other", LIMIT));
            // Two threads wait for a result; the second goes to the one that is left.
            for number in [1, 2] {
                tasks.result.send(number).unwrap();
            }
            assert!([1, 2].contains(&other.join().unwrap().unwrap()));
        });
    }

    #[test]
    fn hung_task_is_restarted_and_first_result_serves_all_callers() {
        let tasks =
            Tasks::new(SingleFlight::with_relaunch(Relaunch { after: BRIEFLY, max_threads: 2 }));
        thread::scope(|scope| {
            let callers: Vec<_> = (0..3).map(|_| scope.spawn(|| tasks.call("a", LIMIT))).collect();
            tasks.wait_until_started(2);
            while tasks.participants() < callers.len() + 2 {
                thread::yield_now();
            }
            tasks.result.send(7).unwrap();
            for caller in callers {
                assert_eq!(caller.join().unwrap().unwrap(), 7);
            }
        });
        // The task that hangs gives no result to later callers.
        thread::scope(|scope| {
            let one = scope.spawn(|| tasks.call("a", LIMIT));
            for number in [8, 8] {
                tasks.result.send(number).unwrap();
            }
            assert_eq!(one.join().unwrap().unwrap(), 8);
        });
    }

    #[test]
    fn there_are_never_more_threads_than_the_bound() {
        let tasks = Tasks::new(SingleFlight::with_relaunch(Relaunch {
            after: Duration::ZERO,
            max_threads: 3,
        }));
        for round in 0..20 {
            assert!(tasks.call(["a", "b"][round % 2], BRIEFLY).is_err());
            assert!(tasks.threads() <= 3);
        }
        tasks.wait_until_started(3);
        // A caller that waits gets the place of a thread that ends.
        thread::scope(|scope| {
            let one = scope.spawn(|| tasks.call("c", LIMIT));
            while !one.is_finished() {
                tasks.result.send_timeout(9, BRIEFLY).ok();
            }
            assert_eq!(one.join().unwrap().unwrap(), 9);
        });
    }

    #[test]
    fn without_relaunch_a_task_is_started_once() {
        let tasks = Tasks::new(SingleFlight::new());
        for _ in 0..3 {
            assert!(tasks.call("", BRIEFLY).is_err());
        }
        tasks.wait_until_started(1);
        assert_eq!(tasks.started.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_panic_is_an_error_whatever_its_payload() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                std::panic::resume_unwind(Box::new("in the destructor of the payload"));
            }
        }
        let flights = SingleFlight::<()>::new();
        let task = || std::panic::resume_unwind(Box::new(Bomb));
        let result = flights.call("panics", task, Duration::from_secs(20), "late");
        assert_eq!(result.unwrap_err().to_string(), "it panicked");
    }
}
