//! One acquire of permits, over all its attempts: what is to be given back if it ends without them.
//!
//! An attempt that got no answer may have taken permits, or may still do so. All attempts of one acquire are one
//! request, or name the same ids, so the next attempt finds what an earlier one took. If there is no next one, giving
//! back is owed, and what does that sees to it that no copy takes anything afterwards.

use std::sync::Arc;

use crate::call::{Patience, call};
use crate::caller::remembered;
use crate::error::{Error, LostReason};
use crate::name::LockName;
use crate::op::{
    AcquirePermits, DrainPermits, Operation, OwedPermits, ReleasePermits, Request, TakePermits,
    UndoTake,
};
use crate::owner::Owner;
use crate::permit_id::PermitId;
use crate::process::Process;
use crate::taken::{LONG, Taken, Term};
use crate::value::ServerTime;
use crate::wait::{Attempt, Others};

/// An acquire of permits that are a number.
pub(crate) struct NumberTaker<'a> {
    process: &'a Process,
    id: Owner,
    take: TakePermits,
    in_doubt: bool,
    /// Whether it was granted what must not be kept.
    unkept: bool,
}

impl<'a> NumberTaker<'a> {
    pub(crate) fn new(process: &'a Process, name: LockName, permits: u32) -> Self {
        let id = process.id.draw();
        let request = Request::new(&name, &id, remembered(process));
        let take = TakePermits { name, permits, request };
        Self { process, id, take, in_doubt: false, unkept: false }
    }

    pub(crate) fn attempt(&mut self, patience: &Patience<'_>) -> Result<Attempt<()>, Error> {
        let process = self.process;
        let answer = match call(&process.store, &*process.clock, &self.take, patience) {
            Ok(answer) => answer,
            Err(gave_up) => {
                self.in_doubt |= gave_up.doubt.is_some();
                self.unkept = gave_up.failure.was_granted();
                return Err(gave_up.failure.into_error(self.take.name(), &self.take.name));
            }
        };
        self.in_doubt |= answer.doubt.is_some();
        let others = if answer.reply.left > 0 { Others::MayTry } else { Others::Wait };
        if answer.reply.granted {
            // Whatever copy comes now finds that the request has been granted.
            self.in_doubt = false;
            return Ok(Attempt::Granted((), others));
        }
        if self.in_doubt {
            // A copy that is still on its way would take permits for somebody who sleeps. What it takes is given back,
            // and the next attempt is a request of its own.
            *self = Self::new(process, self.take.name.clone(), self.take.permits);
        }
        Ok(Attempt::Busy(None, others))
    }
}

impl Drop for NumberTaker<'_> {
    fn drop(&mut self) {
        if self.in_doubt || self.unkept {
            let TakePermits { name, request, .. } = self.take.clone();
            undo(self.process, name, self.id.clone(), request, self.unkept);
        }
    }
}

/// Takes all permits that are free, and answers how many those were. If that is not known, or must not be kept, they
/// are given back: nobody else knows how many.
pub(crate) fn drain(process: &Process, name: LockName) -> Result<i64, Error> {
    let id = process.id.draw();
    let request = Request::new(&name, &id, remembered(process));
    let drain = DrainPermits { name, request };
    let gave_up = match process.call(&drain) {
        Ok(answer) => return Ok(answer.reply),
        Err(gave_up) => gave_up,
    };
    let unkept = gave_up.failure.was_granted();
    let error = gave_up.failure.into_error(drain.name(), &drain.name);
    if unkept || gave_up.doubt.is_some() {
        undo(process, drain.name, id, drain.request, unkept);
    }
    Err(error)
}

/// Gives back what the request `id` may have taken: at once if it was granted, else in the background.
fn undo(process: &Process, name: LockName, id: Owner, request: Request, now: bool) {
    let undo = Arc::new(UndoTake::new(name.clone(), request));
    process.give_back((name, id), undo, remembered(process), now);
}

/// An acquire of permits that have ids.
pub(crate) struct PermitTaker<'a> {
    process: &'a Arc<Process>,
    name: LockName,
    owners: Vec<Owner>,
    term: Term,
    acquire: AcquirePermits,
    /// Until when copies of the attempts may still arrive.
    doubt: Option<ServerTime>,
    /// Whether it was granted what must not be kept.
    unkept: bool,
}

impl<'a> PermitTaker<'a> {
    pub(crate) fn new(process: &'a Arc<Process>, name: LockName, permits: u32, term: Term) -> Self {
        let owners: Vec<Owner> = (0..permits).map(|_| process.id.draw()).collect();
        let ids = owners.iter().map(PermitId::of).collect();
        let acquire = AcquirePermits::new(name.clone(), ids, term.lease(process));
        Self { process, name, owners, term, acquire, doubt: None, unkept: false }
    }

    pub(crate) fn attempt(&mut self, patience: &Patience<'_>) -> Result<Attempt<Taken>, Error> {
        let process = self.process;
        if self.term == Term::Watched && process.watchdog.is_gone(&self.name) {
            return Err(Error::WatchdogGone);
        }
        let answer = match call(&process.store, &*process.clock, &self.acquire, patience) {
            Ok(answer) => answer,
            Err(gave_up) => {
                self.doubt = self.doubt.max(gave_up.doubt);
                self.unkept = gave_up.failure.was_granted();
                return Err(gave_up.failure.into_error(self.acquire.name(), &self.name));
            }
        };
        self.doubt = self.doubt.max(answer.doubt);
        let others = if answer.reply.left > 0 { Others::MayTry } else { Others::Wait };
        if !answer.reply.granted {
            if self.doubt.is_some() {
                // As with permits that are a number.
                let permits = u32::try_from(self.owners.len()).unwrap_or(u32::MAX);
                *self = Self::new(process, self.name.clone(), permits, self.term);
            }
            return Ok(Attempt::Busy(answer.reply.wait, others));
        }
        // From here on the permits answer for the doubt.
        let (doubt, name) = (self.doubt.take(), self.name.clone());
        let taken =
            Taken::new(Arc::clone(process), name, &self.owners, self.term, answer.sent_at, doubt);
        if self.term == Term::Watched && process.is_shut_down() {
            // The shutdown may have ended all holds before these were among them. Dropping them gives them back.
            return Err(Error::Shutdown);
        }
        if taken.is_valid() {
            return Ok(Attempt::Granted(taken, others));
        }
        // Granted, and over before the answer was here. Dropping them gives them back.
        Err(Error::Lost { name: self.name.shown(), reason: LostReason::Expired })
    }
}

impl Drop for PermitTaker<'_> {
    fn drop(&mut self) {
        if self.doubt.is_some() || self.unkept {
            let (name, request) = (self.name.clone(), self.process.id.draw());
            let remembered = remembered(self.process);
            let ids = self.owners.iter().map(PermitId::of).collect();
            let release = ReleasePermits::new(name.clone(), ids, request.clone(), remembered);
            let owed = Arc::new(OwedPermits(release));
            let lease = self.term.lease(self.process);
            let lasts = lease.map_or(LONG, |lease| lease.duration() + remembered);
            self.process.give_back((name, request), owed, lasts, self.unkept);
        }
    }
}
