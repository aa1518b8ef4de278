//! The commands of a subscription: the queued and the unanswered commands.
//!
//! A server answers the commands of one connection in order, so each reply belongs to the oldest
//! unanswered command. The order matters for errors, which name no channel. Each channel has its
//! own command, so an error for one channel does not affect another channel.
//!
//! The memory is bounded: a channel is retained while wanted or known to the server, and at most
//! [`MAX_UNANSWERED_BYTES`] of commands are unanswered.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::store::redis::resp::encode::Command;
use crate::store::redis::resp::pubsub::Channels;

/// Largest number of bytes of unanswered commands, not counting the last command. Further commands
/// wait for replies.
pub(crate) const MAX_UNANSWERED_BYTES: usize = 64 * 1024;

/// Length of the queue above which UNSUBSCRIBEs do not wait for the next flush.
const MAX_LAZY_COMMANDS: usize = 64;

/// The channels of a subscription, and their commands.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// In order, so that a simulation is reproducible.
    channels: BTreeMap<Arc<str>, Channel>,
    /// Channels with a command to send, in the order of the calls.
    queue: BTreeMap<u64, Arc<str>>,
    /// The next position in the queue.
    next: u64,
    /// Commands at lower positions may be sent. The rest wait for the next flush.
    flushed: u64,
    ping: bool,
    /// Commands sent and not answered, the oldest first.
    unanswered: VecDeque<Unanswered>,
    unanswered_bytes: usize,
}

/// The state of one channel: wanted by the client, and known to the server.
#[derive(Debug, Default)]
struct Channel {
    wanted: bool,
    /// Whether the last command sent for the channel is a SUBSCRIBE.
    subscribed: bool,
    /// Number of unanswered SUBSCRIBEs. Messages arrive only once the last is confirmed.
    unconfirmed: u32,
    /// Position in the queue, while a command is to be sent for the channel.
    position: Option<u64>,
    /// Whether the server does not serve the channel. [`Outbox::retry_unserved`] subscribes the
    /// channel again.
    unserved: bool,
}

/// A command that was sent and is not answered, with its length.
#[derive(Debug)]
struct Unanswered {
    command: SentCommand,
    bytes: usize,
}

/// A command that was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SentCommand {
    Subscribe(Arc<str>),
    Unsubscribe(Arc<str>),
    Ping,
}

/// A reply that does not match the oldest unanswered command. Later replies cannot be assigned
/// either.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UnexpectedReply;

impl Outbox {
    /// Marks a channel as wanted, and queues a SUBSCRIBE if necessary. Returns whether the
    /// channel's messages arrive already.
    pub(crate) fn subscribe(&mut self, name: &Arc<str>) -> bool {
        let channel = self.channels.entry(Arc::clone(name)).or_default();
        channel.wanted = true;
        channel.unserved = false;
        let is_live = channel.subscribed && channel.unconfirmed == 0;
        self.update_queue(name);
        is_live
    }

    /// Marks a channel as unwanted. The UNSUBSCRIBE is sent with the next flush, or when many
    /// commands wait.
    pub(crate) fn unsubscribe(&mut self, name: &str) {
        if let Some(channel) = self.channels.get_mut(name) {
            channel.wanted = false;
            channel.unserved = false;
            self.update_queue(name);
        }
        if self.queue.len() > MAX_LAZY_COMMANDS {
            self.flush();
        }
    }

    /// Lets [`fill`](Self::fill) send every command in the queue.
    pub(crate) fn flush(&mut self) {
        self.flushed = self.next;
    }

    /// Queues a PING if no reply is due, and otherwise cancels a queued PING.
    pub(crate) fn ping(&mut self) {
        self.ping = self.unanswered.is_empty();
    }

    /// Returns whether any channel is wanted.
    pub(crate) fn wants_any(&self) -> bool {
        self.channels.values().any(|channel| channel.wanted)
    }

    /// Appends the commands that may be sent now to `packed`, and records the commands as
    /// unanswered.
    pub(crate) fn fill(&mut self, channels: Channels, packed: &mut Vec<u8>) {
        // Waits until half of the bytes are answered, so that one write carries many commands.
        if self.unanswered_bytes > MAX_UNANSWERED_BYTES / 2 {
            return;
        }
        if std::mem::take(&mut self.ping) {
            packed.extend_from_slice(&Command::of(&["PING"]));
            self.note_sent(SentCommand::Ping, packed.len());
        }
        while self.unanswered_bytes < MAX_UNANSWERED_BYTES {
            // The first channel of the queue, if flushed.
            let Some(first) = self.queue.first_entry().filter(|first| *first.key() < self.flushed)
            else {
                return;
            };
            let name = first.remove();
            let Some(channel) = self.channels.get_mut(&name) else { continue };
            channel.position = None;
            channel.subscribed = channel.wanted;

            // The channel's command, which the server is going to answer.
            let before = packed.len();
            let command = if channel.wanted {
                channel.unconfirmed += 1;
                channels.subscribe(&name, packed);
                SentCommand::Subscribe(Arc::clone(&name))
            } else {
                channels.unsubscribe(&name, packed);
                SentCommand::Unsubscribe(Arc::clone(&name))
            };
            self.note_sent(command, packed.len() - before);
            self.forget_if_unused(&name);
        }
    }

    /// Handles the confirmation of a SUBSCRIBE. Returns whether messages of the channel arrive from
    /// now on.
    pub(crate) fn confirmed(&mut self, name: &str) -> Result<bool, UnexpectedReply> {
        self.answered(|sent| matches!(sent, SentCommand::Subscribe(sent) if **sent == *name))?;
        let Some(channel) = self.channels.get_mut(name) else { return Ok(false) };
        channel.unconfirmed -= 1;
        // With another SUBSCRIBE or an UNSUBSCRIBE in flight, messages may still stop.
        let is_live = channel.wanted && channel.subscribed && channel.unconfirmed == 0;
        self.forget_if_unused(name);
        Ok(is_live)
    }

    /// Handles the confirmation of an UNSUBSCRIBE. With `may_evict`, a server may also report,
    /// without a command, the end of its service for the channel. Then the channel is subscribed
    /// again at once: the error names the node that serves the channel.
    pub(crate) fn ended(&mut self, name: &str, may_evict: bool) -> Result<(), UnexpectedReply> {
        let answered =
            self.answered(|sent| matches!(sent, SentCommand::Unsubscribe(sent) if **sent == *name));
        if answered.is_ok() || !may_evict {
            return answered.map(drop);
        }
        if let Some(channel) = self.channels.get_mut(name)
            // An unconfirmed SUBSCRIBE is going to be refused anyway.
            && channel.unconfirmed == 0
        {
            channel.subscribed = false;
            self.update_queue(name);
            self.flush();
        }
        Ok(())
    }

    /// Handles the reply to a PING.
    pub(crate) fn pong(&mut self) -> Result<(), UnexpectedReply> {
        self.answered(|sent| *sent == SentCommand::Ping).map(drop)
    }

    /// Handles an error for the oldest command, and returns the command. Fails if `matches` does
    /// not accept the command.
    ///
    /// A refused channel is not subscribed again until the next [`subscribe`](Self::subscribe).
    /// With `unserved`, [`retry_unserved`](Self::retry_unserved) also subscribes the channel again.
    pub(crate) fn refused(
        &mut self,
        matches: impl FnOnce(&SentCommand) -> bool,
        unserved: bool,
    ) -> Result<SentCommand, UnexpectedReply> {
        let command = self.answered(matches)?;
        if let SentCommand::Subscribe(name) = &command
            && let Some(channel) = self.channels.get_mut(name)
        {
            channel.unconfirmed -= 1;
            // Without a later SUBSCRIBE or UNSUBSCRIBE, the server does not know the channel now.
            if channel.unconfirmed == 0 && channel.subscribed {
                channel.subscribed = false;
                channel.unserved = unserved;
            }
            if !channel.wanted {
                self.update_queue(name);
            }
        }
        Ok(command)
    }

    /// Subscribes the unserved channels again. Returns whether there was an unserved channel.
    pub(crate) fn retry_unserved(&mut self) -> bool {
        let unserved = |(name, channel): (&Arc<str>, &mut Channel)| {
            std::mem::take(&mut channel.unserved).then(|| Arc::clone(name))
        };
        let names: Vec<Arc<str>> = self.channels.iter_mut().filter_map(unserved).collect();
        for name in &names {
            self.update_queue(name);
        }
        self.flush();
        !names.is_empty()
    }

    /// Handles the loss of the connection. Every wanted channel is subscribed again on the next
    /// connection.
    pub(crate) fn disconnected(&mut self) {
        self.unanswered.clear();
        self.unanswered_bytes = 0;
        self.ping = false;
        // The server has forgotten every channel, so only the SUBSCRIBEs of wanted channels are
        // left to send.
        self.queue.clear();
        self.channels.retain(|_, channel| channel.wanted);
        for (name, channel) in &mut self.channels {
            *channel = Channel { wanted: true, position: Some(self.next), ..Channel::default() };
            self.queue.insert(self.next, Arc::clone(name));
            self.next += 1;
        }
        self.flush();
    }

    /// Removes and returns the oldest unanswered command. Fails if `matches` does not accept the
    /// command.
    fn answered(
        &mut self,
        matches: impl FnOnce(&SentCommand) -> bool,
    ) -> Result<SentCommand, UnexpectedReply> {
        if !self.unanswered.front().is_some_and(|oldest| matches(&oldest.command)) {
            return Err(UnexpectedReply);
        }
        let Unanswered { command, bytes } = self.unanswered.pop_front().ok_or(UnexpectedReply)?;
        self.unanswered_bytes -= bytes;
        Ok(command)
    }

    /// Records a command of `bytes` bytes as unanswered.
    fn note_sent(&mut self, command: SentCommand, bytes: usize) {
        self.unanswered.push_back(Unanswered { command, bytes });
        self.unanswered_bytes += bytes;
    }

    /// Queues a channel if `wanted` and `subscribed` differ. Otherwise removes the channel from the
    /// queue, and forgets an unused channel.
    fn update_queue(&mut self, name: &str) {
        let Some((name, _)) = self.channels.get_key_value(name) else { return };
        let name = Arc::clone(name);
        let Some(channel) = self.channels.get_mut(&name) else { return };
        if channel.wanted == channel.subscribed {
            // The channel's command was not sent yet, and is not needed any more.
            if let Some(position) = channel.position.take() {
                self.queue.remove(&position);
            }
            self.forget_if_unused(&name);
        } else if channel.position.is_none() {
            channel.position = Some(self.next);
            self.queue.insert(self.next, name);
            self.next += 1;
        }
    }

    /// Forgets a channel that is not wanted and not known to the server.
    fn forget_if_unused(&mut self, name: &str) {
        let is_unused =
            |channel: &Channel| !channel.wanted && !channel.subscribed && channel.unconfirmed == 0;
        if self.channels.get(name).is_some_and(is_unused) {
            self.channels.remove(name);
        }
    }
}

#[cfg(test)]
impl Outbox {
    /// Number of wanted channels.
    pub(crate) fn wanted(&self) -> usize {
        self.channels.values().filter(|channel| channel.wanted).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Arc<str> {
        Arc::from(text)
    }

    /// The commands that are sent now: the first letter of the verb, and the channel.
    fn sent(outbox: &mut Outbox) -> Vec<String> {
        let mut packed = Vec::new();
        outbox.flush();
        outbox.fill(Channels::Everywhere, &mut packed);
        let text = String::from_utf8(packed).unwrap();
        let words = |command: &str| {
            let words: Vec<_> = command.split("\r\n").skip(2).step_by(2).collect();
            format!("{} {}", &words[0][..1], words[1..].join(" ")).trim().to_owned()
        };
        text.split('*').skip(1).map(words).collect()
    }

    fn refuse(outbox: &mut Outbox) -> SentCommand {
        outbox.refused(|_| true, false).unwrap()
    }

    #[test]
    fn error_reply_fails_the_oldest_command_and_a_retry_goes_live() {
        let mut outbox = Outbox::default();
        let (a, b) = (name("a"), name("b"));
        assert!(!outbox.subscribe(&a) && !outbox.subscribe(&b));
        assert_eq!(sent(&mut outbox), ["S a", "S b"]);
        assert_eq!(refuse(&mut outbox), SentCommand::Subscribe(Arc::clone(&a)));
        assert_eq!(outbox.confirmed("b"), Ok(true));
        // It is subscribed again only when it is wanted once more.
        assert!(sent(&mut outbox).is_empty());
        assert!(!outbox.subscribe(&a));
        assert_eq!(sent(&mut outbox), ["S a"]);
        assert_eq!(outbox.confirmed("a"), Ok(true));
        assert!(outbox.subscribe(&a));
    }

    #[test]
    fn a_refused_channel_that_is_not_wanted_is_forgotten() {
        let mut outbox = Outbox::default();
        for unsubscribed_first in [false, true] {
            outbox.subscribe(&name("a"));
            assert_eq!(sent(&mut outbox), ["S a"]);
            if unsubscribed_first {
                outbox.unsubscribe("a");
                refuse(&mut outbox);
            } else {
                refuse(&mut outbox);
                outbox.unsubscribe("a");
            }
            assert!(sent(&mut outbox).is_empty());
            assert!(outbox.channels.is_empty() && outbox.queue.is_empty());
            assert_eq!((outbox.unanswered.len(), outbox.unanswered_bytes), (0, 0));
        }
    }

    #[test]
    fn only_the_last_confirmation_makes_a_channel_live() {
        let mut outbox = Outbox::default();
        let a = name("a");
        outbox.subscribe(&a);
        let mut all = sent(&mut outbox);
        outbox.unsubscribe("a");
        all.extend(sent(&mut outbox));
        outbox.subscribe(&a);
        all.extend(sent(&mut outbox));
        assert_eq!(all, ["S a", "U a", "S a"]);
        assert_eq!(outbox.confirmed("a"), Ok(false));
        assert_eq!(outbox.ended("a", false), Ok(()));
        assert_eq!(outbox.confirmed("a"), Ok(true));
    }

    #[test]
    fn channel_wanted_before_its_unsubscribe_is_sent_stays_live() {
        let mut outbox = Outbox::default();
        outbox.subscribe(&name("a"));
        assert_eq!(sent(&mut outbox), ["S a"]);
        assert_eq!(outbox.confirmed("a"), Ok(true));
        outbox.unsubscribe("a");
        assert!(outbox.subscribe(&name("a")));
        assert!(sent(&mut outbox).is_empty());
    }

    #[test]
    fn an_unsubscribe_waits_for_a_flush_or_until_many_wait() {
        let mut outbox = Outbox::default();
        let mut packed = Vec::new();
        let names: Vec<_> =
            (0..=MAX_LAZY_COMMANDS).map(|number| name(&number.to_string())).collect();
        for name in &names {
            outbox.subscribe(name);
        }
        assert_eq!(sent(&mut outbox).len(), names.len());
        for name in &names {
            outbox.fill(Channels::Everywhere, &mut packed);
            assert!(packed.is_empty());
            assert_eq!(outbox.confirmed(name), Ok(true));
            outbox.unsubscribe(name);
        }
        outbox.fill(Channels::Everywhere, &mut packed);
        assert!(!packed.is_empty());
        assert!(outbox.queue.is_empty());
    }

    #[test]
    fn a_reply_that_does_not_match_the_oldest_command_is_unexpected() {
        let mut outbox = Outbox::default();
        assert_eq!(outbox.confirmed("a"), Err(UnexpectedReply));
        outbox.subscribe(&name("a"));
        sent(&mut outbox);
        assert_eq!(outbox.confirmed("b"), Err(UnexpectedReply));
        assert_eq!(outbox.ended("a", false), Err(UnexpectedReply));
        assert_eq!(outbox.pong(), Err(UnexpectedReply));
        assert_eq!(outbox.confirmed("a"), Ok(true));
        assert_eq!(outbox.refused(|_| true, false), Err(UnexpectedReply));
    }

    #[test]
    fn a_ping_is_sent_only_if_no_other_reply_is_due() {
        let mut outbox = Outbox::default();
        outbox.ping();
        assert_eq!(sent(&mut outbox), ["P"]);
        outbox.ping();
        assert!(sent(&mut outbox).is_empty());
        assert_eq!(outbox.pong(), Ok(()));
    }

    #[test]
    fn evicted_channel_resubscribes_and_unserved_channel_on_retry() {
        let mut outbox = Outbox::default();
        outbox.subscribe(&name("a"));
        sent(&mut outbox);
        outbox.confirmed("a").unwrap();
        outbox.ended("a", true).unwrap();
        assert_eq!(sent(&mut outbox), ["S a"]);
        outbox.refused(|_| true, true).unwrap();
        assert!(sent(&mut outbox).is_empty());
        assert!(outbox.retry_unserved());
        assert_eq!(sent(&mut outbox), ["S a"]);
        assert!(!outbox.retry_unserved());
    }

    #[test]
    fn a_new_connection_subscribes_what_is_wanted() {
        let mut outbox = Outbox::default();
        for name in ["a", "b"].map(name) {
            outbox.subscribe(&name);
        }
        sent(&mut outbox);
        outbox.unsubscribe("a");
        outbox.disconnected();
        // Without a connection nothing is kept of a channel that is not wanted.
        outbox.subscribe(&name("c"));
        outbox.unsubscribe("c");
        assert_eq!(outbox.channels.len(), 1);
        assert_eq!(sent(&mut outbox), ["S b"]);
        assert_eq!(outbox.confirmed("b"), Ok(true));
    }

    #[test]
    fn the_bytes_of_unanswered_commands_are_bounded() {
        let mut outbox = Outbox::default();
        let long = "x".repeat(60_000);
        let names: Vec<_> = (0..100).map(|number| name(&format!("{number}{long}"))).collect();
        for name in &names {
            outbox.subscribe(name);
        }
        let mut order = names.iter();
        while outbox.unanswered.len() < order.len() || !outbox.queue.is_empty() {
            let mut packed = Vec::new();
            outbox.flush();
            outbox.fill(Channels::Everywhere, &mut packed);
            assert!(
                outbox.unanswered_bytes < MAX_UNANSWERED_BYTES + 2 * long.len(),
                "{}",
                outbox.unanswered_bytes
            );
            assert!(packed.len() <= outbox.unanswered_bytes);
            assert_eq!(outbox.confirmed(order.next().unwrap()), Ok(true));
        }
    }
}
