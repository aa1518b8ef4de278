//! Hand-over: from just before a release until a waiter on another thread owns the lock.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use rlock::sync_lock::RLock;
use wheellock::Client;
use wheellock_fixture::{RawConnection, Server, wait_until};

use crate::harness::Contender;
use crate::harness::child::Child;
use crate::harness::clock::{now, sleep};
use crate::harness::java::JavaProgram;
use crate::lock::raw::{RawPair, channel};

/// Until a waiter that is about to sleep does sleep. It is the same for all, because a core that is
/// idle takes longer to wake.
pub(super) const SETTLED: Duration = Duration::from_millis(1);
/// No step of a hand-over takes this long.
pub(super) const LIMIT: Duration = Duration::from_secs(5);

/// The floor and this crate. The floor releases on one socket, reads the message from a second in a
/// thread, wakes another thread through a channel, and acquires in that thread on a third socket.
#[must_use]
pub fn hand_overs(server: &Server) -> Vec<Contender> {
    vec![raw_chain(server), clients(server)]
}

/// The floor, and the peer that polls every 100 ms.
#[must_use]
pub fn slow_hand_overs(server: &Server) -> Vec<Contender> {
    vec![raw_chain(server), rlock_polling(server)]
}

/// Two clients of Redisson in one Java process, warmed up.
///
/// # Errors
///
/// Why it cannot be measured, in words for the report.
pub fn redisson_hand_over(server: &Server) -> Result<Contender, String> {
    let mut command = JavaProgram::build("redisson")?.command("RedissonHandOver", "512m");
    command.arg(server.address().to_string());
    let mut child = Child::start(&mut command).map_err(|error| error.to_string())?;
    // It warms up first.
    child.line(Duration::from_secs(60)).map_err(|error| error.to_string())?;
    Ok(Contender::new("Redisson 4.7", move || {
        child.send("once").expect("the program reads");
        let nanos = child.line(LIMIT).expect("the program replies");
        Duration::from_nanos(nanos.parse().expect("the reply is a number"))
    }))
}

fn raw_chain(server: &Server) -> Contender {
    // A new name each time: the listener of an earlier chain lives as long as the server.
    static CHAINS: AtomicUsize = AtomicUsize::new(0);
    let name = format!("bench:chai{}", CHAINS.fetch_add(1, Ordering::Relaxed));
    let (wake, woken) = bounded::<()>(1);
    let (owns, owned) = bounded::<Instant>(1);
    let mut listener = server.connection();
    // It listens for as long as the benchmark runs.
    listener.set_deadline(Duration::from_secs(3600));
    listener.command(&["SUBSCRIBE", channel(&name).as_str()]);
    spawn("bench-listener", move || {
        // It fails when the server ends.
        while listener.receive().is_ok() {
            if wake.send(()).is_err() {
                break;
            }
        }
    });
    let mut waiter = RawPair::of_lock(server.address(), &name);
    let (mut cleaner, own_name) = (server.connection(), name.clone());
    spawn("bench-waiter", move || {
        for () in woken {
            waiter.acquire();
            if owns.send(now()).is_err() {
                break;
            }
            // Without a message, which would wake this thread again.
            cleaner.command(&["DEL", own_name.as_str()]);
        }
    });
    let mut holder = RawPair::of_lock(server.address(), &name);
    let mut observer = server.connection();
    Contender::new("raw chain", move || {
        wait_until("the last waiter is done", LIMIT, || {
            observer.command(&["EXISTS", name.as_str()]).integer() == 0
        });
        holder.acquire();
        sleep(SETTLED);
        let start = now();
        holder.release();
        owned.recv().expect("the waiter acquires") - start
    })
}

fn clients(server: &Server) -> Contender {
    const NAME: &str = "bench:hands";
    let holder = Client::connect(&server.url()).expect("the server is there");
    let waiter = Client::connect(&server.url()).expect("the server is there");
    let (waits, owned) = waiter_thread({
        let lock = waiter.lock(NAME);
        move |owns| {
            let guard = lock.lock().expect("the holder releases it");
            owns.send(now()).ok();
            guard.unlock().expect("it was held");
        }
    });
    let lock = holder.lock(NAME);
    let mut observer = server.connection();
    Contender::new("wheellock", move || {
        let guard = lock.lock().expect("the lock is free");
        waits.send(()).expect("the waiter is there");
        wait_until("the waiter waits", LIMIT, || {
            waiter.stats().waiters == 1 && subscribed(&mut observer, NAME)
        });
        sleep(SETTLED);
        let start = now();
        guard.unlock().expect("it was held");
        let took = owned.recv().expect("the waiter acquires") - start;
        // Or the next round would meet the waiter's own release.
        wait_until("the waiter is done", LIMIT, || {
            observer.command(&["EXISTS", NAME]).integer() == 0
        });
        took
    })
}

fn rlock_polling(server: &Server) -> Contender {
    const NAME: &str = "bench:polls";
    let holder = RLock::new(server.url().as_str()).expect("the server is there");
    let waiter = RLock::new(server.url().as_str()).expect("the server is there");
    let (waits, owned) = waiter_thread(move |owns| {
        let mut guard = waiter.acquire_mutex(NAME).expect("the holder releases it");
        owns.send(now()).ok();
        guard.release().expect("it was held");
    });
    let mut observer = server.connection();
    let mut turn = 0;
    Contender::new("rlock 0.2, polling each 100 ms", move || {
        wait_until("the waiter is done", LIMIT, || {
            observer.command(&["EXISTS", NAME]).integer() == 0
        });
        let mut guard = holder.acquire_mutex(NAME).expect("the lock is free");
        waits.send(()).expect("the waiter is there");
        // At another point of the polling interval each time.
        turn = (turn + 37) % 100;
        sleep(SETTLED + Duration::from_millis(turn));
        let start = now();
        guard.release().expect("it was held");
        owned.recv().expect("the waiter acquires") - start
    })
}

/// A thread that runs `wait` for each message of the sender, and ends with it.
fn waiter_thread(
    mut wait: impl FnMut(&Sender<Instant>) + Send + 'static,
) -> (Sender<()>, Receiver<Instant>) {
    let (waits, requests) = bounded::<()>(1);
    let (owns, owned) = bounded::<Instant>(1);
    spawn("bench-waiter", move || {
        for () in requests {
            wait(&owns);
        }
    });
    (waits, owned)
}

pub(super) fn subscribed(observer: &mut RawConnection, name: &str) -> bool {
    let reply = observer.command(&["PUBSUB", "NUMSUB", &channel(name)]);
    reply.array().get(1).is_some_and(|subscribers| subscribers.integer() == 1)
}

pub(super) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) {
    let thread = thread::Builder::new().name(name.to_owned()).spawn(work);
    // It ends with its channels.
    drop(thread.expect("the system gives a thread"));
}
