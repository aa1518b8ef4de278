//! Lock and unlock on five servers without a rival: a raw parallel fan-out, this crate, and this crate with one server
//! that hangs.

use std::thread;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use wheellock::{Client, RedLock};
use wheellock_fixture::Server;

use crate::contender::Contender;
use crate::raw::RawLock;

/// The floor: a thread for each server, which runs the same scripts on a plain socket; every answer is waited for.
pub const RAW_FAN_OUT: &str = "raw fan-out to 5";
/// The same, but the lock counts as taken when three have answered, as this crate has it.
const RAW_MAJORITY: &str = "raw fan-out, majority of 5";
/// This crate, watched.
pub const FIVE: &str = "wheellock on 5";
const ONE_HANGS: &str = "wheellock on 5, one hangs";

const SERVERS: usize = 5;
const MAJORITY: usize = 3;

/// Five servers that are well, and five of which one is stopped.
#[derive(Debug)]
pub struct RedServers {
    well: Vec<Server>,
    one_hangs: Vec<Server>,
}

impl RedServers {
    /// Starts all ten.
    #[must_use]
    pub fn start() -> Self {
        let five = || (0..SERVERS).map(|_| Server::start()).collect();
        Self { well: five(), one_hangs: five() }
    }
}

/// The floors and this crate; the first is the floor.
#[must_use]
pub fn red_locks(servers: &RedServers) -> Vec<Contender> {
    vec![
        raw(RAW_FAN_OUT, "bench:rawal", &servers.well, SERVERS),
        raw(RAW_MAJORITY, "bench:rawma", &servers.well, MAJORITY),
        wheellock(FIVE, &servers.well, None),
        wheellock(ONE_HANGS, &servers.one_hangs, servers.one_hangs.get(2)),
    ]
}

fn wheellock(name: &'static str, servers: &[Server], hangs: Option<&Server>) -> Contender {
    let client = |server: &Server| Client::connect(&server.url()).expect("the server is there");
    let clients: Vec<Client> = servers.iter().map(client).collect();
    let lock = RedLock::new(&clients, "bench:red");
    if let Some(server) = hangs {
        server.pause();
    }
    Contender::timed(name, move || {
        let guard = lock.lock().expect("nobody else wants it");
        guard.unlock().expect("it was held");
    })
}

/// What a thread of the floor is told to do.
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
            let (tell, told) = bounded(2);
            let (lock, done) = (RawLock::new(server.address(), name), done.clone());
            thread::Builder::new()
                .name("bench-fan-out".to_owned())
                .spawn(move || follow(lock, &told, &done))
                .expect("the system has room for a thread");
            tell
        })
        .collect();
    let tell_all = move |step| {
        for thread in &threads {
            thread.send(step).expect("the thread is there");
        }
    };
    Contender::timed(contender, move || {
        tell_all(Step::Acquire);
        for _ in 0..enough {
            all_done.recv().expect("the threads are there");
        }
        tell_all(Step::Release);
        // Those of the acquire that were not waited for come among them.
        for _ in enough..2 * SERVERS {
            all_done.recv().expect("the threads are there");
        }
    })
}

fn follow(mut lock: RawLock, told: &Receiver<Step>, done: &Sender<()>) {
    for step in told {
        match step {
            Step::Acquire => lock.acquire(),
            Step::Release => lock.release(),
        }
        if done.send(()).is_err() {
            break;
        }
    }
}
