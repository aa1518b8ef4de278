//! A lock that threads of a client hand to each other, in many interleavings.
//!
//! The client is the client of users, on a store in memory, with its renewal thread. In whichever
//! order the threads run, two threads never hold the lock, each call returns, and in the end the
//! lock is free. Time stands still in most of these tests, so no poll saves a thread.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use hashed_wheel::Clock;

use crate::client::client::Client;
use crate::core::client_core::{ClientCore, StartMode, Target};
use crate::error::{Error, LostReason};
use crate::events::callbacks::Callbacks;
use crate::hold::hold::Hold;
use crate::locks::guard::LockGuard;
use crate::locks::lock::Lock;
use crate::model::name::{LockName, Prefix};
use crate::model::settings::{HandOver, Settings};
use crate::model::wait::Wait;
use crate::store::Memory;
use crate::testing::modelled::sync::{SystemClock, explore, let_time_move, move_time, thread};

const TWICE: HandOver = HandOver::Times(2);
const MILLISECOND: Duration = Duration::from_millis(1);

/// A client whose threads want one lock.
#[derive(Clone)]
struct SharedClient {
    memory: Memory,
    core: Arc<ClientCore>,
    /// The holds of the threads that are inside.
    inside: Arc<std::sync::Mutex<Vec<Arc<Hold>>>>,
}

impl SharedClient {
    fn new(hand_over: HandOver) -> Self {
        let memory = Memory::with_clock(Arc::new(SystemClock));
        Self::beside(memory, Arc::default(), hand_over)
    }

    fn beside(
        memory: Memory,
        inside: Arc<std::sync::Mutex<Vec<Arc<Hold>>>>,
        hand_over: HandOver,
    ) -> Self {
        let settings = Settings { hand_over, ..Settings::default() };
        let (target, callbacks) = (Target::Memory(memory.clone()), Callbacks::default());
        let clock = Arc::new(SystemClock);
        let core =
            ClientCore::start(target, clock, settings, callbacks, StartMode::Connected).unwrap();
        Self { memory, core: Arc::new(core), inside }
    }

    fn lock(&self) -> Lock {
        Client::new(Arc::clone(&self.core), Prefix::new("")).lock("a")
    }

    /// A critical section, with a look at the others at its begin and its end.
    fn critical_section(&self, guard: &LockGuard) {
        let name = LockName::parse("a").unwrap();
        let held = self.core.holds.of_name(&name);
        let own = held.into_iter().find(|hold| hold.owner.to_string() == guard.owner());
        // Otherwise it is lost already.
        let Some(own) = own else { return };
        self.inside.lock().unwrap().push(Arc::clone(&own));
        let _section = CriticalSection { setup: self, own };
        self.check();
        thread::yield_now();
        self.check();
    }

    fn check(&self) {
        let now = SystemClock.now();
        let inside = self.inside.lock().unwrap();
        let holders = inside.iter().filter(|hold| hold.is_held(now)).count();
        assert!(holders <= 1, "{holders} threads are inside");
    }

    /// All threads have gone: the lock is free, and nothing is left behind.
    fn check_end(&self) {
        // What a waiter was given and did not take is released by the renewal thread.
        let deadline = SystemClock.now() + Duration::from_secs(1);
        let unreleased = self.core.watchdog.releases.flush(deadline);
        assert!(unreleased.is_empty(), "{unreleased:?}");
        assert_eq!(self.core.waits.waiters(), 0);
        assert_eq!(self.core.holds.len(), 0);
        assert!(self.memory.fields("a").is_empty(), "{:?}", self.memory.fields("a"));
    }
}

/// Lists the hold as inside a section until dropped, also by a panic.
struct CriticalSection<'a> {
    setup: &'a SharedClient,
    own: Arc<Hold>,
}

impl Drop for CriticalSection<'_> {
    fn drop(&mut self) {
        let mut inside = self.setup.inside.lock().unwrap();
        if let Some(own) = inside.iter().position(|hold| Arc::ptr_eq(hold, &self.own)) {
            inside.remove(own);
        }
    }
}

fn spawn(
    setup: &SharedClient,
    run: impl FnOnce(&SharedClient) + Send + 'static,
) -> thread::JoinHandle<()> {
    let setup = setup.clone();
    thread::spawn(move || run(&setup))
}

fn join(threads: Vec<thread::JoinHandle<()>>) {
    for thread in threads {
        thread.join().unwrap();
    }
}

/// Joins the threads while time moves, in small steps.
fn join_in_time(threads: Vec<thread::JoinHandle<()>>, step: Duration) {
    let is_over = Arc::new(AtomicBool::new(false));
    let clock = {
        let is_over = Arc::clone(&is_over);
        thread::spawn(move || {
            while !is_over.load(Ordering::SeqCst) {
                move_time(step);
                thread::yield_now();
            }
        })
    };
    join(threads);
    is_over.store(true, Ordering::SeqCst);
    clock.join().unwrap();
}

/// Counts what has happened in all runs of a test.
fn counter() -> (Arc<AtomicU64>, Arc<AtomicU64>) {
    let count = Arc::new(AtomicU64::new(0));
    (Arc::clone(&count), count)
}

/// By `SCHEDULE` only one is repeated, in which little happens.
fn assert_many(count: &AtomicU64, runs: usize) {
    let count = count.load(Ordering::SeqCst);
    let is_whole = std::env::var("SCHEDULE").is_err();
    assert!(!is_whole || count > runs as u64 / 10, "{count} in {runs} runs");
}

#[test]
fn each_waiter_gets_the_lock_by_hand_over_or_by_release() {
    let (counted, hand_overs) = counter();
    let runs = explore(5_000, move || {
        let setup = SharedClient::new(TWICE);
        let threads = (0..4).map(|number| {
            spawn(&setup, move |setup| {
                for round in 0..2 {
                    let guard = setup.lock().lock().unwrap();
                    setup.critical_section(&guard);
                    if (number + round) % 2 == 0 { guard.unlock().unwrap() } else { drop(guard) }
                }
            })
        });
        join(threads.collect());
        setup.check_end();
        counted.fetch_add(setup.core.waits.hand_overs(), Ordering::SeqCst);
    });
    assert_many(&hand_overs, runs);
}

/// The lock, which stays with its client for longer than any run lasts.
fn cached(setup: &SharedClient) -> Lock {
    setup.lock().with_cache(MILLISECOND * 50)
}

#[test]
fn threads_whose_lock_is_cached_all_go_on() {
    let (counted, hits) = counter();
    let runs = explore(5_000, move || {
        let setup = SharedClient::new(TWICE);
        let threads = (0..4).map(|number| {
            spawn(&setup, move |setup| {
                for _ in 0..2 {
                    // One thread leaves nothing behind, and one takes nothing that is cached.
                    let lock = match number {
                        0 => setup.lock(),
                        1 => setup.lock().with_lease(Duration::from_secs(30)),
                        _ => cached(setup),
                    };
                    let guard = lock.lock().unwrap();
                    setup.critical_section(&guard);
                    drop(guard);
                }
            })
        });
        join(threads.collect());
        drop(setup.lock().lock().unwrap());
        setup.check_end();
        counted.fetch_add(setup.core.holds.cache.stats().hits, Ordering::SeqCst);
    });
    assert_many(&hits, runs);
}

#[test]
fn a_client_that_is_told_releases_what_it_has_cached() {
    let (counted, revoked) = counter();
    let runs = explore(5_000, move || {
        let setup = SharedClient::new(TWICE);
        let other = SharedClient::beside(setup.memory.clone(), Arc::clone(&setup.inside), TWICE);
        for setup in [&setup, &other] {
            // A client hears others from its first acquire on, and that may take a while.
            drop(cached(setup).lock().unwrap());
            drop(setup.lock().lock().unwrap());
            assert!(setup.core.waits.is_subscribed_to_revocations());
        }
        let threads = (0..4).map(|number| {
            spawn(if number % 2 == 0 { &setup } else { &other }, move |setup| {
                for _ in 0..2 {
                    let guard = cached(setup).lock().unwrap();
                    setup.critical_section(&guard);
                    drop(guard);
                }
            })
        });
        join(threads.collect());
        // The other client has nothing cached after this.
        drop(cached(&setup).lock().unwrap());
        drop(setup.lock().lock().unwrap());
        setup.check_end();
        other.check_end();
        counted.fetch_add(other.core.holds.cache.stats().revoked, Ordering::SeqCst);
    });
    // Time stands still, so a name that was asked for once is not cached again.
    assert_many(&revoked, runs / 100);
}

#[test]
fn nested_guards_and_guard_outliving_the_client_leave_no_state() {
    explore(2_000, || {
        let setup = SharedClient::new(TWICE);
        let threads = (0..3).map(|number| {
            spawn(&setup, move |setup| {
                let outer = setup.lock().lock().unwrap();
                let inner = (number > 0).then(|| setup.lock().lock().unwrap());
                setup.critical_section(&outer);
                // In any order.
                if number == 1 {
                    drop(outer);
                    inner.unwrap().unlock().unwrap();
                } else {
                    drop(inner);
                    drop(outer);
                }
            })
        });
        join(threads.collect());
        setup.check_end();
        let guard = setup.lock().lock().unwrap();
        let waiter = spawn(&setup, |setup| {
            assert!(matches!(setup.lock().lock(), Err(Error::Shutdown)));
        });
        let (released, kept, unreleased) = setup.core.shut_down(Duration::from_secs(1));
        assert_eq!((released, kept, unreleased.len()), (1, 0, 0));
        join(vec![waiter]);
        drop(guard);
        setup.check_end();
    });
}

#[test]
fn waiters_that_are_cancelled_leave_the_line_and_keep_nothing() {
    let (counted, cancelled) = counter();
    let runs = explore(3_000, move || {
        let setup = SharedClient::new(TWICE);
        let (cancel, is_cancelled) = crossbeam_channel::bounded::<()>(0);
        let mut threads = Vec::new();
        for _ in 0..2 {
            threads.push(spawn(&setup, |setup| {
                let guard = setup.lock().lock().unwrap();
                setup.critical_section(&guard);
            }));
            let (is_cancelled, counted) = (is_cancelled.clone(), Arc::clone(&counted));
            threads.push(spawn(&setup, move |setup| {
                match setup.lock().try_lock_with(Wait::forever().or_cancelled(&is_cancelled)) {
                    Ok(guard) => setup.critical_section(&guard.unwrap()),
                    Err(Error::Cancelled { .. }) => {
                        counted.fetch_add(1, Ordering::SeqCst);
                    }
                    Err(error) => panic!("{error}"),
                }
            }));
        }
        threads.push(thread::spawn(move || {
            thread::yield_now();
            drop(cancel);
            // What waits for the cancellation looks for it.
            move_time(Duration::ZERO);
        }));
        join(threads);
        setup.check_end();
    });
    assert_many(&cancelled, runs);
}

#[test]
fn waiters_whose_time_is_over_leave_the_line_and_keep_nothing() {
    let (counted, timed_out) = counter();
    let runs = explore(2_000, move || {
        let_time_move();
        let setup = SharedClient::new(TWICE);
        let mut threads = Vec::new();
        for limit in [0, 3, 10, 30] {
            let counted = Arc::clone(&counted);
            threads.push(spawn(&setup, move |setup| {
                match setup.lock().try_lock_for(MILLISECOND * limit) {
                    Ok(Some(guard)) => setup.critical_section(&guard),
                    // An error if it did not run long enough to get an answer, or if a thread that
                    // had begun a release before did not run long enough to send the release.
                    Ok(None)
                    | Err(
                        Error::Unreachable { .. }
                        | Error::OutcomeUnknown { operation: "release", .. },
                    ) => {
                        counted.fetch_add(1, Ordering::SeqCst);
                    }
                    Err(error) => panic!("{error}"),
                }
            }));
        }
        threads.push(spawn(&setup, |setup| {
            let guard = setup.lock().lock().unwrap();
            setup.critical_section(&guard);
        }));
        join_in_time(threads, MILLISECOND);
        setup.check_end();
    });
    assert_many(&timed_out, runs);
}

#[test]
fn a_thread_that_panics_inside_hands_the_lock_on() {
    explore(2_000, || {
        let setup = SharedClient::new(TWICE);
        let threads = (0..4).map(|number| {
            spawn(&setup, move |setup| {
                let panics = AssertUnwindSafe(|| {
                    let guard = setup.lock().lock().unwrap();
                    setup.critical_section(&guard);
                    if number < 2 {
                        // Without a message: nobody prints it.
                        resume_unwind(Box::new(()));
                    }
                });
                assert_eq!(catch_unwind(panics).is_err(), number < 2);
            })
        });
        join(threads.collect());
        setup.check_end();
    });
}

#[test]
fn a_shutdown_ends_every_wait_and_releases_what_was_handed_over() {
    let (counted, refused) = counter();
    let runs = explore(3_000, move || {
        let setup = SharedClient::new(TWICE);
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let counted = Arc::clone(&counted);
                spawn(&setup, move |setup| {
                    for _ in 0..2 {
                        match setup.lock().lock() {
                            Ok(guard) => {
                                setup.critical_section(&guard);
                                match guard.unlock() {
                                    Ok(()) | Err(Error::Lost { .. } | Error::Shutdown) => {}
                                    Err(error) => panic!("{error}"),
                                }
                            }
                            Err(Error::Shutdown) => drop(counted.fetch_add(1, Ordering::SeqCst)),
                            Err(error) => panic!("{error}"),
                        }
                    }
                })
            })
            .collect();
        // A thread may be about to release: that is told, and goes on.
        setup.core.shut_down(Duration::from_secs(1));
        join(threads);
        setup.check_end();
    });
    assert_many(&refused, runs);
}

#[test]
fn a_lost_hold_ends_the_cohort_and_the_next_takes_the_lock_anew() {
    let (counted, lost) = counter();
    let runs = explore(3_000, move || {
        let setup = SharedClient::new(TWICE);
        let mut threads = Vec::new();
        for _ in 0..3 {
            let counted = Arc::clone(&counted);
            threads.push(spawn(&setup, move |setup| visit_twice(setup, &counted)));
        }
        // As the ticker does after an unanswered renewal.
        threads.push(spawn(&setup, |setup| {
            thread::yield_now();
            let held = setup.core.holds.of_name(&LockName::parse("a").unwrap());
            if let Some(hold) = held.first() {
                setup.core.watchdog.lose(hold, LostReason::ServerUnreachable);
            }
        }));
        join(threads);
        setup.check_end();
    });
    assert_many(&lost, runs);
}

#[test]
fn a_single_try_after_a_loss_does_not_meet_the_lost_hold() {
    let (counted, lost) = counter();
    let runs = explore(3_000, move || {
        let setup = SharedClient::new(TWICE);
        let counted = Arc::clone(&counted);
        let guard = setup.lock().lock().unwrap();
        let held = setup.core.holds.of_name(&LockName::parse("a").unwrap());
        let ticker = spawn(&setup, move |setup| {
            held.iter().for_each(|hold| {
                setup.core.watchdog.lose(hold, LostReason::ServerUnreachable);
            });
        });
        if guard.unlock().is_err() {
            counted.fetch_add(1, Ordering::SeqCst);
        }
        drop(setup.lock().try_lock().unwrap().expect("nobody else wants it"));
        join(vec![ticker]);
        setup.check_end();
    });
    assert_many(&lost, runs);
}

#[test]
fn a_forced_release_ends_the_cohort_and_forgets_nobody() {
    let (counted, lost) = counter();
    let runs = explore(3_000, move || {
        let setup = SharedClient::new(TWICE);
        let mut threads = Vec::new();
        for _ in 0..3 {
            let counted = Arc::clone(&counted);
            threads.push(spawn(&setup, move |setup| {
                // What it finds inside is its own: exclusion is not promised here.
                let setup = SharedClient { inside: Arc::default(), ..setup.clone() };
                visit_twice(&setup, &counted);
            }));
        }
        threads.push(spawn(&setup, |setup| {
            thread::yield_now();
            setup.lock().force_unlock().unwrap();
        }));
        join(threads);
        setup.check_end();
    });
    assert_many(&lost, runs);
}

fn visit_twice(setup: &SharedClient, lost: &AtomicU64) {
    for _ in 0..2 {
        let guard = setup.lock().lock().unwrap();
        setup.critical_section(&guard);
        match guard.unlock() {
            Ok(()) => {}
            Err(Error::Lost { .. }) => drop(lost.fetch_add(1, Ordering::SeqCst)),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn two_clients_take_turns_and_nobody_is_forgotten() {
    let (counted, hand_overs) = counter();
    let runs = explore(3_000, move || {
        let first = SharedClient::new(TWICE);
        let inside = Arc::clone(&first.inside);
        let second = SharedClient::beside(first.memory.clone(), inside, HandOver::Times(1));
        let mut threads = Vec::new();
        for setup in [&first, &second] {
            for _ in 0..2 {
                threads.push(spawn(setup, |setup| {
                    for _ in 0..2 {
                        let guard = setup.lock().lock().unwrap();
                        setup.critical_section(&guard);
                    }
                }));
            }
        }
        join(threads);
        for setup in [first, second] {
            setup.check_end();
            counted.fetch_add(setup.core.waits.hand_overs(), Ordering::SeqCst);
        }
    });
    assert_many(&hand_overs, runs);
}

#[test]
fn a_client_that_yields_goes_on_although_no_other_comes() {
    explore(2_000, || {
        let_time_move();
        let within = HandOver::Within(MILLISECOND * 5);
        let first = SharedClient::new(within);
        let inside = Arc::clone(&first.inside);
        let second = SharedClient::beside(first.memory.clone(), inside, within);
        let done = Arc::new(AtomicUsize::new(0));
        let mut threads = Vec::new();
        for setup in [&first, &first, &first, &second] {
            let done = Arc::clone(&done);
            threads.push(spawn(setup, move |setup| {
                for _ in 0..2 {
                    let guard = setup.lock().lock().unwrap();
                    setup.critical_section(&guard);
                }
                done.fetch_add(1, Ordering::SeqCst);
            }));
        }
        join_in_time(threads, MILLISECOND);
        assert_eq!(done.load(Ordering::SeqCst), 4);
        first.check_end();
        second.check_end();
    });
}
