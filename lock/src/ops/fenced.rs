//! Fencing tokens: acquires with a token, tokens for existing holds, the last token.

use std::sync::Arc;

use crate::model::kind::Layout;
use crate::model::lease::Lease;
use crate::model::name::LockName;
use crate::model::owner::Owner;
use crate::ops::acquire::{Acquired, check_lock, field, field_argument, has_hold};
use crate::ops::keyspace::{Keyspace, WrongType};
use crate::ops::operation::{Argument, Grants, Operation, Request, Script, script};
use crate::ops::value::{FromReply, Unexpected, Value};

/// Acquires a lock and draws a token.
static ACQUIRE: Script = script!("fenced_acquire");
/// Draws a token for an existing hold.
static DRAW: Script = script!("draw_token");

/// Acquires a free lock for a new owner, with a fencing token.
#[derive(Clone, Debug)]
pub(crate) struct FencedAcquire {
    name: LockName,
    tokens: Arc<str>,
    owner: Owner,
    lease: Lease,
}

impl FencedAcquire {
    pub(crate) fn new(name: LockName, owner: Owner, lease: Lease) -> Self {
        Self { tokens: name.token(), name, owner, lease }
    }
}

impl Operation for FencedAcquire {
    type Reply = Acquired;

    fn request(&self) -> Request<'_> {
        Request::script(
            "acquire",
            &ACQUIRE,
            vec![self.name.as_str(), &self.tokens],
            vec![
                Argument::NotAfter,
                Argument::Owner(&self.owner),
                Argument::Number(self.lease.millis_i64()),
            ],
        )
    }

    fn decode(&self, value: Value) -> Result<Acquired, Unexpected> {
        match value {
            Value::Integer(millis) => Ok(Acquired::busy(millis)),
            other => read_token(other).map(Acquired::Fenced),
        }
    }

    fn grants(&self) -> Grants {
        Grants::If(|value| read_token(value.clone()).is_ok())
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        let (key, owner) = (self.name.as_str(), self.owner.to_string());
        let mine = keyspace.hash_has(key, &owner)?;
        if !mine && keyspace.exists(key) {
            check_lock(keyspace, key, Layout::Counted)?;
            return Ok(Value::Integer(keyspace.time_to_live(key)));
        }
        if !mine || !keyspace.exists(&self.tokens) {
            next_token(keyspace, &self.tokens)?;
        }
        keyspace.persist(&self.tokens);
        keyspace.hash_set(key, &owner, 1)?;
        keyspace.prolong(key, self.lease.millis_i64());
        token(keyspace, &self.tokens)
    }
}

/// Draws a fencing token for a hold acquired without a token.
#[derive(Clone, Debug)]
pub(crate) struct DrawToken {
    layout: Layout,
    /// The key of the hold.
    key: Arc<str>,
    tokens: Arc<str>,
    owner: Owner,
}

impl DrawToken {
    pub(crate) fn new(layout: Layout, name: &LockName, owner: Owner) -> Self {
        let key = match layout {
            Layout::Permit => name.permit_leases(),
            Layout::Counted | Layout::Text | Layout::Reader | Layout::Writer => {
                Arc::from(name.as_str())
            }
        };
        Self { layout, key, tokens: name.token(), owner }
    }
}

impl Operation for DrawToken {
    /// `None` if the hold is gone.
    type Reply = Option<u64>;

    fn request(&self) -> Request<'_> {
        let (owner, storage) = match self.layout {
            Layout::Permit => (Argument::Permit(&self.owner), "permit"),
            Layout::Text => (Argument::Owner(&self.owner), "text"),
            layout => (field_argument(layout, &self.owner), "hash"),
        };
        Request::script(
            "draw token",
            &DRAW,
            vec![&self.key, &self.tokens],
            vec![Argument::NotAfter, owner, Argument::Text(storage)],
        )
    }

    /// A drawn token is a grant: after the loss by a failover the same token may be drawn again.
    fn grants(&self) -> Grants {
        Grants::If(|value| read_token(value.clone()).is_ok())
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        let is_held = if self.layout == Layout::Permit {
            let ends = keyspace.sorted_set_score(&self.key, &self.owner.bytes())?;
            ends.is_some_and(|ends| ends > keyspace.now().0)
        } else {
            let field = field(self.layout, &self.owner);
            has_hold(keyspace, &self.key, self.layout, &field)?
        };
        if !is_held {
            return Ok(Value::Nil);
        }
        next_token(keyspace, &self.tokens)?;
        keyspace.persist(&self.tokens);
        token(keyspace, &self.tokens)
    }
}

/// Queries the last fencing token of a lock; `None` if there was none. The field is the key of the
/// counter.
#[derive(Clone, Debug)]
pub(crate) struct LastToken(Arc<str>);

impl LastToken {
    pub(crate) fn new(name: &LockName) -> Self {
        Self(name.token())
    }
}

impl Operation for LastToken {
    type Reply = Option<u64>;

    fn request(&self) -> Request<'_> {
        Request::command("last token", "GET", &self.0)
    }

    fn decode(&self, value: Value) -> Result<Option<u64>, Unexpected> {
        match value {
            Value::Nil => Ok(None),
            text => read_token(Value::Array(vec![text])).map(Some),
        }
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        Ok(keyspace.text_get(&self.0)?.map_or(Value::Nil, Value::Text))
    }
}

/// Increments the counter of tokens in memory, and raises the counter to the clock in microseconds
/// if lower.
pub(crate) fn next_token(keyspace: &mut Keyspace, tokens: &str) -> Result<(), WrongType> {
    let clock = keyspace.now().0.saturating_mul(1000);
    if keyspace.number_add(tokens, 1)? < clock {
        keyspace.text_set(tokens, clock);
    }
    Ok(())
}

/// Returns the reply with the last drawn token.
fn token(keyspace: &mut Keyspace, tokens: &str) -> Result<Value, WrongType> {
    let text = keyspace.text_get(tokens)?.unwrap_or_default();
    Ok(Value::Array(vec![Value::Text(text)]))
}

impl FromReply for Option<u64> {
    fn from_reply(value: Value) -> Result<Self, Unexpected> {
        match value {
            Value::Nil => Ok(None),
            other => read_token(other).map(Some),
        }
    }
}

/// Reads a token from a reply, an array with a single text.
fn read_token(value: Value) -> Result<u64, Unexpected> {
    match &value {
        Value::Array(parts) => match parts.as_slice() {
            [Value::Text(text)] => text.parse().map_err(|_| Unexpected(value)),
            _ => Err(Unexpected(value)),
        },
        _ => Err(Unexpected(value)),
    }
}
