//! Names, owners, leases and other values, and the rules about them.
//!
//! Every other folder imports from here. What the process itself requires is here too: the clock,
//! parking, locks, the recognition of a fork, and the function that catches panics of foreign code.

pub(crate) mod backoff;
pub(crate) mod clock;
pub(crate) mod fork;
pub(crate) mod kind;
pub(crate) mod label;
pub(crate) mod lease;
pub(crate) mod name;
pub(crate) mod owner;
pub(crate) mod panics;
pub(crate) mod permit_id;
pub(crate) mod release_no;
#[cfg(feature = "serde")]
pub(crate) mod serialize;
pub(crate) mod settings;
pub(crate) mod sync;
pub(crate) mod validity;
pub(crate) mod wait;
pub(crate) mod wait_graph;
pub(crate) mod wait_mode;

// The wheel that carries the holds, and that of a red lock's upkeep. Their tickers take part in the
// tests of many schedules.
#[cfg(all(test, wheellock_shuttle))]
pub(crate) use crate::testing::modelled::timer::{
    BatchTimer, HashedWheelTimer, PeriodicTimeout, TimerKey,
};
#[cfg(not(all(test, wheellock_shuttle)))]
pub(crate) use hashed_wheel::{BatchTimer, HashedWheelTimer, PeriodicTimeout, TimerKey};
