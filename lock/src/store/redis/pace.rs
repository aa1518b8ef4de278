//! When to ask a cluster anew who serves what: as soon as somebody has a reason, and then not again in a hurry.

use std::time::Duration;

use hashed_wheel::{Clock, SystemClock};
use parking_lot::{Condvar, Mutex};

/// Between two looks, at least. It doubles while they find nothing new: a node that is dead and has no replica must not
/// make everybody ask the others all the time.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// One thread looks; any number give reasons.
#[derive(Debug)]
pub(super) struct Pace {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    asked: bool,
    running: bool,
    closed: bool,
    pause: Duration,
}

impl Pace {
    pub(super) fn new() -> Self {
        let state = State { asked: false, running: false, closed: false, pause: SHORTEST_PAUSE };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// There is a reason to look; with `news`, something is known to have changed. If nobody is there to look, `start`
    /// is to start a thread. If that fails, the next reason tries again.
    pub(super) fn ask(&self, news: bool, start: impl FnOnce() -> bool) {
        let mut state = self.state.lock();
        state.asked = true;
        if news {
            state.pause = SHORTEST_PAUSE;
        }
        if !state.running && !state.closed {
            state.running = start();
        }
        self.changed.notify_all();
    }

    /// Waits for a reason, which is taken; or for `longest`. False at the end.
    pub(super) fn wait(&self, longest: Option<Duration>) -> bool {
        let asked_at = longest.map(|longest| SystemClock.now() + longest);
        let mut state = self.state.lock();
        while !state.asked && !state.closed {
            match asked_at.map(|at| at.saturating_duration_since(SystemClock.now())) {
                Some(left) if left.is_zero() => break,
                Some(left) => drop(self.changed.wait_for(&mut state, left)),
                None => self.changed.wait(&mut state),
            }
        }
        state.asked = false;
        !state.closed
    }

    /// Rests after a look. What is asked meanwhile is answered by the next. False at the end.
    pub(super) fn rest(&self, found_news: bool) -> bool {
        let mut state = self.state.lock();
        state.pause =
            if found_news { SHORTEST_PAUSE } else { (state.pause * 2).min(LONGEST_PAUSE) };
        let begun = SystemClock.now();
        // The pause may be cut short by news.
        while !state.closed {
            let left = (begun + state.pause).saturating_duration_since(SystemClock.now());
            if left.is_zero() {
                break;
            }
            self.changed.wait_for(&mut state, left);
        }
        if !state.asked {
            // It was enough for everybody.
            state.pause = SHORTEST_PAUSE;
        }
        !state.closed
    }

    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_is_started_and_reasons_add_up_to_one() {
        let pace = Pace::new();
        let mut started = 0;
        pace.ask(false, || false);
        for _ in 0..3 {
            pace.ask(false, || {
                started += 1;
                true
            });
        }
        assert_eq!(started, 1);
        assert!(pace.wait(None));
        // There is no second reason.
        let begun = SystemClock.now();
        assert!(pace.wait(Some(Duration::from_millis(20))));
        assert!(SystemClock.now() - begun >= Duration::from_millis(20));
    }

    #[test]
    fn pauses_double_while_there_are_reasons_and_no_news() {
        let pace = Pace::new();
        let rest = |news| {
            let begun = SystemClock.now();
            pace.ask(false, || true);
            assert!(pace.rest(news));
            SystemClock.now() - begun
        };
        assert!(rest(true) >= SHORTEST_PAUSE);
        let mut last = Duration::ZERO;
        for times in [2, 4, 8, 16] {
            last = rest(false);
            assert!(last >= SHORTEST_PAUSE * times, "{last:?}");
        }
        let first_again = rest(true);
        assert!(first_again >= SHORTEST_PAUSE && first_again < last, "{first_again:?}");
    }

    #[test]
    fn the_end_ends_every_wait() {
        let pace = Pace::new();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| pace.wait(None));
            pace.close();
            assert!(!waiting.join().unwrap());
        });
        assert!(!pace.rest(false));
        pace.ask(false, || panic!("no thread is started after the end"));
    }
}
