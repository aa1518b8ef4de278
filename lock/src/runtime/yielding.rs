//! When the waiters of one channel let those of other clients try first: the rules, with time as an
//! argument (DESIGN: hand-over).
//!
//! A lock that is handed from thread to thread of one client is released on the server when the
//! budget is used up. Its next waiter would still come first: it asks as soon as the release is
//! answered, while others have yet to receive the message. So it *yields*: it waits for a while
//! before it asks. How long depends on whether another client has used that.

use std::time::{Duration, Instant};

/// The shortest time to yield, and the first. Another client on the same network reacts within it.
const SHORTEST: Duration = Duration::from_micros(300);
/// The longest time to yield. A client that takes longer to react is served by chance.
const LONGEST: Duration = Duration::from_millis(8);
/// How many releases skip the yield after a longest yield that no other client has used. The number
/// doubles each time, up to [`MOST_SKIPS`].
const FIRST_SKIPS: u32 = 2;
const MOST_SKIPS: u32 = 32;
/// How many others have their turn, one after the other, before this client tries again.
const MOST_TURNS: u32 = 8;

/// Whether the leader of a queue yields, and what was learnt of the others.
#[derive(Debug)]
pub(crate) struct Yielding {
    phase: Phase,
    /// How long to yield the next time.
    pause: Duration,
    /// How many releases go without.
    skips: u32,
    /// How many will, if the longest time is of no use again.
    next_skips: u32,
    /// How many other subscribers the last release has reached.
    other_subscribers: u32,
    /// Whether the message of this client's own release is still to come.
    own_message_due: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The leader tries whenever there is something to try for.
    No,
    /// A release is under way. If it is not answered, the leader tries at `until`.
    Releasing { until: Instant, subscribed: bool },
    /// It is answered. The leader tries at `until`, or when others have released it `turns` times;
    /// without an `until` it has tried, and another owner was first.
    Yielding { until: Option<Instant>, turns: u32, judged: bool },
}

impl Yielding {
    pub(crate) fn new() -> Self {
        Self {
            phase: Phase::No,
            pause: SHORTEST,
            skips: 0,
            next_skips: FIRST_SKIPS,
            other_subscribers: 0,
            own_message_due: false,
        }
    }

    /// Until when the leader does not try, whatever comes.
    pub(crate) fn until(&self, now: Instant) -> Option<Instant> {
        let until = match self.phase {
            Phase::No => None,
            Phase::Releasing { until, .. } => Some(until),
            Phase::Yielding { until, .. } => until,
        };
        until.filter(|until| now < *until)
    }

    /// This client releases the lock on the server. If it is `subscribed`, it will receive its own
    /// message, which tells it nothing.
    pub(crate) fn release_begins(&mut self, now: Instant, longest: Duration, subscribed: bool) {
        self.own_message_due = subscribed;
        self.phase = Phase::Releasing { until: now + longest, subscribed };
    }

    /// The release was answered, and its message has reached this number of `receivers`, if that is
    /// known. Returns whether the leader yields.
    pub(crate) fn release_ends(&mut self, now: Instant, receivers: Option<u32>) -> bool {
        if receivers.is_none_or(|receivers| receivers == 0) {
            // No message was published, or it is unknown when. Better one try too many than to miss
            // another's message.
            self.own_message_due = false;
        }
        let Phase::Releasing { subscribed, .. } = self.phase else { return false };
        let other_subscribers = receivers
            .map_or(self.other_subscribers, |count| count.saturating_sub(subscribed.into()));
        if other_subscribers > self.other_subscribers {
            // To a new subscriber. It was not there when yielding was of no use.
            self.skips = 0;
            self.next_skips = FIRST_SKIPS;
        }
        self.other_subscribers = other_subscribers;
        if let Some(left) = self.skips.checked_sub(1) {
            self.skips = left;
            self.phase = Phase::No;
            return false;
        }
        // Also if nobody received the message: waiters that poll, that are in a fair queue, or that
        // subscribe to another node are not among the receivers.
        let turns = other_subscribers.clamp(1, MOST_TURNS);
        self.phase = Phase::Yielding { until: Some(now + self.pause), turns, judged: false };
        true
    }

    /// A message came. Returns whether it may be another owner's release: then it is a reason to
    /// try, perhaps later. Each of the others has the lock for at most `budget`.
    pub(crate) fn message(&mut self, now: Instant, budget: Duration) -> bool {
        if std::mem::take(&mut self.own_message_due) {
            return false;
        }
        if let Phase::Yielding { turns, .. } = self.phase {
            self.judge(true);
            self.phase = match turns.saturating_sub(1) {
                0 => Phase::No,
                turns => {
                    let until = Some(now + budget + self.pause);
                    Phase::Yielding { until, turns, judged: true }
                }
            };
        }
        true
    }

    /// The subscription is confirmed anew. What was sent before does not come any more.
    pub(crate) fn confirmed(&mut self) {
        self.own_message_due = false;
    }

    /// A try was refused: another owner was first.
    pub(crate) fn refused(&mut self) {
        self.judge(true);
        if let Phase::Yielding { turns, .. } = self.phase {
            self.phase = Phase::Yielding { until: None, turns, judged: true };
        }
    }

    /// A try was granted.
    pub(crate) fn granted(&mut self) {
        self.judge(false);
        self.phase = Phase::No;
    }

    /// The leader tries as soon as it can: a waiter needs an answer, or the hold was lost.
    pub(crate) fn stop(&mut self) {
        self.phase = Phase::No;
    }

    /// Whether another client has used the yield, once for each.
    fn judge(&mut self, was_used: bool) {
        let Phase::Yielding { judged: false, until, turns } = self.phase else { return };
        self.phase = Phase::Yielding { until, turns, judged: true };
        if was_used {
            self.pause = (self.pause * 15 / 16).max(SHORTEST);
            self.next_skips = FIRST_SKIPS;
        } else if self.pause < LONGEST {
            self.pause = (self.pause * 2).min(LONGEST);
        } else {
            self.skips = self.next_skips;
            self.next_skips = (self.next_skips * 2).min(MOST_SKIPS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::clock::origin;

    const BUDGET: Duration = Duration::from_millis(5);
    const BOUND: Duration = Duration::from_secs(1);

    /// A release whose message has reached this number of other subscribers.
    fn release(yielding: &mut Yielding, now: Instant, other_subscribers: u32) -> bool {
        yielding.release_begins(now, BOUND, true);
        assert!(!yielding.message(now, BUDGET), "its own message");
        yielding.release_ends(now, Some(other_subscribers + 1))
    }

    #[test]
    fn the_leader_waits_for_the_answer_of_a_release_no_longer_than_the_bound() {
        let (mut yielding, now) = (Yielding::new(), origin());
        yielding.release_begins(now, BOUND, false);
        assert_eq!(yielding.until(now), Some(now + BOUND));
        assert_eq!(yielding.until(now + BOUND), None);
    }

    #[test]
    fn a_yield_of_no_use_gets_longer_and_then_rarer_but_never_ends() {
        let (mut yielding, now) = (Yielding::new(), origin());
        let mut pauses = Vec::new();
        let mut yields = Vec::new();
        for number in 0..200 {
            if release(&mut yielding, now, 0) {
                pauses.push(yielding.until(now).unwrap() - now);
                yields.push(number);
            }
            yielding.granted();
        }
        assert_eq!(pauses.first(), Some(&SHORTEST));
        assert_eq!(pauses.last(), Some(&LONGEST));
        assert!(pauses.is_sorted());
        let gaps: Vec<_> = yields.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(gaps.iter().max(), Some(&33));
        assert!(gaps.is_sorted());
    }

    #[test]
    fn a_new_subscriber_ends_the_skips() {
        let (mut yielding, now) = (Yielding::new(), origin());
        while release(&mut yielding, now, 0) {
            yielding.granted();
        }
        assert!(release(&mut yielding, now, 1));
    }

    #[test]
    fn a_subscriber_that_stays_does_not_end_the_skips_again() {
        let (mut yielding, now) = (Yielding::new(), origin());
        let skips = (0..200).any(|_| {
            let yields = release(&mut yielding, now, 1);
            yielding.granted();
            !yields
        });
        assert!(skips, "it yields after each of 200 releases");
    }

    #[test]
    fn each_of_several_others_has_its_turn() {
        let (mut yielding, now) = (Yielding::new(), origin());
        assert!(release(&mut yielding, now, 3));
        for _ in 0..2 {
            assert!(yielding.message(now, BUDGET));
            assert_eq!(yielding.until(now), Some(now + BUDGET + SHORTEST));
        }
        assert!(yielding.message(now, BUDGET));
        assert_eq!(yielding.until(now), None);
    }

    #[test]
    fn a_refused_try_was_of_use_and_the_turns_of_the_others_go_on() {
        let (mut yielding, now) = (Yielding::new(), origin());
        assert!(release(&mut yielding, now, 2));
        yielding.refused();
        assert_eq!(yielding.until(now), None, "a poll may come");
        assert!(yielding.message(now, BUDGET));
        assert!(yielding.until(now).is_some(), "the second of the others");
        yielding.granted();
        assert_eq!(yielding.pause, SHORTEST);
    }

    #[test]
    fn a_yield_of_use_gets_shorter() {
        let (mut yielding, now) = (Yielding::new(), origin());
        for _ in 0..10 {
            release(&mut yielding, now, 1);
            yielding.granted();
        }
        assert_eq!(yielding.pause, LONGEST);
        while !release(&mut yielding, now, 1) {
            yielding.granted();
        }
        yielding.message(now, BUDGET);
        assert_eq!(yielding.pause, LONGEST * 15 / 16);
    }

    #[test]
    fn a_message_that_is_not_its_own_is_never_taken_for_it_after_a_new_subscription() {
        let (mut yielding, now) = (Yielding::new(), origin());
        yielding.release_begins(now, BOUND, true);
        yielding.confirmed();
        assert!(yielding.message(now, BUDGET));
    }

    #[test]
    fn one_message_is_its_own_at_most() {
        let (mut yielding, now) = (Yielding::new(), origin());
        for reached in [None, Some(0), Some(1)] {
            yielding.release_begins(now, BOUND, true);
            yielding.release_ends(now, reached);
            let own = u32::from(!yielding.message(now, BUDGET));
            assert_eq!(own, u32::from(reached == Some(1)));
            assert!(yielding.message(now, BUDGET));
        }
    }
}
