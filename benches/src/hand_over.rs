//! A lock going from one holder to the next: from just before the release until a waiter on another thread owns it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use rlock::sync_lock::RLock;
use wheellock::Client;
use wheellock_fixture::{RawConnection, Server, wait_until};

use crate::clock::{now, pause};
use crate::contender::Contender;
use crate::raw::{RawLock, channel};

/// The floor: release on one socket, a thread that reads the message from a second, a thread that it wakes and that
/// acquires on a third.
pub const RAW_CHAIN: &str = "raw chain";
/// Two clients of this crate.
pub const CLIENTS: &str = "wheellock";
/// Two managers of a peer that polls.
pub const RLOCK_POLLING: &str = "rlock 0.2, polling each 100 ms";

/// After this long a waiter that is on its way to sleep does sleep. The same for all, because a core that has gone
/// idle takes longer to wake.
const SETTLED: Duration = Duration::from_millis(1);
/// No step of a hand-over takes this long on a machine that works.
const LIMIT: Duration = Duration::from_secs(5);

/// The floor and this crate; the first is the floor.
#[must_use]
pub fn hand_overs(server: &Server) -> Vec<Contender> {
    vec![raw_chain(server), clients(server)]
}

/// The peer that takes a tenth of a second.
#[must_use]
pub fn slow_hand_overs(server: &Server) -> Vec<Contender> {
    vec![rlock_polling(server)]
}

fn raw_chain(server: &Server) -> Contender {
    // Its own name each time: the listener of an earlier chain lives as long as the server.
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
    let mut waiter = RawLock::new(server.address(), &name);
    spawn("bench-waiter", move || {
        for () in woken {
            waiter.acquire();
            if owns.send(now()).is_err() {
                break;
            }
            // In silence, as a message would wake this thread again.
            waiter.delete();
        }
    });
    let mut holder = RawLock::new(server.address(), &name);
    let mut watch = server.connection();
    Contender::new(RAW_CHAIN, move || {
        wait_until("the last waiter is done", LIMIT, || {
            watch.command(&["EXISTS", name.as_str()]).integer() == 0
        });
        holder.acquire();
        pause(SETTLED);
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
    let mut watch = server.connection();
    Contender::new(CLIENTS, move || {
        let guard = lock.lock().expect("nobody else wants it");
        waits.send(()).expect("the waiter is there");
        wait_until("somebody waits", LIMIT, || {
            waiter.stats().waiters == 1 && subscribed(&mut watch, NAME)
        });
        pause(SETTLED);
        let start = now();
        guard.unlock().expect("it was held");
        let took = owned.recv().expect("the waiter acquires") - start;
        // So that the next round does not find the waiter's own release on its way.
        wait_until("the waiter is done", LIMIT, || watch.command(&["EXISTS", NAME]).integer() == 0);
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
    let mut watch = server.connection();
    let mut turn = 0;
    Contender::new(RLOCK_POLLING, move || {
        wait_until("the waiter is done", LIMIT, || watch.command(&["EXISTS", NAME]).integer() == 0);
        let mut guard = holder.acquire_mutex(NAME).expect("nobody else wants it");
        waits.send(()).expect("the waiter is there");
        // At another point of its interval each time, as a release knows nothing of who polls.
        turn = (turn + 37) % 100;
        pause(SETTLED + Duration::from_millis(turn));
        let start = now();
        guard.release().expect("it was held");
        owned.recv().expect("the waiter acquires") - start
    })
}

/// A thread that runs `wait` whenever it is told to. It ends with the sender.
fn waiter_thread(
    mut wait: impl FnMut(&Sender<Instant>) + Send + 'static,
) -> (Sender<()>, Receiver<Instant>) {
    let (waits, told) = bounded::<()>(1);
    let (owns, owned) = bounded::<Instant>(1);
    spawn("bench-waiter", move || {
        for () in told {
            wait(&owns);
        }
    });
    (waits, owned)
}

fn subscribed(watch: &mut RawConnection, name: &str) -> bool {
    let reply = watch.command(&["PUBSUB", "NUMSUB", &channel(name)]);
    reply.array().get(1).is_some_and(|subscribers| subscribers.integer() == 1)
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) {
    let thread = thread::Builder::new().name(name.to_owned()).spawn(work);
    // It ends with its channels.
    drop(thread.expect("the system gives a thread"));
}
