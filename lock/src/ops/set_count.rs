//! Set count: writes the count of an existing hold, on nesting and on the release of a nested
//! guard.

use crate::model::kind::Layout;
use crate::model::lease::Lease;
use crate::model::name::LockName;
use crate::model::owner::Owner;
use crate::ops::acquire::{field, field_argument};
use crate::ops::keyspace::{Keyspace, WrongType};
use crate::ops::operation::{Argument, Operation, Request, Script, script};
use crate::ops::read_write::{level, levels, prolong_level};
use crate::ops::value::{FromReply, Unexpected, Value};

/// Writes the count of an existing hold, and prolongs the hold by the lease, if any.
#[derive(Clone, Debug)]
pub(crate) struct SetCount {
    pub(crate) name: LockName,
    pub(crate) owner: Owner,
    pub(crate) count: u32,
    /// The lease on nesting, `None` on the release of a nested guard.
    pub(crate) lease: Option<Lease>,
    pub(crate) layout: Layout,
}

/// The reply to a [`SetCount`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetCountReply {
    Written,
    /// The server has no such hold any more.
    Gone,
}

impl FromReply for SetCountReply {
    fn from_reply(value: Value) -> Result<Self, Unexpected> {
        Ok(if bool::from_reply(value)? { Self::Written } else { Self::Gone })
    }
}

/// Writes the count of any hold but a reader's.
static SCRIPT: Script = script!("set_count");
/// Writes the count of a reader's hold, with its levels.
static READER: Script = script!("read_set_count");

impl SetCount {
    /// Adapts the levels of a reader in memory to the new count. `had` is the count before, and
    /// `lease` is zero on the release of a nested guard.
    fn set_levels(&self, keyspace: &mut Keyspace, owner: &str, had: &str, lease: i64) {
        let (had, count) = (levels(had), u64::from(self.count));
        let level = |number| level(&self.name, owner, number);
        if lease > 0 {
            for number in count.min(had + 1)..=count {
                prolong_level(keyspace, &level(number), lease);
            }
        }
        let mut longest = 0;
        keyspace.delete(&level(had.max(count) + 1));
        for number in count + 1..=had {
            longest = longest.max(keyspace.time_to_live(&level(number)));
            keyspace.delete(&level(number));
        }
        if longest > 0 && longest > keyspace.time_to_live(&level(1)) {
            prolong_level(keyspace, &level(1), longest);
        }
    }
}

impl Operation for SetCount {
    type Reply = SetCountReply;

    fn request(&self) -> Request<'_> {
        Request::script(
            "set count",
            if self.layout == Layout::Reader { &READER } else { &SCRIPT },
            vec![self.name.as_str()],
            vec![
                Argument::NotAfter,
                field_argument(self.layout, &self.owner),
                Argument::Number(i64::from(self.count)),
                Argument::Number(self.lease.map_or(0, Lease::millis_i64)),
            ],
        )
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        let (key, field) = (self.name.as_str(), field(self.layout, &self.owner));
        let Some(had) = keyspace.hash_get(key, &field)? else { return Ok(Value::Integer(0)) };
        let lease = self.lease.map_or(0, Lease::millis_i64);
        keyspace.prolong(key, lease);
        keyspace.hash_set(key, &field, self.count)?;
        if self.layout == Layout::Reader {
            self.set_levels(keyspace, &field, &had, lease);
        }
        Ok(Value::Integer(1))
    }
}
