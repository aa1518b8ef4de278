//! Figures about a timer: how much was done, and how late.

pub(crate) mod histogram;
pub(crate) mod statistics;
