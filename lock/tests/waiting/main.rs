//! How threads wait for a lock: woken by a release, on time, and with an error when the server does
//! not answer.

#[path = "../common/mod.rs"]
mod common;

mod hand_over;
mod hung_server;
mod subscription;
mod unanswered;
mod waiting_threads;
mod wakeups;
