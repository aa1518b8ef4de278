//! The floor of a sweep: the renewal script of the lock crate from a plain socket, by somebody who does nothing else.
//!
//! The requests are encoded beforehand, and a reply is compared and not parsed. It renews the very locks that a client
//! holds, by their owners, with as many keys in a script as the client sends, and keeps ten scripts in flight: as soon
//! as one is answered, the next is sent.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use wheellock_fixture::RawConnection;

use crate::clock::now;
use crate::raw::{FAR_IN_THE_FUTURE, encode};

const RENEW: &str = include_str!("../../../lock/src/op/renew.lua");
const LEASE_MILLIS: &str = "30000";
const IN_FLIGHT: usize = 10;
/// Locks whose owners are asked for together.
const TOGETHER: usize = 500;

/// A socket with all that it is going to say.
#[derive(Debug)]
pub(crate) struct Floor {
    stream: TcpStream,
    scripts: Vec<Script>,
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct Script {
    request: String,
    /// What its reply begins with, before the server's time.
    head: String,
    /// That all of them are prolonged.
    prolonged: String,
}

/// The server's time in milliseconds is as long as this until the year 2286, and a colon and a line's end.
const TIME: usize = 1 + 13 + 2;

impl Floor {
    /// Prepares to renew these locks, which somebody must hold.
    pub(crate) fn start(address: SocketAddr, names: &[String], keys_per_script: usize) -> Self {
        let mut asking = RawConnection::open(address).expect("the server listens");
        let hash = asking.command(&["SCRIPT", "LOAD", RENEW]).text();
        let owners = owners(&mut asking, names);
        let scripts = names
            .chunks(keys_per_script)
            .zip(owners.chunks(keys_per_script))
            .map(|(names, owners)| Script::new(&hash, names, owners))
            .collect();
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_nodelay(true).expect("a socket has the option");
        Self { stream, scripts, buffer: Vec::new() }
    }

    /// Renews every lock once, and answers how long that took.
    pub(crate) fn sweep(&mut self) -> Duration {
        let start = now();
        let (first, rest) = self.scripts.split_at(IN_FLIGHT.min(self.scripts.len()));
        let together: String = first.iter().map(|script| script.request.as_str()).collect();
        self.stream.write_all(together.as_bytes()).expect("the server is there");
        let mut rest = rest.iter();
        for script in &self.scripts {
            let Script { head, prolonged, .. } = script;
            self.buffer.resize(head.len() + TIME + prolonged.len(), 0);
            self.stream.read_exact(&mut self.buffer).expect("the server is there");
            assert!(
                self.buffer.starts_with(head.as_bytes())
                    && self.buffer.ends_with(prolonged.as_bytes()),
                "the server answered {}",
                self.buffer.escape_ascii()
            );
            if let Some(next) = rest.next() {
                self.stream.write_all(next.request.as_bytes()).expect("the server is there");
            }
        }
        now() - start
    }
}

impl Script {
    fn new(hash: &str, names: &[String], owners: &[String]) -> Self {
        let count = names.len().to_string();
        let mut arguments = vec!["EVALSHA", hash, &count];
        arguments.extend(names.iter().map(String::as_str));
        arguments.push(FAR_IN_THE_FUTURE);
        for owner in owners {
            arguments.extend([owner.as_str(), LEASE_MILLIS]);
        }
        Self {
            request: encode(&arguments),
            head: format!("*{}\r\n", names.len() + 1),
            prolonged: ":1\r\n".repeat(names.len()),
        }
    }
}

/// Who holds these locks, as the server says.
fn owners(connection: &mut RawConnection, names: &[String]) -> Vec<String> {
    let mut owners = Vec::with_capacity(names.len());
    for names in names.chunks(TOGETHER) {
        for name in names {
            connection.send(&["HKEYS", name]).expect("the server is there");
        }
        for _ in names {
            let fields = connection.receive().expect("the server is there").texts();
            owners.push(fields.into_iter().next().expect("the lock is held"));
        }
    }
    owners
}
