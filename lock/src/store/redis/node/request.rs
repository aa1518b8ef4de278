//! Encodes an operation as a request, and determines the sender's next action from the reply.

use std::sync::Weak;
use std::time::Instant;

use crate::ops::operation::{AnyOperation, Argument, CommandKind, Request, Script};
use crate::ops::value::{ServerTime, Value};
use crate::store::failure::Failure;
use crate::store::listener::Listener;
use crate::store::redis::node::server_clock::ServerClock;
use crate::store::redis::resp::encode::Command;
use crate::store::redis::resp::pubsub::Channels;

/// Largest number of sends of an operation by one call. The server may not know the script, or the
/// estimate of the server's time may be wrong; the first reply corrects both. More resends mean
/// that another client flushes scripts, or that the server's clock is set, in a loop.
pub(crate) const MAX_SENDS: usize = 4;

/// The sender's action after a reply. `SendBody` and `Resend` mean that nothing has run, so sending
/// again is safe.
pub(crate) enum ReplyAction {
    /// The operation's reply.
    Return(Value),
    /// NOSCRIPT: send the script's text instead of its hash.
    SendBody,
    /// LATE: the estimate of the server's time was wrong, and is now corrected.
    Resend,
    /// An error reply.
    Fail { code: String, message: String },
}

/// Part of a cluster's error message for a key that a script did not declare.
const UNDECLARED_KEY: &str = "access a non local key";

/// Error messages inside a script for a command, key or channel that the ACL of the server's user
/// does not allow. Before Redis 7.2 these errors have no code of their own.
const DENIED: [&str; 2] = ["The user executing the script can't", "ACL failure in script"];

/// Classifies the reply to an operation that was not sent before `sent_at`. If the reply has the
/// server's time, the clock learns the time.
pub(crate) fn classify(
    (clock, listener): (&ServerClock, &Weak<dyn Listener>),
    operation: &AnyOperation<'_>,
    sent_at: Instant,
    reply: Value,
) -> ReplyAction {
    let script = operation.request().script_sent();
    let server = (clock, listener);
    classify_reply(server, script, |reply| operation.server_time(reply), sent_at, reply)
}

/// Classifies the reply to an operation with `script` which was sent at `sent_at` or later. Sets
/// `clock` by the server's time: a refusal of a late request has the time, and `server_time`
/// returns the time in any other reply, if there is one.
pub(crate) fn classify_reply(
    (clock, listener): (&ServerClock, &Weak<dyn Listener>),
    script: Option<&'static Script>,
    server_time: impl Fn(&Value) -> Option<ServerTime>,
    sent_at: Instant,
    reply: Value,
) -> ReplyAction {
    let (reply, refused) = reply.without_untold();
    if let (Some(why), Some(listener)) = (refused, listener.upgrade()) {
        listener.refused(&format!("publish: {}", text_of(&why)));
    }
    if let Some(now) = reply.as_late() {
        clock.learn(now, sent_at);
        return ReplyAction::Resend;
    }
    if let Some(now) = server_time(&reply) {
        clock.learn(now, sent_at);
    }
    match reply {
        Value::Refusal { code, .. } if code == "NOSCRIPT" => ReplyAction::SendBody,
        // The hash slot is migrating, and a key computed by the script is at the other node.
        Value::Refusal { code, message } if code == "ERR" && message.contains(UNDECLARED_KEY) => {
            ReplyAction::Fail { code: "TRYAGAIN".to_owned(), message }
        }
        // The message has the line of the script, which names the key.
        Value::Refusal { code, message } if code == "WRONGTYPE" => {
            ReplyAction::Fail { code, message }
        }
        Value::Refusal { code, message } => {
            let (code, message) = name_command(script, code, message);
            ReplyAction::Fail { code, message }
        }
        reply => ReplyAction::Return(reply),
    }
}

/// Puts the command's name in quotes in front of the message of a refusal inside a script, and
/// returns code and message. The message has the line of the script, or the script has already
/// named the command. A command that the ACL denies gets the code `NOPERM`.
fn name_command(
    script: Option<&'static Script>,
    code: String,
    message: String,
) -> (String, String) {
    const LINE: &str = "user_script:";
    let line = message.split_once(LINE).and_then(|(_, rest)| {
        rest.split(|other: char| !other.is_ascii_digit()).next()?.parse().ok()
    });
    let command = script.zip(line).and_then(|(script, line)| script.command_at(line));
    let named = message.strip_prefix('\'').and_then(|rest| rest.split_once("': "));
    let message = match (command, named) {
        (Some(command), _) => format!("'{command}': {}", text_of(&message)),
        (None, Some((command, rest))) => {
            let text = text_of(rest);
            format!("'{command}': {}", text.strip_prefix("ERR ").unwrap_or(text))
        }
        (None, None) => message,
    };
    let is_denied = code == "ERR" && DENIED.iter().any(|text| message.contains(text));
    (if is_denied { "NOPERM".to_owned() } else { code }, message)
}

/// Returns the server's message without the position in the script. The position is last, or before
/// Redis 7 first. The text itself may also have `script:`, as in "ACL failure in script: User ..".
fn text_of(message: &str) -> &str {
    let behind =
        message.rsplit_once(" script: ").filter(|(_, place)| place.contains("on @user_script"));
    let text = behind.map_or(message, |(text, _)| text);
    let Some((_, text)) = text.rsplit_once("user_script:") else { return text };
    text.trim_start_matches(|place: char| matches!(place, ' ' | ':' | '0'..='9'))
}

/// Returns the failure after too many sends, none of which ran.
pub(crate) fn too_many_resends() -> Failure {
    Failure::refused("TRYAGAIN", "the server's scripts or clock kept changing")
}

/// Appends the bytes of an operation to `packed`. A script is sent by its hash, or with `send_body`
/// as text, which the server then caches.
pub(crate) fn pack(
    packed: &mut Vec<u8>,
    operation: &AnyOperation<'_>,
    not_after: ServerTime,
    send_body: bool,
    channels: Channels,
) {
    let Request { kind, keys, arguments, .. } = operation.request();
    let key_bytes: usize = keys.iter().map(|key| key.len()).sum();
    let words = keys.len() + arguments.len();
    // Among the other words, the hash and an owner are the longest.
    let bytes = key_bytes + 48 * (arguments.len() + 2);
    let mut command = match kind {
        CommandKind::Command(verb) => {
            let mut command = Command::append(packed, 1 + words, bytes);
            command.word(verb.as_bytes());
            command
        }
        CommandKind::Script(script) => {
            let mut command = Command::append(packed, 3 + words, bytes);
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_a_script_are_left_out_of_what_each_server_says() {
        let denied = "ACL failure in script: User a has no permissions to run the 'time' command";
        let cases = [
            // Redis 6.2.
            (
                "Error running script (call to f_6b1b): @user_script:3: @user_script: 3: Wrong number",
                "Wrong number",
            ),
            // Redis 7.0.
            ("Wrong number script: 6b1b, on @user_script:3.", "Wrong number"),
            // Valkey 9.1, by its own scripts' names and in an error that a script hands on.
            (&format!("{denied} script: on @user_script:3."), denied),
            (denied, denied),
        ];
        for (message, text) in cases {
            assert_eq!(text_of(message), text);
        }
    }

    #[test]
    fn a_command_that_a_script_names_stays_named() {
        let cases = [
            // Redis 6.2, where the line of a script has a blank before its number.
            "'pexpire': @user_script: 22: The user executing the script can't run this command",
            // Redis 7.0.
            "'pexpire': ERR The user executing the script can't run this command",
        ];
        for message in cases {
            let (code, message) = name_command(None, "ERR".to_owned(), message.to_owned());
            let text = "'pexpire': The user executing the script can't run this command";
            assert_eq!((code.as_str(), message.as_str()), ("NOPERM", text));
        }
    }
}
