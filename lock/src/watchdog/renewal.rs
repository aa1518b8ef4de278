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

use super::schedule::Places;
use super::{Due, Reading, Shared};
use crate::error::LostReason;
use crate::hold::Place;
use crate::lease::Lease;
use crate::op::{Renew, Renewal, Renewed};
use crate::store::Failure;

/// Scripts that are sent before the first answer is read.
const IN_FLIGHT: usize = 10;
/// Releases that are sent together.
const RELEASES_AT_ONCE: usize = 100;
/// The shortest pause between two attempts to renew one hold.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);

/// Holds whose renewals go in one script.
type Batch = Vec<Due>;

/// One hold, as it is sent.
struct Sent {
    due: Due,
    lease: Lease,
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
    due.sort_by_cached_key(|due| due.hold.valid_until());
    let settings = &shared.settings;
    let behind = due.len() > settings.renewal_keys * IN_FLIGHT;
    let keys = if behind { settings.renewal_keys_behind } else { settings.renewal_keys };
    // Of equal size, and about so large: two keys too many for one script are no reason for a second one.
    let scripts = if behind { due.len().div_ceil(keys) } else { (due.len() + keys / 2) / keys };
    let scripts = scripts.max(1);
    let size = due.len().div_ceil(scripts).max(1);
    let mut batches: VecDeque<Batch> = due.chunks(size).map(<[_]>::to_vec).collect();
    while !batches.is_empty() {
        let together = batches.drain(..batches.len().min(IN_FLIGHT)).collect();
        match renew(shared, together, places) {
            Served::Yes { refused } => batches.extend(refused),
            Served::No => batches.drain(..).for_each(|batch| put_off(shared, &batch)),
        }
    }
    send_owed_releases(shared, shared.clock.now());
}

/// What a pipeline of scripts came to.
enum Served {
    /// The server answers. These halves of batches that it refused are to be sent once more.
    Yes { refused: Vec<Batch> },
    /// It does not, or refuses everything for a while.
    No,
}

fn renew(shared: &Shared, batches: Vec<Batch>, places: &mut Places) -> Served {
    // Before the limit of a hold is looked at: a grant counts from here, so it cannot come to lie beyond.
    let sent_at = shared.clock.now();
    let batches: Vec<Vec<Sent>> = batches
        .into_iter()
        .map(|batch| to_be_sent(shared, batch, sent_at))
        .filter(|batch| !batch.is_empty())
        .collect();
    let all = || batches.iter().flatten();
    let Some(shortest) = all().map(|sent| sent.lease).min() else {
        return Served::Yes { refused: Vec::new() };
    };
    let last_end = all().filter_map(|sent| sent.due.hold.valid_until()).max();
    let scripts: Vec<Renew> = batches.iter().map(|batch| script(batch)).collect();
    for batch in &batches {
        shared.counters.script(batch.len());
    }
    let left = last_end.map_or(Duration::ZERO, |end| end.saturating_duration_since(sent_at));
    let answers = shared.store.run_all(&scripts, shared.attempt_timeout(shortest, left));
    let answered_at = shared.clock.now();
    if answers.iter().all(Result::is_ok) {
        let took = answered_at.saturating_duration_since(sent_at);
        shared.round_trip.learn(took);
        shared.counters.round_trip(took);
    }
    let served = answers.iter().any(|answer| match answer {
        Ok(_) => true,
        Err(failure) => failure.is_of_the_request(),
    });
    let mut refused = Vec::new();
    for (batch, answer) in batches.iter().zip(answers) {
        match answer {
            Ok(reply) => {
                shared.look_at_clock(Reading { server: reply.at, sent_at, answered_at });
                for (sent, answer) in batch.iter().zip(reply.answers) {
                    settle(shared, sent, answer, sent_at, places);
                }
            }
            Err(Failure::Closed) => {}
            Err(failure) => {
                shared.counters.unanswered();
                let batch: Batch = batch.iter().map(|sent| sent.due.clone()).collect();
                if failure.is_of_the_request() && batch.len() > 1 {
                    let (first, second) = batch.split_at(batch.len() / 2);
                    refused.extend([first.to_vec(), second.to_vec()]);
                } else {
                    put_off(shared, &batch);
                }
            }
        }
    }
    if served { Served::Yes { refused } } else { Served::No }
}

/// Those that were not released or lost since they came due.
fn to_be_sent(shared: &Shared, batch: Batch, now: Instant) -> Vec<Sent> {
    let longest = shared.settings.max_hold;
    batch
        .into_iter()
        .filter(|due| !matches!(*due.hold.place.lock(), Place::Off))
        .filter_map(|due| Some(Sent { lease: due.hold.lease_to_renew(now, longest)?, due }))
        .collect()
}

fn script(batch: &[Sent]) -> Renew {
    Renew(
        batch
            .iter()
            .map(|sent| Renewal {
                name: sent.due.hold.name.clone(),
                owner: sent.due.hold.owner.clone(),
                lease: sent.lease,
            })
            .collect(),
    )
}

/// The server has spoken of one hold.
fn settle(shared: &Shared, sent: &Sent, answer: Renewed, sent_at: Instant, places: &mut Places) {
    let hold = &sent.due.hold;
    match answer {
        Renewed::Prolonged => {
            let now = shared.clock.now();
            shared.counters.renewed(now.saturating_duration_since(sent.due.at));
            // Too late if its validity ended meanwhile: lost is final, and the ticker says so.
            if hold.extend(now, sent.lease, sent_at) {
                let company =
                    shared.schedule.company(sent.lease, sent_at, shared.holds.len(), places);
                shared.place_after_grant(hold, sent_at, company);
            }
        }
        Renewed::Deleted => shared.lose(hold, LostReason::Deleted),
        Renewed::TakenOver => shared.lose(hold, LostReason::TakenOver),
    }
}

/// Nothing is known of these holds. They are tried again until their validity ends, in ever shorter pauses as it comes
/// near.
fn put_off(shared: &Shared, batch: &[Due]) {
    let now = shared.clock.now();
    shared.counters.retries(batch.len());
    for Due { hold, .. } in batch {
        hold.unanswered.store(true, Ordering::Relaxed);
        if let (Some(end), Some(lease)) = (hold.valid_until(), hold.watched_lease()) {
            let left = end.saturating_duration_since(now);
            let pause = (left / 8).min(lease.duration() / 10).max(SHORTEST_PAUSE);
            shared.place(hold, (now + pause).min(end));
        }
    }
}

/// Sends the releases that are owed and due, and answers whether there were any and the server answered.
fn send_owed_releases(shared: &Shared, now: Instant) -> bool {
    let due = shared.releases.lock().take_due(now, RELEASES_AT_ONCE);
    let mut answered = false;
    if !due.is_empty() {
        let scripts: Vec<_> = due.iter().map(|owed| owed.release.clone()).collect();
        let timeout = shared.release_timeout();
        let answers = shared.store.run_all(&scripts, timeout);
        let now = shared.clock.now();
        let mut book = shared.releases.lock();
        for (owed, answer) in due.into_iter().zip(answers) {
            match answer {
                Ok(released) => {
                    answered = true;
                    book.acknowledged(now, owed, released.at);
                }
                Err(_) => book.unanswered(now, owed),
            }
        }
        book.round_over();
    }
    shared.wake_flushers();
    answered
}

/// At the end: every release that is owed gets its chance, as long as the server answers. Without an answer there is a
/// second one, on a new connection: the first may have met one that the server had closed. What a copy that is still
/// on its way may create is left to its lease.
fn send_last_releases(shared: &Shared) {
    let mut unanswered = 0;
    while unanswered < 2 {
        let Some(last) = shared.releases.lock().last_due() else {
            return;
        };
        if !send_owed_releases(shared, last) {
            unanswered += 1;
        }
    }
}
