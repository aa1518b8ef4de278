//! Connecting, and messages for waiters.

use std::thread;
use std::time::Duration;

use wheellock::Error;

use super::{Row, answered, delete, stranger};
use crate::cell_run::{CellRun, Returned};
use crate::common::pause;
use crate::holding::RivalKind;
use crate::sends::Sends::Command;
use crate::servers::{Kind, PASSWORD, USER};

const FAMILY: &str = "Connections and messages";

/// For how long a stranger holds what is waited for.
const STRANGER_HOLDS: Duration = Duration::from_millis(250);
/// How long a wait is that ends with the lock.
const LONG_WAIT: Duration = Duration::from_millis(2500);
/// How long one is that does not. A waiter asks again after a second, and is to have time for the
/// answer.
pub(super) const SHORT_WAIT: Duration = Duration::from_millis(1500);
/// How long one is in which nothing is heard for a command timeout, and then for another. With time
/// for a server that restarts on a busy machine.
const SILENT_WAIT: Duration = Duration::from_secs(8);

pub(super) const ROWS: &[Row] = &[
    Row::new((FAMILY, "connect", "Client::connect"), Command("TIME"), connect)
        .on_a_fresh_connection(),
    Row::new((FAMILY, "say who it is", "Client::connect"), Command("AUTH"), connect_as_a_user)
        .on_a_fresh_connection(),
    Row::new(
        (FAMILY, "choose a database", "Client::connect"),
        Command("SELECT"),
        connect_as_a_user,
    )
    .on_a_fresh_connection(),
    Row::new((FAMILY, "ask what is evicted", "Client::connect"), Command("INFO"), connect)
        .on_a_fresh_connection(),
    subscribe(FAMILY, "SUBSCRIBE"),
    unsubscribe(FAMILY, "UNSUBSCRIBE"),
    Row::new((FAMILY, "is the server there", "Lock::try_lock_for"), Command("PING"), |run| {
        wait_for(run, SILENT_WAIT)
    })
    .prepare(stand_in)
    .finish(delete)
    .rival(RivalKind::Lock)
    .longer(SILENT_WAIT)
    .on_a_fresh_connection(),
];

pub(super) const fn subscribe(family: &'static str, command: &'static str) -> Row {
    Row::new((family, "subscribe", "Lock::try_lock_for"), Command(command), wait)
        .prepare(stand_in)
        .finish(delete)
        .rival(RivalKind::Lock)
        .longer(LONG_WAIT)
        .requests(usize::MAX)
        .on_a_fresh_connection()
}

pub(super) const fn unsubscribe(family: &'static str, command: &'static str) -> Row {
    Row::new((family, "unsubscribe", "Lock::try_lock_for"), Command(command), wait_in_vain)
        .prepare(stand_in)
        .finish(delete)
        .rival(RivalKind::Lock)
        .longer(SHORT_WAIT)
        .on_a_fresh_connection()
}

pub(super) fn connect(run: &CellRun<'_>) -> Result<Returned, Error> {
    run.builder().build().map(answered)
}

fn connect_as_a_user(run: &CellRun<'_>) -> Result<Returned, Error> {
    let url = format!("redis://{USER}:{PASSWORD}@{}/3", run.proxy().address());
    run.builder().url(&url).build().map(answered)
}

#[expect(clippy::unnecessary_wraps, reason = "a preparation may fail")]
pub(super) fn stand_in(run: &CellRun<'_>) -> Result<Returned, Error> {
    stranger(run);
    Ok(Returned::Done)
}

/// Waits for what a stranger holds and releases after a while.
fn wait(run: &CellRun<'_>) -> Result<Returned, Error> {
    let (place, name) = (run.place, &run.name);
    let publish = if place.kind == Kind::InCluster { "SPUBLISH" } else { "PUBLISH" };
    let guard = thread::scope(|scope| {
        scope.spawn(move || {
            pause(STRANGER_HOLDS);
            place.command(&["DEL", name]);
            place.command(&[publish, &format!("redisson_lock__channel:{{{name}}}"), "0"]);
        });
        run.client.lock(&run.name).try_lock_for(LONG_WAIT)
    });
    guard.map(|guard| run.retain_if(guard))
}

fn wait_in_vain(run: &CellRun<'_>) -> Result<Returned, Error> {
    wait_for(run, SHORT_WAIT)
}

fn wait_for(run: &CellRun<'_>, length: Duration) -> Result<Returned, Error> {
    run.client.lock(&run.name).try_lock_for(length).map(|guard| run.retain_if(guard))
}
