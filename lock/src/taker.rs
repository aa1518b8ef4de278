//! One acquire of permits, over all its attempts: what is to be given back if it ends without them.
//!
//! An attempt that got no answer may have taken permits, or may still do so. All attempts of one acquire are one
//! request, or name the same ids, so the next attempt finds what an earlier one took. If there is no next one, giving
//! back is owed, and what does that sees to it that no copy takes anything afterwards.

use std::sync::Arc;
use std::time::Duration;

use crate::call::{Patience, call};
use crate::caller::remembered;
use crate::error::{Error, LostReason};
use crate::lease::Lease;
use crate::name::LockName;
use crate::op::{
    AcquirePermits, Operation, OwedPermits, ReleasePermits, Request, TakePermits, UndoTake,
};
use crate::owner::Owner;
use crate::permit::Permit;
use crate::permit_id::PermitId;
use crate::process::Process;
use crate::wait::{Attempt, Others};

/// An acquire of permits that are a number.
pub(crate) struct NumberTaker<'a> {
    process: &'a Process,
    id: Owner,
    take: TakePermits,
    in_doubt: bool,
}

impl<'a> NumberTaker<'a> {
    pub(crate) fn new(process: &'a Process, name: LockName, permits: u32) -> Self {
        let id = process.id.draw();
        let request = Request::new(&name, &id, remembered(process));
        let take = TakePermits { name, permits, request };
        Self { process, id, take, in_doubt: false }
    }

    pub(crate) fn attempt(&mut self, patience: &Patience<'_>) -> Result<Attempt<()>, Error> {
        let process = self.process;
        let answer = match call(&process.store, &*process.clock, &self.take, patience) {
            Ok(answer) => answer,
            Err(gave_up) => {
                self.in_doubt |= gave_up.doubt.is_some();
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
        Ok(Attempt::Busy(None, others))
    }
}

impl Drop for NumberTaker<'_> {
    fn drop(&mut self) {
        if self.in_doubt {
            let undo = Arc::new(UndoTake::new(self.take.clone()));
            let (name, id) = (self.take.name.clone(), self.id.clone());
            let lasts = remembered(self.process);
            // If too many are owed already, that is counted.
            self.process.watchdog.give_back_in_background(name, id, undo, lasts);
        }
    }
}

/// An acquire of permits that have ids.
pub(crate) struct PermitTaker<'a> {
    process: &'a Arc<Process>,
    name: LockName,
    ids: Vec<PermitId>,
    lease: Option<Lease>,
    acquire: AcquirePermits,
    in_doubt: bool,
}

impl<'a> PermitTaker<'a> {
    pub(crate) fn new(
        process: &'a Arc<Process>,
        name: LockName,
        permits: u32,
        lease: Option<Lease>,
    ) -> Self {
        let ids: Vec<PermitId> =
            (0..permits).map(|_| PermitId::new(process.id.draw_bytes())).collect();
        let acquire = AcquirePermits::new(name.clone(), ids.clone(), lease);
        Self { process, name, ids, lease, acquire, in_doubt: false }
    }

    pub(crate) fn attempt(
        &mut self,
        patience: &Patience<'_>,
    ) -> Result<Attempt<Vec<Permit>>, Error> {
        let process = self.process;
        let answer = match call(&process.store, &*process.clock, &self.acquire, patience) {
            Ok(answer) => answer,
            Err(gave_up) => {
                self.in_doubt |= gave_up.doubt.is_some();
                return Err(gave_up.failure.into_error(self.acquire.name(), &self.name));
            }
        };
        self.in_doubt |= answer.doubt.is_some();
        let others = if answer.reply.left > 0 { Others::MayTry } else { Others::Wait };
        if !answer.reply.granted {
            return Ok(Attempt::Busy(answer.reply.wait, others));
        }
        // From here on the permits answer for the doubt.
        let in_doubt = std::mem::take(&mut self.in_doubt);
        let permits: Vec<Permit> = self
            .ids
            .iter()
            .map(|id| {
                let (process, name) = (Arc::clone(process), self.name.clone());
                Permit::new(process, name, *id, self.lease, answer.sent_at, in_doubt)
            })
            .collect();
        if permits.iter().all(Permit::is_valid) {
            return Ok(Attempt::Granted(permits, others));
        }
        // Granted, and over before the answer was here. Dropping them cleans up.
        Err(Error::Lost { name: self.name.shown(), reason: LostReason::Expired })
    }
}

impl Drop for PermitTaker<'_> {
    fn drop(&mut self) {
        if self.in_doubt {
            let (name, request) = (self.name.clone(), self.process.id.draw());
            let remembered = remembered(self.process);
            let ids = std::mem::take(&mut self.ids);
            let release = ReleasePermits::new(name.clone(), ids, request.clone(), remembered);
            let owed = Arc::new(OwedPermits(release));
            let lasts = self.lease.map_or(LONG, |lease| lease.duration() + remembered);
            // If too many are owed already, that is counted.
            self.process.watchdog.give_back_in_background(name, request, owed, lasts);
        }
    }
}

/// How long to try to give permits back that do not end by themselves.
const LONG: Duration = Duration::from_secs(24 * 3600);
