//! Figures about a timer: counts and lateness.

pub(crate) mod histogram;
pub(crate) mod statistics;
