//! The renewals of one turn, on their way to one server and back.
//!
//! A script that the server refuses is cut in two and both halves are sent again, until the one key that it refuses
//! stands alone; the others never notice. If nothing was granted at all, a few holds from all over the turn go alone
//! first, and if those are refused too, so is everything, and it is put off. While the server does not answer at all,
//! one pipeline asks it, and everything else waits with it. What is refused only because its keys lie elsewhere, or are
//! on their way there, stops nothing: it is put off for a moment, and then goes where the keys are.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Shared;
use super::batches::{Batch, Pace};
use super::jumps::{Jumps, Reading};
use super::renewer::Due;
use super::round_trip::RoundTrip;
use super::schedule::Places;
use crate::error::LostReason;
use crate::hold::{Hold, Place};
use crate::kind::Layout;
use crate::lease::Lease;
use crate::op::{Renew, Renewal, Renewals, Renewed};
use crate::store::{Failure, Request, Stream};

/// Holds that are tried alone before a turn of which nothing was granted is cut to pieces.
const PROBES: usize = 10;
/// The shortest pause between two attempts to renew one hold.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);

/// One hold, as it is sent.
struct Sent {
    due: Due,
    lease: Lease,
}

/// One script on its way.
pub(super) struct Script {
    sent: Vec<Sent>,
    sent_at: Instant,
}

/// Who has answered a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answerer {
    /// The server whose holds these are.
    Own,
    /// One that the script was sent on to. Its clock is another.
    Another,
}

/// What one turn leaves to the next.
#[derive(Default)]
pub(super) struct Memory {
    places: Places,
    pub(super) round_trip: RoundTrip,
    pub(super) jumps: Jumps,
    /// Whether the server refused everything when something was last refused.
    refuses_all: bool,
}

/// The renewals of one turn, on their way to the server and back.
pub(super) struct Sweep<'a> {
    shared: &'a Shared,
    memory: &'a mut Memory,
    /// What is still to be sent.
    batches: VecDeque<Batch>,
    /// What was refused and is to be cut, unless everything is refused.
    refused: Vec<Batch>,
    /// Whether some of that was tried alone.
    probed: bool,
    in_flight: usize,
    pace: Pace,
    answers: usize,
    /// The server does not answer, or refuses everything for a while: nothing more is sent.
    over: bool,
}

impl<'a> Sweep<'a> {
    pub(super) fn new(
        shared: &'a Shared,
        memory: &'a mut Memory,
        batches: VecDeque<Batch>,
        pace: Pace,
    ) -> Self {
        Self {
            shared,
            memory,
            batches,
            refused: Vec::new(),
            probed: false,
            in_flight: 0,
            pace,
            answers: 0,
            over: false,
        }
    }
}

impl Stream for Sweep<'_> {
    type Operation = Renew;
    type Note = Script;

    fn at_once(&self) -> usize {
        self.pace.at_once()
    }

    fn refill_at(&self) -> usize {
        self.pace.refill_at()
    }

    fn next(&mut self) -> Option<Request<Renew, Script>> {
        let shared = self.shared;
        while !self.over
            && let Some(batch) = self.batches.pop_front().or_else(|| self.next_refused())
        {
            // Before the limit of a hold is looked at: a grant counts from here, so it cannot come to lie beyond.
            let sent_at = shared.clock.now();
            let sent = to_be_sent(shared, batch, sent_at);
            if let Some(shortest) = sent.iter().map(|sent| sent.lease).min() {
                let timeout = shared.attempt_timeout(shortest, self.memory.round_trip.recent());
                shared.counters.script(sent.len());
                self.in_flight += 1;
                let note = Script { sent, sent_at };
                return Some(Request { operation: script(&note.sent), note, timeout });
            }
        }
        None
    }

    fn answered(&mut self, script: Script, answer: Result<Renewals, Failure>) {
        self.take_in(script, answer, Answerer::Own);
    }

    fn answered_elsewhere(&mut self, script: Script, answer: Result<Renewals, Failure>) {
        self.take_in(script, answer, Answerer::Another);
    }
}

impl Sweep<'_> {
    fn take_in(&mut self, script: Script, answer: Result<Renewals, Failure>, server: Answerer) {
        let shared = self.shared;
        let Script { sent, sent_at } = script;
        self.in_flight -= 1;
        match answer {
            Ok(reply) => {
                let answered_at = shared.clock.now();
                let took = answered_at.saturating_duration_since(sent_at);
                // Only from the first of a turn, which waited for no other.
                if self.answers == 0 {
                    self.memory.round_trip.learn(took);
                }
                self.answers += 1;
                self.memory.refuses_all = false;
                if took > shared.settings.tick {
                    // One group after the other would take too long.
                    self.pace.hurry();
                }
                shared.counters.round_trip(took);
                if server == Answerer::Own {
                    let reading = Reading { server: reply.at, sent_at, answered_at };
                    shared.look_at_clock(&mut self.memory.jumps, reading);
                }
                for (sent, answer) in sent.iter().zip(reply.answers) {
                    self.settle(sent, answer, sent_at, answered_at);
                }
            }
            Err(Failure::Closed) => self.over = true,
            Err(failure) => {
                shared.counters.unanswered();
                let batch: Batch = sent.into_iter().map(|sent| sent.due).collect();
                if failure.is_of_the_place() {
                    self.misplaced(batch, &failure);
                    return;
                }
                let to_blame = failure.is_of_the_request();
                if to_blame && batch.len() > 1 {
                    self.refused.push(batch);
                } else {
                    self.over |= !to_blame;
                    put_off(shared, &batch);
                }
            }
        }
    }

    /// The server has spoken of one hold.
    fn settle(&mut self, sent: &Sent, answer: Renewed, sent_at: Instant, answered_at: Instant) {
        let shared = self.shared;
        let hold = &sent.due.hold;
        match answer {
            Renewed::Prolonged => {
                shared.counters.renewed(answered_at.saturating_duration_since(sent.due.at));
                // Too late if its validity ended meanwhile: lost is final, and the ticker says so.
                hold.set_unsure(shared.store.only_lane().is_none());
                if hold.extend(answered_at, sent.lease, sent_at) {
                    let all = shared.held_by_each();
                    let rhythm = hold.rhythm_after(sent.lease, shared.settings.foreign_watchdog);
                    let places = &mut self.memory.places;
                    let company = shared.schedule.company(rhythm, sent_at, all, places);
                    shared.place_after_renewal(hold, sent.lease, sent_at, company);
                }
            }
            Renewed::Deleted => shared.lose(hold, LostReason::Deleted),
            Renewed::TakenOver => shared.lose(hold, LostReason::TakenOver),
        }
    }

    /// The keys of a script lie elsewhere, or not all in one place.
    fn misplaced(&mut self, mut batch: Batch, failure: &Failure) {
        if failure.parts_keys() && batch.len() > 1 {
            // While a slot is on its way its keys lie on two servers. Each alone is found on one of them.
            self.batches.extend(batch.drain(..).map(|due| vec![due]));
        } else {
            look_elsewhere(self.shared, &batch);
        }
    }

    /// The next part of what was refused. A server that has granted something has refused the rest for what is in it,
    /// and that is worth finding. One that has granted nothing may refuse everything, and then it is not.
    fn next_refused(&mut self) -> Option<Batch> {
        if self.answers == 0 {
            if self.in_flight > 0 {
                return None;
            }
            if self.probed {
                self.memory.refuses_all = true;
                self.over = true;
                return None;
            }
            self.probed = !self.refused.is_empty();
            self.take_probes();
            return self.batches.pop_front();
        }
        let mut first = self.refused.pop()?;
        if first.len() > 1 {
            self.batches.push_back(first.split_off(first.len() / 2));
        }
        Some(first)
    }

    /// Takes some out to be tried alone. Drawn, as those that are to blame may stand together, or always come first.
    fn take_probes(&mut self) {
        let random = RandomState::new();
        let draw = |number: usize, of: usize| {
            usize::try_from(random.hash_one((number, of)) % of.max(1) as u64).unwrap_or(0)
        };
        for number in 0..if self.memory.refuses_all { 1 } else { PROBES } {
            if self.refused.is_empty() {
                return;
            }
            let mut batch = self.refused.swap_remove(draw(number, self.refused.len()));
            self.batches.push_back(vec![batch.swap_remove(draw(number, batch.len()))]);
            if !batch.is_empty() {
                self.refused.push(batch);
            }
        }
    }

    /// What was not sent waits with what was not answered.
    pub(super) fn put_off_the_rest(mut self) {
        for batch in self.batches.drain(..).chain(self.refused.drain(..)) {
            put_off(self.shared, &batch);
        }
    }
}

/// Those that were not released or lost since they came due.
fn to_be_sent(shared: &Shared, batch: Batch, now: Instant) -> Vec<Sent> {
    let longest = shared.settings.max_hold;
    for due in &batch {
        due.hold.fetch();
    }
    batch
        .into_iter()
        .filter(|due| !matches!(*due.hold.place(), Place::Off))
        .filter_map(|due| Some(Sent { lease: due.hold.lease_to_renew(now, longest)?, due }))
        .collect()
}

fn script(batch: &[Sent]) -> Renew {
    let renewal = |sent: &Sent| Renewal {
        name: sent.due.hold.name.clone(),
        owner: sent.due.hold.owner.clone(),
        lease: sent.lease,
    };
    let renewals = batch.iter().map(renewal).collect();
    let layout = batch.first().map_or(Layout::Counted, |sent| sent.due.hold.kind.layout());
    Renew::new(layout, renewals)
}

/// Nothing is known of these holds. They are tried again until their validity ends, in ever shorter pauses as it comes
/// near.
pub(super) fn put_off(shared: &Shared, batch: &[Due]) {
    let now = shared.clock.now();
    for due in batch {
        try_again_later(shared, &due.hold, now);
    }
    shared.counters.retries(batch.len());
}

pub(super) fn try_again_later(shared: &Shared, hold: &Arc<Hold>, now: Instant) {
    try_again_in(shared, hold, now, |left, lease| (left / 8).min(lease.duration() / 10));
}

/// These have to be asked for on another server, and the store may know by then on which. Soon, but not at once: while
/// servers do not agree, each may name the other.
fn look_elsewhere(shared: &Shared, batch: &[Due]) {
    let now = shared.clock.now();
    for due in batch {
        try_again_in(shared, &due.hold, now, |left, _| left / 64);
    }
    shared.counters.retries(batch.len());
}

/// Tries a hold again after a part of what is left of it.
fn try_again_in(
    shared: &Shared,
    hold: &Arc<Hold>,
    now: Instant,
    pause: impl FnOnce(Duration, Lease) -> Duration,
) {
    hold.unanswered.store(true, Ordering::Relaxed);
    let rhythm = hold.rhythm(shared.settings.foreign_watchdog);
    if let (Some(end), Some(lease)) = (hold.valid_until(), rhythm) {
        let left = end.saturating_duration_since(now);
        let pause = pause(left, lease).max(SHORTEST_PAUSE);
        shared.place(hold, (now + pause).min(end));
    }
}
