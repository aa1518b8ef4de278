//! How to reach the server: resolve, connect, authenticate, all within one deadline.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::Cmd;

use super::address::{Access, Address};
use super::channels::Channels;
use super::connection::{Broken, Connection, Limit};
use super::resolve::Resolver;
use super::server_clock::ServerClock;
use super::socket::Socket;
use super::sockets::Sockets;
use crate::store::Failure;
use crate::value::{ServerTime, Value};

/// The standard library refuses a timeout of zero.
const SHORTEST_CONNECT: Duration = Duration::from_millis(1);

/// One server, and what has been learnt of it.
#[derive(Debug)]
pub(super) struct Server {
    address: Address,
    access: Access,
    sockets: Sockets,
    resolver: Resolver,
    pub(super) clock: ServerClock,
    pub(super) channels: Channels,
    pub(super) command_timeout: Duration,
    /// How many connections were made. Relaxed: a number to look at.
    pub(super) connections: AtomicU64,
}

impl Server {
    pub(super) fn new(
        address: Address,
        access: Access,
        command_timeout: Duration,
        channels: Channels,
    ) -> Self {
        Self {
            address,
            access,
            sockets: Sockets::default(),
            resolver: Resolver::default(),
            clock: ServerClock::new(),
            channels,
            command_timeout,
            connections: AtomicU64::new(0),
        }
    }

    /// A connection that is ready for commands, or a failure by the deadline.
    pub(super) fn connect(&self, limit: &mut Limit) -> Result<Connection, Failure> {
        let mut connection = self.open(limit).map_err(|error| self.not_sent(&error))?;
        self.shake_hands(&mut connection, limit)?;
        self.connections.fetch_add(1, Ordering::Relaxed);
        Ok(connection)
    }

    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    pub(super) fn not_sent(&self, error: &io::Error) -> Failure {
        Failure::NotSent { server: self.address.to_string(), reason: error.to_string() }
    }

    fn open(&self, limit: &mut Limit) -> io::Result<Connection> {
        let era = self.sockets.era();
        let addresses =
            self.resolver.resolve(&self.address.host, self.address.port, limit.left()?)?;
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        let mut untried = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
        for address in addresses {
            // Each gets its share, or one that swallows packets would leave nothing for the next.
            let share = limit.refresh().left()? / untried.max(1);
            untried = untried.saturating_sub(1);
            match Socket::connect(&address, share.max(SHORTEST_CONNECT), self.command_timeout) {
                Ok(socket) => {
                    let socket = Arc::new(socket);
                    self.sockets.admit(&socket, era)?;
                    return Ok(Connection::new(socket, self.command_timeout));
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Says who we are, selects the database and asks for the time, in one round trip.
    fn shake_hands(&self, connection: &mut Connection, limit: &mut Limit) -> Result<(), Failure> {
        let mut packed = Vec::new();
        let mut replies = 0;
        let mut add = |command: &Cmd| {
            command.write_packed_command(&mut packed);
            replies += 1;
        };
        if let Some(password) = &self.access.password {
            let mut authenticate = redis::cmd("AUTH");
            if let Some(username) = &self.access.username {
                authenticate.arg(username);
            }
            add(authenticate.arg(password));
        }
        if self.access.database != 0 {
            add(redis::cmd("SELECT").arg(self.access.database));
        }
        add(&redis::cmd("TIME"));

        limit.refresh();
        connection.send(&packed, limit).map_err(|error| self.not_sent(&error))?;
        for last in (0..replies).rev() {
            let reply = connection.receive(limit).map_err(|error| self.not_sent(&error))?;
            limit.refresh();
            match reply {
                Value::Refusal { code, message } => return Err(self.refused(code, message)),
                reply if last == 0 => {
                    if let Some(now) = server_time(&reply) {
                        self.clock.learn(now);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// What a refusal means that came before any operation.
    pub(super) fn refused(&self, code: String, message: String) -> Failure {
        let server = self.address.to_string();
        match code.as_str() {
            "NOAUTH" | "WRONGPASS" | "NOPERM" => {
                Failure::Unauthenticated { server, reason: format!("{code} {message}") }
            }
            // How Redis answers AUTH when it has no password; the text names the command.
            "ERR" if message.contains("AUTH") => {
                Failure::Unauthenticated { server, reason: message }
            }
            // The server closes the connection after it, so it is no answer to a command. It passes.
            "ERR" if message.contains("max number of clients") => {
                Failure::NotSent { server, reason: message }
            }
            _ => Failure::Refused { code, message },
        }
    }

    /// What an attempt that broke is to its caller.
    pub(super) fn failure(&self, broken: Broken, not_after: ServerTime) -> Failure {
        match broken {
            Broken::NotSent(error) => self.not_sent(&error),
            Broken::Unanswered(error) => {
                let broken = error.kind() != io::ErrorKind::TimedOut;
                let reason = format!("{}: {error}", self.address);
                Failure::Unknown { not_after, reason, broken }
            }
        }
    }
}

/// Reads the answer of `TIME`: seconds and microseconds.
fn server_time(reply: &Value) -> Option<ServerTime> {
    let Value::Array(parts) = reply else {
        return None;
    };
    let [Value::Text(seconds), Value::Text(micros)] = parts.as_slice() else {
        return None;
    };
    let (seconds, micros): (i64, i64) = (seconds.parse().ok()?, micros.parse().ok()?);
    Some(ServerTime(seconds.checked_mul(1000)? + micros / 1000))
}
