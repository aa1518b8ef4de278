//! The guide: how the wheel works, and how to use a timer well.

#[doc = include_str!("../docs/wheel.md")]
pub mod wheel {}

#[doc = include_str!("../docs/lateness.md")]
pub mod lateness {}

#[doc = include_str!("../docs/testing.md")]
pub mod testing {}

#[doc = include_str!("../docs/comparison.md")]
pub mod comparison {}
