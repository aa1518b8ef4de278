//! Owing releases: which server is owed what, and who waits until nothing is.

use std::time::{Duration, Instant};

use hashed_wheel::Parker;

use super::releases::{Debt, GivesBack};
use super::renewer::Renewer;
use super::{Shared, Watchdog};
use crate::claim::Claim;
use crate::lease::Lease;
use crate::value::ServerTime;

impl Watchdog {
    /// Owes the server a release, which the renewal thread finishes. False if so many are owed that the lease has to
    /// end by itself.
    pub(crate) fn owe_release(
        &self,
        claim: &Claim,
        lease: Lease,
        doubt: Option<ServerTime>,
    ) -> bool {
        self.shared.owe(self.shared.clock.now(), claim, lease, doubt)
    }

    /// Owes the server what gives something back, as the debt of one request; nothing needs it any more after `lasts`.
    /// The renewal thread finishes it. False if too many are owed.
    pub(crate) fn give_back_in_background(
        &self,
        debt: Debt,
        gives_back: GivesBack,
        lasts: Duration,
    ) -> bool {
        self.shared.owe_that(self.shared.clock.now(), debt, gives_back, lasts, None)
    }

    /// Notes that a caller releases this itself, or will if it is not granted, until [`released`](Self::released).
    pub(crate) fn releasing(&self, debt: impl Into<Debt>) {
        self.shared.by_callers.lock().push(debt.into());
    }

    /// It has an answer, or it is owed.
    pub(crate) fn released(&self, debt: impl Into<Debt>) {
        let debt = debt.into();
        self.shared.by_callers.lock().retain(|other| *other != debt);
        self.shared.wake_flushers();
    }

    /// Waits for the releases that are under way or owed, until `deadline`. Answers those that no server has
    /// acknowledged.
    pub(crate) fn finish_releases(&self, deadline: Instant) -> Vec<Debt> {
        let parker = Parker::new();
        self.shared.flushers.lock().push(parker.clone());
        // Wakes come at the end of a round of a renewal thread's, and of a caller's release. The first round may have
        // begun before this call; the second has not.
        let mut wakes = 0;
        let unacknowledged = loop {
            let open = self.shared.open_releases();
            // What callers send ends by itself, on any store.
            let patient =
                self.shared.store.may_recover_by_itself() || wakes < 2 || open.are_by_callers;
            let over = open.all.is_empty() || !open.may_end;
            if over || !patient || self.shared.clock.now() >= deadline {
                break open.all;
            }
            if wakes < 2 {
                self.shared.lanes.lock().wake();
            }
            self.shared.clock.park(&parker, Some(deadline), &crossbeam_channel::never());
            wakes += 1;
        };
        self.shared.flushers.lock().retain(|other| !other.is(&parker));
        unacknowledged
    }

    pub(crate) fn owed_releases(&self) -> usize {
        self.shared.lanes.lock().renewers().map(|renewer| renewer.releases().len()).sum()
    }

    pub(crate) fn abandoned_releases(&self) -> u64 {
        let lanes = self.shared.lanes.lock();
        let of_each = lanes.renewers().map(|renewer| renewer.releases().abandoned);
        lanes.abandoned + of_each.sum::<u64>()
    }
}

/// The releases that no server has acknowledged.
struct Open {
    all: Vec<Debt>,
    /// Whether callers send some of them.
    are_by_callers: bool,
    /// Whether anybody is there to send any of them.
    may_end: bool,
}

impl Shared {
    pub(super) fn owe(
        &self,
        now: Instant,
        claim: &Claim,
        lease: Lease,
        doubt: Option<ServerTime>,
    ) -> bool {
        // A copy of a command may be under way for as long as its attempt may take.
        let lease_and_copies = lease.duration() + self.settings.patience();
        let (debt, release) = (Debt::from(claim), claim.release());
        self.owe_that(now, debt, release, lease_and_copies, doubt)
    }

    fn owe_that(
        &self,
        now: Instant,
        debt: Debt,
        release: GivesBack,
        lasts: Duration,
        doubt: Option<ServerTime>,
    ) -> bool {
        let lane = self.store.lane_of(debt.name.as_str());
        let owe = |renewer: &Renewer| renewer.owe(now, debt, release, lasts, doubt);
        self.with_renewer(lane, owe).unwrap_or_else(|| {
            // Nobody is there to finish it.
            self.lanes.lock().abandoned += 1;
            false
        })
    }

    /// What is owed to one server, and due, and has moved to another since, is owed to that one.
    pub(super) fn move_owed(&self, renewer: &Renewer, now: Instant) {
        if self.store.only_lane().is_some() {
            return;
        }
        let lane_of = |debt: &Debt| self.store.lane_of(debt.name.as_str());
        let moved = |debt: &Debt| lane_of(debt) != renewer.lane;
        let lanes: Vec<_> =
            renewer.releases().due(now).filter(|debt| moved(debt)).map(lane_of).collect();
        for lane in &lanes {
            // So that there is one. If not, it stays where it is.
            self.with_renewer(*lane, |_| ());
        }
        if lanes.is_empty() {
            return;
        }
        // With the lanes locked, so that whoever counts what is owed finds each in one of the books.
        let lanes = self.lanes.lock();
        let moved = renewer.with_releases(|book| book.take_due(now, moved));
        for owed in moved {
            match lanes.find(lane_of(owed.debt())) {
                Some(other) if !other.is_gone() => {
                    other.with_releases(|book| book.take_over(owed));
                    other.parker.unpark();
                }
                _ => renewer.with_releases(|book| book.owe_again(now, owed)),
            }
        }
    }

    fn open_releases(&self) -> Open {
        // Before the books: a caller's release that gets no answer is owed before it leaves the list.
        let mut all = self.by_callers.lock().clone();
        let are_by_callers = !all.is_empty();
        let mut may_end = are_by_callers;
        for renewer in self.lanes.lock().renewers() {
            let open = renewer.releases().unacknowledged();
            may_end |= !open.is_empty() && !renewer.is_gone();
            all.extend(open);
        }
        Open { all, are_by_callers, may_end }
    }

    pub(super) fn wake_flushers(&self) {
        self.flushers.lock().iter().for_each(Parker::unpark);
    }
}
