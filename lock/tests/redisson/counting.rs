//! Two Java and two Rust processes, several threads each, count in turn under one lock, and no step is lost.

use std::thread;

use wheellock::Client;
use wheellock_fixture::{RawConnection, Reply};

use crate::child::{child, setting};
use crate::kind::Kind;
use crate::shared::{JAVA, LIMIT, SECOND_JAVA, SERVER, alone, fresh, start};

/// The threads of one process.
const THREADS: usize = 3;

/// How often each thread counts: more than ten thousand times in all of four processes.
const TIMES: usize = 840;

pub(crate) fn increments_of_two_java_and_two_rust_processes_all_count(kind: &Kind) {
    let _alone = alone();
    let name = fresh(kind.word);
    let counter = format!("{name}:counter");
    let java = [&*JAVA, &*SECOND_JAVA];
    let mut rust = [0, 1].map(|_| child("count", kind, &[("NAME", &name), ("COUNTER", &counter)]));
    let operation = format!("count counter={counter} times={TIMES}");
    let counting: Vec<_> = java
        .iter()
        .flat_map(|java| (0..THREADS).map(|_| java.thread().send(kind.word, &name, &operation)))
        .collect();
    for pending in counting {
        assert_eq!(pending.value(), TIMES.to_string());
    }
    for process in &mut rust {
        let code = process.wait_for_exit(LIMIT * 4);
        assert_eq!(code, 0, "{}", process.output());
    }
    let sum: usize = SERVER.command(&["GET", &counter]).text().parse().unwrap();
    assert_eq!(sum, (java.len() + rust.len()) * THREADS * TIMES);
    assert_eq!(SERVER.command(&["EXISTS", &name]).integer(), 0, "the lock is left behind");
}

/// In a child process: what one of ours does.
pub(crate) fn count_in_threads(kind: &Kind) {
    let url = setting("SERVER");
    let client = Client::connect(&url).unwrap();
    let lock = (kind.open)(&client, &setting("NAME"));
    let counter = setting("COUNTER");
    let address = url.trim_start_matches("redis://").trim_end_matches('/').parse().unwrap();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            start(scope, || {
                let mut connection = RawConnection::open(address).unwrap();
                for _ in 0..TIMES {
                    let held = lock.lock().unwrap();
                    let count: u64 = match connection.command(&["GET", &counter]) {
                        Reply::Nil => 0,
                        reply => reply.text().parse().unwrap(),
                    };
                    connection.command(&["SET", &counter, &(count + 1).to_string()]);
                    held.unlock().unwrap();
                }
            });
        }
    });
}
