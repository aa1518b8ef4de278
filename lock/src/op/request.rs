//! A request: the name of one call, under which the server remembers what it answered, so that copies count once.
//!
//! What is only a number has no owner in it by which a copy of a command could be told from another. So each call that
//! changes one draws a name, and the script that runs first leaves its answer under it, for longer than any copy of the
//! call may take.

use std::sync::Arc;
use std::time::Duration;

use super::operation::Argument;
use crate::keyspace::{Keyspace, WrongType};
use crate::name::LockName;
use crate::owner::Owner;

/// One call, over all its attempts.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    key: Arc<str>,
    remembered: i64,
}

impl Request {
    /// A call on `name` that is known as `id`, which no other ever is. The server forgets it after `remembered`.
    pub(crate) fn new(name: &LockName, id: &Owner, remembered: Duration) -> Self {
        let remembered = i64::try_from(remembered.as_millis()).unwrap_or(i64::MAX);
        Self { key: name.request(id), remembered }
    }

    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// For how long a script is to remember it.
    pub(super) fn remembered(&self) -> Argument<'static> {
        Argument::Number(self.remembered)
    }

    /// What was answered to an earlier copy.
    pub(super) fn known(&self, keyspace: &mut Keyspace) -> Result<Option<i64>, WrongType> {
        keyspace.number(&self.key)
    }

    pub(super) fn remember(&self, keyspace: &mut Keyspace, answer: i64) {
        keyspace.text_set_for(&self.key, answer, self.remembered);
    }
}
