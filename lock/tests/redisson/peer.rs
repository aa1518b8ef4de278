//! The Java program: started, sent commands, its replies awaited, killed.

use std::collections::BTreeMap;
use std::env;
use std::io::Write;
use std::process::{ChildStdin, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;
use wheellock::{Clock, SystemClock};
use wheellock_fixture::{Server, TestProcess, wait_until};

/// Longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(120);

/// A running Java program.
pub(crate) struct Peer {
    process: Mutex<TestProcess>,
    input: Mutex<ChildStdin>,
    awaited: Arc<Mutex<Awaited>>,
    /// The next number, of a command or of a thread. Only that it is new counts.
    next: AtomicU64,
}

/// The waiter for each answer. `None` once no more answers come.
type Awaited = Option<BTreeMap<u64, Sender<Answer>>>;

impl Peer {
    /// Starts the program on these servers. A setting is `NAME=VALUE`, one of those that its
    /// grammar lists.
    pub(crate) fn start(settings: &[&str], servers: &[&Server]) -> Self {
        let program = env::var("REDISSON_PEER").unwrap_or_else(|_| {
            panic!("REDISSON_PEER does not say where the Java program is: run ./run-tests --all")
        });
        let mut command = Command::new("java");
        // What starts soonest and leaves the processors to others: how fast it can be is not asked
        // here.
        command.args(["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]);
        // The jars of another version come before those that the program names.
        match env::var("REDISSON_JARS") {
            Ok(folder) => command.args(["-cp", &format!("{folder}/*:{program}"), "RedissonPeer"]),
            Err(_) => command.args(["-jar", &program]),
        };
        command.args(settings);
        command.args(servers.iter().map(|server| server.address().to_string()));
        let (process, input, lines) = TestProcess::spawn_for_talk(&mut command);
        match lines.recv_timeout(LIMIT) {
            Ok(line) if line.starts_with("ready ") => {}
            other => panic!("the Java program is not ready: {other:?}\n{}", process.output()),
        }
        let awaited = Arc::new(Mutex::new(Some(BTreeMap::new())));
        let told = Arc::clone(&awaited);
        let read = move || read_answers(&lines, &told);
        thread::Builder::new().name("answers".to_owned()).spawn(read).unwrap();
        Self {
            process: Mutex::new(process),
            input: Mutex::new(input),
            awaited,
            next: AtomicU64::new(0),
        }
    }

    /// One more thread of the program. Its commands are done one after the other.
    pub(crate) fn thread(&self) -> JavaThread<'_> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        JavaThread { peer: self, name: format!("thread-{number}") }
    }

    /// Kills the program. It has no chance to release anything.
    pub(crate) fn kill(&self) {
        self.process.lock().kill();
    }

    fn send(&self, thread: &str, command: &str) -> Pending {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = bounded(1);
        if let Some(awaited) = self.awaited.lock().as_mut() {
            awaited.insert(id, sender);
        }
        let line = format!("{id} {thread} {command}\n");
        // A failure means that the program has ended, and then the answer never comes.
        self.input.lock().write_all(line.as_bytes()).ok();
        Pending { receiver, command: command.to_owned() }
    }
}

/// Hands every answer to the one who waits for it, until the program ends.
fn read_answers(lines: &mpsc::Receiver<String>, awaited: &Mutex<Awaited>) {
    for line in lines {
        let at = now();
        let (id, answer) = parse(&line, at);
        let sender = awaited.lock().as_mut().and_then(|awaited| awaited.remove(&id));
        if let Some(sender) = sender {
            // A failure means that the answer is not wanted any more.
            sender.send(answer).ok();
        }
    }
    *awaited.lock() = None;
}

fn parse(line: &str, at: Instant) -> (u64, Answer) {
    let mut words = line.splitn(3, ' ');
    let (id, verdict) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let rest = words.next().unwrap_or_default().to_owned();
    let (Ok(id), "ok" | "error") = (id.parse(), verdict) else {
        panic!("the Java program does not keep to its grammar: {line:?}");
    };
    let said = if verdict == "ok" { Ok(rest) } else { Err(rest) };
    (id, Answer { at, said })
}

fn now() -> Instant {
    SystemClock.now()
}

/// A thread of the Java program.
pub(crate) struct JavaThread<'a> {
    peer: &'a Peer,
    name: String,
}

impl JavaThread<'_> {
    /// Has it do something, and does not wait. `operation` may have arguments: `tryLock wait=100
    /// lease=5000`.
    pub(crate) fn send(&self, kind: &str, name: &str, operation: &str) -> Pending {
        self.peer.send(&self.name, &format!("{kind} {name} {operation}"))
    }

    /// Waits until this thread sleeps for a lock. The message of a write lock's release wakes only
    /// the Redisson waiters that sleep by then.
    pub(crate) fn wait_until_asleep(&self) {
        wait_until("it sleeps", LIMIT, || self.call("peer", "-", "sleeps") == "true");
    }

    /// Has it do something, and answers what it answered. An exception fails the test.
    pub(crate) fn call(&self, kind: &str, name: &str, operation: &str) -> String {
        self.send(kind, name, operation).value()
    }
}

/// A command whose answer is awaited.
pub(crate) struct Pending {
    receiver: Receiver<Answer>,
    command: String,
}

impl Pending {
    /// Whether there is no answer yet.
    pub(crate) fn is_under_way(&self) -> bool {
        self.receiver.is_empty()
    }

    /// Waits for the answer.
    pub(crate) fn answer(self) -> Answer {
        match self.receiver.recv_timeout(LIMIT) {
            Ok(answer) => answer,
            Err(error) => panic!("Java was told {:?}: {error}", self.command),
        }
    }

    /// Waits for the answer and takes its value. An exception fails the test.
    pub(crate) fn value(self) -> String {
        let command = self.command.clone();
        match self.answer().said {
            Ok(value) => value,
            Err(thrown) => panic!("Java was told {command:?} and threw {thrown}"),
        }
    }

    /// Waits for the answer, which must be an exception of this type.
    pub(crate) fn throws(self, exception: &str) {
        let command = self.command.clone();
        let said = self.answer().said;
        let matches =
            said.as_ref().is_err_and(|thrown| thrown.split(' ').next() == Some(exception));
        assert!(matches, "Java was told {command:?} and did not throw {exception}: {said:?}");
    }
}

/// What the Java program answered.
pub(crate) struct Answer {
    /// When it was read.
    pub(crate) at: Instant,
    /// The value, or the exception and its message.
    pub(crate) said: Result<String, String>,
}
