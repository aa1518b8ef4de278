//! The pauses between the rounds of a multi-lock: two acquires that collided do not stay in step.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::iter;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::in_memory::InMemory;
use crate::common::{SOON, built};
use crossbeam_channel::{Receiver, Sender, unbounded};
use hashed_wheel::Parker;
use wheellock::{Backoff, Clock, ManualClock};
use wheellock_fixture::wait_until;

/// As no other wait is long.
const PAUSE: Duration = Duration::from_millis(700);

/// A clock that tells for how long a thread parks on it.
#[derive(Debug)]
struct Telling {
    clock: ManualClock,
    parks: Sender<Duration>,
}

impl Clock for Telling {
    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn park(&self, parker: &Parker, deadline: Option<Instant>, interrupt: &Receiver<()>) {
        if let Some(deadline) = deadline {
            self.parks.send(deadline.saturating_duration_since(self.now())).unwrap();
        }
        self.clock.park(parker, deadline, interrupt);
    }
}

/// The pause after missing first one of two locks and then the other. Plain locks alone would not
/// be waited for while one is held.
fn pause_after_two_rounds() -> Duration {
    let setup = InMemory::new();
    let (parks, parked) = unbounded();
    let clock = Arc::new(Telling { clock: setup.clock.clone(), parks });
    let (rival, client) = (setup.client(), built(setup.builder().clock(clock)));
    let [a, b] = ["a", "b"].map(|name| rival.lock(name));
    let both = client
        .multi_lock(&[&client.lock("a"), &client.fenced_lock("b")])
        .with_backoff(Backoff::new(PAUSE, PAUSE));
    let waits = || client.stats().waiters == 1;
    thread::scope(|scope| {
        let held = b.lock().unwrap();
        let waiter = scope.spawn(|| both.lock().map(drop));
        wait_until("it waits for b and holds a", SOON, || waits() && a.is_locked().unwrap());
        setup.clock.advance(Duration::from_millis(100));
        wait_until("it waits for b and holds nothing", SOON, || waits() && !a.is_locked().unwrap());
        let other = a.lock().unwrap();
        drop(held);
        let is_it = |park: &Duration| *park >= PAUSE / 2 && *park <= PAUSE;
        let pause = iter::from_fn(|| parked.recv_timeout(SOON).ok()).find(is_it).unwrap();
        assert!(!b.is_locked().unwrap(), "it pauses with nothing held");
        drop(other);
        setup.clock.advance(PAUSE);
        waiter.join().unwrap().unwrap();
        pause
    })
}

#[test]
fn pauses_between_rounds_have_jitter() {
    let pauses: Vec<Duration> = (0..5).map(|_| pause_after_two_rounds()).collect();
    assert!(pauses.iter().any(|pause| *pause != pauses[0]), "{pauses:?}");
}
