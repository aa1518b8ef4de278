//! The two timers: what they promise to their users, mostly on a manual clock.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails its test")]

mod batch;
mod batch_model;
mod broken_clock;
mod closure_model;
mod closures;
mod lifecycle;
mod model;
mod periodic;
mod statistics;
