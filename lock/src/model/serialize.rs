//! Serialization of values without their own `Serialize`: times in whole milliseconds.

use std::fmt::Debug;
use std::time::{Duration, SystemTime};

use hashed_wheel::Summary;
use serde::ser::{Serialize, SerializeStruct, Serializer};

/// Returns a time in whole milliseconds.
fn count(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Serializes a time, in milliseconds.
pub(crate) fn millis<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(count(*time))
}

/// Serializes a possibly unknown time, in milliseconds.
#[expect(clippy::ref_option, reason = "serde passes a reference to the field")]
pub(crate) fn known_millis<S: Serializer>(
    time: &Option<Duration>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    time.map(count).serialize(serializer)
}

/// Serializes a possibly unknown point in time, in milliseconds since the beginning of 1970.
#[expect(clippy::ref_option, reason = "serde passes a reference to the field")]
pub(crate) fn known_unix_millis<S: Serializer>(
    time: &Option<SystemTime>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let since = time.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
    since.map(count).serialize(serializer)
}

/// Serializes a time in milliseconds, or none for [`Duration::MAX`].
pub(crate) fn finite_millis<S: Serializer>(
    time: &Duration,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let finite = Some(*time).filter(|time| *time != Duration::MAX);
    known_millis(&finite, serializer)
}

/// Serializes a summary of short times, in whole microseconds.
pub(crate) fn summary<S: Serializer>(summary: &Summary, serializer: S) -> Result<S::Ok, S::Error> {
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let mut fields = serializer.serialize_struct("Summary", 4)?;
    fields.serialize_field("count", &summary.count)?;
    fields.serialize_field("p50_us", &micros(summary.p50))?;
    fields.serialize_field("p99_us", &micros(summary.p99))?;
    fields.serialize_field("max_us", &micros(summary.max))?;
    fields.end()
}

/// Serializes the `Debug` text of a value.
pub(crate) fn debug<S: Serializer>(value: &impl Debug, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{value:?}"))
}
