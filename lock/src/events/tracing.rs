//! The reports as `tracing` events, with the cargo feature of that name. Their names and fields are
//! part of the public API.

#[cfg(feature = "tracing")]
use tracing::{Level, event};

use crate::events::report::Report;
#[cfg(feature = "tracing")]
use crate::events::report::Warning;

/// Whether reports are emitted as events.
pub(crate) const ON: bool = cfg!(feature = "tracing");

/// Emits the event of `report`, on the calling thread.
#[cfg(feature = "tracing")]
pub(crate) fn emit(report: &Report) {
    match report {
        Report::Lost(lost) => event!(
            name: "lock_lost",
            target: "wheellock",
            Level::WARN,
            lock = lost.name(),
            owner = lost.owner(),
            reason = %lost.reason(),
            held_for = ?lost.held_for(),
            "a lock was lost"
        ),
        Report::LongHold(held) => event!(
            name: "lock_held_long",
            target: "wheellock",
            Level::WARN,
            lock = held.name(),
            owner = held.owner(),
            held_for = ?held.held_for(),
            "a lock is held for long"
        ),
        Report::Warning(warning @ Warning::Eviction { policy }) => event!(
            name: "server_evicts",
            target: "wheellock",
            Level::WARN,
            policy = policy.as_str(),
            "{warning}"
        ),
        Report::Warning(warning @ Warning::WritesWithoutReplicas) => event!(
            name: "server_writes_without_replicas",
            target: "wheellock",
            Level::WARN,
            "{warning}"
        ),
        Report::Warning(warning @ Warning::ServerClockJumped { by, forward }) => event!(
            name: "server_clock_jumped",
            target: "wheellock",
            Level::WARN,
            by = ?by,
            forward = *forward,
            "{warning}"
        ),
        Report::Warning(warning @ Warning::ChannelsRefused { refusal }) => event!(
            name: "server_refuses_channels",
            target: "wheellock",
            Level::WARN,
            refusal = refusal.as_str(),
            "{warning}"
        ),
    }
}

/// Nothing: the feature is off.
#[cfg(not(feature = "tracing"))]
pub(crate) fn emit(_report: &Report) {}
