//! Inspect: finds the kind of a lock, the owners and the waiters.
//!
//! A single script inspects everything of a name, whatever the kind. A reply names [`MOST`] owners
//! at most, and of another program's data only the type. Waiters without a queue are counted by
//! subscriptions, at most one for each client: an exact number would cost a write for each waiter.

use std::sync::Arc;
use std::time::Duration;

use crate::model::name::LockName;
use crate::ops::keyspace::{Keyspace, WrongType};
use crate::ops::operation::{Argument, Operation, Request, Script, script};
use crate::ops::recognize::{Content, LONGEST, MOST, recognize};
use crate::ops::value::{FromReply, Unexpected, Value};

/// Inspects the keys of a name, and changes nothing.
#[derive(Clone, Debug)]
pub(crate) struct Inspect {
    /// The lock's key, and perhaps the keys of the queue, the token and the permits' leases.
    keys: Vec<Arc<str>>,
    channels: Vec<Arc<str>>,
}

/// The content of a name's keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inspected {
    pub(crate) content: Content,
    /// The key's time to live: `None` without the key, the longest duration without an expiry.
    pub(crate) lives: Option<Duration>,
    /// The waiters of a fair lock, the next waiter first.
    pub(crate) queue: Vec<String>,
    pub(crate) has_token: bool,
    pub(crate) has_permit_leases: bool,
    /// How many clients are subscribed to the channels of a lock, a read-write lock, and a
    /// semaphore. `None` if the server reports no number.
    pub(crate) subscribers: [Option<u64>; 3],
}

/// Inspects the keys and channels of a name.
static SCRIPT: Script = script!("recognize", "inspect");

impl Inspect {
    /// Inspects the owners, waiters, tokens, permits and subscribers of a name.
    pub(crate) fn new(name: &LockName) -> Self {
        let key = Arc::from(name.as_str());
        Self {
            keys: vec![key, name.queue(), name.token(), name.permit_leases()],
            channels: vec![name.channel(), name.read_write_channel(), name.semaphore_channel()],
        }
    }

    /// Inspects only the owners, to which every user of the lock has access.
    pub(crate) fn owners(name: &LockName) -> Self {
        Self { keys: vec![Arc::from(name.as_str())], channels: Vec::new() }
    }
}

impl Operation for Inspect {
    type Reply = Inspected;

    fn request(&self) -> Request<'_> {
        let arguments = self.channels.iter().map(|channel| Argument::Text(channel)).collect();
        let keys = self.keys.iter().map(|key| &**key).collect();
        Request::script("look at the lock", &SCRIPT, keys, arguments)
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        let key_of = |place: usize| self.keys.get(place).map_or("", |key| &**key);
        let key = key_of(0);
        let content = recognize(keyspace, key);
        let (mut all, mut text) = (Vec::new(), String::new());
        let mut number = 0;
        match &content {
            Content::Owners { owners, count, .. } => {
                all = owners.iter().flat_map(owner_and_count).collect();
                number = i64::try_from(*count).unwrap_or(i64::MAX);
            }
            Content::Simple(words) | Content::Number(words) => text.clone_from(words),
            Content::Nothing | Content::Other(_) => {}
        }
        let queue = keyspace.list(key_of(1)).unwrap_or_default();
        let queue = queue.into_iter().take(MOST).take_while(|waiter| waiter.len() <= LONGEST);
        Ok(Value::Array(vec![
            Value::Text(content.word().to_owned()),
            Value::Integer(keyspace.time_to_live(key)),
            Value::Array(all),
            Value::Integer(number),
            Value::Text(text),
            Value::Array(queue.map(Value::Text).collect()),
            Value::Integer(i64::from(keyspace.exists(key_of(2)))),
            Value::Integer(i64::from(keyspace.exists(key_of(3)))),
            // A keyspace does not count subscribers.
            Value::Array(vec![Value::Integer(-1); self.channels.len()]),
        ]))
    }
}

/// Returns an owner and a hold count as parts of a reply.
fn owner_and_count((owner, count): &(String, u32)) -> [Value; 2] {
    [Value::Text(owner.clone()), Value::Integer(i64::from(*count))]
}

impl FromReply for Inspected {
    fn from_reply(value: Value) -> Result<Self, Unexpected> {
        read(&value).ok_or(Unexpected(value))
    }
}

/// Decodes the script's reply. `None` if the reply has another form.
fn read(value: &Value) -> Option<Inspected> {
    let Value::Array(parts) = value else { return None };
    let [found, lives, owners, count, text, queue, fenced, leases, subscribers] = parts.as_slice()
    else {
        return None;
    };
    let content = match words(found)? {
        "none" => Content::Nothing,
        found @ ("lock" | "read" | "write") => {
            let mode = (found != "lock").then(|| found.to_owned());
            let pairs = array(owners)?.chunks_exact(2);
            let owners = pairs.map(|pair| Some((words(&pair[0])?.to_owned(), nesting(&pair[1])?)));
            let count = usize::try_from(integer(count)?).ok()?;
            Content::Owners { mode, owners: owners.collect::<Option<_>>()?, count }
        }
        "simple" => Content::Simple(words(text)?.to_owned()),
        "number" => Content::Number(words(text)?.to_owned()),
        kind => Content::Other(kind.to_owned()),
    };
    let queue = array(queue)?.iter().map(|owner| words(owner).map(str::to_owned));
    let subscribers: Vec<_> = array(subscribers)?.iter().map(integer).collect::<Option<_>>()?;
    Some(Inspected {
        content,
        lives: Option::<Duration>::from_reply(lives.clone()).ok()?,
        queue: queue.collect::<Option<_>>()?,
        has_token: integer(fenced)? == 1,
        has_permit_leases: integer(leases)? == 1,
        subscribers: <[i64; 3]>::try_from(subscribers)
            .unwrap_or([-1; 3])
            .map(|count| u64::try_from(count).ok()),
    })
}

/// Returns the integer of a value, or `None`.
fn integer(value: &Value) -> Option<i64> {
    if let Value::Integer(number) = value { Some(*number) } else { None }
}

/// Returns a hold count; saturates. `None` if the value is not an integer.
fn nesting(value: &Value) -> Option<u32> {
    integer(value).map(|count| u32::try_from(count).unwrap_or(u32::MAX))
}

/// Returns the text of a value, or `None`.
fn words(value: &Value) -> Option<&str> {
    if let Value::Text(text) = value { Some(text) } else { None }
}

/// Returns the parts of a value, or `None`.
fn array(value: &Value) -> Option<&[Value]> {
    if let Value::Array(parts) = value { Some(parts) } else { None }
}
