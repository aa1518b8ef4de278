//! Set count: writes the count of an existing hold, when it is nested or a nested guard is
//! released.

use crate::model::lease::Lease;
use crate::model::name::LockName;
use crate::model::owner::Owner;
use crate::ops::keyspace::{Keyspace, WrongType};
use crate::ops::operation::{Argument, Operation, Request, Script, WRITE};
use crate::ops::value::{FromReply, Unexpected, Value};

#[derive(Clone, Debug)]
pub(crate) struct SetCount {
    pub(crate) name: LockName,
    pub(crate) owner: Owner,
    pub(crate) count: u32,
    /// The lease of a hold that was nested, `None` when a nested guard is released.
    pub(crate) lease: Option<Lease>,
    /// Whether the field is a writer's.
    pub(crate) is_writer: bool,
}

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

static SCRIPT: Script = Script::new(include_str!("scripts/set_count.lua"));

impl Operation for SetCount {
    type Reply = SetCountReply;

    fn request(&self) -> Request<'_> {
        let field = if self.is_writer { Argument::Writer } else { Argument::Owner };
        Request::script(
            "set count",
            &SCRIPT,
            vec![self.name.as_str()],
            vec![
                Argument::NotAfter,
                field(&self.owner),
                Argument::Number(i64::from(self.count)),
                Argument::Number(self.lease.map_or(0, Lease::millis_i64)),
            ],
        )
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        let (key, ending) = (self.name.as_str(), if self.is_writer { WRITE } else { "" });
        let field = format!("{}{ending}", self.owner);
        if !keyspace.hash_has(key, &field)? {
            return Ok(Value::Integer(0));
        }
        keyspace.prolong(key, self.lease.map_or(0, Lease::millis_i64));
        keyspace.hash_set(key, &field, u64::from(self.count))?;
        Ok(Value::Integer(1))
    }
}
