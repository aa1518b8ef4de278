//! A socket to an address, and who we say we are: what a connection to a server and one to a sentinel begin with.

use std::io;
use std::time::Duration;

use redis::Cmd;

use super::address::{Access, Address};
use super::connection::Limit;
use super::resolve::Resolver;
use super::socket::Socket;
use crate::store::Failure;

/// The standard library refuses a timeout of zero.
const SHORTEST_CONNECT: Duration = Duration::from_millis(1);

/// A connected socket, or an error by the limit. `timeout` is the socket's own.
pub(super) fn reach(
    address: &Address,
    resolver: &Resolver,
    timeout: Duration,
    limit: &mut Limit,
) -> io::Result<Socket> {
    let addresses = resolver.resolve(&address.host, address.port, limit.left()?)?;
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    let mut untried = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
    for address in addresses {
        // Each gets its share, or one that swallows packets would leave nothing for the next.
        let share = limit.refresh().left()? / untried.max(1);
        untried = untried.saturating_sub(1);
        match Socket::connect(&address, share.max(SHORTEST_CONNECT), timeout) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// How we say who we are, if there is a password.
pub(super) fn authentication(access: &Access) -> Option<Cmd> {
    let password = access.password.as_ref()?;
    let mut authenticate = redis::cmd("AUTH");
    if let Some(username) = &access.username {
        authenticate.arg(username);
    }
    authenticate.arg(password);
    Some(authenticate)
}

/// What a refusal means that came before any operation.
pub(super) fn refused(server: &Address, code: String, message: String) -> Failure {
    let server = server.to_string();
    match code.as_str() {
        "NOAUTH" | "WRONGPASS" | "NOPERM" => {
            Failure::Unauthenticated { server, reason: format!("{code} {message}") }
        }
        // How Redis answers AUTH when it has no password; the text names the command.
        "ERR" if message.contains("AUTH") => Failure::Unauthenticated { server, reason: message },
        // The server closes the connection after it, so it is no answer to a command. It passes.
        "ERR" if message.contains("max number of clients") => {
            Failure::NotSent { server, reason: message }
        }
        _ => Failure::Refused { code, message },
    }
}
