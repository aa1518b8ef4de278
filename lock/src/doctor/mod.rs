//! Looks at the server of a client for what endangers locks or slows them down.

pub(crate) mod diagnose;
pub(crate) mod diagnosis;
mod measure;
mod permissions;
mod rules;
