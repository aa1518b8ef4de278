//! A boxed timeout for each lock, which sends a script for this lock, as in Redisson before 3.44.
//!
//! All share one connection. The timeout writes and does not wait. A thread reads the replies, and
//! schedules the next timeout of each lock. The tick of 100 ms is Redisson's.

use std::collections::VecDeque;
use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use hashed_wheel::{HashedWheelTimer, Timeout};
use parking_lot::Mutex;

use crate::lock::raw::{connect, encode};
use crate::watchdog::holders::scripts::{ScriptLock, owner};
use crate::watchdog::holders::{Holder, HolderConfig, lock_name};

const TICK: Duration = Duration::from_millis(100);

/// A timer, a connection, and the locks that they renew.
#[derive(Debug)]
pub(crate) struct TimerTasks {
    shared: &'static Shared,
    scripts: ScriptLock,
    entries: Vec<Arc<Entry>>,
}

#[derive(Debug)]
struct Shared {
    timer: HashedWheelTimer,
    connection: Mutex<Connection>,
    renew: String,
    lease_millis: String,
    interval: Duration,
    lost: AtomicUsize,
}

/// The connection, and the locks whose replies are awaited.
#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    awaited: VecDeque<Arc<Entry>>,
}

#[derive(Debug)]
struct Entry {
    name: String,
    owner: String,
    /// With which a release would cancel it.
    timeout: Mutex<Option<Timeout>>,
}

impl Holder for TimerTasks {
    fn start(config: &HolderConfig) -> Self {
        let scripts = ScriptLock::new(config.address, config.lease);
        let stream = connect(config.address);
        let replies = stream.try_clone().expect("a socket can be shared");
        let timer = HashedWheelTimer::builder().tick_duration(TICK).build();
        let shared: &Shared = Box::leak(Box::new(Shared {
            timer: timer.expect("the system gives a thread"),
            connection: Mutex::new(Connection { stream, awaited: VecDeque::new() }),
            renew: scripts.renew.clone(),
            lease_millis: scripts.lease_millis.clone(),
            interval: config.interval(),
            lost: AtomicUsize::new(0),
        }));
        thread::Builder::new()
            .name("bench-replies".to_owned())
            .spawn(move || shared.read_replies(BufReader::new(replies)))
            .expect("the system gives a thread");
        Self { shared, scripts, entries: Vec::new() }
    }

    fn acquire(&mut self, held: usize) {
        for number in 0..held {
            let (name, owner) = (lock_name(number), owner(number));
            self.scripts.acquire(&name, &owner);
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
        let timeout = self.timer.schedule(self.interval, task).expect("the timer runs");
        *entry.timeout.lock() = Some(timeout);
    }

    fn renew(&self, entry: Arc<Entry>) {
        let Entry { name, owner, .. } = &*entry;
        let request = encode(&["EVALSHA", &self.renew, "1", name, &self.lease_millis, owner]);
        let mut connection = self.connection.lock();
        connection.awaited.push_back(entry);
        connection.stream.write_all(request.as_bytes()).expect("the server is there");
    }

    fn read_replies(&'static self, mut replies: impl Read) {
        let mut reply = [0; 4];
        // It fails when the server has ended.
        while replies.read_exact(&mut reply).is_ok() {
            let entry = self.connection.lock().awaited.pop_front().expect("it was asked for");
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
