//! Renew: prolongs many holds in a single script, each only while the owner has the hold.

use std::sync::Arc;

use crate::error::LostReason;
use crate::model::kind::Layout;
use crate::model::lease::Lease;
use crate::model::name::LockName;
use crate::model::owner::Owner;
use crate::ops::acquire::{field, field_argument, has_hold};
use crate::ops::keyspace::{Keyspace, WrongType};
use crate::ops::operation::{Argument, Operation, Request, Script, script};
use crate::ops::permits::renew_permit;
use crate::ops::read_write::renew_reader;
use crate::ops::release::other_or_nothing;
use crate::ops::value::{FromReply, ServerTime, Unexpected, Value};

/// Renews holds in a single script, all of the same layout.
#[derive(Clone, Debug)]
pub(crate) struct Renew {
    layout: Layout,
    renewals: Vec<Renewal>,
    /// The keys of permits' leases; empty for locks, whose names are the keys.
    leases: Vec<Arc<str>>,
}

/// The verb of a renewal, for messages and for the faults of a store in memory.
pub(crate) const RENEW: &str = "renew";

/// A hold to renew.
#[derive(Clone, Debug)]
pub(crate) struct Renewal {
    pub(crate) name: LockName,
    pub(crate) owner: Owner,
    pub(crate) lease: Lease,
}

/// The server's reply to a [`Renew`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Renewals {
    /// The server's time of the renewal.
    pub(crate) at: ServerTime,
    /// The result for each hold, in order.
    pub(crate) answers: Vec<Renewed>,
}

/// The server's answer for one renewed hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewed {
    Prolonged,
    Deleted,
    TakenOver,
}

impl Renewed {
    /// Returns how the hold was lost; `None` if the hold was prolonged.
    pub(crate) fn loss(self) -> Option<LostReason> {
        match self {
            Self::Prolonged => None,
            Self::Deleted => Some(LostReason::Deleted),
            Self::TakenOver => Some(LostReason::TakenOver),
        }
    }
}

impl FromReply for Renewals {
    fn from_reply(value: Value) -> Result<Self, Unexpected> {
        let Value::Array(parts) = value else {
            return Err(Unexpected(value));
        };
        let Some((Value::Integer(at), answers)) = parts.split_first() else {
            return Err(Unexpected(Value::Array(parts)));
        };
        let at = ServerTime(*at);
        let answers: Option<Vec<Renewed>> = answers
            .iter()
            .map(|part| match part {
                Value::Integer(1) => Some(Renewed::Prolonged),
                Value::Integer(0) => Some(Renewed::Deleted),
                Value::Integer(-1) => Some(Renewed::TakenOver),
                _ => None,
            })
            .collect();
        match answers {
            Some(answers) => Ok(Self { at, answers }),
            None => Err(Unexpected(Value::Array(parts))),
        }
    }

    fn server_time(value: &Value) -> Option<ServerTime> {
        match value {
            Value::Array(parts) => match parts.first() {
                Some(Value::Integer(now)) => Some(ServerTime(*now)),
                _ => None,
            },
            _ => None,
        }
    }
}

/// Renews holds stored as fields of a hash, without levels.
static COUNTED: Script = script!("renew");
/// Renews holds stored as a text.
static TEXT: Script = script!("simple_renew");
/// Renews readers' holds with their levels.
static READERS: Script = script!("renew_readers");
/// Renews permits.
static PERMITS: Script = script!("permits_renew");

impl Renew {
    pub(crate) fn new(layout: Layout, renewals: Vec<Renewal>) -> Self {
        let leases = match layout {
            Layout::Permit => renewals.iter().map(|renewal| renewal.name.permit_leases()).collect(),
            Layout::Counted | Layout::Text | Layout::Reader | Layout::Writer => Vec::new(),
        };
        Self { layout, renewals, leases }
    }
}

impl Operation for Renew {
    type Reply = Renewals;

    fn request(&self) -> Request<'_> {
        let script = match self.layout {
            Layout::Text => &TEXT,
            Layout::Reader => &READERS,
            Layout::Permit => &PERMITS,
            Layout::Counted | Layout::Writer => &COUNTED,
        };
        let keys = if self.layout == Layout::Permit {
            self.leases.iter().map(|leases| &**leases).collect()
        } else {
            self.renewals.iter().map(|renewal| renewal.name.as_str()).collect()
        };
        let mut arguments = Vec::with_capacity(1 + 2 * self.renewals.len());
        arguments.push(Argument::NotAfter);
        for renewal in &self.renewals {
            arguments.push(match self.layout {
                Layout::Permit => Argument::Permit(&renewal.owner),
                layout => field_argument(layout, &renewal.owner),
            });
            arguments.push(Argument::millis(renewal.lease.millis()));
        }
        Request::script(RENEW, script, keys, arguments)
    }

    /// Decodes the reply, which has a result for each hold; else the reply is [`Unexpected`].
    fn decode(&self, value: Value) -> Result<Renewals, Unexpected> {
        match &value {
            Value::Array(parts) if parts.len() == 1 + self.renewals.len() => {
                Renewals::from_reply(value)
            }
            _ => Err(Unexpected(value)),
        }
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        let now = keyspace.now();
        let answers = self.renewals.iter().map(|renewal| {
            let (key, lease) = (renewal.name.as_str(), renewal.lease.millis_i64());
            if self.layout == Layout::Reader {
                return renew_reader(keyspace, &renewal.name, &renewal.owner, lease);
            }
            if self.layout == Layout::Permit {
                return renew_permit(keyspace, &renewal.name, &renewal.owner, lease);
            }
            let field = field(self.layout, &renewal.owner);
            if has_hold(keyspace, key, self.layout, &field) == Ok(true) {
                keyspace.prolong(key, lease);
                1
            } else {
                other_or_nothing(keyspace, key)
            }
        });
        Ok(Value::Array(std::iter::once(now.0).chain(answers).map(Value::Integer).collect()))
    }
}
