//! Semaphores whose permits have leases.

use std::time::Duration;

use wheellock::Error;

use super::{Row, answered, done_if, release};
use crate::cell_run::{CellRun, Returned};
use crate::holding::RivalKind;
use crate::sends::Sends::Script;

const FAMILY: &str = "Expirable semaphores";

pub(super) const ROWS: &[Row] = &[
    Row::new((FAMILY, "set", "ExpirableSemaphore::set_permits"), Script("permits_set"), |run| {
        run.client.expirable_semaphore(&run.name).set_permits(2).map(answered)
    })
    .prepare(with_one)
    .lasting(itself)
    .number(&["2"], &["1", "2"]),
    Row::new(
        (FAMILY, "take", "ExpirableSemaphore::try_acquire"),
        Script("permits_acquire"),
        |run| {
            let permit = run.client.expirable_semaphore(&run.name).watched().try_acquire()?;
            Ok(run.retain_if(permit))
        },
    )
    .prepare(with_one)
    .rival(RivalKind::Permit)
    .lasting(itself)
    .number(&["1"], &["1"]),
    Row::new((FAMILY, "release", "Permit::release"), Script("permits_release"), release)
        .prepare(hold)
        .rival(RivalKind::Permit)
        .lasting(itself)
        .number(&["1"], &["1"]),
    Row::new(
        (FAMILY, "release by id", "ExpirableSemaphore::release"),
        Script("permits_release"),
        |run| match run.permit.get() {
            Some(id) => run.client.expirable_semaphore(&run.name).release(&id).map(answered),
            None => Ok(Returned::Nothing),
        },
    )
    .prepare(hold_by_id)
    .lasting(itself)
    .number(&["1"], &["0", "1"]),
    Row::new((FAMILY, "renew", "the watchdog"), Script("permits_renew"), |run| Ok(run.watch()))
        .prepare(hold)
        .rival(RivalKind::Permit)
        .foreign(|name| format!("{{{name}}}:timeout"))
        .lasting(itself)
        .number(&["1"], &["1"])
        .in_the_background(),
    Row::new(
        (FAMILY, "change a lease", "ExpirableSemaphore::update_lease"),
        Script("permits_lease"),
        |run| match run.permit.get() {
            Some(id) => {
                let semaphore = run.client.expirable_semaphore(&run.name);
                semaphore.update_lease(&id, Duration::from_secs(2)).map(done_if)
            }
            None => Ok(Returned::Nothing),
        },
    )
    .prepare(hold_by_id)
    .foreign(|name| format!("{{{name}}}:timeout"))
    .lasting(itself),
    Row::new(
        (FAMILY, "ask for a lease", "ExpirableSemaphore::lease_of"),
        Script("permits_lease_of"),
        |run| match run.permit.get() {
            Some(id) => {
                let lease = run.client.expirable_semaphore(&run.name).lease_of(&id)?;
                Ok(done_if(lease.is_some()))
            }
            None => Ok(Returned::Nothing),
        },
    )
    .prepare(hold_by_id)
    .foreign(|name| format!("{{{name}}}:timeout"))
    .lasting(itself),
    Row::new(
        (FAMILY, "how many", "ExpirableSemaphore::available_permits"),
        Script("permits_count"),
        |run| run.client.expirable_semaphore(&run.name).available_permits().map(answered),
    )
    .prepare(with_one)
    .lasting(itself)
    .number(&["1"], &["1"]),
];

/// Redisson's layout: none of the two has a time to live.
fn itself(name: &str) -> Vec<String> {
    vec![name.to_owned(), format!("{{{name}}}:timeout")]
}

#[expect(clippy::unnecessary_wraps, reason = "a preparation may fail")]
fn with_one(run: &CellRun<'_>) -> Result<Returned, Error> {
    run.place.command(&["SET", &run.name, "1"]);
    Ok(Returned::Done)
}

fn hold(run: &CellRun<'_>) -> Result<Returned, Error> {
    with_one(run)?;
    let permit = run.client.expirable_semaphore(&run.name).watched().acquire()?;
    Ok(run.retain(permit))
}

/// A permit of which only the id is known here.
fn hold_by_id(run: &CellRun<'_>) -> Result<Returned, Error> {
    with_one(run)?;
    let semaphore = run.client.expirable_semaphore(&run.name).with_lease(Duration::from_secs(60));
    run.permit.set(Some(semaphore.acquire()?.into_id()));
    Ok(Returned::Done)
}
