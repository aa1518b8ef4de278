//! What `status`, `list` and `watch` print of a lock.

use std::time::Duration;

use wheellock::{Holder, HolderKind, LockKind, LockStatus, QueuedOwner};

use crate::json::Json;
use crate::output::printable;

/// The object that stands for a lock.
pub(crate) fn json(status: &LockStatus) -> String {
    let waiters = &status.waiters;
    Json::object([
        ("name", Json::text(&status.name)),
        ("held", Json::plain(&is_held(status))),
        ("kind", Json::or_null(status.kind.map(|kind| Json::text(&kind.to_string())))),
        ("number", Json::or_null(status.number.as_ref().map(Json::plain))),
        ("holder_count", Json::plain(&status.holder_count)),
        ("holders", Json::list(status.holders.iter().map(holder_json))),
        ("waiting", Json::or_null(waiters.elsewhere.as_ref().map(Json::plain))),
        ("queue", Json::list(waiters.queue.iter().map(queued_json))),
    ])
    .into_text()
}

fn holder_json(holder: &Holder) -> Json {
    Json::object([
        ("owner", Json::text(&holder.owner)),
        ("by", Json::text(&holder.kind.to_string())),
        ("label", Json::or_null(holder.label.as_deref().map(Json::text))),
        ("process", Json::or_null(holder.process.as_ref().map(Json::plain))),
        ("held_for_ms", millis(holder.held_for)),
        ("remaining_ms", millis(Some(holder.remaining).filter(|left| *left != Duration::MAX))),
        ("watched", Json::or_null(holder.watched.as_ref().map(Json::plain))),
        ("count", Json::plain(&holder.count)),
        ("shared", Json::plain(&holder.shared)),
    ])
}

fn queued_json(waiter: &QueuedOwner) -> Json {
    Json::object([
        ("owner", Json::text(&waiter.owner)),
        ("by", Json::text(&waiter.kind.to_string())),
        ("label", Json::or_null(waiter.label.as_deref().map(Json::text))),
        ("waits_for_ms", millis(waiter.waits_for)),
    ])
}

fn millis(time: Option<Duration>) -> Json {
    Json::or_null(time.map(|time| Json::plain(&time.as_millis())))
}

/// Whether somebody holds it, or it is a number.
pub(crate) fn is_held(status: &LockStatus) -> bool {
    status.holder_count > 0 || status.number.is_some()
}

/// One line: the name, the kind, who holds it, and how many wait.
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

/// Several lines: each holder, and each waiter of a queue.
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

/// A holder, with what is known of it.
fn holder(holder: &Holder) -> String {
    let named = named(holder.label.as_deref(), holder.kind, &holder.owner);
    let since = holder.held_for.map(|time| format!(", for {}", seconds(time)));
    let renewed = match holder.watched {
        Some(true) => ", renewed",
        Some(false) => ", not renewed",
        None => "",
    };
    let left = match holder.remaining {
        Duration::MAX => "without an end".to_owned(),
        left => format!("{} left", seconds(left)),
    };
    format!("{named}{}{renewed}, {left}", since.unwrap_or_default())
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
