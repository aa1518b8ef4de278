//! A red lock of five servers without contention: a raw parallel fan-out, this crate, and this
//! crate while one server hangs.

use std::thread;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use wheellock::Client;
use wheellock_fixture::Server;

use crate::harness::Contender;
use crate::lock::raw::RawPair;

const SERVERS: usize = 5;
const MAJORITY: usize = 3;

/// Five servers that run, and five of which one is stopped.
#[derive(Debug)]
pub struct RedServers {
    healthy: Vec<Server>,
    one_hangs: Vec<Server>,
}

impl RedServers {
    /// Starts all ten.
    #[must_use]
    pub fn start() -> Self {
        let five = || (0..SERVERS).map(|_| Server::start()).collect();
        Self { healthy: five(), one_hangs: five() }
    }
}

/// The floors have a thread for each server, which runs the same scripts on a plain socket. The
/// first waits for every reply, the second for a majority, as this crate does.
#[must_use]
pub fn red_locks(servers: &RedServers) -> Vec<Contender> {
    vec![
        raw("raw fan-out to 5", "bench:rawal", &servers.healthy, SERVERS),
        raw("raw fan-out, majority of 5", "bench:rawma", &servers.healthy, MAJORITY),
        wheellock("wheellock on 5", &servers.healthy, None),
        wheellock("wheellock on 5, one hangs", &servers.one_hangs, servers.one_hangs.get(2)),
    ]
}

fn wheellock(name: &'static str, servers: &[Server], hangs: Option<&Server>) -> Contender {
    let client = |server: &Server| Client::connect(&server.url()).expect("the server is there");
    let clients: Vec<Client> = servers.iter().map(client).collect();
    let lock = Client::red_lock(&clients, "bench:red");
    if let Some(server) = hangs {
        server.pause();
    }
    Contender::timed(name, move || {
        let guard = lock.lock().expect("the lock is free");
        guard.unlock().expect("it was held");
    })
}

/// What a thread of the floor does next.
#[derive(Clone, Copy)]
enum Step {
    Acquire,
    Release,
}

fn raw(
    contender: &'static str,
    name: &'static str,
    servers: &[Server],
    enough: usize,
) -> Contender {
    let (done, all_done) = unbounded();
    let threads: Vec<Sender<Step>> = servers
        .iter()
        .map(|server| {
            let (steps, next_step) = bounded(2);
            let (lock, done) = (RawPair::of_lock(server.address(), name), done.clone());
            thread::Builder::new()
                .name("bench-fan-out".to_owned())
                .spawn(move || follow(lock, &next_step, &done))
                .expect("the system gives a thread");
            steps
        })
        .collect();
    let send_all = move |step| {
        for thread in &threads {
            thread.send(step).expect("the thread is there");
        }
    };
    Contender::timed(contender, move || {
        send_all(Step::Acquire);
        for _ in 0..enough {
            all_done.recv().expect("the threads are there");
        }
        send_all(Step::Release);
        // The replies to acquires that were not waited for come among them.
        for _ in enough..2 * SERVERS {
            all_done.recv().expect("the threads are there");
        }
    })
}

fn follow(mut lock: RawPair, steps: &Receiver<Step>, done: &Sender<()>) {
    for step in steps {
        match step {
            Step::Acquire => lock.acquire(),
            Step::Release => lock.release(),
        }
        if done.send(()).is_err() {
            break;
        }
    }
}
