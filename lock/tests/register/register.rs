//! What the locks protect: registers on a Redis server of their own. A script is all there is to
//! them, and a server runs one script after the other.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use wheellock_fixture::{RawConnection, Reply};

use crate::history::Operation;

/// Whether registers refuse tokens that are smaller than one they have seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tokens {
    Checked,
    Ignored,
}

/// The script's arguments are a token and, for a write, the new value. A read counts as a use of
/// the token: what was read must not be changed afterwards by an older holder.
const CHECKED: &str = "
    local largest = tonumber(redis.call('HGET', KEYS[1], 'token') or 0)
    if tonumber(ARGV[1]) < largest then return false end
    redis.call('HSET', KEYS[1], 'token', ARGV[1])
    if ARGV[2] then redis.call('HSET', KEYS[1], 'value', ARGV[2]) end
    return redis.call('HGET', KEYS[1], 'value')";

const IGNORED: &str = "
    if ARGV[2] then redis.call('HSET', KEYS[1], 'value', ARGV[2]) end
    return redis.call('HGET', KEYS[1], 'value')";

/// A connection to the registers.
#[derive(Debug)]
pub(crate) struct Registers {
    connection: RawConnection,
    tokens: Tokens,
}

impl Registers {
    /// A connection that waits for so long for a reply.
    pub(crate) fn open(address: SocketAddr, tokens: Tokens, timeout: Duration) -> io::Result<Self> {
        let mut connection = RawConnection::open(address)?;
        connection.set_deadline(timeout);
        Ok(Self { connection, tokens })
    }

    /// Makes a register, with the value 0.
    pub(crate) fn make(&mut self, name: &str) {
        self.connection.command(&["HSET", name, "value", "0"]);
    }

    /// Reads without a token, as somebody without the lock does.
    pub(crate) fn look(&mut self, name: &str) -> io::Result<Operation> {
        Ok(read(&self.connection.try_command(&["HGET", name, "value"])?))
    }

    /// The operation with what it came to, or `None` if the register refuses the token. A
    /// compare-and-set is a plain write here: that the value is still the old one is what the lock
    /// and the token are for.
    ///
    /// # Errors
    ///
    /// Without a reply. Nothing is known then.
    pub(crate) fn perform(
        &mut self,
        name: &str,
        token: u64,
        operation: Operation,
    ) -> io::Result<Option<Operation>> {
        let script = if self.tokens == Tokens::Checked { CHECKED } else { IGNORED };
        let token = token.to_string();
        let mut command = vec!["EVAL", script, "1", name, &token];
        let new = match operation {
            Operation::Read(_) => None,
            Operation::Write(new) | Operation::Cas { new, .. } => Some(new.to_string()),
        };
        command.extend(new.as_deref());
        match self.connection.try_command(&command)? {
            Reply::Nil => Ok(None),
            reply if new.is_none() => Ok(Some(read(&reply))),
            reply => {
                assert_eq!(new, Some(reply.text()));
                Ok(Some(operation))
            }
        }
    }
}

fn read(reply: &Reply) -> Operation {
    Operation::Read(Some(reply.text().parse().expect("a register has a number")))
}
