//! Mutual exclusion under a plan of faults: threads of several clients increment a plain
//! counter, and the count is exact.
//!
//! The plan follows from a seed, which a failure prints. `WHEELLOCK_SEED=<number>` runs that
//! plan again; how the threads interleave is up to the machine.

#![expect(clippy::print_stderr, reason = "the harness shows it with a failure")]
#![expect(clippy::unwrap_used, reason = "the helpers of a test may fail it as the test itself may")]

use std::collections::hash_map::RandomState;
use std::env;
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use fastrand::Rng;

use crate::common::{ProxiedServer, SOON, Script, TIMEOUT, built, now, pause};
use wheellock::{Client, FencedGuard, Guard, Lock};
use wheellock_fixture::{Aim, Fault, wait_until};

const LENGTH: Duration = Duration::from_secs(4);
const NAME: &str = "counter";

/// Who competes for the lock.
struct Crowd {
    clients: usize,
    /// Of each client. Every fourth has a fenced lock of the same name.
    threads: u64,
    /// How long a thread waits for the lock.
    wait: Duration,
    /// The longest that a thread stays inside, in microseconds.
    longest_stay: u64,
}

/// What the lock protects. Nothing here is atomic as a whole, so two at once are seen.
#[derive(Default)]
struct Protected {
    occupied: AtomicBool,
    counter: AtomicU64,
    /// The largest fencing token that was seen.
    token: AtomicU64,
}

impl Protected {
    fn enter(&self, guard: &impl Guard, longest_stay: u64, rng: &mut Rng) {
        assert!(!self.occupied.swap(true, Ordering::SeqCst), "two are inside at once");
        let seen = self.counter.load(Ordering::SeqCst);
        pause(Duration::from_micros(rng.u64(..longest_stay)));
        assert!(guard.is_held(), "it was lost, although no fault is as long as its lease");
        self.counter.store(seen + 1, Ordering::SeqCst);
        assert!(self.occupied.swap(false, Ordering::SeqCst), "two were inside at once");
    }

    /// A token that a resource would refuse, as it has seen a larger one, is a stale hold.
    fn see(&self, guard: &FencedGuard) {
        let before = self.token.fetch_max(guard.token(), Ordering::SeqCst);
        assert!(before <= guard.token(), "{} came after {before}", guard.token());
    }
}

#[test]
fn exclusion_holds_under_any_schedule_of_faults() {
    torture(&Crowd { clients: 3, threads: 2, wait: TIMEOUT * 2, longest_stay: 2000 });
}

#[test]
fn sixty_four_client_threads_stay_exclusive_under_faults() {
    torture(&Crowd { clients: 1, threads: 64, wait: TIMEOUT * 8, longest_stay: 300 });
}

fn torture(crowd: &Crowd) {
    let seed = env::var("WHEELLOCK_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.unwrap_or_else(|| RandomState::new().build_hasher().finish());
    eprintln!("WHEELLOCK_SEED={seed}");

    let setup = ProxiedServer::new();
    let clients: Vec<Client> = (0..crowd.clients)
        .map(|_| built(setup.builder().watchdog_lease(Duration::from_secs(4))))
        .collect();
    let protected = Protected::default();
    let over = AtomicBool::new(false);
    let healed = AtomicBool::new(false);
    let entered_since: Vec<AtomicU64> =
        (0..crowd.clients as u64 * crowd.threads).map(|_| AtomicU64::new(0)).collect();
    let entered: u64 = thread::scope(|scope| {
        // Also when a check below fails: otherwise the workers would never end.
        let _end = SetAtTheEnd(&over);
        let workers: Vec<_> = clients
            .iter()
            .flat_map(|client| (0..crowd.threads).map(move |number| (client, number)))
            .zip(&entered_since)
            .map(|((client, number), since)| {
                let (protected, over, healed) = (&protected, &over, &healed);
                let rng = Rng::with_seed(seed ^ (number + 1) << 32);
                let note = move || {
                    since.fetch_add(u64::from(healed.load(Ordering::SeqCst)), Ordering::SeqCst);
                };
                let worker = Worker { crowd, number, protected, over, note, rng };
                scope.spawn(move || {
                    if number % 4 == 3 {
                        worker.work(&client.fenced_lock(NAME), |guard| protected.see(guard))
                    } else {
                        worker.work(&client.lock(NAME), |_| ())
                    }
                })
            })
            .collect();
        let faults = scope.spawn(|| cause_faults(&setup, Rng::with_seed(seed), &over));
        let caused = faults.join();
        // During faults at most one is inside. Afterwards every thread gets in.
        healed.store(true, Ordering::SeqCst);
        wait_until(&format!("every thread got in after the faults, seed {seed}"), SOON * 3, || {
            let in_again = |since: &AtomicU64| since.load(Ordering::SeqCst) > 0;
            entered_since.iter().all(in_again)
                || workers.iter().any(thread::ScopedJoinHandle::is_finished)
        });
        over.store(true, Ordering::SeqCst);
        let entered = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
        caused.unwrap();
        entered
    });
    assert_eq!(protected.counter.into_inner(), entered, "seed {seed}");
    for client in &clients {
        wait_until("no release is queued", SOON, || client.stats().queued_releases == 0);
        let stats = client.stats();
        assert_eq!((stats.held, stats.waiters, stats.lost, stats.panics), (0, 0, 0, 0));
        assert_eq!(stats.abandoned_releases, 0, "seed {seed}");
    }
    setup.wait_until_gone(NAME);
    setup.rival().lock(NAME).try_lock().unwrap().unwrap().unlock().unwrap();
}

struct SetAtTheEnd<'a>(&'a AtomicBool);

impl Drop for SetAtTheEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A thread that takes the lock again and again, in every way.
struct Worker<'a, N> {
    crowd: &'a Crowd,
    number: u64,
    protected: &'a Protected,
    over: &'a AtomicBool,
    /// Notes that it was inside.
    note: N,
    rng: Rng,
}

impl<N: Fn()> Worker<'_, N> {
    /// Says how often it was inside.
    fn work<G: Guard>(mut self, watched: &Lock<G>, see: impl Fn(&G)) -> u64 {
        let leased = watched.clone().with_lease(Duration::from_secs(3));
        let mut entered = 0;
        while !self.over.load(Ordering::SeqCst) {
            let lock = if self.rng.u64(..2) == self.number % 2 { watched } else { &leased };
            let guard = match lock.try_lock_for(self.crowd.wait) {
                Ok(Some(guard)) => guard,
                Ok(None) => continue,
                Err(error) => {
                    assert!(error.is_retryable(), "{error}");
                    continue;
                }
            };
            see(&guard);
            self.enter(&guard);
            entered += 1;
            (self.note)();
            if self.rng.u64(..4) == 0 {
                match lock.try_lock() {
                    Ok(inner) => {
                        let inner = inner.unwrap();
                        see(&inner);
                        self.enter(&inner);
                        entered += 1;
                        drop(inner);
                    }
                    Err(error) => assert!(error.is_retryable(), "{error}"),
                }
            }
            if self.rng.u64(..4) == 0 {
                drop(guard);
            } else if let Err(error) = guard.unlock() {
                assert!(error.is_retryable(), "{error}");
            }
        }
        entered
    }

    fn enter(&mut self, guard: &impl Guard) {
        self.protected.enter(guard, self.crowd.longest_stay, &mut self.rng);
    }
}

/// Causes faults for a while. Each is shorter than a lease.
fn cause_faults(setup: &ProxiedServer, mut rng: Rng, over: &AtomicBool) {
    const SCRIPTS: [Script; 4] = [Script::Acquire, Script::Recount, Script::Release, Script::Renew];
    let end = now() + LENGTH;
    let mut keeping: Vec<Aim> = Vec::new();
    while now() < end && !over.load(Ordering::SeqCst) {
        let length = Duration::from_millis(20 + rng.u64(..100));
        match rng.u64(..16) {
            0 => setup.proxy.cut_all(),
            1 => setup.proxy.reset_all(),
            2 => drop(setup.server.command(&["SCRIPT", "FLUSH"])),
            3 => drop(setup.server.command(&["CLIENT", "KILL", "TYPE", "pubsub"])),
            4 => during(length, |on| setup.proxy.hold_all(on)),
            5 => during(length, |on| setup.proxy.lose_messages(on)),
            6 => during(length, |on| setup.proxy.refuse(on)),
            7 => {
                setup.server.pause();
                pause(length);
                setup.server.resume();
            }
            8 => during(length, |on| {
                setup.proxy.hang_new_connections(on);
                setup.proxy.cut_all();
            }),
            9 | 10 => {
                // What was kept back arrives, in another order than it was sent.
                if !keeping.is_empty() {
                    let place = rng.usize(..keeping.len());
                    deliver(&keeping.swap_remove(place));
                }
            }
            11 | 12 => {
                let script = SCRIPTS[rng.usize(..4)];
                keeping.push(setup.on(script, NAME, Fault::HoldRequest));
            }
            _ => {
                let script = SCRIPTS[rng.usize(..4)];
                let times = 1 + rng.usize(..3);
                setup.on(script, NAME, any_fault(&mut rng)).times(times);
            }
        }
        pause(Duration::from_millis(rng.u64(..25)));
    }
    for aim in &keeping {
        aim.withdraw();
        deliver(aim);
    }
}

fn during(length: Duration, switch: impl Fn(bool)) {
    switch(true);
    pause(length);
    switch(false);
}

fn deliver(aim: &Aim) {
    if aim.hits() > 0 {
        aim.deliver();
    } else {
        aim.withdraw();
    }
}

fn any_fault(rng: &mut Rng) -> Fault {
    let delay = Duration::from_millis(rng.u64(..400));
    match rng.u64(..10) {
        0 => Fault::DropRequest,
        1 => Fault::SwallowRequest,
        2 => Fault::ResetBeforeRequest,
        3 => Fault::SwallowReply,
        4 => Fault::ResetBeforeReply,
        5 => Fault::CutReplyAfter(rng.usize(..4)),
        6 => Fault::DelayRequest(delay),
        7 => Fault::DelayReply(delay),
        8 => Fault::AnswerInstead(b"-LOADING it is so\r\n".to_vec()),
        _ => Fault::AnswerInstead(b"nonsense\r\n".to_vec()),
    }
}
