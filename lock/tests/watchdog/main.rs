//! The watchdog: when it renews, how it sends renewals, and how a loss is found.

#[path = "../common/mod.rs"]
mod common;

mod attempts;
mod manual_clock;
mod renewal;
