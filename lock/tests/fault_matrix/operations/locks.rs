//! Locks with one holder.

use std::time::Duration;

use wheellock::Error;

use super::connections::stand_in;
use super::{Row, answered, delete, done_if, release};
use crate::cell::comes_true_by;
use crate::cell_run::{CellRun, Returned};
use crate::common::{now, settle};
use crate::holding::RivalKind;
use crate::sends::Sends::{Command, Script};
use crate::servers::Kind;

const LOCK: &str = "Locks";
const OTHERS: &str = "Fenced, simple and spin locks";
const LOOK: &str = "Looking at locks";

/// For how long a lock stays with its client.
const CACHED_FOR: Duration = Duration::from_millis(100);

pub(super) const ROWS: &[Row] = &[
    Row::new((LOCK, "acquire", "Lock::try_lock"), Script("acquire"), take).rival(RivalKind::Lock),
    Row::new((LOCK, "wait for a replica", "Lock::try_lock"), Command("WAIT"), take)
        .rival(RivalKind::Lock)
        .with(Kind::WithReplica),
    Row::new((LOCK, "nest", "Lock::try_lock"), Script("set_count"), take)
        .prepare(hold)
        .rival(RivalKind::Lock),
    Row::new((LOCK, "leave a nested", "LockGuard::unlock"), Script("set_count"), release)
        .prepare(|run| hold(run).and_then(|_| hold(run)))
        .rival(RivalKind::Lock),
    Row::new((LOCK, "release", "LockGuard::unlock"), Script("release"), release)
        .prepare(hold)
        .rival(RivalKind::Lock),
    Row::new((LOCK, "drop", "dropping the guard"), Script("release"), drop_guard)
        .prepare(hold_knowing)
        .rival(RivalKind::Lock),
    Row::new((LOCK, "renew", "the watchdog"), Script("renew"), |run| Ok(run.watch()))
        .prepare(hold)
        .rival(RivalKind::Lock)
        .in_the_background(),
    Row::new((LOCK, "force", "Lock::force_unlock"), Script("force_release"), |run| {
        run.client.lock(&run.name).force_unlock().map(done_if)
    })
    .prepare(stand_in)
    .finish(delete)
    .rival(RivalKind::Lock)
    .number(&[""], &[]),
    Row::new((LOCK, "is it locked", "Lock::is_locked"), Command("EXISTS"), |run| {
        run.client.lock(&run.name).is_locked().map(answered)
    })
    .prepare(hold)
    .rival(RivalKind::Lock),
    Row::new((LOCK, "for how long", "Lock::remaining_lease"), Command("PTTL"), |run| {
        run.client.lock(&run.name).remaining_lease().map(answered)
    })
    .prepare(hold)
    .rival(RivalKind::Lock),
    Row::new((OTHERS, "fenced: acquire", "Lock::try_lock"), Script("fenced_acquire"), take_fenced)
        .rival(RivalKind::Lock)
        .lasting(token),
    Row::new((OTHERS, "fenced: draw a token", "Lock::try_lock"), Script("draw_token"), take_fenced)
        .prepare(hold)
        .rival(RivalKind::Lock)
        .before(Script("set_count"))
        .lasting(token),
    Row::new((OTHERS, "fenced: last token", "Lock::last_token"), Command("GET"), |run| {
        run.client.fenced_lock(&run.name).last_token().map(answered)
    })
    .foreign(|name| format!("redisson_lock_token:{{{name}}}")),
    Row::new((OTHERS, "simple: acquire", "Lock::try_lock"), Script("simple_acquire"), |run| {
        run.client.simple_lock(&run.name).try_lock().map(|guard| run.retain_if(guard))
    })
    .rival(RivalKind::SimpleLock),
    Row::new((OTHERS, "simple: release", "LockGuard::unlock"), Script("simple_release"), release)
        .prepare(hold_simple)
        .rival(RivalKind::SimpleLock),
    Row::new((OTHERS, "simple: renew", "the watchdog"), Script("simple_renew"), |run| {
        Ok(run.watch())
    })
    .prepare(hold_simple)
    .rival(RivalKind::SimpleLock)
    .in_the_background(),
    Row::new(
        (OTHERS, "simple: force", "Lock::force_unlock"),
        Script("simple_force_release"),
        |run| run.client.simple_lock(&run.name).force_unlock().map(done_if),
    )
    .prepare(|run| {
        run.place.command(&[
            "SET",
            &run.name,
            "7f9a3b7e-0f0e-8c3f-9a51-2f4a5d8f0c11:1",
            "PX",
            "60000",
        ]);
        Ok(Returned::Done)
    })
    .finish(delete)
    .rival(RivalKind::SimpleLock)
    .number(&[""], &[]),
    Row::new((OTHERS, "spin: acquire", "Lock::try_lock"), Script("acquire"), |run| {
        run.client.spin_lock(&run.name).try_lock().map(|guard| run.retain_if(guard))
    })
    .rival(RivalKind::Lock),
    Row::new((OTHERS, "spin: release", "LockGuard::unlock"), Script("release"), release)
        .prepare(|run| run.client.spin_lock(&run.name).lock().map(|guard| run.retain(guard)))
        .rival(RivalKind::Lock),
    Row::new((LOOK, "who holds it", "Lock::holder"), Script("inspect"), |run| {
        run.client.lock(&run.name).holder().map(answered)
    })
    .prepare(hold)
    .rival(RivalKind::Lock),
    Row::new((LOOK, "what it is called", "Lock::holder"), Script("client_record_of"), |run| {
        run.client.lock(&run.name).holder().map(answered)
    })
    .prepare(other_client)
    .finish(delete)
    .before(Script("inspect"))
    .number(&[""], &[]),
    Row::new((LOOK, "write the record", "the watchdog"), Script("client_record"), |run| {
        Ok(run.watch())
    })
    .prepare(hold)
    .foreign(|name| format!("{name}:beside"))
    .rival(RivalKind::Lock)
    .in_the_background(),
    Row::new((LOOK, "ask a holder to let go", "Lock::try_lock"), Script("revoke"), |run| {
        let lock = run.client.lock(&run.name).with_cache(CACHED_FOR);
        lock.try_lock().map(|guard| run.retain_if(guard))
    })
    .prepare(other_client)
    .finish(delete)
    .before(Script("acquire")),
    Row::new((LOOK, "list", "Client::locks"), Script("scan"), |run| {
        let listed: Result<Vec<_>, Error> = run.client.locks(&run.name).collect();
        listed.map(answered)
    })
    .prepare(hold)
    .rival(RivalKind::Lock),
];

/// Another client of this crate holds the lock.
#[expect(clippy::unnecessary_wraps, reason = "a preparation may fail")]
fn other_client(run: &CellRun<'_>) -> Result<Returned, Error> {
    run.place.command(&["HSET", &run.name, "7f9a3b7e-0f0e-8c3f-9a51-2f4a5d8f0c11:1", "1"]);
    run.place.command(&["PEXPIRE", &run.name, "60000"]);
    Ok(Returned::Done)
}

pub(super) fn take(run: &CellRun<'_>) -> Result<Returned, Error> {
    run.client.lock(&run.name).try_lock().map(|guard| run.retain_if(guard))
}

fn take_fenced(run: &CellRun<'_>) -> Result<Returned, Error> {
    run.client.fenced_lock(&run.name).try_lock().map(|guard| run.retain_if(guard))
}

pub(super) fn hold(run: &CellRun<'_>) -> Result<Returned, Error> {
    run.client.lock(&run.name).lock().map(|guard| run.retain(guard))
}

/// Acquires the lock and keeps its guard, by a client that knows that the server has the scripts,
/// and sends their hashes.
pub(super) fn hold_knowing(run: &CellRun<'_>) -> Result<Returned, Error> {
    let lock = run.client.lock(&run.other("known"));
    let outer = lock.lock()?;
    drop(lock.lock()?);
    drop(outer);
    settle(run.client);
    hold(run)
}

/// Drops the guard that was taken last. Nobody has read the reply then. What it says, and what
/// follows from it, is looked at for as long as a call may take.
#[expect(clippy::unnecessary_wraps, reason = "a call may fail")]
pub(super) fn drop_guard(run: &CellRun<'_>) -> Result<Returned, Error> {
    drop(run.part());
    let is_settled = comes_true_by(now() + run.row.timeout() * 2, || {
        let stats = run.client.stats();
        stats.unread_releases == 0 && stats.queued_releases == 0
    });
    Ok(if is_settled { Returned::Done } else { Returned::Queued })
}

fn hold_simple(run: &CellRun<'_>) -> Result<Returned, Error> {
    run.client.simple_lock(&run.name).lock().map(|guard| run.retain(guard))
}

fn token(name: &str) -> Vec<String> {
    vec![format!("redisson_lock_token:{{{name}}}")]
}
