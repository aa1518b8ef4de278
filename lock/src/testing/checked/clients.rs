//! The clients of the model of a lock: what they send, and what they make of the answers.

use std::time::Duration;

use crate::core::acquire::enclosing_write_hold;
use crate::core::traces::{Leftover, may_change_owner};
use crate::error::LostReason;
use crate::hold::hold;
use crate::ledger::release::ReleaseSchedule;
use crate::model::kind::{Kind, Layout};
use crate::model::owner::LocalHolder;
use crate::ops::value::ServerTime;
use crate::store::Failure;
use crate::store::retry::deadline_after_failure;
use crate::testing::checked::checked_lock::{CheckedLock, OwnerSet, STEP, STEP_MILLIS};
use crate::testing::checked::mutation::Mutation;
use crate::testing::checked::search::Violation;
use crate::testing::checked::state::{
    Call, Client, Command, HOLDS, Hold, Message, Queued, Reply, State, Verb,
};
use crate::watchdog::endings::loss_leaves_release;

// Acquires.
impl CheckedLock {
    /// The number of the own write hold under which a client reads, if there is one. An error if it
    /// may not ask: it reads and wants to write.
    pub(crate) fn under(&self, state: &State, client: u8) -> Result<Option<u8>, ()> {
        if !self.limits.reads_own || self.process(client) != 0 {
            return Ok(None);
        }
        enclosing_write_hold(self.kind(client), |layout| {
            let own = usize::from(layout == Layout::Reader);
            let hold = state.clients[own].hold?;
            self.is_valid(hold.valid_until, state.now).then_some(hold.number)
        })
        .map_err(drop)
    }

    pub(crate) fn begin_acquire(&self, state: &mut State, client: u8) {
        let under = self.under(state, client).unwrap_or_default();
        let own = &mut state.clients[usize::from(client)];
        let hold = own.begun;
        own.begun += 1;
        own.call = Some(Call {
            hold,
            attempts: 1,
            is_asking: true,
            late_copy_deadline: None,
            is_queued: self.kind(client) == Kind::Fair,
            is_answered: false,
            under,
        });
        self.send(state, client, hold, Verb::Acquire { under });
    }

    /// The next attempt of an acquire that was refused or not answered.
    pub(crate) fn ask_again(&self, state: &mut State, client: u8) {
        let own = &mut state.clients[usize::from(client)];
        let Some(call) = &mut own.call else { return };
        call.attempts += 1;
        call.is_asking = true;
        let is_free = may_change_owner(call.is_answered, call.is_queued, call.late_copy_deadline);
        let draws = is_free || self.lacks(Mutation::OwnersDroppedWithCopies);
        if draws && own.begun < self.limits.holds {
            own.settled |= 1 << call.hold;
            call.hold = own.begun;
            own.begun += 1;
        }
        let (hold, under) = (call.hold, call.under);
        self.send(state, client, hold, Verb::Acquire { under });
    }

    /// An acquire ends without a guard.
    pub(crate) fn end_acquire(&self, state: &mut State, client: u8) {
        let Some(call) = state.clients[usize::from(client)].call.take() else { return };
        let is_queued = call.is_queued && !self.lacks(Mutation::QueueNotLeft);
        match Leftover::of(is_queued, call.late_copy_deadline) {
            Leftover::Nothing => state.clients[usize::from(client)].settled |= 1 << call.hold,
            Leftover::LateCopy | Leftover::Owner => {
                self.queue(state, client, call.hold, call.late_copy_deadline, None);
            }
        }
    }

    /// An attempt of an acquire had no reply.
    fn attempt_failed(&self, call: &mut Call, not_after: i64) {
        call.is_asking = false;
        call.is_answered = false;
        let not_after = ServerTime(not_after);
        let failure = Failure::Unknown { not_after, reason: "no reply".into(), broken: false };
        let before =
            call.late_copy_deadline.filter(|_| !self.lacks(Mutation::OnlyLastCopyRemembered));
        call.late_copy_deadline = deadline_after_failure(before, &failure);
        if self.lacks(Mutation::CopiesForgotten) {
            call.late_copy_deadline = None;
        }
    }

    fn acquire_answered(
        &self,
        state: &mut State,
        message: Message,
        reply: Reply,
    ) -> Result<(), Violation> {
        let Command { client, hold: number, .. } = message.command;
        let own = &mut state.clients[usize::from(client)];
        let Some(mut call) = own.call else { return Ok(()) };
        call.is_asking = false;
        call.is_answered = true;
        if self.lacks(Mutation::OnlyLastCopyRemembered) {
            call.late_copy_deadline = None;
        }
        let Reply::Granted(token) = reply else {
            own.call = Some(call);
            return Ok(());
        };
        if message.lacks_replica && !self.lacks(Mutation::ReplicasNotAsked) {
            // It is there, and is rolled back.
            own.call = Some(Call { is_queued: true, ..call });
            self.end_acquire(state, client);
            return Ok(());
        }
        own.call = None;
        let until = self.trusted_until(self.lease, message.sent_at, state.now);
        own.hold = Some(Hold {
            number,
            valid_until: Some(until),
            late_copy_deadline: call.late_copy_deadline,
            guards: 1,
            token,
            is_renewing: false,
            is_nesting: false,
            count_unknown: false,
            seen_over: false,
            handed_over: false,
            is_given: false,
            is_cached: false,
        });
        // Granted too late: the guard is released at once, and finds that it was lost.
        if self.is_valid(Some(until), state.now) {
            return Ok(());
        }
        if self.lacks(Mutation::ReturnedWhenLate) {
            return Err(RETURNED_OVER);
        }
        self.release(state, client);
        Ok(())
    }
}

/// A hold is cached for as long as its client likes.
const LONG: Duration = Duration::from_secs(60);

pub(crate) const RETURNED_OVER: Violation = "a call returns a hold that is over";

// Holds and their releases.
impl CheckedLock {
    /// Queues the release of a hold that has ended, or of an acquire that was not granted.
    pub(crate) fn queue(
        &self,
        state: &mut State,
        client: u8,
        hold: u8,
        late_copy_deadline: Option<ServerTime>,
        held_until: Option<u32>,
    ) {
        let lifetime = self.lease.max(self.nested_lease).duration() + STEP * 2;
        let schedule = ReleaseSchedule::new(self.instant(state.now), lifetime, late_copy_deadline);
        let queued = Queued { hold, schedule, is_sent: false, held_until };
        let releases = &mut state.clients[usize::from(client)].releases;
        *releases.iter_mut().find(|place| place.is_none()).unwrap() = Some(queued);
    }

    /// A hold ends as lost.
    pub(crate) fn lose(&self, state: &mut State, client: u8, reason: LostReason) {
        let Some(hold) = state.clients[usize::from(client)].hold.take() else { return };
        // All are watched, so the key may be kept for longer.
        let leaves_release = loss_leaves_release(reason, true, hold.late_copy_deadline);
        if leaves_release && !self.lacks(Mutation::LossesNotReleased) {
            self.queue(state, client, hold.number, hold.late_copy_deadline, None);
        } else if !leaves_release {
            state.clients[usize::from(client)].settled |= 1 << hold.number;
        }
    }

    /// The last guard is gone: another thread of the client gets the hold, or it is released.
    pub(crate) fn drop_guard(&self, state: &mut State, client: u8) {
        let own = &state.clients[usize::from(client)];
        let Some(mut hold) = own.hold.filter(|_| own.waiting > 0) else {
            return self.cache_or_release(state, client);
        };
        let wants_longer = own.wants_longer && !self.lacks(Mutation::LongerLeasesHandedOver);
        if !self.may_be_handed_over(client, &hold, wants_longer, state.now) {
            return self.release(state, client);
        }
        hold.handed_over = true;
        hold.is_given = true;
        if self.lacks(Mutation::CopiesNotHandedOver) {
            hold.late_copy_deadline = None;
        }
        let own = &mut state.clients[usize::from(client)];
        own.hold = Some(hold);
        own.wants_longer = false;
        if self.lacks(Mutation::ReleasedAndHandedOver) {
            self.queue(state, client, hold.number, hold.late_copy_deadline, None);
        }
    }

    /// The last guard is gone, and nobody of the client waits.
    fn cache_or_release(&self, state: &mut State, client: u8) {
        let own = &mut state.clients[usize::from(client)];
        let Some(mut hold) = own.hold.filter(|_| self.limits.caches) else {
            return self.release(state, client);
        };
        let real = self.real_hold(client, &hold);
        if own.wants_longer && !self.lacks(Mutation::LongerLeasesCached) {
            real.add_guard(self.nested_lease, false);
            real.remove_guard(false);
        }
        if real.cache(self.lease, self.instant(state.now), LONG).is_none() {
            return self.release(state, client);
        }
        hold.is_cached = true;
        hold.handed_over = true;
        if self.lacks(Mutation::CopiesNotCached) {
            hold.late_copy_deadline = None;
        }
        own.hold = Some(hold);
        own.wants_longer = false;
    }

    /// An acquire of the client finds its cached hold. A hold that it may not have is released.
    pub(crate) fn take_cached(&self, state: &mut State, client: u8) -> Result<(), Violation> {
        let own = &mut state.clients[usize::from(client)];
        let Some(hold) = &mut own.hold else { return Ok(()) };
        let now = self.instant(state.now);
        let real = self.real_hold(client, hold);
        let was_cached = real.cache(self.lease, real.granted_at(), LONG).is_some();
        let takes = was_cached && real.take_cached(None, self.lease, now);
        if !takes && !self.lacks(Mutation::CachedTakenUnseen) {
            self.release(state, client);
            return Ok(());
        }
        hold.is_cached = false;
        let is_valid = self.is_valid(hold.valid_until, state.now);
        if is_valid { Ok(()) } else { Err(RETURNED_OVER) }
    }

    /// A cached hold ends.
    pub(crate) fn end_cached(&self, state: &mut State, client: u8) {
        let own = &mut state.clients[usize::from(client)];
        let Some(mut hold) = own.hold else { return };
        if self.lacks(Mutation::CachedForgotten) {
            own.hold = None;
            return;
        }
        self.release(state, client);
        if self.lacks(Mutation::TakenWhileReleased) {
            hold.is_cached = false;
            state.clients[usize::from(client)].hold = Some(hold);
        }
    }

    fn may_be_handed_over(&self, client: u8, hold: &Hold, wants_longer: bool, now: u8) -> bool {
        let real = self.real_hold(client, hold);
        if wants_longer {
            real.add_guard(self.nested_lease, false);
            real.remove_guard(false);
        }
        real.change_holder(None, self.lease, self.instant(now), None).is_some()
    }

    /// The library's own hold, with one guard.
    fn real_hold(&self, client: u8, hold: &Hold) -> hold::Hold {
        let trusted_for = self.lease.valid_until(self.origin) - self.origin;
        let until = hold.valid_until.map(|until| self.at_millis(until));
        let sent_at = until.and_then(|until| until.checked_sub(trusted_for)).unwrap_or(self.origin);
        let (id, holder) = (self.id(client, hold.number), LocalHolder::current_thread());
        let late_copy_deadline = hold.late_copy_deadline;
        let real = hold::Hold::new(id, holder, self.lease, true, sent_at, late_copy_deadline);
        if until.is_none() {
            real.lose(self.origin, LostReason::Paused);
        }
        if hold.count_unknown {
            real.count_sent();
        }
        real
    }

    /// The waiter that was given a hold looks at it. One that it does not want is released, and it
    /// waits on.
    pub(crate) fn take_over(&self, state: &mut State, client: u8) -> Result<(), Violation> {
        let own = &mut state.clients[usize::from(client)];
        let Some(mut hold) = own.hold else { return Ok(()) };
        let is_fresh = self.real_hold(client, &hold).is_fresh(self.instant(state.now), self.lease);
        if !is_fresh && !self.lacks(Mutation::TakenOverUnseen) {
            self.release(state, client);
            return Ok(());
        }
        hold.is_given = false;
        own.waiting -= 1;
        own.hold = Some(hold);
        let is_valid = self.is_valid(hold.valid_until, state.now);
        if is_valid { Ok(()) } else { Err(RETURNED_OVER) }
    }

    /// The first waiter waits no longer.
    pub(crate) fn leave_queue(&self, state: &mut State, client: u8) {
        let own = &mut state.clients[usize::from(client)];
        own.waiting -= 1;
        if own.hold.is_some_and(|hold| hold.is_given) {
            if self.lacks(Mutation::GivenHoldsForgotten) {
                own.hold = None;
            } else {
                self.release(state, client);
            }
        }
    }

    /// The last guard is gone, and nobody gets the hold.
    pub(crate) fn release(&self, state: &mut State, client: u8) {
        let now = self.instant(state.now);
        let Some(hold) = state.clients[usize::from(client)].hold else { return };
        let (was_valid, _) = self.validity(hold.valid_until, |validity| validity.end(now));
        if !was_valid {
            self.lose(state, client, LostReason::Paused);
            return;
        }
        state.clients[usize::from(client)].hold = None;
        let held_until = hold.valid_until.filter(|_| self.lacks(Mutation::HeldWhileReleasing));
        self.queue(state, client, hold.number, hold.late_copy_deadline, held_until);
    }

    /// Another server has taken over: what the old one has released is released again.
    pub(crate) fn release_again(&self, state: &mut State, client: u8) {
        let own = &mut state.clients[usize::from(client)];
        own.has_moved = true;
        let logged = std::mem::take(&mut own.logged);
        if !self.lacks(Mutation::ReleasesNotSentAgain) {
            for hold in (0..HOLDS).filter(|hold| logged & (1 << hold) != 0) {
                self.queue(state, client, hold, None, None);
            }
        }
    }

    /// A renewal or a count was answered.
    fn extension_answered(
        &self,
        state: &mut State,
        message: Message,
        reply: Reply,
    ) -> Result<(), Violation> {
        let now = state.now;
        let Command { client, hold: number, verb, .. } = message.command;
        let own = &mut state.clients[usize::from(client)];
        let Some(hold) = own.hold.as_mut().filter(|hold| hold.number == number) else {
            return Ok(());
        };
        let lease = match verb {
            Verb::Renew => {
                hold.is_renewing = false;
                Some(self.lease)
            }
            Verb::SetCount { nested, .. } => {
                hold.is_nesting &= !nested;
                hold.count_unknown = false;
                nested.then_some(self.nested_lease)
            }
            _ => None,
        };
        match (reply, lease) {
            (Reply::Renewed | Reply::Counted, Some(lease)) => {
                let until = self.trusted_until(lease, message.sent_at, now);
                let end = self.at_millis(until);
                (_, hold.valid_until) = self
                    .validity(hold.valid_until, |validity| validity.extend(self.instant(now), end));
                if self.lacks(Mutation::ExtendedAfterEnd) {
                    hold.valid_until = hold.valid_until.max(Some(until));
                }
            }
            (Reply::Lost { taken_over }, _) => {
                let forgotten = (hold.handed_over && self.lacks(Mutation::LossesOfFormerHolders))
                    || (hold.is_cached && self.lacks(Mutation::LossesOfCachedHolds));
                let reason = if taken_over { LostReason::TakenOver } else { LostReason::Deleted };
                if !forgotten {
                    self.lose(state, client, reason);
                }
                let left = state.clients[usize::from(client)].hold;
                if left.is_some_and(|hold| self.is_valid(hold.valid_until, now)) {
                    return Err("a hold was found to be gone, and its holder is not told");
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// A release was answered.
    fn release_answered(&self, state: &mut State, message: Message, at: ServerTime) {
        let instant = self.instant(state.now);
        let Command { client, hold: number, .. } = message.command;
        let own = &mut state.clients[usize::from(client)];
        let mut places = own.releases.iter_mut();
        let place = places.find(|place| place.is_some_and(|one| one.hold == number));
        let Some(place) = place else { return };
        let Some(queued) = place else { return };
        queued.is_sent = false;
        queued.held_until = None;
        let again = queued.schedule.acknowledge(instant, at);
        if !again || self.lacks(Mutation::ReleasedOnce) {
            *place = None;
            own.settled |= 1 << number;
            own.logged |= 1 << number;
            // The new server may not know of it.
            if own.has_moved && message.is_of_old_server {
                self.release_again(state, client);
            }
        }
    }
}

// Messages.
impl CheckedLock {
    pub(crate) fn send(&self, state: &mut State, client: u8, hold: u8, verb: Verb) {
        let not_after = match verb {
            // Its script has none.
            Verb::Release => i64::MAX,
            // By the time that a round trip took.
            _ if self.lacks(Mutation::EstimateAhead) => self.not_after(state.now) + 3 * STEP_MILLIS,
            _ => self.not_after(state.now),
        };
        let command = Command { client, hold, verb, not_after };
        let message = Message {
            command,
            sent_at: state.now,
            is_awaited: true,
            is_of_old_server: false,
            lacks_replica: false,
            reply: None,
        };
        let place = state.messages.iter_mut().find(|place| place.is_none()).unwrap();
        *place = Some(message);
        state.messages.sort_unstable();
    }

    /// A message reaches the server, or its reply the client.
    pub(crate) fn deliver(&self, state: &mut State, index: usize) -> Result<(), Violation> {
        let Some(message) = state.messages[index].take() else { return Ok(()) };
        if let Some(reply) = message.reply {
            state.messages.sort_unstable();
            return self.receive(state, message, reply);
        }
        let ran = self.run(state.keys, message.command, state.now);
        let before = std::mem::replace(&mut state.keys, ran.keys);
        if let Reply::Granted(token @ 1..) = ran.reply {
            let Command { client, hold, .. } = message.command;
            let is_larger = |(last, last_client, last_hold)| {
                token > last || (token, client, hold) == (last, last_client, last_hold)
            };
            if !state.granted.is_none_or(is_larger) {
                return Err("a later hold has no larger token");
            }
            state.granted = Some((token, client, hold));
        }
        if ran.touched_other_owner && !self.lacks(Mutation::OneOwnerForAllHolds) {
            return Err("a command has changed another owner's hold");
        }
        let gone = self.held(before, state.now) & !self.held(ran.keys, state.now);
        if self.ends_other_trusted(state, message.command, gone) {
            return Err("a command has ended a trusted hold that it does not name");
        }
        if matches!(ran.reply, Reply::Forced(_)) {
            state.forced.1 += u8::from(gone != 0);
        } else if message.is_awaited {
            let is_grant = matches!(ran.reply, Reply::Granted(_)) && self.limits.replica_acks;
            let lacks_replica = is_grant && state.replica.is_some_and(|keys| keys != state.keys);
            let reply = Some(ran.reply);
            state.messages[index] = Some(Message { lacks_replica, reply, ..message });
        }
        state.messages.sort_unstable();
        Ok(())
    }

    /// Whether one of these holds is trusted, and is not the command's own.
    fn ends_other_trusted(&self, state: &State, command: Command, gone: OwnerSet) -> bool {
        (0..).zip(&state.clients).any(|(client, own)| {
            own.hold.is_some_and(|hold| {
                let bit = 1 << (client * HOLDS + hold.number);
                let is_own = client == command.client && hold.number == command.hold;
                let is_forced = matches!(command.verb, Verb::ForceRelease(_));
                gone & bit != 0
                    && !is_own
                    && !is_forced
                    && self.is_valid(hold.valid_until, state.now)
            })
        })
    }

    fn receive(&self, state: &mut State, message: Message, reply: Reply) -> Result<(), Violation> {
        match (message.command.verb, reply) {
            (Verb::Acquire { .. }, _) => return self.acquire_answered(state, message, reply),
            (Verb::Renew | Verb::SetCount { .. }, _) => {
                return self.extension_answered(state, message, reply);
            }
            (Verb::Release, Reply::Released(at)) => self.release_answered(state, message, at),
            _ => {}
        }
        Ok(())
    }

    /// The client of a message waits no longer for its reply.
    pub(crate) fn stop_waiting(&self, state: &mut State, index: usize) {
        let Some(message) = state.messages[index].take() else { return };
        let now = self.instant(state.now);
        let Command { client, hold: number, verb, not_after } = message.command;
        if message.reply.is_none() && !message.is_of_old_server {
            state.messages[index] = Some(Message { is_awaited: false, ..message });
        }
        state.messages.sort_unstable();
        if matches!(verb, Verb::ForceRelease(_)) {
            return;
        }
        let Client { call, hold, releases, .. } = &mut state.clients[usize::from(client)];
        let hold = hold.as_mut().filter(|hold| hold.number == number);
        match (verb, call, hold) {
            (Verb::Acquire { .. }, Some(call), _) => self.attempt_failed(call, not_after),
            (Verb::Renew, _, Some(hold)) => hold.is_renewing = false,
            (Verb::SetCount { nested, .. }, _, Some(hold)) => hold.is_nesting &= !nested,
            (Verb::Release, ..) => {
                for place in releases {
                    if let Some(queued) = place.as_mut().filter(|one| one.hold == number) {
                        queued.is_sent = false;
                        if !queued.schedule.fail(now) || self.lacks(Mutation::ReleasesNotQueued) {
                            *place = None;
                        }
                    }
                }
            }
            _ => {}
        }
    }
}
