//! What a user starts with: the client and its builder.

pub(crate) mod builder;
pub(crate) mod client;
pub(crate) mod locks;
#[cfg(test)]
#[cfg(wheellock_shuttle)]
mod schedules;
#[cfg(test)]
#[cfg(wheellock_shuttle)]
mod simulation;
