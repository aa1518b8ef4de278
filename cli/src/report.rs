//! The status of a lock, as printed by `status`, `list` and `watch`.

use std::time::Duration;

use serde::Serialize;
use wheellock::{Holder, HolderKind, LockKind, LockStatus};

use crate::output::printable;

/// The JSON object of a lock.
#[derive(Serialize)]
struct Object<'a> {
    held: bool,
    #[serde(flatten)]
    status: &'a LockStatus,
}

/// Formats the status as JSON, on a single line.
pub(crate) fn json(status: &LockStatus) -> serde_json::Result<String> {
    serde_json::to_string(&Object { held: is_held(status), status })
}

/// Whether the lock has a holder, or the key contains a number.
pub(crate) fn is_held(status: &LockStatus) -> bool {
    status.holder_count > 0 || status.number.is_some()
}

/// Formats a line with the name, the kind, the holder, and the number of waiters.
pub(crate) fn line(status: &LockStatus) -> String {
    let mut line = printable(&status.name);
    line.push_str(": ");
    line.push_str(&state(status));
    let waiting = match status.waiters.elsewhere {
        Some(0) => String::new(),
        Some(waiting) => format!("; {waiting} waiting"),
        None => "; the waiters are not known".to_owned(),
    };
    line + &waiting
}

fn state(status: &LockStatus) -> String {
    let kind = status.kind.map(|kind| kind.to_string()).unwrap_or_default();
    match (status.holders.as_slice(), status.number) {
        (_, Some(free)) if status.kind == Some(LockKind::ExpirableSemaphore) => {
            format!("{kind}, {free} permits are free")
        }
        (_, Some(number)) => format!("{kind} {number}"),
        ([], None) => "not held".to_owned(),
        ([only], None) => format!("{kind}, held by {}", holder(only)),
        ([first, ..], None) => {
            format!("{kind}, held by {}, among them {}", status.holder_count, holder(first))
        }
    }
}

/// Formats several lines: the status, each of several holders, and each waiter of a queue.
pub(crate) fn lines(status: &LockStatus) -> String {
    let mut lines = vec![line(status)];
    if status.holders.len() > 1 {
        lines.extend(status.holders.iter().map(|one| format!("  {}", holder(one))));
    }
    lines.extend(status.waiters.queue.iter().enumerate().map(|(place, waiter)| {
        let named = named(waiter.label.as_deref(), waiter.kind, &waiter.owner);
        let since = waiter.waits_for.map(|time| format!(", for {}", seconds(time)));
        format!("  {}. {named}{}", place + 1, since.unwrap_or_default())
    }));
    lines.join("\n")
}

/// Formats a holder with all known details.
fn holder(holder: &Holder) -> String {
    let named = named(holder.label.as_deref(), holder.kind, &holder.owner);
    let since = holder.held_for.map(|time| format!(", for {}", seconds(time)));
    let renewed = match holder.watched {
        Some(true) => ", renewed",
        Some(false) => ", not renewed",
        None => "",
    };
    let cached = if holder.may_be_cached { ", perhaps cached" } else { "" };
    let left = match holder.remaining {
        Duration::MAX => "without an end".to_owned(),
        left => format!("{} left", seconds(left)),
    };
    format!("{named}{}{renewed}{cached}, {left}", since.unwrap_or_default())
}

fn named(label: Option<&str>, kind: HolderKind, owner: &str) -> String {
    let owner = printable(owner);
    match label {
        Some(label) => format!("{} ({owner})", printable(label)),
        None if kind == HolderKind::Unknown => format!("an unknown kind of client, {owner}"),
        None => format!("{kind} {owner}"),
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
