//! A boxed timeout for each lock, which sends a script for this lock on the one connection: Redisson before 3.44.
//!
//! The timeout writes and does not wait. A thread reads the replies and schedules the next timeout of each. The tick
//! is Redisson's, a tenth of a second.

use std::collections::VecDeque;
use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use hashed_wheel::{HashedWheelTimer, Timeout};
use parking_lot::Mutex;

use crate::raw::encode;
use crate::renewing::keepers::taking::{Taker, owner};
use crate::renewing::keepers::{Keeper, Target, lock_name};

const TICK: Duration = Duration::from_millis(100);

/// A timer, a connection and what they renew.
#[derive(Debug)]
pub(crate) struct TimerTasks {
    shared: &'static Shared,
    taker: Taker,
    entries: Vec<Arc<Entry>>,
}

#[derive(Debug)]
struct Shared {
    timer: HashedWheelTimer,
    line: Mutex<Line>,
    renew: String,
    lease_millis: String,
    interval: Duration,
    lost: AtomicUsize,
}

/// The connection, and whose replies are awaited.
#[derive(Debug)]
struct Line {
    stream: TcpStream,
    awaited: VecDeque<Arc<Entry>>,
}

#[derive(Debug)]
struct Entry {
    name: String,
    owner: String,
    /// For whoever releases the lock.
    timeout: Mutex<Option<Timeout>>,
}

impl Keeper for TimerTasks {
    fn start(target: &Target) -> Self {
        let taker = Taker::new(target.address, target.lease);
        let stream = TcpStream::connect(target.address).expect("the server listens");
        stream.set_nodelay(true).expect("a socket has the option");
        let replies = stream.try_clone().expect("a socket can be shared");
        let timer = HashedWheelTimer::builder().tick_duration(TICK).build();
        let shared: &Shared = Box::leak(Box::new(Shared {
            timer: timer.expect("the system gives a thread"),
            line: Mutex::new(Line { stream, awaited: VecDeque::new() }),
            renew: taker.renew.clone(),
            lease_millis: taker.lease_millis.clone(),
            interval: target.interval(),
            lost: AtomicUsize::new(0),
        }));
        thread::Builder::new()
            .name("bench-replies".to_owned())
            .spawn(move || shared.read_replies(BufReader::new(replies)))
            .expect("the system gives a thread");
        Self { shared, taker, entries: Vec::new() }
    }

    fn take(&mut self, held: usize) {
        for number in 0..held {
            let (name, owner) = (lock_name(number), owner(number));
            self.taker.take(&name, &owner);
            let entry = Arc::new(Entry { name, owner, timeout: Mutex::new(None) });
            self.shared.schedule(&entry);
            self.entries.push(entry);
        }
    }

    fn lost(&self) -> usize {
        self.shared.lost.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn schedule(&'static self, entry: &Arc<Entry>) {
        let task = {
            let entry = Arc::clone(entry);
            move || self.renew(entry)
        };
        let timeout = self.timer.schedule(self.interval, task).expect("it has no bound and runs");
        *entry.timeout.lock() = Some(timeout);
    }

    fn renew(&self, entry: Arc<Entry>) {
        let Entry { name, owner, .. } = &*entry;
        let request = encode(&["EVALSHA", &self.renew, "1", name, &self.lease_millis, owner]);
        let mut line = self.line.lock();
        line.awaited.push_back(entry);
        line.stream.write_all(request.as_bytes()).expect("the server is there");
    }

    fn read_replies(&'static self, mut replies: impl Read) {
        let mut reply = [0; 4];
        // It fails when the server ends.
        while replies.read_exact(&mut reply).is_ok() {
            let entry = self.line.lock().awaited.pop_front().expect("it was asked for");
            match &reply {
                b":1\r\n" => self.schedule(&entry),
                b":0\r\n" => {
                    self.lost.fetch_add(1, Ordering::Relaxed);
                }
                other => unreachable!("the server answered {}", other.escape_ascii()),
            }
        }
    }
}
