//! Forks while other threads are in the middle of an operation: the operation never ends in the
//! child, and the child must not wait for it.
//!
//! The standard library holds a lock while a thread starts or ends, and a child forked at that
//! moment can start no thread. So no thread starts or ends here while another one forks.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::LIMIT;
use crate::common::forked::Child;
use crate::ran_in_a_child;
use crossbeam_channel::{Receiver, bounded};
use hashed_wheel::Parker;
use wheellock::{AnyLock, Client, Clock, Error, LostReason, OwnedGuard, SystemClock};
use wheellock_fixture::{Server, wait_until};

const THREADS: usize = 3;
/// How often the process is forked among its threads.
const FORKS: usize = 40;

/// The system's clock of one client, which says when the client's two threads have started.
#[derive(Debug, Default)]
struct Started([AtomicBool; 2]);

impl Clock for Started {
    fn now(&self) -> Instant {
        SystemClock.now()
    }

    fn park(&self, parker: &Parker, deadline: Option<Instant>, interrupt: &Receiver<()>) {
        let threads = ["lock-ticker", "lock-renewal"];
        if let Some(place) = threads.iter().position(|name| thread::current().name() == Some(name))
        {
            self.0[place].store(true, Ordering::SeqCst);
        }
        SystemClock.park(parker, deadline, interrupt);
    }

    fn remaining(&self, deadline: Instant) -> Duration {
        SystemClock.remaining(deadline)
    }
}

/// A client whose threads have started.
fn connected(server: &Server) -> Client {
    let started = Arc::new(Started::default());
    let clock = Arc::clone(&started) as Arc<dyn Clock>;
    let client = Client::builder().url(&server.url()).clock(clock).build().unwrap();
    wait_until("the client's threads have started", LIMIT, || {
        started.0.iter().all(|started| started.load(Ordering::SeqCst))
    });
    client
}

/// Takes and releases something of every kind, and asks its guards.
fn use_every_kind(client: &Client, user: &str) -> Result<(), Error> {
    let name = |kind: &str| format!("{kind}:{user}");
    let owned = client.lock(&name("owned")).sendable().lock()?;
    assert!(owned.is_held() && owned.lost().is_empty() && owned.owner().starts_with(&client.id()));
    drop(owned.lost_future()?);
    drop(owned);
    client.fair_lock(&name("fair")).lock()?.unlock()?;
    client.fenced_lock(&name("fenced")).lock()?.unlock()?;
    client.simple_lock(&name("simple")).lock()?.unlock()?;
    let both = client.read_write_lock(&name("both"));
    both.read_lock().lock()?.unlock()?;
    both.write_lock().lock()?.unlock()?;
    client
        .multi_lock(&[&client.lock(&name("one")), &client.lock(&name("two"))])
        .lock()?
        .unlock()?;
    let semaphore = client.semaphore(&name("semaphore"));
    semaphore.try_set_permits(1)?;
    semaphore.acquire(1)?.forget();
    semaphore.release(1)?;
    let permits = client.expirable_semaphore(&name("permits"));
    permits.try_set_permits(2)?;
    drop(permits.clone().watched().acquire()?);
    permits.with_lease(LIMIT).acquire()?.release()?;
    let latch = client.count_down_latch(&name("latch"));
    latch.try_set_count(1)?;
    latch.count_down()
}

/// In a child: nothing hangs.
fn live_in_a_fork(server: &Server, client: Client, guard: OwnedGuard) {
    assert_eq!(client.lock("a").try_lock().map(drop), Err(Error::Forked));
    assert_eq!(client.stats().held, 0);
    assert!(!guard.is_held());
    assert_eq!(guard.lost().recv_timeout(LIMIT), Ok(LostReason::Forked));
    assert!(guard.owner().starts_with(&client.id()));
    assert!(guard.check().is_err() && guard.lost_future().is_ok());
    drop((guard, client));
    let own = Client::connect(&server.url()).unwrap();
    use_every_kind(&own, &process::id().to_string()).unwrap();
}

#[test]
fn a_fork_among_busy_threads_leaves_a_usable_child() {
    if ran_in_a_child(a_fork_among_busy_threads_leaves_a_usable_child) {
        return;
    }
    let server = Server::start();
    let client = connected(&server);
    let mut held = Some((client.clone(), client.lock("a").sendable().lock().unwrap()));
    let rounds = [const { AtomicU64::new(0) }; THREADS];
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for (thread, rounds) in rounds.iter().enumerate() {
            let (client, is_over) = (&client, &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::SeqCst) {
                    use_every_kind(client, &thread.to_string()).unwrap();
                    rounds.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        // Every thread that the client needs has started then.
        let all_go_on = || {
            let before = rounds.each_ref().map(|rounds| rounds.load(Ordering::SeqCst));
            wait_until("every thread goes on", LIMIT, || {
                rounds.iter().zip(before).all(|(now, old)| now.load(Ordering::SeqCst) > old + 1)
            });
        };
        all_go_on();
        for _ in 0..FORKS {
            let child = Child::doing(LIMIT, || {
                let (client, guard) = held.take().unwrap();
                live_in_a_fork(&server, client, guard);
            });
            child.wait();
        }
        all_go_on();
        is_over.store(true, Ordering::SeqCst);
    });
    let (_, guard) = held.unwrap();
    assert!(guard.is_held());
    guard.unlock().unwrap();
    assert_eq!(client.stats().lost, 0);
}

/// A guard of many locks takes long to make its channel. The thread that asks for the channel has
/// started before the fork, and ends after it.
#[test]
fn fork_during_lost_channel_creation_leaves_child_guard_usable() {
    if ran_in_a_child(fork_during_lost_channel_creation_leaves_child_guard_usable) {
        return;
    }
    let server = Server::start();
    let client = connected(&server);
    let locks: Vec<_> = (0..500).map(|number| client.lock(&number.to_string())).collect();
    let locks: Vec<_> = locks.iter().map(|lock| lock as &dyn AnyLock).collect();
    for _ in 0..10 {
        let guard = &client.multi_lock(&locks).with_owner("both").lock().unwrap();
        let is_done = &AtomicBool::new(false);
        thread::scope(|scope| {
            let (begins, begun) = bounded(0);
            let (end, may_end) = bounded::<()>(0);
            scope.spawn(move || {
                begins.send(()).unwrap();
                assert!(guard.lost().is_empty());
                is_done.store(true, Ordering::SeqCst);
                // Until the other end is dropped.
                may_end.recv().unwrap_err();
            });
            begun.recv().unwrap();
            let mut children = Vec::new();
            while !is_done.load(Ordering::SeqCst) && children.len() < 3 {
                children.push(Child::doing(LIMIT, || {
                    assert_eq!(guard.lost().recv_timeout(LIMIT), Ok(LostReason::Forked));
                    assert!(!guard.is_held());
                }));
            }
            wait_until("the thread is done", LIMIT, || is_done.load(Ordering::SeqCst));
            drop(end);
            children.into_iter().for_each(Child::wait);
        });
    }
}
