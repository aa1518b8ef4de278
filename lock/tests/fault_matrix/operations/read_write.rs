//! Read-write locks.

use wheellock::Error;

use super::{Row, answered, delete, done_if, release};
use crate::holding::RivalKind;
use crate::sends::Sends::Script;
use crate::stage::{Said, Stage};

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
    Row::new((FAMILY, "renew a read", "the watchdog"), Script("renew_readers"), |stage| {
        Ok(stage.watch())
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
    Row::new((FAMILY, "write to read", "LockGuard::unlock"), Script("write_release"), |stage| {
        stage.release_below()
    })
    .prepare(|stage| hold_write(stage).and_then(|_| hold_read(stage)))
    .rival(RivalKind::WriteLock),
    Row::new((FAMILY, "leave a write", "LockGuard::unlock"), Script("write_release"), release)
        .prepare(hold_write)
        .rival(RivalKind::WriteLock),
    Row::new((FAMILY, "renew a write", "the watchdog"), Script("renew"), |stage| Ok(stage.watch()))
        .prepare(hold_write)
        .rival(RivalKind::WriteLock)
        .in_the_background(),
    Row::new(
        (FAMILY, "force", "Lock::force_unlock"),
        Script("read_write_force_release"),
        |stage| stage.client.read_write_lock(&stage.name).write_lock().force_unlock().map(done_if),
    )
    .prepare(|stage| {
        let writer = "00000000-0000-4000-8000-000000000000:1:write";
        stage.place.command(&["HSET", &stage.name, "mode", "write", writer, "1"]);
        stage.place.command(&["PEXPIRE", &stage.name, "60000"]);
        Ok(Said::Done)
    })
    .finish(delete)
    .rival(RivalKind::WriteLock)
    .number(&[""], &[]),
    Row::new(
        (FAMILY, "is it locked", "Lock::is_locked"),
        Script("read_write_is_locked"),
        |stage| stage.client.read_write_lock(&stage.name).read_lock().is_locked().map(answered),
    )
    .prepare(hold_read)
    .rival(RivalKind::WriteLock),
];

fn take_read(stage: &Stage<'_>) -> Result<Said, Error> {
    let lock = stage.client.read_write_lock(&stage.name).read_lock();
    lock.try_lock().map(|guard| stage.keep_if(guard))
}

fn take_write(stage: &Stage<'_>) -> Result<Said, Error> {
    let lock = stage.client.read_write_lock(&stage.name).write_lock();
    lock.try_lock().map(|guard| stage.keep_if(guard))
}

fn hold_read(stage: &Stage<'_>) -> Result<Said, Error> {
    let lock = stage.client.read_write_lock(&stage.name).read_lock();
    lock.lock().map(|guard| stage.keep(guard))
}

fn hold_write(stage: &Stage<'_>) -> Result<Said, Error> {
    let lock = stage.client.read_write_lock(&stage.name).write_lock();
    lock.lock().map(|guard| stage.keep(guard))
}
