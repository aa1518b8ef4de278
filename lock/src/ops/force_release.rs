//! Force release: ends any hold of the lock.

use std::sync::Arc;

use crate::model::name::LockName;
use crate::ops::keyspace::{Keyspace, WrongType};
use crate::ops::operation::{Argument, Operation, Request, Script, UNLOCKED};
use crate::ops::request::RequestId;
use crate::ops::value::Value;

#[derive(Clone, Debug)]
pub(crate) struct ForceRelease {
    name: LockName,
    channel: Arc<str>,
    request: RequestId,
}

static SCRIPT: Script = Script::new(include_str!("scripts/force_release.lua"));

impl ForceRelease {
    pub(crate) fn new(name: LockName, request: RequestId) -> Self {
        Self { channel: name.channel(), name, request }
    }
}

impl Operation for ForceRelease {
    /// Whether there was a hold.
    type Reply = bool;

    fn request(&self) -> Request<'_> {
        Request::script(
            "force release",
            &SCRIPT,
            vec![self.name.as_str(), &self.channel, self.request.key()],
            vec![
                Argument::NotAfter,
                Argument::Text(UNLOCKED),
                Argument::Publish,
                self.request.number(),
                self.request.dedup_ttl(),
            ],
        )
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        self.request.once(keyspace, |keyspace| {
            keyspace.hash_has(self.name.as_str(), "")?;
            let ended = keyspace.delete(self.name.as_str());
            if ended {
                keyspace.publish(&self.channel, UNLOCKED);
            }
            Ok(i64::from(ended))
        })
    }
}
