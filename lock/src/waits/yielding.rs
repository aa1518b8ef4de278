//! When the waiters of one channel let other clients' waiters try first: the rules, with time as an
//! argument.
//!
//! A lock that is handed from thread to thread of one client is released on the server when the
//! budget is used up. The client's next waiter would still win by a try upon the answer to the
//! release, while other clients have yet to receive the message. So the waiter *yields*: the waiter
//! does not try until another client has had the lock, and for at most [`LONGEST`]. A yield follows
//! each release that has reached other clients, as long as these clients use their yields, and few
//! of the remaining releases ([`UNUSED`], [`UNRECEIVED`]). `PUBLISH` reports the number of
//! receivers.
//!
//! A yield of a learned time, by how soon other clients react, gave another process no better turn.

use std::time::{Duration, Instant};

/// The longest time to yield. A client with a longer reaction time is served by chance.
const LONGEST: Duration = Duration::from_millis(8);
/// The number of releases from an unused yield to the next: a subscribed client may have stopped.
const UNUSED: u32 = 8;
/// The number of releases between two yields while no client receives the messages. Waiters that
/// poll, or that subscribe to another node, receive none.
const UNRECEIVED: u32 = 32;
/// The largest number of releases of other clients in a row before this client tries again.
const MAX_RELEASES_AHEAD: u32 = 8;

/// Whether the delegate of a queue yields.
#[derive(Debug)]
pub(crate) struct Yielding {
    phase: Phase,
    /// The number of releases since the last yield.
    releases: u32,
    /// Whether another client has used the last yield.
    was_used: bool,
    /// Whether the message of this client's own release is yet to arrive.
    own_message_due: bool,
}

/// The phase of this client's last release on the server, by which the delegate tries or waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The delegate tries whenever there is a reason to try.
    No,
    /// A release is under way. Without an answer, the delegate tries at `until`.
    Releasing { until: Instant, subscribed: bool },
    /// The release is answered. The delegate tries at `until`, or when other clients have released
    /// the lock `releases_left` more times. Without an `until` the delegate has tried, and another
    /// owner was first.
    Yielding { until: Option<Instant>, releases_left: u32 },
}

impl Yielding {
    /// Makes the state before the first release: no waiter yields.
    pub(crate) fn new() -> Self {
        Self { phase: Phase::No, releases: 0, was_used: true, own_message_due: false }
    }

    /// Returns until when the delegate does not try in any case; `None` if the delegate may try
    /// `now`.
    pub(crate) fn until(&self, now: Instant) -> Option<Instant> {
        let until = match self.phase {
            Phase::No => None,
            Phase::Releasing { until, .. } => Some(until),
            Phase::Yielding { until, .. } => until,
        };
        until.filter(|until| now < *until)
    }

    /// Begins a release of this client on the server: the delegate waits for the answer, for
    /// `longest` at most. If the client is `subscribed`, its own message will arrive, and is to be
    /// ignored.
    pub(crate) fn release_begins(&mut self, now: Instant, longest: Duration, subscribed: bool) {
        self.own_message_due = subscribed;
        self.phase = Phase::Releasing { until: now + longest, subscribed };
    }

    /// Ends the release, whose message has reached this number of `receivers`, if known. Returns
    /// whether the delegate yields.
    pub(crate) fn release_ends(&mut self, now: Instant, receivers: Option<u32>) -> bool {
        if receivers.is_none_or(|receivers| receivers == 0) {
            // No message was published, or the time of the message is unknown. A try too many is
            // better than a missed message of another client.
            self.own_message_due = false;
        }
        let Phase::Releasing { subscribed, .. } = self.phase else { return false };
        // If the number of receivers is unknown, another client may have received the message.
        let others = receivers.map_or(1, |count| count.saturating_sub(subscribed.into()));
        let pause = match others {
            0 => UNRECEIVED,
            _ if self.was_used => 1,
            _ => UNUSED,
        };
        self.releases += 1;
        if self.releases < pause {
            self.phase = Phase::No;
            return false;
        }
        (self.releases, self.was_used) = (0, false);
        let releases_left = others.clamp(1, MAX_RELEASES_AHEAD);
        self.phase = Phase::Yielding { until: Some(now + LONGEST), releases_left };
        true
    }

    /// Counts a message. Returns `false` for the message of this client's own release, and
    /// otherwise `true`: a reason to try, perhaps later. Each other client uses the lock for at
    /// most `budget`.
    pub(crate) fn message(&mut self, now: Instant, budget: Duration) -> bool {
        if std::mem::take(&mut self.own_message_due) {
            return false;
        }
        if let Phase::Yielding { releases_left, .. } = self.phase {
            self.was_used = true;
            self.phase = match releases_left.saturating_sub(1) {
                0 => Phase::No,
                releases_left => {
                    Phase::Yielding { until: Some(now + budget + LONGEST), releases_left }
                }
            };
        }
        true
    }

    /// Expects the own message no more, as the subscription is confirmed again: messages sent
    /// before do not arrive any more.
    pub(crate) fn confirmed(&mut self) {
        self.own_message_due = false;
    }

    /// Notes a refused try: another owner was first, so the yield was used.
    pub(crate) fn refused(&mut self) {
        if let Phase::Yielding { releases_left, .. } = self.phase {
            self.was_used = true;
            self.phase = Phase::Yielding { until: None, releases_left };
        }
    }

    /// Ends a yield, so that the delegate tries as soon as possible: a try was granted, a waiter
    /// needs an answer, or the hold was lost.
    pub(crate) fn stop(&mut self) {
        self.phase = Phase::No;
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
    fn delegate_waits_for_a_release_reply_no_longer_than_the_bound() {
        let (mut yielding, now) = (Yielding::new(), origin());
        yielding.release_begins(now, BOUND, false);
        assert_eq!(yielding.until(now), Some(now + BOUND));
        assert_eq!(yielding.until(now + BOUND), None);
    }

    #[test]
    fn yields_that_nobody_uses_are_rare_and_never_end() {
        for (others, between) in [(0, 32), (1, 8)] {
            let (mut yielding, now) = (Yielding::new(), origin());
            let mut yields = (0..100).filter(|_| {
                let yields = release(&mut yielding, now, others);
                yielding.stop();
                yields
            });
            let (first, second) = (yields.next().unwrap(), yields.next().unwrap());
            assert_eq!(second - first, between);
        }
    }

    #[test]
    fn each_release_yields_after_another_client_used_the_last_yield() {
        let (mut yielding, now) = (Yielding::new(), origin());
        release(&mut yielding, now, 1);
        yielding.stop();
        while !release(&mut yielding, now, 1) {
            yielding.stop();
        }
        for use_it in [
            |yielding: &mut Yielding| yielding.refused(),
            |yielding: &mut Yielding| {
                assert!(yielding.message(origin(), BUDGET));
            },
        ] {
            use_it(&mut yielding);
            yielding.stop();
            assert!(release(&mut yielding, now, 1));
            assert_eq!(yielding.until(now), Some(now + LONGEST));
        }
    }

    #[test]
    fn if_nobody_knows_who_received_the_message_somebody_may_have() {
        let (mut yielding, now) = (Yielding::new(), origin());
        yielding.release_begins(now, BOUND, true);
        assert!(yielding.release_ends(now, None));
    }

    #[test]
    fn each_of_several_others_has_its_turn() {
        let (mut yielding, now) = (Yielding::new(), origin());
        assert!(release(&mut yielding, now, 3));
        for _ in 0..2 {
            assert!(yielding.message(now, BUDGET));
            assert_eq!(yielding.until(now), Some(now + BUDGET + LONGEST));
        }
        assert!(yielding.message(now, BUDGET));
        assert_eq!(yielding.until(now), None);
    }

    #[test]
    fn after_a_refused_try_the_others_still_go_first() {
        let (mut yielding, now) = (Yielding::new(), origin());
        assert!(release(&mut yielding, now, 2));
        yielding.refused();
        assert_eq!(yielding.until(now), None, "a poll may come");
        assert!(yielding.message(now, BUDGET));
        assert!(yielding.until(now).is_some(), "the second of the others");
    }

    #[test]
    fn own_message_is_no_longer_expected_after_a_new_subscription() {
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
