//! How to reach the server: ask who we are, resolve, connect, authenticate, all within one deadline.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::Cmd;

use super::address::{Access, Address, Peer};
use super::asking::Asking;
use super::connection::{Broken, Connection, Limit};
use super::resolve::Resolver;
use super::server_clock::ServerClock;
use super::socket::{Socket, distrust};
use super::sockets::Sockets;
use super::wire::Channels;
use crate::credentials::Credentials;
use crate::store::Failure;
use crate::value::{ServerTime, Value};

/// The standard library refuses a timeout of zero.
const SHORTEST_CONNECT: Duration = Duration::from_millis(1);

/// One server, and what has been learnt of it.
#[derive(Debug)]
pub(super) struct Server {
    peer: Peer,
    access: Access,
    sockets: Sockets,
    resolver: Resolver,
    credentials: Asking<Credentials>,
    pub(super) clock: ServerClock,
    pub(super) channels: Channels,
    pub(super) command_timeout: Duration,
    /// How many connections were made. Relaxed: a number to look at.
    pub(super) connections: AtomicU64,
}

impl Server {
    pub(super) fn new(peer: Peer, access: Access, command_timeout: Duration) -> Self {
        Self {
            peer,
            access,
            sockets: Sockets::default(),
            resolver: Resolver::default(),
            credentials: Asking::new(),
            clock: ServerClock::new(),
            channels: Channels::Everywhere,
            command_timeout,
            connections: AtomicU64::new(0),
        }
    }

    /// A connection that is ready for commands, or a failure by the deadline.
    pub(super) fn connect(&self, limit: &mut Limit) -> Result<Connection, Failure> {
        let credentials = self.credentials(limit).map_err(|error| self.not_sent(&error))?;
        let mut connection = self.open(limit).map_err(|error| self.not_sent(&error))?;
        self.shake_hands(&mut connection, credentials.as_ref(), limit)?;
        self.connections.fetch_add(1, Ordering::Relaxed);
        Ok(connection)
    }

    pub(super) fn not_sent(&self, error: &io::Error) -> Failure {
        let server = self.peer.to_string();
        match distrust(error) {
            Some(reason) => Failure::Distrusted { server, reason },
            None => Failure::NotSent { server, reason: error.to_string() },
        }
    }

    /// Who we are, at this connect.
    fn credentials(&self, limit: &mut Limit) -> io::Result<Option<Credentials>> {
        let Access { username, password, credentials, .. } = &self.access;
        let Some(source) = credentials.clone() else {
            let given = |password: &String| Credentials {
                username: username.clone(),
                password: password.clone(),
            };
            return Ok(password.as_ref().map(given));
        };
        // Foreign code, which may never answer.
        let question = move || source.ask().map_err(|error| error.to_string());
        let late = "no credentials came in time";
        let asked = self.credentials.ask("lock-credentials", question, limit.left()?, late);
        limit.refresh();
        let mut asked = asked.map_err(|error| {
            io::Error::new(error.kind(), format!("asking for the credentials: {error}"))
        })?;
        asked.username = asked.username.or_else(|| username.clone());
        Ok(Some(asked))
    }

    fn open(&self, limit: &mut Limit) -> io::Result<Connection> {
        let era = self.sockets.era();
        let socket = Arc::new(match &self.peer {
            Peer::Tcp(address) => self.open_tcp(address, limit)?,
            #[cfg(unix)]
            Peer::Unix(path) => Socket::connect_unix(path, limit.left()?, self.command_timeout)?,
        });
        self.sockets.admit(&socket, era)?;
        Ok(Connection::new(socket, self.command_timeout))
    }

    fn open_tcp(&self, address: &Address, limit: &mut Limit) -> io::Result<Socket> {
        let addresses = self.resolver.resolve(&address.host, address.port, limit.left()?)?;
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        let mut untried = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
        for resolved in addresses {
            // Each gets its share, or one that swallows packets would leave nothing for the next.
            let share = (limit.refresh().left()? / untried.max(1)).max(SHORTEST_CONNECT);
            untried = untried.saturating_sub(1);
            #[cfg(feature = "tls")]
            let connected = match &self.access.trust {
                Some(trust) => {
                    let whom = (trust, address.host.as_str());
                    Socket::connect_tls(&resolved, whom, share, self.command_timeout)
                }
                None => Socket::connect(&resolved, share, self.command_timeout),
            };
            #[cfg(not(feature = "tls"))]
            let connected = Socket::connect(&resolved, share, self.command_timeout);
            match connected {
                Ok(socket) => return Ok(socket),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Says who we are, selects the database and asks for the time, in one round trip.
    fn shake_hands(
        &self,
        connection: &mut Connection,
        credentials: Option<&Credentials>,
        limit: &mut Limit,
    ) -> Result<(), Failure> {
        let mut packed = Vec::new();
        let mut replies = 0;
        let mut add = |command: &Cmd| {
            command.write_packed_command(&mut packed);
            replies += 1;
        };
        if let Some(Credentials { username, password }) = credentials {
            let mut authenticate = redis::cmd("AUTH");
            if let Some(username) = username {
                authenticate.arg(username);
            }
            add(authenticate.arg(password));
        }
        if self.access.database != 0 {
            add(redis::cmd("SELECT").arg(self.access.database));
        }
        add(&redis::cmd("TIME"));

        limit.refresh();
        if let Err(error) = connection.send(&packed, limit) {
            // It may have said why before it hung up.
            drop(connection.receive(limit));
            return Err(self.hung_up(connection, &error));
        }
        for last in (0..replies).rev() {
            let reply = connection.receive(limit);
            let reply = reply.map_err(|error| self.hung_up(connection, &error))?;
            limit.refresh();
            match reply {
                Value::Refusal { code, message } => {
                    return Err(self.refused(code, without_secret(message, credentials)));
                }
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

    /// What a connection that broke in the handshake is to its caller.
    fn hung_up(&self, connection: &Connection, error: &io::Error) -> Failure {
        match connection.distrust() {
            Some(reason) => Failure::Distrusted { server: self.peer.to_string(), reason },
            None => self.not_sent(error),
        }
    }

    fn refused(&self, code: String, message: String) -> Failure {
        let server = self.peer.to_string();
        match code.as_str() {
            "NOAUTH" | "WRONGPASS" | "NOPERM" => self.unauthenticated(format!("{code} {message}")),
            // How Redis answers AUTH when it has no password; the text names the command.
            "ERR" if message.contains("AUTH") => self.unauthenticated(message),
            // The server closes the connection after it, so it is no answer to a command. It passes.
            "ERR" if message.contains("max number of clients") => {
                Failure::NotSent { server, reason: message }
            }
            _ => Failure::Refused { code, message },
        }
    }

    /// The server does not know us, or not any more.
    pub(super) fn unauthenticated(&self, reason: String) -> Failure {
        // Who asks for his credentials gets others, sooner or later.
        let passes = self.access.credentials.is_some();
        Failure::Unauthenticated { server: self.peer.to_string(), reason, passes }
    }

    /// What an attempt that broke is to its caller.
    pub(super) fn failure(&self, broken: Broken, not_after: ServerTime) -> Failure {
        match broken {
            Broken::NotSent(error) => self.not_sent(&error),
            Broken::Unanswered(error) => {
                let broken = error.kind() != io::ErrorKind::TimedOut;
                let reason = format!("{}: {error}", self.peer);
                Failure::Unknown { not_after, reason, broken }
            }
        }
    }
}

/// A server that does not know a command repeats what came with it.
fn without_secret(message: String, credentials: Option<&Credentials>) -> String {
    match credentials {
        Some(Credentials { password, .. }) if !password.is_empty() => {
            message.replace(password.as_str(), "..")
        }
        _ => message,
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
