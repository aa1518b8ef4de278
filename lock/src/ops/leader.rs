//! The leader: the holder of a fenced lock, and the token of the hold.

use std::sync::Arc;

use crate::model::name::LockName;
use crate::ops::keyspace::{Keyspace, WrongType};
use crate::ops::operation::{Operation, Request, Script, script};
use crate::ops::recognize::{Content, recognize};
use crate::ops::value::{FromReply, Unexpected, Value};

/// Queries the holder of a fenced lock and the last token together; `None` if the lock is free.
#[derive(Clone, Debug)]
pub(crate) struct CurrentLeader {
    name: LockName,
    tokens: Arc<str>,
}

/// The owner of the hold, and the last token drawn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaderReply {
    pub(crate) owner: String,
    pub(crate) token: u64,
}

/// Reads the holder of a fenced lock and the last token.
static SCRIPT: Script = script!("recognize", "leader");

impl CurrentLeader {
    pub(crate) fn new(name: LockName) -> Self {
        Self { tokens: name.token(), name }
    }
}

impl FromReply for Option<LeaderReply> {
    fn from_reply(value: Value) -> Result<Self, Unexpected> {
        let reply = match &value {
            Value::Nil => return Ok(None),
            Value::Array(parts) => match parts.as_slice() {
                [Value::Text(owner), Value::Text(token)] => {
                    token.parse().ok().map(|token| LeaderReply { owner: owner.clone(), token })
                }
                _ => None,
            },
            _ => None,
        };
        reply.map(Some).ok_or(Unexpected(value))
    }
}

impl Operation for CurrentLeader {
    type Reply = Option<LeaderReply>;

    fn request(&self) -> Request<'_> {
        Request::script("ask who leads", &SCRIPT, vec![self.name.as_str(), &self.tokens], vec![])
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        let owner = match recognize(keyspace, self.name.as_str()) {
            Content::Nothing => return Ok(Value::Nil),
            Content::Owners { mode: None, owners, .. } => owners.into_iter().next(),
            other => return Ok(other.refusal()),
        };
        let owner = owner.map(|(owner, _)| owner).unwrap_or_default();
        let token = keyspace.text_get(&self.tokens)?.unwrap_or_else(|| "0".to_owned());
        Ok(Value::Array(vec![Value::Text(owner), Value::Text(token)]))
    }
}
