//! Queries the hash slots of a cluster's nodes, and whether the cluster has sharded channels.

use crate::ops::value::Value;
use crate::store::failure::Failure;
use crate::store::redis::address::url::Address;
use crate::store::redis::cluster::slot_map::SlotRange;
use crate::store::redis::cluster::slots_reply::parse_ranges;
use crate::store::redis::net::connection::{Broken, Connection};
use crate::store::redis::net::deadline::Deadline;
use crate::store::redis::resp::decode::Bounds;
use crate::store::redis::resp::encode::Command;
use crate::store::redis::resp::pubsub::Channels;

/// A node's description of its cluster.
pub(crate) struct Description {
    pub(crate) ranges: Vec<SlotRange>,
    pub(crate) channels: Channels,
}

/// Queries a node for its description of the cluster. `asked` is the node's address, and `channels`
/// the result of an earlier query. The inner failure is an error reply, or a reply without usable
/// hash slots.
pub(crate) fn query_description(
    connection: &mut Connection,
    asked: &Address,
    channels: Option<Channels>,
    deadline: &mut Deadline,
) -> Result<Result<Description, Failure>, Broken> {
    // Every version supports this command; its successor, `CLUSTER SHARDS`, needs 7.0.
    let packed = Command::of(&["CLUSTER", "SLOTS"]);
    connection.set_bounds(Bounds::SLOTS);
    let reply = connection.call(&packed, deadline)?;
    if let Value::Refusal { code, message } = reply {
        if message.contains("cluster support disabled") {
            let reason = format!(
                "the server {asked} is no node of a cluster: write redis:// instead of \
                 redis-cluster://"
            );
            return Ok(Err(Failure::WrongTarget { reason }));
        }
        return Ok(Err(Failure::Refused { code, message }));
    }
    let ranges = match parse_ranges(&reply, asked) {
        // The node has not joined a cluster yet, or was reset.
        Some(ranges) if ranges.is_empty() => {
            return Ok(Err(Failure::refused("CLUSTERDOWN", "the node knows no node with slots")));
        }
        Some(ranges) => ranges,
        None => {
            let reason = "the node's reply to CLUSTER SLOTS cannot be read";
            return Ok(Err(Failure::refused("CLUSTERDOWN", reason)));
        }
    };
    deadline.refresh();
    let channels = match channels {
        Some(channels) => channels,
        None => query_channels(connection, deadline)?,
    };
    Ok(Ok(Description { ranges, channels }))
}

/// Queries whether channels are sharded, as Redisson does, because both must decide the same:
/// channels are sharded if the node answers the command without an error.
fn query_channels(
    connection: &mut Connection,
    deadline: &mut Deadline,
) -> Result<Channels, Broken> {
    let packed = Command::of(&["PUBSUB", "SHARDNUMSUB", "0"]);
    Ok(match connection.call(&packed, deadline)? {
        Value::Refusal { .. } => Channels::Everywhere,
        _ => Channels::Sharded,
    })
}
