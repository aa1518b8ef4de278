//! The renewals of one pass, on their way to one server and back.
//!
//! A refused script is cut in two and both halves are sent again, until the key at fault is alone;
//! the other holds are not affected. If the server granted nothing at all, a few holds from all
//! over the pass are sent alone first. If these are refused too, the server refuses everything, and
//! the pass is retried later. Otherwise a server which refuses everything would receive each single
//! hold in each pass.
//!
//! Nothing more is sent in a pass if the server does not answer, or refuses all clients (LOADING,
//! READONLY, OOM). Otherwise thousands of holds would each spend an attempt's time on the same dead
//! server.
//!
//! A script refused only because its keys are on another server, or are being moved there, stops
//! nothing: its holds are retried shortly, and then sent to the new server. A script refused
//! because a cluster is behind the server is cut by hash slot and sent at once.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::time::Instant;

use crate::events::report::Warning;
use crate::hold::state::WheelEntry;
use crate::model::kind::Layout;
use crate::model::lease::Lease;
use crate::ops::{Renew, Renewal, Renewals, Renewed};
use crate::store::{Failure, HashSlot, PipelineRequest, PipelineSource};
use crate::watchdog::clock_jump::{ClockJumps, Reading};
use crate::watchdog::renewal_batch::{DueRenewal, InFlightLimit, RenewalBatch, renewal_batches};
use crate::watchdog::renewal_schedule::WindowQuota;
use crate::watchdog::rtt::MeanRoundTrip;
use crate::watchdog::watchdog::Watchdog;

/// The number of holds tried alone before a pass without any grant is cut up.
const PROBES: usize = 10;

/// A due renewal with the lease that the script asks for.
struct SentRenewal {
    due: DueRenewal,
    lease: Lease,
}

/// The renewals of one script in flight, and the time of sending.
pub(crate) struct RenewalScript {
    sent: Vec<SentRenewal>,
    sent_at: Instant,
}

/// The server which has answered a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Responder {
    /// The worker's server.
    Own,
    /// Another server, after a redirection. Its clock is another clock.
    Other,
}

/// The state that a renewal thread carries from one pass to the next.
#[derive(Default)]
pub(crate) struct WorkerState {
    quota: WindowQuota,
    pub(crate) round_trip: MeanRoundTrip,
    pub(crate) clock_jumps: ClockJumps,
    /// Whether the server refused everything at the last refusal.
    refuses_all: bool,
    /// When to check the client's record next.
    pub(crate) next_record: Option<Instant>,
    /// When to check for unused connections next.
    pub(crate) next_close: Option<Instant>,
}

/// The renewals of one pass, sent through the pipeline of a server.
pub(crate) struct RenewalPass<'a> {
    watchdog: &'a Watchdog,
    state: &'a mut WorkerState,
    /// Batches to send.
    unsent: VecDeque<RenewalBatch>,
    /// Refused batches, to be cut unless everything is refused.
    refused: Vec<RenewalBatch>,
    /// Whether some of the refused holds were tried alone.
    has_probed: bool,
    in_flight: usize,
    in_flight_limit: InFlightLimit,
    /// The number of scripts granted by the server.
    replies: usize,
    /// The code of the last refusal.
    refusal: Option<String>,
    /// Whether the server does not answer, or refuses everything for a while: nothing more is sent.
    is_over: bool,
}

impl<'a> RenewalPass<'a> {
    pub(crate) fn new(
        watchdog: &'a Watchdog,
        state: &'a mut WorkerState,
        unsent: VecDeque<RenewalBatch>,
        in_flight_limit: InFlightLimit,
    ) -> Self {
        Self {
            watchdog,
            state,
            unsent,
            refused: Vec::new(),
            has_probed: false,
            in_flight: 0,
            in_flight_limit,
            replies: 0,
            refusal: None,
            is_over: false,
        }
    }
}

impl PipelineSource for RenewalPass<'_> {
    type Operation = Renew;
    type Tag = RenewalScript;

    fn max_in_flight(&self) -> usize {
        self.in_flight_limit.size()
    }

    fn refill_at(&self) -> usize {
        self.in_flight_limit.refill_at()
    }

    /// Returns the next script of holds still to be renewed. `None` if nothing is left, the pass is
    /// over, or the next step depends on a reply.
    fn next(&mut self) -> Option<PipelineRequest<Renew, RenewalScript>> {
        let context = &self.watchdog.context;
        while !self.is_over
            && let Some(batch) = self.unsent.pop_front().or_else(|| self.next_refused())
        {
            // Read before the limit of a hold is checked: a grant counts from here, so a hold
            // cannot end beyond its limit.
            let sent_at = context.now();
            let sent = still_due(self.watchdog, batch, sent_at);
            // A batch is empty if all its holds were released meanwhile.
            if let Some(shortest) = sent.iter().map(|sent| sent.lease).min() {
                let limit = context.settings.command_timeout;
                let timeout = self.state.round_trip.attempt_timeout(shortest, limit);
                context.counters.script();
                self.in_flight += 1;
                let tag = RenewalScript { sent, sent_at };
                return Some(PipelineRequest { operation: script(&tag.sent), tag, timeout });
            }
        }
        None
    }

    fn on_reply(&mut self, script: RenewalScript, reply: Result<Renewals, Failure>) {
        self.handle_reply(script, reply, Responder::Own);
    }

    fn on_redirected_reply(&mut self, script: RenewalScript, reply: Result<Renewals, Failure>) {
        self.handle_reply(script, reply, Responder::Other);
    }
}

impl RenewalPass<'_> {
    /// Handles the reply to a script, or the reason for its absence. `responder` is the server that
    /// has answered.
    fn handle_reply(
        &mut self,
        script: RenewalScript,
        reply: Result<Renewals, Failure>,
        responder: Responder,
    ) {
        self.in_flight -= 1;
        match reply {
            Ok(reply) => self.handle_grant(&script, reply, responder),
            // The client ends.
            Err(Failure::Closed) => self.is_over = true,
            Err(failure) => {
                let batch: RenewalBatch = script.sent.into_iter().map(|sent| sent.due).collect();
                if failure.is_in_several_hash_slots() && batch.len() > 1 {
                    self.regroup(batch);
                    return;
                }
                self.watchdog.context.counters.unanswered();
                self.handle_failure(batch, &failure);
            }
        }
    }

    /// Handles the reply to a script that the server ran: applies the answer for each hold, and
    /// records the round trip and the server's clock. Raises the limit after a slow reply.
    fn handle_grant(&mut self, script: &RenewalScript, reply: Renewals, responder: Responder) {
        let context = &self.watchdog.context;
        let sent_at = script.sent_at;
        let answered_at = context.now();
        let took = answered_at.saturating_duration_since(sent_at);
        // Only the first script of a pass has waited for no other script.
        if self.replies == 0 {
            self.state.round_trip.observe(took);
        }
        self.replies += 1;
        self.state.refuses_all = false;
        if took > context.settings.tick {
            // Sending one group after another would take too long.
            self.in_flight_limit.raise();
        }
        context.counters.round_trip(took);
        if responder == Responder::Own {
            let reading = Reading { server: reply.at, sent_at, answered_at };
            let lease = context.settings.watchdog_lease.duration();
            if let Some(warning) = self.state.clock_jumps.observe(lease, reading) {
                context.events.warn(warning);
            }
        }
        for (sent, found) in script.sent.iter().zip(reply.answers) {
            self.handle_renewed(sent, found, sent_at, answered_at);
        }
    }

    /// Handles a refusal of keys in several hash slots, which reveals a cluster behind the server:
    /// groups `batch` and the unsent batches by hash slot, to be sent at once.
    ///
    /// The server ran nothing, so the refusal is not counted. The store has recorded the cluster.
    /// Such services refuse the commands with which a client could detect the cluster beforehand.
    fn regroup(&mut self, batch: RenewalBatch) {
        let Watchdog { context, .. } = self.watchdog;
        let slot = |due: &DueRenewal| context.store.hash_slot(due.hold.name.as_str());
        let slots: HashSet<HashSlot> = batch.iter().map(slot).collect();
        if slots.len() == 1 {
            // The server's hash slots differ from a cluster's hash slots.
            self.unsent.extend(batch.into_iter().map(|due| vec![due]));
            return;
        }
        let keys = context.settings.renewal_keys_behind;
        let due = batch.into_iter().chain(self.unsent.drain(..).flatten()).collect();
        self.unsent = renewal_batches(&context.store, due, keys);
        // Many small scripts cost the server as much as a few full ones.
        self.in_flight_limit = InFlightLimit::new(self.unsent.iter().map(RenewalBatch::len), keys);
        self.in_flight_limit.raise();
    }

    /// Handles a failed script: schedules another attempt for its holds, or leaves the batch to be
    /// cut and sent again. Ends the pass if the failure concerns the whole server. Reports a
    /// refusal as a warning.
    fn handle_failure(&mut self, batch: RenewalBatch, failure: &Failure) {
        if failure.is_redirect() {
            if failure.is_cross_slot() && batch.len() > 1 {
                // While a hash slot is migrated, its keys are on two servers. A single key is found
                // on one of the two.
                self.unsent.extend(batch.into_iter().map(|due| vec![due]));
            } else {
                self.watchdog.scheduler.retry_elsewhere(batch.iter().map(|due| &due.hold));
            }
            return;
        }
        let refusal = failure.refusal();
        // The next connection authenticates again. A refusal there is reported.
        let has_token_ended = |code: &str| failure.is_authentication_end() && code == "NOAUTH";
        if let Some((code, message)) = refusal.filter(|(code, _)| !has_token_ended(code)) {
            let refusal = format!("{code} {message}");
            self.watchdog.context.events.warn_once(Warning::RenewalsRefused { refusal });
        }
        self.refusal = refusal.map(|(code, _)| code.to_owned());
        self.note_refusal(&batch);
        let is_refused = failure.is_request_error();
        if is_refused && batch.len() > 1 {
            self.refused.push(batch);
        } else {
            self.is_over |= !is_refused;
            self.watchdog.scheduler.retry_later(batch.iter().map(|due| &due.hold));
        }
    }

    /// Records the last refusal as the reason of a loss, if nothing renews the holds of `batch` in
    /// time.
    fn note_refusal(&self, batch: &RenewalBatch) {
        for due in batch {
            due.hold.note_refusal(self.refusal.as_deref());
        }
    }

    /// Handles the server's answer about one hold: extends the validity and schedules the next
    /// renewal, or ends the hold as lost.
    fn handle_renewed(
        &mut self,
        sent: &SentRenewal,
        found: Renewed,
        sent_at: Instant,
        answered_at: Instant,
    ) {
        let Watchdog { context, scheduler, .. } = self.watchdog;
        let hold = &sent.due.hold;
        if let Some(reason) = found.loss() {
            self.watchdog.lose(hold, reason);
            return;
        }
        context.counters.renewed(answered_at.saturating_duration_since(sent.due.at));
        hold.set_needs_verification(context.only_server().is_none());
        // Too late if the validity has ended meanwhile: a loss is final, and the ticker reports it.
        if hold.extend(answered_at, sent.lease, sent_at) {
            scheduler.schedule_renewed(hold, sent.lease, sent_at, &mut self.state.quota);
        }
    }

    /// Returns the next batch to send of the refused holds: a half of a refused batch, or a single
    /// hold as a probe. `None` if none is left, a reply may decide, or the probes were refused too;
    /// then the pass is over.
    ///
    /// A server that has granted some scripts refuses other scripts because of certain keys, which
    /// are worth finding. A server without any grant may refuse everything, and then cutting is
    /// useless.
    fn next_refused(&mut self) -> Option<RenewalBatch> {
        if self.replies == 0 {
            // The server may grant a script in flight.
            if self.in_flight > 0 {
                return None;
            }
            // The probes are refused too.
            if self.has_probed {
                self.state.refuses_all = true;
                self.is_over = true;
                return None;
            }
            self.has_probed = !self.refused.is_empty();
            self.take_probes();
            return self.unsent.pop_front();
        }
        // The first half is sent now, the second half afterwards.
        let mut first = self.refused.pop()?;
        if first.len() > 1 {
            self.unsent.push_back(first.split_off(first.len() / 2));
        }
        Some(first)
    }

    /// Moves some holds, each alone in a batch, from the refused to the unsent batches. The holds
    /// are picked at random, as any fixed choice may hit the refused keys each time.
    fn take_probes(&mut self) {
        let random = RandomState::new();
        let random_index = |number: usize, len: usize| {
            usize::try_from(random.hash_one((number, len)) % len.max(1) as u64).unwrap_or(0)
        };
        for number in 0..if self.state.refuses_all { 1 } else { PROBES } {
            if self.refused.is_empty() {
                return;
            }
            let mut batch = self.refused.swap_remove(random_index(number, self.refused.len()));
            self.unsent.push_back(vec![batch.swap_remove(random_index(number, batch.len()))]);
            if !batch.is_empty() {
                self.refused.push(batch);
            }
        }
    }

    /// Ends the pass: schedules another attempt for all holds that were not sent.
    pub(crate) fn retry_unsent(mut self) {
        let left: Vec<RenewalBatch> = self.unsent.drain(..).chain(self.refused.drain(..)).collect();
        for batch in left {
            self.note_refusal(&batch);
            self.watchdog.scheduler.retry_later(batch.iter().map(|due| &due.hold));
        }
    }
}

/// Returns the holds of a batch that are still to be renewed at `now`, each with the lease to ask
/// for. Leaves out holds that were released or lost since the renewal became due.
///
/// A hold whose renewed validity would exceed `max_hold` is left out, so the hold may end up to an
/// interval earlier. A shortened renewal would be followed by ever shorter renewals.
fn still_due(watchdog: &Watchdog, batch: RenewalBatch, now: Instant) -> Vec<SentRenewal> {
    let max_hold = watchdog.context.settings.max_hold;
    // All holds are brought into the cache first, so the loads overlap.
    for due in &batch {
        due.hold.prefetch();
    }
    batch
        .into_iter()
        .filter(|due| !matches!(due.hold.wheel_entry(), WheelEntry::Removed))
        .filter_map(|due| Some(SentRenewal { lease: due.hold.lease_to_renew(now, max_hold)?, due }))
        .collect()
}

/// Makes the request that renews the holds of `batch`, all of one layout.
fn script(batch: &[SentRenewal]) -> Renew {
    let renewal = |sent: &SentRenewal| Renewal {
        name: sent.due.hold.name.clone(),
        owner: sent.due.hold.owner.clone(),
        lease: sent.lease,
    };
    let renewals = batch.iter().map(renewal).collect();
    let layout = batch.first().map_or(Layout::Counted, |sent| sent.due.hold.kind.layout());
    Renew::new(layout, renewals)
}
