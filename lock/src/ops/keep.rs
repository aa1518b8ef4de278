//! Keep: ends a hold but leaves the key for a while, and wakes the waiters, which read the time to
//! live.
//!
//! The key stays under another owner, which nobody renews, nests or releases: the hold's owner
//! followed by [`KEPT`]. So a copy of this command finds the work done, and a late renewal, acquire
//! or plain release of the hold finds a foreign owner. The command needs no not-after and no
//! estimate of the server's clock. Redisson sees a hash with an owner and a time to live.
//!
//! Until the server acknowledges the command, the client repeats it like any release. The release
//! log does not have it: after a failover, a plain release would free the lock too early. If a
//! writer also reads, the lock is not kept for the writer: both holds are in the same key, whose
//! expiry would end the reader too.

use std::sync::Arc;
use std::time::Duration;

use crate::model::kind::Layout;
use crate::model::name::LockName;
use crate::model::owner::Owner;
use crate::ops::acquire::{field, field_argument};
use crate::ops::keyspace::{Keyspace, WrongType};
use crate::ops::operation::{ALL, Argument, KEPT, Operation, Request, Script, UNLOCKED, script};
use crate::ops::read_write::{LEVEL, MODE, Mode, level, levels, longest_level};
use crate::ops::release::{Released, other_or_nothing, with_time};
use crate::ops::value::Value;

/// Ends a hold. The key stays for `left`, whatever the lease was.
#[derive(Clone, Debug)]
pub(crate) struct Keep {
    pub(crate) layout: Layout,
    pub(crate) name: LockName,
    pub(crate) owner: Owner,
    pub(crate) left: Duration,
    pub(crate) wakes: WakeTarget,
}

/// The waiters that a keep wakes.
#[derive(Clone, Debug)]
pub(crate) enum WakeTarget {
    /// The waiters poll.
    Nobody,
    Channel(Arc<str>),
    /// The first waiter of a fair lock's queue, on the waiter's own channel, which begins with
    /// `channel`, the lock's.
    Head {
        queue: Arc<str>,
        channel: Arc<str>,
    },
}

/// Keeps a lock stored as a hash.
static COUNTED: Script = script!("keep");
/// Keeps a lock stored as a text.
static TEXT: Script = script!("simple_keep");
/// Keeps a read-write lock after a reader's hold.
static READER: Script = script!("read_keep");
/// Keeps a read-write lock after a writer's hold.
static WRITER: Script = script!("write_keep");

impl Keep {
    /// Returns the hold's owner as stored on the server.
    fn field(&self) -> String {
        field(self.layout, &self.owner)
    }

    /// Returns `left` in milliseconds, at least 1: zero would delete the key.
    fn millis(&self) -> i64 {
        i64::try_from(self.left.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX).max(1)
    }

    /// Publishes a message to the waiters in memory. Returns an error if the queue's key has
    /// another type.
    fn wake(&self, keyspace: &mut Keyspace) -> Result<(), WrongType> {
        match &self.wakes {
            WakeTarget::Nobody => {}
            WakeTarget::Channel(channel) => keyspace.publish(channel, UNLOCKED),
            WakeTarget::Head { queue, channel } => {
                if let Some(head) = keyspace.list(queue)?.first() {
                    keyspace.publish(&format!("{channel}:{head}"), UNLOCKED);
                }
            }
        }
        Ok(())
    }

    /// Replaces the hold in a plain or fair lock's hash by a kept owner, and wakes the waiters.
    fn keep_counted(&self, keyspace: &mut Keyspace) -> Result<(), WrongType> {
        let key = self.name.as_str();
        keyspace.expire(key, self.millis());
        keyspace.hash_set(key, &format!("{}{KEPT}", self.field()), 1)?;
        keyspace.hash_delete(key, &self.field())?;
        // A queue of another type is left alone, and the hold ends all the same.
        let _sound = self.wake(keyspace);
        Ok(())
    }

    /// Replaces a reader's hold with `count` levels by a kept reader with a single level, and wakes
    /// the waiters. Other readers may prolong the key further.
    fn keep_reader(&self, keyspace: &mut Keyspace, count: &str) -> Result<(), WrongType> {
        let (key, field) = (self.name.as_str(), self.field());
        let kept = format!("{field}{KEPT}");
        let is_alone = keyspace.fields(key).len() <= 2;
        if is_alone || keyspace.time_to_live(key) < self.millis() {
            keyspace.expire(key, self.millis());
        }
        for number in 1..=levels(count) {
            keyspace.delete(&level(&self.name, &field, number));
        }
        keyspace.hash_set(key, &kept, 1)?;
        keyspace.text_set_for(&level(&self.name, &kept, 1), LEVEL, self.millis());
        keyspace.hash_delete(key, &field)?;
        self.wake(keyspace)
    }

    /// Replaces a writer's hold by a kept owner, and wakes all waiters. If readers are left, leaves
    /// the lock to the readers and does not keep the writer's hold.
    fn keep_writer(&self, keyspace: &mut Keyspace) -> Result<(), WrongType> {
        let key = self.name.as_str();
        let longest = longest_level(keyspace, &self.name);
        if longest > 0 {
            keyspace.expire(key, longest);
            keyspace.hash_set(key, MODE, Mode::Read.word())?;
        } else {
            keyspace.expire(key, self.millis());
            keyspace.hash_set(key, &format!("{}{KEPT}", self.field()), 1)?;
        }
        keyspace.hash_delete(key, &self.field())?;
        if let WakeTarget::Channel(channel) = &self.wakes {
            keyspace.publish(channel, ALL);
        }
        self.wake(keyspace)
    }
}

impl Operation for Keep {
    type Reply = Released;

    fn request(&self) -> Request<'_> {
        let script = match self.layout {
            Layout::Text => &TEXT,
            Layout::Reader => &READER,
            Layout::Writer => &WRITER,
            Layout::Counted | Layout::Permit => &COUNTED,
        };
        let owner = field_argument(self.layout, &self.owner);
        let mut keys = vec![self.name.as_str()];
        let mut arguments = vec![owner, Argument::Text(KEPT), Argument::Number(self.millis())];
        let waking = [Argument::Publish, Argument::Text(UNLOCKED)];
        match (&self.wakes, self.layout) {
            (WakeTarget::Nobody, _) => {}
            (WakeTarget::Channel(channel), Layout::Reader | Layout::Writer) => {
                keys.push(channel);
                arguments.extend(waking);
                arguments.push(Argument::Text(ALL));
            }
            (WakeTarget::Channel(channel), _) => {
                arguments.extend(waking);
                arguments.push(Argument::Text(channel));
            }
            (WakeTarget::Head { queue, channel }, _) => {
                keys.push(queue);
                arguments.extend(waking);
                arguments.push(Argument::Text(channel));
            }
        }
        Request::script("release", script, keys, arguments)
    }

    fn apply(&self, keyspace: &mut Keyspace) -> Result<Value, WrongType> {
        let (key, field) = (self.name.as_str(), self.field());
        let kept = format!("{field}{KEPT}");
        if self.layout == Layout::Text {
            let found = keyspace.text_get(key).unwrap_or_default();
            if found.as_ref() == Some(&field) {
                keyspace.text_set_for(key, kept, self.millis());
            } else if found.as_ref() != Some(&kept) {
                let answer = other_or_nothing(keyspace, key);
                return Ok(with_time(answer, keyspace));
            }
            return Ok(with_time(1, keyspace));
        }
        match keyspace.hash_get(key, &field) {
            Ok(Some(count)) => match self.layout {
                Layout::Reader => self.keep_reader(keyspace, &count)?,
                Layout::Writer => self.keep_writer(keyspace)?,
                Layout::Counted | Layout::Permit | Layout::Text => self.keep_counted(keyspace)?,
            },
            _ if keyspace.hash_has(key, &kept) == Ok(true) => {}
            _ => {
                if self.layout == Layout::Reader {
                    // Something else removed the field and left the levels.
                    let levels = (1..).map(|number| level(&self.name, &field, number));
                    levels.take_while(|level| keyspace.delete(level)).for_each(drop);
                }
                let answer = other_or_nothing(keyspace, key);
                return Ok(with_time(answer, keyspace));
            }
        }
        Ok(with_time(1, keyspace))
    }
}
