//! A lock that threads of a client hand to each other, in many schedules.
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
struct World {
    memory: Memory,
    core: Arc<ClientCore>,
    /// The holds of the threads that are inside.
    inside: Arc<std::sync::Mutex<Vec<Arc<Hold>>>>,
}

impl World {
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
        let _section = CriticalSection { world: self, own };
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

/// Ends also by a panic.
struct CriticalSection<'a> {
    world: &'a World,
    own: Arc<Hold>,
}

impl Drop for CriticalSection<'_> {
    fn drop(&mut self) {
        let mut inside = self.world.inside.lock().unwrap();
        if let Some(own) = inside.iter().position(|hold| Arc::ptr_eq(hold, &self.own)) {
            inside.remove(own);
        }
    }
}

fn spawn(world: &World, run: impl FnOnce(&World) + Send + 'static) -> thread::JoinHandle<()> {
    let world = world.clone();
    thread::spawn(move || run(&world))
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

/// Counts what has happened in all schedules of a test.
fn counter() -> (Arc<AtomicU64>, Arc<AtomicU64>) {
    let count = Arc::new(AtomicU64::new(0));
    (Arc::clone(&count), count)
}

/// By `SCHEDULE` only one is repeated, in which little happens.
fn assert_many(count: &AtomicU64, schedules: usize) {
    let count = count.load(Ordering::SeqCst);
    let is_whole = std::env::var("SCHEDULE").is_err();
    assert!(!is_whole || count > schedules as u64 / 10, "{count} in {schedules} schedules");
}

#[test]
fn each_waiter_gets_the_lock_by_hand_over_or_by_release() {
    let (counted, hand_overs) = counter();
    let schedules = explore(5_000, move || {
        let world = World::new(TWICE);
        let threads = (0..4).map(|number| {
            spawn(&world, move |world| {
                for round in 0..2 {
                    let guard = world.lock().lock().unwrap();
                    world.critical_section(&guard);
                    if (number + round) % 2 == 0 { guard.unlock().unwrap() } else { drop(guard) }
                }
            })
        });
        join(threads.collect());
        world.check_end();
        counted.fetch_add(world.core.waits.hand_overs(), Ordering::SeqCst);
    });
    assert_many(&hand_overs, schedules);
}

/// The lock, which stays with its client for longer than any schedule lasts.
fn cached(world: &World) -> Lock {
    world.lock().with_cache(MILLISECOND * 50)
}

#[test]
fn threads_whose_lock_is_cached_all_go_on() {
    let (counted, hits) = counter();
    let schedules = explore(5_000, move || {
        let world = World::new(TWICE);
        let threads = (0..4).map(|number| {
            spawn(&world, move |world| {
                for _ in 0..2 {
                    // One thread leaves nothing behind, and one takes nothing that is cached.
                    let lock = match number {
                        0 => world.lock(),
                        1 => world.lock().with_lease(Duration::from_secs(30)),
                        _ => cached(world),
                    };
                    let guard = lock.lock().unwrap();
                    world.critical_section(&guard);
                    drop(guard);
                }
            })
        });
        join(threads.collect());
        drop(world.lock().lock().unwrap());
        world.check_end();
        counted.fetch_add(world.core.holds.cache.stats().hits, Ordering::SeqCst);
    });
    assert_many(&hits, schedules);
}

#[test]
fn a_client_that_is_told_releases_what_it_has_cached() {
    let (counted, revoked) = counter();
    let schedules = explore(5_000, move || {
        let world = World::new(TWICE);
        let other = World::beside(world.memory.clone(), Arc::clone(&world.inside), TWICE);
        for world in [&world, &other] {
            // A client hears others from its first acquire on, and that may take a while.
            drop(cached(world).lock().unwrap());
            drop(world.lock().lock().unwrap());
            assert!(world.core.waits.hears_requests());
        }
        let threads = (0..4).map(|number| {
            spawn(if number % 2 == 0 { &world } else { &other }, move |world| {
                for _ in 0..2 {
                    let guard = cached(world).lock().unwrap();
                    world.critical_section(&guard);
                    drop(guard);
                }
            })
        });
        join(threads.collect());
        // The other client has nothing cached after this.
        drop(cached(&world).lock().unwrap());
        drop(world.lock().lock().unwrap());
        world.check_end();
        other.check_end();
        counted.fetch_add(other.core.holds.cache.stats().revoked, Ordering::SeqCst);
    });
    // Time stands still, so a name that was asked for once is not cached again.
    assert_many(&revoked, schedules / 100);
}

#[test]
fn nested_guards_and_guard_outliving_the_client_leave_no_state() {
    explore(2_000, || {
        let world = World::new(TWICE);
        let threads = (0..3).map(|number| {
            spawn(&world, move |world| {
                let outer = world.lock().lock().unwrap();
                let inner = (number > 0).then(|| world.lock().lock().unwrap());
                world.critical_section(&outer);
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
        world.check_end();
        let guard = world.lock().lock().unwrap();
        let waiter = spawn(&world, |world| {
            assert!(matches!(world.lock().lock(), Err(Error::Shutdown)));
        });
        let (released, kept, unreleased) = world.core.shut_down(Duration::from_secs(1));
        assert_eq!((released, kept, unreleased.len()), (1, 0, 0));
        join(vec![waiter]);
        drop(guard);
        world.check_end();
    });
}

#[test]
fn waiters_that_are_cancelled_leave_the_line_and_keep_nothing() {
    let (counted, cancelled) = counter();
    let schedules = explore(3_000, move || {
        let world = World::new(TWICE);
        let (cancel, is_cancelled) = crossbeam_channel::bounded::<()>(0);
        let mut threads = Vec::new();
        for _ in 0..2 {
            threads.push(spawn(&world, |world| {
                let guard = world.lock().lock().unwrap();
                world.critical_section(&guard);
            }));
            let (is_cancelled, counted) = (is_cancelled.clone(), Arc::clone(&counted));
            threads.push(spawn(&world, move |world| {
                match world.lock().try_lock_with(Wait::forever().or_cancelled(&is_cancelled)) {
                    Ok(guard) => world.critical_section(&guard.unwrap()),
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
        world.check_end();
    });
    assert_many(&cancelled, schedules);
}

#[test]
fn waiters_whose_time_is_over_leave_the_line_and_keep_nothing() {
    let (counted, timed_out) = counter();
    let schedules = explore(2_000, move || {
        let_time_move();
        let world = World::new(TWICE);
        let mut threads = Vec::new();
        for limit in [0, 3, 10, 30] {
            let counted = Arc::clone(&counted);
            threads.push(spawn(&world, move |world| {
                match world.lock().try_lock_for(MILLISECOND * limit) {
                    Ok(Some(guard)) => world.critical_section(&guard),
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
        threads.push(spawn(&world, |world| {
            let guard = world.lock().lock().unwrap();
            world.critical_section(&guard);
        }));
        join_in_time(threads, MILLISECOND);
        world.check_end();
    });
    assert_many(&timed_out, schedules);
}

#[test]
fn a_thread_that_panics_inside_hands_the_lock_on() {
    explore(2_000, || {
        let world = World::new(TWICE);
        let threads = (0..4).map(|number| {
            spawn(&world, move |world| {
                let panics = AssertUnwindSafe(|| {
                    let guard = world.lock().lock().unwrap();
                    world.critical_section(&guard);
                    if number < 2 {
                        // Without a message: nobody prints it.
                        resume_unwind(Box::new(()));
                    }
                });
                assert_eq!(catch_unwind(panics).is_err(), number < 2);
            })
        });
        join(threads.collect());
        world.check_end();
    });
}

#[test]
fn a_shutdown_ends_every_wait_and_releases_what_was_handed_over() {
    let (counted, refused) = counter();
    let schedules = explore(3_000, move || {
        let world = World::new(TWICE);
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let counted = Arc::clone(&counted);
                spawn(&world, move |world| {
                    for _ in 0..2 {
                        match world.lock().lock() {
                            Ok(guard) => {
                                world.critical_section(&guard);
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
        world.core.shut_down(Duration::from_secs(1));
        join(threads);
        world.check_end();
    });
    assert_many(&refused, schedules);
}

#[test]
fn a_lost_hold_ends_the_cohort_and_the_next_takes_the_lock_anew() {
    let (counted, lost) = counter();
    let schedules = explore(3_000, move || {
        let world = World::new(TWICE);
        let mut threads = Vec::new();
        for _ in 0..3 {
            let counted = Arc::clone(&counted);
            threads.push(spawn(&world, move |world| visit_twice(world, &counted)));
        }
        // As the ticker does after an unanswered renewal.
        threads.push(spawn(&world, |world| {
            thread::yield_now();
            let held = world.core.holds.of_name(&LockName::parse("a").unwrap());
            if let Some(hold) = held.first() {
                world.core.watchdog.lose(hold, LostReason::ServerUnreachable);
            }
        }));
        join(threads);
        world.check_end();
    });
    assert_many(&lost, schedules);
}

#[test]
fn a_single_try_after_a_loss_does_not_meet_the_lost_hold() {
    let (counted, lost) = counter();
    let schedules = explore(3_000, move || {
        let world = World::new(TWICE);
        let counted = Arc::clone(&counted);
        let guard = world.lock().lock().unwrap();
        let held = world.core.holds.of_name(&LockName::parse("a").unwrap());
        let ticker = spawn(&world, move |world| {
            held.iter().for_each(|hold| {
                world.core.watchdog.lose(hold, LostReason::ServerUnreachable);
            });
        });
        if guard.unlock().is_err() {
            counted.fetch_add(1, Ordering::SeqCst);
        }
        drop(world.lock().try_lock().unwrap().expect("nobody else wants it"));
        join(vec![ticker]);
        world.check_end();
    });
    assert_many(&lost, schedules);
}

#[test]
fn a_forced_release_ends_the_cohort_and_forgets_nobody() {
    let (counted, lost) = counter();
    let schedules = explore(3_000, move || {
        let world = World::new(TWICE);
        let mut threads = Vec::new();
        for _ in 0..3 {
            let counted = Arc::clone(&counted);
            threads.push(spawn(&world, move |world| {
                // What it finds inside is its own: exclusion is not promised here.
                let world = World { inside: Arc::default(), ..world.clone() };
                visit_twice(&world, &counted);
            }));
        }
        threads.push(spawn(&world, |world| {
            thread::yield_now();
            world.lock().force_unlock().unwrap();
        }));
        join(threads);
        world.check_end();
    });
    assert_many(&lost, schedules);
}

fn visit_twice(world: &World, lost: &AtomicU64) {
    for _ in 0..2 {
        let guard = world.lock().lock().unwrap();
        world.critical_section(&guard);
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
    let schedules = explore(3_000, move || {
        let first = World::new(TWICE);
        let inside = Arc::clone(&first.inside);
        let second = World::beside(first.memory.clone(), inside, HandOver::Times(1));
        let mut threads = Vec::new();
        for world in [&first, &second] {
            for _ in 0..2 {
                threads.push(spawn(world, |world| {
                    for _ in 0..2 {
                        let guard = world.lock().lock().unwrap();
                        world.critical_section(&guard);
                    }
                }));
            }
        }
        join(threads);
        for world in [first, second] {
            world.check_end();
            counted.fetch_add(world.core.waits.hand_overs(), Ordering::SeqCst);
        }
    });
    assert_many(&hand_overs, schedules);
}

#[test]
fn a_client_that_yields_goes_on_although_no_other_comes() {
    explore(2_000, || {
        let_time_move();
        let within = HandOver::Within(MILLISECOND * 5);
        let first = World::new(within);
        let inside = Arc::clone(&first.inside);
        let second = World::beside(first.memory.clone(), inside, within);
        let done = Arc::new(AtomicUsize::new(0));
        let mut threads = Vec::new();
        for world in [&first, &first, &first, &second] {
            let done = Arc::clone(&done);
            threads.push(spawn(world, move |world| {
                for _ in 0..2 {
                    let guard = world.lock().lock().unwrap();
                    world.critical_section(&guard);
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
