//! What a node says of its cluster: who serves which slots, and how messages are sent.

use super::address::Address;
use super::channels::Channels;
use super::command::Command;
use super::connection::{Broken, Connection, Limit};
use super::slot_map::Range;
use crate::value::Value;

/// Asks who serves which slots. The inner error is what the node answered instead.
pub(super) fn ask_slots(
    connection: &mut Connection,
    limit: &mut Limit,
    asked: &Address,
) -> Result<Result<Vec<Range>, (String, String)>, Broken> {
    // All versions have it. Its successor, CLUSTER SHARDS, came with 7.0.
    let packed = Command::of(&["CLUSTER", "SLOTS"]);
    Ok(match connection.call(&packed, limit)? {
        Value::Refusal { code, message } => Err((code, message)),
        value => match ranges(&value, asked) {
            Some(ranges) if !ranges.is_empty() => Ok(ranges),
            // It has been told nothing yet, or to forget everything.
            _ => Err(("CLUSTERDOWN".to_owned(), "the node knows nobody with a slot".to_owned())),
        },
    })
}

/// Asks as Redisson does, which must come to the same: messages are sent in shards if this is answered without an error.
pub(super) fn ask_channels(
    connection: &mut Connection,
    limit: &mut Limit,
) -> Result<Channels, Broken> {
    let packed = Command::of(&["PUBSUB", "SHARDNUMSUB", "0"]);
    Ok(match connection.call(&packed, limit)? {
        Value::Refusal { .. } => Channels::Everywhere,
        _ => Channels::Sharded,
    })
}

/// Reads an answer to `CLUSTER SLOTS`: for each range its ends, and nodes, of which the first is the master.
fn ranges(value: &Value, asked: &Address) -> Option<Vec<Range>> {
    let Value::Array(ranges) = value else { return None };
    ranges.iter().map(|range| one_range(range, asked)).collect()
}

fn one_range(value: &Value, asked: &Address) -> Option<Range> {
    let Value::Array(parts) = value else { return None };
    let [Value::Integer(first), Value::Integer(last), Value::Array(master), ..] = parts.as_slice()
    else {
        return None;
    };
    let [host, Value::Integer(port), ..] = master.as_slice() else { return None };
    let host = match host {
        Value::Text(host) => host,
        // It does not say, and then means its own.
        _ => "",
    };
    let address = asked.beside(host, u16::try_from(*port).ok()?);
    Some(Range { first: u16::try_from(*first).ok()?, last: u16::try_from(*last).ok()?, address })
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

    fn read(value: &Value) -> Option<Vec<Range>> {
        ranges(value, &Address { host: "asked".to_owned(), port: 1 })
    }

    #[test]
    fn the_first_node_of_each_range_is_its_master() {
        let answer = Value::Array(vec![
            range(0, 8191, vec![node(text("10.0.0.1"), 7000), node(text("10.0.0.2"), 7001)]),
            range(8192, 16_383, vec![node(text(""), 7002)]),
            range(5, 5, vec![node(Value::Nil, 7003)]),
        ]);
        let expected =
            [(0, 8191, "10.0.0.1", 7000), (8192, 16_383, "asked", 7002), (5, 5, "asked", 7003)];
        let expected: Vec<Range> = expected
            .map(|(first, last, host, port)| {
                let address = Address { host: host.to_owned(), port };
                Range { first, last, address }
            })
            .into();
        assert_eq!(read(&answer), Some(expected));
    }

    #[test]
    fn an_answer_of_another_form_is_none() {
        for wrong in [
            Value::Nil,
            Value::Array(vec![Value::Nil]),
            Value::Array(vec![range(0, 1, vec![])]),
            Value::Array(vec![range(-1, 1, vec![node(text("a"), 1)])]),
            Value::Array(vec![range(0, 1, vec![node(text("a"), 70_000)])]),
        ] {
            assert_eq!(read(&wrong), None, "{wrong:?}");
        }
    }
}
