//! An operation as bytes, and what its reply asks of the sender.

use redis::{Cmd, RedisWrite};

use super::channels::Channels;
use super::server_clock::ServerClock;
use crate::op::{Argument, Form, Operation, WRITE};
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

pub(super) fn judge(clock: &ServerClock, value: Value) -> Verdict {
    if let Some(now) = value.as_late() {
        clock.learn(now);
        return Verdict::SendAgain;
    }
    match value {
        Value::Refusal { code, .. } if code == "NOSCRIPT" => Verdict::SendWhole,
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
    // The verb, the hash and the number of keys come first; a number or an owner takes less than 64 bytes.
    let parts = 3 + keys.len() + arguments.len();
    let mut command = Cmd::with_capacity(parts, texts + 64 * parts);
    match operation.form() {
        Form::Command(verb) => {
            command.arg(verb);
        }
        Form::Script(script) => {
            if whole {
                command.arg("EVAL").arg(script.source());
            } else {
                command.arg("EVALSHA").arg(script.hash(digest));
            }
            command.arg(keys.len());
        }
    }
    for key in keys {
        command.arg(key);
    }
    for argument in arguments {
        match argument {
            Argument::Text(text) => drop(command.arg(text)),
            Argument::Bytes(bytes) => drop(command.arg(bytes)),
            Argument::Owner(owner) => command.write_arg_fmt(owner),
            Argument::Writer(owner) => command.write_arg_fmt(format_args!("{owner}{WRITE}")),
            Argument::Permit(owner) => drop(command.arg(owner.bytes().as_slice())),
            Argument::Number(number) => drop(command.arg(number)),
            Argument::Publish => drop(command.arg(channels.publish())),
        }
    }
    command.get_packed_command()
}

fn digest(source: &str) -> String {
    redis::Script::new(source).get_hash().to_owned()
}
