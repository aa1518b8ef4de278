//! Replies to releases, and releases sent without a wait for the reply.
//!
//! [`settle`](Watchdog::settle) handles every reply to a release, on the thread which reads the
//! reply: the waiting caller, the next reader of a connection on which a dropped guard has left a
//! reply unread, or the renewal thread of the server.
//!
//! Permits of one request have an entry each, and the reply settles all of them. If one permit is
//! missing, no permit was released, and each release is queued separately, so the loss is reported
//! for the right permit.

use std::time::{Duration, Instant};

use hashed_wheel::Clock;

use crate::error::LostReason;
use crate::ledger::ledger::{AfterAnswer, ReleaseAnswer};
use crate::ledger::release::ReleaseOp;
use crate::model::name::LockName;
use crate::model::release_no::ReleaseNo;
use crate::model::sync::{Parker, SystemClock, park};
use crate::ops::Found;
use crate::store::shutdown::CallGeneration;
use crate::store::{ReleaseReply, SentUnread, UnreadReleases};
use crate::watchdog::context::Context;
use crate::watchdog::watchdog::Watchdog;
use crate::watchdog::worker::RenewalWorker;

/// The pause after the first read for a reply when the client ends. Each further pause is twice as
/// long.
const FIRST_PAUSE: Duration = Duration::from_micros(100);
/// The longest pause between two reads for a reply when the client ends.
const LONGEST_PAUSE: Duration = Duration::from_millis(5);

impl Watchdog {
    /// Settles the releases of one request: applies the answer to the ledger, queues releases to be
    /// sent again, reports a lost hold to the user, and wakes the threads that wait for releases.
    ///
    /// Returns the time of the answer, by which a caller distinguishes a loss from an expiry.
    /// Called with nothing locked. Waits for nothing, and catches a panic of the clock.
    pub(crate) fn settle(&self, releases: &[ReleaseNo], answer: ReleaseAnswer<'_>) -> Instant {
        let context = &self.context;
        let now = context.catch_panic(|| context.now()).unwrap_or(answer.sent_at);
        for (index, no) in releases.iter().enumerate() {
            // A reply may distinguish the releases. Otherwise the reply is the same for all.
            match answer.reply.ok().and_then(|released| released.of_one(index)) {
                Some(own) => {
                    self.settle_one(*no, true, now, ReleaseAnswer { reply: Ok(&own), ..answer })
                }
                None => self.settle_one(*no, releases.len() == 1, now, answer),
            };
        }
        self.releases.wake_waiters();
        now
    }

    /// Settles one release of a request at `now`. `alone`: the answer is for this release only.
    /// Returns whether the answer is the first acknowledgement of the release.
    pub(crate) fn settle_one(
        &self,
        no: ReleaseNo,
        alone: bool,
        now: Instant,
        answer: ReleaseAnswer<'_>,
    ) -> bool {
        let ReleaseAnswer { reply, has_copies, .. } = answer;
        let AfterAnswer { first, ended, must_queue } =
            self.releases.ledger().answered(no, alone, now, answer);
        if must_queue {
            self.releases.queue(no, now);
        }
        // No other thread can have reported a loss: for all other threads the hold was released.
        if let (Some(ended), Ok(released)) = (ended, reply) {
            let in_time = ended.valid_until.is_some_and(|end| now < end);
            let verdict = classify_release(released.found, has_copies, in_time);
            if let Err(NotReleased::Lost(reason)) = verdict {
                self.report_loss(&ended.hold, now, reason);
            }
        }
        first
    }

    /// Sends a request for `releases`, all on the server of `name`, without a wait for the reply.
    /// Returns false if the request was not sent: the caller goes on with the releases.
    pub(crate) fn send_unread(
        &self,
        releases: &[ReleaseNo],
        (name, operation): (&LockName, &ReleaseOp),
        sent_at: Instant,
        SendLimit { timeout, generation }: SendLimit,
    ) -> bool {
        let Context { store, .. } = &*self.context;
        {
            // Before the request is sent: another thread may read the reply at once.
            let mut ledger = self.releases.ledger();
            for no in releases {
                ledger.set_unread(*no, sent_at);
            }
        }
        let unread = UnreadReleases { releases: releases.to_vec(), sent_at };
        match store.send_unread(&**operation, unread, timeout, generation) {
            SentUnread::Answered(reply) => {
                let answer = ReleaseAnswer { sent_at, reply: reply.as_ref(), has_copies: false };
                self.settle(releases, answer);
            }
            SentUnread::Unread => {
                let server = self.context.server_of(name);
                // Without a thread, the next call reads the reply.
                self.workers.with_worker(server, RenewalWorker::read_soon);
                self.settle_replies();
            }
            // The caller tries in another way, whose error says why.
            SentUnread::NotSent => {
                let mut ledger = self.releases.ledger();
                for no in releases {
                    ledger.not_written(*no);
                }
                return false;
            }
        }
        true
    }

    /// Settles the unread releases whose replies any thread has read. Mostly there is no such
    /// reply.
    pub(crate) fn settle_replies(&self) {
        for ReleaseReply { unread: UnreadReleases { releases, sent_at }, reply } in
            self.context.store.take_release_replies()
        {
            let answer = ReleaseAnswer { sent_at, reply: reply.as_ref(), has_copies: false };
            self.settle(&releases, answer);
        }
    }

    /// Reads and settles the unread replies that have arrived. Returns whether replies are still
    /// missing.
    pub(crate) fn read_unread(&self) -> bool {
        let are_more = self.context.store.read_unread();
        self.settle_replies();
        are_more
    }

    /// Reads and settles the unread replies that have arrived, and runs `wait`. Meanwhile, unparks
    /// `parker` whenever a release may be settled.
    pub(crate) fn while_outstanding(&self, parker: &Parker, wait: impl FnOnce()) {
        self.releases.while_waiting(parker, || {
            self.read_unread();
            wait();
        });
    }

    /// Reads the unread replies to releases, for `longest` at most by the system's clock, as the
    /// server takes the time. Then queues every release without a reply.
    pub(crate) fn finish_unread(&self, longest: Duration) {
        let deadline = SystemClock.now() + longest;
        let mut pause = FIRST_PAUSE;
        let parker = Parker::new();
        self.releases.while_waiting(&parker, || {
            while self.releases.ledger().unread() > 0 {
                self.read_unread();
                let now = SystemClock.now();
                if self.releases.ledger().unread() == 0 || now >= deadline {
                    break;
                }
                park(&SystemClock, &parker, Some(deadline.min(now + pause)), None);
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        });
        self.releases.queue_unread();
    }
}

/// Why an answered release does not prove a hold valid until the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotReleased {
    Lost(LostReason),
    /// An earlier copy of the release may have run, in time or not.
    Unknown,
}

/// Returns `Ok` if an answered release proves the hold valid until the answer, and otherwise the
/// reason why not. `has_copies`: copies of the release may have arrived before. `in_time`: the
/// answer arrived before the lease expired.
pub(crate) fn classify_release(
    found: Found,
    has_copies: bool,
    in_time: bool,
) -> Result<(), NotReleased> {
    match found {
        Found::Own => Ok(()),
        // An earlier copy of this release may have found the hold. While the lease ran, no other
        // owner could have the lock.
        Found::Nothing | Found::OtherOwner if has_copies && in_time => Ok(()),
        Found::Nothing | Found::OtherOwner if has_copies => Err(NotReleased::Unknown),
        _ => Err(NotReleased::Lost(reason_of_loss(found, in_time))),
    }
}

/// Returns the reason of the loss of a hold that its release did not find. `in_time`: the validity
/// had not ended when the answer arrived.
fn reason_of_loss(found: Found, in_time: bool) -> LostReason {
    match found {
        Found::OtherOwner => LostReason::TakenOver,
        Found::Expired => LostReason::Expired,
        // The release was sent in time and arrived too late.
        _ if !in_time => LostReason::Expired,
        _ => LostReason::Deleted,
    }
}

/// The timeout of one request, and the shutdown which ends the request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendLimit {
    pub(crate) timeout: Duration,
    pub(crate) generation: CallGeneration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_hold_is_released_unknown_or_lost_by_copies_and_time() {
        let lost = |reason| Err(NotReleased::Lost(reason));
        for (found, reason) in
            [(Found::Nothing, LostReason::Deleted), (Found::OtherOwner, LostReason::TakenOver)]
        {
            assert_eq!(classify_release(found, true, true), Ok(()));
            assert_eq!(classify_release(found, true, false), Err(NotReleased::Unknown));
            assert_eq!(classify_release(found, false, true), lost(reason));
        }
        assert_eq!(classify_release(Found::Nothing, false, false), lost(LostReason::Expired));
        for has_copies in [false, true] {
            assert_eq!(classify_release(Found::Own, has_copies, false), Ok(()));
            let expired = classify_release(Found::Expired, has_copies, false);
            assert_eq!(expired, lost(LostReason::Expired));
        }
    }
}
