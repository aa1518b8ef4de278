//! Asks a client to release a lock: another client wants the lock, or a user has asked for the
//! release.
//!
//! The channel has the name of the client's record, so a single subscription for each client is
//! enough, and in a cluster the channel has a hash slot. `7:shard:7,deploy` is the name `shard:7`,
//! of seven bytes, and the reason `deploy`. The server stores nothing, and a holder may go on.

use std::sync::Arc;

use crate::model::name::LockName;
use crate::ops::keyspace::{Keyspace, WrongType};
use crate::ops::operation::{Argument, Operation, Request, Script, script};
use crate::ops::value::Value;

/// Publishes a request on the channel of a holder's client.
#[derive(Clone, Debug)]
pub(crate) struct Revoke {
    /// The channel has the name of the client's [record].
    ///
    /// [record]: crate::ops::client_record::client_record_key
    channel: Arc<str>,
    message: String,
}

/// A request to release a lock, as the content of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RevocationRequest<'a> {
    pub(crate) name: LockName,
    /// `None`: a client waits for the lock, which may be cached. The work of a holder goes on.
    pub(crate) reason: Option<&'a str>,
}

/// Publishes a message on the channel of a client.
static REVOKE: Script = script!("revoke");

impl Revoke {
    /// Makes the message that asks for the release of the lock `name`. Without a reason, only a
    /// cached lock is released.
    pub(crate) fn new(channel: Arc<str>, name: &LockName, reason: Option<&str>) -> Self {
        let name = name.as_str();
        let message = match reason {
            None => format!("{}:{name}", name.len()),
            Some(reason) => format!("{}:{name},{reason}", name.len()),
        };
        Self { channel, message }
    }
}

/// The message of a client searching for deadlocks, which is no [`RevocationRequest`].
pub(crate) const NAME_WAITS: &str = "waits";

impl Revoke {
    /// Makes the message that asks a client to write its long waits into its record again.
    pub(crate) fn name_waits(channel: Arc<str>) -> Self {
        Self { channel, message: NAME_WAITS.to_owned() }
    }
}

impl<'a> RevocationRequest<'a> {
    /// Parses a message of [`Revoke`]. An unknown text is `None`.
    pub(crate) fn parse(message: &'a str) -> Option<Self> {
        let (length, rest) = message.split_once(':')?;
        let (name, rest) = rest.split_at_checked(length.parse().ok()?)?;
        let reason = if rest.is_empty() { None } else { Some(rest.strip_prefix(',')?) };
        Some(Self { name: LockName::parse(name).ok()?, reason })
    }
}

impl Operation for Revoke {
    /// How many subscribers the message has reached on this server.
    type Reply = i64;

    fn request(&self) -> Request<'_> {
        let arguments = vec![Argument::Publish, Argument::Text(&self.message)];
        Request::script("ask a holder to let go", &REVOKE, vec![&*self.channel], arguments)
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        keyspace.publish(&self.channel, &self.message);
        Ok(Value::Integer(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_says_what_was_asked_whatever_is_in_the_name() {
        for name in ["a", "7:a", "a,b", "é:\n", "1:a,b"] {
            let name = LockName::parse(name).unwrap();
            for reason in [None, Some(""), Some("deploy, at 3:00")] {
                let sent = Revoke::new(Arc::from("channel"), &name, reason);
                let parsed = RevocationRequest::parse(&sent.message);
                assert_eq!(parsed, Some(RevocationRequest { name: name.clone(), reason }));
            }
        }
    }

    #[test]
    fn anything_else_is_no_request() {
        for message in
            [NAME_WAITS, "", "a", ":", "1:", "2:a", "1:ab", "x:a", "2:aé", "1:é", "-1:a", "0:,x"]
        {
            assert_eq!(RevocationRequest::parse(message), None, "{message}");
        }
    }
}
