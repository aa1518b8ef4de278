//! Checks a client's server for conditions which endanger or slow down locks.

pub(crate) mod diagnose;
pub(crate) mod diagnosis;
mod measure;
mod permissions;
mod rules;
