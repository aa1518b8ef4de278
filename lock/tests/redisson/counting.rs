//! Two Java and two Rust processes with several threads count under one lock, and no count is lost.

use std::net::SocketAddr;
use std::thread;

use wheellock::{Client, Error};
use wheellock_fixture::{RawConnection, Reply, Server};

use crate::child::{child, setting};
use crate::kind::{Held, Kind};
use crate::peer::Peer;
use crate::shared::{JAVA, LIMIT, SECOND_JAVA, SERVER, alone, fresh, start};

/// The threads of one process.
const THREADS: usize = 3;

/// How often each thread counts: more than ten thousand times in all of four processes.
pub(crate) const TIMES: usize = 840;

pub(crate) fn increments_of_two_java_and_two_rust_processes_all_count(kind: &Kind) {
    let _alone = alone();
    let name = fresh(kind.word);
    let counting = Counting {
        server: &SERVER,
        java: [&JAVA, &SECOND_JAVA],
        kind: kind.word,
        name: &name,
        times: TIMES,
        role: "count",
        settings: &[("KIND", kind.word), ("NAME", &name)],
    };
    counting.assert_all_count();
    assert_eq!(SERVER.command(&["EXISTS", &name]).integer(), 0, "the lock is left behind");
}

/// The one that counts, and under which name.
pub(crate) struct Counting<'a> {
    /// Where the counter is.
    pub(crate) server: &'a Server,
    pub(crate) java: [&'a Peer; 2],
    /// What the Java programs are told to count under.
    pub(crate) kind: &'a str,
    pub(crate) name: &'a str,
    /// How often each thread counts.
    pub(crate) times: usize,
    /// What our processes are, which [count](count_in_threads) too.
    pub(crate) role: &'a str,
    pub(crate) settings: &'a [(&'a str, &'a str)],
}

impl Counting<'_> {
    pub(crate) fn assert_all_count(&self) {
        let counter = format!("{}:counter", fresh(self.kind));
        let times = self.times.to_string();
        let settings = [self.settings, &[("COUNTER", &*counter), ("TIMES", &*times)]].concat();
        let mut rust = [(); 2].map(|()| child(self.role, &settings));
        let operation = format!("count counter={counter} times={times}");
        let counting: Vec<_> = self
            .java
            .iter()
            .flat_map(|java| [(); THREADS].map(|()| java.thread()))
            .map(|thread| thread.send(self.kind, self.name, &operation))
            .collect();
        for pending in counting {
            assert_eq!(pending.value(), times);
        }
        for process in &mut rust {
            let code = process.wait_for_exit(LIMIT * 4);
            assert_eq!(code, 0, "{}", process.output());
        }
        let sum: usize = self.server.command(&["GET", &counter]).text().parse().unwrap();
        assert_eq!(sum, (self.java.len() + rust.len()) * THREADS * self.times);
    }
}

/// In a child process: what one of ours does under a lock of one kind.
pub(crate) fn count_under(kind: &Kind) {
    let client = Client::connect(&setting("SERVER")).unwrap();
    let lock = (kind.open)(&client, &setting("NAME"));
    count_in_threads(&setting("SERVER"), || lock.lock(), Held::unlock);
}

/// In a child process: what one of ours does under any lock.
pub(crate) fn count_in_threads<G>(
    server: &str,
    lock: impl Fn() -> Result<G, Error> + Sync,
    unlock: impl Fn(G) -> Result<(), Error> + Sync,
) {
    let (counter, times) = (setting("COUNTER"), setting("TIMES").parse().unwrap());
    let address: SocketAddr =
        server.trim_start_matches("redis://").trim_end_matches('/').parse().unwrap();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            start(scope, || {
                let connection = RawConnection::open(address).unwrap();
                count(connection, &counter, times, &lock, &unlock);
            });
        }
    });
}

/// One thread: reads and writes the counter, each time under the lock.
pub(crate) fn count<G>(
    mut connection: RawConnection,
    counter: &str,
    times: usize,
    lock: &impl Fn() -> Result<G, Error>,
    unlock: &impl Fn(G) -> Result<(), Error>,
) {
    for _ in 0..times {
        let held = lock().unwrap();
        let count: u64 = match connection.command(&["GET", counter]) {
            Reply::Nil => 0,
            reply => reply.text().parse().unwrap(),
        };
        connection.command(&["SET", counter, &(count + 1).to_string()]);
        unlock(held).unwrap();
    }
}
