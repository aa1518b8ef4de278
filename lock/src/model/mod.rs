//! Names, owners, leases and other values, and the rules about them.
//!
//! Every other folder imports from here. The parts required by the process itself are here too: the
//! clock, parking, locks, the recognition of a fork, and `catch_panic` for foreign code.

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

// The wheel of the holds, and the wheel of a red lock's upkeep. Their tickers take part in the
// tests of many interleavings.
#[cfg(all(test, wheellock_shuttle))]
pub(crate) use crate::testing::modelled::timer::{
    BatchTimer, HashedWheelTimer, PeriodicTimeout, TimerKey,
};
#[cfg(not(all(test, wheellock_shuttle)))]
pub(crate) use hashed_wheel::{BatchTimer, HashedWheelTimer, PeriodicTimeout, TimerKey};
