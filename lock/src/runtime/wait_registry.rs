//! The wait registry: which threads of this client wait, and for which channel. It takes the
//! messages to them (DESIGN: waiting).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hashed_wheel::Clock;

use crate::events::dispatcher::EventDispatcher;
use crate::events::report::Warning;
use crate::events::stats::Gauge;
use crate::hold::registry::HoldRegistry;
use crate::model::kind::Kind;
use crate::model::lease::Lease;
use crate::model::name::LockName;
use crate::model::settings::HandOver;
use crate::model::sync::Mutex;
use crate::runtime::wait_channel::{Channel, Waiting};
use crate::store::Listener;
use crate::store::shutdown::ShutdownState;

/// How a wait for grants is set up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitSettings {
    pub(crate) poll_bound: Duration,
    pub(crate) hand_over: HandOver,
    /// The lease of the holds that are handed over.
    pub(crate) lease: Lease,
}

/// The channels that threads of this client wait on.
#[derive(Debug)]
pub(crate) struct WaitRegistry {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) events: Arc<EventDispatcher>,
    pub(crate) holds: Arc<HoldRegistry>,
    pub(crate) settings: WaitSettings,
    pub(crate) shutdown: ShutdownState,
    pub(crate) by_name: Mutex<HashMap<Arc<str>, Channel>>,
    /// Threads that sleep here, or have slept and are about to try again.
    pub(crate) sleepers: Gauge,
    /// How often a hold was handed over.
    pub(crate) hand_overs: AtomicU64,
}

impl WaitRegistry {
    pub(crate) fn new(
        clock: Arc<dyn Clock>,
        events: Arc<EventDispatcher>,
        holds: Arc<HoldRegistry>,
        settings: WaitSettings,
    ) -> Self {
        Self {
            clock,
            events,
            holds,
            settings,
            shutdown: ShutdownState::default(),
            by_name: Mutex::new(HashMap::new()),
            sleepers: Gauge::default(),
            hand_overs: AtomicU64::new(0),
        }
    }

    /// Whether a thread of this client holds the lock, and its waiters will learn of the end.
    pub(crate) fn is_in_use(&self, name: &LockName, now: Instant) -> bool {
        self.holds.any(name, |hold| hold.kind == Kind::Reentrant && hold.is_in_use(now))
    }

    /// Ends every wait, now and later.
    pub(crate) fn close(&self) {
        self.shutdown.begin();
        for queue in self.by_name.lock().values().flat_map(Channel::queues) {
            queue.threads.values().for_each(|thread| thread.parker.unpark());
        }
    }

    /// It begins with [`close`](Self::close).
    pub(crate) fn shutdown(&self) -> &ShutdownState {
        &self.shutdown
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.shutdown.has_begun()
    }

    /// Threads that sleep here, or have slept and are about to try again.
    pub(crate) fn waiters(&self) -> usize {
        self.sleepers.now()
    }

    /// Who of this client waits on a channel.
    pub(crate) fn waiting_on(&self, channel: &str) -> Waiting {
        let by_name = self.by_name.lock();
        by_name.get(channel).map_or_else(Waiting::default, |channel| Waiting {
            threads: channel.exclusive.threads.len() + channel.shared.threads.len(),
            is_subscribed: channel.live && channel.queues().iter().any(|queue| queue.subscribed),
        })
    }

    /// How often a hold was handed over.
    pub(crate) fn hand_overs(&self) -> u64 {
        // Relaxed: a plain sum.
        self.hand_overs.load(Ordering::Relaxed)
    }
}

impl Listener for WaitRegistry {
    fn live(&self, channel: &str) {
        let now = self.clock.now();
        if let Some(channel) = self.by_name.lock().get_mut(channel) {
            channel.live = true;
            for queue in channel.queues_mut() {
                queue.queue.confirmed();
                queue.unpark(queue.queue.leader(now));
            }
        }
    }

    fn message(&self, channel: &str, _payload: &str) {
        let now = self.clock.now();
        let budget = self.settings.hand_over.budget();
        if let Some(channel) = self.by_name.lock().get_mut(channel) {
            for queue in channel.queues_mut() {
                if queue.queue.message(now, budget) {
                    queue.unpark(queue.queue.leader(now));
                }
            }
        }
    }

    fn refused(&self, refusal: &str) {
        // The server refuses each channel anew. One warning is enough.
        self.events.warn_once(Warning::ChannelsRefused { refusal: refusal.to_owned() });
    }
}
