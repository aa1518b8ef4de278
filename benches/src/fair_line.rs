//! A fair lock going down a line of waiters: how long each hand-over takes, for one waiter and for a thousand.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use wheellock::Client;
use wheellock_fixture::{Server, wait_until};

use crate::clock::now;
use crate::contender::Contender;

/// A line of one.
pub const ONE: &str = "one waiter";
/// A line of a thousand threads of one client.
pub const THOUSAND: &str = "1,000 waiters";

const NAME: &str = "bench:line";
/// The list in which they stand on the server.
const LINE: &str = "redisson_lock_queue:{bench:line}";
const LIMIT: Duration = Duration::from_secs(60);

/// Both lines; the first is what the other is compared with.
#[must_use]
pub fn fair_lines(server: &Server) -> Vec<Contender> {
    vec![line(ONE, server, 1), line(THOUSAND, server, 1000)]
}

/// A sample is the time from the release until the last of the line has had the lock and let go, divided by their number.
fn line(name: &'static str, server: &Server, waiters: u32) -> Contender {
    let client = || Client::connect(&server.url()).expect("the server is there");
    let (holder, waiting) = (client(), client());
    let mut watch = server.connection();
    Contender::new(name, move || {
        let guard = holder.fair_lock(NAME).lock().expect("nobody else wants it");
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
            wait_until("all stand in line and sleep", LIMIT, || {
                watch.command(&["LLEN", LINE]).integer() == i64::from(waiters)
                    && waiting.stats().waiters == waiters as usize
            });
            let start = now();
            drop(guard);
            all_done.wait();
            (now() - start) / waiters
        })
    })
}
