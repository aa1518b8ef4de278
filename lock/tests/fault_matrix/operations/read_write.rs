//! Read-write locks.

use wheellock::Error;

use super::{Row, answered, delete, done_if, release};
use crate::cell_run::{CellRun, Returned};
use crate::holding::RivalKind;
use crate::sends::Sends::Script;

const FAMILY: &str = "Read-write locks";

pub(super) const ROWS: &[Row] = &[
    Row::new((FAMILY, "read", "Lock::try_lock"), Script("read_acquire"), take_read)
        .rival(RivalKind::WriteLock),
    Row::new((FAMILY, "nest a read", "Lock::try_lock"), Script("read_set_count"), take_read)
        .prepare(hold_read)
        .rival(RivalKind::WriteLock),
    Row::new((FAMILY, "leave a read", "LockGuard::unlock"), Script("read_release"), release)
        .prepare(hold_read)
        .rival(RivalKind::WriteLock),
    Row::new((FAMILY, "renew a read", "the watchdog"), Script("renew_readers"), |run| {
        Ok(run.watch())
    })
    .prepare(hold_read)
    .rival(RivalKind::WriteLock)
    .in_the_background(),
    Row::new((FAMILY, "write", "Lock::try_lock"), Script("write_acquire"), take_write)
        .rival(RivalKind::WriteLock),
    Row::new((FAMILY, "nest a write", "Lock::try_lock"), Script("set_count"), take_write)
        .prepare(hold_write)
        .rival(RivalKind::WriteLock),
    Row::new((FAMILY, "read while writing", "Lock::try_lock"), Script("read_acquire"), take_read)
        .prepare(hold_write)
        .rival(RivalKind::WriteLock),
    Row::new((FAMILY, "write to read", "LockGuard::unlock"), Script("write_release"), |run| {
        run.release_below()
    })
    .prepare(|run| hold_write(run).and_then(|_| hold_read(run)))
    .rival(RivalKind::WriteLock),
    Row::new((FAMILY, "leave a write", "LockGuard::unlock"), Script("write_release"), release)
        .prepare(hold_write)
        .rival(RivalKind::WriteLock),
    Row::new((FAMILY, "renew a write", "the watchdog"), Script("renew"), |run| Ok(run.watch()))
        .prepare(hold_write)
        .rival(RivalKind::WriteLock)
        .in_the_background(),
    Row::new((FAMILY, "force", "Lock::force_unlock"), Script("read_write_force_release"), |run| {
        run.client.read_write_lock(&run.name).write_lock().force_unlock().map(done_if)
    })
    .prepare(|run| {
        let writer = "00000000-0000-4000-8000-000000000000:1:write";
        run.place.command(&["HSET", &run.name, "mode", "write", writer, "1"]);
        run.place.command(&["PEXPIRE", &run.name, "60000"]);
        Ok(Returned::Done)
    })
    .finish(delete)
    .rival(RivalKind::WriteLock)
    .number(&[""], &[]),
    Row::new((FAMILY, "is it locked", "Lock::is_locked"), Script("read_write_is_locked"), |run| {
        run.client.read_write_lock(&run.name).read_lock().is_locked().map(answered)
    })
    .prepare(hold_read)
    .rival(RivalKind::WriteLock),
];

fn take_read(run: &CellRun<'_>) -> Result<Returned, Error> {
    let lock = run.client.read_write_lock(&run.name).read_lock();
    lock.try_lock().map(|guard| run.retain_if(guard))
}

fn take_write(run: &CellRun<'_>) -> Result<Returned, Error> {
    let lock = run.client.read_write_lock(&run.name).write_lock();
    lock.try_lock().map(|guard| run.retain_if(guard))
}

fn hold_read(run: &CellRun<'_>) -> Result<Returned, Error> {
    let lock = run.client.read_write_lock(&run.name).read_lock();
    lock.lock().map(|guard| run.retain(guard))
}

fn hold_write(run: &CellRun<'_>) -> Result<Returned, Error> {
    let lock = run.client.read_write_lock(&run.name).write_lock();
    lock.lock().map(|guard| run.retain(guard))
}
