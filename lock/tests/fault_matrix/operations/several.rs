//! Several locks as one: what a fault of a member does to the whole.

use std::time::Duration;

use wheellock::{Client, Error, RedLock};
use wheellock_fixture::wait_until;

use super::{Row, release};
use crate::cell_run::{CellRun, Returned};
use crate::holding::RivalKind;
use crate::sends::Sends::Script;

const FAMILY: &str = "Multi and red locks";

pub(super) const ROWS: &[Row] = &[
    Row::new((FAMILY, "multi: acquire", "MultiLock::try_lock"), Script("acquire_many"), take_both)
        .rival(RivalKind::Lock),
    Row::new((FAMILY, "multi: release", "MultiGuard::unlock"), Script("release_many"), release)
        .prepare(take_both)
        .rival(RivalKind::Lock),
    Row::new(
        (FAMILY, "red: acquire on one of three", "RedLock::try_lock"),
        Script("acquire"),
        take_red,
    )
    .requests(usize::MAX),
    Row::new(
        (FAMILY, "red: release on one of three", "RedGuard::unlock"),
        Script("release"),
        release,
    )
    .prepare(take_all_red)
    .requests(usize::MAX),
];

fn take_both(run: &CellRun<'_>) -> Result<Returned, Error> {
    let (one, other) = (run.client.lock(&run.name), run.client.lock(&run.other("other")));
    run.client.multi_lock(&[&one, &other]).try_lock().map(|guard| run.retain_if(guard))
}

fn red_lock(run: &CellRun<'_>) -> RedLock {
    let clients = [run.client.clone(), Client::in_memory(), Client::in_memory()];
    Client::red_lock(&clients, &run.name)
}

/// Two of the three servers are in this process, and well.
fn take_red(run: &CellRun<'_>) -> Result<Returned, Error> {
    red_lock(run).try_lock().map(|guard| run.retain_if(guard))
}

/// How long a member that did not answer may be missing: it is asked again after a third of the
/// lease, which is 10 s.
const MISSING: Duration = Duration::from_secs(30);

/// The third may answer when the majority has.
fn take_all_red(run: &CellRun<'_>) -> Result<Returned, Error> {
    let guard = red_lock(run).lock()?;
    wait_until("it is held on all three", MISSING, || guard.held_on() == 3);
    Ok(run.retain(guard))
}
