//! Semaphores, expirable semaphores and count-down latches.

#[path = "../common/mod.rs"]
mod common;

mod counting;
mod expirable;
mod extend;
mod guard;
mod latch;
mod late_copies;
mod replies;
mod several_permits;
mod watchdog;
