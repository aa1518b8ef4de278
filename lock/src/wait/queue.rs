//! Who of a channel's waiters may try, and when: the rules, with time as an argument.
//!
//! Waiters stand in line in the order in which they came. Only the *acting* one asks the server: the first that is not
//! stuck in a call. So a thousand threads cost one try for each release, and one for each poll bound in case a message
//! was lost. A waiter that is refused keeps its place.
//!
//! Where more than one can be let in, as with readers and permits, an answer may leave something to the others. Then the
//! next in line tries too, each once for each wake; and who comes new does not queue behind those that were refused, but
//! tries once at the next turn.
//!
//! Messages are counted. Each try notes the count from before it was sent; while the count is higher than what the
//! last answered try noted, there is something to try for. So a message that arrives between a reply and the sleep
//! that follows is not lost, nor one whose addressee left the line: the next acting waiter sees the same numbers.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// A waiter's ticket in one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

/// The line of one channel.
#[derive(Debug)]
pub(crate) struct Queue {
    line: VecDeque<Waiting>,
    next_ticket: u64,
    /// How many wakes have come.
    wakes: u64,
    /// The wakes that the last answered try took into account.
    covered: u64,
    /// When to try although nothing has come.
    poll_at: Option<Instant>,
    poll_bound: Duration,
}

#[derive(Debug)]
struct Waiting {
    ticket: Ticket,
    /// Since when it has been waiting for an answer of the server.
    calling_since: Option<Instant>,
    /// The wakes that its own last answered try took into account; none yet for one that tries without having queued.
    tried: Option<u64>,
}

/// How a newcomer begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Newcomer {
    /// It waits for its turn.
    Queues,
    /// It tries once, whatever those before it were told.
    TriesOnce,
}

/// What an answer says of those who wait for the same thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Others {
    /// They would be refused.
    Wait,
    /// They would be refused, for that long at most: then a lease ends that nobody renews, and no message tells of it.
    WaitFor(Duration),
    /// There may be something for them.
    MayTry,
}

/// What a waiter is to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Ask the server, then report with the number given here.
    Try(Wakes),
    /// Sleep until then, or until woken.
    Sleep(Option<Instant>),
}

/// A number of wakes, as seen before a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wakes(u64);

impl Queue {
    pub(crate) fn new(poll_bound: Duration) -> Self {
        // One wake to begin with: the first in line tries at once.
        Self {
            line: VecDeque::new(),
            next_ticket: 0,
            wakes: 1,
            covered: 0,
            poll_at: None,
            poll_bound,
        }
    }

    pub(crate) fn join(&mut self, newcomer: Newcomer) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let tried = match newcomer {
            Newcomer::Queues => Some(0),
            Newcomer::TriesOnce => None,
        };
        self.line.push_back(Waiting { ticket, calling_since: None, tried });
        ticket
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.line.is_empty()
    }

    /// What the holder of `ticket` is to do at `now`. A `Try` starts its call.
    pub(crate) fn step(&mut self, ticket: Ticket, now: Instant) -> Step {
        let Some(place) = self.line.iter().position(|place| place.ticket == ticket) else {
            return Step::Sleep(None);
        };
        if self.acting(now) != Some(place) {
            return Step::Sleep(self.look_again_at(place, now));
        }
        if self.poll_at.is_none_or(|at| at <= now) {
            // As if something had come: whoever may try after this one does.
            self.wakes += 1;
            self.poll_at = Some(now + self.poll_bound);
        }
        match self.line.get_mut(place) {
            Some(waiting) if waiting.is_due(self.wakes, self.covered) => {
                waiting.calling_since = Some(now);
                Step::Try(Wakes(self.wakes))
            }
            _ => Step::Sleep(self.poll_at),
        }
    }

    /// The try of `ticket` was refused; the lock is busy for `busy`, if that is known.
    pub(crate) fn refused(
        &mut self,
        ticket: Ticket,
        seen: Wakes,
        busy: Option<Duration>,
        others: Others,
        now: Instant,
    ) {
        self.answered(ticket, seen, others);
        // A time to live of zero is a millisecond that is not over yet.
        let pause = busy.map_or(self.poll_bound, |busy| busy.max(Duration::from_millis(1)));
        self.poll_at = Some(now + pause.min(self.poll_bound));
    }

    /// The try of `ticket` was granted. It leaves, and who comes next knows that the lock is taken.
    pub(crate) fn granted(&mut self, ticket: Ticket, seen: Wakes, others: Others, now: Instant) {
        self.answered(ticket, seen, others);
        let pause = match others {
            Others::WaitFor(lease) => lease.min(self.poll_bound),
            Others::Wait | Others::MayTry => self.poll_bound,
        };
        self.poll_at = Some(now + pause);
        self.leave(ticket);
    }

    /// Leaves without a lock. What it was woken for is left to the others: a try that got no answer covers nothing.
    pub(crate) fn leave(&mut self, ticket: Ticket) {
        self.line.retain(|place| place.ticket != ticket);
    }

    /// Something may have become free.
    pub(crate) fn wake(&mut self) {
        self.wakes += 1;
    }

    /// The one that may try.
    pub(crate) fn acting_ticket(&self, now: Instant) -> Option<Ticket> {
        self.line.get(self.acting(now)?).map(|place| place.ticket)
    }

    /// Who is to be woken after a change of the line: the acting waiter, and the one that watches it.
    pub(crate) fn attentive(&self, now: Instant) -> impl Iterator<Item = Ticket> + use<'_> {
        let both = [self.acting(now), self.watching(now)];
        both.into_iter()
            .flatten()
            .filter_map(|place| self.line.get(place))
            .map(|place| place.ticket)
    }

    pub(crate) fn tickets(&self) -> impl Iterator<Item = Ticket> + use<'_> {
        self.line.iter().map(|place| place.ticket)
    }

    /// Of those that are not stuck in a call, the first that calls or has something to try for; else the first.
    fn acting(&self, now: Instant) -> Option<usize> {
        let busy = |place: &Waiting| {
            place.calling_since.is_some() || place.is_due(self.wakes, self.covered)
        };
        let mut able = self.able(now);
        let first = able.next()?;
        let (place, _) =
            std::iter::once(first).chain(able).find(|(_, place)| busy(place)).unwrap_or(first);
        Some(place)
    }

    /// The first of the others that is not stuck. It looks now and then whether the acting one is. All others sleep until
    /// they are woken.
    fn watching(&self, now: Instant) -> Option<usize> {
        let acting = self.acting(now)?;
        self.able(now).map(|(place, _)| place).find(|place| *place != acting)
    }

    /// Those that are not stuck in a call.
    fn able(&self, now: Instant) -> impl Iterator<Item = (usize, &Waiting)> {
        self.line.iter().enumerate().filter(move |(_, place)| {
            place
                .calling_since
                .is_none_or(|since| now.saturating_duration_since(since) < self.poll_bound)
        })
    }

    fn look_again_at(&self, place: usize, now: Instant) -> Option<Instant> {
        if self.watching(now) != Some(place) {
            return None;
        }
        let since = self.line.get(self.acting(now)?)?.calling_since.unwrap_or(now);
        Some(since + self.poll_bound)
    }

    fn answered(&mut self, ticket: Ticket, seen: Wakes, others: Others) {
        if others != Others::MayTry {
            // Answers of two callers may come in any order; what one covered stays covered.
            self.covered = self.covered.max(seen.0);
        }
        if let Some(place) = self.line.iter_mut().find(|place| place.ticket == ticket) {
            place.calling_since = None;
            place.tried = place.tried.max(Some(seen.0));
        }
    }
}

impl Waiting {
    /// Whether there is something to try for that neither an answer for all nor its own last try has covered.
    fn is_due(&self, wakes: u64, covered: u64) -> bool {
        self.tried.is_none_or(|tried| wakes > covered.max(tried))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::origin;

    const BOUND: Duration = Duration::from_secs(1);
    const LONG: Option<Duration> = Some(Duration::from_secs(30));

    fn tries(step: Step) -> Wakes {
        match step {
            Step::Try(seen) => seen,
            Step::Sleep(until) => panic!("it sleeps until {until:?}"),
        }
    }

    #[test]
    fn only_the_first_in_line_tries() {
        let now = origin();
        let mut queue = Queue::new(BOUND);
        let (first, second, third) = (
            queue.join(Newcomer::Queues),
            queue.join(Newcomer::Queues),
            queue.join(Newcomer::Queues),
        );
        let seen = tries(queue.step(first, now));
        queue.refused(first, seen, LONG, Others::Wait, now);
        assert_eq!(queue.step(first, now), Step::Sleep(Some(now + BOUND)));
        assert_eq!(queue.step(second, now), Step::Sleep(Some(now + BOUND)));
        assert_eq!(queue.step(third, now), Step::Sleep(None));
    }

    #[test]
    fn a_message_between_the_reply_and_the_sleep_is_not_lost() {
        let now = origin();
        let mut queue = Queue::new(BOUND);
        let first = queue.join(Newcomer::Queues);
        let seen = tries(queue.step(first, now));
        queue.wake();
        queue.refused(first, seen, LONG, Others::Wait, now);
        tries(queue.step(first, now));
    }

    #[test]
    fn a_wake_whose_addressee_leaves_is_the_next_ones() {
        let now = origin();
        let mut queue = Queue::new(BOUND);
        let (first, second) = (queue.join(Newcomer::Queues), queue.join(Newcomer::Queues));
        let seen = tries(queue.step(first, now));
        queue.refused(first, seen, LONG, Others::Wait, now);
        queue.wake();
        queue.leave(first);
        tries(queue.step(second, now));
    }

    #[test]
    fn a_try_without_an_answer_is_tried_again_by_the_next() {
        let now = origin();
        let mut queue = Queue::new(BOUND);
        let (first, second) = (queue.join(Newcomer::Queues), queue.join(Newcomer::Queues));
        tries(queue.step(first, now));
        queue.leave(first);
        tries(queue.step(second, now));
    }

    #[test]
    fn after_a_grant_the_next_waits_for_a_message_or_the_poll_bound() {
        let now = origin();
        let mut queue = Queue::new(BOUND);
        let (first, second) = (queue.join(Newcomer::Queues), queue.join(Newcomer::Queues));
        let seen = tries(queue.step(first, now));
        queue.granted(first, seen, Others::Wait, now);
        assert_eq!(queue.step(second, now), Step::Sleep(Some(now + BOUND)));
        tries(queue.step(second, now + BOUND));
    }

    #[test]
    fn a_short_time_to_live_is_waited_for_instead_of_the_poll_bound() {
        let now = origin();
        let busy = Duration::from_millis(30);
        let mut queue = Queue::new(BOUND);
        let first = queue.join(Newcomer::Queues);
        let seen = tries(queue.step(first, now));
        queue.refused(first, seen, Some(busy), Others::Wait, now);
        assert_eq!(queue.step(first, now), Step::Sleep(Some(now + busy)));
        tries(queue.step(first, now + busy));
    }

    #[test]
    fn a_waiter_stuck_in_a_call_hands_on() {
        let now = origin();
        let mut queue = Queue::new(BOUND);
        let (first, second) = (queue.join(Newcomer::Queues), queue.join(Newcomer::Queues));
        tries(queue.step(first, now));
        assert_eq!(queue.step(second, now), Step::Sleep(Some(now + BOUND)));
        tries(queue.step(second, now + BOUND));
    }

    #[test]
    fn what_one_leaves_is_tried_for_by_each_of_the_others_once() {
        let now = origin();
        let mut queue = Queue::new(BOUND);
        let all: Vec<Ticket> = (0..3).map(|_| queue.join(Newcomer::Queues)).collect();
        for ticket in &all {
            assert_eq!(queue.acting_ticket(now), Some(*ticket));
            let seen = tries(queue.step(*ticket, now));
            queue.refused(*ticket, seen, LONG, Others::MayTry, now);
        }
        for ticket in &all {
            assert!(matches!(queue.step(*ticket, now), Step::Sleep(_)));
        }
        queue.wake();
        let seen = tries(queue.step(all[0], now));
        queue.granted(all[0], seen, Others::MayTry, now);
        let seen = tries(queue.step(all[1], now));
        queue.refused(all[1], seen, LONG, Others::Wait, now);
        assert!(matches!(queue.step(all[2], now), Step::Sleep(_)), "there is nothing left");
    }

    #[test]
    fn a_newcomer_that_tries_once_does_not_wait_for_those_who_were_refused() {
        let now = origin();
        let mut queue = Queue::new(BOUND);
        let first = queue.join(Newcomer::TriesOnce);
        let seen = tries(queue.step(first, now));
        queue.refused(first, seen, LONG, Others::Wait, now);
        let second = queue.join(Newcomer::TriesOnce);
        assert_eq!(queue.acting_ticket(now), Some(second));
        let seen = tries(queue.step(second, now));
        queue.refused(second, seen, LONG, Others::Wait, now);
        assert!(matches!(queue.step(second, now), Step::Sleep(_)));
        let third = queue.join(Newcomer::Queues);
        assert!(matches!(queue.step(third, now), Step::Sleep(_)));
    }

    #[test]
    fn the_first_in_line_takes_over_from_a_newcomer_that_is_stuck() {
        let now = origin();
        let mut queue = Queue::new(BOUND);
        let first = queue.join(Newcomer::TriesOnce);
        let seen = tries(queue.step(first, now));
        queue.refused(first, seen, LONG, Others::Wait, now);
        let newcomer = queue.join(Newcomer::TriesOnce);
        tries(queue.step(newcomer, now));
        // It watches the newcomer's call meanwhile.
        assert_eq!(queue.step(first, now), Step::Sleep(Some(now + BOUND)));
        tries(queue.step(first, now + BOUND));
    }
}
