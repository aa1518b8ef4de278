//! Checks servers for restarts and bad settings, on the renewal threads while there are holds.
//!
//! A restarted server ends its connections and may have lost its keys. Only a check finds such a
//! restart in time: the renewal thread checks its socket every second. A thread which waits at the
//! socket would be an additional thread for each server, for a monthly event.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::model::name::LockName;
use crate::store::ServerId;
use crate::watchdog::context::Context;
use crate::watchdog::workers::Workers;

/// Makes the renewal threads check their servers while there are holds.
#[derive(Debug)]
pub(crate) struct ServerCheck {
    context: Arc<Context>,
    workers: Arc<Workers>,
    /// Whether the renewal threads check their servers from time to time, because there are holds.
    /// Always true for the store in memory, which has nothing to check: [`start`](Self::start) then
    /// does nothing.
    is_started: AtomicBool,
}

/// The interval between two checks of a server while there are holds. A check costs no round trip.
const INTERVAL: Duration = Duration::from_secs(1);

impl ServerCheck {
    /// Creates the check. Nothing is checked before [`start`](Self::start).
    pub(crate) fn new(context: Arc<Context>, workers: Arc<Workers>) -> Self {
        let is_started = AtomicBool::new(!context.store.may_recover_by_itself());
        Self { context, workers, is_started }
    }

    /// Makes the renewal threads check their servers, because of a hold of this name. In a cluster
    /// without a renewal thread, starts a thread, which also handles the holds and releases of a
    /// failed node.
    pub(crate) fn start(&self, name: &LockName) {
        // Usually the threads do already. A race only delays the report of a restart until the next
        // renewal.
        if self.is_started.load(Ordering::SeqCst) || self.is_started.swap(true, Ordering::SeqCst) {
            return;
        }
        if self.workers.wake() {
            return;
        }
        if self.workers.with_worker(self.context.server_of(name), |_| ()).is_none() {
            self.stop();
        }
    }

    /// Clears the flag after the last renewal thread has ended, so the next hold starts a thread.
    pub(crate) fn stop(&self) {
        self.is_started.store(false, Ordering::SeqCst);
    }

    /// Checks `server` for a restart if `next` has come, and reports warnings about a new server.
    /// Returns when to check next; `None` if there are no holds or nothing to check. Runs on the
    /// renewal thread of `server`.
    pub(crate) fn run(
        &self,
        server: ServerId,
        now: Instant,
        next: Option<Instant>,
    ) -> Option<Instant> {
        let store = &self.context.store;
        self.warn_about_new_server(server);
        // Before the holds are counted: a thread which inserts a hold afterwards sees the flag.
        self.is_started.store(!store.may_recover_by_itself(), Ordering::SeqCst);
        if self.context.holds.len() == 0 || !store.may_recover_by_itself() {
            return None;
        }
        self.is_started.store(true, Ordering::SeqCst);
        if next.is_some_and(|next| next <= now) {
            store.ensure_connected(server, self.context.release_timeout());
            self.warn_about_new_server(server);
        }
        Some(next.filter(|next| *next > now).unwrap_or(now + INTERVAL))
    }

    /// Reports warnings if the connection for renewals leads to another or a restarted server.
    fn warn_about_new_server(&self, server: ServerId) {
        let timeout = self.context.release_timeout();
        if let Some(info) = self.context.store.info_of_new_server(server, timeout) {
            self.context.warn_about(&info);
        }
    }
}
