//! The floor: the scripts of the lock crate, sent on one plain socket.
//!
//! The requests are encoded beforehand, and a reply is compared and not parsed. What a client adds
//! to this is exactly its own work. The server does the same work as for the client: the same
//! scripts, keys, channel and message, and an owner of the same length. The owner's number is a new
//! one for each hold, because the server caches strings that it has just seen. The socket has no
//! timeout.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use wheellock_fixture::RawConnection;

/// The source of a script of the lock crate.
macro_rules! script_source {
    ($name:literal) => {
        include_str!(concat!("../../../lock/src/ops/scripts/", $name, ".lua"))
    };
}

/// A script as it is sent, and how its reply begins.
macro_rules! script {
    ($name:literal, $keys:expr, $arguments:expr, $reply:literal) => {
        $crate::lock::raw::RawScript {
            source: $crate::lock::raw::script_source!($name),
            keys: &$keys,
            arguments: &$arguments,
            reply: $reply,
        }
    };
}

pub(super) use script;
pub(crate) use script_source;

/// A time of the server's clock in milliseconds, in the year 2255.
pub(crate) const FAR_IN_THE_FUTURE: &str = "9000000000000";
pub(crate) const LEASE_MILLIS: &str = "30000";
pub(crate) const UNLOCKED: &str = "0";
/// As long as an owner of a client: a UUID, and a number that carries the time.
pub(crate) const OWNER: &str = "00000000-0000-4000-8000-000000000000:4611686018427000000";
/// What precedes the digits that are another's for each hold.
const CLIENT: &str = "-8000-000000000000:4611686018427";
const DIGITS: usize = 6;
/// The number of a call in its request sequence: these digits of the hold.
pub(crate) const NUMBER: &str = "000000";

/// One script as it is sent, and how its reply begins.
#[derive(Debug)]
pub(crate) struct RawScript<'a> {
    pub(crate) source: &'a str,
    pub(crate) keys: &'a [&'a str],
    pub(crate) arguments: &'a [&'a str],
    pub(crate) reply: &'static str,
}

/// A connection that acquires and releases something with two scripts of the lock crate.
#[derive(Debug)]
pub(crate) struct RawPair {
    stream: TcpStream,
    requests: Requests,
}

impl RawPair {
    /// Connects, and loads the scripts into the server.
    pub(crate) fn new(
        address: SocketAddr,
        acquire: &RawScript<'_>,
        release: &RawScript<'_>,
    ) -> Self {
        let requests = Requests::load(address, acquire, release);
        Self { stream: connect(address), requests }
    }

    /// The scripts of the plain lock.
    pub(crate) fn of_lock(address: SocketAddr, name: &str) -> Self {
        Self { stream: connect(address), requests: Requests::of_lock(address, name) }
    }

    /// One round trip: acquires what is free, for a new owner.
    pub(crate) fn acquire(&mut self) {
        self.requests.next_hold();
        let (request, reply) = &self.requests.acquire;
        round_trip(&mut self.stream, &request.bytes, reply);
    }

    /// One round trip: releases it, and publishes that.
    pub(crate) fn release(&mut self) {
        let (request, reply) = &self.requests.release;
        round_trip(&mut self.stream, &request.bytes, reply);
    }

    /// One round trip with the smallest command.
    pub(crate) fn ping(&mut self) {
        round_trip(&mut self.stream, b"*1\r\n$4\r\nPING\r\n", "+PONG\r\n");
    }
}

/// A connection on which the pairs of several locks are under way at once: all acquires in one
/// write, and then all releases.
#[derive(Debug)]
pub(crate) struct RawBatch {
    stream: TcpStream,
    pairs: Vec<Requests>,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
}

impl RawBatch {
    /// Connects, for locks of these names.
    pub(crate) fn new(address: SocketAddr, names: &[String]) -> Self {
        let pairs = names.iter().map(|name| Requests::of_lock(address, name)).collect();
        Self { stream: connect(address), pairs, outgoing: Vec::new(), incoming: Vec::new() }
    }

    /// Two round trips: acquires all, and releases all.
    pub(crate) fn run(&mut self) {
        for pair in &mut self.pairs {
            pair.next_hold();
        }
        self.exchange(|pair| &pair.acquire, ACQUIRED_LENGTH);
        self.exchange(|pair| &pair.release, RELEASED_LENGTH);
    }

    fn exchange(&mut self, of: fn(&Requests) -> &(Request, &'static str), reply_length: usize) {
        self.outgoing.clear();
        for pair in &self.pairs {
            self.outgoing.extend_from_slice(&of(pair).0.bytes);
        }
        self.stream.write_all(&self.outgoing).expect("the server is there");
        self.incoming.resize(self.pairs.len() * reply_length, 0);
        self.stream.read_exact(&mut self.incoming).expect("the server is there");
        for (pair, reply) in self.pairs.iter().zip(self.incoming.chunks(reply_length)) {
            let is_expected = reply.starts_with(of(pair).1.as_bytes());
            assert!(is_expected, "the server answered {}", reply.escape_ascii());
        }
    }
}

/// `$-1`, with an end of line.
const ACQUIRED_LENGTH: usize = 3 + 2;
/// `*3`, `:1`, the server's time in milliseconds, until the year 2286, and `:0`, as nobody listens.
const RELEASED_LENGTH: usize = 2 + 2 + 2 + 2 + 1 + 13 + 2 + 2 + 2;

/// The two requests of a pair, and how their replies begin.
#[derive(Debug)]
struct Requests {
    acquire: (Request, &'static str),
    release: (Request, &'static str),
    hold: usize,
}

impl Requests {
    /// Loads the scripts into the server.
    fn load(address: SocketAddr, acquire: &RawScript<'_>, release: &RawScript<'_>) -> Self {
        let mut loader = RawConnection::open(address).expect("the server listens");
        let mut request = |script: &RawScript<'_>| {
            let hash = loader.command(&["SCRIPT", "LOAD", script.source]).text();
            let keys = script.keys.len().to_string();
            let words = [&["EVALSHA", &hash, &keys], script.keys, script.arguments].concat();
            (Request::new(&words), script.reply)
        };
        Self { acquire: request(acquire), release: request(release), hold: 0 }
    }

    fn of_lock(address: SocketAddr, name: &str) -> Self {
        let channel = channel(name);
        let acquire = script!("acquire", [name], [FAR_IN_THE_FUTURE, OWNER, LEASE_MILLIS], "$-1");
        // The reply begins as `{1, now}`: it was ours.
        let arguments = [OWNER, UNLOCKED, "PUBLISH", &channel];
        let release = script!("release", [name], arguments, "*3\r\n:1");
        Self::load(address, &acquire, &release)
    }

    /// A new owner.
    fn next_hold(&mut self) {
        self.hold += 1;
        self.acquire.0.set_hold(self.hold);
        self.release.0.set_hold(self.hold);
    }
}

/// A socket that sends each request at once.
pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the server listens");
    stream.set_nodelay(true).expect("a socket has the option");
    stream
}

/// The channel of a lock, as the lock crate names it.
pub(crate) fn channel(name: &str) -> String {
    format!("redisson_lock__channel:{{{name}}}")
}

/// A command as a client encodes it.
pub(crate) fn encode(arguments: &[&str]) -> String {
    let mut text = format!("*{}\r\n", arguments.len());
    for argument in arguments {
        // Writing to a string does not fail.
        write!(text, "${}\r\n{argument}\r\n", argument.len()).ok();
    }
    text
}

/// An encoded command, in which the number of the hold can be overwritten.
#[derive(Debug)]
struct Request {
    bytes: Vec<u8>,
    /// Where the digits of each owner and number in the command begin.
    digits: Vec<usize>,
}

impl Request {
    fn new(arguments: &[&str]) -> Self {
        let text = encode(arguments);
        let owners = text.match_indices(CLIENT).map(|(start, _)| start + CLIENT.len());
        let word = format!("\n{NUMBER}\r");
        let numbers = text.match_indices(&word).map(|(start, _)| start + 1);
        let digits = owners.chain(numbers).collect();
        Self { bytes: text.into_bytes(), digits }
    }

    fn set_hold(&mut self, hold: usize) {
        for start in &self.digits {
            let mut rest = hold;
            for digit in self.bytes.iter_mut().skip(*start).take(DIGITS).rev() {
                *digit = b"0123456789"[rest % 10];
                rest /= 10;
            }
        }
    }
}

/// A reply is a few bytes, which arrive in one piece.
fn round_trip(stream: &mut TcpStream, request: &[u8], expected: &str) {
    let mut buffer = [0; 64];
    stream.write_all(request).expect("the server is there");
    let length = stream.read(&mut buffer).expect("the server is there");
    let reply = buffer.get(..length).unwrap_or_default();
    assert!(reply.starts_with(expected.as_bytes()), "the server answered {}", reply.escape_ascii());
}
