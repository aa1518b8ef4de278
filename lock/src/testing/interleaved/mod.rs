//! Threads in many interleavings: the threads of a client, and callers of a connection.
//!
//! With `--cfg wheellock_shuttle` the crate's own tests replace its locks, threads, parkers and
//! system clock by shuttle's, which runs one thread at a time in an order that a seed decides. So
//! the tests run the real code: a client on a store in memory, and connections on sockets whose
//! other ends are threads. The crate takes all replaceable parts from `model/sync.rs`.
//!
//! shuttle and not loom: there are too many steps for every order of them, and shared values are
//! under locks, so the memory model matters little. Time stands still in most of these tests: a
//! thread that nobody wakes is a deadlock, which shuttle reports, where on a real clock a poll
//! would hide the mistake. In place of the wheel there is a timer of 150 lines whose ticker is a
//! thread of the run: the wheel has tests of its own. As a dev-dependency under that cfg,
//! shuttle is in no user's lock file.

mod client;
mod connection;
