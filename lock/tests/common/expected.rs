//! Errors and warnings as tests expect them: their variants cannot be made outside of the crate.

use std::time::Duration;

use wheellock::{Error, LostReason, Warning};

#[derive(Clone, Debug)]
pub(crate) enum Expected {
    Lost(String, LostReason),
    Cancelled(String),
    AlreadyHeld(String),
    Upgrade(String),
    Eviction(String),
    InvalidPermitId(String),
    /// How many replicas were wanted, and how many have acknowledged.
    NotReplicated(u32, u32),
    RenewalsRefused(String),
    ServerClockJumped {
        by: Duration,
        forward: bool,
    },
}

/// The error of a hold of the lock `name` that is over.
pub(crate) fn lost(name: &str, reason: LostReason) -> Expected {
    Expected::Lost(name.to_owned(), reason)
}

/// The error of a wait for the lock `name` that was cancelled.
pub(crate) fn cancelled(name: &str) -> Expected {
    Expected::Cancelled(name.to_owned())
}

impl PartialEq<Expected> for Error {
    fn eq(&self, expected: &Expected) -> bool {
        match (self, expected) {
            (Self::Lost { name, reason, .. }, Expected::Lost(of, by)) => name == of && reason == by,
            (Self::Cancelled { name, .. }, Expected::Cancelled(of))
            | (Self::AlreadyHeld { name, .. }, Expected::AlreadyHeld(of))
            | (Self::Upgrade { name, .. }, Expected::Upgrade(of)) => name == of,
            (Self::Eviction { policy, .. }, Expected::Eviction(of)) => policy == of,
            (Self::InvalidPermitId { id, .. }, Expected::InvalidPermitId(of)) => id == of,
            (Self::NotReplicated { wanted, acknowledged, .. }, Expected::NotReplicated(of, by)) => {
                wanted == of && acknowledged == by
            }
            _ => false,
        }
    }
}

impl PartialEq<Expected> for Result<(), Error> {
    fn eq(&self, expected: &Expected) -> bool {
        self.as_ref().is_err_and(|error| error == expected)
    }
}

impl PartialEq<Expected> for Warning {
    fn eq(&self, expected: &Expected) -> bool {
        match (self, expected) {
            (Self::Eviction { policy, .. }, Expected::Eviction(of)) => policy == of,
            (Self::RenewalsRefused { refusal, .. }, Expected::RenewalsRefused(of)) => refusal == of,
            (
                Self::ServerClockJumped { by, forward, .. },
                Expected::ServerClockJumped { by: wanted, forward: to },
            ) => by == wanted && forward == to,
            _ => false,
        }
    }
}
