//! The watchdog as the rest of the client sees it.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use hashed_wheel::Clock;

use crate::error::{Error, LostReason};
use crate::events::dispatcher::EventDispatcher;
use crate::events::stats::Counters;
use crate::hold::hold::Hold;
use crate::hold::listener::EndListener;
use crate::hold::registry::HoldRegistry;
use crate::hold::state::Loss;
use crate::ledger::ledger::{ReleaseAnswer, Stage};
use crate::ledger::release::{Release, ReleaseId, ReleaseOp};
use crate::model::name::LockName;
use crate::model::release_no::ReleaseNo;
use crate::model::settings::Settings;
use crate::model::sync::Parker;
use crate::store::Store;
use crate::watchdog::context::{ClientDescription, Context};
use crate::watchdog::pending_releases::{BegunRelease, PendingReleases};
use crate::watchdog::scheduler::Timer;
use crate::watchdog::settle::{self, SendLimit};
use crate::watchdog::shared::Shared;
use crate::watchdog::worker::RenewalWorker;
use crate::watchdog::{endings, ticker, worker_thread};

/// Renews the holds of one client and finds out when one is lost.
#[derive(Debug)]
pub(crate) struct Watchdog {
    shared: Arc<Shared>,
    timer: Option<Arc<Timer>>,
}

impl Watchdog {
    pub(crate) fn start(
        client: ClientDescription,
        store: Arc<Store>,
        clock: Arc<dyn Clock>,
        settings: Settings,
        holds: Arc<HoldRegistry>,
        events: Arc<EventDispatcher>,
        ended: Arc<dyn EndListener>,
    ) -> Result<Self, Error> {
        let (counters, stopping) = (Arc::default(), AtomicBool::new(false));
        let context =
            Context { client, store, clock, settings, holds, events, ended, counters, stopping };
        let shared = Arc::new_cyclic(|shared: &Weak<Shared>| {
            let shared = Weak::clone(shared);
            let main = move |worker: &RenewalWorker| {
                if let Some(shared) = shared.upgrade() {
                    worker_thread::run(&shared, worker);
                }
            };
            Shared::new(context, Arc::new(main))
        });
        let own = Arc::clone(&shared);
        let timer = shared.scheduler.start(move |due| ticker::on_due(&own, due))?;
        // With a single server its thread will be needed. If it cannot start, building the client
        // fails.
        if let Some(only) = shared.context.only_server() {
            shared.workers.start(only)?;
        }
        Ok(Self { shared, timer: Some(timer) })
    }

    /// Watches a hold that was granted to a request sent at `sent_at`, or reschedules one that was
    /// nested. It is in the registry of holds already.
    pub(crate) fn watch(&self, hold: &Arc<Hold>, sent_at: Instant) {
        let shared = &*self.shared;
        let Shared { context, scheduler, failover, server_check, .. } = shared;
        if context.only_server().is_none() {
            hold.set_needs_verification(true);
        }
        if !scheduler.schedule_granted(hold, sent_at) {
            endings::lose(shared, hold, LostReason::Expired);
        }
        failover.check_granted(hold, sent_at);
        server_check.start(&hold.name);
        // The thread may have died since the request was sent. It says so before it reads the
        // registry.
        if self.is_dead(&hold.name) && hold.watched_lease().is_some() {
            endings::lose(shared, hold, hold.reason_of_end());
        }
    }

    /// Whether nothing renews holds of this name any more, although the client has not ended.
    pub(crate) fn is_dead(&self, name: &LockName) -> bool {
        self.shared.workers.is_any_dead()
            && self.shared.workers.is_dead(self.shared.context.server_of(name))
    }

    /// Ends a hold for all its guards, and leaves it to the caller to send `release`, which has
    /// begun. An error if the hold was over before; then its release is queued if there is anything
    /// to release.
    pub(crate) fn end(&self, hold: &Arc<Hold>, release: ReleaseNo) -> Result<(), Loss> {
        endings::end(&self.shared, hold, release)
    }

    /// Ends a hold without a guard on a renewal thread, unless it has ended, and releases it, by
    /// `release` if that has begun. Waits for no server and reads no clock.
    pub(crate) fn end_in_background(&self, hold: &Arc<Hold>, release: Option<ReleaseNo>) {
        endings::end_in_background(&self.shared, hold, release);
    }

    /// Runs something in which foreign code may panic. A panic is counted; then there is no result.
    pub(crate) fn catch_panic<T>(&self, action: impl FnOnce() -> T) -> Option<T> {
        self.shared.context.catch_panic(action)
    }

    /// Stops renewing a hold. It comes before the release is sent: no renewal starts from now on,
    /// and one that is under way extends nothing.
    pub(crate) fn stop_renewing(&self, hold: &Hold) {
        self.shared.scheduler.remove(hold);
    }

    /// Ends a hold that turned out to be lost.
    pub(crate) fn lose(&self, hold: &Arc<Hold>, reason: LostReason) {
        endings::lose(&self.shared, hold, reason);
    }

    /// An owner is in a queue on the server: this release is needed unless the acquire is granted.
    pub(crate) fn begin_in_server_queue(&self, release: Release) -> BegunRelease<'_> {
        let release = self.shared.releases.begin_guarded(release, Stage::InServerQueue);
        self.shared.record.request();
        release
    }

    /// The releases of one request have an answer.
    pub(crate) fn settle(&self, releases: &[ReleaseNo], answer: ReleaseAnswer<'_>) {
        settle::settle(&self.shared, releases, answer);
    }

    /// Sends a request, now, that gives back `releases` of a name, and does not wait for the reply.
    /// False if it was not sent: the caller goes on with the releases.
    pub(crate) fn send_unread(
        &self,
        releases: &[ReleaseNo],
        request: (&LockName, &ReleaseOp),
        now: Instant,
        limit: SendLimit,
    ) -> bool {
        settle::send_unread(&self.shared, releases, request, now, limit)
    }

    /// Settles the owed replies that were read, by whichever thread.
    pub(crate) fn settle_owed(&self) {
        settle::settle_owed(&self.shared);
    }

    /// Reads the replies to releases that are unread, for `longest` at most by the system's clock.
    /// What has none by then is queued.
    pub(crate) fn finish_unread(&self, longest: Duration) {
        settle::finish(&self.shared, longest);
    }

    /// Reads what is unread and here. Unparks `parker` whenever a release may be settled, while
    /// `wait` runs.
    pub(crate) fn while_outstanding(&self, parker: &Parker, wait: impl FnOnce()) {
        self.shared.releases.while_waiting(parker, || {
            settle::read_owed(&self.shared);
            wait();
        });
    }

    /// Waits for the pending releases until `deadline`. Returns those that no server has
    /// acknowledged.
    pub(crate) fn flush_releases(&self, deadline: Instant) -> Vec<ReleaseId> {
        self.shared.releases.flush(deadline)
    }

    pub(crate) fn counters(&self) -> &Arc<Counters> {
        &self.shared.context.counters
    }

    /// The releases that no server has acknowledged.
    pub(crate) fn releases(&self) -> &Arc<PendingReleases> {
        &self.shared.releases
    }

    /// What the client is called.
    pub(crate) fn label(&self) -> &str {
        &self.shared.context.client.label
    }

    /// The client was shut down: nobody needs its record. Does not wait.
    pub(crate) fn end_record(&self) {
        self.shared.record.end();
    }

    /// Ends all threads. Waits for renewals that are under way.
    pub(crate) fn stop(&mut self) {
        self.shared.context.stop();
        self.shared.workers.wake();
        // The last handle: dropping it ends the ticker.
        drop(self.timer.take());
        self.shared.workers.join();
    }

    /// For a forked child, which has the handles of threads that it does not have: drops nothing
    /// and waits for nothing. The ticker's share keeps the handles of the renewal threads, and is
    /// never freed.
    pub(crate) fn abandon(&mut self) {
        std::mem::forget(self.timer.take());
    }
}
