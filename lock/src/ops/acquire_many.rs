//! Acquire many: takes many free locks of a server in a single script, or reports the busy locks.

use std::time::Duration;

use crate::model::kind::Layout;
use crate::model::lease::Lease;
use crate::model::name::LockName;
use crate::model::owner::Owner;
use crate::ops::acquire::{check_lock, field, has_hold};
use crate::ops::keyspace::{Keyspace, WrongType};
use crate::ops::operation::{Argument, Grants, Operation, Request, Script, script};
use crate::ops::value::{FromReply, Unexpected, Value};

/// Acquires plain locks of one server by a single script.
#[derive(Clone, Debug)]
pub(crate) struct AcquireMany {
    /// The name of each lock with its new owner.
    pub(crate) holds: Vec<(LockName, Owner)>,
    pub(crate) lease: Lease,
    /// Whether a single busy lock prevents every acquire.
    pub(crate) all_or_none: bool,
}

/// The busy locks: positions in the request, and times to live. If the list is empty, all locks are
/// taken. With `all_or_none`, the list has only the first busy lock, and no lock is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Busy(pub(crate) Vec<(usize, Option<Duration>)>);

impl FromReply for Busy {
    fn from_reply(value: Value) -> Result<Self, Unexpected> {
        let Value::Array(parts) = &value else { return Err(Unexpected(value)) };
        let (pairs, rest) = parts.as_chunks::<2>();
        let pair = |pair: &[Value; 2]| match *pair {
            [Value::Integer(number), Value::Integer(left)] => {
                let position = usize::try_from(number).ok()?.checked_sub(1)?;
                Some((position, u64::try_from(left).ok().map(Duration::from_millis)))
            }
            _ => None,
        };
        match pairs.iter().map(pair).collect() {
            Some(busy) if rest.is_empty() => Ok(Self(busy)),
            _ => Err(Unexpected(value)),
        }
    }
}

/// Acquires several locks stored as hashes.
static MANY: Script = script!("acquire_many");

impl Operation for AcquireMany {
    type Reply = Busy;

    fn request(&self) -> Request<'_> {
        let keys = self.holds.iter().map(|(name, _)| name.as_str()).collect();
        let mut arguments = vec![
            Argument::NotAfter,
            Argument::millis(self.lease.millis()),
            Argument::Number(self.all_or_none.into()),
        ];
        arguments.extend(self.holds.iter().map(|(_, owner)| Argument::Owner(owner)));
        Request::script("acquire", &MANY, keys, arguments)
    }

    /// Decodes the reply: nil if every lock is busy. A position beyond the request is
    /// [`Unexpected`].
    fn decode(&self, value: Value) -> Result<Busy, Unexpected> {
        if value == Value::Nil {
            return Ok(Busy((0..self.holds.len()).map(|position| (position, None)).collect()));
        }
        let busy = Busy::from_reply(value.clone())?;
        let are_known = busy.0.iter().all(|(position, _)| *position < self.holds.len());
        if are_known { Ok(busy) } else { Err(Unexpected(value)) }
    }

    /// A reply refusing every lock is no grant, however many replicas acknowledged the command.
    fn grants(&self) -> Grants {
        if self.all_or_none {
            Grants::If(|value| matches!(value, Value::Array(busy) if busy.is_empty()))
        } else {
            Grants::If(|value| matches!(value, Value::Array(_)))
        }
    }

    fn is_divisible(&self) -> bool {
        self.holds.len() > 1
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        let (mut busy, mut taken) = (Vec::new(), Vec::new());
        for (number, (name, owner)) in (1..).zip(&self.holds) {
            let key = name.as_str();
            let field = field(Layout::Counted, owner);
            if !keyspace.exists(key) || has_hold(keyspace, key, Layout::Counted, &field)? {
                taken.push((key, field));
                continue;
            }
            check_lock(keyspace, key, Layout::Counted)?;
            busy.extend([number, keyspace.time_to_live(key)].map(Value::Integer));
            if self.all_or_none {
                return Ok(Value::Array(busy));
            }
        }
        if taken.is_empty() {
            return Ok(Value::Nil);
        }
        for (key, field) in taken {
            keyspace.hash_set(key, &field, 1)?;
            keyspace.prolong(key, self.lease.millis_i64());
        }
        Ok(Value::Array(busy))
    }
}
