//! Encodes an operation as a request, and decides from the reply what the sender does next.

use std::time::Instant;

use crate::ops::operation::{AnyOperation, Argument, CommandKind, Request};
use crate::ops::value::{ServerTime, Value};
use crate::store::failure::Failure;
use crate::store::redis::node::server_clock::ServerClock;
use crate::store::redis::resp::encode::Command;
use crate::store::redis::resp::pubsub::Channels;

/// How often one call sends its operation. The server may not know the script yet, or the estimate
/// of its time may be wrong; the first reply corrects either. More resends mean that another client
/// flushes scripts, or that the server's clock is set, in a loop.
pub(crate) const MAX_SENDS: usize = 4;

/// What the sender does with a reply. After `SendBody` and `Resend` nothing has run, so sending
/// again is safe.
pub(crate) enum ReplyAction {
    /// This is the operation's reply.
    Return(Value),
    /// NOSCRIPT: send the script's text instead of its hash.
    SendBody,
    /// LATE: the estimate of the server's time was wrong, and is corrected now.
    Resend,
    /// The server answered an error.
    Fail { code: String, message: String },
}

/// Part of the message with which a cluster refuses a key that a script did not declare.
const UNDECLARED_KEY: &str = "access a non local key";

/// Classifies the reply to an operation that was not sent before `sent_at`. `clock` learns the
/// server's time if the reply carries it.
pub(crate) fn classify(
    clock: &ServerClock,
    operation: &dyn AnyOperation,
    sent_at: Instant,
    reply: Value,
) -> ReplyAction {
    classify_reply(clock, operation.server_time(&reply), sent_at, reply)
}

/// Classifies the reply to an operation that was not sent before `sent_at`. `clock` learns the
/// server's time: `server_time`, if the reply carries one, or that of a refusal because the request
/// came too late.
pub(crate) fn classify_reply(
    clock: &ServerClock,
    server_time: Option<ServerTime>,
    sent_at: Instant,
    reply: Value,
) -> ReplyAction {
    if let Some(now) = reply.as_late() {
        clock.learn(now, sent_at);
        return ReplyAction::Resend;
    }
    if let Some(now) = server_time {
        clock.learn(now, sent_at);
    }
    match reply {
        Value::Refusal { code, .. } if code == "NOSCRIPT" => ReplyAction::SendBody,
        // The slot is migrating, and a key that the script computes is at the other node.
        Value::Refusal { code, message } if code == "ERR" && message.contains(UNDECLARED_KEY) => {
            ReplyAction::Fail { code: "TRYAGAIN".to_owned(), message }
        }
        Value::Refusal { code, message } => ReplyAction::Fail { code, message },
        reply => ReplyAction::Return(reply),
    }
}

/// Nothing ran, and sending again at once did not help.
pub(crate) fn too_many_resends() -> Failure {
    Failure::refused("TRYAGAIN", "the server's scripts or clock kept changing")
}

/// The bytes of one operation. A script is sent by its hash, or with `send_body` as text, which the
/// server then caches.
pub(crate) fn pack(
    operation: &dyn AnyOperation,
    not_after: ServerTime,
    send_body: bool,
    channels: Channels,
) -> Vec<u8> {
    let Request { kind, keys, arguments, .. } = operation.request();
    let key_bytes: usize = keys.iter().map(|key| key.len()).sum();
    let words = keys.len() + arguments.len();
    // Of the other words, the hash and an owner are the longest.
    let bytes = key_bytes + 48 * (arguments.len() + 2);
    let mut command = match kind {
        CommandKind::Command(verb) => {
            let mut command = Command::new(1 + words, bytes);
            command.word(verb.as_bytes());
            command
        }
        CommandKind::Script(script) => {
            let mut command = Command::new(3 + words, bytes);
            let (verb, text) = if send_body {
                ("EVAL", script.source().as_bytes())
            } else {
                ("EVALSHA", script.hash().as_slice())
            };
            command.word(verb.as_bytes());
            command.word(text);
            command.number(keys.len().try_into().unwrap_or(i64::MAX));
            command
        }
    };
    for key in keys {
        command.word(key.as_bytes());
    }
    for argument in arguments {
        match argument {
            Argument::Text(text) => command.word(text.as_bytes()),
            Argument::Bytes(bytes) => command.word(bytes),
            Argument::Owner(owner) => command.owner(owner),
            Argument::Writer(owner) => command.writer(owner),
            Argument::Permit(owner) => command.word(&owner.bytes()),
            Argument::Number(number) => command.number(number),
            Argument::Channel(name) => command.word_of(&name.channel_parts()),
            Argument::NotAfter => command.number(not_after.0),
            Argument::Publish => command.word(channels.publish().as_bytes()),
        }
    }
    command.into_bytes()
}
