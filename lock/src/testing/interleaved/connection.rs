//! The connections for calls, in many interleavings.
//!
//! The server is a thread for each connection that answers each ECHO. In whichever order the
//! threads connect, write, read, give up and wake, each call gets its own reply or a true error
//! about its outcome, and the next call finds a connection.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use hashed_wheel::Clock;

use crate::model::release_no::ReleaseNo;
use crate::model::sync::{Condvar, Mutex};
use crate::ops::value::{ServerTime, Value};
use crate::store::failure::Failure;
use crate::store::listener::NoListener;
use crate::store::redis::address::url::{Access, Address, Peer as ServerAddress};
use crate::store::redis::net::connection::Broken;
use crate::store::redis::net::deadline::Deadline;
use crate::store::redis::net::socket::{Carrier, Network, Peer, set_network};
use crate::store::redis::node::call_connection::UnreadRequest;
use crate::store::redis::node::call_pool::{CallPool, Taken, hash_of};
use crate::store::redis::node::pool::Limits;
use crate::store::redis::node::server::{Server, script_commands};
use crate::store::redis::node::waiting_call::NoReply;
use crate::store::redis::resp::decode::Decoder;
use crate::store::redis::resp::encode::Command;
use crate::store::redis::resp::pubsub::Channels;
use crate::store::redis::sentinel::master::MasterEndpoint;
use crate::store::shutdown::CallGeneration;
use crate::store::unread::{ReleaseReplies, ReleaseReply, UnreadReleases};
use crate::testing::modelled::sync::{
    SystemClock, below, explore, let_time_move, move_time, thread,
};

const LONG: Duration = Duration::from_secs(20);
const MILLISECOND: Duration = Duration::from_millis(1);

/// The connections, what the server has run, and what the threads were told.
#[derive(Clone)]
struct TestConnections {
    calls: Arc<CallPool>,
    replies: Arc<ReleaseReplies>,
    net: Net,
}

/// The server. Clones are the same.
#[derive(Clone, Default)]
struct Net {
    log: Arc<std::sync::Mutex<Log>>,
    /// How long a reply takes to a text that begins so.
    delay: Option<Duration>,
    delayed: &'static str,
    refuses: bool,
}

#[derive(Default)]
struct Log {
    has_run: BTreeSet<String>,
    not_sent: BTreeSet<String>,
    /// The detached calls, and the numbers of those that were not sent as such.
    detached: Vec<String>,
    called: BTreeSet<u64>,
    links: Vec<Arc<Link>>,
    /// What has run, in this order.
    order: Vec<String>,
    /// What each thread of the client has written.
    written: BTreeMap<String, Vec<u8>>,
}

/// A connection, as the server sees it.
struct Link {
    peer: Peer,
    log: Arc<std::sync::Mutex<Log>>,
    input: Mutex<Input>,
    changed: Condvar,
}

#[derive(Default)]
struct Input {
    bytes: VecDeque<u8>,
    is_closed: bool,
}

/// What the client writes on a connection.
struct Incoming(Arc<Link>);

struct ToLink(Arc<Link>);

impl Carrier for ToLink {
    fn carry(&self, bytes: Vec<u8>) {
        let thread = format!("{:?}", thread::current().id());
        self.0.log.lock().unwrap().written.entry(thread).or_default().extend(&bytes);
        self.0.input.lock().bytes.extend(bytes);
        self.0.changed.notify_all();
    }

    fn close(&self) {
        self.0.close();
    }
}

impl Link {
    /// Waits for so long, or until the connection is closed.
    fn pause(&self, length: Duration) {
        let ends = SystemClock.now() + length;
        let mut input = self.input.lock();
        while !input.is_closed && SystemClock.now() < ends {
            let left = ends.saturating_duration_since(SystemClock.now());
            self.changed.wait_for(&mut input, left);
        }
    }

    fn close(&self) {
        self.input.lock().is_closed = true;
        self.changed.notify_all();
    }
}

impl Read for Incoming {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut input = self.0.input.lock();
        while input.bytes.is_empty() && !input.is_closed {
            self.0.changed.wait(&mut input);
        }
        let length = input.bytes.read(buffer)?;
        drop(input);
        self.0.peer.delivered(length);
        Ok(length)
    }
}

impl Network for Net {
    fn connect(&self, _: u16, peer: Peer) -> Arc<dyn Carrier> {
        let (input, changed) = (Mutex::default(), Condvar::new());
        let log = Arc::clone(&self.log);
        let link = Arc::new(Link { peer, log, input, changed });
        self.log.lock().unwrap().links.push(Arc::clone(&link));
        if self.refuses {
            link.peer.shut();
            return Arc::new(ToLink(link));
        }
        let (net, own) = (self.clone(), Arc::clone(&link));
        thread::spawn(move || net.serve(&own));
        Arc::new(ToLink(link))
    }
}

/// The reply to a command with which a connection begins.
fn of_the_handshake(words: &[Value]) -> Option<&'static [u8]> {
    let is = |value: &Value, word: &str| matches!(value, Value::Text(text) if text == word);
    match words {
        [time] if is(time, "TIME") => Some(b"*2\r\n$1\r\n1\r\n$1\r\n0\r\n"),
        // Whether scripts run.
        [eval, ..] if is(eval, "EVAL") || is(eval, "EVALSHA") => Some(b":1\r\n"),
        _ => None,
    }
}

impl Net {
    /// Answers until the connection ends.
    fn serve(&self, link: &Arc<Link>) {
        link.peer.open();
        let (mut decoder, mut requests) = (Decoder::new(), Incoming(Arc::clone(link)));
        while let Ok(Value::Array(words)) = decoder.next(&mut requests) {
            let Some(Value::Text(text)) = words.last() else { panic!("{words:?}") };
            if let Some(reply) = of_the_handshake(&words) {
                link.peer.reply(reply);
                continue;
            }
            let is_new = self.log.lock().unwrap().has_run.insert(text.clone());
            assert!(is_new, "{text} was sent twice");
            self.log.lock().unwrap().order.push(text.clone());
            if let Some(delay) = self.delay.filter(|_| text.starts_with(self.delayed)) {
                link.pause(delay);
            }
            let reply = format!("${}\r\n{text}\r\n", text.len());
            // In two parts, mostly.
            let (first, rest) = reply.as_bytes().split_at(below(reply.len()));
            link.peer.reply(first);
            link.peer.reply(rest);
        }
    }

    /// The server ends all connections.
    fn shut(&self) {
        let links = std::mem::take(&mut self.log.lock().unwrap().links);
        for link in links {
            link.peer.shut();
            link.close();
        }
    }
}

impl TestConnections {
    fn new() -> Self {
        Self::with(Net::default())
    }

    /// Fewer connections than threads, so that some wait.
    fn with(net: Net) -> Self {
        Self::of(net, 2)
    }

    /// With so many connections at most.
    fn of(net: Net, most: usize) -> Self {
        set_network(Arc::new(net.clone()));
        let (calls, replies) = calls_of(Limits { near: most, far: most });
        Self { calls, replies, net }
    }

    /// What a call ended with that has got its own reply.
    fn call(&self, text: &str, time: Duration) -> Result<(), NoReply> {
        self.call_about(text, text, time)
    }

    fn call_about(&self, key: &str, text: &str, time: Duration) -> Result<(), NoReply> {
        let mut deadline = Deadline::after(time);
        let answer = self.calls.call(echo(text), key, &mut deadline, CallGeneration(0));
        self.note(text, answer.as_ref().err());
        answer.map(|answer| {
            assert_eq!(answer.value, Value::Text(text.to_owned()), "another's reply");
        })
    }

    /// A connection for a caller alone.
    fn take(&self, time: Duration) -> Taken<'_> {
        self.calls.take(&mut Deadline::after(time), CallGeneration(0)).unwrap()
    }

    /// Opens two connections, which are idle then.
    fn open_two(&self) {
        for taken in [self.take(LONG), self.take(LONG)] {
            taken.give_back(SystemClock.now());
        }
    }

    /// Reads until no reply is unread, for `time` at each look.
    fn read_all_unread(&self, time: Duration) {
        while self.calls.read_unread(time) {
            thread::yield_now();
        }
    }

    fn detach(&self, text: &str, time: Duration) -> Result<(), NoReply> {
        let number = {
            let mut log = self.net.log.lock().unwrap();
            log.detached.push(text.to_owned());
            log.detached.len() as u64 - 1
        };
        let packed = Command::of(&["ECHO", text]);
        let unread =
            UnreadReleases { releases: vec![ReleaseNo(number)], sent_at: SystemClock.now() };
        let (bytes, key) = (packed.len(), hash_of(text));
        let request = UnreadRequest { unread, script: None, not_after: ServerTime(0), bytes, key };
        let mut deadline = Deadline::after(time);
        match self.calls.send_unread(&packed, request, &mut deadline, CallGeneration(0)) {
            Ok(()) => Ok(()),
            Err(NoReply::Broken(Broken::NotSent(error)))
                if error.kind() == io::ErrorKind::WouldBlock =>
            {
                self.net.log.lock().unwrap().called.insert(number);
                self.call(text, time)
            }
            Err(error) => {
                self.net.log.lock().unwrap().called.insert(number);
                self.note(text, Some(&error));
                Err(error)
            }
        }
    }

    /// Each unread request that was sent has one reply: its own, or a failure.
    fn check_unread(&self) {
        let replies = self.replies.take();
        let log = self.net.log.lock().unwrap();
        let mut replied = log.called.clone();
        for ReleaseReply { unread, reply } in replies {
            for ReleaseNo(number) in unread.releases {
                assert!(replied.insert(number), "two replies to {number}");
                let own = &log.detached[usize::try_from(number).unwrap()];
                match &reply {
                    // An echo is no reply to a release.
                    Err(Failure::Refused { message, .. }) => {
                        // A long message is cut.
                        let own = own.trim_end();
                        assert!(message.contains(own), "{message} in place of {own}");
                    }
                    Err(_) => {}
                    Ok(reply) => panic!("{reply:?}"),
                }
            }
        }
        assert_eq!(replied.len(), log.detached.len(), "each has a reply");
    }

    fn note(&self, text: &str, error: Option<&NoReply>) {
        if let Some(NoReply::NoConnection(_) | NoReply::Broken(Broken::NotSent(_))) = error {
            self.net.log.lock().unwrap().not_sent.insert(text.to_owned());
        }
    }

    /// All threads have gone. What is unread is read, and connections can be had.
    fn check_end(&self) {
        self.calls.wait_until_unused(LONG);
        // An idle connection that has ended shows it only when it is written to.
        let mut last = self.call("last", LONG);
        while let Err(NoReply::Broken(Broken::NotSent(_))) = last {
            self.net.log.lock().unwrap().not_sent.remove("last");
            last = self.call("last", LONG);
        }
        last.unwrap();
        self.calls.close(LONG);
        self.net.shut();
        self.check_unread();
        let log = self.net.log.lock().unwrap();
        let both: Vec<_> = log.not_sent.intersection(&log.has_run).collect();
        assert!(both.is_empty(), "{both:?} was not sent, and has run");
    }
}

/// The connections to the server, and where unread replies go.
fn calls_of(limits: Limits) -> (Arc<CallPool>, Arc<ReleaseReplies>) {
    let address = Address { host: "127.0.0.1".to_owned(), port: 7000 };
    let endpoint = MasterEndpoint::Fixed(ServerAddress::Tcp(address));
    let listener = Weak::<NoListener>::new();
    let channels = Channels::Everywhere;
    let (access, replies) = (Access::default(), Arc::<ReleaseReplies>::default());
    let server = Server::new(endpoint, access, LONG, channels, listener, Arc::clone(&replies));
    (CallPool::new(Arc::new(server), limits), replies)
}

/// Encodes a request for the text.
fn echo(text: &str) -> impl Fn(&mut Vec<u8>) {
    let request = Command::of(&["ECHO", text]);
    move |requests| requests.extend_from_slice(&request)
}

fn spawn(
    setup: &TestConnections,
    run: impl FnOnce(&TestConnections) + Send + 'static,
) -> thread::JoinHandle<()> {
    let setup = setup.clone();
    thread::spawn(move || run(&setup))
}

fn join(threads: Vec<thread::JoinHandle<()>>) {
    for thread in threads {
        thread.join().unwrap();
    }
}

/// Joins the threads while time moves, in small steps.
fn join_in_time(threads: Vec<thread::JoinHandle<()>>) {
    let is_over = Arc::new(AtomicBool::new(false));
    let clock = {
        let is_over = Arc::clone(&is_over);
        thread::spawn(move || {
            while !is_over.load(Ordering::SeqCst) {
                move_time(MILLISECOND / 4);
                thread::yield_now();
            }
        })
    };
    join(threads);
    is_over.store(true, Ordering::SeqCst);
    clock.join().unwrap();
}

#[test]
fn each_call_gets_its_own_reply_whoever_writes_and_reads() {
    explore(5_000, || {
        let setup = TestConnections::new();
        let threads = (0..4).map(|number| {
            spawn(&setup, move |setup| {
                for round in 0..3 {
                    setup.call(&format!("{number}.{round}"), LONG).unwrap();
                }
            })
        });
        join(threads.collect());
        setup.check_end();
    });
}

#[test]
fn detached_calls_are_read_by_whoever_comes_next() {
    explore(4_000, || {
        let setup = TestConnections::new();
        let mut threads: Vec<_> = (0..3)
            .map(|number| {
                spawn(&setup, move |setup| {
                    for round in 0..2 {
                        let text = format!("{number}.{round}");
                        if number == round {
                            setup.call(&text, LONG).unwrap();
                        } else {
                            setup.detach(&text, LONG).unwrap();
                        }
                    }
                })
            })
            .collect();
        // As the renewal thread does.
        threads.push(spawn(&setup, |setup| {
            for _ in 0..3 {
                setup.calls.read_unread(LONG);
                thread::yield_now();
            }
        }));
        join(threads);
        setup.check_end();
    });
}

#[test]
fn a_call_that_gives_up_leaves_the_others_alone() {
    let count = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&count);
    let runs = explore(3_000, move || {
        let_time_move();
        let setup = TestConnections::new();
        let threads = (0..4).map(|number| {
            let counted = Arc::clone(&counted);
            spawn(&setup, move |setup| {
                for round in 0..2 {
                    let text = format!("{number}.{round}");
                    let time = if number < 2 { MILLISECOND * (1 + round) } else { LONG };
                    let ended = match (number + round) % 3 {
                        0 => setup.detach(&text, time),
                        _ => setup.call(&text, time),
                    };
                    match ended {
                        Ok(()) => {}
                        Err(_) if number < 2 => drop(counted.fetch_add(1, Ordering::SeqCst)),
                        // The thread that wrote for it ran out of time.
                        Err(NoReply::Broken(Broken::NotSent(error))) => {
                            assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
                        }
                        Err(error) => panic!("{error:?}"),
                    }
                }
            })
        });
        join_in_time(threads.collect());
        setup.check_end();
    });
    assert!(std::env::var("SCHEDULE").is_ok() || count.load(Ordering::SeqCst) > runs as u64 / 10);
}

#[test]
fn a_call_that_begins_to_read_late_ends_by_its_deadline() {
    const LIMIT: Duration = Duration::from_millis(400);
    const SLACK: Duration = Duration::from_millis(40);
    explore(400, || {
        let_time_move();
        // One is answered in the middle of the other's time, which reads from then on in vain.
        let net = Net { delay: Some(LIMIT / 2), ..Net::default() };
        let setup = TestConnections::with(net);
        let threads = (0..3).map(|number| {
            spawn(&setup, move |setup| {
                let begun = SystemClock.now();
                drop(setup.call(&number.to_string(), LIMIT));
                let took = SystemClock.now().saturating_duration_since(begun);
                assert!(took <= LIMIT + SLACK, "it took {took:?}");
            })
        });
        join_in_time(threads.collect());
        setup.net.shut();
    });
}

#[test]
fn the_end_of_the_connections_ends_every_call_on_them() {
    explore(5_000, || {
        let setup = TestConnections::new();
        let mut threads: Vec<_> = (0..3)
            .map(|number| {
                spawn(&setup, move |setup| {
                    for round in 0..2 {
                        let text = format!("{number}.{round}");
                        if (number + round) % 3 == 0 {
                            drop(setup.detach(&text, LONG));
                        } else {
                            drop(setup.call(&text, LONG));
                        }
                    }
                })
            })
            .collect();
        threads.push(spawn(&setup, |setup| {
            thread::yield_now();
            setup.net.shut();
        }));
        join(threads);
        setup.check_end();
    });
}

#[test]
fn an_abort_ends_every_call_and_later_ones_get_connections() {
    explore(3_000, || {
        let setup = TestConnections::new();
        let mut threads: Vec<_> = (0..3)
            .map(|number| {
                spawn(&setup, move |setup| {
                    drop(setup.call(&format!("{number}.0"), LONG));
                    drop(setup.detach(&format!("{number}.1"), LONG));
                })
            })
            .collect();
        threads.push(spawn(&setup, |setup| {
            thread::yield_now();
            setup.calls.abort_calls();
        }));
        join(threads);
        setup.calls.wait_until_unused(LONG);
        let mut deadline = Deadline::after(LONG);
        let later = setup.calls.call(echo("later"), "later", &mut deadline, CallGeneration(1));
        assert_eq!(later.unwrap().value, Value::Text("later".to_owned()));
        setup.calls.close(LONG);
        setup.net.shut();
    });
}

#[test]
fn a_call_follows_the_unread_release_of_its_key() {
    explore(500, || {
        let setup = TestConnections::new();
        // Two connections. The one that is used last owes the reply.
        setup.open_two();
        setup.detach("release", LONG).unwrap();
        // The other one is used last from now on.
        let (owing, other) = (setup.take(LONG), setup.take(LONG));
        owing.give_back(SystemClock.now());
        other.give_back(SystemClock.now());
        setup.call_about("release", "acquire", LONG).unwrap();
        assert_eq!(setup.net.log.lock().unwrap().order, ["release", "acquire"]);
        setup.check_end();
    });
}

/// The thread that wrote for the call, wholly or in part, ran out of time.
fn is_to_be_repeated(error: &NoReply) -> bool {
    let NoReply::Broken(Broken::NotSent(error) | Broken::Unanswered(error)) = error else {
        return false;
    };
    error.kind() == io::ErrorKind::ConnectionAborted
}

#[test]
fn a_returned_connection_passes_waiters_that_have_given_up() {
    explore(2_000, || {
        let_time_move();
        let setup = TestConnections::of(Net::default(), 1);
        let taken = setup.take(LONG);
        let threads = vec![
            spawn(&setup, |setup| drop(setup.call("hasty", MILLISECOND))),
            spawn(&setup, |setup| drop(setup.call("also hasty", MILLISECOND))),
            spawn(&setup, |setup| {
                let ends = |attempt: &u32| match setup.call(&attempt.to_string(), LONG) {
                    Ok(()) => true,
                    Err(error) => {
                        assert!(is_to_be_repeated(&error), "{error:?}");
                        false
                    }
                };
                (0..).find(ends);
            }),
        ];
        let clock = spawn(&setup, |_| {
            for _ in 0..8 {
                move_time(MILLISECOND / 4);
                thread::yield_now();
            }
        });
        thread::yield_now();
        taken.give_back(SystemClock.now());
        // Time stands still once the hasty threads have given up.
        join(threads);
        clock.join().unwrap();
        setup.check_end();
    });
}

/// The largest number of requests and of bytes that a thread has written, when `count` calls with a
/// text of so many letters wait for one connection.
fn largest_batches(count: usize, letters: usize) -> (usize, usize) {
    let largest = Arc::new(std::sync::Mutex::new((0, 0)));
    let found = Arc::clone(&largest);
    explore(100, move || {
        let setup = TestConnections::of(Net::default(), 1);
        let taken = setup.take(LONG);
        let threads = (0..count).map(|number| {
            spawn(&setup, move |setup| {
                setup.call(&format!("{number:0letters$}"), LONG).unwrap();
            })
        });
        let threads = threads.collect();
        for _ in 0..10 * count {
            thread::yield_now();
        }
        taken.give_back(SystemClock.now());
        join(threads);
        for written in setup.net.log.lock().unwrap().written.values() {
            let requests = written.windows(4).filter(|word| word == b"ECHO").count();
            let mut found = found.lock().unwrap();
            *found = (found.0.max(requests), found.1.max(written.len()));
        }
        setup.check_end();
    });
    let largest = *largest.lock().unwrap();
    largest
}

#[test]
fn a_batch_has_at_most_sixteen_requests() {
    let (requests, _) = largest_batches(20, 4);
    assert_eq!(requests, 16);
}

#[test]
fn a_batch_ends_at_sixteen_kilobytes() {
    let (requests, bytes) = largest_batches(8, 5_000);
    assert_eq!(requests, 4);
    assert!(bytes < 16 * 1024 + 5_100, "{bytes}");
}

#[test]
fn a_caller_that_wants_a_connection_alone_is_in_no_batch() {
    explore(1_000, || {
        let setup = TestConnections::of(Net::default(), 1);
        let taken = setup.take(LONG);
        let threads = (0..4).map(|number| {
            spawn(&setup, move |setup| match number % 2 {
                0 => setup.take(LONG).give_back(SystemClock.now()),
                _ => setup.call(&number.to_string(), LONG).unwrap(),
            })
        });
        let threads = threads.collect();
        thread::yield_now();
        taken.give_back(SystemClock.now());
        join(threads);
        setup.check_end();
    });
}

#[test]
fn a_reader_that_gives_up_passes_the_reading_on() {
    let count = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&count);
    let runs = explore(1_000, move || {
        let_time_move();
        let net = Net { delay: Some(MILLISECOND * 10), ..Net::default() };
        let setup = TestConnections::of(net, 1);
        let taken = setup.take(LONG);
        let counted = Arc::clone(&counted);
        let threads = vec![
            spawn(&setup, move |setup| {
                let ended = setup.call("hasty", MILLISECOND * 2);
                if let Err(NoReply::Broken(Broken::Unanswered(_))) = ended {
                    counted.fetch_add(1, Ordering::SeqCst);
                }
            }),
            // Gives up at about the moment at which the reading is passed on.
            spawn(&setup, |setup| drop(setup.call("also hasty", MILLISECOND * 2))),
            spawn(&setup, |setup| match setup.call("patient", LONG) {
                Ok(()) => {}
                Err(error) => assert!(is_to_be_repeated(&error), "{error:?}"),
            }),
        ];
        for _ in 0..5 {
            thread::yield_now();
        }
        taken.give_back(SystemClock.now());
        join_in_time(threads);
        setup.net.shut();
    });
    assert!(std::env::var("SCHEDULE").is_ok() || count.load(Ordering::SeqCst) > runs as u64 / 10);
}

#[test]
fn a_silent_connection_is_closed_once_nobody_waits() {
    explore(100, || {
        let_time_move();
        let net = Net { delay: Some(MILLISECOND * 1000), ..Net::default() };
        let setup = TestConnections::of(net, 1);
        join_in_time(vec![spawn(&setup, |setup| {
            setup.call("a", MILLISECOND * 300).unwrap_err();
        })]);
        let links = setup.net.log.lock().unwrap().links.clone();
        assert!(links.iter().all(|link| link.input.lock().is_closed));
        setup.calls.wait_until_unused(LONG);
    });
}

#[test]
fn a_call_uses_no_connection_that_is_silent() {
    explore(100, || {
        let_time_move();
        let net = Net { delay: Some(MILLISECOND * 1000), delayed: "slow", ..Net::default() };
        let setup = TestConnections::with(net);
        join_in_time(vec![spawn(&setup, |setup| {
            let begun = SystemClock.now();
            setup.call("slow", MILLISECOND * 100).unwrap_err();
            while SystemClock.now() < begun + MILLISECOND * 300 {
                thread::yield_now();
            }
            setup.call("quick", LONG).unwrap();
            let took = SystemClock.now().saturating_duration_since(begun);
            assert!(took < MILLISECOND * 800, "the call took {took:?}");
        })]);
        setup.net.shut();
    });
}

#[test]
fn second_connection_opens_for_callers_queued_together() {
    explore(1_000, || {
        let setup = TestConnections::new();
        let count = Arc::new(AtomicU64::new(0));
        let threads = (0..2).map(|_| {
            let count = Arc::clone(&count);
            spawn(&setup, move |setup| {
                let taken = setup.take(LONG);
                count.fetch_add(1, Ordering::SeqCst);
                while count.load(Ordering::SeqCst) < 2 {
                    thread::yield_now();
                }
                taken.give_back(SystemClock.now());
            })
        });
        join(threads.collect());
        setup.check_end();
    });
}

#[test]
fn a_call_after_an_abort_outlives_an_earlier_attempt_to_connect() {
    explore(1_000, || {
        let setup = TestConnections::new();
        let early = spawn(&setup, |setup| drop(setup.call("early", LONG)));
        thread::yield_now();
        setup.calls.abort_calls();
        let too_late = setup.call("began before the abort", LONG);
        assert!(matches!(too_late, Err(NoReply::NoConnection(Failure::Closed))), "{too_late:?}");
        // An early caller may have written for the late one to a connection that was shut.
        let late = loop {
            let mut deadline = Deadline::after(LONG);
            match setup.calls.call(echo("late"), "late", &mut deadline, CallGeneration(1)) {
                Err(NoReply::Broken(Broken::NotSent(_))) => {}
                ended => break ended,
            }
        };
        assert_eq!(late.unwrap().value, Value::Text("late".to_owned()));
        join(vec![early]);
        setup.calls.close(LONG);
        setup.net.shut();
    });
}

#[test]
fn the_calls_behind_a_writer_without_time_are_told_to_try_again() {
    let count = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&count);
    explore(300, move || {
        let_time_move();
        let net = Net { delay: Some(MILLISECOND * 10), ..Net::default() };
        let setup = TestConnections::of(net, 1);
        let taken = setup.take(LONG);
        // Longer than what a socket accepts.
        let text = |name: &str| format!("{name:5000}");
        let mut threads =
            vec![spawn(&setup, move |setup| drop(setup.call(&text("hasty"), MILLISECOND * 2)))];
        threads.extend(["a", "b"].map(|name| {
            let counted = Arc::clone(&counted);
            spawn(&setup, move |setup| match setup.call(&text(name), LONG) {
                Ok(()) => {}
                Err(error) => {
                    counted.fetch_add(1, Ordering::SeqCst);
                    assert!(is_to_be_repeated(&error), "{error:?}");
                }
            })
        }));
        for _ in 0..5 {
            thread::yield_now();
        }
        taken.give_back(SystemClock.now());
        join_in_time(threads);
        setup.net.shut();
    });
    assert!(std::env::var("SCHEDULE").is_ok() || count.load(Ordering::SeqCst) > 0);
}

#[test]
fn a_dropped_connection_is_closed_and_replaced() {
    explore(200, || {
        let setup = TestConnections::of(Net::default(), 1);
        drop(setup.take(LONG));
        setup.call("a", LONG).unwrap();
        let links = setup.net.log.lock().unwrap().links.clone();
        let closed: Vec<bool> = links.iter().map(|link| link.input.lock().is_closed).collect();
        assert_eq!(closed, [true, false]);
        setup.check_end();
    });
}

#[test]
fn a_connection_owes_at_most_eight_replies() {
    explore(200, || {
        let setup = TestConnections::of(Net::default(), 1);
        setup.take(LONG).give_back(SystemClock.now());
        for number in 0..8 {
            setup.detach(&number.to_string(), LONG).unwrap();
        }
        assert!(setup.net.log.lock().unwrap().called.is_empty());
        setup.detach("the ninth", LONG).unwrap();
        assert_eq!(setup.net.log.lock().unwrap().called, BTreeSet::from([8]));
        setup.check_end();
    });
}

#[test]
fn a_connection_owes_the_replies_to_at_most_eight_kilobytes() {
    explore(50, || {
        let setup = TestConnections::of(Net::default(), 1);
        setup.take(LONG).give_back(SystemClock.now());
        for name in ["a", "b", "c"] {
            setup.detach(&format!("{name:3000}"), LONG).unwrap();
        }
        assert_eq!(setup.net.log.lock().unwrap().called, BTreeSet::from([2]));
        // The replies were read, so there is room.
        setup.detach(&format!("{:3000}", "d"), LONG).unwrap();
        assert_eq!(setup.net.log.lock().unwrap().called, BTreeSet::from([2]));
        setup.check_end();
    });
}

#[test]
fn a_connection_that_ended_while_idle_costs_no_call() {
    explore(200, || {
        let setup = TestConnections::of(Net::default(), 1);
        setup.call("a", LONG).unwrap();
        setup.net.shut();
        let_time_move();
        move_time(MILLISECOND * 600);
        setup.call("b", LONG).unwrap();
        setup.check_end();
    });
}

#[test]
fn one_broken_connection_costs_one_call() {
    explore(200, || {
        let setup = TestConnections::new();
        setup.open_two();
        setup.net.shut();
        setup.call("a", LONG).unwrap_err();
        setup.call("b", LONG).unwrap();
        setup.check_end();
    });
}

#[test]
fn a_connection_that_owes_a_reply_is_not_closed_for_its_age() {
    explore(200, || {
        let setup = TestConnections::new();
        setup.open_two();
        setup.detach("a", LONG).unwrap();
        // The connection that owes the reply was used least from now on.
        let (owing, other) = (setup.take(LONG), setup.take(LONG));
        owing.give_back(SystemClock.now());
        other.give_back(SystemClock.now());
        move_time(Duration::from_secs(61));
        setup.take(LONG).give_back(SystemClock.now());
        // The reply is unread still, and is read.
        setup.read_all_unread(Duration::from_secs(100));
        let replies = setup.replies.take();
        assert!(matches!(&replies[..], [ReleaseReply { reply: Err(Failure::Refused { .. }), .. }]));
        setup.calls.close(LONG);
        setup.net.shut();
    });
}

#[test]
fn a_connection_that_is_returned_after_the_close_is_closed() {
    explore(200, || {
        let setup = TestConnections::new();
        let taken = setup.take(LONG);
        setup.calls.close(LONG);
        taken.give_back(SystemClock.now());
        let links = setup.net.log.lock().unwrap().links.clone();
        assert!(links.iter().all(|link| link.input.lock().is_closed));
    });
}

#[test]
fn a_caller_without_time_returns_the_connection() {
    let count = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&count);
    let runs = explore(1_000, move || {
        let_time_move();
        let setup = TestConnections::of(Net::default(), 1);
        let taken = setup.take(LONG);
        let caller = spawn(&setup, |setup| drop(setup.call("a", MILLISECOND)));
        for _ in 0..3 {
            thread::yield_now();
        }
        taken.give_back(SystemClock.now());
        move_time(MILLISECOND * 2);
        join(vec![caller]);
        let connections = setup.net.log.lock().unwrap().links.len() as u64;
        setup.call("b", LONG).unwrap();
        let more = setup.net.log.lock().unwrap().links.len() as u64 - connections;
        counted.fetch_add(more, Ordering::SeqCst);
        setup.check_end();
    });
    // Only what was written in part ends a connection.
    let ended = count.load(Ordering::SeqCst);
    assert!(ended < runs as u64 / 10, "{ended} connections ended");
}

#[test]
fn an_abort_ends_a_call_that_waits_for_its_reply() {
    explore(300, || {
        let net = Net { delay: Some(LONG), ..Net::default() };
        let setup = TestConnections::of(net, 1);
        let caller = spawn(&setup, |setup| drop(setup.call("a", LONG)));
        thread::yield_now();
        setup.calls.abort_calls();
        // Time stands still.
        join(vec![caller]);
        setup.net.shut();
    });
}

#[test]
fn a_close_ends_the_calls_in_the_queue_and_later_ones() {
    explore(300, || {
        let setup = TestConnections::of(Net::default(), 1);
        let taken = setup.take(LONG);
        let is_closed = |ended: Result<(), NoReply>| {
            assert!(matches!(ended, Err(NoReply::NoConnection(Failure::Closed))), "{ended:?}");
        };
        let caller = spawn(&setup, move |setup| is_closed(setup.call("a", LONG)));
        thread::yield_now();
        setup.calls.close(LONG);
        join(vec![caller]);
        is_closed(setup.call("b", LONG));
        taken.give_back(SystemClock.now());
        is_closed(setup.call("c", LONG));
        setup.net.shut();
    });
}

#[test]
fn a_close_reads_what_is_unread() {
    explore(300, || {
        let setup = TestConnections::new();
        setup.take(LONG).give_back(SystemClock.now());
        setup.detach("a", LONG).unwrap();
        setup.calls.close(LONG);
        let replies = setup.replies.take();
        assert!(matches!(&replies[..], [ReleaseReply { reply: Err(Failure::Refused { .. }), .. }]));
        setup.net.shut();
    });
}

#[test]
fn the_end_of_the_client_ends_what_is_unread() {
    explore(300, || {
        let TestConnections { calls, replies, net } = {
            let setup = TestConnections::new();
            setup.take(LONG).give_back(SystemClock.now());
            setup.detach("a", LONG).unwrap();
            setup
        };
        drop(calls);
        // The thread that has connected may drop the connections.
        let mut ended = Vec::new();
        while ended.is_empty() {
            thread::yield_now();
            ended = replies.take();
        }
        assert!(matches!(&ended[..], [ReleaseReply { reply: Err(Failure::Closed), .. }]));
        net.shut();
    });
}

#[test]
fn an_unread_reply_that_never_comes_closes_its_connection() {
    explore(100, || {
        let setup = TestConnections::with(Net { delay: Some(LONG), ..Net::default() });
        setup.take(LONG).give_back(SystemClock.now());
        setup.detach("a", LONG).unwrap();
        let longest = MILLISECOND * 500;
        assert!(setup.calls.read_unread(longest));
        move_time(longest);
        assert!(!setup.calls.read_unread(longest));
        let replies = setup.replies.take();
        assert!(matches!(&replies[..], [ReleaseReply { reply: Err(Failure::Unknown { .. }), .. }]));
        setup.net.shut();
    });
}

#[test]
fn without_any_connection_a_failure_to_connect_ends_the_queue() {
    explore(500, || {
        let setup = TestConnections::with(Net { refuses: true, ..Net::default() });
        let threads = (0..3).map(|number| {
            spawn(&setup, move |setup| {
                // Time stands still.
                let ended = setup.call(&number.to_string(), LONG);
                assert!(matches!(ended, Err(NoReply::NoConnection(_))), "{ended:?}");
            })
        });
        join(threads.collect());
        setup.calls.wait_until_unused(LONG);
    });
}

#[test]
fn a_call_that_leaves_the_queue_was_not_sent() {
    explore(300, || {
        let_time_move();
        let setup = TestConnections::of(Net::default(), 1);
        let taken = setup.take(LONG);
        join_in_time(vec![spawn(&setup, |setup| {
            let ended = setup.call("a", MILLISECOND);
            let Err(NoReply::Broken(Broken::NotSent(error))) = ended else { panic!("{ended:?}") };
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        })]);
        taken.give_back(SystemClock.now());
        setup.check_end();
    });
}

#[test]
fn a_connection_whose_unread_replies_were_read_keeps_its_place() {
    explore(50, || {
        let setup = TestConnections::new();
        setup.open_two();
        setup.detach("release", LONG).unwrap();
        // The other connection is used last from now on.
        let (owing, other) = (setup.take(LONG), setup.take(LONG));
        owing.give_back(SystemClock.now());
        move_time(MILLISECOND);
        other.give_back(SystemClock.now());
        setup.read_all_unread(LONG);
        setup.net.shut();
        setup.call("a", LONG).unwrap_err();
        setup.call("b", LONG).unwrap();
        setup.check_end();
    });
}

/// A server whose only connection ends once the client's system has accepted so many bytes of
/// requests.
#[derive(Clone)]
struct CutNet {
    after: usize,
    seen: Arc<std::sync::Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    has_connected: bool,
    /// What the requests end with that were accepted as a whole.
    accepted: BTreeSet<String>,
}

/// The bytes that arrive until the connection ends.
struct UntilCut {
    link: Arc<Link>,
    left: usize,
}

impl Read for UntilCut {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(self.left);
        if most == 0 {
            return Ok(0);
        }
        let length = Incoming(Arc::clone(&self.link)).read(&mut buffer[..most])?;
        self.left -= length;
        Ok(length)
    }
}

impl Network for CutNet {
    fn connect(&self, _: u16, peer: Peer) -> Arc<dyn Carrier> {
        let is_first = !std::mem::replace(&mut self.seen.lock().unwrap().has_connected, true);
        let (input, changed) = (Mutex::default(), Condvar::new());
        let link = Arc::new(Link { peer, log: Arc::default(), input, changed });
        if is_first {
            let (net, own) = (self.clone(), Arc::clone(&link));
            thread::spawn(move || net.serve(&own));
        } else {
            link.peer.shut();
        }
        Arc::new(ToLink(link))
    }
}

impl CutNet {
    fn serve(&self, link: &Arc<Link>) {
        let handshake = Command::of(&["TIME"]).len() + script_commands().concat().len();
        link.peer.accept_only(handshake + self.after);
        link.peer.open();
        let mut decoder = Decoder::new();
        let mut requests = UntilCut { link: Arc::clone(link), left: handshake + self.after };
        while let Ok(Value::Array(words)) = decoder.next(&mut requests) {
            let Some(Value::Text(text)) = words.last() else { panic!("{words:?}") };
            if let Some(reply) = of_the_handshake(&words) {
                link.peer.reply(reply);
                continue;
            }
            self.seen.lock().unwrap().accepted.insert(text.clone());
            link.peer.reply(format!("${}\r\n{text}\r\n", text.len()).as_bytes());
        }
        link.peer.shut();
        link.close();
    }
}

/// Whoever wrote them, with whatever others: a request that was accepted as a whole may have run,
/// and no other.
#[test]
fn batch_cut_at_any_byte_reports_whether_each_call_may_have_run() {
    const CALLS: usize = 5;
    let request = Command::of(&["ECHO", "0"]).len();
    let batches = Arc::new(AtomicU64::new(0));
    for after in 0..=CALLS * request {
        let batches = Arc::clone(&batches);
        explore(40, move || {
            let net = CutNet { after, seen: Arc::default() };
            set_network(Arc::new(net.clone()));
            // All wait for one connection.
            let (calls, _) = calls_of(Limits { near: 1, far: 1 });
            let threads: Vec<_> = (0..CALLS)
                .map(|number| {
                    let calls = Arc::clone(&calls);
                    thread::spawn(move || {
                        let text = number.to_string();
                        let mut deadline = Deadline::after(LONG);
                        (calls.call(echo(&text), &text, &mut deadline, CallGeneration(0)), text)
                    })
                })
                .collect();
            let mut unsent_of_batch = 0;
            for thread in threads {
                let (outcome, text) = thread.join().unwrap();
                let is_accepted = net.seen.lock().unwrap().accepted.contains(&text);
                let may_have_run = match &outcome {
                    Ok(answer) => {
                        assert_eq!(answer.value, Value::Text(text), "another's reply");
                        true
                    }
                    Err(NoReply::Broken(Broken::Unanswered(_))) => true,
                    Err(NoReply::Broken(Broken::NotSent(_))) => {
                        unsent_of_batch += 1;
                        false
                    }
                    Err(NoReply::NoConnection(_)) => false,
                };
                assert_eq!(may_have_run, is_accepted, "cut after {after}: {outcome:?}");
            }
            batches.fetch_add(u64::from(unsent_of_batch > 1), Ordering::SeqCst);
            calls.close(LONG);
        });
    }
    // Otherwise no write of several requests was cut.
    assert!(std::env::var("SCHEDULE").is_ok() || batches.load(Ordering::SeqCst) > 100);
}
