//! Models of the library, for its own tests: the checked model, simulated clients on a simulated
//! network, threads in many interleavings, and operations in memory beside a server. Each calls the
//! library's own decisions. They are here because they concern several folders; the unit tests of
//! one file are in that file.

mod checked;
mod differential;
#[cfg(wheellock_shuttle)]
mod interleaved;
#[cfg(wheellock_shuttle)]
pub(crate) mod modelled;
#[cfg(wheellock_shuttle)]
mod simulation;
