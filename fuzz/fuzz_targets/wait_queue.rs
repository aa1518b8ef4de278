//! The queue of a channel's waiters and the hand-over of a hold to the first of them, compared with
//! a simple model.
//!
//! Each byte of an input is an operation: the lower four bits say which, the upper four are its
//! operand, such as a waiter's place in the queue. See [`Both::step`]. When the input has ended,
//! all calls are refused, and each waiter is granted the lock when its turn comes.
//!
//! # What holds for every input
//!
//! * Nothing panics.
//! * Delegate, deputy, the waiter that gets a hold, and those that have or want an answer are those
//!   of the model, which compares no numbers of wakes: each wake is something to try for, for every
//!   waiter, until a try that began after it is answered.
//! * A waiter tries exactly if it is the delegate, there is something to try for, and nobody
//!   yields. The delegate never sleeps without a limit, nor longer than the poll bound or the
//!   longest yield; the deputy looks again when the delegate's call may be stuck.
//! * A message does not count only if it is this client's own, once for each release. A yield ends
//!   by its limit, and with whatever ends it at once.
//! * In the end every waiter gets its turn, each within the poll bound and a yield.

#![cfg_attr(fuzzing, no_main)]

mod wheellock;

use std::time::{Duration, Instant};

use hashed_wheel::{Clock, SystemClock};
use wheellock::model::wait_mode::WakeHint;
use wheellock::waits::queue::{JoinMode, Step, Ticket, WaitQueue, Wakes};
use wheellock::{error, model, ops, store, waits};

#[cfg(not(fuzzing))]
mod replay;

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    run(bytes);
});

#[cfg(not(fuzzing))]
fn main() -> std::process::ExitCode {
    replay::main("wait_queue", run)
}

const POLL_BOUND: Duration = Duration::from_secs(1);
/// How long another client keeps the lock at most.
const BUDGET: Duration = Duration::from_millis(5);
/// The longest yield.
const MAX_YIELD: Duration = Duration::from_millis(8);
/// How many releases of others follow before the delegate tries again.
const MAX_RELEASES_AHEAD: u32 = 8;
const MAX_WAITERS: usize = 8;

/// Runs the operations of an input, and returns their number.
///
/// # Panics
///
/// If the queue and the model differ.
fn run(bytes: &[u8]) -> usize {
    let mut both =
        Both { queue: WaitQueue::new(POLL_BOUND), model: Model::default(), now: SystemClock.now() };
    for byte in bytes {
        both.step(byte & 15, usize::from(byte >> 4));
        both.compare();
    }
    both.finish();
    bytes.len()
}

/// The queue and its model, with the same operations.
struct Both {
    queue: WaitQueue,
    model: Model,
    now: Instant,
}

/// A slow queue.
#[derive(Default)]
struct Model {
    waiters: Vec<Waiter>,
    /// Whether an answer for all has come since the last wake.
    is_covered: bool,
    answers: u64,
    poll_at: Option<Instant>,
    phase: Phase,
    /// Until when the delegate may yield at most, whatever the wakes.
    yield_limit: Option<Instant>,
    /// Whether the message of the own release may come.
    own_message: bool,
    is_unwatched: bool,
}

/// Why the delegate may yield.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    No,
    /// A release is under way.
    Releasing,
    /// Others release the lock, so often at most.
    Yielding { releases_left: u32 },
}

#[expect(clippy::struct_excessive_bools, reason = "they are independent of each other")]
struct Waiter {
    ticket: Ticket,
    call: Option<Call>,
    /// Whether its own try was answered since the last wake.
    is_covered: bool,
    /// Whether it has tried, or queued behind those that have.
    queues: bool,
    answers_before: u64,
    asks: bool,
    has_hold: bool,
}

struct Call {
    since: Instant,
    seen: Wakes,
    /// Whether there was a wake since it began.
    is_behind: bool,
}

impl Waiter {
    fn is_stuck(&self, now: Instant) -> bool {
        self.call.as_ref().is_some_and(|call| now.duration_since(call.since) >= POLL_BOUND)
    }
}

impl Model {
    fn wake(&mut self) {
        self.is_covered = false;
        for waiter in &mut self.waiters {
            waiter.is_covered = false;
            if let Some(call) = &mut waiter.call {
                call.is_behind = true;
            }
        }
    }

    fn is_due(&self, waiter: &Waiter) -> bool {
        !waiter.queues || !(self.is_covered || waiter.is_covered)
    }

    fn able(&self, now: Instant) -> impl Iterator<Item = usize> {
        (0..self.waiters.len()).filter(move |place| {
            let waiter = &self.waiters[*place];
            !waiter.has_hold && !waiter.is_stuck(now)
        })
    }

    fn delegate(&self, now: Instant) -> Option<usize> {
        let is_busy = |place: &usize| {
            let waiter = &self.waiters[*place];
            waiter.call.is_some() || self.is_due(waiter)
        };
        self.able(now).find(is_busy).or_else(|| self.able(now).next())
    }

    fn deputy(&self, now: Instant) -> Option<usize> {
        let delegate = self.delegate(now)?;
        self.able(now).find(|place| *place != delegate)
    }

    /// The next poll after an answer to the waiter at this place.
    fn poll_after(&mut self, place: usize, at: Instant) {
        match self.poll_at {
            Some(planned) if place > 0 => self.poll_at = Some(planned.min(at)),
            _ => self.poll_at = Some(at),
        }
    }

    fn answered(&mut self, place: usize, hint: WakeHint) -> (Ticket, Wakes) {
        let waiter = &mut self.waiters[place];
        let Some(Call { seen, is_behind, .. }) = waiter.call.take() else {
            panic!("it has no call");
        };
        waiter.queues = true;
        waiter.is_covered |= !is_behind;
        let ticket = waiter.ticket;
        self.is_covered |= !is_behind && hint != WakeHint::MayTry;
        self.answers += u64::from(hint != WakeHint::MayTry);
        (ticket, seen)
    }
}

impl Both {
    fn step(&mut self, kind: u8, operand: usize) {
        match kind {
            0 => self.join(operand),
            // The delegate looks most often, as it is woken most often.
            1 | 2 => {
                self.model.delegate(self.now).and_then(|place| self.look(place));
            }
            3 => {
                self.place(operand).and_then(|place| self.look(place));
            }
            4 => self.refuse(operand),
            5 => self.grant(operand),
            6 => {
                if let Some(place) = self.place(operand) {
                    let waiter = self.model.waiters.remove(place);
                    self.queue.leave(waiter.ticket);
                }
            }
            7 => self.message(),
            8 => self.wake(operand),
            9 => {
                let subscribed = operand % 2 == 1;
                self.queue.release_begins(self.now, subscribed);
                self.model.own_message = subscribed;
                self.model.phase = Phase::Releasing;
                self.model.yield_limit = Some(self.now + POLL_BOUND);
            }
            10 => self.release_ends(operand),
            11 => self.give(),
            12 => self.take_or_decline(operand),
            13 => {
                if let Some(place) = self.place(operand) {
                    let ticket = self.model.waiters[place].ticket;
                    self.queue.ask(ticket, self.now);
                    self.model.waiters[place].asks = true;
                    self.end_yield();
                    let calls = |place: usize| self.model.waiters[place].call.is_some();
                    if !self.model.able(self.now).any(calls) {
                        self.model.wake();
                    }
                }
            }
            14 => {
                let unwatched = std::mem::take(&mut self.model.is_unwatched);
                assert_eq!(self.queue.take_unwatched(), unwatched);
            }
            _ => {
                let pauses = [Duration::from_micros(100), Duration::from_millis(3), POLL_BOUND / 3];
                self.now += pauses[operand % 3] * u32::try_from(operand / 3 + 1).unwrap_or(1);
            }
        }
    }

    fn place(&self, operand: usize) -> Option<usize> {
        operand.checked_rem(self.model.waiters.len())
    }

    /// The place of a waiter whose call is under way.
    fn calling(&self, operand: usize) -> Option<usize> {
        let calls = |place: &usize| self.model.waiters[*place].call.is_some();
        let calling: Vec<_> = (0..self.model.waiters.len()).filter(calls).collect();
        operand.checked_rem(calling.len()).map(|index| calling[index])
    }

    fn join(&mut self, operand: usize) {
        if self.model.waiters.len() == MAX_WAITERS {
            return;
        }
        let mode = [JoinMode::Queues, JoinMode::KnowsHolder, JoinMode::TriesOnce][operand % 3];
        let ticket = self.queue.join(mode, self.now);
        let answers_before = self.model.answers;
        let knows_holder = mode == JoinMode::KnowsHolder;
        if knows_holder {
            self.model.answers += 1;
            if self.model.waiters.is_empty() {
                self.model.poll_at = Some(self.now + POLL_BOUND);
            }
        }
        self.model.waiters.push(Waiter {
            ticket,
            call: None,
            is_covered: knows_holder,
            queues: mode != JoinMode::TriesOnce,
            answers_before,
            asks: false,
            has_hold: false,
        });
    }

    /// A waiter looks what to do, unless its call is under way or it has a hold.
    fn look(&mut self, place: usize) -> Option<Instant> {
        let (now, model) = (self.now, &mut self.model);
        let waiter = &model.waiters[place];
        if waiter.call.is_some() || waiter.has_hold {
            return None;
        }
        let step = self.queue.step(waiter.ticket, now);
        let delegate = model.delegate(now);
        if delegate != Some(place) {
            let call = delegate.and_then(|delegate| model.waiters[delegate].call.as_ref());
            let again = call.map_or(now, |call| call.since) + POLL_BOUND;
            let expected = (model.deputy(now) == Some(place)).then_some(again);
            assert_eq!(step, Step::Sleep(expected));
            return expected;
        }
        if let (Step::Sleep(Some(until)), Some(limit)) = (step, model.yield_limit)
            && now < until
            && until <= limit
        {
            // It yields. Whether and for how long it learns from the others.
            return Some(until);
        }
        if model.poll_at.is_none_or(|at| at <= now) {
            model.wake();
            model.poll_at = Some(now + POLL_BOUND);
        }
        match step {
            Step::Try(seen) => {
                assert!(model.is_due(&model.waiters[place]), "there is nothing to try for");
                model.waiters[place].call = Some(Call { since: now, seen, is_behind: false });
                Some(now)
            }
            Step::Sleep(until) => {
                assert!(!model.is_due(&model.waiters[place]), "there is something to try for");
                assert_eq!(until, model.poll_at);
                until
            }
        }
    }

    fn hint(operand: usize) -> WakeHint {
        let lease = Duration::from_millis(40);
        [WakeHint::Wait, WakeHint::MayTry, WakeHint::WaitFor(lease)][operand % 3]
    }

    fn refuse(&mut self, operand: usize) {
        let Some(place) = self.calling(operand) else { return };
        let hint = Self::hint(operand);
        let busy = [None, Some(30_000), Some(0), Some(70)][operand / 4].map(Duration::from_millis);
        let (ticket, seen) = self.model.answered(place, hint);
        self.queue.refused(ticket, seen, busy, hint, self.now);
        let pause = busy.unwrap_or(POLL_BOUND).clamp(Duration::from_millis(1), POLL_BOUND);
        self.model.poll_after(place, self.now + pause);
        if self.model.phase != Phase::Releasing {
            self.model.yield_limit = None;
        }
    }

    fn grant(&mut self, operand: usize) {
        let Some(place) = self.calling(operand) else { return };
        let hint = Self::hint(operand);
        let (ticket, seen) = self.model.answered(place, hint);
        self.queue.granted(ticket, seen, hint, self.now);
        let pause = match hint {
            WakeHint::WaitFor(lease) => lease,
            WakeHint::Wait | WakeHint::MayTry => POLL_BOUND,
        };
        self.model.poll_after(place, self.now + pause);
        self.model.waiters.remove(place);
        self.end_yield();
        if operand >= 8 {
            // The next one waits for the thread that was granted the lock.
            self.queue.cover();
            self.model.is_covered = true;
        }
    }

    fn message(&mut self) {
        let is_own = std::mem::take(&mut self.model.own_message);
        assert_eq!(self.queue.message(self.now, BUDGET), !is_own);
        if !is_own {
            self.model.wake();
            match self.model.phase {
                Phase::No | Phase::Releasing => {}
                Phase::Yielding { releases_left: 1 } => self.end_yield(),
                Phase::Yielding { releases_left } => {
                    self.model.phase = Phase::Yielding { releases_left: releases_left - 1 };
                    self.model.yield_limit = Some(self.now + BUDGET + MAX_YIELD);
                }
            }
        }
    }

    fn wake(&mut self, operand: usize) {
        match operand % 3 {
            0 => self.queue.wake(),
            1 => {
                self.queue.confirmed();
                self.model.own_message = false;
            }
            _ => {
                self.queue.hold_ended();
                self.model.own_message = false;
                self.end_yield();
            }
        }
        self.model.wake();
    }

    fn release_ends(&mut self, operand: usize) {
        if operand == 15 {
            self.queue.hold_ended();
            self.model.own_message = false;
            self.end_yield();
        } else {
            let receivers = [None, Some(0), Some(1), Some(2), Some(100)][operand % 5];
            let yields = self.queue.release_ends(self.now, receivers);
            self.model.own_message &= receivers.is_some_and(|receivers| receivers > 0);
            if self.model.phase == Phase::Releasing {
                self.end_yield();
                if yields {
                    self.model.phase = Phase::Yielding { releases_left: MAX_RELEASES_AHEAD };
                    self.model.yield_limit = Some(self.now + MAX_YIELD);
                }
            } else {
                assert!(!yields, "no release was under way");
            }
        }
        self.model.wake();
    }

    fn end_yield(&mut self) {
        self.model.phase = Phase::No;
        self.model.yield_limit = None;
    }

    /// The holder gives its hold to the first waiter.
    fn give(&mut self) {
        let Some(ticket) = self.queue.next_recipient() else { return };
        self.queue.give(ticket, self.now);
        self.model.waiters[0].has_hold = true;
        self.model.answers += 1;
        self.model.poll_at = Some(self.now + POLL_BOUND);
    }

    fn take_or_decline(&mut self, operand: usize) {
        let Some(place) = self.model.waiters.iter().position(|waiter| waiter.has_hold) else {
            return;
        };
        let ticket = self.model.waiters[place].ticket;
        if operand.is_multiple_of(2) {
            self.queue.take(ticket);
            self.model.waiters.remove(place);
            self.model.is_unwatched = true;
        } else {
            self.queue.decline(ticket);
            self.model.waiters[place].has_hold = false;
        }
    }

    /// Compares all that can be observed without a change.
    fn compare(&self) {
        let (queue, model, now) = (&self.queue, &self.model, self.now);
        let ticket = |place: usize| model.waiters[place].ticket;
        assert!(queue.tickets().eq(model.waiters.iter().map(|waiter| waiter.ticket)));
        assert_eq!(queue.is_empty(), model.waiters.is_empty());
        assert_eq!(queue.delegate(now), model.delegate(now).map(ticket));
        let both = [model.delegate(now), model.deputy(now)];
        assert!(queue.to_wake(now).eq(both.into_iter().flatten().map(ticket)));
        let first = model.waiters.first();
        let recipient = first.filter(|first| first.call.is_none() && !first.has_hold);
        assert_eq!(queue.next_recipient(), recipient.map(|first| first.ticket));
        let mut asleep =
            model.waiters.iter().filter(|waiter| waiter.call.is_none() && !waiter.has_hold);
        assert_eq!(queue.first_asleep(), asleep.next().map(|waiter| waiter.ticket));
        let asking = model.waiters.iter().filter(|waiter| waiter.asks).map(|waiter| waiter.ticket);
        assert!(queue.asking().eq(asking));
        for waiter in &model.waiters {
            let has_answer = model.answers > waiter.answers_before;
            assert_eq!(queue.has_answer(waiter.ticket), has_answer);
        }
    }

    /// Nobody comes any more, and the lock is free whenever a waiter tries.
    fn finish(&mut self) {
        while self.model.waiters.iter().any(|waiter| waiter.has_hold) {
            self.take_or_decline(0);
        }
        while self.calling(0).is_some() {
            self.refuse(0);
        }
        while let Some(delegate) = self.model.delegate(self.now) {
            let next_turn_by = self.now + POLL_BOUND + MAX_YIELD + BUDGET;
            while self.model.waiters[delegate].call.is_none() {
                let Some(until) = self.look(delegate) else { panic!("it sleeps for ever") };
                self.now = until;
                assert!(until <= next_turn_by, "its turn does not come");
            }
            self.grant(0);
            self.compare();
        }
        assert!(self.queue.is_empty());
    }
}
