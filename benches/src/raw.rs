//! The floor: the scripts of the lock, sent on one plain socket by somebody who does nothing else.
//!
//! The requests are encoded beforehand, and a reply is compared and not parsed. That is honest for a floor: what a
//! client adds to it is exactly its own work. The server does the same work as for the client: the same scripts, keys,
//! channel and message, and an owner of the same length. There are no timeouts on the socket and no deadline.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use wheellock_fixture::RawConnection;

/// A connection that takes and releases one lock by the scripts of the lock crate.
#[derive(Debug)]
pub struct RawLock {
    stream: TcpStream,
    acquire: Vec<u8>,
    release: Vec<u8>,
    delete: Vec<u8>,
    buffer: [u8; 256],
}

const ACQUIRE: &str = include_str!("../../lock/src/op/acquire.lua");
const RELEASE: &str = include_str!("../../lock/src/op/release.lua");

/// By the server's clock, in milliseconds: in the year 2255.
const FAR_IN_THE_FUTURE: &str = "9000000000000";
const LEASE_MILLIS: &str = "30000";
const UNLOCKED: &str = "0";
/// As long as a client's: a UUID and the number of a hold.
const OWNER: &str = "00000000-0000-4000-8000-000000000000:100000";

const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";
const PONG: &[u8] = b"+PONG\r\n";
const GRANTED: &[u8] = b"$-1\r\n";
/// The start of `{1, now}`: the lock was ours and is free.
const RELEASED: &[u8] = b"*2\r\n:1\r\n";

impl RawLock {
    /// Connects, and teaches the server the scripts.
    #[must_use]
    pub fn new(address: SocketAddr, name: &str) -> Self {
        let mut loader = RawConnection::open(address).expect("the server listens");
        let acquire = loader.command(&["SCRIPT", "LOAD", ACQUIRE]).text();
        let release = loader.command(&["SCRIPT", "LOAD", RELEASE]).text();
        let channel = channel(name);
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_nodelay(true).expect("a socket has the option");
        Self {
            stream,
            acquire: encode(&[
                "EVALSHA", &acquire, "1", name, FAR_IN_THE_FUTURE, OWNER, LEASE_MILLIS,
            ]),
            release: encode(&[
                "EVALSHA", &release, "2", name, &channel, OWNER, UNLOCKED, "PUBLISH",
            ]),
            delete: encode(&["DEL", name]),
            buffer: [0; 256],
        }
    }

    /// One round trip: takes the lock, which must be free.
    pub fn acquire(&mut self) {
        let Self { stream, acquire, buffer, .. } = self;
        round_trip(stream, acquire, buffer, GRANTED);
    }

    /// One round trip: releases the lock, and publishes that.
    pub fn release(&mut self) {
        let Self { stream, release, buffer, .. } = self;
        round_trip(stream, release, buffer, RELEASED);
    }

    /// One round trip: removes the lock without a word to anybody.
    pub fn delete(&mut self) {
        let Self { stream, delete, buffer, .. } = self;
        round_trip(stream, delete, buffer, b":1\r\n");
    }

    /// One round trip that asks nothing of the server.
    pub fn ping(&mut self) {
        round_trip(&mut self.stream, PING, &mut self.buffer, PONG);
    }
}

/// The channel of a lock, as the lock crate names it.
pub(crate) fn channel(name: &str) -> String {
    format!("redisson_lock__channel:{{{name}}}")
}

/// The replies are a few bytes, which the server writes at once and the system delivers at once.
fn round_trip(stream: &mut TcpStream, request: &[u8], buffer: &mut [u8], expected: &[u8]) {
    stream.write_all(request).expect("the server is there");
    let length = stream.read(buffer).expect("the server is there");
    let reply = buffer.get(..length).unwrap_or_default();
    assert!(reply.starts_with(expected), "the server answered {}", reply.escape_ascii());
}

fn encode(arguments: &[&str]) -> Vec<u8> {
    let mut request = format!("*{}\r\n", arguments.len());
    for argument in arguments {
        request.push_str(&format!("${}\r\n{argument}\r\n", argument.len()));
    }
    request.into_bytes()
}
