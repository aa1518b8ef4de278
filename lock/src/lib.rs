//! Distributed locks on Redis and Valkey for threaded programs: blocking calls, no async runtime.
//!
//! ```no_run
//! use wheellock::Client;
//!
//! let client = Client::connect("redis://127.0.0.1/")?;
//! {
//!     let guard = client.lock("orders:42").lock()?; // waits; renewed until dropped
//!     assert!(guard.is_held()); // local, no round trip
//! } // released
//! # Ok::<(), wheellock::Error>(())
//! ```
//!
//! # What a holder may rely on
//!
//! 1. Two holders never both see [`is_held() == true`](LockGuard::is_held) at one instant, **as
//!    long as** the clocks of holders and server advance at the same rate, within 1 % of the lease
//!    and 2 ms, and are not set; no hypervisor pauses the machine; and the server retains every
//!    acknowledged key until the key's time: no [`force_unlock`](Lock::force_unlock), `DEL`,
//!    `FLUSHALL`, eviction, or loss by failover or restart. Once `is_held` is false for a hold, it
//!    is never true again. [`ReadWriteLock`] names one exception, a long read lease beside Java.
//! 2. A holder is notified of the loss of the lock: by [`LockGuard::is_held`],
//!    [`check`](LockGuard::check), [`lost`](LockGuard::lost) and [`unlock`](LockGuard::unlock), and
//!    the whole client by [`on_lost`](ClientBuilder::on_lost).
//! 3. The lock of a dead process is free after at most the longest requested lease plus one
//!    [command timeout](ClientBuilder::command_timeout).
//! 4. A late or repeated command never affects another hold.
//! 5. No call waits more than 100 ms beyond its limit, even when the server hangs or vanishes. Not
//!    counted are the time in which the system does not run the call's thread, and the program's
//!    own code in the call, such as a closure or a callback for credentials. The kernel must count
//!    at least 100 ticks a second.
//!
//! # What it does not do
//!
//! * The crate does not stop a holder. Code between two calls of `is_held` can run after the lock
//!   is lost. Where this must not happen, the resource has to refuse old [fencing
//!   tokens](FencedGuard::token).
//! * A lock is no safer than the server. A server that fails over or restarts without the keys has
//!   lost the locks. A [`RedLock`] survives such a loss on as many servers as the lock is [held
//!   on](RedGuard::held_on) beyond a majority.
//! * [`Client::in_memory`] excludes the threads of one process only.
//!
//! # Kinds
//!
//! [`Client::lock`] returns the reentrant lock for most programs. [`Client::fair_lock`],
//! [`fenced_lock`](Client::fenced_lock), [`spin_lock`](Client::spin_lock),
//! [`simple_lock`](Client::simple_lock) and [`non_reentrant_lock`](Client::non_reentrant_lock)
//! return locks of other kinds, with the methods of the same [`Lock`]. A
//! [`read_write_lock`](Client::read_write_lock) has two such locks. A [`MultiLock`] acquires
//! several locks at once, and a [`RedLock`] acquires a lock on a majority of servers. A
//! [`Semaphore`], an [`ExpirableSemaphore`] and a [`CountDownLatch`] have the same kinds of waits.
//! A [`Job`] runs once among all processes, and a [`LeaderElection`] makes one process the leader.
//!
//! # Errors
//!
//! All calls return the same type of error, [`Error`]. An error says whether [the same call may
//! succeed later](Error::is_retryable), and whether the command [may have
//! run](Error::is_outcome_unknown). Contention is never an error. [`faults`] lists the result of
//! each call under each fault of the network or the server.
//!
//! # Guide
//!
//! [`guide`] has longer texts: [jobs](guide::jobs), [leaders](guide::leaders), the
//! [watchdog](guide::watchdog), [dropped guards](guide::dropping), the
//! [hand-over](guide::hand_over) between threads, [observing](guide::observing),
//! [Sentinel](guide::sentinel), [clusters](guide::cluster), [servers](guide::servers), [managed
//! services](guide::managed), [operations](guide::operations), [async
//! programs](guide::async_programs), the [stability](guide::stability) of versions and keys, a
//! [comparison](guide::comparison) with other locks, and the [verification](guide::verification)
//! of the crate. [`redisson`] has a table of Redisson's methods. [Test](guide::testing) a program
//! on a [`Memory`] with a [`ManualClock`], and with [`Faults`].
//!
//! Keys, messages and the watchdog are Redisson's. The arithmetic of leases is Gray and Cheriton's
//! (Leases, 1989), and fencing is Martin Kleppmann's (How to do distributed locking, 2016).

#![cfg_attr(docsrs, feature(doc_cfg))]

// From the top, each importing only from the folders below:
//
// * `doctor` inspects a server; `client` creates everything else.
// * `recipes` has jobs and leaders, built on locks; `locks` has locks, guards and semaphores.
// * `admin` answers the queries of operators.
// * `core` is one client in one process, with the path of an acquire and of a release.
// * `waits` has the threads that wait for one name.
// * `watchdog` renews and releases; `ledger` records every release.
// * `store` sends operations to servers; `hold` has the holds; `ops` has the scripts.
// * `events` reports and counts; `model` has values, rules, and the abstractions of clock and
//   threads.

mod admin;
mod client;
mod core;
mod doctor;
mod error;
mod events;
pub mod guide;
mod hold;
mod ledger;
mod locks;
mod model;
mod ops;
mod recipes;
mod store;
#[cfg(test)]
mod testing;
mod waits;
mod watchdog;

/// The crate of the channels in the signatures of this crate, with `Receiver`, `bounded` and
/// `select!`.
pub use crossbeam_channel;
pub use hashed_wheel::{Clock, ManualClock, Summary, SystemClock};
/// The crate whose connection descriptions [`ClientBuilder::connection`] accepts.
#[cfg(feature = "redis")]
pub use redis;

pub use crate::admin::ask::Asked;
pub use crate::admin::graph::{LongWaiter, WaitCycle, WaitEdge, WaitGraph};
pub use crate::admin::locks::Locks;
pub use crate::admin::status::{Holder, HolderKind, LockKind, LockStatus, QueuedOwner, Waiters};
pub use crate::client::builder::ClientBuilder;
pub use crate::client::client::{Client, ShutdownReport};
pub use crate::core::{lost_future::LostFuture, revocation_future::RevocationFuture};
pub use crate::doctor::diagnosis::{Check, CheckState, Diagnosis};
pub use crate::error::{Error, LostReason, Reason};
pub use crate::events::acquires::{AcquireCounts, Acquires};
pub use crate::events::report::{HeldLock, LostLock, OwnHold, OwnHolder, Warning};
pub use crate::events::stats::{CacheStats, Losses, Stats};
pub use crate::hold::revocation::Revocation;
pub use crate::locks::any_lock::AnyLock;
pub use crate::locks::guard::{AnyThread, FencedGuard, Guard, LockGuard, OwnedGuard, ThisThread};
pub use crate::locks::lock::{FencedLock, Lock};
pub use crate::locks::multi::{guard::MultiGuard, lock::MultiLock};
pub use crate::locks::read_write::ReadWriteLock;
pub use crate::locks::red::{guard::RedGuard, lock::RedLock};
pub use crate::locks::semaphore::guard::SemaphoreGuard;
pub use crate::locks::semaphore::permit::{Permit, Permits};
pub use crate::locks::semaphore::semaphore::Semaphore;
pub use crate::locks::semaphore::{expirable::ExpirableSemaphore, latch::CountDownLatch};
pub use crate::model::settings::{OnDeadlock, Replicas};
pub use crate::model::{backoff::Backoff, permit_id::PermitId, wait::Wait};
pub use crate::recipes::election::{Campaign, Leader, LeaderChanges, LeaderElection, Term};
pub use crate::recipes::jobs::{Job, JobRun, RunOutcome, RunRecord, RunStart, RunState};
pub use crate::store::redis::address::credentials::Credentials;
#[cfg(feature = "tls")]
pub use crate::store::redis::address::tls_settings::TlsSettings;
pub use crate::store::{Fault, Faults, Memory};

#[doc = include_str!("../docs/faults.md")]
pub mod faults {}
/// [hand_over]: crate::guide::hand_over
/// [operations#keys-and-channels]: crate::guide::operations#keys-and-channels
#[doc = include_str!("../docs/redisson.md")]
pub mod redisson {}
