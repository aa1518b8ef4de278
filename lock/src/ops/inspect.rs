//! Looks at a lock: of what kind it is, who holds it, and who waits (DESIGN: holders).

use std::sync::Arc;
use std::time::Duration;

use crate::model::name::LockName;
use crate::ops::keyspace::{Keyspace, WrongType};
use crate::ops::operation::{Argument, Operation, Request, Script, WRITE};
use crate::ops::read_write::MODE;
use crate::ops::value::{FromReply, Unexpected, Value};

/// The most owners that one reply names, of a lock and of a queue: a reply is bounded.
pub(crate) const MOST_OWNERS: usize = 1000;

/// Looks at whatever has this name. It changes nothing.
#[derive(Clone, Debug)]
pub(crate) struct Inspect {
    keys: [Arc<str>; 4],
    channels: [Arc<str>; 3],
}

/// What has the name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inspected {
    pub(crate) content: InspectedContent,
    /// `None` if there is no key; the longest duration if it has no expiry.
    pub(crate) lives: Option<Duration>,
    /// The waiters of a fair lock, the next one first.
    pub(crate) queue: Vec<String>,
    pub(crate) has_token: bool,
    pub(crate) has_permit_leases: bool,
    /// How many clients are subscribed to the channels of a lock, a read-write lock, and a
    /// semaphore. `None` if the server does not say.
    pub(crate) subscribers: [Option<u64>; 3],
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InspectedContent {
    Nothing,
    Owners {
        /// The mode, if it is a read-write lock.
        mode: Option<String>,
        /// Some of them, with their hold counts, if there are many.
        owners: Vec<(String, u32)>,
        /// How many there are.
        count: usize,
    },
    /// One owner, of a simple lock; or a number.
    Text(String),
    /// Nothing that this library knows.
    Other,
}

static SCRIPT: Script = Script::new(include_str!("scripts/inspect.lua"));

impl Inspect {
    pub(crate) fn new(name: &LockName) -> Self {
        let key = Arc::from(name.as_str());
        Self {
            keys: [key, name.queue(), name.token(), name.permit_leases()],
            channels: [name.channel(), name.read_write_channel(), name.semaphore_channel()],
        }
    }
}

impl Operation for Inspect {
    type Reply = Inspected;

    fn request(&self) -> Request<'_> {
        let most = Argument::Number(i64::try_from(MOST_OWNERS).unwrap_or(i64::MAX));
        let channels = self.channels.iter().map(|channel| Argument::Text(channel));
        let arguments = std::iter::once(most).chain(channels).collect();
        let keys = self.keys.iter().map(|key| &**key).collect();
        Request::script("look at the lock", &SCRIPT, keys, arguments)
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        let [key, queue, token, leases] = &self.keys;
        let fields = keyspace.fields(key);
        let text = keyspace.text_get(key);
        let kind = match (&text, keyspace.exists(key)) {
            (_, false) => "none",
            (Ok(_), true) => "string",
            (Err(WrongType), true) if !fields.is_empty() => "hash",
            (Err(WrongType), true) => "other",
        };
        let mode = fields.iter().find(|(field, _)| field == MODE).map(|(_, mode)| mode.clone());
        let (mut owners, mut count) = (Vec::new(), -1);
        if kind == "hash" {
            let all: Vec<_> = fields.iter().filter(|(field, _)| field != MODE).collect();
            if all.iter().all(|(field, _)| is_owner(field)) {
                count = i64::try_from(all.len()).unwrap_or(i64::MAX);
                owners = all.into_iter().take(MOST_OWNERS).flat_map(owner_and_count).collect();
            }
        }
        let is_known = |text: &String| is_owner(text) || text.parse::<i64>().is_ok();
        let text = text.ok().flatten().filter(is_known).unwrap_or_default();
        let queue = keyspace.list(queue).unwrap_or_default();
        let queue = queue.into_iter().take(MOST_OWNERS).map(Value::Text).collect();
        Ok(Value::Array(vec![
            Value::Text(kind.to_owned()),
            Value::Integer(keyspace.time_to_live(key)),
            Value::Text(mode.filter(|_| count >= 0).unwrap_or_default()),
            Value::Array(owners),
            Value::Integer(count),
            Value::Text(text),
            Value::Array(queue),
            Value::Integer(i64::from(keyspace.exists(token))),
            Value::Integer(i64::from(keyspace.exists(leases))),
            // A keyspace does not know its subscribers.
            Value::Array(vec![Value::Integer(-1); self.channels.len()]),
        ]))
    }
}

fn owner_and_count((field, count): &(String, String)) -> [Value; 2] {
    [Value::Text(field.clone()), Value::Integer(count.parse().unwrap_or(1))]
}

/// Whether a field is `CLIENT:NUMBER`, perhaps with the ending of a writer.
fn is_owner(field: &str) -> bool {
    let field = field.strip_suffix(WRITE).unwrap_or(field);
    field.split_once(':').is_some_and(|(client, number)| {
        let is_client = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
        !client.is_empty() && client.chars().all(is_client) && number.parse::<u64>().is_ok()
    })
}

impl FromReply for Inspected {
    fn from_reply(value: Value) -> Result<Self, Unexpected> {
        read(&value).ok_or(Unexpected(value))
    }
}

fn read(value: &Value) -> Option<Inspected> {
    let Value::Array(parts) = value else { return None };
    let [kind, lives, mode, owners, count, text, queue, fenced, leases, subscribers] =
        parts.as_slice()
    else {
        return None;
    };
    let count = integer(count)?;
    let (mode, text) = (words(mode)?, words(text)?);
    let content = match words(kind)? {
        "none" => InspectedContent::Nothing,
        "hash" if count >= 0 => {
            let mode = Some(mode.to_owned()).filter(|mode| !mode.is_empty());
            let pairs = array(owners)?.chunks_exact(2);
            let owners = pairs.map(|pair| Some((words(&pair[0])?.to_owned(), nesting(&pair[1])?)));
            let count = usize::try_from(count).ok()?;
            InspectedContent::Owners { mode, owners: owners.collect::<Option<_>>()?, count }
        }
        "string" if !text.is_empty() => InspectedContent::Text(text.to_owned()),
        _ => InspectedContent::Other,
    };
    let queue = array(queue)?.iter().map(|owner| words(owner).map(str::to_owned));
    let subscribers: Vec<_> = array(subscribers)?.iter().map(integer).collect::<Option<_>>()?;
    Some(Inspected {
        content,
        lives: Option::<Duration>::from_reply(lives.clone()).ok()?,
        queue: queue.collect::<Option<_>>()?,
        has_token: integer(fenced)? == 1,
        has_permit_leases: integer(leases)? == 1,
        subscribers: <[i64; 3]>::try_from(subscribers).ok()?.map(|count| u64::try_from(count).ok()),
    })
}

fn integer(value: &Value) -> Option<i64> {
    if let Value::Integer(number) = value { Some(*number) } else { None }
}

fn nesting(value: &Value) -> Option<u32> {
    integer(value).map(|count| u32::try_from(count).unwrap_or(u32::MAX))
}

fn words(value: &Value) -> Option<&str> {
    if let Value::Text(text) = value { Some(text) } else { None }
}

fn array(value: &Value) -> Option<&[Value]> {
    if let Value::Array(parts) = value { Some(parts) } else { None }
}
