//! A renewal thread, one for each server: sends due renewals there, then queued releases. No error
//! ends the thread, and no other server delays the thread.
//!
//! A pass sends all renewals which have become due since the last pass, earliest end of validity
//! first, in scripts of many keys, several in flight.
//!
//! A panic of the clock costs no hold while the thread goes on: the holds of the pass are retried.
//! If the thread itself ends, the watched holds of its server are lost, and further holds are
//! refused with [`Error::WatchdogGone`](crate::error::Error::WatchdogGone).

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::hold::hold::Hold;
use crate::model::sync::park;
use crate::watchdog::clock_jump::ClockJumps;
use crate::watchdog::dispatch::retain_own;
use crate::watchdog::release_sender::{send_last_releases, send_queued_releases};
use crate::watchdog::renewal_batch::{
    InFlightLimit, RenewalBatch, is_backlog, renewal_batches, sort,
};
use crate::watchdog::renewal_pass::{RenewalPass, WorkerState};
use crate::watchdog::watchdog::Watchdog;
use crate::watchdog::worker::RenewalWorker;

/// How long the reply to a dropped guard's release may stay unread. In most programs a call reads
/// the reply before.
const UNREAD_REPLY_DELAY: Duration = Duration::from_millis(100);

/// The interval between checks for unused connections.
const UNUSED_CHECK: Duration = Duration::from_secs(30);

/// Runs the renewal thread of `worker`: one pass after another, parked in between, until the client
/// ends or no longer knows the server. Then sends the last releases and removes the client record.
pub(crate) fn run(watchdog: &Watchdog, worker: &RenewalWorker) {
    let mut exit = ExitGuard { watchdog, worker, is_dismissed: false };
    let context = &watchdog.context;
    let mut state = WorkerState::default();
    let (mut next_check, mut next_read) = (None, None);
    while !context.is_stopping() {
        // A panic of the clock in one pass must not end renewal.
        let pass = context.catch_panic(|| pass(watchdog, worker, &mut state, next_check));
        next_check = pass.unwrap_or_else(|| {
            context.catch_panic(|| retry_unanswered(watchdog, worker));
            None
        });
        if watchdog.workers.dismiss(worker, || watchdog.releases.ledger().has_queued(worker.server))
        {
            exit.is_dismissed = true;
            if watchdog.workers.is_empty() {
                watchdog.server_check.stop();
            }
            return;
        }
        // Also if a clock panics: unread replies stay unread until the next pass.
        let read = context.catch_panic(|| read_unread_if_due(watchdog, worker, next_read));
        next_read = read.flatten();
        let next_release = watchdog.releases.ledger().next_due(worker.server);
        let times = [next_release, next_check, next_read, state.next_record, state.next_close];
        let next = times.into_iter().flatten().min();
        park(&*context.clock, &worker.parker, next, None);
    }
    watchdog.end_unguarded(worker);
    context.catch_panic(|| send_last_releases(watchdog, worker));
    context.catch_panic(|| watchdog.record.remove(worker.server));
}

/// Ends all watched holds of the server as lost if the thread ends too early, as no thread renews
/// the holds any more. Only a panic of the clock during a park ends the thread too early. Otherwise
/// the holds would seem valid until a caller checks.
struct ExitGuard<'a> {
    watchdog: &'a Watchdog,
    worker: &'a RenewalWorker,
    /// Whether the thread ends because the client no longer knows the server.
    is_dismissed: bool,
}

impl Drop for ExitGuard<'_> {
    fn drop(&mut self) {
        if !self.is_dismissed && !self.watchdog.context.is_stopping() {
            self.watchdog.context.counters.panicked();
            self.watchdog.lose_all_watched(self.worker);
        }
    }
}

/// Runs one pass: ends unguarded holds, sends due renewals and queued releases, checks the server,
/// and writes the client record. Returns when to check the server next; `None` if nothing is to be
/// checked.
fn pass(
    watchdog: &Watchdog,
    worker: &RenewalWorker,
    state: &mut WorkerState,
    next_check: Option<Instant>,
) -> Option<Instant> {
    let Watchdog { context, failover, server_check, record, .. } = watchdog;
    // Holds left to this thread by guards, and the consequences of a failover.
    watchdog.end_unguarded(worker);
    if failover.check() {
        // Another server has another clock.
        state.clock_jumps = ClockJumps::default();
    }
    // The renewals.
    let settings = &context.settings;
    let mut due = retain_own(watchdog, worker, worker.take_due());
    sort(&mut due, settings.watchdog_lease);
    let is_backlog = is_backlog(due.len(), settings.renewal_keys);
    let keys = if is_backlog { settings.renewal_keys_behind } else { settings.renewal_keys };
    let batches = renewal_batches(&context.store, due, keys);
    // A server runs everything received from one client before it serves the next client. So while
    // there is time, one script is in flight, and the commands of other clients run in between.
    let mut limit = InFlightLimit::new(batches.iter().map(RenewalBatch::len), keys);
    if is_backlog || limit.time_for(batches.len(), state.round_trip.mean()) > settings.tick {
        limit.raise();
    }
    let mut pass = RenewalPass::new(watchdog, state, batches, limit);
    context.store.run_pipeline(worker.server, &mut pass);
    pass.retry_unsent();
    // The releases, the server itself, and the client's record there.
    let now = context.now();
    send_queued_releases(watchdog, worker, now, context.release_timeout());
    let next_check = server_check.run(worker.server, now, next_check);
    state.next_record = record.run(worker.server, now);
    let may_close_more = context.store.close_unused(worker.server);
    state.next_close = may_close_more.then(|| now + UNUSED_CHECK);
    next_check
}

/// Reads the replies left unread by dropped guards, once [`UNREAD_REPLY_DELAY`] has passed since
/// the first request to read. Reads from all servers, as the hash slot may have moved since the
/// release was sent. Returns when to call again; `None` if no read is requested.
fn read_unread_if_due(
    watchdog: &Watchdog,
    worker: &RenewalWorker,
    next: Option<Instant>,
) -> Option<Instant> {
    if !worker.has_to_read() {
        return None;
    }
    let now = watchdog.context.now();
    match next {
        None => Some(now + UNREAD_REPLY_DELAY),
        Some(next) if now < next => Some(next),
        Some(_) => {
            worker.begin_read();
            watchdog.read_unread().then(|| {
                worker.read_again();
                now + UNREAD_REPLY_DELAY
            })
        }
    }
}

/// Schedules another attempt for the unanswered holds of a pass cut short by a panic. Any of these
/// holds may have been renewed.
fn retry_unanswered(watchdog: &Watchdog, worker: &RenewalWorker) {
    let mut left = watchdog.context.holds.all();
    left.retain(|hold: &Arc<Hold>| {
        hold.is_unanswered() && watchdog.context.server_of(&hold.name) == worker.server
    });
    watchdog.scheduler.retry_later(left.iter());
}
