//! Time: the tick of an instant, the clocks, and the waits of a thread.

pub(crate) mod clock;
pub(crate) mod manual_clock;
pub(crate) mod permit;
pub(crate) mod sync;
pub(crate) mod tick;
#[cfg(feature = "tsc")]
pub(crate) mod tsc_clock;
