//! Distributed locks on Redis and Valkey for threaded programs: blocking calls, no async runtime.

mod call;
mod client;
mod clock;
mod config;
mod error;
mod guard;
mod hold;
mod keyspace;
mod lease;
mod lock;
mod name;
mod op;
mod owner;
mod process;
mod store;
mod validity;
mod value;
mod wait;
mod watchdog;

pub use hashed_wheel::{Clock, ManualClock, SystemClock};

pub use crate::client::{Client, ClientBuilder, ShutdownReport, Stats};
pub use crate::error::{Error, LostReason};
pub use crate::guard::LockGuard;
pub use crate::lock::Lock;
pub use crate::store::Memory;
