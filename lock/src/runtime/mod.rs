//! The client as it runs in one process: its store, watchdog, events and waiting threads, put
//! together.

pub(crate) mod cache;
pub(crate) mod client_core;
pub(crate) mod deadlock;
pub(crate) mod extend;
pub(crate) mod fencing;
pub(crate) mod hand_over;
pub(crate) mod kept_holds;
#[cfg(feature = "metrics")]
pub(crate) mod metrics;
pub(crate) mod named;
pub(crate) mod release;
pub(crate) mod traces;
pub(crate) mod tries;
pub(crate) mod wait;
pub(crate) mod wait_queue;
pub(crate) mod wait_registry;
pub(crate) mod yielding;
