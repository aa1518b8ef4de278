//! Releases that the server has not acknowledged: the rules, with time as an argument.
//!
//! A release is owed when its call got no answer, when a hold was lost while the server may still keep it, and when a
//! copy of an acquire may still be on its way. It is owed until the server has acknowledged it at a moment past that
//! copy's not-after, or until whatever it would release must have ended by itself. The book also names those that
//! callers are sending themselves, so that a shutdown knows of all.

use std::time::{Duration, Instant};

use crate::claim::Claim;
use crate::value::ServerTime;

/// One release that is owed.
#[derive(Debug)]
pub(super) struct Owed {
    pub(super) claim: Claim,
    /// Until when a copy of the acquire may arrive.
    doubt: Option<ServerTime>,
    due: Instant,
    pause: Duration,
    /// When nothing can be left to release.
    ends: Instant,
    acknowledged: bool,
}

/// The releases that are owed or under way.
#[derive(Debug, Default)]
pub(super) struct Releases {
    owed: Vec<Owed>,
    /// Those of the renewal thread's round. Whether each was acknowledged once.
    in_round: Vec<(Claim, bool)>,
    /// Those that callers send themselves.
    by_callers: Vec<Claim>,
    /// Given up: the book was full, or the lease has ended by itself.
    pub(super) abandoned: u64,
}

/// More than this many means that the server has been away for long. Then leases end by themselves.
const MOST: usize = 65_536;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// How long after the end of its lease a key is surely gone.
const GRACE: Duration = Duration::from_secs(10);

impl Releases {
    /// Owes a release of `owner`, whose key is gone by itself after `lasts`. False if too many are owed.
    pub(super) fn owe(
        &mut self,
        now: Instant,
        claim: Claim,
        lasts: Duration,
        doubt: Option<ServerTime>,
    ) -> bool {
        if self.owed.len() >= MOST {
            self.abandoned += 1;
            return false;
        }
        self.owed.push(Owed {
            claim,
            doubt,
            due: now,
            pause: FIRST_PAUSE,
            ends: now + lasts + GRACE,
            acknowledged: false,
        });
        true
    }

    /// Takes up to `most` that are due. They stay owed until [`round_over`](Self::round_over).
    pub(super) fn take_due(&mut self, now: Instant, most: usize) -> Vec<Owed> {
        let mut due = Vec::new();
        let mut place = 0;
        while due.len() < most {
            match self.owed.get(place) {
                None => break,
                Some(owed) if owed.due <= now => due.push(self.owed.swap_remove(place)),
                Some(_) => place += 1,
            }
        }
        self.in_round = due.iter().map(|owed| (owed.claim.clone(), owed.acknowledged)).collect();
        due
    }

    /// What was taken has been acknowledged, or is owed again.
    pub(super) fn round_over(&mut self) {
        self.in_round.clear();
    }

    /// The server did it when its clock was at `at`. It may have to be done again.
    pub(super) fn acknowledged(&mut self, now: Instant, mut owed: Owed, at: ServerTime) {
        if let Some(doubt) = owed.doubt.filter(|doubt| *doubt >= at) {
            let wait = u64::try_from(doubt.0.saturating_sub(at.0)).unwrap_or_default() + 1;
            owed.acknowledged = true;
            owed.due = now + Duration::from_millis(wait);
            self.owed.push(owed);
        }
    }

    /// No answer came, or an error.
    pub(super) fn unanswered(&mut self, now: Instant, mut owed: Owed) {
        if now >= owed.ends {
            self.abandoned += 1;
            return;
        }
        owed.due = now + owed.pause;
        owed.pause = (owed.pause * 2).min(LONGEST_PAUSE);
        self.owed.push(owed);
    }

    /// When to look again.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.owed.iter().map(|owed| owed.due).min()
    }

    /// When the last of those that have never been acknowledged is due; `None` if there are none.
    pub(super) fn last_due(&self) -> Option<Instant> {
        self.owed.iter().filter(|owed| !owed.acknowledged).map(|owed| owed.due).max()
    }

    /// A caller sends a release itself.
    pub(super) fn begin(&mut self, claim: Claim) {
        self.by_callers.push(claim);
    }

    /// It has an answer, or it is owed.
    pub(super) fn end(&mut self, claim: &Claim) {
        self.by_callers.retain(|other| other != claim);
    }

    /// Whether callers send any.
    pub(super) fn are_by_callers(&self) -> bool {
        !self.by_callers.is_empty()
    }

    /// How many are owed.
    pub(super) fn len(&self) -> usize {
        self.owed.len() + self.in_round.len()
    }

    /// Those that have never been acknowledged.
    pub(super) fn unacknowledged(&self) -> Vec<Claim> {
        let owed = self.owed.iter().map(|owed| (&owed.claim, owed.acknowledged));
        let in_round = self.in_round.iter().map(|(claim, done)| (claim, *done));
        let by_callers = self.by_callers.iter().map(|claim| (claim, false));
        owed.chain(in_round)
            .chain(by_callers)
            .filter(|(_, acknowledged)| !acknowledged)
            .map(|(claim, _)| claim.clone())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::origin;
    use crate::kind::Kind;
    use crate::name::LockName;
    use crate::owner::ClientId;

    fn owing(now: Instant, doubt: Option<i64>) -> Releases {
        let mut releases = Releases::default();
        let name = LockName::parse("a").unwrap();
        let lasts = Duration::from_secs(30);
        let claim = Claim { kind: Kind::Reentrant, name, owner: ClientId::random().draw() };
        releases.owe(now, claim, lasts, doubt.map(ServerTime));
        releases
    }

    #[test]
    fn an_acknowledged_release_is_done() {
        let now = origin();
        let mut releases = owing(now, None);
        let owed = releases.take_due(now, 9).remove(0);
        assert_eq!((releases.len(), releases.unacknowledged().len()), (1, 1), "it is still owed");
        releases.acknowledged(now, owed, ServerTime(5));
        releases.round_over();
        assert_eq!((releases.len(), releases.unacknowledged().len()), (0, 0));
    }

    #[test]
    fn a_release_is_owed_again_after_the_acquires_not_after() {
        let now = origin();
        let mut releases = owing(now, Some(1000));
        let owed = releases.take_due(now, 9).remove(0);
        releases.acknowledged(now, owed, ServerTime(400));
        releases.round_over();
        assert!(releases.unacknowledged().is_empty());
        let again = now + Duration::from_millis(601);
        assert_eq!(releases.next_due(), Some(again));
        let owed = releases.take_due(again, 9).remove(0);
        releases.acknowledged(again, owed, ServerTime(1001));
        releases.round_over();
        assert_eq!(releases.len(), 0);
    }

    #[test]
    fn an_unanswered_release_is_tried_until_its_lease_has_surely_ended() {
        let mut now = origin();
        let end = now + Duration::from_secs(43);
        let mut releases = owing(now, None);
        let mut tries = 0;
        while now < end {
            for owed in releases.take_due(now, 9) {
                tries += 1;
                releases.unanswered(now, owed);
            }
            releases.round_over();
            now += Duration::from_millis(50);
        }
        assert_eq!((releases.len(), releases.abandoned), (0, 1));
        assert!((20..40).contains(&tries), "{tries} tries");
    }
}
