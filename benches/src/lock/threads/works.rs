//! What the measuring processes do: lock and unlock by many threads, on names of their own or on
//! one name.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use wheellock::{Client, Lock};
use wheellock_fixture::wait_until;

use crate::harness::clock::{now, sleep};
use crate::harness::measured::{Numbers, ready_and_wait, tell};
use crate::harness::{Contender, measure_in_turn, measured};
use crate::lock::raw::{RawBatch, RawPair};
use crate::lock::threads::subject::ClientKind;
use crate::lock::threads::team::{Times, Work, measure};

const HOT: &str = "bench:hot";
const SAMPLES: usize = 100;
/// No thread needs this long to get into the queue, and no queue of a thousand to be served.
const LIMIT: Duration = Duration::from_secs(30);

fn connect(address: SocketAddr) -> Client {
    Client::connect(&format!("redis://{address}/")).expect("the server is there")
}

fn lock_and_unlock(lock: &Lock) {
    let guard = lock.lock().expect("the server is there");
    guard.unlock().expect("it was held");
}

/// One thread: lock + unlock and lock + drop, in turn with the floor, for `window`.
pub(crate) fn one_thread(address: SocketAddr, times: Times) -> Numbers {
    let mut raw = RawPair::of_lock(address, "bench:floor");
    let pair = connect(address).lock("bench:locks");
    let dropped = connect(address).lock("bench:drops");
    let mut contenders = [
        Contender::timed("floor", move || {
            raw.acquire();
            raw.release();
        }),
        Contender::timed("pair", move || lock_and_unlock(&pair)),
        Contender::timed("drop", move || drop(dropped.lock().expect("the lock is free"))),
    ];
    ready_and_wait();
    let start = now();
    let mut warm_ups = 0_u32;
    while warm_ups == 0 || now() - start < times.settle {
        measure_in_turn(&mut contenders, 1, SAMPLES);
        warm_ups += 1;
    }
    let round = (now() - start) / warm_ups;
    let rounds = times.window.as_micros() / round.as_micros().max(1);
    let rounds = usize::try_from(rounds).unwrap_or(usize::MAX).clamp(3, 1000);
    tell(measured::BEGUN);
    let summaries = measure_in_turn(&mut contenders, rounds, SAMPLES);
    tell(measured::OVER);
    let micros = |index: usize| {
        summaries.get(index).map_or(f64::NAN, |summary| summary.median.as_secs_f64() * 1e6)
    };
    let ratio = |index: usize| summaries.get(index).map_or(f64::NAN, |summary| summary.ratio);
    vec![
        ("pair", micros(1)),
        ("pair-ratio", ratio(1)),
        ("drop", micros(2)),
        ("drop-ratio", ratio(2)),
        ("floor-pair", micros(0)),
        ("floor-drop", micros(0)),
    ]
}

/// Each thread has a lock of its own, and runs own code for `section` while it has the lock. A
/// sample is the time of a pair.
pub(crate) fn own_names(
    kind: ClientKind,
    address: SocketAddr,
    threads: usize,
    section: Duration,
    times: Times,
) -> Option<Numbers> {
    let (works, pairs_each) = own_name_works(kind, address, threads, section)?;
    let outcome = measure(works, times);
    Some(vec![
        ("pairs", pairs_each * outcome.rate()),
        ("p50", outcome.micros_at(500)),
        ("p99", outcome.micros_at(990)),
        ("client-each", outcome.client_micros() / pairs_each),
    ])
}

/// The works, and the number of pairs in each.
fn own_name_works(
    kind: ClientKind,
    address: SocketAddr,
    threads: usize,
    section: Duration,
) -> Option<(Vec<Work>, f64)> {
    let names: Vec<String> = (0..threads).map(|number| format!("bench:own:{number:04}")).collect();
    match kind {
        ClientKind::Wheellock => {
            let client = connect(address);
            let work = |name: &String| {
                let lock = client.lock(name);
                timed(move || {
                    let guard = lock.lock().expect("the server is there");
                    spin(section);
                    guard.unlock().expect("it was held");
                })
            };
            Some((names.iter().map(work).collect(), 1.0))
        }
        ClientKind::Raw => {
            let work = |name: &String| {
                let mut raw = RawPair::of_lock(address, name);
                timed(move || {
                    raw.acquire();
                    spin(section);
                    raw.release();
                })
            };
            Some((names.iter().map(work).collect(), 1.0))
        }
        ClientKind::Batch => {
            let depth = threads.div_ceil(2);
            let work = |names: &[String]| {
                let mut batch = RawBatch::new(address, names);
                timed(move || batch.run())
            };
            let depth_number = u32::try_from(depth).map_or(f64::NAN, f64::from);
            Some((names.chunks(depth).map(work).collect(), depth_number))
        }
        ClientKind::Old | ClientKind::Redisson => None,
    }
}

/// Keeps the processor busy.
fn spin(length: Duration) {
    let start = now();
    while !length.is_zero() && now() - start < length {
        std::hint::spin_loop();
    }
}

/// As [`own_names`], at some 10,000 pairs a second. A third of the threads have limits of 1 to 10 ms,
/// and are not measured. The others have 300 ms.
pub(crate) fn beside_hasty(address: SocketAddr, threads: usize, times: Times) -> Numbers {
    const PATIENT: Duration = Duration::from_millis(300);
    let client = connect(address);
    let pause = Duration::from_micros(100) * u32::try_from(threads).unwrap_or(u32::MAX);
    let mut works: Vec<Work> = Vec::new();
    for number in 0..threads {
        let lock = client.lock(&format!("bench:own:{number:04}"));
        if number % 3 == 0 {
            let limit = Duration::from_millis(1 + u64::try_from(number).unwrap_or(0) % 10);
            let hurry = move || loop {
                if let Ok(Some(guard)) = lock.try_lock_for(limit) {
                    guard.unlock().ok();
                }
                sleep(pause);
            };
            // The process ends with its measurement.
            let thread = thread::Builder::new().stack_size(256 * 1024);
            drop(thread.spawn(hurry).expect("the system gives a thread"));
            continue;
        }
        works.push(Box::new(move || {
            let start = now();
            let locked = lock.try_lock_for(PATIENT);
            let is_done = locked.is_ok_and(|guard| guard.is_some_and(|held| held.unlock().is_ok()));
            let took = now() - start;
            sleep(pause);
            if is_done { took } else { Duration::MAX }
        }));
    }
    let outcome = measure(works, times);
    vec![
        ("pairs", outcome.rate()),
        ("failed", 100.0 * outcome.share_of(Duration::MAX)),
        ("p50", outcome.micros_at(500)),
    ]
}

fn timed(mut work: impl FnMut() + Send + 'static) -> Work {
    Box::new(move || {
        let start = now();
        work();
        now() - start
    })
}

/// All threads use one lock of one client, and do some work while they have it. A sample is the
/// time until a thread has the lock.
pub(crate) fn one_name(
    address: SocketAddr,
    threads: usize,
    section: Duration,
    times: Times,
) -> Numbers {
    let client = connect(address);
    let outcome = measure(one_name_works(&client, threads, section), times);
    let (least, most) = outcome.least_and_most();
    vec![
        ("pairs", outcome.rate()),
        ("wait-p50", outcome.micros_at(500) / 1000.0),
        ("wait-p99", outcome.micros_at(990) / 1000.0),
        ("wait-max", outcome.longest_micros() / 1000.0),
        ("client-each", outcome.client_micros()),
        ("least", least),
        ("most", most),
        ("spread", most / least),
    ]
}

fn one_name_works(client: &Client, threads: usize, section: Duration) -> Vec<Work> {
    let is_inside = Arc::new(AtomicBool::new(false));
    let work = |_| -> Work {
        let (lock, is_inside) = (client.lock(HOT), Arc::clone(&is_inside));
        Box::new(move || {
            let start = now();
            let guard = lock.lock().expect("the server is there");
            let entered = now();
            let is_alone = !is_inside.swap(true, Ordering::Relaxed);
            assert!(is_alone, "two threads have the lock");
            while !section.is_zero() && now() - entered < section {
                std::hint::spin_loop();
            }
            is_inside.store(false, Ordering::Relaxed);
            guard.unlock().expect("it was held");
            entered - start
        })
    };
    (0..threads).map(work).collect()
}

/// As [`one_name`]. Before it, all threads wait for a lock that is held, one after the other, and
/// it is observed in which order they get it.
pub(crate) fn line(address: SocketAddr, threads: usize, times: Times) -> Numbers {
    let order = order_of_service(&connect(address), threads);
    let mut numbers = one_name(address, threads, Duration::ZERO, times);
    let overtaken = u32::try_from(overtaken(&order)).unwrap_or(u32::MAX);
    numbers.push(("overtaken", f64::from(overtaken)));
    numbers
}

/// The waiters' numbers, counted up as they arrive, in the order in which they get the lock.
fn order_of_service(client: &Client, threads: usize) -> Vec<usize> {
    const NAME: &str = "bench:line";
    let order = Mutex::new(Vec::with_capacity(threads));
    thread::scope(|scope| {
        let held = client.lock(NAME).lock().expect("the lock is free");
        for number in 0..threads {
            let (lock, order) = (client.lock(NAME), &order);
            let wait = move || {
                let guard = lock.lock().expect("the server is there");
                order.lock().push(number);
                guard.unlock().expect("it was held");
            };
            thread::Builder::new()
                .stack_size(256 * 1024)
                .spawn_scoped(scope, wait)
                .expect("the system gives a thread");
            wait_until("the thread waits", LIMIT, || client.stats().waiters == number + 1);
        }
        held.unlock().expect("it was held");
    });
    order.into_inner()
}

/// How many were served after one that had arrived later.
fn overtaken(order: &[usize]) -> usize {
    let mut latest = 0;
    let mut count = 0;
    for &number in order {
        count += usize::from(number < latest);
        latest = latest.max(number);
    }
    count
}

/// Pairs by this many threads, shared among them. Returns the time from their common start to the
/// end of the last.
#[derive(Debug)]
pub struct ManyThreads {
    client: Client,
    names: Vec<String>,
}

impl ManyThreads {
    /// A client and a name for each thread.
    #[must_use]
    pub fn on_own_names(address: SocketAddr, threads: usize) -> Self {
        let names = (0..threads).map(|number| format!("bench:own:{number:04}")).collect();
        Self { client: connect(address), names }
    }

    /// A client and one name for all threads.
    #[must_use]
    pub fn on_one_name(address: SocketAddr, threads: usize) -> Self {
        Self { client: connect(address), names: vec![HOT.to_owned(); threads] }
    }

    /// Locks and unlocks `pairs` times.
    #[must_use]
    pub fn run(&self, pairs: u64) -> Duration {
        let together = std::sync::Barrier::new(self.names.len() + 1);
        let threads = u64::try_from(self.names.len()).unwrap_or(u64::MAX);
        thread::scope(|scope| {
            for (number, name) in (0_u64..).zip(&self.names) {
                // The first ones do what is left over.
                let own = pairs / threads + u64::from(number < pairs % threads);
                let (lock, together) = (self.client.lock(name), &together);
                let work = move || {
                    together.wait();
                    for _ in 0..own {
                        lock_and_unlock(&lock);
                    }
                    together.wait();
                };
                thread::Builder::new()
                    .stack_size(256 * 1024)
                    .spawn_scoped(scope, work)
                    .expect("the system gives a thread");
            }
            together.wait();
            let start = now();
            together.wait();
            now() - start
        })
    }
}

#[cfg(test)]
mod tests {
    use wheellock_fixture::Server;

    use super::*;

    #[test]
    fn nobody_is_overtaken_in_the_order_of_arrival() {
        assert_eq!(overtaken(&[0, 1, 2, 3]), 0);
    }

    #[test]
    fn all_that_were_served_after_a_later_one_are_overtaken() {
        assert_eq!(overtaken(&[3, 0, 1, 2]), 3);
        assert_eq!(overtaken(&[1, 0, 3, 2]), 2);
    }

    #[test]
    fn the_order_of_service_has_every_thread_once() {
        let server = Server::start();
        let mut order = order_of_service(&connect(server.address()), 20);
        order.sort_unstable();
        assert!(order.iter().copied().eq(0..20));
    }

    #[test]
    fn every_subject_with_a_process_of_ours_locks_names_of_its_own() {
        let server = Server::start();
        for kind in [ClientKind::Wheellock, ClientKind::Raw, ClientKind::Batch] {
            let (works, pairs_each) = own_name_works(kind, server.address(), 4, Duration::ZERO)
                .expect("it is measured here");
            assert_eq!(works.len(), if kind == ClientKind::Batch { 2 } else { 4 });
            assert_eq!(pairs_each > 1.0, kind == ClientKind::Batch);
            for mut work in works {
                work();
                work();
            }
            assert_eq!(server.command(&["DBSIZE"]).integer(), 0, "{kind:?} leaves nothing");
        }
    }

    #[test]
    fn all_pairs_are_run_also_when_threads_get_none() {
        let server = Server::start();
        let threads = ManyThreads::on_own_names(server.address(), 4);
        assert!(!threads.run(1).is_zero());
        assert!(!threads.run(9).is_zero());
        let commands = server.command(&["INFO", "commandstats"]).text();
        // An acquire writes once.
        assert!(commands.contains("cmdstat_hset:calls=10,"), "{commands}");
    }
}
