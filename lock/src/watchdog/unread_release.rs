//! A release that is sent without a wait for its reply, and what the reply means when it is read
//! (DESIGN: unread releases).
//!
//! Whatever thread reads next from the connection gets the reply. It settles the release here, with
//! nothing locked: it waits for nothing, and a panic of the clock ends here.

use std::mem;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use hashed_wheel::Clock;

use crate::error::LostReason;
use crate::hold::hold::Hold;
use crate::ledger::ledger::Stage;
use crate::ledger::log::AcknowledgedRelease;
use crate::ledger::release::{EndedHold, QueuedRelease, ReleaseId, ReleaseOp};
use crate::model::name::LockName;
use crate::model::sync::{Mutex, Parker, SystemClock, park};
use crate::ops::by_kind::SharedOperation;
use crate::ops::value::FromReply;
use crate::ops::{Found, Released, SetCountReply};
use crate::store::shutdown::CallGeneration;
use crate::store::{Failure, SentDetached};
use crate::watchdog::endings;
use crate::watchdog::shared::Shared;
use crate::watchdog::worker::RenewalWorker;

/// The pauses between two looks for a reply when the client ends.
const FIRST_PAUSE: Duration = Duration::from_micros(100);
const LONGEST_PAUSE: Duration = Duration::from_millis(5);

/// What a release leaves to be done when its reply is read. Dropping it before queues the release.
#[derive(Debug)]
pub(crate) struct UnreadRelease {
    /// Weak, to make no cycle: the watchdog has the store, the store the connection, and that has
    /// this.
    shared: Weak<Shared>,
    sent_at: Instant,
    /// All that is released by it. What is queued for each is with the pending releases.
    ids: Vec<ReleaseId>,
    /// What is released again after a failover. If the server knows only some of several, each is
    /// released by itself.
    each: Vec<AcknowledgedRelease>,
    /// The hold whose loss the reply may tell.
    ended: Option<EndedHold>,
}

impl UnreadRelease {
    /// For releases that are in flight. `queued` is what is sent again of each without an
    /// acknowledgement.
    pub(crate) fn begin(
        shared: &Arc<Shared>,
        sent_at: Instant,
        queued: Vec<QueuedRelease>,
        each: Vec<AcknowledgedRelease>,
        ended: Option<EndedHold>,
    ) -> Self {
        let ids = queued.iter().map(|release| release.id().clone()).collect();
        for release in queued {
            shared.releases.ledger().set_unread(release);
        }
        Self { shared: Arc::downgrade(shared), sent_at, ids, each, ended }
    }

    /// It was not sent, and the caller goes on with it.
    fn cancel(mut self, shared: &Shared) {
        for id in mem::take(&mut self.ids) {
            // Unless another thread has queued it, it is as before.
            drop(shared.releases.ledger().take_unread(&id, Stage::Sending));
        }
    }

    /// Its reply was read, or none will come.
    fn settle(mut self, reply: Result<Released, Failure>) {
        if let Some(shared) = self.shared.upgrade() {
            self.settle_in(&shared, reply);
        }
    }

    fn settle_in(&mut self, shared: &Shared, reply: Result<Released, Failure>) {
        let ids = mem::take(&mut self.ids);
        let taken: Vec<QueuedRelease> = {
            let mut ledger = shared.releases.ledger();
            ids.iter().filter_map(|id| ledger.take_unread(id, Stage::Settling)).collect()
        };
        // Otherwise a shutdown has queued them. What they found is not known any more: a copy that
        // was sent later may have been first.
        if taken.len() == ids.len() {
            self.settle_taken(shared, taken, reply);
        }
        for id in ids {
            shared.releases.end_in_flight(id);
        }
    }

    fn settle_taken(
        &mut self,
        shared: &Shared,
        taken: Vec<QueuedRelease>,
        reply: Result<Released, Failure>,
    ) {
        let each = mem::take(&mut self.each);
        let released = match reply {
            Ok(released) => released,
            // Not answered, redirected or refused. The renewal thread sends it again.
            Err(failure) => {
                let is_useless = |release: &QueuedRelease| {
                    // Permits whose key holds something else.
                    release.id().kind.is_none() && failure.is_wrong_key()
                };
                let ended = self.ended.take().filter(|_| !failure.may_have_run());
                for release in taken.into_iter().filter(|release| !is_useless(release)) {
                    shared.releases.queue(release.of_hold(ended.clone()));
                }
                return;
            }
        };
        // Of several permits one is missing, and so none was released.
        if !released.found.is_released() && each.len() > 1 {
            if taken.len() > 1 {
                for release in taken {
                    shared.releases.queue(release);
                }
            } else {
                for each in each {
                    shared.releases.queue_anew(self.sent_at, each);
                }
            }
            return;
        }
        let mut undone = false;
        for release in taken {
            if release.may_be_undone_after(released.at) {
                undone = true;
                shared.releases.queue(release);
            }
        }
        if !undone {
            for each in each {
                shared.failover.log_release(self.sent_at, each);
            }
        }
        if let Some(ended) = self.ended.take() {
            let now = shared.context.catch_panic(|| shared.context.now()).unwrap_or(self.sent_at);
            report_if_lost(shared, &ended, released.found, now);
        }
    }
}

/// What the first release of a hold that ran has found tells whether the hold was lost. No other
/// thread can have reported that: for all others it was released.
pub(crate) fn report_if_lost(shared: &Shared, ended: &EndedHold, found: Found, now: Instant) {
    let EndedHold { hold, valid_until } = ended;
    if found != Found::Own {
        let in_time = valid_until.is_some_and(|end| now < end);
        endings::report_loss(shared, hold, now, reason_of_loss(found, in_time));
    }
}

impl Drop for UnreadRelease {
    fn drop(&mut self) {
        // Settled, cancelled, or dropped by a connection that no thread reads any more.
        if let Some(shared) = self.shared.upgrade().filter(|_| !self.ids.is_empty()) {
            self.settle_in(&shared, Err(Failure::Closed));
        }
    }
}

/// How a hold was lost that its release did not find. `in_time`: its validity had not ended.
pub(crate) fn reason_of_loss(found: Found, in_time: bool) -> LostReason {
    match found {
        Found::OtherOwner => LostReason::TakenOver,
        Found::Expired => LostReason::Expired,
        // It was sent in time and arrived too late.
        _ if !in_time => LostReason::Expired,
        _ => LostReason::Deleted,
    }
}

/// How long one request may take, and by which shutdown it is ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendLimit {
    pub(crate) timeout: Duration,
    pub(crate) generation: CallGeneration,
}

/// Sends the release of a hold that has ended. False if it was not sent: it is in flight as before.
pub(crate) fn send_hold(
    shared: &Arc<Shared>,
    hold: &Arc<Hold>,
    valid_until: Option<Instant>,
    sent_at: Instant,
    limit: SendLimit,
) -> bool {
    let queued = shared.releases.of_hold(sent_at, hold);
    let keep = hold.keep(|| sent_at);
    let each = match keep {
        // It must not be released after a failover.
        Some(_) => Vec::new(),
        None => vec![AcknowledgedRelease::of_hold(hold)],
    };
    let operation = keep.unwrap_or_else(|| hold.id().release());
    let ended = Some(EndedHold { hold: Arc::clone(hold), valid_until });
    let unread = UnreadRelease::begin(shared, sent_at, vec![queued], each, ended);
    send(shared, &hold.name, &operation, limit, unread)
}

/// Sends `operation`, which releases what `unread` is about. False if it was not sent.
pub(crate) fn send(
    shared: &Arc<Shared>,
    name: &LockName,
    operation: &ReleaseOp,
    limit: SendLimit,
    unread: UnreadRelease,
) -> bool {
    // The connection drops what it did not send, and then the caller goes on with it. What it has
    // sent and drops all the same is queued.
    let unread = Arc::new(Mutex::new(Some(unread)));
    let own = Arc::clone(&unread);
    let on_reply = move |reply| {
        let taken = unread.lock().take();
        if let Some(unread) = taken {
            unread.settle(reply);
        }
    };
    let is_sent = send_detached(shared, name, operation, limit, on_reply);
    if !is_sent {
        let taken = own.lock().take();
        if let Some(unread) = taken {
            unread.cancel(shared);
        }
    }
    is_sent
}

/// Sends the lower count of a hold that is still nested. False if it was not sent.
pub(crate) fn send_count(
    shared: &Arc<Shared>,
    hold: &Arc<Hold>,
    count: u32,
    limit: SendLimit,
) -> bool {
    let operation = hold.id().set_count(count, None);
    let (weak, own) = (Arc::downgrade(shared), Arc::clone(hold));
    let on_reply = move |reply| settle_count(&weak, &own, &reply);
    send_detached(shared, &hold.name, &operation, limit, on_reply)
}

fn send_detached<R: FromReply + 'static>(
    shared: &Shared,
    name: &LockName,
    operation: &SharedOperation<R>,
    limit: SendLimit,
    on_reply: impl FnOnce(Result<R, Failure>) + Send + 'static,
) -> bool {
    let SendLimit { timeout, generation } = limit;
    let store = &shared.context.store;
    match store.send_detached(operation, timeout, generation, on_reply) {
        Ok(SentDetached::Answered) => true,
        Ok(SentDetached::Unread) => {
            let server = shared.context.server_of(name);
            // Without a thread, the next call reads the reply.
            shared.workers.with_worker(server, RenewalWorker::read_soon);
            true
        }
        // The caller tries in another way, which says why it fails.
        Ok(SentDetached::MustWait) | Err(_) => false,
    }
}

/// Reads what is unread, for `longest` at most by the system's clock: it is the server that takes
/// the time. What has no reply by then is queued.
pub(crate) fn finish(shared: &Shared, longest: Duration) {
    let deadline = SystemClock.now() + longest;
    let mut pause = FIRST_PAUSE;
    let parker = Parker::new();
    shared.releases.while_waiting(&parker, || {
        while shared.releases.ledger().unread() > 0 {
            shared.context.store.read_all_detached();
            let now = SystemClock.now();
            if shared.releases.ledger().unread() == 0 || now >= deadline {
                break;
            }
            park(&SystemClock, &parker, Some(deadline.min(now + pause)), None);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    });
    shared.releases.queue_unread();
}

/// The reply to a lower count. Without one the count on the server is one too high, which the last
/// release ignores.
fn settle_count(shared: &Weak<Shared>, hold: &Arc<Hold>, reply: &Result<SetCountReply, Failure>) {
    match (shared.upgrade(), reply) {
        (Some(_), Ok(SetCountReply::Written)) => hold.count_answered(),
        (Some(shared), Ok(SetCountReply::Gone)) if !hold.is_released() => {
            shared.context.catch_panic(|| endings::lose(&shared, hold, LostReason::Deleted));
        }
        _ => {}
    }
}
