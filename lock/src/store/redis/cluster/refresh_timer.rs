//! Decides when to query the topology of a cluster again: as soon as there is a reason, but not too
//! often.

use std::time::{Duration, Instant};

use hashed_wheel::Clock;

use crate::model::sync::{Condvar, Mutex, SystemClock};

/// The shortest time between two refreshes. The pause doubles while refreshes find no change: a
/// dead node without a replica must not cause a query after each failed command.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause between two refreshes.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How long refreshes continue after a node failed. The node's replica may take over only later,
/// and a renewal is retried after at most three seconds, for at most three seconds.
const FAILURE_LASTS: Duration = Duration::from_secs(6);

/// Decides when the one refreshing thread runs. Any number of threads request a refresh.
#[derive(Debug)]
pub(crate) struct RefreshTimer {
    state: Mutex<RefreshState>,
    changed: Condvar,
}

/// The requests for a refresh, and the pause after the next refresh.
#[derive(Debug)]
struct RefreshState {
    requested: bool,
    running: bool,
    closed: bool,
    pause: Duration,
    /// The last failure of a node is a reason to refresh until this time.
    failure_until: Option<Instant>,
}

impl RefreshState {
    /// Returns whether a node failed within the last [`FAILURE_LASTS`].
    fn has_recent_failure(&self) -> bool {
        self.failure_until.is_some_and(|until| SystemClock.now() < until)
    }
}

impl RefreshTimer {
    pub(crate) fn new() -> Self {
        let state = RefreshState {
            requested: false,
            running: false,
            closed: false,
            pause: SHORTEST_PAUSE,
            failure_until: None,
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Requests a refresh. `has_changed`: the topology is known to have changed, so the pause is
    /// short. If no thread is running, `start` starts a thread; if the start fails, the next
    /// request tries again.
    pub(crate) fn request(&self, has_changed: bool, start: impl FnOnce() -> bool) {
        let mut state = self.state.lock();
        state.requested = true;
        if has_changed {
            state.pause = SHORTEST_PAUSE;
        }
        if !state.running && !state.closed {
            state.running = start();
        }
        self.changed.notify_all();
    }

    /// Records the failure of a node, which is a reason to refresh for [`FAILURE_LASTS`].
    pub(crate) fn note_failure(&self) {
        self.state.lock().failure_until = Some(SystemClock.now() + FAILURE_LASTS);
    }

    /// Returns whether a node failed within the last [`FAILURE_LASTS`].
    pub(crate) fn has_recent_failure(&self) -> bool {
        self.state.lock().has_recent_failure()
    }

    /// Waits for a request, for at most `longest`, and takes the request. Returns `false` on close.
    pub(crate) fn wait(&self, longest: Option<Duration>) -> bool {
        let wake_at = longest.map(|longest| SystemClock.now() + longest);
        let mut state = self.state.lock();
        while !state.requested && !state.closed {
            match wake_at.map(|at| at.saturating_duration_since(SystemClock.now())) {
                Some(left) if left.is_zero() => break,
                Some(left) => self.changed.wait_for(&mut state, left),
                None => self.changed.wait(&mut state),
            }
        }
        state.requested = false;
        !state.closed
    }

    /// Pauses after a refresh: shortly if the topology `has_changed`, and otherwise twice as long
    /// as before. Requests during the pause share the next refresh. Returns `false` on close.
    pub(crate) fn pause(&self, has_changed: bool) -> bool {
        let mut state = self.state.lock();
        state.pause =
            if has_changed { SHORTEST_PAUSE } else { (state.pause * 2).min(LONGEST_PAUSE) };
        let begun_at = SystemClock.now();
        // A request may shorten the pause meanwhile.
        while !state.closed {
            let left = (begun_at + state.pause).saturating_duration_since(SystemClock.now());
            if left.is_zero() {
                break;
            }
            self.changed.wait_for(&mut state, left);
        }
        if !state.requested && !state.has_recent_failure() {
            // There is no reason left, so the next refresh need not wait long.
            state.pause = SHORTEST_PAUSE;
        }
        !state.closed
    }

    /// Ends every wait and every pause, now and later.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_is_started_and_requests_are_merged() {
        let timer = RefreshTimer::new();
        let mut started = 0;
        timer.request(false, || false);
        for _ in 0..3 {
            timer.request(false, || {
                started += 1;
                true
            });
        }
        assert_eq!(started, 1);
        assert!(timer.wait(None));
        // There is no second request.
        let begun_at = SystemClock.now();
        assert!(timer.wait(Some(Duration::from_millis(20))));
        assert!(SystemClock.now() - begun_at >= Duration::from_millis(20));
    }

    #[test]
    fn pauses_double_while_there_are_requests_and_no_changes() {
        let timer = RefreshTimer::new();
        let pause = |has_changed| {
            let begun_at = SystemClock.now();
            timer.request(false, || true);
            assert!(timer.pause(has_changed));
            SystemClock.now() - begun_at
        };
        assert!(pause(true) >= SHORTEST_PAUSE);
        let mut last = Duration::ZERO;
        for times in [2, 4, 8, 16] {
            last = pause(false);
            assert!(last >= SHORTEST_PAUSE * times, "{last:?}");
        }
        let first_again = pause(true);
        assert!(first_again >= SHORTEST_PAUSE && first_again < last, "{first_again:?}");
    }

    #[test]
    fn after_a_failure_pauses_double_without_requests() {
        let timer = RefreshTimer::new();
        timer.note_failure();
        assert!(timer.has_recent_failure());
        for times in [2, 4, 8] {
            let begun_at = SystemClock.now();
            assert!(timer.pause(false));
            assert!(SystemClock.now() - begun_at >= SHORTEST_PAUSE * times);
        }
    }

    #[test]
    fn close_ends_every_wait() {
        let timer = RefreshTimer::new();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| timer.wait(None));
            timer.close();
            assert!(!waiting.join().unwrap());
        });
        assert!(!timer.pause(false));
        timer.request(false, || panic!("no thread is started after close"));
    }
}
