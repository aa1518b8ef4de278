//! Longer texts on how the locks work and how to run them.

#[doc = include_str!("../docs/watchdog.md")]
pub mod watchdog {}
#[doc = include_str!("../docs/dropping.md")]
pub mod dropping {}
#[doc = include_str!("../docs/cache.md")]
pub mod cache {}
#[doc = include_str!("../docs/hand_over.md")]
pub mod hand_over {}
#[doc = include_str!("../docs/jobs.md")]
pub mod jobs {}
#[doc = include_str!("../docs/leaders.md")]
pub mod leaders {}
#[doc = include_str!("../docs/sentinel.md")]
pub mod sentinel {}
#[doc = include_str!("../docs/cluster.md")]
pub mod cluster {}
#[doc = include_str!("../docs/managed.md")]
pub mod managed {}
#[doc = include_str!("../docs/servers.md")]
pub mod servers {}
#[doc = include_str!("../docs/operations.md")]
pub mod operations {}
#[doc = include_str!("../docs/observing.md")]
pub mod observing {}
#[doc = include_str!("../docs/async_programs.md")]
pub mod async_programs {}
#[doc = include_str!("../docs/testing.md")]
pub mod testing {}
#[doc = include_str!("../docs/verification.md")]
pub mod verification {}
