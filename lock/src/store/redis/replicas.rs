//! Whether enough replicas have heard of what was granted: asked right behind the request, on the same connection.

use std::io;

use super::connection::{Broken, Connection, Limit};
use crate::config::ReplicaAcks;
use crate::error::shortened;
use crate::store::Failure;
use crate::value::Value;

/// The question that goes behind a request.
pub(super) fn pack(acks: ReplicaAcks, limit: Limit) -> Vec<u8> {
    let wait = acks.timeout.min(limit.left().unwrap_or_default());
    // Zero would be for ever.
    let millis = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).max(1);
    redis::cmd("WAIT").arg(acks.wanted).arg(millis).get_packed_command()
}

/// Waits for the answer: a failure, if what was granted must not be kept. `None` if it does not come within the limit,
/// as a server looks at its own only ten times a second. Then the connection is of no use to anybody else.
pub(super) fn listen(
    connection: &mut Connection,
    acks: ReplicaAcks,
    limit: &mut Limit,
) -> Result<Option<Result<(), Failure>>, Broken> {
    limit.refresh();
    match connection.receive(limit) {
        Ok(answer) => Ok(Some(judge(acks, answer))),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(None),
        Err(error) => Err(Broken::Unanswered(error)),
    }
}

fn judge(acks: ReplicaAcks, answer: Value) -> Result<(), Failure> {
    match answer {
        Value::Integer(acknowledged) => {
            let acknowledged = u32::try_from(acknowledged).unwrap_or_default();
            if acknowledged >= acks.wanted { Ok(()) } else { Err(too_few(acks, acknowledged)) }
        }
        Value::Refusal { code, message } => Err(Failure::NoReplicaAcks { code, message }),
        other => {
            let message = format!("reply {}", shortened(&format!("{other:?}")));
            Err(Failure::NoReplicaAcks { code: "UNEXPECTED".to_owned(), message })
        }
    }
}

pub(super) fn too_few(acks: ReplicaAcks, acknowledged: u32) -> Failure {
    Failure::NotReplicated { wanted: acks.wanted, acknowledged }
}
