//! An operation as bytes, and what its reply asks of the sender.

use super::channels::Channels;
use super::command::Command;
use super::server_clock::ServerClock;
use crate::op::{Argument, Form, Operation};
use crate::store::Failure;
use crate::value::{ServerTime, Value};

/// How often one call is packed anew because the server did not know the script, or our idea of its time was wrong.
/// Each cures itself by the first answer; more than this means that somebody flushes scripts or sets clocks in a loop.
pub(super) const ROUNDS: usize = 4;

/// Every way in which a reply can go on. NOSCRIPT and LATE both mean that nothing ran, so sending again is safe.
pub(super) enum Verdict {
    Answer(Value),
    SendWhole,
    SendAgain,
    Refused { code: String, message: String },
}

/// What a cluster says of a key that a script has not named among its keys.
const NOT_HERE: &str = "access a non local key";

pub(super) fn judge(clock: &ServerClock, value: Value) -> Verdict {
    if let Some(now) = value.as_late() {
        clock.learn(now);
        return Verdict::SendAgain;
    }
    match value {
        Value::Refusal { code, .. } if code == "NOSCRIPT" => Verdict::SendWhole,
        // A slot is on its way to another node, and a key that a script makes up is not there yet, or no longer here.
        Value::Refusal { code, message } if code == "ERR" && message.contains(NOT_HERE) => {
            Verdict::Refused { code: "TRYAGAIN".to_owned(), message }
        }
        Value::Refusal { code, message } => Verdict::Refused { code, message },
        value => Verdict::Answer(value),
    }
}

/// Whether it is how a replica refuses what only a master may do: the master has moved.
pub(super) fn is_a_replicas(code: &str) -> bool {
    matches!(code, "READONLY" | "MASTERDOWN")
}

/// Whether a server answers so to one whom it does not know, or not any more: another connection may say it better.
pub(super) fn is_unknown_to_it(code: &str) -> bool {
    matches!(code, "NOAUTH" | "WRONGPASS")
}

/// Nothing ran, and trying again at once did not help.
pub(super) fn unsettled() -> Failure {
    Failure::Refused {
        code: "TRYAGAIN".to_owned(),
        message: "the server's scripts or clock kept changing".to_owned(),
    }
}

/// The bytes of one operation: by the script's hash, or whole, which also teaches the server the script.
pub(super) fn pack<O: Operation + ?Sized>(
    operation: &O,
    not_after: ServerTime,
    whole: bool,
    channels: Channels,
) -> Vec<u8> {
    let keys = operation.keys();
    let arguments = operation.arguments(not_after);
    let texts: usize = keys.iter().map(|key| key.len()).sum();
    let words = keys.len() + arguments.len();
    // The hash and an owner are the longest of the rest.
    let bytes = texts + 48 * (arguments.len() + 2);
    let mut command = match operation.form() {
        Form::Command(verb) => {
            let mut command = Command::new(1 + words, bytes);
            command.word(verb.as_bytes());
            command
        }
        Form::Script(script) => {
            let mut command = Command::new(3 + words, bytes);
            let (verb, text) =
                if whole { ("EVAL", script.source()) } else { ("EVALSHA", script.hash(digest)) };
            command.word(verb.as_bytes());
            command.word(text.as_bytes());
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
            Argument::Publish => command.word(channels.publish().as_bytes()),
        }
    }
    command.into_bytes()
}

fn digest(source: &str) -> String {
    redis::Script::new(source).get_hash().to_owned()
}
