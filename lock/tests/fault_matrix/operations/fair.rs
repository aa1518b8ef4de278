//! Fair locks: a queue on the server.

use wheellock::Error;

use super::connections::{SHORT_WAIT, stand_in};
use super::{Row, delete, done_if, release};
use crate::cell_run::{CellRun, Returned};
use crate::holding::RivalKind;
use crate::sends::Sends::Script;

const FAIR: &str = "Fair locks";

pub(super) const ROWS: &[Row] = &[
    Row::new((FAIR, "acquire", "Lock::try_lock"), Script("fair_acquire"), |run| {
        run.client.fair_lock(&run.name).try_lock().map(|guard| run.retain_if(guard))
    })
    .rival(RivalKind::Lock),
    Row::new((FAIR, "join the queue", "Lock::try_lock_for"), Script("fair_acquire"), wait)
        .prepare(stand_in)
        .finish(delete)
        .rival(RivalKind::Lock)
        .longer(SHORT_WAIT)
        .lasting(line),
    Row::new((FAIR, "leave the queue", "Lock::try_lock_for"), Script("fair_release"), wait)
        .prepare(stand_in)
        .finish(delete)
        .rival(RivalKind::Lock)
        .longer(SHORT_WAIT)
        .lasting(line),
    Row::new((FAIR, "release", "LockGuard::unlock"), Script("fair_release"), release)
        .prepare(|run| run.client.fair_lock(&run.name).lock().map(|guard| run.retain(guard)))
        .rival(RivalKind::Lock),
    Row::new((FAIR, "force", "Lock::force_unlock"), Script("fair_force_release"), |run| {
        run.client.fair_lock(&run.name).force_unlock().map(done_if)
    })
    .prepare(stand_in)
    .finish(delete)
    .rival(RivalKind::Lock)
    .number(&[""], &[]),
];

fn wait(run: &CellRun<'_>) -> Result<Returned, Error> {
    run.client.fair_lock(&run.name).try_lock_for(SHORT_WAIT).map(|guard| run.retain_if(guard))
}

/// They have no time to live while the queue has entries. At the end it has none.
fn line(name: &str) -> Vec<String> {
    vec![format!("redisson_lock_queue:{{{name}}}"), format!("redisson_lock_timeout:{{{name}}}")]
}
