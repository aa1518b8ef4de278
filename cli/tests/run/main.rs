//! `wheellock run` as its users run it: processes, signals, a server.

#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod command;
mod contention;
mod death;
mod loss;
mod outcome;
mod secrets;
mod signals;
mod support;
mod terminal;
