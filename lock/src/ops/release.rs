//! Release: ends a hold whatever the count, and wakes the waiters.

use std::sync::Arc;

use crate::model::kind::Layout;
use crate::model::name::LockName;
use crate::model::owner::Owner;
use crate::ops::acquire::{field, field_argument, has_hold};
use crate::ops::keyspace::{Keyspace, WrongType};
use crate::ops::operation::{ALL, Argument, Operation, Request, Script, UNLOCKED, script};
use crate::ops::read_write::{MODE, Mode, longest_level};
use crate::ops::value::{FromReply, ServerTime, Unexpected, Value};

/// Releases a hold of any layout but a reader's and a permit's, which have operations of their own.
#[derive(Clone, Debug)]
pub(crate) struct ReleaseHold {
    layout: Layout,
    name: LockName,
    message: PublishTo,
    owner: Owner,
}

/// Where a release publishes a message.
#[derive(Clone, Debug)]
enum PublishTo {
    /// Nowhere: the waiters poll.
    None,
    /// On the lock's channel. The name is composed during sending.
    Lock,
    /// On this channel of a read-write lock.
    ReadWrite(Arc<str>),
}

/// The reply to a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Released {
    pub(crate) found: Found,
    /// The finding for each hold, after a release of many. `found` then says nothing.
    pub(crate) each: Vec<Found>,
    /// The server's time of the release.
    pub(crate) at: ServerTime,
    /// How many subscribers on this server the message has reached, if the reply says so.
    pub(crate) receivers: Option<u32>,
}

/// The finding of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The owner's hold, which is ended now; or all permits.
    Own,
    /// All permits, which are released now, but a lease had ended before. Only a release of permits
    /// says so.
    Expired,
    /// Nothing; or a permit was missing, and no permit was released.
    Nothing,
    OtherOwner,
}

impl Found {
    /// Decodes the finding for one hold of a release of many; `None` for an unknown number.
    fn of_one(value: &Value) -> Option<Self> {
        match value {
            Value::Integer(1) => Some(Self::Own),
            Value::Integer(0) => Some(Self::Nothing),
            Value::Integer(-1) => Some(Self::OtherOwner),
            _ => None,
        }
    }

    /// Returns whether the release ended a hold, or gave permits back.
    pub(crate) fn is_released(self) -> bool {
        matches!(self, Self::Own | Self::Expired)
    }
}

impl Released {
    /// Makes a reply without a number of receivers and without a finding for each hold.
    pub(crate) fn new(found: Found, at: ServerTime) -> Self {
        Self { found, each: Vec::new(), at, receivers: None }
    }

    /// Returns the result for the hold at `index`; `None` if the reply has no result for each hold.
    pub(crate) fn of_one(&self, index: usize) -> Option<Self> {
        let found = self.each.get(index)?;
        Some(Self::new(*found, self.at))
    }
}

impl FromReply for Released {
    fn from_reply(value: Value) -> Result<Self, Unexpected> {
        if let Some([1, now, receivers]) = value.as_integers()
            && let Ok(receivers) = u64::try_from(receivers)
        {
            let receivers = Some(u32::try_from(receivers).unwrap_or(u32::MAX));
            return Ok(Self { receivers, ..Self::new(Found::Own, ServerTime(now)) });
        }
        if let Value::Array(parts) = &value
            && let [Value::Integer(1), Value::Integer(now), Value::Array(each)] = parts.as_slice()
            && let Some(each) = each.iter().map(Found::of_one).collect()
        {
            return Ok(Self { each, ..Self::new(Found::Own, ServerTime(*now)) });
        }
        let (found, at) = match value.as_integers() {
            Some([1, now]) => (Found::Own, now),
            Some([2, now]) => (Found::Expired, now),
            Some([0, now]) => (Found::Nothing, now),
            Some([-1, now]) => (Found::OtherOwner, now),
            _ => return Err(Unexpected(value)),
        };
        Ok(Self::new(found, ServerTime(at)))
    }

    fn server_time(value: &Value) -> Option<ServerTime> {
        released_at(value)
    }
}

/// Makes a reply to a release in memory, without a number of receivers: the answer and the time.
pub(crate) fn with_time(answer: i64, keyspace: &Keyspace) -> Value {
    Value::Array(vec![Value::Integer(answer), Value::Integer(keyspace.now().0)])
}

/// Returns the answer to an owner without a hold: -1 if the key exists, so another owner has a
/// hold, else 0.
pub(crate) fn other_or_nothing(keyspace: &mut Keyspace, key: &str) -> i64 {
    -i64::from(keyspace.exists(key))
}

/// Returns the server's time in the reply to a release of any kind; `None` for any other reply.
pub(crate) fn released_at(value: &Value) -> Option<ServerTime> {
    let with_receivers = || value.as_integers().map(|[_, now, _]| ServerTime(now));
    let of_many = || match value {
        Value::Array(parts) => match parts.as_slice() {
            [Value::Integer(_), Value::Integer(now), Value::Array(_)] => Some(ServerTime(*now)),
            _ => None,
        },
        _ => None,
    };
    let alone = value.as_integers().map(|[_, now]| ServerTime(now));
    alone.or_else(with_receivers).or_else(of_many)
}

/// Releases a lock stored as a hash.
static COUNTED: Script = script!("release");
/// Releases a lock stored as a text.
static TEXT: Script = script!("simple_release");
/// Releases the write lock of a read-write lock.
static WRITER: Script = script!("write_release");

impl ReleaseHold {
    /// Makes a release that publishes a message if waiters of this layout are subscribed.
    pub(crate) fn new(layout: Layout, name: LockName, owner: Owner) -> Self {
        let message = match layout {
            Layout::Text => PublishTo::None,
            Layout::Writer => PublishTo::ReadWrite(name.read_write_channel()),
            Layout::Counted | Layout::Reader | Layout::Permit => PublishTo::Lock,
        };
        Self { layout, name, message, owner }
    }

    /// Makes a release of a counted hold without a message, for a lock whose waiters poll.
    pub(crate) fn without_message(name: LockName, owner: Owner) -> Self {
        Self { layout: Layout::Counted, name, message: PublishTo::None, owner }
    }

    /// Ends a writer's hold in memory, and leaves the lock to the writer's own readers if any are
    /// left.
    fn end_writer(&self, keyspace: &mut Keyspace, field: &str) -> Result<(), WrongType> {
        let key = self.name.as_str();
        keyspace.hash_delete(key, field)?;
        let longest = longest_level(keyspace, &self.name);
        if longest > 0 && keyspace.hash_set(key, MODE, Mode::Read.word()).is_ok() {
            keyspace.expire(key, longest);
        } else {
            keyspace.delete(key);
        }
        Ok(())
    }
}

impl Operation for ReleaseHold {
    type Reply = Released;

    fn request(&self) -> Request<'_> {
        let (key, owner) = (self.name.as_str(), field_argument(self.layout, &self.owner));
        let unlocked = Argument::Text(UNLOCKED);
        match &self.message {
            PublishTo::None if self.layout == Layout::Text => {
                Request::script("release", &TEXT, vec![key], vec![owner])
            }
            PublishTo::None => {
                let arguments = vec![owner, unlocked, Argument::Publish];
                Request::script("release", &COUNTED, vec![key], arguments)
            }
            PublishTo::Lock => {
                let arguments =
                    vec![owner, unlocked, Argument::Publish, Argument::Channel(&self.name)];
                Request::script("release", &COUNTED, vec![key], arguments)
            }
            PublishTo::ReadWrite(channel) => {
                let arguments = vec![owner, Argument::Text(ALL), unlocked, Argument::Publish];
                Request::script("release", &WRITER, vec![key, channel], arguments)
            }
        }
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        let (key, field) = (self.name.as_str(), field(self.layout, &self.owner));
        if has_hold(keyspace, key, self.layout, &field) != Ok(true) {
            let answer = other_or_nothing(keyspace, key);
            return Ok(with_time(answer, keyspace));
        }
        match &self.message {
            PublishTo::None => {
                keyspace.delete(key);
                Ok(with_time(1, keyspace))
            }
            PublishTo::Lock => {
                keyspace.delete(key);
                keyspace.publish(&self.name.channel(), UNLOCKED);
                // A keyspace does not count subscribers. In memory the number is not used.
                let parts = [1, keyspace.now().0, 1];
                Ok(Value::Array(parts.map(Value::Integer).to_vec()))
            }
            PublishTo::ReadWrite(channel) => {
                self.end_writer(keyspace, &field)?;
                keyspace.publish(channel, ALL);
                keyspace.publish(channel, UNLOCKED);
                Ok(with_time(1, keyspace))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::owner::ClientId;

    #[test]
    fn the_reply_carries_the_servers_time() {
        let name = LockName::parse("a").unwrap();
        let release = ReleaseHold::new(Layout::Counted, name, ClientId::random().next_owner());
        let time = |parts: &[i64]| {
            let reply = Value::Array(parts.iter().copied().map(Value::Integer).collect());
            release.server_time(&reply)
        };
        assert_eq!(time(&[1, 42]), Some(ServerTime(42)));
        assert_eq!(time(&[1, 43, 2]), Some(ServerTime(43)));
        assert_eq!(time(&[1]), None);
    }
}
