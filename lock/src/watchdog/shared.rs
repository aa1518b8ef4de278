//! The parts of the watchdog, as its ticker, its renewal threads and the callers share them.

use std::sync::Arc;

use crate::watchdog::context::Context;
use crate::watchdog::failover::FailoverCheck;
use crate::watchdog::pending_releases::PendingReleases;
use crate::watchdog::record_writer::RecordWriter;
use crate::watchdog::scheduler::Scheduler;
use crate::watchdog::server_check::ServerCheck;
use crate::watchdog::workers::{WorkerMain, Workers};

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) context: Arc<Context>,
    pub(crate) scheduler: Arc<Scheduler>,
    pub(crate) workers: Arc<Workers>,
    pub(crate) releases: Arc<PendingReleases>,
    pub(crate) failover: FailoverCheck,
    pub(crate) server_check: ServerCheck,
    pub(crate) record: RecordWriter,
}

impl Shared {
    /// The renewal threads will run `main`.
    pub(crate) fn new(context: Context, main: WorkerMain) -> Self {
        let context = Arc::new(context);
        let scheduler = Arc::new(Scheduler::new(Arc::clone(&context)));
        let workers = Arc::new(Workers::new(Arc::clone(&context), Arc::clone(&scheduler), main));
        let releases = Arc::new(PendingReleases::new(Arc::clone(&context), Arc::clone(&workers)));
        Self {
            failover: FailoverCheck::new(
                Arc::clone(&context),
                Arc::clone(&scheduler),
                Arc::clone(&releases),
            ),
            server_check: ServerCheck::new(Arc::clone(&context), Arc::clone(&workers)),
            record: RecordWriter::new(
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
}
