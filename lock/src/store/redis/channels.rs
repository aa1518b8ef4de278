//! How messages are sent and listened for: to all nodes of a cluster, or in shards, where a channel lies in a slot as a
//! key does.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::command::Command;
use super::slot::slot_of;
use crate::name::lies_apart;

/// All who share a lock must go about it in the same way, or they do not hear of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Channels {
    /// Every node of a cluster hears of them.
    Everywhere,
    /// Only the node of the channel's slot does.
    Sharded,
}

/// Names in one SUBSCRIBE when all are wished for anew. A command of this size is written and read at once.
const AT_ONCE: usize = 1000;

impl Channels {
    pub(super) fn publish(self) -> &'static str {
        match self {
            Self::Everywhere => "PUBLISH",
            Self::Sharded => "SPUBLISH",
        }
    }

    /// Packs the commands that subscribe these: as few as that takes. In shards that is one for each slot.
    pub(super) fn subscribe(self, channels: &[Arc<str>], packed: &mut Vec<u8>) {
        let mut everywhere = Vec::new();
        let mut by_slot: BTreeMap<u16, Vec<&Arc<str>>> = BTreeMap::new();
        for channel in channels {
            if self.shards(channel) {
                by_slot.entry(slot_of(channel)).or_default().push(channel);
            } else {
                everywhere.push(channel);
            }
        }
        for channels in everywhere.chunks(AT_ONCE) {
            pack("SUBSCRIBE", channels, packed);
        }
        for channels in by_slot.values().flat_map(|channels| channels.chunks(AT_ONCE)) {
            pack("SSUBSCRIBE", channels, packed);
        }
    }

    pub(super) fn unsubscribe(self, channel: &Arc<str>, packed: &mut Vec<u8>) {
        let verb = if self.shards(channel) { "SUNSUBSCRIBE" } else { "UNSUBSCRIBE" };
        pack(verb, &[channel], packed);
    }

    fn shards(self, channel: &str) -> bool {
        self == Self::Sharded && !lies_apart(channel)
    }
}

fn pack(verb: &str, channels: &[&Arc<str>], packed: &mut Vec<u8>) {
    let words: Vec<&str> = [verb].into_iter().chain(channels.iter().map(|name| &***name)).collect();
    packed.extend(Command::of(&words));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The commands, each as one line.
    fn subscribed(channels: Channels, names: &[&str]) -> Vec<String> {
        let names: Vec<Arc<str>> = names.iter().map(|name| Arc::from(*name)).collect();
        let mut packed = Vec::new();
        channels.subscribe(&names, &mut packed);
        let text = String::from_utf8(packed).unwrap();
        let lines = |command: &str| {
            let words = command.split("\r\n").skip(2).step_by(2);
            words.collect::<Vec<_>>().join(" ").trim().to_owned()
        };
        text.split('*').skip(1).map(lines).collect()
    }

    #[test]
    fn in_shards_each_slot_has_a_command_of_its_own() {
        let names = ["x:{a}", "y:{b}", "z:{a}"];
        let all = subscribed(Channels::Everywhere, &names);
        assert_eq!(all, ["SUBSCRIBE x:{a} y:{b} z:{a}"]);
        let mut sharded = subscribed(Channels::Sharded, &names);
        sharded.sort();
        assert_eq!(sharded, ["SSUBSCRIBE x:{a} z:{a}", "SSUBSCRIBE y:{b}"]);
    }

    #[test]
    fn the_channel_of_a_latch_with_braces_is_listened_to_everywhere() {
        let channels =
            ["redisson_countdownlatch__channel__{a}", "redisson_countdownlatch__channel__{a{b}}"];
        let sharded = subscribed(Channels::Sharded, &channels);
        assert_eq!(
            sharded,
            [format!("SUBSCRIBE {}", channels[1]), format!("SSUBSCRIBE {}", channels[0])]
        );
    }

    #[test]
    fn a_thousand_go_together() {
        let names: Vec<String> = (0..2001).map(|number| format!("{{a}}{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(subscribed(Channels::Everywhere, &names).len(), 3);
        assert_eq!(subscribed(Channels::Sharded, &names).len(), 3);
    }
}
