//! The receiver of messages.

use std::fmt::Debug;

/// Receives what happens on channels, on the thread on which it happens. Must not block: other
/// channels wait meanwhile.
pub(crate) trait Listener: Debug + Send + Sync {
    /// From now on the messages of this channel arrive. Earlier ones are lost.
    fn live(&self, channel: &str);

    /// A message.
    fn message(&self, channel: &str, payload: &str);

    /// The server denied a subscription with this text.
    fn refused(&self, refusal: &str);
}
