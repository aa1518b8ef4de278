//! Where a hold stands on the wheel: at its next renewal, or at the end of its validity.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::schedule::Company;
use super::{Shared, Timer};
use crate::error::LostReason;
use crate::hold::{Hold, Place};
use crate::kind::Layout;
use crate::lease::Lease;

impl Shared {
    /// Puts a hold where it belongs after a grant of a request sent at `sent_at`.
    pub(super) fn place_after_grant(&self, hold: &Arc<Hold>, sent_at: Instant, company: Company) {
        let Some(end) = hold.valid_until() else {
            self.lose(hold, LostReason::Expired);
            return;
        };
        let renewed_at = hold.rhythm(self.settings.foreign_watchdog).map(|lease| {
            // A nested lease that is shorter has not moved the end. The next renewal counts from the request on
            // which the end rests, or nesting often enough would put it off for ever.
            let lasts = lease.valid_until(sent_at).saturating_duration_since(sent_at);
            let rests_on = end.checked_sub(lasts).map_or(sent_at, |at| at.min(sent_at));
            let company = if rests_on < sent_at { Company::Few } else { company };
            self.schedule.renew_at(lease, rests_on, self.held_by_each(), company)
        });
        // A reader's end can be far beyond the next renewal, so it says nothing of when that should be.
        let before = match *hold.place() {
            Place::On(_, nanos) if hold.kind.layout() == Layout::Reader => Some(nanos),
            _ => None,
        };
        let before = before.map(|nanos| hold.at_nanos(nanos));
        let at = [renewed_at, self.told_at(hold), before].into_iter().flatten().min();
        self.place(hold, at.map_or(end, |at| at.min(end)));
    }

    /// When to look at a hold that is not watched, to tell that it has lasted for long.
    fn told_at(&self, hold: &Hold) -> Option<Instant> {
        hold.long_at(self.settings.long_hold).filter(|_| hold.watched_lease().is_none())
    }

    /// Puts a hold where it is renewed next, after a renewal that was sent at `sent_at`.
    pub(super) fn place_after_renewal(
        &self,
        hold: &Arc<Hold>,
        lease: Lease,
        sent_at: Instant,
        company: Company,
    ) {
        let rhythm = hold.rhythm_after(lease, self.settings.foreign_watchdog);
        let at = self.schedule.renew_at(rhythm, sent_at, self.held_by_each(), company);
        let at = self.told_at(hold).map_or(at, |told_at| told_at.min(at));
        self.place(hold, at.min(lease.valid_until(sent_at)));
    }

    /// Moves a hold to `at` on the wheel.
    pub(super) fn place(&self, hold: &Arc<Hold>, at: Instant) {
        let Some(timer) = self.timer() else { return };
        let mut place = hold.place();
        // While a renewal goes unanswered it has been due since the first try.
        let due = match *place {
            Place::On(_, due) if hold.unanswered.load(Ordering::Relaxed) => due,
            Place::On(..) | Place::Nowhere | Place::Off => hold.nanos_at(at),
        };
        match &*place {
            Place::Off => return,
            Place::On(key, _) if timer.reschedule(*key, at) => {
                *place = Place::On(*key, due);
                return;
            }
            Place::On(..) | Place::Nowhere => {}
        }
        // The wheel has no bound and is stopped only at the end, when validity ends by itself.
        if let Ok(key) = timer.schedule_at(at, Arc::clone(hold)) {
            *place = Place::On(key, due);
        }
    }

    pub(super) fn take_off(&self, hold: &Hold) {
        let place = std::mem::replace(&mut *hold.place(), Place::Off);
        if let (Place::On(key, _), Some(timer)) = (place, self.timer()) {
            drop(timer.cancel(key));
        }
    }

    fn timer(&self) -> Option<Arc<Timer>> {
        self.timer.get()?.upgrade()
    }
}
