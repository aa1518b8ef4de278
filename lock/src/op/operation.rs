//! The form that every operation has.

use std::fmt::Debug;
use std::sync::{Arc, OnceLock};

use crate::keyspace::Keyspace;
use crate::owner::Owner;
use crate::value::{ServerTime, Unexpected, Value};

/// One request to a server, with its reply and its effect on a keyspace in memory.
pub(crate) trait Operation: Debug {
    /// What the caller learns.
    type Reply;

    /// The verb, for messages.
    fn name(&self) -> &'static str;

    /// A script, or a command of the server's own.
    fn form(&self) -> Form;

    /// The keys, channels included, in the order that the script expects.
    fn keys(&self) -> Vec<&str>;

    /// The arguments after the keys.
    fn arguments(&self, not_after: ServerTime) -> Vec<Argument<'_>>;

    /// Reads the reply. A `LATE` and a refusal do not come here.
    fn decode(&self, value: Value) -> Result<Self::Reply, Unexpected>;

    /// Does in memory what the script does on a server, and answers the same.
    fn apply(&self, keyspace: &mut Keyspace, not_after: ServerTime) -> Value;

    /// Whether it may grant what nobody has, so that replicas may have to hear of it.
    fn may_grant(&self) -> bool {
        false
    }

    /// Whether this answer does.
    fn grants(&self, _value: &Value) -> bool {
        false
    }
}

/// An operation of a kind that is chosen as the program runs.
impl<O: Operation + ?Sized> Operation for Arc<O> {
    type Reply = O::Reply;

    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn form(&self) -> Form {
        (**self).form()
    }

    fn keys(&self) -> Vec<&str> {
        (**self).keys()
    }

    fn arguments(&self, not_after: ServerTime) -> Vec<Argument<'_>> {
        (**self).arguments(not_after)
    }

    fn decode(&self, value: Value) -> Result<Self::Reply, Unexpected> {
        (**self).decode(value)
    }

    fn apply(&self, keyspace: &mut Keyspace, not_after: ServerTime) -> Value {
        (**self).apply(keyspace, not_after)
    }

    fn may_grant(&self) -> bool {
        (**self).may_grant()
    }

    fn grants(&self, value: &Value) -> bool {
        (**self).grants(value)
    }
}

/// One argument of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Argument<'a> {
    Text(&'a str),
    Bytes(&'a [u8]),
    /// Its text.
    Owner(&'a Owner),
    /// Its text, with the ending that makes it a writer's.
    Writer(&'a Owner),
    /// Its bytes: the id of the permit that is taken under it.
    Permit(&'a Owner),
    Number(i64),
    /// The command that publishes there: where channels lie with the keys, another than elsewhere.
    Publish,
}

impl Argument<'_> {
    /// A length of time, in milliseconds.
    pub(super) fn millis(millis: u64) -> Self {
        Self::Number(i64::try_from(millis).unwrap_or(i64::MAX))
    }
}

/// How an operation is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Form {
    Script(&'static Script),
    Command(&'static str),
}

/// A Lua script. Its file opens with its keys, arguments and answers.
#[derive(Debug)]
pub(crate) struct Script {
    source: &'static str,
    hash: OnceLock<String>,
}

impl Script {
    pub(crate) const fn new(source: &'static str) -> Self {
        Self { source, hash: OnceLock::new() }
    }

    pub(crate) fn source(&self) -> &'static str {
        self.source
    }

    /// The name under which a server knows it, worked out by `digest` once.
    pub(crate) fn hash(&self, digest: impl FnOnce(&str) -> String) -> &str {
        self.hash.get_or_init(|| digest(self.source))
    }
}

/// The payload of a release, as Redisson sends it: one waiter of each process may try.
pub(super) const UNLOCKED: &str = "0";

/// The payload that makes Redisson wake every waiter, and latches close.
pub(super) const ALL: &str = "1";

/// The ending of a writer's field.
pub(crate) const WRITE: &str = ":write";
