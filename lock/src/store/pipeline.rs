//! Requests on one connection, with several in flight at a time.

use std::time::Duration;

use crate::ops::Operation;
use crate::store::failure::Failure;

/// A source of many requests, which also receives their replies.
pub(crate) trait PipelineSource {
    type Operation: Operation;
    /// Data of a request, returned with its reply.
    type Tag;

    /// Returns the maximum number of requests in flight from now on.
    fn max_in_flight(&self) -> usize;

    /// Returns the number of requests still in flight when more are sent. Defaults to half of the
    /// maximum: one system call then sends many requests, and the server always has some to run.
    fn refill_at(&self) -> usize {
        self.max_in_flight() / 2
    }

    /// Returns the next request, or `None` if there is none at the moment. Called again after
    /// replies.
    fn next(&mut self) -> Option<PipelineRequest<Self::Operation, Self::Tag>>;

    /// Delivers the reply to a request, or the reason for its absence. After a failure of the
    /// connection no more requests are taken.
    fn on_reply(
        &mut self,
        tag: Self::Tag,
        reply: Result<<Self::Operation as Operation>::Reply, Failure>,
    );

    /// Delivers the reply to a redirected request, or the reason for its absence.
    fn on_redirected_reply(
        &mut self,
        tag: Self::Tag,
        reply: Result<<Self::Operation as Operation>::Reply, Failure>,
    ) {
        self.on_reply(tag, reply);
    }
}

/// One operation to send on a pipeline, with its time limit.
pub(crate) struct PipelineRequest<O, T> {
    pub(crate) operation: O,
    pub(crate) tag: T,
    /// The time limit for the reply.
    pub(crate) timeout: Duration,
}
