//! Semaphores whose permits are a number, and latches.

use std::time::Duration;

use wheellock::Error;
use wheellock_fixture::{Fault, wait_until};

use super::{Row, answered, done_if, release};
use crate::cell_run::{CellRun, Returned};
use crate::common::{SOON, now, pause};
use crate::faults::Times;
use crate::sends::Sends::{Command, Script};

const SEMAPHORE: &str = "Semaphores";
const LATCH: &str = "Latches";

pub(super) const SEMAPHORES: &[Row] = &[
    Row::new((SEMAPHORE, "make", "Semaphore::try_set_permits"), Script("semaphore_set"), |run| {
        run.client.semaphore(&run.name).try_set_permits(2).map(done_if)
    })
    .lasting(itself)
    .number(&["2"], &["", "2"]),
    Row::new((SEMAPHORE, "take", "Semaphore::try_acquire"), Script("semaphore_acquire"), take)
        .prepare(with_one)
        .lasting(itself)
        .number(&["1"], &["1"]),
    Row::new((SEMAPHORE, "undo a take", "in the background"), Script("semaphore_undo"), undo)
        .prepare(take_and_hear_nothing)
        .lasting(itself)
        .number(&["1"], &["1"])
        .in_the_background(),
    Row::new((SEMAPHORE, "release", "SemaphoreGuard::release"), Script("semaphore_add"), release)
        .prepare(hold)
        .lasting(itself)
        .number(&["1"], &["0", "1"]),
    Row::new((SEMAPHORE, "add", "Semaphore::add_permits"), Script("semaphore_add"), |run| {
        run.client.semaphore(&run.name).add_permits(-1).map(answered)
    })
    .prepare(with_one)
    .lasting(itself)
    .number(&["0"], &["0", "1"]),
    Row::new((SEMAPHORE, "drain", "Semaphore::drain_permits"), Script("semaphore_drain"), |run| {
        let drained = run.client.semaphore(&run.name).drain_permits()?;
        Ok(done_if(drained == 1))
    })
    .prepare(with_one)
    .lasting(itself)
    .number(&["0"], &["0", "1"]),
    Row::new((SEMAPHORE, "how many", "Semaphore::available_permits"), Command("GETRANGE"), |run| {
        run.client.semaphore(&run.name).available_permits().map(answered)
    })
    .prepare(with_one)
    .lasting(itself)
    .number(&["1"], &["1"]),
];

pub(super) const LATCHES: &[Row] = &[
    Row::new((LATCH, "set", "CountDownLatch::try_set_count"), Script("latch_set"), |run| {
        run.client.count_down_latch(&run.name).try_set_count(2).map(done_if)
    })
    .lasting(itself)
    .number(&["2"], &["", "2"]),
    Row::new(
        (LATCH, "count down", "CountDownLatch::count_down"),
        Script("latch_count_down"),
        |run| run.client.count_down_latch(&run.name).count_down().map(answered),
    )
    .prepare(|run| with(run, "3"))
    .lasting(itself)
    .number(&["2"], &["2", "3"]),
    Row::new((LATCH, "delete", "CountDownLatch::delete"), Script("latch_delete"), |run| {
        run.client.count_down_latch(&run.name).delete().map(done_if)
    })
    .prepare(with_one)
    .lasting(itself)
    .number(&[""], &["", "1"]),
    Row::new((LATCH, "count", "CountDownLatch::count"), Command("GETRANGE"), |run| {
        run.client.count_down_latch(&run.name).count().map(answered)
    })
    .prepare(with_one)
    .lasting(itself)
    .number(&["1"], &["1"]),
];

fn itself(name: &str) -> Vec<String> {
    vec![name.to_owned()]
}

fn with_one(run: &CellRun<'_>) -> Result<Returned, Error> {
    with(run, "1")
}

#[expect(clippy::unnecessary_wraps, reason = "a preparation may fail")]
fn with(run: &CellRun<'_>, number: &str) -> Result<Returned, Error> {
    run.place.command(&["SET", &run.name, number]);
    Ok(Returned::Done)
}

fn take(run: &CellRun<'_>) -> Result<Returned, Error> {
    Ok(run.retain_if(run.client.semaphore(&run.name).try_acquire(1)?))
}

fn hold(run: &CellRun<'_>) -> Result<Returned, Error> {
    with_one(run)?;
    Ok(run.retain(run.client.semaphore(&run.name).acquire(1)?))
}

/// The server gives a permit, its answer is lost, and what would give it back does not get through
/// yet.
fn take_and_hear_nothing(run: &CellRun<'_>) -> Result<Returned, Error> {
    with_one(run)?;
    let take = || run.client.semaphore(&run.name).try_acquire(1).unwrap_err();
    hear_nothing(run, "semaphore_acquire", take, "semaphore_undo")
}

/// The server does what `script` says, its answer is lost, and `undo` does not get through yet.
#[expect(clippy::unnecessary_wraps, reason = "a call may fail")]
pub(super) fn hear_nothing(
    run: &CellRun<'_>,
    script: &'static str,
    call: impl FnOnce() -> Error,
    undo: &'static str,
) -> Result<Returned, Error> {
    let unanswered = run.proxy().on(Script(script).matcher(), Fault::SwallowReply);
    let unanswered = unanswered.always();
    let kept_from = run.proxy().on(Script(undo).matcher(), Fault::DropRequest);
    let kept_from = kept_from.always();
    let error = call();
    assert!(error.is_outcome_unknown(), "{error}");
    unanswered.withdraw();
    // The fault of the cell comes before the next try.
    kept_from.wait_for_hit(SOON);
    wait_until("its release is queued", SOON, || run.client.stats().queued_releases > 0);
    kept_from.withdraw();
    Ok(Returned::Done)
}

/// Waits until it is given back, or the fault is over.
#[expect(clippy::unnecessary_wraps, reason = "a call may fail")]
pub(super) fn undo(run: &CellRun<'_>) -> Result<Returned, Error> {
    let ends = match run.times {
        Times::First => now() + SOON,
        Times::Every => run.window_ends.get(),
    };
    while now() < ends {
        if run.client.stats().queued_releases == 0 {
            return Ok(Returned::Done);
        }
        pause(Duration::from_millis(10));
    }
    Ok(Returned::Queued)
}
