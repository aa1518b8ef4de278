//! The floor of a renewal round: the renewal script of the lock crate, sent on one plain socket.
//!
//! The requests are encoded beforehand, and a reply is compared and not parsed. It renews the locks
//! that a client holds, by their owners, with as many keys in a script as the client sends. Ten
//! scripts are in flight: when a reply arrives, the next script is sent.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use wheellock_fixture::RawConnection;

use crate::harness::clock::now;
use crate::lock::raw::{FAR_IN_THE_FUTURE, LEASE_MILLIS, connect, encode, script_source};

const RENEW: &str = script_source!("renew");
const IN_FLIGHT: usize = 10;
/// The locks whose owners are queried together.
const QUERIED_TOGETHER: usize = 500;

/// A socket with all its requests.
#[derive(Debug)]
pub(crate) struct Floor {
    stream: TcpStream,
    scripts: Vec<Script>,
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct Script {
    request: String,
    /// How its reply begins, before the server's time.
    head: String,
    /// The rest of the reply if all locks are renewed.
    renewed: String,
}

/// The length of the server's time in milliseconds, with a colon and an end of line, until the year
/// 2286.
const TIME: usize = 1 + 13 + 2;

impl Floor {
    /// Prepares to renew these locks, which must be held.
    pub(crate) fn start(address: SocketAddr, names: &[String], keys_per_script: usize) -> Self {
        let mut connection = RawConnection::open(address).expect("the server listens");
        let hash = connection.command(&["SCRIPT", "LOAD", RENEW]).text();
        let owners = owners(&mut connection, names);
        let scripts = names
            .chunks(keys_per_script)
            .zip(owners.chunks(keys_per_script))
            .map(|(names, owners)| Script::new(&hash, names, owners))
            .collect();
        Self { stream: connect(address), scripts, buffer: Vec::new() }
    }

    /// Renews every lock once, and returns how long that took.
    pub(crate) fn renew(&mut self) -> Duration {
        let start = now();
        let (first, rest) = self.scripts.split_at(IN_FLIGHT.min(self.scripts.len()));
        let requests: String = first.iter().map(|script| script.request.as_str()).collect();
        self.stream.write_all(requests.as_bytes()).expect("the server is there");
        let mut rest = rest.iter();
        for script in &self.scripts {
            let Script { head, renewed, .. } = script;
            self.buffer.resize(head.len() + TIME + renewed.len(), 0);
            self.stream.read_exact(&mut self.buffer).expect("the server is there");
            assert!(
                self.buffer.starts_with(head.as_bytes())
                    && self.buffer.ends_with(renewed.as_bytes()),
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
            renewed: ":1\r\n".repeat(names.len()),
        }
    }
}

/// The owners of these locks, as the server knows them.
fn owners(connection: &mut RawConnection, names: &[String]) -> Vec<String> {
    let mut owners = Vec::with_capacity(names.len());
    for names in names.chunks(QUERIED_TOGETHER) {
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
