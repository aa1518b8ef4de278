//! Diagnosis of a client's server: conditions which endanger locks or slow them down.

pub(crate) mod diagnose;
pub(crate) mod diagnosis;
mod measure;
mod permissions;
mod rules;
