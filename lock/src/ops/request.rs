//! A request id: the name of one call, under which the server remembers its reply, so that copies
//! count once.
//!
//! A plain number has no owner by which a copy of a command could be recognized. So each call that
//! changes one draws a name, and the first copy of its script stores the reply under it, for longer
//! than any copy may be on its way.

use std::sync::Arc;
use std::time::Duration;

use crate::model::name::LockName;
use crate::model::owner::Owner;
use crate::ops::keyspace::{Keyspace, WrongType};
use crate::ops::operation::Argument;
use crate::ops::value::Value;

/// One call, over all its attempts.
#[derive(Clone, Debug)]
pub(crate) struct RequestId {
    key: Arc<str>,
    dedup_ttl: i64,
}

impl RequestId {
    /// A call on `name` with the unique name `id`. The server forgets it after `dedup_ttl`.
    pub(crate) fn new(name: &LockName, id: &Owner, dedup_ttl: Duration) -> Self {
        let dedup_ttl = i64::try_from(dedup_ttl.as_millis()).unwrap_or(i64::MAX);
        Self { key: name.request(id), dedup_ttl }
    }

    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// How long the server remembers the request.
    pub(crate) fn dedup_ttl(&self) -> Argument<'static> {
        Argument::Number(self.dedup_ttl)
    }

    /// The reply to an earlier copy.
    pub(crate) fn known(&self, keyspace: &mut Keyspace) -> Result<Option<i64>, WrongType> {
        keyspace.number(&self.key)
    }

    /// Runs an operation unless a copy of it ran before, and remembers its reply.
    pub(crate) fn once(
        &self,
        keyspace: &mut Keyspace,
        operation: impl FnOnce(&mut Keyspace) -> Result<i64, WrongType>,
    ) -> Result<Value, WrongType> {
        if let Some(known) = self.known(keyspace)? {
            return Ok(Value::Integer(known));
        }
        let answer = operation(keyspace)?;
        self.remember(keyspace, answer);
        Ok(Value::Integer(answer))
    }

    pub(crate) fn remember(&self, keyspace: &mut Keyspace, answer: i64) {
        keyspace.text_set_for(&self.key, answer, self.dedup_ttl);
    }
}
