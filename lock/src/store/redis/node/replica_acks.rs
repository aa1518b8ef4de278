//! `WAIT`: whether enough replicas have received a grant. The command follows right after the
//! request, on the same connection.
//!
//! If all connected replicas have to acknowledge a grant, a `ROLE` between the two commands returns
//! their number. `WAIT` needs a number before the reply to `ROLE` arrives, and uses the last known
//! number. If there are more replicas by then, a second `WAIT` waits for all of them.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::truncated;
use crate::model::settings::{ReplicaAcks, Replicas};
use crate::ops::value::Value;
use crate::store::failure::Failure;
use crate::store::redis::net::connection::{Broken, Connection};
use crate::store::redis::net::deadline::Deadline;
use crate::store::redis::resp::encode::Command;

/// Returns the commands to append to a request. `connected` is the last known number of replicas.
pub(crate) fn pack(acks: ReplicaAcks, connected: &AtomicU32, deadline: Deadline) -> Vec<u8> {
    match acks.wanted {
        Replicas::AtLeast(wanted) => wait(acks, wanted, deadline),
        Replicas::AllConnected => {
            let mut packed = Command::of(&["ROLE"]);
            packed.extend(wait(acks, connected.load(Ordering::Relaxed), deadline));
            packed
        }
    }
}

/// Returns the command `WAIT` or `WAITAOF` for `wanted` replicas, with a timeout within the
/// deadline.
fn wait(acks: ReplicaAcks, wanted: u32, deadline: Deadline) -> Vec<u8> {
    let left = acks.timeout.min(deadline.left().unwrap_or_default());
    // Zero would wait without a limit.
    let millis = u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1).to_string();
    let wanted = wanted.to_string();
    if acks.on_disk {
        Command::of(&["WAITAOF", "0", &wanted, &millis])
    } else {
        Command::of(&["WAIT", &wanted, &millis])
    }
}

/// Receives the replies to the commands of [`pack`]. The inner failure means that the grant must be
/// rolled back.
///
/// Returns `None` without replies by the deadline: a server checks the timeouts of `WAIT` only ten
/// times a second. Then the connection cannot be reused.
pub(crate) fn receive(
    connection: &mut Connection,
    acks: ReplicaAcks,
    connected: &AtomicU32,
    deadline: &mut Deadline,
) -> Result<Option<Result<(), Failure>>, Broken> {
    match receive_all(connection, acks, connected, deadline) {
        Ok(acknowledged) => Ok(Some(acknowledged)),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(None),
        Err(error) => Err(Broken::Unanswered(error)),
    }
}

/// Receives the replies, and sends a second `WAIT` if there are more replicas than last time. A
/// timeout is an error.
fn receive_all(
    connection: &mut Connection,
    acks: ReplicaAcks,
    connected: &AtomicU32,
    deadline: &mut Deadline,
) -> io::Result<Result<(), Failure>> {
    let mut next = |connection: &mut Connection| {
        deadline.refresh();
        connection.receive(deadline)
    };
    // 1. The number of replicas required to acknowledge.
    let (wanted, waited_for) = match acks.wanted {
        Replicas::AtLeast(wanted) => (Ok(wanted), wanted),
        Replicas::AllConnected => {
            let now = replicas_of(next(connection)?);
            let before = connected.load(Ordering::Relaxed);
            if let Ok(now) = now {
                connected.store(now, Ordering::Relaxed);
            }
            (now, before)
        }
    };
    // 2. The number of replicas that have acknowledged.
    let mut acknowledged = acknowledged(next(connection)?);
    let wanted = match wanted {
        Ok(wanted) => wanted,
        Err(failure) => return Ok(Err(failure)),
    };
    // 3. There are more replicas than last time.
    if wanted > waited_for && matches!(acknowledged, Ok(number) if number < wanted) {
        deadline.refresh();
        connection.send(&wait(acks, wanted, *deadline), deadline)?;
        deadline.refresh();
        acknowledged = self::acknowledged(connection.receive(deadline)?);
    }
    Ok(acknowledged.and_then(|number| {
        if number >= wanted { Ok(()) } else { Err(too_few(acks, wanted, number)) }
    }))
}

/// Returns the number of replicas in the reply to `ROLE`. Fails if the server is not a master.
fn replicas_of(reply: Value) -> Result<u32, Failure> {
    match reply {
        Value::Array(parts) => match parts.as_slice() {
            [Value::Text(role), _, Value::Array(replicas)] if role == "master" => {
                Ok(u32::try_from(replicas.len()).unwrap_or(u32::MAX))
            }
            _ => Err(unexpected(&Value::Array(parts))),
        },
        other => Err(refused(other)),
    }
}

/// Returns the number of replicas that have acknowledged, from the reply to `WAIT` or `WAITAOF`.
fn acknowledged(reply: Value) -> Result<u32, Failure> {
    let number = match &reply {
        Value::Integer(replicas) => Some(*replicas),
        // The first number counts the server itself.
        reply => reply.as_integers().map(|[_, replicas]| replicas),
    };
    number.map(|number| u32::try_from(number).unwrap_or_default()).ok_or_else(|| refused(reply))
}

/// Returns the failure of a grant for a reply without the number of replicas.
fn refused(reply: Value) -> Failure {
    match reply {
        Value::Refusal { code, message } => Failure::NoReplicaAcks { code, message },
        other => unexpected(&other),
    }
}

/// Returns the failure of a grant for a reply that cannot be decoded.
fn unexpected(reply: &Value) -> Failure {
    let message = format!("reply {}", truncated(&format!("{reply:?}")));
    // Not the code for an operation that may have run: the grant is known, and is given back.
    Failure::NoReplicaAcks { code: "ERR".to_owned(), message }
}

/// Returns the failure of a grant acknowledged by `acknowledged` replicas only. `connected` is the
/// number of replicas required with [`Replicas::AllConnected`].
pub(crate) fn too_few(acks: ReplicaAcks, connected: u32, acknowledged: u32) -> Failure {
    let wanted = match acks.wanted {
        Replicas::AtLeast(wanted) => wanted,
        Replicas::AllConnected => connected,
    };
    Failure::NotReplicated { wanted, acknowledged }
}
