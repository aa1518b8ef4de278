//! Longer texts on how the locks work and how to run them.

/// [operations#sizing]: crate::guide::operations#sizing
#[doc = include_str!("../docs/watchdog.md")]
pub mod watchdog {}
/// [hand_over]: crate::guide::hand_over
#[doc = include_str!("../docs/dropping.md")]
pub mod dropping {}
/// [hand_over]: crate::guide::hand_over
/// [operations#permissions]: crate::guide::operations#permissions
/// [turns]: #figures
#[doc = include_str!("../docs/cache.md")]
#[doc = include_str!("../docs/cache-turns.svg")]
pub mod cache {}
#[doc = include_str!("../docs/hand_over.md")]
pub mod hand_over {}
#[doc = include_str!("../docs/deadlocks.md")]
pub mod deadlocks {}
/// [picture]: #what-a-token-cannot-do
#[doc = include_str!("../docs/fencing.md")]
#[doc = include_str!("../docs/fencing.svg")]
pub mod fencing {}
#[doc = include_str!("../docs/jobs.md")]
pub mod jobs {}
/// [operations]: crate::guide::operations
#[doc = include_str!("../docs/leaders.md")]
pub mod leaders {}
/// [operations#lease-and-failover-time]: crate::guide::operations#lease-and-failover-time
#[doc = include_str!("../docs/sentinel.md")]
pub mod sentinel {}
/// [managed#a-hidden-cluster]: crate::guide::managed#a-hidden-cluster
/// [operations#lease-and-failover-time]: crate::guide::operations#lease-and-failover-time
/// [operations#sizing]: crate::guide::operations#sizing
/// [sentinel#a-failover]: crate::guide::sentinel#a-failover
#[doc = include_str!("../docs/cluster.md")]
pub mod cluster {}
/// [operations#permissions]: crate::guide::operations#permissions
#[doc = include_str!("../docs/managed.md")]
pub mod managed {}
/// [managed]: crate::guide::managed
/// [operations#permissions]: crate::guide::operations#permissions
#[doc = include_str!("../docs/servers.md")]
pub mod servers {}
/// [dropping]: crate::guide::dropping
/// [managed#a-password-or-token-that-ends]: crate::guide::managed#a-password-or-token-that-ends
/// [observing]: crate::guide::observing
/// [servers]: crate::guide::servers
#[doc = include_str!("../docs/operations.md")]
pub mod operations {}
/// [hand_over]: crate::guide::hand_over
/// [operations#monitoring]: crate::guide::operations#monitoring
#[doc = include_str!("../docs/observing.md")]
pub mod observing {}
/// [dropping]: crate::guide::dropping
#[doc = include_str!("../docs/async_programs.md")]
pub mod async_programs {}
#[doc = include_str!("../docs/testing.md")]
pub mod testing {}
/// [faults]: crate::faults
/// [redisson#versions-of-redisson]: crate::redisson#versions-of-redisson
/// [testing]: crate::guide::testing
#[doc = include_str!("../docs/verification.md")]
pub mod verification {}
/// [operations#keys-and-channels]: crate::guide::operations#keys-and-channels
/// [redisson#versions-of-redisson]: crate::redisson#versions-of-redisson
#[doc = include_str!("../docs/stability.md")]
pub mod stability {}
/// [cache]: crate::guide::cache
/// [deadlocks]: crate::guide::deadlocks
/// [fencing]: crate::guide::fencing
/// [operations#lease-and-failover-time]: crate::guide::operations#lease-and-failover-time
#[doc = include_str!("../docs/comparison.md")]
pub mod comparison {}
