//! The state shared by all parts of the watchdog.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hashed_wheel::Clock;

use crate::events::dispatcher::EventDispatcher;
use crate::events::report::Warning;
use crate::events::stats::Counters;
use crate::hold::listener::EndListener;
use crate::hold::registry::HoldRegistry;
use crate::model::name::LockName;
use crate::model::panics;
use crate::model::settings::Settings;
use crate::store::{Info, ServerId, Store};

/// The client's identity, label and start.
#[derive(Clone, Debug)]
pub(crate) struct ClientDescription {
    /// The client's identity, as in its owners.
    pub(crate) id: String,
    pub(crate) label: Arc<str>,
    /// When the client started, by its own clock.
    pub(crate) started: Instant,
}

/// The state shared by all parts of one client's watchdog: store, clock, settings, holds and
/// counters.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) client: ClientDescription,
    pub(crate) store: Arc<Store>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) settings: Settings,
    pub(crate) holds: Arc<HoldRegistry>,
    pub(crate) events: Arc<EventDispatcher>,
    /// Notified of each hold which no caller releases.
    pub(crate) ended: Arc<dyn EndListener>,
    pub(crate) counters: Arc<Counters>,
    /// Whether the client is ending.
    pub(crate) stopping: AtomicBool,
}

impl Context {
    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Returns the server with the keys of this name, as far as the client knows.
    pub(crate) fn server_of(&self, name: &LockName) -> ServerId {
        self.store.server_of(name.as_str())
    }

    /// Returns the server of all names; `None` for a cluster, where names have different servers.
    pub(crate) fn only_server(&self) -> Option<ServerId> {
        self.store.only_server()
    }

    /// Sets the flag on which all threads of the watchdog end. Wakes no thread.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Reports each warning that follows from a server's `INFO`, unless already reported.
    pub(crate) fn warn_about(&self, info: &Info) {
        let Self { events, settings, .. } = self;
        if let Some(policy) = info.evicting.clone() {
            events.warn_once(Warning::Eviction { policy });
        }
        if info.writes_alone {
            events.warn_once(Warning::WritesWithoutReplicas);
        }
        if info.has_replicas && settings.replica_acks.is_none() {
            events.warn_once(Warning::ReplicasNotAwaited);
        }
    }

    /// Runs an action in which the clock may panic, and returns its result. Counts a panic, and
    /// then returns `None`.
    ///
    /// The clock is the only foreign code called by the watchdog. During the action, the watchdog's
    /// work stays in the wheel, the registry or the release queue, so the caller can schedule
    /// everything again.
    pub(crate) fn catch_panic<T>(&self, action: impl FnOnce() -> T) -> Option<T> {
        let result = panics::catch_panic(action);
        if result.is_none() {
            self.counters.panicked();
        }
        result
    }

    /// Returns the timeout for all pending releases of one server together, and for a check of the
    /// server. Renewals wait meanwhile, so the timeout is a small part of a lease.
    pub(crate) fn release_timeout(&self) -> Duration {
        const MAX: Duration = Duration::from_secs(1);
        let part = self.settings.watchdog_lease.duration() / 12;
        part.max(self.settings.tick).min(MAX).min(self.settings.command_timeout)
    }
}
