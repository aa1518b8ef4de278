//! A socket to a server, and who we say we are: what a connection to a server and one to a sentinel begin with.

use std::fmt::Display;
use std::io;
use std::time::Duration;

use super::address::{Access, Address, Peer};
use super::command::Command;
use super::connection::{Connection, Limit};
use super::resolve::Resolver;
use super::socket::{Socket, distrust};
use crate::credentials::Credentials;
use crate::store::Failure;

/// The standard library refuses a timeout of zero.
const SHORTEST_CONNECT: Duration = Duration::from_millis(1);

/// A connected socket, or an error by the limit. `timeout` is the socket's own.
pub(super) fn reach(
    peer: &Peer,
    access: &Access,
    resolver: &Resolver,
    timeout: Duration,
    limit: &mut Limit,
) -> io::Result<Socket> {
    let address = match peer {
        Peer::Tcp(address) => address,
        #[cfg(unix)]
        Peer::Unix(path) => return Socket::connect_unix(path, limit.left()?, timeout),
    };
    let addresses = resolver.resolve(&address.host, address.port, limit.left()?)?;
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    let mut untried = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
    for resolved in addresses {
        // Each gets its share, or one that swallows packets would leave nothing for the next.
        let share = (limit.refresh().left()? / untried.max(1)).max(SHORTEST_CONNECT);
        untried = untried.saturating_sub(1);
        match connect(&resolved, address, access, share, timeout) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg_attr(not(feature = "tls"), expect(unused_variables, reason = "nobody has to show who he is"))]
fn connect(
    resolved: &std::net::SocketAddr,
    address: &Address,
    access: &Access,
    limit: Duration,
    timeout: Duration,
) -> io::Result<Socket> {
    #[cfg(feature = "tls")]
    if let Some(trust) = &access.trust {
        return Socket::connect_tls(resolved, (trust, &address.host), limit, timeout);
    }
    Socket::connect(resolved, limit, timeout)
}

/// How we say who we are, if there is a password.
pub(super) fn authentication(credentials: Option<&Credentials>) -> Option<Vec<u8>> {
    let Credentials { username, password } = credentials?;
    Some(match username {
        Some(username) => Command::of(&["AUTH", username, password]),
        None => Command::of(&["AUTH", password]),
    })
}

/// A connection was not made.
pub(super) fn not_sent(server: &dyn Display, error: &io::Error) -> Failure {
    let server = server.to_string();
    match distrust(error) {
        Some(reason) => Failure::Distrusted { server, reason },
        None => Failure::NotSent { server, reason: error.to_string() },
    }
}

/// A connection broke before any operation.
pub(super) fn hung_up(server: &dyn Display, open: &Connection, error: &io::Error) -> Failure {
    match open.distrust() {
        Some(reason) => Failure::Distrusted { server: server.to_string(), reason },
        None => not_sent(server, error),
    }
}

/// What a refusal means that came before any operation. `credentials` are what was said.
pub(super) fn refused(
    server: &dyn Display,
    access: &Access,
    credentials: Option<&Credentials>,
    (code, message): (String, String),
) -> Failure {
    let (code, message) = (without_secret(code, credentials), without_secret(message, credentials));
    match code.as_str() {
        "NOAUTH" | "WRONGPASS" | "NOPERM" => {
            unauthenticated(server, access, format!("{code} {message}"))
        }
        // How Redis answers AUTH when it has no password; the text names the command.
        "ERR" if message.contains("AUTH") => unauthenticated(server, access, message),
        // The server closes the connection after it, so it is no answer to a command. It passes.
        "ERR" if message.contains("max number of clients") => {
            Failure::NotSent { server: server.to_string(), reason: message }
        }
        _ => Failure::Refused { code, message },
    }
}

/// The server does not know us, or not any more.
pub(super) fn unauthenticated(server: &dyn Display, access: &Access, reason: String) -> Failure {
    // Who asks for his credentials gets others, sooner or later.
    let passes = access.credentials.is_some();
    Failure::Unauthenticated { server: server.to_string(), reason, passes }
}

/// A server that does not know a command repeats what came with it.
fn without_secret(message: String, credentials: Option<&Credentials>) -> String {
    // A server that does not know the command repeats what came with it, cut off somewhere.
    let message = match message.split_once(", with args") {
        Some((said, _)) => said.to_owned(),
        None => message,
    };
    match credentials {
        Some(Credentials { password, .. }) if !password.is_empty() => {
            message.replace(password.as_str(), "..")
        }
        _ => message,
    }
}
