//! The renewal thread: renews what is due, then finishes releases that are owed. No error can end it.
//!
//! A turn renews everything that has come due since the last one, earliest end of validity first, in scripts of many
//! keys, several in flight. A script that the server refuses is cut in two and both halves are sent again, until the one
//! key that it refuses stands alone; the others never notice. While the server does not answer at all, one pipeline asks
//! it, and everything else waits with it.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::finishing::{send_last_releases, send_owed_releases};
use super::schedule::Places;
use super::{Due, Reading, Shared};
use crate::error::LostReason;
use crate::hold::Place;
use crate::kind::Layout;
use crate::lease::Lease;
use crate::op::{Renew, Renewals, Renewed};
use crate::store::{Failure, Request, Stream};

/// Scripts that are under way at a time, when there is something to catch up with.
const IN_FLIGHT: usize = 10;
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

pub(super) fn run(shared: &Shared) {
    let _farewell = Farewell(shared);
    let mut places = Places::default();
    while !shared.stopping.load(Ordering::Acquire) {
        // Whatever goes wrong in one turn must not end renewal: a hold whose renewal was cut short is still on the
        // wheel, at the end of its validity, so at worst it is lost and told so.
        if catch_unwind(AssertUnwindSafe(|| turn(shared, &mut places))).is_err() {
            shared.counters.panicked();
        }
        let next = shared.releases.lock().next_due();
        shared.clock.park(&shared.renewal, next, &crossbeam_channel::never());
    }
    if catch_unwind(AssertUnwindSafe(|| send_last_releases(shared))).is_err() {
        shared.counters.panicked();
    }
}

/// If the thread ends before it is told to (its clock panicked, which nothing else here can), nobody renews any more.
/// Every watched hold is then lost, and told so, rather than believed in until it happens to be looked at.
struct Farewell<'a>(&'a Shared);

impl Drop for Farewell<'_> {
    fn drop(&mut self) {
        if !self.0.stopping.load(Ordering::Acquire) {
            self.0.counters.panicked();
            // The same clock may panic once more.
            drop(catch_unwind(AssertUnwindSafe(|| self.0.lose_all_watched())));
        }
    }
}

fn turn(shared: &Shared, places: &mut Places) {
    let mut due = std::mem::take(&mut *shared.due.lock());
    // Earliest end first: if the server is slow, those that can wait do.
    due.sort_by_key(|due| due.end);
    let settings = &shared.settings;
    let behind = due.len() > settings.renewal_keys * IN_FLIGHT;
    let keys = if behind { settings.renewal_keys_behind } else { settings.renewal_keys };
    // Of equal size, and about so large: two keys too many for one script are no reason for a second one.
    let scripts = if behind { due.len().div_ceil(keys) } else { (due.len() + keys / 2) / keys };
    let size = due.len().div_ceil(scripts.max(1)).max(1);
    let batches = in_batches(due, size);
    // A server runs whatever it finds of one client before it looks at the next. So while there is time, one script goes
    // after the other, and everybody else's commands between them.
    let one_by_one = shared.round_trip.recent() * u32::try_from(scripts).unwrap_or(u32::MAX);
    let at_once = if behind || one_by_one > settings.tick { IN_FLIGHT } else { 1 };
    let mut sweep = Sweep { shared, places, batches, at_once, answers: 0, over: false };
    shared.store.stream(&mut sweep);
    sweep.put_off_the_rest();
    send_owed_releases(shared, shared.clock.now());
}

/// Cuts what is due in pieces of `size`, each of one layout.
fn in_batches(due: Vec<Due>, size: usize) -> VecDeque<Batch> {
    let mut batches: Vec<Batch> = Vec::new();
    // Whichever is being filled. There are few layouts.
    let mut open: Vec<(Layout, usize)> = Vec::new();
    for due in due {
        let layout = due.hold.kind.layout();
        let place = open.iter().position(|(other, _)| *other == layout);
        let batch = place.map_or(batches.len(), |place| open[place].1);
        if batch == batches.len() || batches[batch].len() == size {
            let started = (layout, batches.len());
            match place {
                Some(place) => open[place] = started,
                None => open.push(started),
            }
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
    places: &'a mut Places,
    /// What is still to be sent.
    batches: VecDeque<Batch>,
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

    fn next(&mut self) -> Option<Request<Renew, Script>> {
        let shared = self.shared;
        while !self.over
            && let Some(batch) = self.batches.pop_front()
        {
            // Before the limit of a hold is looked at: a grant counts from here, so it cannot come to lie beyond.
            let sent_at = shared.clock.now();
            let sent = to_be_sent(shared, batch, sent_at);
            if let Some(shortest) = sent.iter().map(|sent| sent.lease).min() {
                let timeout = shared.attempt_timeout(shortest);
                shared.counters.script(sent.len());
                let note = Script { sent, sent_at };
                return Some(Request { operation: script(&note.sent), note, timeout });
            }
        }
        None
    }

    fn answered(&mut self, script: Script, answer: Result<Renewals, Failure>) {
        let shared = self.shared;
        let Script { sent, sent_at } = script;
        match answer {
            Ok(reply) => {
                let answered_at = shared.clock.now();
                let took = answered_at.saturating_duration_since(sent_at);
                // Only from the first of a turn, which waited for no other.
                if self.answers == 0 {
                    shared.round_trip.learn(took);
                }
                self.answers += 1;
                if took > shared.settings.tick {
                    // One after the other would take too long.
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
                let to_blame = failure.is_of_the_request();
                if to_blame && batch.len() > 1 {
                    let (first, second) = batch.split_at(batch.len() / 2);
                    self.batches.extend([first, second].map(<[_]>::to_vec));
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
                if hold.extend(answered_at, sent.lease, sent_at) {
                    let all = shared.holds.len();
                    let rhythm = hold.rhythm_after(sent.lease, shared.settings.foreign_watchdog);
                    let company = shared.schedule.company(rhythm, sent_at, all, self.places);
                    shared.place_after_renewal(hold, sent.lease, sent_at, company);
                }
            }
            Renewed::Deleted => shared.lose(hold, LostReason::Deleted),
            Renewed::TakenOver => shared.lose(hold, LostReason::TakenOver),
        }
    }

    /// What was not sent waits with what was not answered.
    fn put_off_the_rest(mut self) {
        for batch in self.batches.drain(..) {
            put_off(self.shared, &batch);
        }
    }
}

/// Those that were not released or lost since they came due.
fn to_be_sent(shared: &Shared, batch: Batch, now: Instant) -> Vec<Sent> {
    let longest = shared.settings.max_hold;
    batch
        .into_iter()
        .filter(|due| !matches!(*due.hold.place(), Place::Off))
        .filter_map(|due| Some(Sent { lease: due.hold.lease_to_renew(now, longest)?, due }))
        .collect()
}

fn script(batch: &[Sent]) -> Renew {
    let renewals = batch.iter().map(|sent| sent.due.hold.claim().renewal(sent.lease)).collect();
    let layout = batch.first().map_or(Layout::Counted, |sent| sent.due.hold.kind.layout());
    Renew { layout, renewals }
}

/// Nothing is known of these holds. They are tried again until their validity ends, in ever shorter pauses as it comes
/// near.
fn put_off(shared: &Shared, batch: &[Due]) {
    let now = shared.clock.now();
    shared.counters.retries(batch.len());
    for Due { hold, .. } in batch {
        hold.unanswered.store(true, Ordering::Relaxed);
        let rhythm = hold.rhythm(shared.settings.foreign_watchdog);
        if let (Some(end), Some(lease)) = (hold.valid_until(), rhythm) {
            let left = end.saturating_duration_since(now);
            let pause = (left / 8).min(lease.duration() / 10).max(SHORTEST_PAUSE);
            shared.place(hold, (now + pause).min(end));
        }
    }
}
