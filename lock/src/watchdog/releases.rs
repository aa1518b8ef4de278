//! Releases that the server has not acknowledged: the rules, with time as an argument.
//!
//! A release is owed when its call got no answer, when a hold was lost while the server may still keep it, and when a
//! copy of an acquire may still be on its way. It is owed until the server has acknowledged it at a moment past that
//! copy's not-after, or until whatever it would release must have ended by itself. Each server has a book of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::claim::Claim;
use crate::kind::Kind;
use crate::name::LockName;
use crate::op::{Operation, Released};
use crate::owner::Owner;
use crate::value::ServerTime;

/// Whatever gives something back, and may be sent any number of times.
pub(crate) type GivesBack = Arc<dyn Operation<Reply = Released> + Send + Sync>;

/// What a release is owed for: a hold, or the request of a semaphore's.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Debt {
    /// None of a semaphore's.
    pub(crate) kind: Option<Kind>,
    pub(crate) name: LockName,
    pub(crate) owner: Owner,
}

impl From<&Claim> for Debt {
    fn from(claim: &Claim) -> Self {
        let Claim { kind, name, owner } = claim;
        Self { kind: Some(*kind), name: name.clone(), owner: owner.clone() }
    }
}

/// One release that is owed.
#[derive(Debug)]
pub(super) struct Owed {
    debt: Debt,
    release: GivesBack,
    /// Until when a copy of the acquire may arrive.
    doubt: Option<ServerTime>,
    due: Instant,
    pause: Duration,
    /// When nothing can be left to release.
    ends: Instant,
    acknowledged: bool,
}

impl Owed {
    pub(super) fn debt(&self) -> &Debt {
        &self.debt
    }
}

/// The releases that one server is owed.
#[derive(Debug, Default)]
pub(super) struct Releases {
    owed: Vec<Owed>,
    /// Those of the renewal thread's round. They stay here, so that no end of the round can lose them.
    in_round: Vec<Owed>,
    /// Given up: the book was full, the lease has ended by itself, or the client has.
    pub(super) abandoned: u64,
}

/// More than this many means that the server has been away for long. Then leases end by themselves.
const MOST: usize = 65_536;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// How long after the end of its lease a key is surely gone.
const GRACE: Duration = Duration::from_secs(10);

impl Releases {
    /// Owes `release`, of `owner`. It is not needed any more after `lasts`. False if too many are owed.
    pub(super) fn owe(
        &mut self,
        now: Instant,
        debt: Debt,
        release: GivesBack,
        lasts: Duration,
        doubt: Option<ServerTime>,
    ) -> bool {
        if self.owed.len() >= MOST {
            self.abandoned += 1;
            return false;
        }
        self.owed.push(Owed {
            debt,
            release,
            doubt,
            due: now,
            pause: FIRST_PAUSE,
            ends: now + lasts + GRACE,
            acknowledged: false,
        });
        true
    }

    /// Takes up to `most` that are due into the round. They stay owed until they are acknowledged.
    pub(super) fn begin_round(&mut self, now: Instant, most: usize) -> Vec<(Debt, GivesBack)> {
        let mut place = 0;
        while self.in_round.len() < most {
            match self.owed.get(place) {
                None => break,
                Some(owed) if owed.due <= now => {
                    self.in_round.push(self.owed.swap_remove(place));
                }
                Some(_) => place += 1,
            }
        }
        self.in_round.iter().map(|owed| (owed.debt.clone(), Arc::clone(&owed.release))).collect()
    }

    /// Whatever of the round got no answer is owed again.
    pub(super) fn end_round(&mut self, now: Instant) {
        while let Some(owed) = self.in_round.pop() {
            self.owe_again(now, owed);
        }
    }

    /// The server released that when its clock was at `at`. It may have to be done again.
    pub(super) fn acknowledged(&mut self, now: Instant, debt: &Debt, at: ServerTime) {
        let Some(mut owed) = self.take_from_round(debt) else { return };
        if let Some(doubt) = owed.doubt.filter(|doubt| *doubt >= at) {
            let wait = u64::try_from(doubt.0.saturating_sub(at.0)).unwrap_or_default() + 1;
            owed.acknowledged = true;
            owed.due = now + Duration::from_millis(wait);
            self.owed.push(owed);
        }
    }

    /// No answer came, or an error.
    pub(super) fn unanswered(&mut self, now: Instant, debt: &Debt) {
        if let Some(owed) = self.take_from_round(debt) {
            self.owe_again(now, owed);
        }
    }

    fn take_from_round(&mut self, debt: &Debt) -> Option<Owed> {
        let place = self.in_round.iter().position(|owed| owed.debt == *debt)?;
        Some(self.in_round.swap_remove(place))
    }

    /// Those that are due and not in the round.
    pub(super) fn due(&self, now: Instant) -> impl Iterator<Item = &Debt> {
        self.owed.iter().filter(move |owed| owed.due <= now).map(|owed| &owed.debt)
    }

    /// Takes out those of them that are `moved`, for the book of another server.
    pub(super) fn take_due(&mut self, now: Instant, moved: impl Fn(&Debt) -> bool) -> Vec<Owed> {
        self.owed.extract_if(.., |owed| owed.due <= now && moved(&owed.debt)).collect()
    }

    /// Takes over what another server was owed.
    pub(super) fn take_over(&mut self, owed: Owed) {
        if self.owed.len() >= MOST {
            self.abandoned += 1;
        } else {
            self.owed.push(owed);
        }
    }

    /// It is still owed, after a pause.
    pub(super) fn owe_again(&mut self, now: Instant, mut owed: Owed) {
        if now >= owed.ends {
            self.abandoned += 1;
            return;
        }
        owed.due = now + owed.pause;
        owed.pause = (owed.pause * 2).min(LONGEST_PAUSE);
        self.owed.push(owed);
    }

    /// The client ends: those that have never been acknowledged never will be.
    pub(super) fn abandon(&mut self) {
        let left = self.owed.drain(..).filter(|owed| !owed.acknowledged).count();
        self.abandoned += u64::try_from(left).unwrap_or(u64::MAX);
    }

    /// When to look again.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.owed.iter().map(|owed| owed.due).min()
    }

    /// When the last of those that have never been acknowledged is due; `None` if there are none.
    pub(super) fn last_due(&self) -> Option<Instant> {
        self.owed.iter().filter(|owed| !owed.acknowledged).map(|owed| owed.due).max()
    }

    /// How many are owed.
    pub(super) fn len(&self) -> usize {
        self.owed.len() + self.in_round.len()
    }

    /// Those that have never been acknowledged.
    pub(super) fn unacknowledged(&self) -> Vec<Debt> {
        let all = self.owed.iter().chain(&self.in_round);
        all.filter(|owed| !owed.acknowledged).map(|owed| owed.debt.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::origin;
    use crate::owner::ClientId;

    fn owing(now: Instant, doubt: Option<i64>) -> Releases {
        let mut releases = Releases::default();
        let name = LockName::parse("a").unwrap();
        let lasts = Duration::from_secs(30);
        let claim = Claim { kind: Kind::Reentrant, name, owner: ClientId::random().draw() };
        let (debt, release) = ((&claim).into(), claim.release());
        releases.owe(now, debt, release, lasts, doubt.map(ServerTime));
        releases
    }

    #[test]
    fn an_acknowledged_release_is_done() {
        let now = origin();
        let mut releases = owing(now, None);
        let (debt, _) = releases.begin_round(now, 9).remove(0);
        assert_eq!((releases.len(), releases.unacknowledged().len()), (1, 1), "it is still owed");
        releases.acknowledged(now, &debt, ServerTime(5));
        releases.end_round(now);
        assert_eq!((releases.len(), releases.unacknowledged().len()), (0, 0));
    }

    #[test]
    fn a_release_is_owed_again_after_the_acquires_not_after() {
        let now = origin();
        let mut releases = owing(now, Some(1000));
        let (debt, _) = releases.begin_round(now, 9).remove(0);
        releases.acknowledged(now, &debt, ServerTime(400));
        releases.end_round(now);
        assert!(releases.unacknowledged().is_empty());
        let again = now + Duration::from_millis(601);
        assert_eq!(releases.next_due(), Some(again));
        let (debt, _) = releases.begin_round(again, 9).remove(0);
        releases.acknowledged(again, &debt, ServerTime(1001));
        releases.end_round(again);
        assert_eq!(releases.len(), 0);
    }

    #[test]
    fn an_unanswered_release_is_tried_until_its_lease_has_surely_ended() {
        let mut now = origin();
        let end = now + Duration::from_secs(43);
        let mut releases = owing(now, None);
        let mut tries = 0;
        while now < end {
            for (debt, _) in releases.begin_round(now, 9) {
                tries += 1;
                releases.unanswered(now, &debt);
            }
            releases.end_round(now);
            now += Duration::from_millis(50);
        }
        assert_eq!((releases.len(), releases.abandoned), (0, 1));
        assert!((20..40).contains(&tries), "{tries} tries");
    }

    #[test]
    fn a_release_is_owed_once_whatever_becomes_of_its_round() {
        let now = origin();
        let mut releases = owing(now, None);
        let (debt, _) = releases.begin_round(now, 9).remove(0);
        releases.unanswered(now, &debt);
        assert_eq!((releases.len(), releases.unacknowledged().len()), (1, 1), "in the round");
        releases.end_round(now);
        assert_eq!((releases.len(), releases.unacknowledged().len()), (1, 1), "after it");

        let later = now + LONGEST_PAUSE;
        assert_eq!(releases.begin_round(later, 9).len(), 1);
        // Nobody has said what became of it.
        releases.end_round(later);
        assert_eq!((releases.len(), releases.unacknowledged().len()), (1, 1), "cut short");
        assert!(releases.next_due() > Some(later));
    }

    #[test]
    fn what_is_left_when_the_client_ends_is_abandoned_unless_it_was_acknowledged_once() {
        let now = origin();
        let mut releases = owing(now, Some(1000));
        let (debt, _) = releases.begin_round(now, 9).remove(0);
        releases.acknowledged(now, &debt, ServerTime(400));
        releases.end_round(now);
        let lasts = Duration::from_secs(30);
        let name = LockName::parse("b").unwrap();
        let claim = Claim { kind: Kind::Reentrant, name, owner: ClientId::random().draw() };
        let (debt, release) = ((&claim).into(), claim.release());
        releases.owe(now, debt, release, lasts, None);
        releases.abandon();
        assert_eq!((releases.len(), releases.abandoned), (0, 1));
    }
}
