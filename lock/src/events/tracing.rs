//! The reports as `tracing` events, with the cargo feature `tracing`. Names and fields are part of
//! the public API.

use std::time::Duration;

#[cfg(feature = "tracing")]
use tracing::{Level, event};

use crate::error::Error;
#[cfg(feature = "tracing")]
use crate::error::truncated;
use crate::events::acquires::AcquireEnd;
use crate::events::report::Report;
#[cfg(feature = "tracing")]
use crate::events::report::Warning;
use crate::model::kind::Kind;
use crate::model::name::LockName;
use crate::model::owner::Owner;
#[cfg(feature = "tracing")]
use crate::model::panics::catch_panic;

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
            lock = truncated(lost.name()),
            owner = lost.owner(),
            reason = %lost.reason(),
            held_for = ?lost.held_for(),
            "a lock was lost"
        ),
        Report::LongHold(held) => event!(
            name: "lock_held_long",
            target: "wheellock",
            Level::WARN,
            lock = truncated(held.name()),
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
        Report::Warning(warning @ Warning::ReplicasNotAwaited) => event!(
            name: "replicas_not_awaited",
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
        Report::Warning(warning @ Warning::SharedServer { servers: [one, other] }) => event!(
            name: "red_lock_shares_server",
            target: "wheellock",
            Level::WARN,
            server = one.as_str(),
            other = other.as_str(),
            "{warning}"
        ),
        Report::Warning(warning @ Warning::RenewalsRefused { refusal }) => event!(
            name: "server_refuses_renewals",
            target: "wheellock",
            Level::WARN,
            refusal = refusal.as_str(),
            "{warning}"
        ),
        Report::Warning(warning @ Warning::RecordRefused { refusal }) => event!(
            name: "server_refuses_record",
            target: "wheellock",
            Level::WARN,
            refusal = refusal.as_str(),
            "{warning}"
        ),
        Report::Warning(warning @ Warning::Deadlock { cycle }) => event!(
            name: "deadlock",
            target: "wheellock",
            Level::WARN,
            cycle = cycle.as_str(),
            "{warning}"
        ),
    }
}

/// No effect: the feature is off.
#[cfg(not(feature = "tracing"))]
pub(crate) fn emit(_report: &Report) {}

/// The `tracing` span of an acquire, entered on the calling thread until dropped.
pub(crate) struct AcquireSpan {
    #[cfg(feature = "tracing")]
    _entered: Option<tracing::span::EnteredSpan>,
}

impl AcquireSpan {
    /// Enters the span of an acquire. Calls `name` only if a subscriber has enabled the span.
    #[cfg(feature = "tracing")]
    pub(crate) fn enter(name: impl FnOnce() -> String, kind: Kind) -> Self {
        // A subscriber's panic costs its span, and not the lock.
        let entered = catch_panic(|| {
            tracing::enabled!(target: "wheellock", Level::DEBUG).then(|| {
                let (lock, kind) = (name(), kind.word());
                tracing::debug_span!(target: "wheellock", "lock_acquire", lock, kind).entered()
            })
        });
        Self { _entered: entered.flatten() }
    }

    /// No effect: the feature is off.
    #[cfg(not(feature = "tracing"))]
    pub(crate) fn enter(_name: impl FnOnce() -> String, _kind: Kind) -> Self {
        Self {}
    }
}

/// Emits the event of an acquired lock, on the calling thread, with nothing locked.
#[cfg(feature = "tracing")]
pub(crate) fn acquired(name: &LockName, kind: Kind, owner: &Owner, waited: Duration) {
    catch_panic(|| {
        event!(
            name: "lock_acquired",
            target: "wheellock",
            Level::DEBUG,
            lock = name.shown(),
            kind = kind.word(),
            owner = %owner,
            waited = ?waited,
            "a lock was acquired"
        );
    });
}

/// No effect: the feature is off.
#[cfg(not(feature = "tracing"))]
pub(crate) fn acquired(_name: &LockName, _kind: Kind, _owner: &Owner, _waited: Duration) {}

/// Emits the event of an acquire without a grant, on the calling thread.
#[cfg(feature = "tracing")]
pub(crate) fn not_acquired(
    name: impl FnOnce() -> String,
    kind: Kind,
    end: AcquireEnd,
    error: Option<&Error>,
) {
    catch_panic(|| {
        event!(
            name: "lock_not_acquired",
            target: "wheellock",
            Level::DEBUG,
            lock = name(),
            kind = kind.word(),
            end = end.word(),
            error = error.map(tracing::field::display),
            "a lock was not acquired"
        );
    });
}

/// No effect: the feature is off.
#[cfg(not(feature = "tracing"))]
pub(crate) fn not_acquired(
    _name: impl FnOnce() -> String,
    _kind: Kind,
    _end: AcquireEnd,
    _error: Option<&Error>,
) {
}

/// Emits the event of a hold's end, on the thread which released the lock or handed the lock over.
#[cfg(feature = "tracing")]
pub(crate) fn released(
    name: &LockName,
    kind: Kind,
    owner: &Owner,
    held_for: impl FnOnce() -> Duration,
) {
    catch_panic(|| {
        event!(
            name: "lock_released",
            target: "wheellock",
            Level::DEBUG,
            lock = name.shown(),
            kind = kind.word(),
            owner = %owner,
            held_for = ?held_for(),
            "a lock was released"
        );
    });
}

/// No effect: the feature is off.
#[cfg(not(feature = "tracing"))]
pub(crate) fn released(
    _name: &LockName,
    _kind: Kind,
    _owner: &Owner,
    _held_for: impl FnOnce() -> Duration,
) {
}
