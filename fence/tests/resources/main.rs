//! Each resource refuses a stale holder, and keeps no token that was not committed: with real servers,
//! real files, and processes that are really stopped and killed.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a failure ends the test")]

mod child;
mod killed;
mod kinds;
mod object_store;
mod stale_holder;
mod statements;
mod two_writers;

/// A wait that only a failure takes to its end.
const LIMIT: std::time::Duration = std::time::Duration::from_secs(60);
