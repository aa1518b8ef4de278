//! The two timers: what they promise to their users, mostly on a manual clock.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails its test")]

mod batch;
mod batch_model;
mod broken_clock;
mod closure_model;
mod closures;
#[cfg(unix)]
mod forks;
mod handles;
mod lifecycle;
mod many;
mod model;
mod periodic;
mod statistics;

use hashed_wheel::{StopError, Unprocessed};

/// The values that a stop returned.
fn values<T>(unprocessed: Result<Vec<Unprocessed<T>>, StopError>) -> Vec<T> {
    unprocessed.unwrap().into_iter().map(|unprocessed| unprocessed.value).collect()
}
