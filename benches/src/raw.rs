//! The floor: the scripts of the lock, sent on one plain socket by somebody who does nothing else.
//!
//! The requests are encoded beforehand, and a reply is compared and not parsed. That is honest for a floor: what a
//! client adds to it is exactly its own work. The server does the same work as for the client: the same scripts, keys,
//! channel and message, and an owner of the same length, whose number is a new one for each hold, because the server
//! keeps texts that it has just seen. There are no timeouts on the socket and no deadline.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use wheellock_fixture::RawConnection;

/// A connection that takes and releases one lock by the scripts of the lock crate.
#[derive(Debug)]
pub struct RawLock {
    stream: TcpStream,
    acquire: Request,
    release: Request,
    delete: Request,
    hold: usize,
}

const ACQUIRE: &str = include_str!("../../lock/src/op/acquire.lua");
const RELEASE: &str = include_str!("../../lock/src/op/release.lua");

/// By the server's clock, in milliseconds: in the year 2255.
pub(crate) const FAR_IN_THE_FUTURE: &str = "9000000000000";
pub(crate) const LEASE_MILLIS: &str = "30000";
pub(crate) const UNLOCKED: &str = "0";
/// As long as a client's: a UUID and the number of a hold.
pub(crate) const OWNER: &str = "00000000-0000-4000-8000-000000000000:000000";
/// What stands before the number.
const CLIENT: &str = "-8000-000000000000:";
const DIGITS: usize = 6;

impl RawLock {
    /// Connects, and teaches the server the scripts.
    #[must_use]
    pub fn new(address: SocketAddr, name: &str) -> Self {
        let mut loader = RawConnection::open(address).expect("the server listens");
        let acquire = loader.command(&["SCRIPT", "LOAD", ACQUIRE]).text();
        let release = loader.command(&["SCRIPT", "LOAD", RELEASE]).text();
        let channel = channel(name);
        let acquire = ["EVALSHA", &acquire, "1", name, FAR_IN_THE_FUTURE, OWNER, LEASE_MILLIS];
        let release = ["EVALSHA", &release, "1", name, OWNER, UNLOCKED, "PUBLISH", &channel];
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_nodelay(true).expect("a socket has the option");
        Self {
            stream,
            acquire: Request::new(&acquire),
            release: Request::new(&release),
            delete: Request::new(&["DEL", name]),
            hold: 0,
        }
    }

    /// One round trip: takes the lock, which must be free, for an owner that never was.
    pub fn acquire(&mut self) {
        self.hold += 1;
        self.acquire.set_hold(self.hold);
        self.release.set_hold(self.hold);
        round_trip(&mut self.stream, &self.acquire.bytes, b"$-1\r\n");
    }

    /// One round trip: releases the lock, and publishes that.
    pub fn release(&mut self) {
        // The start of `{1, now}`: it was ours.
        round_trip(&mut self.stream, &self.release.bytes, b"*2\r\n:1\r\n");
    }

    /// One round trip: removes the lock without a word to anybody.
    pub fn delete(&mut self) {
        round_trip(&mut self.stream, &self.delete.bytes, b":1\r\n");
    }

    /// One round trip that asks nothing of the server.
    pub fn ping(&mut self) {
        round_trip(&mut self.stream, b"*1\r\n$4\r\nPING\r\n", b"+PONG\r\n");
    }
}

/// One script as it is sent, and how its answer begins.
#[derive(Debug)]
pub(crate) struct RawScript<'a> {
    pub(crate) source: &'a str,
    pub(crate) keys: &'a [&'a str],
    pub(crate) arguments: &'a [&'a str],
    pub(crate) answer: &'static str,
}

/// A connection that takes and gives back something by two scripts of the lock crate.
#[derive(Debug)]
pub(crate) struct RawPair {
    stream: TcpStream,
    halves: [(Request, &'static str); 2],
    hold: usize,
}

impl RawPair {
    /// Connects, and teaches the server the scripts.
    pub(crate) fn new(address: SocketAddr, take: &RawScript<'_>, give: &RawScript<'_>) -> Self {
        let mut loader = RawConnection::open(address).expect("the server listens");
        let mut half = |script: &RawScript<'_>| {
            let hash = loader.command(&["SCRIPT", "LOAD", script.source]).text();
            let keys = script.keys.len().to_string();
            let words = [&["EVALSHA", &hash, &keys], script.keys, script.arguments].concat();
            (Request::new(&words), script.answer)
        };
        let halves = [half(take), half(give)];
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_nodelay(true).expect("a socket has the option");
        Self { stream, halves, hold: 0 }
    }

    /// Two round trips, for an owner that never was.
    pub(crate) fn run(&mut self) {
        self.hold += 1;
        for (request, answer) in &mut self.halves {
            request.set_hold(self.hold);
            round_trip(&mut self.stream, &request.bytes, answer.as_bytes());
        }
    }
}

/// The channel of a lock, as the lock crate names it.
pub(crate) fn channel(name: &str) -> String {
    format!("redisson_lock__channel:{{{name}}}")
}

/// A command as a client writes it.
pub(crate) fn encode(arguments: &[&str]) -> String {
    let mut text = format!("*{}\r\n", arguments.len());
    for argument in arguments {
        // Writing to a string does not fail.
        write!(text, "${}\r\n{argument}\r\n", argument.len()).ok();
    }
    text
}

/// One encoded command, in which the number of the hold can be written over the last one.
#[derive(Debug)]
struct Request {
    bytes: Vec<u8>,
    /// Where the digits stand, each time that the command names an owner.
    digits: Vec<usize>,
}

impl Request {
    fn new(arguments: &[&str]) -> Self {
        let text = encode(arguments);
        let digits = text.match_indices(CLIENT).map(|(place, _)| place + CLIENT.len()).collect();
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

/// A reply is a few bytes, which the server writes at once and the system delivers at once.
fn round_trip(stream: &mut TcpStream, request: &[u8], expected: &[u8]) {
    let mut buffer = [0; 64];
    stream.write_all(request).expect("the server is there");
    let length = stream.read(&mut buffer).expect("the server is there");
    let reply = buffer.get(..length).unwrap_or_default();
    assert!(reply.starts_with(expected), "the server answered {}", reply.escape_ascii());
}
