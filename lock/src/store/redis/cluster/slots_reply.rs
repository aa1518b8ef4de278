//! Parses a node's reply to `CLUSTER SLOTS`.

use crate::ops::value::Value;
use crate::store::redis::address::url::Address;
use crate::store::redis::cluster::slot_map::SlotRange;
use crate::store::redis::resp::hash_slot::HASH_SLOTS;

/// Parses the reply of the node `asked`: for each range both ends and the nodes, the master first.
/// `None` if the reply has another form, or the ranges contain more than all hash slots.
pub(crate) fn parse_ranges(value: &Value, asked: &Address) -> Option<Vec<SlotRange>> {
    let Value::Array(ranges) = value else { return None };
    let parsed: Option<Vec<_>> = ranges.iter().map(|range| parse_range(range, asked)).collect();
    // A hash slot has one master, so there are no more masters than hash slots. This bounds the
    // number of connections.
    parsed.filter(|ranges| {
        ranges.iter().map(SlotRange::slots).sum::<usize>() <= usize::from(HASH_SLOTS)
    })
}

/// Parses one range in the reply of the node `asked`. `None` if the range has another form.
fn parse_range(value: &Value, asked: &Address) -> Option<SlotRange> {
    let Value::Array(parts) = value else { return None };
    let [Value::Integer(first), Value::Integer(last), Value::Array(master), ..] = parts.as_slice()
    else {
        return None;
    };
    let [host, Value::Integer(port), ..] = master.as_slice() else { return None };
    let host = match host {
        Value::Text(host) => host,
        // Without a host, the node is on the host of `asked`.
        _ => "",
    };
    let address = asked.beside(host, u16::try_from(*port).ok()?)?;
    let (first, last) = (u16::try_from(*first).ok()?, u16::try_from(*last).ok()?);
    (first <= last && last < HASH_SLOTS).then_some(SlotRange { first, last, address })
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
            range(8192, 16_382, vec![node(text(""), 7002)]),
            range(16_383, 16_383, vec![node(Value::Nil, 7003)]),
        ]);
        let expected = [
            (0, 8191, "10.0.0.1", 7000),
            (8192, 16_382, "asked", 7002),
            (16_383, 16_383, "asked", 7003),
        ];
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
            Value::Array(vec![range(0, 16_384, vec![node(text("a"), 1)])]),
            Value::Array(vec![range(2, 1, vec![node(text("a"), 1)])]),
            Value::Array(vec![range(0, 1, vec![node(text("a b"), 1)])]),
            Value::Array(vec![range(0, 1, vec![node(text(&"a".repeat(256)), 1)])]),
        ] {
            assert_eq!(parse(&wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn ranges_with_more_than_all_slots_are_not_a_reply() {
        let one_slot = |port: i64| range(7, 7, vec![node(text("a"), port)]);
        let reply = |count: i64| Value::Array((1..=count).map(one_slot).collect());
        assert_eq!(parse(&reply(16_384)).map(|ranges| ranges.len()), Some(16_384));
        assert_eq!(parse(&reply(16_385)), None);
    }
}
