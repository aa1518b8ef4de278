//! The common form of all operations.

use std::fmt::Debug;
use std::sync::Arc;

use crate::model::name::LockName;
use crate::model::owner::Owner;
use crate::ops::keyspace::{Keyspace, WrongType};
use crate::ops::value::{FromReply, ServerTime, Unexpected, Value};

/// A request to a server, with the reply and the effect on a keyspace in memory.
///
/// Senders take an [`AnyOperation`], so their code is compiled once: an acquire and a release run
/// the same code.
pub(crate) trait Operation: Debug {
    /// The decoded reply.
    type Reply: FromReply;

    /// Returns the request to send.
    fn request(&self) -> Request<'_>;

    /// Decodes the reply. `LATE` and refusals are handled before.
    fn decode(&self, value: Value) -> Result<Self::Reply, Unexpected> {
        Self::Reply::from_reply(value)
    }

    /// Applies the operation in memory, as a server does within the not-after, and returns the same
    /// reply. A key of another type is an error.
    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType>;

    /// Returns which replies are grants.
    fn grants(&self) -> Grants {
        Grants::Nothing
    }

    /// Returns whether the operation is for several locks, and could be sent as a request for each.
    fn is_divisible(&self) -> bool {
        false
    }

    /// Returns the server's time in the reply; `None` if the reply has no time.
    fn server_time(&self, value: &Value) -> Option<ServerTime> {
        Self::Reply::server_time(value)
    }

    /// Runs the operation in memory as on a server: an operation with a not-after does nothing when
    /// the clock is beyond `not_after`.
    fn run(&self, keyspace: &mut Keyspace, not_after: ServerTime) -> Value {
        let is_late = keyspace.now() > not_after;
        if is_late && self.request().arguments.contains(&Argument::NotAfter) {
            return Value::late(keyspace.now());
        }
        self.apply(keyspace).unwrap_or_else(|WrongType(key)| {
            let keys = self.request().keys;
            Value::wrong_type(keys.iter().position(|other| *other == key).map_or(0, |at| at + 1))
        })
    }
}

/// Which replies of an operation are grants, which replicas may have to acknowledge.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Grants {
    Nothing,
    /// A reply is a grant if this function returns `true`.
    If(IsGrant),
}

/// A function that returns whether a reply is a grant.
pub(crate) type IsGrant = fn(&Value) -> bool;

/// An operation with an undecoded reply.
pub(crate) type AnyOperation<'a> = dyn Operation<Reply = Value> + 'a;

/// An operation as an [`AnyOperation`], which leaves the reply undecoded.
#[derive(Debug)]
pub(crate) struct Untyped<'a, O: ?Sized>(pub(crate) &'a O);

impl<O: Operation + ?Sized> Operation for Untyped<'_, O> {
    type Reply = Value;

    fn request(&self) -> Request<'_> {
        self.0.request()
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        self.0.apply(keyspace)
    }

    fn grants(&self) -> Grants {
        self.0.grants()
    }

    fn is_divisible(&self) -> bool {
        self.0.is_divisible()
    }

    fn server_time(&self, value: &Value) -> Option<ServerTime> {
        self.0.server_time(value)
    }
}

/// An operation chosen at run time.
impl<O: Operation + ?Sized> Operation for Arc<O> {
    type Reply = O::Reply;

    fn request(&self) -> Request<'_> {
        (**self).request()
    }

    fn decode(&self, value: Value) -> Result<Self::Reply, Unexpected> {
        (**self).decode(value)
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        (**self).apply(keyspace)
    }

    fn grants(&self) -> Grants {
        (**self).grants()
    }

    fn is_divisible(&self) -> bool {
        (**self).is_divisible()
    }
}

/// The request to a server for an operation.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    /// The verb, for messages.
    pub(crate) name: &'static str,
    pub(crate) kind: CommandKind,
    /// The keys, channels included, in the script's order.
    pub(crate) keys: Vec<&'a str>,
    /// The arguments after the keys.
    pub(crate) arguments: Vec<Argument<'a>>,
}

impl<'a> Request<'a> {
    /// Makes a request to run `script`. `name` is the verb for messages.
    pub(crate) fn script(
        name: &'static str,
        script: &'static Script,
        keys: Vec<&'a str>,
        arguments: Vec<Argument<'a>>,
    ) -> Self {
        Self { name, kind: CommandKind::Script(script), keys, arguments }
    }

    /// Returns the script of the request; `None` for a plain command.
    pub(crate) fn script_sent(&self) -> Option<&'static Script> {
        match self.kind {
            CommandKind::Script(script) => Some(script),
            CommandKind::Command(_) => None,
        }
    }

    /// Returns the key with another type than the request needs, if `message`, the text of the
    /// refusal, identifies the key. A server names the line of the script, and the line has the
    /// number of the key.
    pub(crate) fn wrong_key(&self, message: &str) -> Option<&str> {
        let number_after = |text: &str, sign: &str| {
            let (_, rest) = text.split_once(sign)?;
            let end = rest.find(|digit: char| !digit.is_ascii_digit()).unwrap_or(rest.len());
            rest.get(..end)?.parse::<usize>().ok()?.checked_sub(1)
        };
        if let [only] = *self.keys {
            return Some(only);
        }
        let key = number_after(message, "KEYS[").or_else(|| {
            let line = number_after(message, "@user_script:")?;
            number_after(self.script_sent()?.source().lines().nth(line)?, "KEYS[")
        });
        self.keys.get(key?).copied()
    }

    /// Makes a request to run the plain command `verb` on `key`. `name` is the verb for messages.
    pub(crate) fn command(name: &'static str, verb: &'static str, key: &'a str) -> Self {
        let kind = CommandKind::Command(verb);
        Self { name, kind, keys: vec![key], arguments: Vec::new() }
    }
}

/// An argument of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Argument<'a> {
    Text(&'a str),
    Bytes(&'a [u8]),
    /// An owner, as text.
    Owner(&'a Owner),
    /// An owner, as text with a writer's ending.
    Writer(&'a Owner),
    /// An owner, as bytes: the id of the permit taken under this owner.
    Permit(&'a Owner),
    Number(i64),
    /// The channel of the lock of this name.
    Channel(&'a LockName),
    /// The server's time after which a script does nothing. Each attempt has another not-after.
    NotAfter,
    /// The publishing command: `SPUBLISH` where channels lie with the keys, else `PUBLISH`.
    Publish,
}

impl Argument<'_> {
    /// Makes an argument of a number of milliseconds; saturates.
    pub(crate) fn millis(millis: u64) -> Self {
        Self::Number(i64::try_from(millis).unwrap_or(i64::MAX))
    }
}

/// How an operation is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CommandKind {
    Script(&'static Script),
    Command(&'static str),
}

/// A Lua script. The comment at the beginning of its file lists keys, arguments and replies.
#[derive(Debug)]
pub(crate) struct Script {
    source: &'static str,
    hash: [u8; 40],
}

/// Makes the script of a file in `ops/scripts`, or of several files one after the other. Comments
/// are left out, as a script is sent as text.
macro_rules! script {
    ($($name:literal),+) => {{
        const FILE: &str = concat!($(include_str!(concat!("scripts/", $name, ".lua"))),+);
        const CODE: &([u8; FILE.len()], usize) = &$crate::ops::operation::code_of(FILE);
        const TEXT: &[u8] = CODE.0.split_at(CODE.1).0;
        $crate::ops::operation::Script::of_text(TEXT)
    }};
}
pub(crate) use script;

/// Returns the lines of a script without comments, and their number of bytes. A line beginning with
/// `--!` stays: such a line lets Dragonfly run a script with computed names of keys, and is a
/// comment on other servers.
pub(crate) const fn code_of<const N: usize>(script: &str) -> ([u8; N], usize) {
    let (script, mut code, mut length) = (script.as_bytes(), [0; N], 0);
    // Without iterators, as below. Each turn takes a line.
    let mut start = 0;
    while start < script.len() {
        let mut end = start;
        while end < script.len() && script[end] != b'\n' {
            end += 1;
        }
        let mut word = start;
        while word < end && script[word] == b' ' {
            word += 1;
        }
        let is_comment = word + 1 < end
            && script[word] == b'-'
            && script[word + 1] == b'-'
            && !(word + 2 < end && script[word + 2] == b'!');
        while !is_comment && start <= end && start < script.len() {
            code[length] = script[start];
            length += 1;
            start += 1;
        }
        start = end + 1;
    }
    (code, length)
}

impl Script {
    /// Makes a script of the compiled-in `text`. Ends the compilation if `text` is not UTF-8.
    #[expect(clippy::panic, reason = "it ends the compilation, as no script is made later")]
    pub(crate) const fn of_text(text: &'static [u8]) -> Self {
        match std::str::from_utf8(text) {
            Ok(source) => Self::new(source),
            Err(_) => panic!("a script is text"),
        }
    }

    /// Makes a script with the hash of `source`. The hash is computed when this crate is compiled,
    /// so no thread ever waits for the hash. A cell filled on first use could be copied by a fork
    /// in the middle of the filling.
    pub(crate) const fn new(source: &'static str) -> Self {
        Self { source, hash: hexadecimal(const_sha1::sha1(source.as_bytes()).as_bytes()) }
    }

    pub(crate) const fn source(&self) -> &'static str {
        self.source
    }

    /// Returns the command called in line `number`, counted from 1; `None` if the line calls no
    /// command. A command given by an argument publishes.
    pub(crate) fn command_at(&self, number: usize) -> Option<&'static str> {
        let line = self.source.lines().nth(number.checked_sub(1)?)?;
        let (_, call) = line.split_once("call(")?;
        if call.starts_with("ARGV") { Some("publish") } else { call.split('\'').nth(1) }
    }

    /// Returns the server's name of the script: the SHA-1 of the text, in hexadecimal.
    pub(crate) const fn hash(&self) -> &[u8; 40] {
        &self.hash
    }
}

/// Returns the hexadecimal digits of 20 bytes.
const fn hexadecimal(bytes: [u8; 20]) -> [u8; 40] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = [0; 40];
    let mut place = 0;
    // A loop over an iterator is not possible in a constant.
    while place < bytes.len() {
        text[2 * place] = DIGITS[(bytes[place] >> 4) as usize];
        text[2 * place + 1] = DIGITS[(bytes[place] & 15) as usize];
        place += 1;
    }
    text
}

/// The payload of a release, as in Redisson: a single waiter of each process may try.
pub(crate) const UNLOCKED: &str = "0";

/// The payload on which Redisson wakes every waiter. On a latch's channel: the latch is closed
/// again.
pub(crate) const ALL: &str = "1";

/// The ending of the owner under which the key of a kept hold stays.
pub(crate) const KEPT: &str = ":kept";

/// The ending of an owner in the field of a writer's hold.
pub(crate) const WRITE: &str = ":write";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scripts_hash_is_the_one_by_which_a_server_knows_it() {
        // What SCRIPT LOAD answers.
        static SCRIPT: Script = Script::new("return 1");
        assert_eq!(SCRIPT.hash(), b"e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
    }

    #[test]
    fn a_script_is_sent_without_its_comments() {
        const FILE: &str = "--! 0\n-- 1\n\nlocal a = 1 -- 2\n  -- 3\n  return -a\n--";
        static CODE: ([u8; FILE.len()], usize) = code_of(FILE);
        let (code, length) = &CODE;
        assert_eq!(&code[..*length], b"--! 0\n\nlocal a = 1 -- 2\n  return -a\n");
    }
}
