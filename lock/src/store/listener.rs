//! Who is told of messages.

use std::fmt::Debug;

/// Told of what happens on channels, by whatever thread it happens on. Must not block: other channels wait meanwhile.
pub(crate) trait Listener: Debug + Send + Sync {
    /// From now on the messages of this channel arrive. What was published before is lost.
    fn live(&self, channel: &str);

    /// A message.
    fn message(&self, channel: &str, payload: &str);

    /// The server will not let anybody listen to some channel, and says so in these words.
    fn refused(&self, refusal: &str);
}
