//! Whether the servers are there and set up well, checked by the renewal threads while there are
//! holds.
//!
//! A server that was restarted ends its connections, and only a check finds that. It may have lost
//! its keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::model::name::LockName;
use crate::store::ServerId;
use crate::watchdog::context::Context;
use crate::watchdog::workers::Workers;

#[derive(Debug)]
pub(crate) struct ServerCheck {
    context: Arc<Context>,
    workers: Arc<Workers>,
    /// Whether the renewal threads check their servers from time to time, because there are holds.
    /// Always true where there is nothing to check.
    active: AtomicBool,
}

/// How often a renewal thread checks its server while there are holds. A check costs no round trip.
const INTERVAL: Duration = Duration::from_secs(1);

impl ServerCheck {
    pub(crate) fn new(context: Arc<Context>, workers: Arc<Workers>) -> Self {
        let active = AtomicBool::new(!context.store.may_recover_by_itself());
        Self { context, workers, active }
    }

    /// There is a hold of this name, so the renewal threads check their servers. In a cluster this
    /// starts a thread if there is none, as that also handles the holds and releases of a node that
    /// fails.
    pub(crate) fn start(&self, name: &LockName) {
        // Usually they do already. A race costs only that a restart is reported at the next
        // renewal.
        if self.active.load(Ordering::SeqCst) || self.active.swap(true, Ordering::SeqCst) {
            return;
        }
        if self.workers.wake() {
            return;
        }
        if self.workers.with_worker(self.context.server_of(name), |_| ()).is_none() {
            self.stop();
        }
    }

    /// No renewal thread is left. The next hold starts one.
    pub(crate) fn stop(&self) {
        self.active.store(false, Ordering::SeqCst);
    }

    /// On a renewal thread: checks its server if it is time. Returns when to check next.
    pub(crate) fn run(
        &self,
        server: ServerId,
        now: Instant,
        next: Option<Instant>,
    ) -> Option<Instant> {
        let store = &self.context.store;
        self.warn_about_new_server(server);
        // Before the holds are counted: a thread that inserts one afterwards sees it.
        self.active.store(!store.may_recover_by_itself(), Ordering::SeqCst);
        if self.context.holds.len() == 0 || !store.may_recover_by_itself() {
            return None;
        }
        self.active.store(true, Ordering::SeqCst);
        if next.is_some_and(|next| next <= now) {
            store.ensure_connected(server, self.context.release_timeout());
            self.warn_about_new_server(server);
        }
        Some(next.filter(|next| *next > now).unwrap_or(now + INTERVAL))
    }

    /// The connection for renewals may lead to another server than before, or to one that was
    /// restarted.
    fn warn_about_new_server(&self, server: ServerId) {
        let timeout = self.context.release_timeout();
        if let Some(info) = self.context.store.info_of_new_server(server, timeout) {
            self.context.warn_about(&info);
        }
    }
}
