//! The commands for messages. In a cluster, messages are sent to all nodes, or sharded: a channel
//! then has a hash slot, like a key.
//!
//! Messages are sharded exactly when Redisson does so. One exception is the channel of a latch with
//! braces in its name. This channel is in another hash slot than the latch, where Redisson's
//! scripts fail, so its messages are sent to all nodes.

use crate::model::name::is_in_other_hash_slot;
use crate::store::redis::resp::encode::Command;

/// Whether channels are sharded. All clients of a lock must decide the same, or miss messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Channels {
    /// Every node of a cluster has the messages.
    Everywhere,
    /// Only the node of the channel's hash slot has the messages.
    Sharded,
}

impl Channels {
    /// Returns the verb of the command that publishes a message.
    pub(crate) fn publish(self) -> &'static str {
        match self {
            Self::Everywhere => "PUBLISH",
            Self::Sharded => "SPUBLISH",
        }
    }

    /// Appends a command to subscribe one channel to `packed`, so that the reply concerns only this
    /// channel.
    pub(crate) fn subscribe(self, channel: &str, packed: &mut Vec<u8>) {
        let verb = if self.is_sharded(channel) { "SSUBSCRIBE" } else { "SUBSCRIBE" };
        packed.extend(Command::of(&[verb, channel]));
    }

    /// Appends a command to unsubscribe one channel to `packed`.
    pub(crate) fn unsubscribe(self, channel: &str, packed: &mut Vec<u8>) {
        let verb = if self.is_sharded(channel) { "SUNSUBSCRIBE" } else { "UNSUBSCRIBE" };
        packed.extend(Command::of(&[verb, channel]));
    }

    /// Returns whether messages of `channel` are sharded.
    fn is_sharded(self, channel: &str) -> bool {
        self == Self::Sharded && !is_in_other_hash_slot(channel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subscribed(channels: Channels, name: &str) -> Vec<u8> {
        let mut packed = Vec::new();
        channels.subscribe(name, &mut packed);
        packed
    }

    #[test]
    fn a_sharded_channel_is_subscribed_by_ssubscribe() {
        let name = "x:{a}";
        assert_eq!(subscribed(Channels::Everywhere, name), Command::of(&["SUBSCRIBE", name]));
        assert_eq!(subscribed(Channels::Sharded, name), Command::of(&["SSUBSCRIBE", name]));
    }

    #[test]
    fn the_channel_of_a_latch_with_braces_is_not_sharded() {
        let [plain, braces] =
            ["redisson_countdownlatch__channel__{a}", "redisson_countdownlatch__channel__{a{b}}"];
        assert_eq!(subscribed(Channels::Sharded, plain), Command::of(&["SSUBSCRIBE", plain]));
        assert_eq!(subscribed(Channels::Sharded, braces), Command::of(&["SUBSCRIBE", braces]));
    }
}
