//! Where operations run: on a server, or in memory. Both execute the same operations and deliver the same messages.

mod failure;
mod listener;
mod memory;
mod redis;
mod stream;

use std::sync::{Arc, Weak};
use std::time::Duration;

use hashed_wheel::Parker;

pub(crate) use failure::Failure;
pub(crate) use listener::Listener;
pub use memory::Memory;
pub(crate) use redis::{Access, Location, Redis};
pub(crate) use stream::{Lane, Part, Request, Stream};

use crate::op::Operation;

/// One of the two stores. A client has one for its life.
#[derive(Debug)]
pub(crate) enum Store {
    Memory(memory::Session),
    Redis(Arc<Redis>),
}

impl Store {
    pub(crate) fn memory(memory: &Memory, listener: Weak<dyn Listener>) -> Self {
        Self::Memory(memory.session(listener))
    }

    pub(crate) fn redis(redis: Redis) -> Self {
        Self::Redis(Arc::new(redis))
    }

    /// Sends one operation once, waits for its reply for at most `timeout`, and gives the reply.
    ///
    /// It answers within the timeout, however the server behaves.
    pub(crate) fn run<O: Operation + ?Sized>(
        &self,
        operation: &O,
        timeout: Duration,
    ) -> Result<O::Reply, Failure> {
        let value = match self {
            Self::Memory(session) => session.execute(operation, timeout),
            Self::Redis(redis) => redis.execute(operation, timeout),
        }?;
        operation.decode(value).map_err(Failure::unexpected)
    }

    /// What `key` is part of. It never changes.
    pub(crate) fn part_of(&self, key: &str) -> Part {
        match self {
            Self::Memory(_) => Part::ONLY,
            Self::Redis(redis) => redis.part_of(key),
        }
    }

    /// The lane of the server that has `key`, as far as is known by now. It is one that [is known](Self::knows).
    pub(crate) fn lane_of(&self, key: &str) -> Lane {
        match self {
            Self::Memory(_) => Lane::ONLY,
            Self::Redis(redis) => redis.lane_of(key),
        }
    }

    /// Whether a lane leads to a server that may still have keys.
    pub(crate) fn knows(&self, lane: Lane) -> bool {
        match self {
            Self::Memory(_) => lane == Lane::ONLY,
            Self::Redis(redis) => redis.knows(lane),
        }
    }

    /// The lane of all keys, if there is one server and never another.
    pub(crate) fn only_lane(&self) -> Option<Lane> {
        match self {
            Self::Memory(_) => Some(Lane::ONLY),
            Self::Redis(redis) => redis.is_one_server().then_some(Lane::ONLY),
        }
    }

    /// Sends what the stream gives on a connection of that lane's own, and hands it the answers.
    pub(crate) fn stream<S: Stream>(&self, lane: Lane, stream: &mut S) {
        match self {
            Self::Memory(session) => {
                while let Some(Request { operation, note, timeout }) = stream.next() {
                    let value = session.execute(&operation, timeout);
                    let decode = |value| operation.decode(value).map_err(Failure::unexpected);
                    stream.answered(note, value.and_then(decode));
                }
            }
            Self::Redis(redis) => redis.stream(lane, stream),
        }
    }

    /// Wishes for the messages of a channel. Returns at once; [`Listener::live`] says when they come. Call
    /// [`flush`](Self::flush) afterwards, with no lock held.
    pub(crate) fn subscribe(&self, channel: &Arc<str>) {
        match self {
            Self::Memory(session) => session.subscribe(channel),
            Self::Redis(redis) => redis.subscribe(channel),
        }
    }

    /// Takes the wish back. Returns at once; the server is told with the next wish, or when there is nothing else to do.
    pub(crate) fn unsubscribe(&self, channel: &Arc<str>) {
        match self {
            Self::Memory(session) => session.unsubscribe(channel),
            Self::Redis(redis) => redis.unsubscribe(channel),
        }
    }

    /// Acts on the wishes, in the order in which they were made. May block for a short while; never fails: what cannot
    /// be subscribed is polled.
    pub(crate) fn flush(&self) {
        match self {
            Self::Memory(session) => session.flush(),
            Self::Redis(redis) => redis.flush(),
        }
    }

    /// Whether what fails now may succeed a moment later. A server comes back; a fault of the store in memory stays until
    /// the test takes it away, and waiting for that on a manual clock would be waiting for oneself.
    pub(crate) fn may_recover_by_itself(&self) -> bool {
        matches!(self, Self::Redis(_))
    }

    /// How often the server changed. What was on the last need not be on this one.
    pub(crate) fn moves(&self) -> u64 {
        match self {
            Self::Memory(_) => 0,
            Self::Redis(redis) => redis.moves(),
        }
    }

    /// Wakes this one whenever the server of a lane changes, and when the lane [is known](Self::knows) no more.
    pub(crate) fn wake_on_move(&self, lane: Lane, parker: &Parker) {
        match self {
            Self::Memory(_) => {}
            Self::Redis(redis) => redis.wake_on_move(lane, parker),
        }
    }

    /// How many connections were made.
    pub(crate) fn connections_made(&self) -> u64 {
        match self {
            Self::Memory(_) => 0,
            Self::Redis(redis) => redis.connections_made(),
        }
    }

    /// The policy of a server that may evict locks, if the lane's connection was made since this was asked last.
    /// Answers within `timeout`. Not while a stream is running.
    pub(crate) fn eviction_of_new_server(&self, lane: Lane, timeout: Duration) -> Option<String> {
        match self {
            Self::Memory(_) => None,
            Self::Redis(redis) => redis.eviction_of_new_server(lane, timeout),
        }
    }

    /// Closes the connections that lie idle and that of the subscriptions at once, those in use by callers when they
    /// come back, and that of a stream once it is through, for which it waits. From then on callers get a failure.
    pub(crate) fn close(&self) {
        match self {
            Self::Memory(_) => {}
            Self::Redis(redis) => redis.close(),
        }
    }
}
