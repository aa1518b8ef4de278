//! The renewal thread: renews what is due, then finishes releases that are owed. No error can end it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Reading, Shared};
use crate::error::LostReason;
use crate::hold::{Hold, Place};
use crate::lease::Lease;
use crate::op::{Renew, Renewal, Renewed};
use crate::store::Failure;

/// Keys in one script while all is well. A script of a hundred keys holds the server long enough to nearly double
/// everybody else's slowest hundredth.
const KEYS_IN_STEADY_STATE: usize = 25;
/// Keys in one script when more is due than a few scripts carry.
const KEYS_WHEN_BEHIND: usize = 100;
const BEHIND: usize = 4 * KEYS_IN_STEADY_STATE;
/// Scripts that are sent before the first answer is read.
const IN_FLIGHT: usize = 10;
/// Releases that are sent together.
const RELEASES_AT_ONCE: usize = 100;
/// A release in the background may take this long, so that it does not keep renewals waiting.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);
/// The shortest pause between two attempts to renew one hold.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);

/// One hold, as it is sent.
struct Sent {
    hold: Arc<Hold>,
    lease: Lease,
}

pub(super) fn run(shared: &Shared) {
    while !shared.stopping.load(Ordering::Acquire) {
        // Whatever goes wrong in one turn must not end renewal: a hold whose renewal was cut short is still on the
        // wheel, at the end of its validity, so at worst it is lost and told so.
        if catch_unwind(AssertUnwindSafe(|| turn(shared))).is_err() {
            shared.counters.panics.fetch_add(1, Ordering::Relaxed);
        }
        let next = shared.releases.lock().next_due();
        shared.clock.park(&shared.renewal, next, &crossbeam_channel::never());
    }
    if catch_unwind(AssertUnwindSafe(|| send_last_releases(shared))).is_err() {
        shared.counters.panics.fetch_add(1, Ordering::Relaxed);
    }
}

fn turn(shared: &Shared) {
    let mut due = std::mem::take(&mut *shared.due.lock());
    // Earliest end first: if the server is slow, those that can wait do.
    due.sort_by_cached_key(|hold| hold.valid_until());
    let keys = if due.len() > BEHIND { KEYS_WHEN_BEHIND } else { KEYS_IN_STEADY_STATE };
    for together in due.chunks(keys * IN_FLIGHT) {
        renew(shared, together, keys);
    }
    send_owed_releases(shared, shared.clock.now());
}

fn renew(shared: &Shared, due: &[Arc<Hold>], keys: usize) {
    // Before the limit of a hold is looked at: a grant counts from here, so it cannot come to lie beyond.
    let sent_at = shared.clock.now();
    let longest = shared.settings.max_hold;
    let batches: Vec<Vec<Sent>> = due
        .iter()
        // Released or lost since it was handed over.
        .filter(|hold| !matches!(*hold.place.lock(), Place::Off))
        .filter_map(|hold| {
            Some(Sent { lease: hold.lease_to_renew(sent_at, longest)?, hold: Arc::clone(hold) })
        })
        .fold(Vec::new(), |mut batches: Vec<Vec<Sent>>, sent| {
            match batches.last_mut() {
                Some(batch) if batch.len() < keys => batch.push(sent),
                _ => batches.push(vec![sent]),
            }
            batches
        });
    let Some(shortest) = batches.iter().flatten().map(|sent| sent.lease).min() else {
        return;
    };
    let scripts: Vec<Renew> = batches.iter().map(|batch| script(batch)).collect();
    let answers = shared.store.run_all(&scripts, shared.attempt_timeout(shortest));
    let answered_at = shared.clock.now();
    for (batch, answer) in batches.iter().zip(answers) {
        match answer {
            Ok(reply) => {
                shared.look_at_clock(Reading { server: reply.at, sent_at, answered_at });
                for (sent, answer) in batch.iter().zip(reply.answers) {
                    settle(shared, sent, answer, sent_at);
                }
            }
            Err(failure) => retry(shared, batch, &failure),
        }
    }
}

fn script(batch: &[Sent]) -> Renew {
    Renew(
        batch
            .iter()
            .map(|sent| Renewal {
                name: sent.hold.name.clone(),
                owner: sent.hold.owner.clone(),
                lease: sent.lease,
            })
            .collect(),
    )
}

/// The server has spoken of one hold.
fn settle(shared: &Shared, sent: &Sent, answer: Renewed, sent_at: Instant) {
    match answer {
        Renewed::Prolonged => {
            shared.counters.renewed.fetch_add(1, Ordering::Relaxed);
            // Too late if its validity ended meanwhile: lost is final, and the ticker says so.
            if sent.hold.extend(shared.clock.now(), sent.lease, sent_at) {
                shared.place_after_grant(&sent.hold, sent_at);
            }
        }
        Renewed::Deleted => shared.lose(&sent.hold, LostReason::Deleted),
        Renewed::TakenOver => shared.lose(&sent.hold, LostReason::TakenOver),
    }
}

/// No answer, or an error for the whole script: nothing is known of these holds. They are tried again until their
/// validity ends, in ever shorter pauses as it comes near.
fn retry(shared: &Shared, batch: &[Sent], failure: &Failure) {
    if matches!(failure, Failure::Closed) {
        return;
    }
    shared.counters.unanswered.fetch_add(1, Ordering::Relaxed);
    let now = shared.clock.now();
    for sent in batch {
        sent.hold.unanswered.store(true, Ordering::Relaxed);
        if let Some(end) = sent.hold.valid_until() {
            let left = end.saturating_duration_since(now);
            let pause = (left / 8).min(sent.lease.duration() / 10).max(SHORTEST_PAUSE);
            shared.place(&sent.hold, (now + pause).min(end));
        }
    }
}

/// Sends the releases that are owed and due, and answers whether there were any and the server answered.
fn send_owed_releases(shared: &Shared, now: Instant) -> bool {
    let due = shared.releases.lock().take_due(now, RELEASES_AT_ONCE);
    let mut answered = false;
    if !due.is_empty() {
        let scripts: Vec<_> = due.iter().map(|owed| owed.release.clone()).collect();
        let timeout = RELEASE_TIMEOUT.min(shared.settings.command_timeout);
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
