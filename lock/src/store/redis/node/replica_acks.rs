//! `WAIT`: whether enough replicas have received what was granted. It is sent right behind the
//! request, on the same connection.

use std::io;

use crate::error::truncated;
use crate::model::settings::ReplicaAcks;
use crate::ops::value::Value;
use crate::store::failure::Failure;
use crate::store::redis::net::connection::{Broken, Connection};
use crate::store::redis::net::deadline::Deadline;
use crate::store::redis::resp::encode::Command;

/// The `WAIT` command to append to a request.
pub(crate) fn pack_wait(acks: ReplicaAcks, deadline: Deadline) -> Vec<u8> {
    let wait = acks.timeout.min(deadline.left().unwrap_or_default());
    // Zero would wait without end.
    let millis = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).max(1);
    Command::of(&["WAIT", &acks.wanted.to_string(), &millis.to_string()])
}

/// Receives the reply. The inner failure means that the grant must not be kept.
///
/// `None` if no reply comes by the deadline: a server checks the timeouts of `WAIT` only ten times
/// a second. The connection cannot be reused then.
pub(crate) fn receive(
    connection: &mut Connection,
    acks: ReplicaAcks,
    deadline: &mut Deadline,
) -> Result<Option<Result<(), Failure>>, Broken> {
    deadline.refresh();
    match connection.receive(deadline) {
        Ok(reply) => Ok(Some(check(acks, reply))),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(None),
        Err(error) => Err(Broken::Unanswered(error)),
    }
}

fn check(acks: ReplicaAcks, reply: Value) -> Result<(), Failure> {
    match reply {
        Value::Integer(acknowledged) => {
            let acknowledged = u32::try_from(acknowledged).unwrap_or_default();
            if acknowledged >= acks.wanted { Ok(()) } else { Err(too_few(acks, acknowledged)) }
        }
        Value::Refusal { code, message } => Err(Failure::NoReplicaAcks { code, message }),
        other => {
            let message = format!("reply {}", truncated(&format!("{other:?}")));
            Err(Failure::NoReplicaAcks { code: "UNEXPECTED".to_owned(), message })
        }
    }
}

pub(crate) fn too_few(acks: ReplicaAcks, acknowledged: u32) -> Failure {
    Failure::NotReplicated { wanted: acks.wanted, acknowledged }
}
