//! Many threads of one client on one name: never two are inside, whatever ends their waits and
//! however they hand the lock over.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "the helpers of a test may fail it as the test itself may"
)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use wheellock::{Client, Error, FencedGuard, Guard, Lock, LockGuard, Wait};
use wheellock_fixture::wait_until;

use crate::common::SOON;
use crate::common::stores::{TestStore, on_both_stores};

const THREADS: usize = 64;

/// What the lock protects. Nothing here is atomic as a whole, so two at once are seen.
#[derive(Default)]
struct Section {
    occupied: AtomicBool,
    entered: AtomicU64,
    /// The largest fencing token that was seen.
    token: AtomicU64,
}

impl Section {
    fn enter(&self, guard: &impl Guard) {
        assert!(guard.is_held());
        assert!(!self.occupied.swap(true, Ordering::SeqCst), "two are inside at once");
        let seen = self.entered.load(Ordering::SeqCst);
        thread::yield_now();
        self.entered.store(seen + 1, Ordering::SeqCst);
        assert!(guard.is_held());
        assert!(self.occupied.swap(false, Ordering::SeqCst), "two were inside at once");
    }

    /// Enters the section by a guard with a token, and asserts that no guard had that token or a
    /// larger one before.
    fn enter_fenced(&self, guard: &FencedGuard) {
        self.enter(&**guard);
        let before = self.token.fetch_max(guard.token(), Ordering::SeqCst);
        assert!(before < guard.token(), "{before} was followed by {}", guard.token());
    }
}

/// How the waits of all threads ended.
#[derive(Default)]
struct Ends {
    granted: AtomicU64,
    busy: AtomicU64,
    cancelled: AtomicU64,
}

impl Ends {
    /// The guard, if there is one. A short wait may end before the server has answered any thread,
    /// or in the middle of a call; the server may then grant what nobody waits for.
    fn record<G>(&self, end: Result<Option<G>, Error>, is_short: bool) -> Option<G> {
        let (count, guard) = match end {
            Ok(Some(guard)) => (&self.granted, Some(guard)),
            Ok(None) => (&self.busy, None),
            Err(Error::Cancelled { .. }) => (&self.cancelled, None),
            Err(Error::Unreachable { .. } | Error::OutcomeUnknown { .. }) if is_short => {
                (&self.busy, None)
            }
            Err(error) => panic!("{error}"),
        };
        count.fetch_add(1, Ordering::SeqCst);
        guard
    }
}

/// Ends the waits of threads, one after the other, until it is dropped.
struct Canceller {
    over: Sender<()>,
}

impl Canceller {
    fn start<'scope>(scope: &'scope thread::Scope<'scope, '_>, waits: Vec<Sender<()>>) -> Self {
        let (over, ended) = bounded(0);
        scope.spawn(move || {
            for wait in waits.iter().cycle() {
                // A wait that has a message already has not ended yet.
                wait.try_send(()).ok();
                match ended.recv_timeout(Duration::from_micros(200)) {
                    Err(crossbeam_channel::RecvTimeoutError::Timeout) => {}
                    _ => break,
                }
            }
        });
        Self { over }
    }

    fn end(self) {
        drop(self.over);
    }
}

/// Nothing is left of a lock that all have released, here or on the server.
fn assert_released(setup: &TestStore, client: &Client, name: &str) {
    wait_until("no release is queued", SOON, || client.stats().queued_releases == 0);
    wait_until("the lock is free", SOON, || setup.fields(name).is_empty());
    let stats = client.stats();
    assert_eq!((stats.held, stats.waiters, stats.lost, stats.panics), (0, 0, 0, 0));
    assert_eq!(stats.abandoned_releases, 0);
}

/// Enters by a lock until that has succeeded so often, in a different way each time.
fn enter_often<G: Guard>(
    lock: &Lock<G>,
    times: u64,
    cancel: &Receiver<()>,
    ends: &Ends,
    enter: impl Fn(&G),
) {
    let mut entered = 0;
    for turn in 0_u64.. {
        if entered == times {
            return;
        }
        let end = match turn % 5 {
            0 => lock.try_lock(),
            1 => lock.try_lock_for(Duration::from_micros(300)),
            2 => lock.try_lock_for(SOON * 3),
            3 => lock.try_lock_with(Wait::at_most(SOON * 3).or_cancelled(cancel)),
            _ => lock.lock().map(Some),
        };
        let was_cancelled = matches!(end, Err(Error::Cancelled { .. }));
        let Some(guard) = ends.record(end, turn % 5 == 1) else {
            if was_cancelled {
                cancel.try_recv().ok();
            }
            continue;
        };
        enter(&guard);
        entered += 1;
        if turn % 7 == 0 {
            // Nested, and released as the outer one is.
            let inner = lock.lock().unwrap();
            assert!(inner.is_held());
            drop(inner);
            assert!(guard.is_held());
        }
        if turn % 2 == 0 {
            guard.unlock().unwrap();
        } else {
            drop(guard);
        }
    }
}

on_both_stores! {
    fn timeouts_and_cancellations_keep_threads_mutually_exclusive(setup: &TestStore) {
        const TIMES: u64 = 30;
        let client = setup.client();
        let (section, ends) = (Section::default(), Ends::default());
        thread::scope(|scope| {
            let (cancels, waits): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| bounded(1)).unzip();
            let canceller = Canceller::start(scope, cancels);
            let threads: Vec<_> = waits
                .into_iter()
                .map(|cancel| {
                    let (lock, section, ends) = (client.lock("a"), &section, &ends);
                    scope.spawn(move || {
                        enter_often(&lock, TIMES, &cancel, ends, |guard| section.enter(guard));
                    })
                })
                .collect();
            let results: Vec<_> = threads.into_iter().map(thread::ScopedJoinHandle::join).collect();
            canceller.end();
            results.into_iter().for_each(Result::unwrap);
        });
        let all = TIMES * THREADS as u64;
        assert_eq!(section.entered.into_inner(), all, "two were inside at once");
        assert_eq!(ends.granted.into_inner(), all);
        assert!(ends.busy.into_inner() > 0 && ends.cancelled.into_inner() > 0);
        assert_released(setup, &client, "a");
    }

    fn of_two_clients_with_many_threads_never_two_are_inside(setup: &TestStore) {
        const TIMES: u64 = 30;
        let clients = [setup.client(), setup.client()];
        let (section, ends) = (Section::default(), Ends::default());
        // Without a message, as long as there is a sender.
        let (_sender, never) = bounded(1);
        thread::scope(|scope| {
            for client in clients.iter().flat_map(|client| [client; THREADS / 2]) {
                let (lock, section, ends, never) = (client.fenced_lock("a"), &section, &ends, &never);
                scope.spawn(move || {
                    let enter = |guard: &FencedGuard| section.enter_fenced(guard);
                    enter_often(&lock, TIMES, never, ends, enter);
                });
            }
        });
        let all = TIMES * THREADS as u64;
        assert_eq!(section.entered.into_inner(), all, "two were inside at once");
        for client in &clients {
            assert_released(setup, client, "a");
        }
    }

    fn mixed_lock_kinds_of_a_name_keep_threads_mutually_exclusive(setup: &TestStore) {
        const TIMES: u64 = 4;
        let client = setup.client();
        let (section, ends) = (Section::default(), Ends::default());
        // Kinds of one layout. They do not wake each other's waiters, so the waits are short.
        let wait = |turn: u64| Duration::from_millis(1 + turn % 20);
        let plain = |lock: &Lock| {
            let guards = (0..).find_map(|turn| ends.record(lock.try_lock_for(wait(turn)), true));
            let guard: LockGuard = guards.unwrap();
            section.enter(&guard);
            guard.unlock().unwrap();
        };
        let fenced = || {
            let lock = client.fenced_lock("a");
            let guards = (0..).find_map(|turn| ends.record(lock.try_lock_for(wait(turn)), true));
            section.enter_fenced(&guards.unwrap());
        };
        thread::scope(|scope| {
            for number in 0..THREADS {
                let (client, plain, fenced) = (&client, &plain, &fenced);
                scope.spawn(move || {
                    for _ in 0..TIMES {
                        match number % 5 {
                            0 => plain(&client.lock("a")),
                            1 => plain(&client.non_reentrant_lock("a")),
                            2 => plain(&client.fair_lock("a")),
                            3 => plain(&client.spin_lock("a")),
                            _ => fenced(),
                        }
                    }
                });
            }
        });
        assert_eq!(section.entered.into_inner(), TIMES * THREADS as u64);
        assert_released(setup, &client, "a");
    }
}
