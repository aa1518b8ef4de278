//! Distributed locks on Redis and Valkey for threaded programs: blocking calls, no async runtime.
//!
//! ```no_run
//! use wheellock::Client;
//!
//! let client = Client::connect("redis://127.0.0.1/")?;
//! let lock = client.lock("orders:42");
//! {
//!     let guard = lock.lock()?; // waits; renewed until dropped
//!     assert!(guard.is_held()); // local, no round trip
//! } // released
//! # Ok::<(), wheellock::Error>(())
//! ```
//!
//! # What a holder may rely on
//!
//! 1. Two holders never both see [`is_held() == true`](LockGuard::is_held) at one instant, **as
//!    long as** the clocks of holders and server advance at the same rate, within 1 % of the lease
//!    and 2 ms, and are not set; no hypervisor pauses the machine; and the server keeps every key
//!    it acknowledged until its time: no [`force_unlock`](Lock::force_unlock), `DEL`, `FLUSHALL`,
//!    eviction, or loss by failover or restart. Once false for a hold, it is never true again.
//!    [`ReadWriteLock`] names one exception, a long read lease beside Java.
//! 2. A holder that lost its lock is told: by [`LockGuard::is_held`], [`check`](LockGuard::check),
//!    [`lost`](LockGuard::lost) and [`unlock`](LockGuard::unlock), and the whole client by
//!    [`on_lost`](ClientBuilder::on_lost).
//! 3. The lock of a process that died is free after at most the longest lease it asked for plus one
//!    [command timeout](ClientBuilder::command_timeout).
//! 4. A late or repeated command never affects another hold.
//! 5. No call waits longer than it says, also when the server hangs or vanishes.
//!
//! # What it does not do
//!
//! * It does not stop a holder. Code between two calls of `is_held` can run after the lock is lost.
//!   Where that must not happen, the resource has to refuse old [fencing
//!   tokens](FencedGuard::token).
//! * It is no safer than its server. A Redis that fails over or restarts without its keys has lost
//!   the locks. A [`RedLock`] survives that on as many servers as it is [held
//!   on](RedGuard::held_on) beyond a majority.
//! * [`Client::in_memory`] excludes the threads of one process only.
//!
//! # Kinds
//!
//! [`Client::lock`] is the reentrant lock that most need. [`fair_lock`](Client::fair_lock),
//! [`read_write_lock`](Client::read_write_lock), [`fenced_lock`](Client::fenced_lock),
//! [`spin_lock`](Client::spin_lock), [`simple_lock`](Client::simple_lock) and
//! [`non_reentrant_lock`](Client::non_reentrant_lock) give the same [`Lock`]. [`MultiLock`]
//! acquires several locks at once, [`RedLock`] one on a majority of servers. [`Semaphore`],
//! [`ExpirableSemaphore`] and [`CountDownLatch`] wait in the same way.
//!
//! # Errors
//!
//! There is one [`Error`]. It says whether it [may pass](Error::is_retryable) and whether the
//! command [may have run](Error::is_outcome_unknown). Contention is never an error. [`faults`] has
//! a table of every call under every fault.
//!
//! # Guide
//!
//! [`guide`] has longer texts: the [watchdog](guide::watchdog), [dropped guards](guide::dropping),
//! [Sentinel](guide::sentinel), [clusters](guide::cluster), [operations](guide::operations), and
//! [async programs](guide::async_programs). [`redisson`] has the counterpart of each method of
//! Redisson. To test your own program, build the client on a [`Memory`] with a [`ManualClock`].
//!
//! Keys, messages and the watchdog are Redisson's. The arithmetic of leases follows Gray and
//! Cheriton (Leases, 1989); why a lock alone does not fence is Martin Kleppmann's (How to do
//! distributed locking, 2016).

mod client;
mod error;
mod events;
mod hold;
mod lock;
mod model;
mod ops;
mod runtime;
mod semaphore;
mod store;
mod watchdog;

/// The channels in the signatures of this crate: `bounded`, `Receiver`, `select!` and the rest, of
/// the right version.
pub use crossbeam_channel;
pub use hashed_wheel::{Clock, ManualClock, Summary, SystemClock};

pub use crate::client::builder::ClientBuilder;
pub use crate::client::client::{Client, ShutdownReport};
pub use crate::error::{Error, LostReason, Reason};
pub use crate::events::report::{HeldLock, LostLock, Warning};
pub use crate::events::stats::{Losses, Stats};
pub use crate::lock::any_lock::AnyLock;
pub use crate::lock::fenced_guard::FencedGuard;
pub use crate::lock::guard::{AnyThread, LockGuard, OwnedGuard, ThisThread};
pub use crate::lock::guard_trait::Guard;
pub use crate::lock::lock::{FencedLock, Lock};
pub use crate::lock::multi::guard::MultiGuard;
pub use crate::lock::multi::lock::MultiLock;
pub use crate::lock::read_write::ReadWriteLock;
pub use crate::lock::red::guard::RedGuard;
pub use crate::lock::red::lock::RedLock;
pub use crate::model::backoff::Backoff;
pub use crate::model::permit_id::PermitId;
pub use crate::model::wait::Wait;
pub use crate::semaphore::expirable::ExpirableSemaphore;
pub use crate::semaphore::latch::CountDownLatch;
pub use crate::semaphore::permit::Permit;
pub use crate::semaphore::permit::Permits;
pub use crate::semaphore::semaphore::Semaphore;
pub use crate::store::Memory;
pub use crate::store::redis::address::credentials::Credentials;
#[cfg(feature = "tls")]
pub use crate::store::redis::address::tls_settings::TlsSettings;

/// Longer texts on how the locks work and how to run them.
pub mod guide {
    #[doc = include_str!("../docs/watchdog.md")]
    pub mod watchdog {}
    #[doc = include_str!("../docs/dropping.md")]
    pub mod dropping {}
    #[doc = include_str!("../docs/sentinel.md")]
    pub mod sentinel {}
    #[doc = include_str!("../docs/cluster.md")]
    pub mod cluster {}
    #[doc = include_str!("../docs/operations.md")]
    pub mod operations {}
    #[doc = include_str!("../docs/async_programs.md")]
    pub mod async_programs {}
}
#[doc = include_str!("../docs/faults.md")]
pub mod faults {}
#[doc = include_str!("../docs/redisson.md")]
pub mod redisson {}
