//! The renewal thread: renews what is due, then finishes releases that are owed. No error can end it.
//!
//! A turn renews everything that has come due since the last one, earliest end of validity first, in scripts of many
//! keys, several in flight. A script that the server refuses is cut in two and both halves are sent again, until the one
//! key that it refuses stands alone; the others never notice. If nothing was granted at all, a few holds from all over
//! the turn go alone first, and if those are refused too, so is everything, and it is put off. While the server does
//! not answer at all, one pipeline asks it, and everything else waits with it.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::finishing::{send_last_releases, send_owed_releases};
use super::schedule::Places;
use super::{Due, Reading, Shared};
use crate::error::LostReason;
use crate::hold::{Hold, Place};
use crate::kind::Layout;
use crate::lease::Lease;
use crate::op::{Renew, Renewal, Renewals, Renewed};
use crate::store::{Failure, Lane, Part, Request, Store, Stream};

/// Scripts that are under way at a time, when there is something to catch up with.
const IN_FLIGHT: usize = 10;
/// Holds that are tried alone before a turn of which nothing was granted is cut to pieces.
const PROBES: usize = 10;
/// Scripts that go together otherwise, when all before them are answered.
const TOGETHER: usize = 4;
/// More scripts than these are something to catch up with: a turn of a hundred thousand holds has twenty.
const MANY: usize = 40;
/// The shortest pause between two attempts to renew one hold.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);

/// Holds whose renewals go in one script.
type Batch = Vec<Due>;

/// One hold, as it is sent.
struct Sent {
    due: Due,
    lease: Lease,
}

/// One script on its way.
struct Script {
    sent: Vec<Sent>,
    sent_at: Instant,
}

/// What one turn leaves to the next.
#[derive(Default)]
struct Memory {
    places: Places,
    /// Whether the server refused everything when something was last refused.
    refuses_all: bool,
}

pub(super) fn run(shared: &Shared) {
    let _farewell = Farewell(shared);
    let mut memory = Memory::default();
    while !shared.stopping.load(Ordering::Acquire) {
        // Whatever goes wrong in one turn must not end renewal.
        if shared.contained(|| turn(shared, &mut memory)).is_none() {
            shared.contained(|| put_off_what_was_left(shared));
        }
        let next = shared.releases.lock().next_due();
        shared.clock.park(&shared.renewal, next, &crossbeam_channel::never());
    }
    shared.contained(|| send_last_releases(shared));
}

/// If the thread ends before it is told to (its clock panicked, which nothing else here can), nobody renews any more.
/// Every watched hold is then lost, and told so, rather than believed in until it happens to be looked at.
struct Farewell<'a>(&'a Shared);

impl Drop for Farewell<'_> {
    fn drop(&mut self) {
        if !self.0.stopping.load(Ordering::Acquire) {
            self.0.counters.panicked();
            self.0.lose_all_watched();
        }
    }
}

fn turn(shared: &Shared, memory: &mut Memory) {
    shared.check_all_if_moved();
    let mut due = std::mem::take(&mut *shared.due.lock());
    // Earliest end first: if the server is slow, those that can wait do.
    due.sort_by_key(|due| due.end);
    let settings = &shared.settings;
    let behind = due.len() > settings.renewal_keys * MANY;
    let keys = if behind { settings.renewal_keys_behind } else { settings.renewal_keys };
    // As few as that takes, and of equal size: no script is longer than it must be.
    let scripts = due.len().div_ceil(keys);
    let size = due.len().div_ceil(scripts.max(1)).max(1);
    let batches = in_batches(&shared.store, due, size);
    // A server runs whatever it finds of one client before it looks at the next. So while there is time, only a few go
    // together, and everybody else's commands between them. One after the other would wake both sides for each.
    let groups = u32::try_from(scripts.div_ceil(TOGETHER)).unwrap_or(u32::MAX);
    let in_groups = shared.round_trip.recent() * groups;
    let at_once = if behind || in_groups > settings.tick { IN_FLIGHT } else { TOGETHER };
    let mut sweep = Sweep {
        shared,
        memory,
        batches,
        refused: Vec::new(),
        probed: false,
        in_flight: 0,
        at_once,
        answers: 0,
        over: false,
    };
    shared.store.stream(Lane::ONLY, &mut sweep);
    sweep.put_off_the_rest();
    send_owed_releases(shared, shared.clock.now(), shared.release_timeout());
    shared.look_at_eviction();
}

/// Cuts what is due in pieces of `size`, each of what one script may touch, and of one layout.
fn in_batches(store: &Store, due: Vec<Due>, size: usize) -> VecDeque<Batch> {
    let mut batches: Vec<Batch> = Vec::new();
    // Whichever is being filled.
    let mut open: HashMap<(Layout, Part), usize> = HashMap::new();
    for due in due {
        let alike = (due.hold.kind.layout(), store.part_of(due.hold.name.as_str()));
        let batch = open.get(&alike).copied().unwrap_or(batches.len());
        if batch == batches.len() || batches[batch].len() == size {
            open.insert(alike, batches.len());
            batches.push(vec![due]);
        } else {
            batches[batch].push(due);
        }
    }
    batches.into()
}

/// The renewals of one turn, on their way to the server and back.
struct Sweep<'a> {
    shared: &'a Shared,
    memory: &'a mut Memory,
    /// What is still to be sent.
    batches: VecDeque<Batch>,
    /// What was refused and is to be cut, unless everything is refused.
    refused: Vec<Batch>,
    /// Whether some of that was tried alone.
    probed: bool,
    in_flight: usize,
    at_once: usize,
    answers: usize,
    /// The server does not answer, or refuses everything for a while: nothing more is sent.
    over: bool,
}

impl Stream for Sweep<'_> {
    type Operation = Renew;
    type Note = Script;

    fn at_once(&self) -> usize {
        self.at_once
    }

    fn refill_at(&self) -> usize {
        if self.at_once == TOGETHER { 0 } else { self.at_once / 2 }
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
                let timeout = shared.attempt_timeout(shortest);
                shared.counters.script(sent.len());
                self.in_flight += 1;
                let note = Script { sent, sent_at };
                return Some(Request { operation: script(&note.sent), note, timeout });
            }
        }
        None
    }

    fn answered(&mut self, script: Script, answer: Result<Renewals, Failure>) {
        let shared = self.shared;
        let Script { sent, sent_at } = script;
        self.in_flight -= 1;
        match answer {
            Ok(reply) => {
                let answered_at = shared.clock.now();
                let took = answered_at.saturating_duration_since(sent_at);
                // Only from the first of a turn, which waited for no other.
                if self.answers == 0 {
                    shared.round_trip.learn(took);
                }
                self.answers += 1;
                self.memory.refuses_all = false;
                if took > shared.settings.tick {
                    // One group after the other would take too long.
                    self.at_once = IN_FLIGHT;
                }
                shared.counters.round_trip(took);
                shared.look_at_clock(Reading { server: reply.at, sent_at, answered_at });
                for (sent, answer) in sent.iter().zip(reply.answers) {
                    self.settle(sent, answer, sent_at, answered_at);
                }
            }
            Err(Failure::Closed) => self.over = true,
            Err(failure) => {
                shared.counters.unanswered();
                let batch: Batch = sent.into_iter().map(|sent| sent.due).collect();
                let to_blame = failure.is_of_several_keys();
                if to_blame && batch.len() > 1 {
                    self.refused.push(batch);
                } else {
                    self.over |= !to_blame;
                    put_off(shared, &batch);
                }
            }
        }
    }
}

impl Sweep<'_> {
    /// The server has spoken of one hold.
    fn settle(&mut self, sent: &Sent, answer: Renewed, sent_at: Instant, answered_at: Instant) {
        let shared = self.shared;
        let hold = &sent.due.hold;
        match answer {
            Renewed::Prolonged => {
                shared.counters.renewed(answered_at.saturating_duration_since(sent.due.at));
                // Too late if its validity ended meanwhile: lost is final, and the ticker says so.
                hold.set_unsure(false);
                if hold.extend(answered_at, sent.lease, sent_at) {
                    let all = shared.holds.len();
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
    fn put_off_the_rest(mut self) {
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
fn put_off(shared: &Shared, batch: &[Due]) {
    let now = shared.clock.now();
    for due in batch {
        try_again_later(shared, &due.hold, now);
    }
    shared.counters.retries(batch.len());
}

fn try_again_later(shared: &Shared, hold: &Arc<Hold>, now: Instant) {
    hold.unanswered.store(true, Ordering::Relaxed);
    let rhythm = hold.rhythm(shared.settings.foreign_watchdog);
    if let (Some(end), Some(lease)) = (hold.valid_until(), rhythm) {
        let left = end.saturating_duration_since(now);
        let pause = (left / 8).min(lease.duration() / 10).max(SHORTEST_PAUSE);
        shared.place(hold, (now + pause).min(end));
    }
}

/// A turn was cut short. Of what it should have renewed nobody knows how far it came.
fn put_off_what_was_left(shared: &Shared) {
    let now = shared.clock.now();
    let mut left = shared.holds.all();
    left.retain(|hold| hold.unanswered.load(Ordering::Relaxed));
    for hold in &left {
        try_again_later(shared, hold, now);
    }
    shared.counters.retries(left.len());
}
