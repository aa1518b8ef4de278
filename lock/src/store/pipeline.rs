//! Requests that follow each other on one connection, several of them in flight at a time.

use std::time::Duration;

use crate::ops::Operation;
use crate::store::failure::Failure;

/// A source of many requests, which also takes their replies.
pub(crate) trait PipelineSource {
    type Operation: Operation;
    /// What belongs to a request and comes back with its reply.
    type Tag;

    /// How many requests may be in flight from now on.
    fn max_in_flight(&self) -> usize;

    /// How many are still in flight when more are sent. Half of them unless overridden: one system
    /// call sends many, and the server does not run dry meanwhile.
    fn refill_at(&self) -> usize {
        self.max_in_flight() / 2
    }

    /// The next request, if there is one for now. It is called again after replies.
    fn next(&mut self) -> Option<PipelineRequest<Self::Operation, Self::Tag>>;

    /// The reply to a request, or why there is none. After a failure of the connection no more
    /// requests are taken.
    fn on_reply(
        &mut self,
        tag: Self::Tag,
        reply: Result<<Self::Operation as Operation>::Reply, Failure>,
    );

    /// The reply to a request that was redirected to another server, or why there is none.
    fn on_redirected_reply(
        &mut self,
        tag: Self::Tag,
        reply: Result<<Self::Operation as Operation>::Reply, Failure>,
    ) {
        self.on_reply(tag, reply);
    }
}

/// One request.
pub(crate) struct PipelineRequest<O, T> {
    pub(crate) operation: O,
    pub(crate) tag: T,
    /// How long its reply may take.
    pub(crate) timeout: Duration,
}
