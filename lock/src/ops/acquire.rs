//! Acquire: takes a free lock for a new owner, or reports how long the lock is busy. Also defines
//! the form in which a hold is stored on the server.

use std::time::Duration;

use uuid::Uuid;

use crate::model::kind::Layout;
use crate::model::lease::Lease;
use crate::model::name::LockName;
use crate::model::owner::Owner;
use crate::ops::keyspace::{Keyspace, WrongType, begins_with_owner};
use crate::ops::operation::{Argument, Grants, Operation, Request, Script, WRITE, script};
use crate::ops::read_write::{MODE, Mode};
use crate::ops::value::{FromReply, Unexpected, Value};

/// Acquires a lock of any layout but a reader's. Readers have
/// [`ReadAcquire`](crate::ops::read::ReadAcquire).
#[derive(Clone, Debug)]
pub(crate) struct Acquire {
    pub(crate) layout: Layout,
    pub(crate) name: LockName,
    pub(crate) owner: Owner,
    pub(crate) lease: Lease,
    /// Whether a refusal names the holding owner. Set only for counted layouts.
    pub(crate) names_holder: bool,
}

/// The reply to an acquire: a grant, or a refusal with the time for which the lock is busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acquired {
    Granted,
    /// Granted, with this fencing token.
    Fenced(u64),
    /// Another owner holds the lock for this long, unless the hold is renewed; `None` if the key
    /// has no expiry.
    Busy(Option<Duration>),
    /// As `Busy`, with the holding owner.
    HeldBy(Option<Duration>, HoldingOwner),
}

/// The owner holding a lock: a client, and the number of the hold or of the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HoldingOwner {
    pub(crate) client: Uuid,
    number: u64,
}

impl Acquired {
    /// Returns whether the reply is a grant, with or without a fencing token.
    pub(crate) fn is_granted(self) -> bool {
        !matches!(self, Self::Busy(_) | Self::HeldBy(..))
    }

    /// Which replies to an acquire of a lock are grants.
    pub(crate) const GRANTS: Grants =
        Grants::If(|value| Self::from_reply(value.clone()).is_ok_and(Self::is_granted));

    /// Makes a refusal from a time to live in milliseconds and the holding owner. Leaves out an
    /// owner in another form than a client's.
    fn held_by(millis: i64, owner: &str) -> Self {
        let (busy, owner) = (Self::busy(millis), HoldingOwner::parse(owner));
        match (busy, owner) {
            (Self::Busy(left), Some(owner)) => Self::HeldBy(left, owner),
            (busy, _) => busy,
        }
    }

    /// Makes a refusal from a time to live or a time to sleep, in milliseconds; a negative number
    /// is `None`.
    pub(crate) fn busy(millis: i64) -> Self {
        Self::Busy(u64::try_from(millis).ok().map(Duration::from_millis))
    }
}

impl HoldingOwner {
    /// Parses an owner of the form `UUID:NUMBER`. Any other text is `None`.
    fn parse(owner: &str) -> Option<Self> {
        let (client, number) = owner.split_once(':')?;
        Some(Self { client: client.parse().ok()?, number: number.parse().ok()? })
    }
}

impl FromReply for Acquired {
    fn from_reply(value: Value) -> Result<Self, Unexpected> {
        match value {
            Value::Nil => Ok(Self::Granted),
            Value::Integer(millis) => Ok(Self::busy(millis)),
            other => Err(Unexpected(other)),
        }
    }
}

/// Acquires a lock stored as a hash.
static COUNTED: Script = script!("acquire");
/// Acquires a lock stored as a text.
static TEXT: Script = script!("simple_acquire");
/// Acquires the write lock of a read-write lock.
static WRITER: Script = script!("write_acquire");

impl Operation for Acquire {
    type Reply = Acquired;

    fn request(&self) -> Request<'_> {
        let script = match self.layout {
            Layout::Text => &TEXT,
            Layout::Writer => &WRITER,
            Layout::Counted | Layout::Reader | Layout::Permit => &COUNTED,
        };
        let mut arguments = vec![
            Argument::NotAfter,
            field_argument(self.layout, &self.owner),
            Argument::millis(self.lease.millis()),
        ];
        if self.names_holder {
            arguments.push(Argument::Number(1));
        }
        Request::script("acquire", script, vec![self.name.as_str()], arguments)
    }

    fn decode(&self, value: Value) -> Result<Acquired, Unexpected> {
        match &value {
            Value::Array(parts) if self.names_holder => match parts.as_slice() {
                [Value::Integer(millis)] => Ok(Acquired::busy(*millis)),
                [Value::Integer(millis), Value::Text(owner)] => {
                    Ok(Acquired::held_by(*millis, owner))
                }
                _ => Err(Unexpected(value)),
            },
            _ => Acquired::from_reply(value),
        }
    }

    fn grants(&self) -> Grants {
        Acquired::GRANTS
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        let (key, lease) = (self.name.as_str(), self.lease.millis_i64());
        let field = field(self.layout, &self.owner);
        let is_own = has_hold(keyspace, key, self.layout, &field)?;
        if !is_own && keyspace.exists(key) {
            check_lock(keyspace, key, self.layout)?;
            let left = Value::Integer(keyspace.time_to_live(key));
            let owner = self.names_holder.then(|| keyspace.hash_field(key)).flatten();
            return Ok(match owner {
                Some(owner) => Value::Array(vec![left, Value::Text(owner)]),
                None => left,
            });
        }
        if self.layout == Layout::Text {
            let longest = keyspace.time_to_live(key).max(lease);
            keyspace.text_set_for(key, field, longest);
            return Ok(Value::Nil);
        }
        // The count of a nested writer stays.
        if !is_own || self.layout != Layout::Writer {
            keyspace.hash_set(key, &field, 1)?;
        }
        if self.layout == Layout::Writer {
            keyspace.hash_set(key, MODE, Mode::Write.word())?;
        }
        keyspace.prolong(key, lease);
        Ok(Value::Nil)
    }
}

/// Returns an error if `key` has content that cannot be a lock of this layout: no acquire waits for
/// such a key.
pub(crate) fn check_lock(
    keyspace: &mut Keyspace,
    key: &str,
    layout: Layout,
) -> Result<(), WrongType> {
    let is_foreign = match layout {
        Layout::Text => {
            let text = keyspace.text_get(key)?.unwrap_or_default();
            keyspace.time_to_live(key) == -1 && !begins_with_owner(&text)
        }
        _ => keyspace.is_foreign(key),
    };
    if is_foreign { Err(WrongType::of(key)) } else { Ok(()) }
}

/// Returns the owner as stored with a hold of this layout, as an argument of scripts.
pub(crate) fn field_argument(layout: Layout, owner: &Owner) -> Argument<'_> {
    if layout == Layout::Writer { Argument::Writer(owner) } else { Argument::Owner(owner) }
}

/// Returns the owner as stored with a hold of this layout, as a text for a keyspace in memory.
pub(crate) fn field(layout: Layout, owner: &Owner) -> String {
    let ending = if layout == Layout::Writer { WRITE } else { "" };
    format!("{owner}{ending}")
}

/// Returns whether `key` has a hold of this layout with this [`field`]. Permits are not supported.
pub(crate) fn has_hold(
    keyspace: &mut Keyspace,
    key: &str,
    layout: Layout,
    field: &str,
) -> Result<bool, WrongType> {
    match layout {
        Layout::Text => Ok(keyspace.text_get(key)?.as_deref() == Some(field)),
        _ => keyspace.hash_has(key, field),
    }
}

#[cfg(test)]
mod tests {
    /// The lines between these, without their indentation.
    fn check_of(script: &str) -> String {
        let lines = script.lines().map(str::trim);
        let from = lines.skip_while(|line| !line.starts_with("-- What cannot be a lock"));
        from.take_while(|line| !line.starts_with("return lasts") && *line != "if ARGV[4] then")
            .take(19)
            .fold(String::new(), |text, line| text + line + "\n")
    }

    #[test]
    fn every_acquire_of_a_hash_checks_alike_what_is_no_lock() {
        let check = check_of(include_str!("scripts/acquire.lua"));
        assert!(check.contains("WRONGTYPE"));
        for other in [
            include_str!("scripts/fair_acquire.lua"),
            include_str!("scripts/fenced_acquire.lua"),
            include_str!("scripts/read_acquire.lua"),
            include_str!("scripts/write_acquire.lua"),
        ] {
            assert!(check_of(other).starts_with(&check), "{other}");
        }
        // Of many keys, the error names the one.
        let many = check_of(include_str!("scripts/acquire_many.lua"))
            .replace("'hrandfield', key", "'hrandfield', KEYS[1]")
            .replace("KEYS[' .. number .. '] holds the", "Operation against a key holding the");
        assert!(many.starts_with(&check), "{many}\n{check}");
    }
}
