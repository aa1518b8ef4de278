//! What each operation comes to under each fault.
//!
#![doc = include_str!("faults.md")]
