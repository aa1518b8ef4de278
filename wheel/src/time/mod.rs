//! Time: how an instant becomes a tick, what a clock is, and how a thread waits.

pub(crate) mod clock;
pub(crate) mod manual_clock;
pub(crate) mod permit;
pub(crate) mod sync;
pub(crate) mod tick;
#[cfg(feature = "tsc")]
pub(crate) mod tsc_clock;
