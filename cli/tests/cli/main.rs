//! `wheellock` as its users run it: processes, signals, a terminal, a server.

#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod ask;
mod bench;
mod command;
mod contention;
mod death;
mod doctor;
mod everyday;
mod fence;
mod graph;
#[cfg(feature = "serve")]
mod http;
mod hung_server;
mod jobs;
mod loss;
mod manual;
mod outcome;
mod permissions;
mod secrets;
#[cfg(feature = "serve")]
mod serve;
#[cfg(feature = "serve")]
mod serve_browser;
mod signals;
mod status;
mod support;
mod terminal;
mod tls;
mod unlock;
