//! Renew: prolongs many holds in one script, each if it is still its owner's.

use std::sync::Arc;

use super::operation::{Argument, Form, Operation, Script, WRITE};
use super::permits::renew_permit;
use super::read_write::renew_reader;
use crate::keyspace::Keyspace;
use crate::kind::Layout;
use crate::lease::Lease;
use crate::name::LockName;
use crate::owner::Owner;
use crate::value::{ServerTime, Unexpected, Value};

/// The holds that one script renews, all of one layout.
#[derive(Clone, Debug)]
pub(crate) struct Renew {
    layout: Layout,
    renewals: Vec<Renewal>,
    /// The keys of permits: their leases. All others stand under their names.
    leases: Vec<Arc<str>>,
}

/// One hold that should be prolonged.
#[derive(Clone, Debug)]
pub(crate) struct Renewal {
    pub(crate) name: LockName,
    pub(crate) owner: Owner,
    pub(crate) lease: Lease,
}

/// What the server said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Renewals {
    /// When it was.
    pub(crate) at: ServerTime,
    /// One answer for each hold, in their order.
    pub(crate) answers: Vec<Renewed>,
}

/// What the server said of one hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewed {
    Prolonged,
    Deleted,
    TakenOver,
}

static COUNTED: Script = Script::new(include_str!("renew.lua"));
static TEXT: Script = Script::new(include_str!("text_renew.lua"));
static READERS: Script = Script::new(include_str!("renew_readers.lua"));
static PERMITS: Script = Script::new(include_str!("permits_renew.lua"));

impl Renew {
    pub(crate) fn new(layout: Layout, renewals: Vec<Renewal>) -> Self {
        let leases = match layout {
            Layout::Permit => renewals.iter().map(|renewal| renewal.name.permit_leases()).collect(),
            Layout::Counted | Layout::Text | Layout::Reader | Layout::Writer => Vec::new(),
        };
        Self { layout, renewals, leases }
    }

    fn is_there(&self, keyspace: &mut Keyspace, renewal: &Renewal) -> bool {
        let (key, owner) = (renewal.name.as_str(), renewal.owner.to_string());
        match self.layout {
            Layout::Text => keyspace.text_get(key) == Ok(Some(owner)),
            Layout::Writer => keyspace.hash_has(key, &format!("{owner}{WRITE}")) == Ok(true),
            // Permits have an answer of their own.
            Layout::Counted | Layout::Reader | Layout::Permit => {
                keyspace.hash_has(key, &owner) == Ok(true)
            }
        }
    }
}

impl Operation for Renew {
    type Reply = Renewals;

    fn name(&self) -> &'static str {
        "renew"
    }

    fn form(&self) -> Form {
        Form::Script(match self.layout {
            Layout::Text => &TEXT,
            Layout::Reader => &READERS,
            Layout::Permit => &PERMITS,
            Layout::Counted | Layout::Writer => &COUNTED,
        })
    }

    fn keys(&self) -> Vec<&str> {
        if self.layout == Layout::Permit {
            return self.leases.iter().map(|leases| &**leases).collect();
        }
        self.renewals.iter().map(|renewal| renewal.name.as_str()).collect()
    }

    fn arguments(&self, not_after: ServerTime) -> Vec<Argument<'_>> {
        let mut arguments = Vec::with_capacity(1 + 2 * self.renewals.len());
        arguments.push(Argument::Number(not_after.0));
        for renewal in &self.renewals {
            arguments.push(match self.layout {
                Layout::Writer => Argument::Writer(&renewal.owner),
                Layout::Permit => Argument::Permit(&renewal.owner),
                Layout::Counted | Layout::Text | Layout::Reader => Argument::Owner(&renewal.owner),
            });
            arguments.push(Argument::millis(renewal.lease.millis()));
        }
        arguments
    }

    fn decode(&self, value: Value) -> Result<Renewals, Unexpected> {
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
            Some(answers) if answers.len() == self.renewals.len() => Ok(Renewals { at, answers }),
            _ => Err(Unexpected(Value::Array(parts))),
        }
    }

    fn apply(&self, keyspace: &mut Keyspace, not_after: ServerTime) -> Value {
        if let Some(late) = keyspace.late(not_after) {
            return late;
        }
        let now = keyspace.now();
        let answers = self.renewals.iter().map(|renewal| {
            let (key, lease) = (renewal.name.as_str(), renewal.lease.in_millis());
            if self.layout == Layout::Reader {
                return renew_reader(keyspace, &renewal.name, &renewal.owner, lease);
            }
            if self.layout == Layout::Permit {
                return renew_permit(keyspace, &renewal.name, &renewal.owner, lease);
            }
            if self.is_there(keyspace, renewal) {
                keyspace.prolong(key, lease);
                1
            } else if keyspace.exists(key) {
                -1
            } else {
                0
            }
        });
        Value::Array(std::iter::once(now.0).chain(answers).map(Value::Integer).collect())
    }
}
