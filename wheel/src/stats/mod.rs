//! Figures about timers: how much was done, how late, and how many timers there are.

pub(crate) mod histogram;
pub(crate) mod instance_count;
pub(crate) mod statistics;
