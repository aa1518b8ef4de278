//! Counts of connections.

use std::ops::Add;

/// The number of connections to one server, or to several.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Connections {
    /// Connections made since the client started.
    pub(crate) made: u64,
    /// Connections that are open now: of calls, of pipelines and of subscriptions.
    pub(crate) open: usize,
    /// Connections in use by calls, or being opened for calls.
    pub(crate) in_use: usize,
}

impl Add for Connections {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            made: self.made + other.made,
            open: self.open + other.open,
            in_use: self.in_use + other.in_use,
        }
    }
}
