//! Tells a client that another one wants a lock which it may have cached (DESIGN: cache).

use std::sync::Arc;

use crate::model::name::LockName;
use crate::ops::keyspace::{Keyspace, WrongType};
use crate::ops::operation::{Argument, Operation, Request, Script, script};
use crate::ops::value::Value;

/// Publishes the name of a lock on its holder's channel.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    /// Of the holder's client. It has the name of that client's [record].
    ///
    /// [record]: crate::ops::client_record::record_key
    pub(crate) channel: Arc<str>,
    pub(crate) name: LockName,
}

static WISH: Script = script!("wish");

impl Operation for Wish {
    /// How many subscribers the message has reached on this server.
    type Reply = i64;

    fn request(&self) -> Request<'_> {
        let arguments = vec![Argument::Publish, Argument::Text(self.name.as_str())];
        Request::script("ask for a cached lock", &WISH, vec![&*self.channel], arguments)
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        keyspace.publish(&self.channel, self.name.as_str());
        Ok(Value::Integer(1))
    }
}
