//! Which of a channel's waiters tries, and when: the rules, with time as an argument.
//!
//! Waiters queue in the order of their arrival. Only the *delegate* tries at the server. Waiters
//! that are stuck in a call, or were given a hold, are left out; of the others the delegate is the
//! first with a call or a reason to try, else the first. So a thousand threads cost one try for
//! each release, and one for each poll bound in case a message was lost. A refused waiter retains
//! its place. The *deputy*, the first of these waiters except the delegate, watches the delegate's
//! call and takes over if the delegate gets stuck.
//!
//! Where several waiters can be granted, as with readers and permits, an answer may leave something
//! to the rest. Then the next waiter of the queue tries too, each waiter once for each wake. A
//! newcomer does not wait behind refused waiters, but tries once at the next turn.
//!
//! Messages are counted, and waiters join before their first try. Each try notes the count from
//! before the sending. While the count is higher than the note of the last answered try, there is a
//! reason to try. So a message that arrives between a reply and the following sleep is not lost,
//! nor a message for a waiter that left the queue: the next delegate sees the same numbers.
//!
//! While this client holds the lock, the first waiter gets the hold from the holder, without the
//! server ([`WaitQueue::next_recipient`]). A newcomer knows the holder, and does not try then.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::model::wait_mode::{WaitMode, WakeHint};
use crate::waits::yielding::Yielding;

/// The identity of a waiter in its queue. Later waiters have higher tickets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

/// The waiters of one channel, in the order of their arrival.
#[derive(Debug)]
pub(crate) struct WaitQueue {
    waiters: VecDeque<QueuedWaiter>,
    next_ticket: u64,
    /// How many wakes have arrived.
    wakes: u64,
    /// The wakes covered by the last answered try.
    covered: u64,
    /// When to try without a wake.
    poll_at: Option<Instant>,
    poll_bound: Duration,
    /// How many answers have counted for all waiters.
    answers: u64,
    /// Whether waiters of other clients go first.
    yielding: Yielding,
    /// Whether waiters have left without waking another. A delegate that tries wakes its deputy
    /// then.
    is_unwatched: bool,
}

/// A waiter in the queue, and the progress of its tries.
#[derive(Debug)]
struct QueuedWaiter {
    ticket: Ticket,
    /// When the waiter's call to the server began.
    calling_since: Option<Instant>,
    /// The wakes covered by the waiter's own last answered try. `None` before the first try: the
    /// waiter does not wait behind refused waiters.
    tried: Option<u64>,
    /// [`WaitQueue::answers`] on joining; a higher value means answered since.
    answers: u64,
    /// Whether the waiter has [requested an answer](WaitQueue::ask).
    asks: bool,
    /// Whether the waiter was given a hold, and has not taken or declined the hold yet.
    has_hold: bool,
}

impl Ticket {
    /// The ticket of the first waiter of a new queue.
    pub(crate) const FIRST: Self = Self(0);
}

/// How a waiter joins the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JoinMode {
    /// The waiter waits for its turn.
    Queues,
    /// The waiter waits for its turn, and knows the holder, a thread of this client.
    KnowsHolder,
    /// The waiter tries once, although the waiters before were refused.
    TriesOnce,
}

/// The next step of a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The waiter tries at the server, then reports the result with these wakes.
    Try(Wakes),
    /// The waiter sleeps until this time, or until woken. Without a time, only a wake ends the
    /// sleep.
    Sleep(Option<Instant>),
}

/// A number of wakes, as seen before a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wakes(u64);

impl Wakes {
    /// The number seen by the first try of a new queue: the initial wake, and the first poll.
    pub(crate) const FIRST: Self = Self(2);
}

impl JoinMode {
    /// Returns how a waiter joins without knowing the holder.
    pub(crate) fn of(mode: WaitMode) -> Self {
        match mode {
            WaitMode::Exclusive | WaitMode::Polled | WaitMode::Queued => Self::Queues,
            WaitMode::Shared | WaitMode::Watching => Self::TriesOnce,
        }
    }
}

impl WaitQueue {
    /// Makes an empty queue, whose first waiter tries at once.
    pub(crate) fn new(poll_bound: Duration) -> Self {
        // The initial wake: the first waiter tries at once.
        Self {
            waiters: VecDeque::new(),
            next_ticket: 0,
            wakes: 1,
            covered: 0,
            poll_at: None,
            poll_bound,
            answers: 0,
            yielding: Yielding::new(),
            is_unwatched: false,
        }
    }

    /// Adds a waiter at the end of the queue, and returns its ticket. With
    /// [`JoinMode::KnowsHolder`], the knowledge counts as an answer to all waiters.
    pub(crate) fn join(&mut self, mode: JoinMode, now: Instant) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let tried = match mode {
            JoinMode::Queues => Some(0),
            JoinMode::KnowsHolder => Some(self.wakes),
            JoinMode::TriesOnce => None,
        };
        let answers = self.answers;
        if mode == JoinMode::KnowsHolder {
            // The knowledge is an answer, no less true than the server's.
            self.answers += 1;
            if self.waiters.is_empty() {
                self.poll_at = Some(now + self.poll_bound);
            }
        }
        self.waiters.push_back(QueuedWaiter {
            ticket,
            calling_since: None,
            tried,
            answers,
            asks: false,
            has_hold: false,
        });
        ticket
    }

    /// Adds the first waiter of a new queue, trying since `began`. The ticket is [`Ticket::FIRST`],
    /// and the try began with [`Wakes::FIRST`].
    pub(crate) fn join_trying(&mut self, mode: JoinMode, began: Instant) {
        let ticket = self.join(mode, began);
        self.step(ticket, began);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Returns the step of the waiter `ticket` at `now`. A `Try` starts the waiter's call. A poll
    /// that is due counts as a wake.
    pub(crate) fn step(&mut self, ticket: Ticket, now: Instant) -> Step {
        let Some(place) = self.place(ticket) else { return Step::Sleep(None) };
        if self.delegate_place(now) != Some(place) {
            return Step::Sleep(self.deputy_checks_at(place, now));
        }
        if let Some(until) = self.yielding.until(now) {
            return Step::Sleep(Some(until));
        }
        if self.poll_at.is_none_or(|at| at <= now) {
            // Counts as a message: the waiters behind may try after this waiter.
            self.wakes += 1;
            self.poll_at = Some(now + self.poll_bound);
        }
        match self.waiters.get_mut(place) {
            Some(waiter) if waiter.is_due(self.wakes, self.covered) => {
                waiter.calling_since = Some(now);
                Step::Try(Wakes(self.wakes))
            }
            _ => Step::Sleep(self.poll_at),
        }
    }

    /// Reports a refusal of the try of `ticket`, which began with the wakes `seen`. The lock is
    /// busy for `busy`, if known.
    pub(crate) fn refused(
        &mut self,
        ticket: Ticket,
        seen: Wakes,
        busy: Option<Duration>,
        hint: WakeHint,
        now: Instant,
    ) {
        self.answered(ticket, seen, hint);
        self.yielding.refused();
        // A time to live of zero is a millisecond that is not over yet.
        let pause = busy.map_or(self.poll_bound, |busy| busy.max(Duration::from_millis(1)));
        self.poll_after(ticket, now + pause.min(self.poll_bound));
    }

    /// Reports a grant of the try of `ticket`, which began with the wakes `seen`. The waiter
    /// leaves, and the next waiter knows that the lock is taken, unless `hint` says otherwise.
    pub(crate) fn granted(&mut self, ticket: Ticket, seen: Wakes, hint: WakeHint, now: Instant) {
        self.answered(ticket, seen, hint);
        self.yielding.stop();
        let pause = match hint {
            WakeHint::WaitFor(lease) => lease.min(self.poll_bound),
            WakeHint::Wait | WakeHint::MayTry => self.poll_bound,
        };
        self.poll_after(ticket, now + pause);
        self.leave(ticket);
    }

    /// Sets the next poll to `at`, after an answer to `ticket`. Only the first waiter postpones the
    /// poll: newcomers may try before the first waiter again and again, and perhaps no message
    /// reaches the first waiter.
    fn poll_after(&mut self, ticket: Ticket, at: Instant) {
        let is_first = self.waiters.front().is_some_and(|first| first.ticket == ticket);
        let sooner = self.poll_at.filter(|_| !is_first).map_or(at, |planned| planned.min(at));
        self.poll_at = Some(sooner);
    }

    /// Removes the waiter `ticket`. Its uncovered wakes stay for the other waiters: a try without
    /// an answer covers nothing.
    pub(crate) fn leave(&mut self, ticket: Ticket) {
        if let Some(place) = self.place(ticket) {
            self.waiters.remove(place);
        }
    }

    /// Counts a wake: the lock may have become free.
    pub(crate) fn wake(&mut self) {
        self.wakes += 1;
    }

    /// Counts a message, unless the message is this client's own. Other clients use the lock for at
    /// most `budget` each. Returns whether there is a reason to try, perhaps later.
    pub(crate) fn message(&mut self, now: Instant, budget: Duration) -> bool {
        let wakes = self.yielding.message(now, budget);
        self.wakes += u64::from(wakes);
        wakes
    }

    /// Counts a wake, as the subscription is confirmed. The lock may have become free before.
    pub(crate) fn confirmed(&mut self) {
        self.yielding.confirmed();
        self.wakes += 1;
    }

    /// Notes that this client releases the lock on the server, and will receive the message if
    /// `subscribed`. No waiter tries until the [answer](Self::release_ends) or the poll bound.
    pub(crate) fn release_begins(&mut self, now: Instant, subscribed: bool) {
        self.yielding.release_begins(now, self.poll_bound, subscribed);
    }

    /// Counts a wake, as the release was answered or has failed: the delegate tries, now or after
    /// other clients' waiters. The message has reached `receivers`, if the number is known. Returns
    /// whether the delegate yields.
    pub(crate) fn release_ends(&mut self, now: Instant, receivers: Option<u32>) -> bool {
        self.wakes += 1;
        self.yielding.release_ends(now, receivers)
    }

    /// Counts a wake, as this client's hold has ended, and stops a yield. The message of a release
    /// under way counts as any message: the message may have arrived, and may be sent once more.
    pub(crate) fn hold_ended(&mut self) {
        self.wakes += 1;
        self.yielding.stop();
        self.yielding.confirmed();
    }

    /// Returns the next recipient of a hold from a holder of this client: the first waiter, unless
    /// in a call or with a given hold. No waiter behind is eligible, as the first would be skipped.
    pub(crate) fn next_recipient(&self) -> Option<Ticket> {
        let first = self.waiters.front()?;
        (first.calling_since.is_none() && !first.has_hold).then_some(first.ticket)
    }

    /// Notes that the first waiter, `ticket`, is given a hold. All waiters know the holder, so the
    /// knowledge counts as an answer, and the poll is postponed.
    pub(crate) fn give(&mut self, ticket: Ticket, now: Instant) {
        if let Some(waiter) = self.waiter_mut(ticket) {
            waiter.has_hold = true;
        }
        self.answers += 1;
        self.poll_at = Some(now + self.poll_bound);
    }

    /// Covers all wakes, so that no waiter tries: a waiter was granted the lock, and the next
    /// waiter will be given the hold.
    pub(crate) fn cover(&mut self) {
        self.covered = self.wakes;
    }

    /// Removes the waiter `ticket`, which takes the given hold. No waiter is woken: all wait for
    /// the new holder.
    pub(crate) fn take(&mut self, ticket: Ticket) {
        self.leave(ticket);
        self.is_unwatched = true;
    }

    /// Notes that the waiter `ticket` declines the given hold, and waits on.
    pub(crate) fn decline(&mut self, ticket: Ticket) {
        if let Some(waiter) = self.waiter_mut(ticket) {
            waiter.has_hold = false;
        }
    }

    /// Takes back the mark of a queue that waiters have left without waking another. Returns
    /// whether the mark was set, so that the delegate, which is about to try, has to wake its
    /// deputy.
    pub(crate) fn take_unwatched(&mut self) -> bool {
        std::mem::take(&mut self.is_unwatched)
    }

    /// Returns the first waiter outside of a call and without a given hold: the delegate, if
    /// asleep. Needs no `now`.
    pub(crate) fn first_asleep(&self) -> Option<Ticket> {
        let mut asleep = self.waiters.iter().filter(|waiter| waiter.is_able());
        asleep.find(|waiter| waiter.calling_since.is_none()).map(|waiter| waiter.ticket)
    }

    /// Whether the waiter `ticket` has an answer: since the waiter joined, the server has refused
    /// all waiters by an answer to any of them, or this client held the lock.
    pub(crate) fn has_answer(&self, ticket: Ticket) -> bool {
        self.place(ticket)
            .and_then(|place| self.waiters.get(place))
            .is_some_and(|waiter| waiter.answers < self.answers)
    }

    /// Notes that `ticket` requests an answer, as a quarter of its time is over without an answer.
    /// Unless a call is under way, counts a wake, so the delegate tries: one answer serves all.
    /// Stops a yield.
    pub(crate) fn ask(&mut self, ticket: Ticket, now: Instant) {
        if let Some(waiter) = self.waiter_mut(ticket) {
            waiter.asks = true;
        }
        self.yielding.stop();
        if self.able(now).all(|(_, waiter)| waiter.calling_since.is_none()) {
            self.wakes += 1;
        }
    }

    /// Returns the waiters which have requested an answer.
    pub(crate) fn asking(&self) -> impl Iterator<Item = Ticket> + use<'_> {
        self.waiters.iter().filter(|waiter| waiter.asks).map(|waiter| waiter.ticket)
    }

    /// Returns the delegate: the waiter allowed to try. Returns `None` if each waiter is stuck or
    /// has a given hold.
    pub(crate) fn delegate(&self, now: Instant) -> Option<Ticket> {
        self.waiters.get(self.delegate_place(now)?).map(|waiter| waiter.ticket)
    }

    /// Returns the waiters to wake after a change of the queue: the delegate and the deputy.
    pub(crate) fn to_wake(&self, now: Instant) -> impl Iterator<Item = Ticket> + use<'_> {
        let both = [self.delegate_place(now), self.deputy_place(now)];
        both.into_iter()
            .flatten()
            .filter_map(|place| self.waiters.get(place))
            .map(|waiter| waiter.ticket)
    }

    /// Whether the waiter `ticket` is the delegate, and has a reason to try.
    pub(crate) fn is_called(&self, ticket: Ticket, now: Instant) -> bool {
        let delegate = self.delegate_place(now).and_then(|place| self.waiters.get(place));
        delegate.is_some_and(|delegate| {
            delegate.ticket == ticket && delegate.is_due(self.wakes, self.covered)
        })
    }

    /// Returns all tickets, in the order of arrival.
    pub(crate) fn tickets(&self) -> impl Iterator<Item = Ticket> + use<'_> {
        self.waiters.iter().map(|waiter| waiter.ticket)
    }

    /// Returns the place of the delegate: among the waiters not stuck in a call, the first waiter
    /// with a call or a reason to try; else the first.
    fn delegate_place(&self, now: Instant) -> Option<usize> {
        let busy = |waiter: &QueuedWaiter| {
            waiter.calling_since.is_some() || waiter.is_due(self.wakes, self.covered)
        };
        let mut able = self.able(now);
        let first = able.next()?;
        let (place, _) =
            std::iter::once(first).chain(able).find(|(_, waiter)| busy(waiter)).unwrap_or(first);
        Some(place)
    }

    /// Returns the place of the deputy: the first waiter except the delegate, among the waiters not
    /// stuck. The deputy checks now and then whether the delegate is stuck. All waiters behind
    /// sleep until woken.
    fn deputy_place(&self, now: Instant) -> Option<usize> {
        let delegate = self.delegate_place(now)?;
        self.able(now).map(|(place, _)| place).find(|place| *place != delegate)
    }

    /// Returns the waiters allowed to try and not stuck in a call, with their places.
    fn able(&self, now: Instant) -> impl Iterator<Item = (usize, &QueuedWaiter)> {
        self.waiters.iter().enumerate().filter(move |(_, waiter)| {
            let is_stuck = |since| now.saturating_duration_since(since) >= self.poll_bound;
            waiter.is_able() && !waiter.calling_since.is_some_and(is_stuck)
        })
    }

    /// Searches for the place of the waiter `ticket`, by bisection. Returns `None` if the waiter
    /// has left.
    fn place(&self, ticket: Ticket) -> Option<usize> {
        self.waiters.binary_search_by_key(&ticket, |waiter| waiter.ticket).ok()
    }

    /// Returns the waiter `ticket`; `None` if the waiter has left.
    fn waiter_mut(&mut self, ticket: Ticket) -> Option<&mut QueuedWaiter> {
        let place = self.place(ticket)?;
        self.waiters.get_mut(place)
    }

    /// Returns when the waiter at `place`, as the deputy, checks whether the delegate is stuck in
    /// its call. `None` for any other waiter, which sleeps until woken.
    fn deputy_checks_at(&self, place: usize, now: Instant) -> Option<Instant> {
        if self.deputy_place(now) != Some(place) {
            return None;
        }
        let since = self.waiters.get(self.delegate_place(now)?)?.calling_since.unwrap_or(now);
        Some(since + self.poll_bound)
    }

    /// Ends the call of the waiter `ticket`, which began with the wakes `seen`, by an answer.
    /// Unless others may be granted something, the answer covers these wakes and counts for all
    /// waiters.
    fn answered(&mut self, ticket: Ticket, seen: Wakes, hint: WakeHint) {
        if hint != WakeHint::MayTry {
            // Answers to two waiters may arrive in any order. Covered wakes stay covered.
            self.covered = self.covered.max(seen.0);
            // Not for `MayTry`: something is left for the waiters behind, so they were not refused.
            self.answers += 1;
        }
        if let Some(waiter) = self.waiter_mut(ticket) {
            waiter.calling_since = None;
            waiter.tried = waiter.tried.max(Some(seen.0));
        }
    }
}

impl QueuedWaiter {
    /// Whether the waiter may try. A waiter with a given hold checks the hold first.
    fn is_able(&self) -> bool {
        !self.has_hold
    }

    /// Whether the waiter has a reason to try: no try so far, or a wake covered neither by an
    /// answer for all nor by the waiter's own last try.
    fn is_due(&self, wakes: u64, covered: u64) -> bool {
        self.tried.is_none_or(|tried| wakes > covered.max(tried))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::clock::origin;

    const BOUND: Duration = Duration::from_secs(1);
    const LONG: Option<Duration> = Some(Duration::from_secs(30));

    fn tries(step: Step) -> Wakes {
        match step {
            Step::Try(seen) => seen,
            Step::Sleep(until) => panic!("it sleeps until {until:?}"),
        }
    }

    #[test]
    fn only_the_first_waiter_tries() {
        let now = origin();
        let mut queue = WaitQueue::new(BOUND);
        let (first, second, third) = (
            queue.join(JoinMode::Queues, now),
            queue.join(JoinMode::Queues, now),
            queue.join(JoinMode::Queues, now),
        );
        let seen = tries(queue.step(first, now));
        queue.refused(first, seen, LONG, WakeHint::Wait, now);
        assert_eq!(queue.step(first, now), Step::Sleep(Some(now + BOUND)));
        assert_eq!(queue.step(second, now), Step::Sleep(Some(now + BOUND)));
        assert_eq!(queue.step(third, now), Step::Sleep(None));
        let called = |queue: &WaitQueue| [first, second, third].map(|it| queue.is_called(it, now));
        assert_eq!(called(&queue), [false; 3]);
        queue.wake();
        assert_eq!(called(&queue), [true, false, false]);
    }

    #[test]
    fn waiter_joining_while_trying_is_first_as_if_already_queued() {
        for (mode, hint) in
            [(JoinMode::Queues, WakeHint::Wait), (JoinMode::TriesOnce, WakeHint::MayTry)]
        {
            let now = origin();
            let mut queue = WaitQueue::new(BOUND);
            queue.join_trying(mode, now);
            let mut other = WaitQueue::new(BOUND);
            assert_eq!(other.join(mode, now), Ticket::FIRST);
            assert_eq!(other.step(Ticket::FIRST, now), Step::Try(Wakes::FIRST));
            assert_eq!(format!("{queue:?}"), format!("{other:?}"));
            queue.refused(Ticket::FIRST, Wakes::FIRST, LONG, hint, now);
            assert_eq!(queue.step(Ticket::FIRST, now), Step::Sleep(Some(now + BOUND)));
        }
    }

    #[test]
    fn a_message_between_the_reply_and_the_sleep_is_not_lost() {
        let now = origin();
        let mut queue = WaitQueue::new(BOUND);
        let first = queue.join(JoinMode::Queues, now);
        let seen = tries(queue.step(first, now));
        queue.wake();
        queue.refused(first, seen, LONG, WakeHint::Wait, now);
        tries(queue.step(first, now));
    }

    #[test]
    fn a_wake_for_a_waiter_that_left_goes_to_the_next() {
        let now = origin();
        let mut queue = WaitQueue::new(BOUND);
        let (first, second) =
            (queue.join(JoinMode::Queues, now), queue.join(JoinMode::Queues, now));
        let seen = tries(queue.step(first, now));
        queue.refused(first, seen, LONG, WakeHint::Wait, now);
        queue.wake();
        queue.leave(first);
        tries(queue.step(second, now));
    }

    #[test]
    fn a_try_without_an_answer_is_tried_again_by_the_next() {
        let now = origin();
        let mut queue = WaitQueue::new(BOUND);
        let (first, second) =
            (queue.join(JoinMode::Queues, now), queue.join(JoinMode::Queues, now));
        tries(queue.step(first, now));
        queue.leave(first);
        tries(queue.step(second, now));
    }

    #[test]
    fn after_a_grant_the_next_waits_for_a_message_or_the_poll_bound() {
        let now = origin();
        let mut queue = WaitQueue::new(BOUND);
        let (first, second) =
            (queue.join(JoinMode::Queues, now), queue.join(JoinMode::Queues, now));
        let seen = tries(queue.step(first, now));
        queue.granted(first, seen, WakeHint::Wait, now);
        assert_eq!(queue.step(second, now), Step::Sleep(Some(now + BOUND)));
        tries(queue.step(second, now + BOUND));
    }

    #[test]
    fn a_short_time_to_live_is_waited_for_instead_of_the_poll_bound() {
        let now = origin();
        let busy = Duration::from_millis(30);
        let mut queue = WaitQueue::new(BOUND);
        let first = queue.join(JoinMode::Queues, now);
        let seen = tries(queue.step(first, now));
        queue.refused(first, seen, Some(busy), WakeHint::Wait, now);
        assert_eq!(queue.step(first, now), Step::Sleep(Some(now + busy)));
        tries(queue.step(first, now + busy));
    }

    #[test]
    fn the_deputy_takes_over_from_a_waiter_that_is_stuck_in_a_call() {
        let now = origin();
        let mut queue = WaitQueue::new(BOUND);
        let (first, second) =
            (queue.join(JoinMode::Queues, now), queue.join(JoinMode::Queues, now));
        tries(queue.step(first, now));
        assert_eq!(queue.step(second, now), Step::Sleep(Some(now + BOUND)));
        tries(queue.step(second, now + BOUND));
    }

    #[test]
    fn refusal_counts_for_all_queued_waiters_and_no_later_waiter() {
        let now = origin();
        let mut queue = WaitQueue::new(BOUND);
        let (first, second) =
            (queue.join(JoinMode::Queues, now), queue.join(JoinMode::Queues, now));
        let seen = tries(queue.step(first, now));
        assert!(!queue.has_answer(first) && !queue.has_answer(second));
        queue.refused(first, seen, LONG, WakeHint::Wait, now);
        let third = queue.join(JoinMode::Queues, now);
        assert!(queue.has_answer(first) && queue.has_answer(second) && !queue.has_answer(third));
        // A try without an answer counts for none.
        queue.wake();
        tries(queue.step(first, now));
        queue.leave(first);
        assert!(!queue.has_answer(third));
    }

    #[test]
    fn grant_with_a_remainder_is_no_answer_for_remaining_waiters() {
        let now = origin();
        let mut queue = WaitQueue::new(BOUND);
        let (first, second) =
            (queue.join(JoinMode::TriesOnce, now), queue.join(JoinMode::TriesOnce, now));
        let seen = tries(queue.step(first, now));
        queue.granted(first, seen, WakeHint::MayTry, now);
        assert!(!queue.has_answer(second));
    }

    #[test]
    fn answered_newcomers_do_not_delay_the_poll_of_the_first_waiter() {
        for (is_granted, hint) in [
            (true, WakeHint::MayTry),
            (true, WakeHint::Wait),
            (false, WakeHint::MayTry),
            (false, WakeHint::Wait),
        ] {
            let began = origin();
            let mut queue = WaitQueue::new(BOUND);
            let first = queue.join(JoinMode::TriesOnce, began);
            let seen = tries(queue.step(first, began));
            queue.refused(first, seen, LONG, WakeHint::Wait, began);
            // No message came, but the lock has become free.
            let now = began + BOUND / 2;
            let newcomer = queue.join(JoinMode::TriesOnce, now);
            let seen = tries(queue.step(newcomer, now));
            if is_granted {
                queue.granted(newcomer, seen, hint, now);
            } else {
                queue.refused(newcomer, seen, LONG, hint, now);
                queue.leave(newcomer);
            }
            tries(queue.step(first, began + BOUND));
        }
    }

    #[test]
    fn waiter_without_answer_makes_delegate_try_unless_call_flies() {
        let now = origin();
        let mut queue = WaitQueue::new(BOUND);
        let first = queue.join(JoinMode::Queues, now);
        let seen = tries(queue.step(first, now));
        queue.refused(first, seen, LONG, WakeHint::Wait, now);
        let (second, third) =
            (queue.join(JoinMode::Queues, now), queue.join(JoinMode::Queues, now));
        queue.ask(second, now);
        assert_eq!(queue.delegate(now), Some(first));
        let seen = tries(queue.step(first, now));
        queue.ask(third, now);
        queue.refused(first, seen, LONG, WakeHint::Wait, now);
        assert_eq!(queue.asking().collect::<Vec<_>>(), [second, third]);
        assert!(queue.has_answer(second) && queue.has_answer(third));
        assert!(matches!(queue.step(first, now), Step::Sleep(_)), "one answer was enough");
    }

    #[test]
    fn what_a_grant_leaves_is_tried_for_once_by_each_other_waiter() {
        let now = origin();
        let mut queue = WaitQueue::new(BOUND);
        let all: Vec<Ticket> = (0..3).map(|_| queue.join(JoinMode::Queues, now)).collect();
        for ticket in &all {
            assert_eq!(queue.delegate(now), Some(*ticket));
            let seen = tries(queue.step(*ticket, now));
            queue.refused(*ticket, seen, LONG, WakeHint::MayTry, now);
        }
        for ticket in &all {
            assert!(matches!(queue.step(*ticket, now), Step::Sleep(_)));
        }
        queue.wake();
        let seen = tries(queue.step(all[0], now));
        queue.granted(all[0], seen, WakeHint::MayTry, now);
        let seen = tries(queue.step(all[1], now));
        queue.refused(all[1], seen, LONG, WakeHint::Wait, now);
        assert!(matches!(queue.step(all[2], now), Step::Sleep(_)), "there is nothing left");
    }

    #[test]
    fn single_try_newcomer_does_not_wait_for_refused_waiters() {
        let now = origin();
        let mut queue = WaitQueue::new(BOUND);
        let first = queue.join(JoinMode::TriesOnce, now);
        let seen = tries(queue.step(first, now));
        queue.refused(first, seen, LONG, WakeHint::Wait, now);
        let second = queue.join(JoinMode::TriesOnce, now);
        assert_eq!(queue.delegate(now), Some(second));
        let seen = tries(queue.step(second, now));
        queue.refused(second, seen, LONG, WakeHint::Wait, now);
        assert!(matches!(queue.step(second, now), Step::Sleep(_)));
        let third = queue.join(JoinMode::Queues, now);
        assert!(matches!(queue.step(third, now), Step::Sleep(_)));
    }

    #[test]
    fn the_first_waiter_takes_over_from_a_newcomer_that_is_stuck() {
        let now = origin();
        let mut queue = WaitQueue::new(BOUND);
        let first = queue.join(JoinMode::TriesOnce, now);
        let seen = tries(queue.step(first, now));
        queue.refused(first, seen, LONG, WakeHint::Wait, now);
        let newcomer = queue.join(JoinMode::TriesOnce, now);
        tries(queue.step(newcomer, now));
        // It watches the newcomer's call meanwhile.
        assert_eq!(queue.step(first, now), Step::Sleep(Some(now + BOUND)));
        tries(queue.step(first, now + BOUND));
    }

    #[test]
    fn request_for_an_answer_ends_the_yield_to_other_clients() {
        let now = origin();
        let mut queue = WaitQueue::new(BOUND);
        let first = queue.join(JoinMode::Queues, now);
        let seen = tries(queue.step(first, now));
        queue.refused(first, seen, LONG, WakeHint::Wait, now);
        queue.release_begins(now, false);
        assert!(queue.release_ends(now, Some(1)));
        assert!(matches!(queue.step(first, now), Step::Sleep(_)), "it yields");
        let second = queue.join(JoinMode::Queues, now);
        queue.ask(second, now);
        tries(queue.step(first, now));
    }

    #[test]
    fn queue_is_unwatched_once_for_each_taken_hold() {
        let now = origin();
        let mut queue = WaitQueue::new(BOUND);
        let waiters = [(); 2].map(|()| queue.join(JoinMode::KnowsHolder, now));
        assert!(!queue.take_unwatched());
        queue.give(waiters[0], now);
        assert!(!queue.take_unwatched());
        queue.take(waiters[0]);
        assert!(queue.take_unwatched() && !queue.take_unwatched());
        queue.leave(waiters[1]);
        assert!(!queue.take_unwatched(), "others wake its deputy");
    }
}
