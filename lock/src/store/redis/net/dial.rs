//! Opens connections to servers and sentinels: connects a socket, authenticates the user, and
//! classifies failures.

use std::fmt::Display;
use std::io;
use std::time::Duration;

use crate::error::Reason;
use crate::store::failure::Failure;
use crate::store::redis::address::credentials::Credentials;
use crate::store::redis::address::url::{Access, Address, Peer};
use crate::store::redis::net::connection::Connection;
use crate::store::redis::net::deadline::Deadline;
use crate::store::redis::net::resolve::Resolver;
use crate::store::redis::net::socket::{Socket, tls_error};
use crate::store::redis::resp::encode::Command;

/// Shortest timeout of a connect. The standard library refuses a timeout of zero.
const MIN_CONNECT: Duration = Duration::from_millis(1);

/// Connects a socket to `peer`, or fails by the deadline. Tries each address of a host in turn.
/// `timeout` is the socket's own timeout.
pub(crate) fn dial(
    peer: &Peer,
    access: &Access,
    resolver: &Resolver,
    timeout: Duration,
    deadline: &mut Deadline,
) -> io::Result<Socket> {
    let address = match peer {
        Peer::Tcp(address) => address,
        #[cfg(unix)]
        Peer::Unix(path) => {
            use std::os::unix::fs::FileTypeExt;

            let is_socket = |file: &std::fs::Metadata| file.file_type().is_socket();
            let is_other = std::fs::metadata(path).is_ok_and(|file| !is_socket(&file));
            return Socket::connect_unix(path, deadline, timeout).map_err(|error| {
                let other = "it is no socket: write the path of the server's `unixsocket`";
                if is_other { io::Error::new(error.kind(), other) } else { error }
            });
        }
    };
    let addresses = resolver.resolve(&address.host, address.port, deadline.left()?)?;
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    let mut untried = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
    for resolved in addresses {
        // Each address gets a share: an address that drops packets must leave time for the next.
        let share = (deadline.refresh().left()? / untried.max(1)).max(MIN_CONNECT);
        untried = untried.saturating_sub(1);
        match connect(&resolved, address, access, &mut Deadline::after(share), timeout) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Connects a socket to one address of a host, over TLS if `access` requires TLS.
#[cfg_attr(not(feature = "tls"), expect(unused_variables, reason = "they are for TLS"))]
fn connect(
    resolved: &std::net::SocketAddr,
    address: &Address,
    access: &Access,
    deadline: &mut Deadline,
    timeout: Duration,
) -> io::Result<Socket> {
    #[cfg(feature = "tls")]
    if let Some(tls) = &access.tls {
        return Socket::connect_tls(resolved, (tls, &address.host), deadline, timeout);
    }
    Socket::connect(resolved, deadline, timeout)
}

/// Returns the command that authenticates. `None` without credentials.
pub(crate) fn authentication(credentials: Option<&Credentials>) -> Option<Vec<u8>> {
    let Credentials { username, password } = credentials?;
    Some(match username {
        Some(username) => Command::of(&["AUTH", username, password]),
        None => Command::of(&["AUTH", password]),
    })
}

/// Returns the failure to make a connection: `TlsFailed` for a TLS error, otherwise `NotSent`.
pub(crate) fn not_sent(server: &dyn Display, error: io::Error) -> Failure {
    let server = server.to_string();
    match tls_error(&error) {
        Some(reason) => Failure::TlsFailed { server, reason: with_repair(reason) },
        None => Failure::NotSent { server, reason: error.into() },
    }
}

/// Adds the repair to the TLS error of a peer that does not speak TLS. Returns any other reason
/// unchanged.
fn with_repair(reason: Reason) -> Reason {
    if reason.as_str().contains("InvalidContentType") {
        return reason.in_context("it speaks no TLS, write redis:// or the port for TLS");
    }
    reason
}

/// Returns the failure of a new connection that broke before any operation.
pub(crate) fn handshake_failed(
    server: &dyn Display,
    connection: &Connection,
    error: io::Error,
) -> Failure {
    match connection.tls_error() {
        Some(reason) => {
            Failure::TlsFailed { server: server.to_string(), reason: with_repair(reason) }
        }
        None => not_sent(server, error),
    }
}

/// Returns the failure for an error reply before any operation. `credentials` are the credentials
/// sent; the failure omits the password.
pub(crate) fn refused(
    server: &dyn Display,
    access: &Access,
    credentials: Option<&Credentials>,
    (code, message): (String, String),
) -> Failure {
    let (code, message) = (without_secret(code, credentials), without_secret(message, credentials));
    match code.as_str() {
        "NOAUTH" => {
            let repair = "write redis://:PASSWORD@HOST or redis://USER:PASSWORD@HOST";
            unauthenticated(server, access, format!("{code} {message} {repair}"))
        }
        "WRONGPASS" | "NOPERM" => unauthenticated(server, access, format!("{code} {message}")),
        // Redis's reply to AUTH if the server has no password; the text names the command.
        "ERR" if message.contains("AUTH") => unauthenticated(server, access, message),
        // Transient: the server closes the connection after this reply, and answers no command.
        "ERR" if message.contains("max number of clients") => {
            Failure::NotSent { server: server.to_string(), reason: message.into() }
        }
        _ => Failure::Refused { code, message },
    }
}

/// Returns the failure for credentials not accepted, or no longer accepted, by the server.
pub(crate) fn unauthenticated(server: &dyn Display, access: &Access, reason: String) -> Failure {
    // A callback may return new credentials at the next attempt.
    let transient = access.credentials.is_some();
    Failure::Unauthenticated { server: server.to_string(), reason, transient }
}

/// Returns `message` without the password of `credentials`, and without arguments that the server
/// repeats.
fn without_secret(message: String, credentials: Option<&Credentials>) -> String {
    // A server without the command repeats the arguments, truncated at an unknown place.
    let message = match message.split_once(", with args") {
        Some((before, _)) => before.to_owned(),
        None => message,
    };
    match credentials {
        Some(Credentials { password, .. }) if !password.is_empty() => {
            message.replace(password.as_str(), "..")
        }
        _ => message,
    }
}
