//! Force release: ends any hold of the lock.

use std::sync::Arc;

use crate::model::kind::Layout;
use crate::model::name::LockName;
use crate::ops::keyspace::{Keyspace, WrongType};
use crate::ops::operation::{ALL, Argument, Operation, Request, Script, UNLOCKED, script};
use crate::ops::read_write::Mode;
use crate::ops::recognize::{Content, recognize};
use crate::ops::request::{Remembered, RequestId};
use crate::ops::value::Value;

/// Ends any hold of the lock; of a read-write lock, only holds in the mode of `layout`.
#[derive(Clone, Debug)]
pub(crate) struct ForceRelease {
    layout: Layout,
    name: LockName,
    /// `None` for a lock whose waiters poll.
    channel: Option<Arc<str>>,
    request: RequestId,
}

/// Ends any hold of a lock stored as a hash.
static COUNTED: Script = script!("recognize", "force_release");
/// Ends any hold of a lock stored as a text.
static TEXT: Script = script!("recognize", "simple_force_release");
/// Ends any hold of a read-write lock in the mode that an argument names.
static READ_WRITE: Script = script!("recognize", "read_write_force_release");

impl ForceRelease {
    /// Makes the request. `layout` is the layout of the expected lock, and selects the mode of a
    /// read-write lock whose holds end.
    pub(crate) fn new(layout: Layout, name: LockName, request: RequestId) -> Self {
        let channel = match layout {
            Layout::Text => None,
            Layout::Reader | Layout::Writer => Some(name.read_write_channel()),
            Layout::Counted | Layout::Permit => Some(name.channel()),
        };
        Self { layout, name, channel, request }
    }

    /// Returns the mode in which holds are ended; `None` for a lock without modes.
    fn mode(&self) -> Option<Mode> {
        match self.layout {
            Layout::Reader => Some(Mode::Read),
            Layout::Writer => Some(Mode::Write),
            Layout::Counted | Layout::Text | Layout::Permit => None,
        }
    }

    /// Returns the message on the lock's channel after the end of a hold.
    fn message(&self) -> &'static str {
        if self.layout == Layout::Writer { ALL } else { UNLOCKED }
    }

    /// Returns whether there is a hold to end. `None` if the key has content other than a lock of
    /// this layout.
    fn is_held(&self, found: &Content) -> Option<bool> {
        match (found, self.layout) {
            (Content::Nothing, _)
            | (Content::Owners { mode: None, .. }, Layout::Counted | Layout::Permit)
            | (Content::Simple(_), Layout::Text) => Some(*found != Content::Nothing),
            (Content::Owners { mode: Some(found), .. }, Layout::Reader | Layout::Writer) => {
                Some(self.mode().is_some_and(|mode| mode.word() == found))
            }
            _ => None,
        }
    }
}

impl Operation for ForceRelease {
    /// Whether there was a hold.
    type Reply = bool;

    fn request(&self) -> Request<'_> {
        let mode = self.mode().map(Mode::word);
        let script = match self.layout {
            Layout::Text => &TEXT,
            Layout::Reader | Layout::Writer => &READ_WRITE,
            Layout::Counted | Layout::Permit => &COUNTED,
        };
        let mut keys = vec![self.name.as_str()];
        keys.extend(self.channel.as_deref());
        keys.push(self.request.key());
        let mut arguments = vec![Argument::NotAfter];
        arguments.extend(mode.map(Argument::Text));
        if self.channel.is_some() {
            arguments.extend([Argument::Text(self.message()), Argument::Publish]);
        }
        arguments.extend([self.request.number(), self.request.dedup_ttl()]);
        Request::script("force release", script, keys, arguments)
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        let found = recognize(keyspace, self.name.as_str());
        let held = self.is_held(&found);
        if held.is_none() && self.request.remembered(keyspace)? == Remembered::Nothing {
            return Ok(found.refusal());
        }
        self.request.once(keyspace, |keyspace| {
            let ended = held == Some(true);
            if ended {
                keyspace.delete(self.name.as_str());
                if let Some(channel) = &self.channel {
                    keyspace.publish(channel, self.message());
                }
            }
            Ok(i64::from(ended))
        })
    }
}
