//! Asks a node of a cluster which node serves which slots, and whether it has sharded channels.

use crate::ops::value::Value;
use crate::store::failure::Failure;
use crate::store::redis::address::url::Address;
use crate::store::redis::cluster::slot_map::SlotRange;
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

/// Asks a node for its description of the cluster. `asked` is its address, and `channels` what is
/// known already. The inner failure is an error reply.
pub(crate) fn query_description(
    connection: &mut Connection,
    asked: &Address,
    channels: Option<Channels>,
    deadline: &mut Deadline,
) -> Result<Result<Description, Failure>, Broken> {
    // Every version supports it; its successor, CLUSTER SHARDS, needs 7.0.
    let packed = Command::of(&["CLUSTER", "SLOTS"]);
    connection.set_bounds(Bounds::SLOTS);
    let reply = connection.call(&packed, deadline)?;
    if let Value::Refusal { code, message } = reply {
        return Ok(Err(Failure::Refused { code, message }));
    }
    let ranges = parse_ranges(&reply, asked).filter(|ranges| !ranges.is_empty());
    let Some(ranges) = ranges else {
        // The node has not joined a cluster yet, or was reset.
        return Ok(Err(Failure::refused("CLUSTERDOWN", "the node knows no node with slots")));
    };
    deadline.refresh();
    let channels = match channels {
        Some(channels) => channels,
        None => query_channels(connection, deadline)?,
    };
    Ok(Ok(Description { ranges, channels }))
}

/// Asks as Redisson does, because both must decide the same: channels are sharded if the node
/// answers this without an error.
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

/// Parses the reply to `CLUSTER SLOTS`: for each range its ends and its nodes, the master first.
fn parse_ranges(value: &Value, asked: &Address) -> Option<Vec<SlotRange>> {
    let Value::Array(ranges) = value else { return None };
    ranges.iter().map(|range| parse_range(range, asked)).collect()
}

fn parse_range(value: &Value, asked: &Address) -> Option<SlotRange> {
    let Value::Array(parts) = value else { return None };
    let [Value::Integer(first), Value::Integer(last), Value::Array(master), ..] = parts.as_slice()
    else {
        return None;
    };
    let [host, Value::Integer(port), ..] = master.as_slice() else { return None };
    let host = match host {
        Value::Text(host) => host,
        // Without a host, it is the host that was asked.
        _ => "",
    };
    let address = asked.beside(host, u16::try_from(*port).ok()?);
    Some(SlotRange {
        first: u16::try_from(*first).ok()?,
        last: u16::try_from(*last).ok()?,
        address,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(host: Value, port: i64) -> Value {
        Value::Array(vec![host, Value::Integer(port), Value::Text("id".to_owned())])
    }

    fn text(text: &str) -> Value {
        Value::Text(text.to_owned())
    }

    fn range(first: i64, last: i64, nodes: Vec<Value>) -> Value {
        let mut parts = vec![Value::Integer(first), Value::Integer(last)];
        parts.extend(nodes);
        Value::Array(parts)
    }

    fn parse(value: &Value) -> Option<Vec<SlotRange>> {
        parse_ranges(value, &Address { host: "asked".to_owned(), port: 1 })
    }

    #[test]
    fn the_first_node_of_each_range_is_its_master() {
        let reply = Value::Array(vec![
            range(0, 8191, vec![node(text("10.0.0.1"), 7000), node(text("10.0.0.2"), 7001)]),
            range(8192, 16_383, vec![node(text(""), 7002)]),
            range(5, 5, vec![node(Value::Nil, 7003)]),
        ]);
        let expected =
            [(0, 8191, "10.0.0.1", 7000), (8192, 16_383, "asked", 7002), (5, 5, "asked", 7003)];
        let expected: Vec<SlotRange> = expected
            .map(|(first, last, host, port)| {
                let address = Address { host: host.to_owned(), port };
                SlotRange { first, last, address }
            })
            .into();
        assert_eq!(parse(&reply), Some(expected));
    }

    #[test]
    fn a_reply_of_another_form_is_none() {
        for wrong in [
            Value::Nil,
            Value::Array(vec![Value::Nil]),
            Value::Array(vec![range(0, 1, vec![])]),
            Value::Array(vec![range(-1, 1, vec![node(text("a"), 1)])]),
            Value::Array(vec![range(0, 1, vec![node(text("a"), 70_000)])]),
        ] {
            assert_eq!(parse(&wrong), None, "{wrong:?}");
        }
    }
}
