//! Semaphores whose permits have leases.

use std::time::Duration;

use wheellock::Error;

use super::{Row, answered, done_if, release};
use crate::holding::RivalKind;
use crate::sends::Sends::Script;
use crate::stage::{Said, Stage};

const FAMILY: &str = "Expirable semaphores";

pub(super) const ROWS: &[Row] = &[
    Row::new((FAMILY, "set", "ExpirableSemaphore::set_permits"), Script("permits_set"), |stage| {
        stage.client.expirable_semaphore(&stage.name).set_permits(2).map(answered)
    })
    .prepare(with_one)
    .lasting(itself)
    .number(&["2"], &["1", "2"]),
    Row::new(
        (FAMILY, "take", "ExpirableSemaphore::try_acquire"),
        Script("permits_acquire"),
        |stage| {
            let permit = stage.client.expirable_semaphore(&stage.name).watched().try_acquire()?;
            Ok(stage.keep_if(permit))
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
        |stage| match stage.permit.get() {
            Some(id) => stage.client.expirable_semaphore(&stage.name).release(&id).map(answered),
            None => Ok(Said::Nothing),
        },
    )
    .prepare(hold_by_id)
    .lasting(itself)
    .number(&["1"], &["0", "1"]),
    Row::new((FAMILY, "renew", "the watchdog"), Script("permits_renew"), |stage| Ok(stage.watch()))
        .prepare(hold)
        .rival(RivalKind::Permit)
        .foreign(|name| format!("{{{name}}}:timeout"))
        .lasting(itself)
        .number(&["1"], &["1"])
        .in_the_background(),
    Row::new(
        (FAMILY, "change a lease", "ExpirableSemaphore::update_lease"),
        Script("permits_lease"),
        |stage| match stage.permit.get() {
            Some(id) => {
                let semaphore = stage.client.expirable_semaphore(&stage.name);
                semaphore.update_lease(&id, Duration::from_secs(2)).map(done_if)
            }
            None => Ok(Said::Nothing),
        },
    )
    .prepare(hold_by_id)
    .foreign(|name| format!("{{{name}}}:timeout"))
    .lasting(itself),
    Row::new(
        (FAMILY, "ask for a lease", "ExpirableSemaphore::lease_of"),
        Script("permits_lease_of"),
        |stage| match stage.permit.get() {
            Some(id) => {
                let lease = stage.client.expirable_semaphore(&stage.name).lease_of(&id)?;
                Ok(done_if(lease.is_some()))
            }
            None => Ok(Said::Nothing),
        },
    )
    .prepare(hold_by_id)
    .foreign(|name| format!("{{{name}}}:timeout"))
    .lasting(itself),
    Row::new(
        (FAMILY, "how many", "ExpirableSemaphore::available_permits"),
        Script("permits_count"),
        |stage| stage.client.expirable_semaphore(&stage.name).available_permits().map(answered),
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
fn with_one(stage: &Stage<'_>) -> Result<Said, Error> {
    stage.place.command(&["SET", &stage.name, "1"]);
    Ok(Said::Done)
}

fn hold(stage: &Stage<'_>) -> Result<Said, Error> {
    with_one(stage)?;
    let permit = stage.client.expirable_semaphore(&stage.name).watched().acquire()?;
    Ok(stage.keep(permit))
}

/// A permit of which only the id is known here.
fn hold_by_id(stage: &Stage<'_>) -> Result<Said, Error> {
    with_one(stage)?;
    let semaphore =
        stage.client.expirable_semaphore(&stage.name).with_lease(Duration::from_secs(60));
    stage.permit.set(Some(semaphore.acquire()?.into_id()));
    Ok(Said::Done)
}
