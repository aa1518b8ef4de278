//! A clock that panics on one of the client's threads: what is lost, and that every loss is
//! reported.

#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::takings::taken;
use crate::common::{SLACK, SOON, built, ended, settle, timed};
use crossbeam_channel::Receiver;
use hashed_wheel::Parker;
use wheellock::{
    Client, Clock, Error, LockGuard, LostReason, ManualClock, Memory, Semaphore, SemaphoreGuard,
    SystemClock,
};
use wheellock_fixture::{Server, wait_until};

const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(30);
const TICK: Duration = Duration::from_millis(10);

fn is_here(name: &str) -> bool {
    thread::current().name() == Some(name)
}

/// What a panic may carry at worst: dropping it panics too.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        std::panic::resume_unwind(Box::new("the payload breaks, as this test wants it"));
    }
}

fn break_if(broken: bool) {
    if broken {
        std::panic::resume_unwind(Box::new(Bomb));
    }
}

/// The system's clock, until it breaks on the renewal thread.
#[derive(Debug, Default)]
struct Fragile {
    parks: AtomicBool,
    tells: AtomicBool,
}

impl Clock for Fragile {
    fn now(&self) -> Instant {
        break_if(is_here("lock-renewal") && self.tells.load(Ordering::SeqCst));
        SystemClock.now()
    }

    fn park(&self, parker: &Parker, deadline: Option<Instant>, interrupt: &Receiver<()>) {
        break_if(is_here("lock-renewal") && self.parks.load(Ordering::SeqCst));
        SystemClock.park(parker, deadline, interrupt);
    }
}

#[test]
fn without_the_renewal_thread_only_watched_holds_are_lost() {
    let clock = Arc::new(Fragile::default());
    let memory = Memory::with_clock(clock.clone());
    let client = built(Client::builder().in_memory(&memory).watchdog_lease(SECOND * 3600));
    let watched = client.lock("a").lock().unwrap();
    let leased = client.lock("b").with_lease(SECOND * 3600).lock().unwrap();
    let other = client.lock("c").lock().unwrap();
    clock.parks.store(true, Ordering::SeqCst);
    // A release that gets no answer is the renewal thread's to finish. It wakes, and breaks when it
    // sleeps again.
    memory.set_unreachable(true);
    drop(other);
    assert!(watched.lost().recv_timeout(SECOND * 20).is_ok());
    assert!(!watched.is_held() && leased.is_held());
    assert_eq!(client.stats().panics, 1);
}

#[test]
fn repeated_clock_panics_end_and_refuse_all_watched_holds() {
    let clock = Arc::new(Fragile::default());
    let memory = Memory::with_clock(clock.clone());
    let client = built(Client::builder().in_memory(&memory).watchdog_lease(SECOND * 3600));
    let watched: Vec<_> = ["a", "b", "c"].map(|name| client.lock(name).lock().unwrap()).into();
    let leased = client.lock("leased").with_lease(SECOND * 3600).lock().unwrap();
    let queued = client.lock("queued").lock().unwrap();
    memory.set_unreachable(true);
    // Before the clock breaks: the renewal thread loses every watched hold.
    drop(queued);
    clock.tells.store(true, Ordering::SeqCst);
    clock.parks.store(true, Ordering::SeqCst);
    for guard in &watched {
        assert!(guard.lost().recv_timeout(SECOND * 20).is_ok(), "{}", guard.name());
        assert!(!guard.is_held(), "{}", guard.name());
    }
    // Counted a moment after it was told.
    wait_until("all are counted", SOON, || client.stats().lost == 3);
    memory.set_unreachable(false);

    let refused = client.lock("new").try_lock().map(drop);
    assert_eq!(refused, Err(Error::WatchdogGone));
    assert_eq!(client.lock("a").lock().map(drop), Err(Error::WatchdogGone), "taken anew");
    assert_eq!(client.lock("leased").lock().map(drop), Err(Error::WatchdogGone), "nested");
    let seats = client.expirable_semaphore("seats");
    seats.set_permits(2).unwrap();
    assert_eq!(seats.clone().watched().acquire().map(drop), Err(Error::WatchdogGone), "a permit");
    assert!(seats.with_lease(SECOND * 3600).acquire().unwrap().is_valid());
    assert!(!Error::WatchdogGone.is_retryable());
    assert!(leased.is_held());
    let nested = client.lock("leased").with_lease(SECOND).lock().unwrap();
    let other = client.lock("other").with_lease(SECOND * 3600).lock().unwrap();
    assert!(nested.is_held() && other.is_held());
    // No thread is left to send pending releases, so the shutdown does not wait for them.
    let (report, took) = timed(|| client.shutdown(SECOND * 20));
    assert!(took < SECOND * 10, "{took:?}");
    assert!(report.unreleased.contains(&"queued".to_owned()), "{report:?}");
}

/// The system's clock, on which one thread cannot sleep.
#[derive(Debug)]
struct Sleepless(&'static str);

impl Clock for Sleepless {
    fn now(&self) -> Instant {
        SystemClock.now()
    }

    fn park(&self, parker: &Parker, deadline: Option<Instant>, interrupt: &Receiver<()>) {
        assert!(!is_here(self.0), "the clock breaks, as this test wants it");
        SystemClock.park(parker, deadline, interrupt);
    }
}

#[test]
fn reports_without_a_callbacks_thread_are_counted() {
    let memory = Memory::with_clock(Arc::new(Sleepless("lock-callbacks")));
    let client = built(Client::builder().in_memory(&memory).on_lost(|_| ()));
    for lost in 1..=3 {
        let guard = client.lock("a").lock().unwrap();
        client.lock("a").force_unlock().unwrap();
        assert_eq!(guard.unlock().map_err(|error| error.is_retryable()), Err(false));
        wait_until("it is counted", SOON, || client.stats().unreported == lost);
    }
}

/// Has a thread of the client panic while it stands in line, before another of its threads, behind
/// a holder.
fn panic_in_queue(holder: &Client, client: &Client, is_left_by: impl Fn(&str) -> bool) {
    let guard = holder.fair_lock("a").lock().unwrap();
    thread::scope(|scope| {
        let broken = thread::Builder::new().name("broken".to_owned());
        let broken = broken.spawn_scoped(scope, || client.fair_lock("a").lock().map(drop)).unwrap();
        assert!(broken.join().is_err(), "it slept");
        assert!(is_left_by("a"), "a ghost stands in line");
        assert_eq!(client.stats().waiters, 0);
        let behind = scope.spawn(|| client.fair_lock("a").lock().map(drop));
        wait_until("another stands in line", SOON, || client.stats().waiters == 1);
        guard.unlock().unwrap();
        let (outcome, took) = timed(|| behind.join().unwrap());
        assert_eq!(outcome, Ok(()));
        assert!(took < SLACK, "{took:?}");
    });
    // A dropped guard does not wait for the server, and this is another connection.
    settle(client);
    assert_eq!(holder.fair_lock("a").try_lock().map(|guard| guard.is_some()), Ok(true));
    assert_eq!(client.stats().queued_releases, 0);
}

#[test]
fn d6_a_waiter_that_panics_leaves_no_queue_entry() {
    let server = Server::start();
    let connect = || Client::builder().url(&server.url());
    let client = built(connect().clock(Arc::new(Sleepless("broken"))));
    panic_in_queue(&built(connect()), &client, |name| {
        let keys = [
            format!("redisson_lock_queue:{{{name}}}"),
            format!("redisson_lock_timeout:{{{name}}}"),
        ];
        server.command(&["EXISTS", &keys[0], &keys[1]]).integer() == 0
    });

    let memory = Memory::with_clock(Arc::new(Sleepless("broken")));
    let connect = || built(Client::builder().in_memory(&memory));
    panic_in_queue(&connect(), &connect(), |_| true);
}

/// A manual clock that panics on one thread, when it has been read so often there.
#[derive(Debug)]
struct Trap {
    clock: ManualClock,
    thread: &'static str,
    /// Zero while it is not set.
    readings: AtomicUsize,
    /// Whether each later reading panics too.
    stays_broken: AtomicBool,
}

impl Trap {
    fn on(thread: &'static str, clock: &ManualClock) -> Arc<Self> {
        let (readings, stays_broken) = (AtomicUsize::new(0), AtomicBool::new(false));
        Arc::new(Self { clock: clock.clone(), thread, readings, stays_broken })
    }

    fn set(&self, readings: usize) {
        self.readings.store(readings, Ordering::SeqCst);
    }
}

impl Clock for Trap {
    fn now(&self) -> Instant {
        if is_here(self.thread) {
            // In one step: the test may set it meanwhile.
            let stays_broken = self.stays_broken.load(Ordering::SeqCst);
            let step = |left: usize| left.checked_sub(1).filter(|left| *left > 0 || !stays_broken);
            let (Ok(left) | Err(left)) =
                self.readings.fetch_update(Ordering::SeqCst, Ordering::SeqCst, step);
            break_if(left == 1);
        }
        self.clock.now()
    }

    fn park(&self, parker: &Parker, deadline: Option<Instant>, interrupt: &Receiver<()>) {
        self.clock.park(parker, deadline, interrupt);
    }
}

fn in_memory(thread: &'static str) -> (Arc<Trap>, Memory, Client) {
    let trap = Trap::on(thread, &ManualClock::new());
    let memory = Memory::with_clock(trap.clone());
    let client = built(Client::builder().in_memory(&memory));
    (trap, memory, client)
}

#[test]
fn replies_left_unread_by_a_panic_are_never_used_for_others() {
    let server = Server::start();
    let clock = ManualClock::new();
    let trap = Trap::on("lock-renewal", &clock);
    let client =
        built(Client::builder().url(&server.url()).clock(trap.clone()).renewal_batch(5, 10));
    let _guards: Vec<_> =
        (0..300).map(|number| client.lock(&format!("lock {number}")).lock().unwrap()).collect();
    // The renewal thread has written the client's record, and has nothing else to do next.
    clock.advance(SECOND * 2);
    // Ten scripts are sent, each with a look at the clock. The next look is at the first answer.
    trap.set(11);
    clock.jump(SECOND * 15);
    assert_eq!(client.stats().panics, 1);

    let connections = client.stats().connections_made;
    let guard = client.lock("later").lock().unwrap();
    clock.advance(SECOND * 60);
    assert!(guard.is_held());
    assert_eq!(client.stats().unanswered_renewals, 0);
    assert_eq!(client.stats().connections_made, connections + 1, "the old one was dropped");
}

#[test]
fn a_panic_in_a_renewal_round_loses_no_hold() {
    // Eight scripts, each with a look before it is sent and one when it is answered.
    for readings in 1..=16 {
        let (trap, _memory, client) = in_memory("lock-renewal");
        let guards: Vec<_> =
            (0..300).map(|number| client.lock(&number.to_string()).lock().unwrap()).collect();
        // The renewal thread may not have come to its first rest.
        trap.clock.wait_until_idle();
        trap.set(readings);
        trap.clock.jump(LEASE / 2);
        assert_eq!(client.stats().panics, 1, "at reading {readings}");
        // The longest pause before a second attempt.
        trap.clock.advance(LEASE / 10 + TICK * 2);
        let behind = guards.iter().filter(|guard| guard.remaining() < LEASE * 4 / 5).count();
        assert_eq!(behind, 0, "at reading {readings}");
        assert!(guards.iter().all(LockGuard::is_held));
    }
}

#[test]
fn a_panic_on_the_ticker_skips_no_due_hold() {
    let mut panics = 0;
    // The first reading of a turn is the wheel's own, before it takes anything out.
    for readings in 2..=5 {
        let (trap, _memory, client) = in_memory("lock-ticker");
        let lease = SECOND * 10;
        let guards: Vec<_> = (0..3)
            .map(|number| client.lock(&number.to_string()).with_lease(lease).lock().unwrap())
            .collect();
        trap.clock.wait_until_idle();
        trap.set(readings);
        trap.clock.jump(lease);
        trap.clock.advance(TICK * 2);
        for guard in &guards {
            assert_eq!(guard.lost().try_recv(), Ok(LostReason::Expired), "at reading {readings}");
        }
        panics += client.stats().panics;
    }
    assert!(panics > 0, "none of them was the watchdog's");
}

#[test]
fn a_panic_in_a_release_round_keeps_the_releases_pending() {
    // One reading for the round, one for each answer, one for its end.
    for readings in 1..=5 {
        let (trap, memory, client) = in_memory("lock-renewal");
        let names = ["a", "b", "c"];
        let lock = |name| client.lock(name).with_lease(SECOND * 3600).lock().unwrap();
        let guards = names.map(lock);
        memory.set_unreachable(true);
        drop(guards);
        trap.clock.wait_until_idle();
        assert_eq!(client.stats().queued_releases, 3);
        memory.set_unreachable(false);
        trap.set(readings);
        // The first pause is over.
        trap.clock.advance(SECOND / 10);
        let stats = client.stats();
        assert!(
            stats.panics == 1 && stats.queued_releases <= 3,
            "at reading {readings}: {stats:?}"
        );
        trap.clock.advance(SECOND * 5);
        let left = names.map(|name| memory.fields(name).len());
        assert_eq!((left, client.stats().queued_releases), ([0; 3], 0), "at reading {readings}");
    }
}

#[test]
fn semaphore_permits_granted_to_panicking_thread_are_returned() {
    type Take = fn(&Semaphore) -> Result<(), Error>;
    // And how many permits are left of two when it does not panic.
    let takes: [(&str, Take, i64); 3] = [
        ("a try", |semaphore| semaphore.try_acquire(1).map(taken).map(|taken| assert!(taken)), 1),
        ("a wait", |semaphore| semaphore.acquire(1).map(SemaphoreGuard::forget), 1),
        ("a drain", |semaphore| semaphore.drain_permits().map(|taken| assert_eq!(taken, 2)), 0),
    ];
    for (kind, take, left) in takes {
        let mut readings = 0;
        loop {
            readings += 1;
            let (trap, _memory, client) = in_memory("caller");
            let semaphore = client.semaphore("a");
            semaphore.try_set_permits(2).unwrap();
            trap.set(readings);
            let (caller, of_caller) = (thread::Builder::new(), semaphore.clone());
            let caller = caller.name("caller".to_owned()).spawn(move || take(&of_caller));
            let outcome = caller.unwrap().join();
            // What was granted is given back in the background.
            trap.clock.advance(SECOND);
            let (left_now, stats) = (semaphore.available_permits(), client.stats());
            assert_eq!(stats.queued_releases, 0, "{kind}: at reading {readings}");
            // Its payload panics when it is dropped.
            if let Ok(taken) = outcome.map_err(std::mem::forget) {
                assert_eq!((taken, left_now), (Ok(()), Ok(left)), "{kind}");
                break;
            }
            assert_eq!(left_now, Ok(2), "{kind}: at reading {readings}");
        }
        assert!(readings > 1, "{kind} does not read the clock");
    }
}

/// Acquires something, calls the function once it is held, and ends it.
type TakeAndEnd = fn(&Client, &dyn Fn());

const DROPS: [(&str, TakeAndEnd); 14] = [
    ("lock", |client, held| {
        let _guard = client.lock("a").lock().unwrap();
        held();
    }),
    ("leased lock", |client, held| {
        let _guard = client.lock("a").with_lease(LEASE).lock().unwrap();
        held();
    }),
    ("nested lock", |client, held| {
        let _guard = client.lock("a").lock().unwrap();
        let _nested = client.lock("a").lock().unwrap();
        held();
    }),
    ("lock of a named owner", |client, held| {
        let _guard = client.lock("a").with_owner("job").lock().unwrap();
        held();
    }),
    ("lock with a minimum hold", |client, held| {
        let _guard = client.lock("a").with_min_hold(SECOND / 100).lock().unwrap();
        held();
    }),
    ("fair", |client, held| {
        let _guard = client.fair_lock("a").lock().unwrap();
        held();
    }),
    ("read", |client, held| {
        let _guard = client.read_write_lock("a").read_lock().lock().unwrap();
        held();
    }),
    ("write", |client, held| {
        let _guard = client.read_write_lock("a").write_lock().lock().unwrap();
        held();
    }),
    ("multi", |client, held| {
        let (one, other) = (client.lock("a"), client.lock("b"));
        let _guard = client.multi_lock(&[&one, &other]).lock().unwrap();
        held();
    }),
    ("permits without ids", |client, held| {
        let _guard = client.semaphore("a").acquire(2).unwrap();
        held();
    }),
    ("endless permits", |client, held| {
        let _permits = client.expirable_semaphore("a").acquire_many(2).unwrap();
        held();
    }),
    ("leased permits", |client, held| {
        let semaphore = client.expirable_semaphore("a").with_lease(LEASE);
        let _permits = semaphore.acquire_many(2).unwrap();
        held();
    }),
    ("watched permit", |client, held| {
        let _permits = client.expirable_semaphore("a").watched().acquire().unwrap();
        held();
    }),
    ("watched permits", |client, held| {
        let _permits = client.expirable_semaphore("a").watched().acquire_many(2).unwrap();
        held();
    }),
];

const UNLOCKS: [(&str, TakeAndEnd); 9] = [
    ("unlock", |client, held| {
        let guard = client.lock("a").lock().unwrap();
        held();
        drop(guard.unlock());
    }),
    ("unlock of a nested lock", |client, held| {
        let guard = client.lock("a").lock().unwrap();
        let nested = client.lock("a").lock().unwrap();
        held();
        drop(nested.unlock());
        drop(guard.unlock());
    }),
    ("unlock with a minimum hold", |client, held| {
        let guard = client.lock("a").with_min_hold(SECOND / 100).lock().unwrap();
        held();
        drop(guard.unlock());
    }),
    ("unlock of a fair lock", |client, held| {
        let guard = client.fair_lock("a").lock().unwrap();
        held();
        drop(guard.unlock());
    }),
    ("unlock of a multi lock", |client, held| {
        let (one, other) = (client.lock("a"), client.lock("b"));
        let guard = client.multi_lock(&[&one, &other]).lock().unwrap();
        held();
        drop(guard.unlock());
    }),
    ("release of permits without ids", |client, held| {
        let guard = client.semaphore("a").acquire(2).unwrap();
        held();
        drop(guard.release());
    }),
    ("release of endless permits", |client, held| {
        let permits = client.expirable_semaphore("a").acquire_many(2).unwrap();
        held();
        drop(permits.release());
    }),
    ("release of a watched permit", |client, held| {
        let permits = client.expirable_semaphore("a").watched().acquire().unwrap();
        held();
        drop(permits.release());
    }),
    ("release of watched permits", |client, held| {
        let permits = client.expirable_semaphore("a").watched().acquire_many(2).unwrap();
        held();
        drop(permits.release());
    }),
];

/// Ends what `take_and_end` takes while the clock panics at the reading of this number, and perhaps
/// at each later one. With `waits`, another thread of the client waits for the lock. Returns
/// whether the clock was read so often.
fn end_with_panic(
    (kind, take_and_end): (&str, TakeAndEnd),
    readings: usize,
    stays_broken: bool,
    waits: bool,
    may_panic: bool,
) -> bool {
    let case = format!("{kind}, reading {readings}, broken {stays_broken}, waiter {waits}");
    let (trap, memory, client) = in_memory("caller");
    let semaphore = client.expirable_semaphore("a");
    let is_permit = kind.contains("permit");
    if is_permit {
        semaphore.set_permits(2).unwrap();
    }
    trap.stays_broken.store(stays_broken, Ordering::SeqCst);
    let (held, own_trap) = (Barrier::new(2), Arc::clone(&trap));
    thread::scope(|scope| {
        let mut waiter = None;
        let (own, held) = (&client, &held);
        let caller = thread::Builder::new().name("caller".to_owned());
        let caller = caller.spawn_scoped(scope, move || {
            take_and_end(own, &|| {
                held.wait();
                held.wait();
                own_trap.set(readings);
            });
        });
        held.wait();
        if waits {
            waiter = Some(scope.spawn(|| match kind {
                _ if is_permit => client.expirable_semaphore("a").acquire_many(2).map(drop),
                "read" | "write" => client.read_write_lock("a").write_lock().lock().map(drop),
                _ if kind.contains("fair") => client.fair_lock("a").lock().map(drop),
                _ => client.lock("a").lock().map(drop),
            }));
            wait_until("a thread waits", SOON, || client.stats().waiters == 1);
        }
        held.wait();
        let outcome = caller.unwrap().join();
        let is_panic = outcome.map_err(std::mem::forget).is_err();
        assert!(may_panic || !is_panic, "a drop panics: {case}");
        // The end of a minimum hold.
        trap.clock.advance(SECOND / 50);
        if let Some(waiter) = waiter {
            assert_eq!(ended(&client, waiter), Ok(()), "{case}");
        }
    });
    let is_reached = trap.readings.swap(0, Ordering::SeqCst) <= 1;
    // Longer than a minimum hold, and much less than a lease.
    trap.clock.advance(SECOND);
    let left = (memory.fields("a").len(), memory.fields("b").len());
    if is_permit {
        assert_eq!(semaphore.available_permits(), Ok(2), "{case}");
    } else {
        assert_eq!(left, (0, 0), "{case}");
    }
    let stats = client.stats();
    assert_eq!((stats.held, stats.queued_releases, stats.waiters), (0, 0, 0), "{case}");
    let report = client.shutdown(SECOND);
    assert!(report.unreleased.is_empty(), "{case}: {report:?}");
    is_reached
}

fn end_with_panics(kinds: &[(&'static str, TakeAndEnd)], may_panic: bool) {
    for kind in kinds {
        for (stays_broken, waits) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut readings = 1;
            while end_with_panic(*kind, readings, stays_broken, waits, may_panic) {
                readings += 1;
            }
        }
    }
}

#[test]
fn a_clock_that_panics_in_a_drop_leaves_nothing_held() {
    end_with_panics(&DROPS, false);
}

#[test]
fn a_clock_that_panics_in_an_unlock_leaves_nothing_held() {
    end_with_panics(&UNLOCKS, true);
}

/// A manual clock that counts the readings of a red lock's upkeep, and panics once on the thread
/// `caller` when it is told to.
#[derive(Debug, Default)]
struct Counted {
    clock: ManualClock,
    breaks: AtomicBool,
    upkeep_readings: AtomicUsize,
}

impl Clock for Counted {
    fn now(&self) -> Instant {
        if is_here("lock-member") {
            self.upkeep_readings.fetch_add(1, Ordering::SeqCst);
        }
        break_if(is_here("caller") && self.breaks.swap(false, Ordering::SeqCst));
        self.clock.now()
    }

    fn park(&self, parker: &Parker, deadline: Option<Instant>, interrupt: &Receiver<()>) {
        self.clock.park(parker, deadline, interrupt);
    }
}

#[test]
fn red_lock_requests_no_missing_member_after_panicked_release() {
    let clock = Arc::new(Counted::default());
    let clients: Vec<Client> = (0..3)
        .map(|_| built(Client::builder().in_memory(&Memory::with_clock(clock.clone()))))
        .collect();
    let readings = |advance| {
        clock.clock.wait_until_idle();
        let before = clock.upkeep_readings.load(Ordering::SeqCst);
        clock.clock.advance(advance);
        clock.upkeep_readings.load(Ordering::SeqCst) - before
    };
    // Its timer lives as long as the lock.
    let lock = Client::red_lock(&clients, "a").with_owner("b");
    let guard = lock.lock().unwrap();
    assert!(readings(LEASE * 2) > 0, "while it is held");

    clock.breaks.store(true, Ordering::SeqCst);
    let caller = thread::Builder::new().name("caller".to_owned());
    let outcome = caller.spawn(move || guard.unlock()).unwrap().join();
    // Its payload panics when it is dropped.
    assert!(outcome.map_err(std::mem::forget).is_err(), "the release reads the clock");
    // The timer still wakes for the run that was cancelled.
    assert!(readings(LEASE) <= 1);
    assert_eq!(readings(LEASE * 10), 0, "the task has not ended");
    drop(lock);
}
