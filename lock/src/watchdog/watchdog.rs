//! The watchdog: state shared by its ticker, its renewal threads and the callers.
//!
//! The methods which end a hold are in `endings`, the methods which answer for a release in
//! `settle`.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use std::time::Instant;

use hashed_wheel::Clock;

use crate::error::{Error, LostReason};
use crate::events::dispatcher::EventDispatcher;
use crate::hold::hold::Hold;
use crate::hold::listener::EndListener;
use crate::hold::registry::HoldRegistry;
use crate::ledger::ledger::Stage;
use crate::ledger::release::Release;
use crate::model::name::LockName;
use crate::model::settings::Settings;
use crate::store::Store;
use crate::watchdog::client_record_writer::ClientRecordWriter;
use crate::watchdog::context::{ClientDescription, Context};
use crate::watchdog::failover::FailoverCheck;
use crate::watchdog::scheduler::{Scheduler, Timer};
use crate::watchdog::server_check::ServerCheck;
use crate::watchdog::shared_ledger::{CancellableRelease, SharedLedger};
use crate::watchdog::worker::RenewalWorker;
use crate::watchdog::workers::{WorkerMain, Workers};
use crate::watchdog::{ticker, worker_thread};

/// Renews the holds of one client, detects losses, and sends the releases which no caller sends.
#[derive(Debug)]
pub(crate) struct Watchdog {
    pub(crate) context: Arc<Context>,
    pub(crate) scheduler: Arc<Scheduler>,
    pub(crate) workers: Arc<Workers>,
    /// The client's ledger, and the threads waiting for its entries.
    pub(crate) releases: Arc<SharedLedger>,
    pub(crate) failover: FailoverCheck,
    pub(crate) server_check: ServerCheck,
    pub(crate) record: ClientRecordWriter,
}

impl Watchdog {
    /// Starts the ticker, and the renewal thread of a single server. [`stop`](Self::stop) ends the
    /// returned timer.
    ///
    /// Returns [`Error::Thread`] if a thread cannot be started.
    pub(crate) fn start(
        client: ClientDescription,
        store: Arc<Store>,
        clock: Arc<dyn Clock>,
        settings: Settings,
        holds: Arc<HoldRegistry>,
        events: Arc<EventDispatcher>,
        ended: Arc<dyn EndListener>,
    ) -> Result<(Arc<Self>, Arc<Timer>), Error> {
        let (counters, stopping) = (Arc::default(), AtomicBool::new(false));
        let context =
            Context { client, store, clock, settings, holds, events, ended, counters, stopping };
        let watchdog = Arc::new_cyclic(|watchdog: &Weak<Self>| {
            let watchdog = Weak::clone(watchdog);
            let main = move |worker: &RenewalWorker| {
                if let Some(watchdog) = watchdog.upgrade() {
                    worker_thread::run(&watchdog, worker);
                }
            };
            Self::new(context, Arc::new(main))
        });
        let own = Arc::clone(&watchdog);
        let timer = watchdog.scheduler.start(move |due| ticker::on_due(&own, due))?;
        // With a single server its thread will be needed. If the thread cannot start, building the
        // client fails.
        if let Some(only) = watchdog.context.only_server() {
            watchdog.workers.start(only)?;
        }
        Ok((watchdog, timer))
    }

    /// Makes a watchdog whose renewal threads will run `main`. Starts no thread.
    fn new(context: Context, main: WorkerMain) -> Self {
        let context = Arc::new(context);
        let scheduler = Arc::new(Scheduler::new(Arc::clone(&context)));
        let workers = Arc::new(Workers::new(Arc::clone(&context), Arc::clone(&scheduler), main));
        let releases = Arc::new(SharedLedger::new(Arc::clone(&context), Arc::clone(&workers)));
        Self {
            failover: FailoverCheck::new(
                Arc::clone(&context),
                Arc::clone(&scheduler),
                Arc::clone(&releases),
            ),
            server_check: ServerCheck::new(Arc::clone(&context), Arc::clone(&workers)),
            record: ClientRecordWriter::new(
                Arc::clone(&context),
                Arc::clone(&workers),
                Arc::clone(&releases),
            ),
            context,
            scheduler,
            workers,
            releases,
        }
    }

    /// Puts a hold, granted or nested by a request sent at `sent_at`, on the wheel. The hold is
    /// already in the registry. A hold that has expired meanwhile, or that no thread can renew, is
    /// lost.
    pub(crate) fn watch(&self, hold: &Arc<Hold>, sent_at: Instant) {
        if self.context.only_server().is_none() {
            hold.set_needs_verification(true);
        }
        if !self.scheduler.schedule_granted(hold, sent_at) {
            self.lose(hold, LostReason::Expired);
        }
        self.failover.check_granted(hold, sent_at);
        self.server_check.start(&hold.name);
        // The thread may have died since the request was sent. A dying thread sets `dead` before it
        // reads the registry.
        if self.is_dead(&hold.name) && hold.watched_lease().is_some() {
            self.lose(hold, hold.reason_of_end());
        }
    }

    /// Returns whether the renewal thread of this name's server has ended unexpectedly, so holds of
    /// the name are not renewed any more.
    pub(crate) fn is_dead(&self, name: &LockName) -> bool {
        self.workers.is_any_dead() && self.workers.is_dead(self.context.server_of(name))
    }

    /// Begins the release of an owner in a queue on the server, needed unless the acquire is
    /// granted, and requests a client record. Dropping the returned value cancels the release.
    pub(crate) fn begin_in_server_queue(&self, release: Release) -> CancellableRelease<'_> {
        let release = self.releases.begin_guarded(release, Stage::InServerQueue);
        self.record.request();
        release
    }

    /// Ends the ticker and all renewal threads, and waits for renewals in flight. `timer` must be
    /// the last handle of the ticker.
    pub(crate) fn stop(&self, timer: Option<Arc<Timer>>) {
        self.context.stop();
        self.workers.wake();
        // The last handle: dropping it ends the ticker.
        drop(timer);
        self.workers.join();
    }
}
