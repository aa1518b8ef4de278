//! The receiver of messages.

use std::fmt::Debug;

/// Receives what happens on channels, on the thread on which it happens. Must not block: other
/// channels wait meanwhile.
pub(crate) trait Listener: Debug + Send + Sync {
    /// From now on the messages of this channel arrive. Earlier ones are lost.
    fn live(&self, channel: &str);

    /// A message.
    fn message(&self, channel: &str, payload: &str);

    /// The server denied a subscription, or a message to the waiters, with this text.
    fn refused(&self, refusal: &str);
}

/// Nobody listens.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct NoListener;

#[cfg(test)]
impl Listener for NoListener {
    fn live(&self, _: &str) {}

    fn message(&self, _: &str, _: &str) {}

    fn refused(&self, _: &str) {}
}
