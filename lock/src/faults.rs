//! What a call says when the network or the server fails it: every operation, every fault, as a test has found it.
//!
#![doc = include_str!("faults.md")]
