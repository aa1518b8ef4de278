//! The commands of messages: in a cluster they go to all nodes, or are sharded, where a channel has
//! a slot as a key has.

use crate::model::name::lies_apart;
use crate::store::redis::resp::encode::Command;

/// Whether channels are sharded. All clients that share a lock must decide the same, or do not get
/// each other's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Channels {
    /// Every node of a cluster has the messages.
    Everywhere,
    /// Only the node of the channel's slot has them.
    Sharded,
}

impl Channels {
    pub(crate) fn publish(self) -> &'static str {
        match self {
            Self::Everywhere => "PUBLISH",
            Self::Sharded => "SPUBLISH",
        }
    }

    /// Encodes a command that subscribes one channel, so that its reply is about that one.
    pub(crate) fn subscribe(self, channel: &str, packed: &mut Vec<u8>) {
        let verb = if self.is_sharded(channel) { "SSUBSCRIBE" } else { "SUBSCRIBE" };
        packed.extend(Command::of(&[verb, channel]));
    }

    pub(crate) fn unsubscribe(self, channel: &str, packed: &mut Vec<u8>) {
        let verb = if self.is_sharded(channel) { "SUNSUBSCRIBE" } else { "UNSUBSCRIBE" };
        packed.extend(Command::of(&[verb, channel]));
    }

    fn is_sharded(self, channel: &str) -> bool {
        self == Self::Sharded && !lies_apart(channel)
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
