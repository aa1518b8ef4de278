//! Release many: ends many holds of a server in a single script, and wakes each lock's waiters.

use crate::model::kind::Layout;
use crate::model::name::LockName;
use crate::model::owner::Owner;
use crate::ops::acquire::{field, has_hold};
use crate::ops::keyspace::{Keyspace, WrongType};
use crate::ops::operation::{Argument, Operation, Request, Script, UNLOCKED, script};
use crate::ops::release::{Released, other_or_nothing};
use crate::ops::value::Value;

/// Ends holds of plain locks in a single script.
#[derive(Clone, Debug)]
pub(crate) struct ReleaseMany {
    pub(crate) holds: Vec<(LockName, Owner)>,
}

/// Releases several locks stored as hashes.
static MANY: Script = script!("release_many");

impl Operation for ReleaseMany {
    type Reply = Released;

    fn request(&self) -> Request<'_> {
        let keys = self.holds.iter().map(|(name, _)| name.as_str()).collect();
        let mut arguments = vec![Argument::Text(UNLOCKED), Argument::Publish];
        for (name, owner) in &self.holds {
            arguments.extend([Argument::Owner(owner), Argument::Channel(name)]);
        }
        Request::script("release", &MANY, keys, arguments)
    }

    fn is_divisible(&self) -> bool {
        self.holds.len() > 1
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        let mut found = Vec::with_capacity(self.holds.len());
        for (name, owner) in &self.holds {
            let key = name.as_str();
            let field = field(Layout::Counted, owner);
            found.push(Value::Integer(
                if has_hold(keyspace, key, Layout::Counted, &field) == Ok(true) {
                    keyspace.delete(key);
                    keyspace.publish(&name.channel(), UNLOCKED);
                    1
                } else {
                    other_or_nothing(keyspace, key)
                },
            ));
        }
        let now = Value::Integer(keyspace.now().0);
        Ok(Value::Array(vec![Value::Integer(1), now, Value::Array(found)]))
    }
}
