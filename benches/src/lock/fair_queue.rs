//! Hand-overs of a fair lock along its queue, for one waiter and for a thousand.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use wheellock::Client;
use wheellock_fixture::{Server, wait_until};

use crate::harness::Contender;
use crate::harness::clock::now;

const NAME: &str = "bench:line";
/// The list of waiters on the server.
const QUEUE: &str = "redisson_lock_queue:{bench:line}";
const LIMIT: Duration = Duration::from_secs(60);

/// One waiter, with which a thousand threads of one client are compared.
#[must_use]
pub fn fair_queues(server: &Server) -> Vec<Contender> {
    vec![queue("one waiter", server, 1), queue("1,000 waiters", server, 1000)]
}

/// A sample is the time from the release until the last waiter has released the lock, divided by
/// the number of waiters.
fn queue(name: &'static str, server: &Server, waiters: u32) -> Contender {
    let client = || Client::connect(&server.url()).expect("the server is there");
    let (holder, waiting) = (client(), client());
    let mut observer = server.connection();
    Contender::new(name, move || {
        let guard = holder.fair_lock(NAME).lock().expect("the lock is free");
        let all_done = Barrier::new(waiters as usize + 1);
        thread::scope(|scope| {
            for _ in 0..waiters {
                let lock = waiting.fair_lock(NAME);
                let all_done = &all_done;
                let wait = move || {
                    drop(lock.lock().expect("its turn comes"));
                    all_done.wait();
                };
                thread::Builder::new()
                    .stack_size(256 * 1024)
                    .spawn_scoped(scope, wait)
                    .expect("the system gives a thread");
            }
            wait_until("all are queued and sleep", LIMIT, || {
                observer.command(&["LLEN", QUEUE]).integer() == i64::from(waiters)
                    && waiting.stats().waiters == waiters as usize
            });
            let start = now();
            drop(guard);
            all_done.wait();
            (now() - start) / waiters
        })
    })
}
