//! The receiver of messages.

use std::fmt::Debug;

/// Receives the events of channels, on the thread that reads them. Must not block: all channels
/// share this thread.
pub(crate) trait Listener: Debug + Send + Sync {
    /// Reports that messages of `channel` arrive from now on. Earlier messages are lost.
    fn live(&self, channel: &str);

    /// Delivers a message that has arrived on `channel`.
    fn message(&self, channel: &str, payload: &str);

    /// Reports that the server denied a subscription, or a message to the waiters, with the text
    /// `refusal`.
    fn refused(&self, refusal: &str);
}

/// A listener without effect.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct NoListener;

#[cfg(test)]
impl Listener for NoListener {
    fn live(&self, _: &str) {}

    fn message(&self, _: &str, _: &str) {}

    fn refused(&self, _: &str) {}
}
