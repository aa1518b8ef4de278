//! One client: its identity, its settings and its parts.
//!
//! A fork copies the memory but no threads, and shares the sockets. A lock taken by another thread
//! stays taken in the child, and a half-filled cell stays half filled. So a client belongs to its
//! process, and a child touches nothing of the parent's: each call first compares the process id.
//! The child builds a client of its own. A clone does not become a client of the child: each
//! client, red lock and guard would need a place that is filled in the child, although a fork may
//! copy the place while a thread fills it.
//!
//! The check is at the edge: where a call gets the client ([`ClientCore::running`]), where a guard
//! is queried or released, and in the drops of the client, of the guards, and of types with threads
//! or channels. `getpid` takes 80 ns. The id is the same for a process and the first process of a
//! new PID namespace, if the parent was the first of its own namespace, and for a descendant with
//! the reused id of an ended ancestor. Such a child is not recognized. No child can recover from a
//! fork during a thread's start or end either: the standard library holds a lock then.

use std::collections::HashSet;
use std::fmt;
use std::mem;
use std::panic::RefUnwindSafe;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use hashed_wheel::Clock;

use crate::core::deadlock::DeadlockDetector;
use crate::core::kept_holds::KeptHolds;
#[cfg(feature = "metrics")]
use crate::core::metrics::{MetricsPublisher, Sources};
use crate::error::{Error, LostReason};
use crate::events::callbacks::Callbacks;
use crate::events::dispatcher::{EventDispatcher, LAST_DELIVERIES};
use crate::events::wakers::WakerThread;
use crate::hold::cache::CacheEnd;
use crate::hold::hold::Hold;
use crate::hold::registry::HoldRegistry;
use crate::ledger::release::ReleaseId;
use crate::model::fork::HomeProcess;
use crate::model::label::default_label;
use crate::model::name::{LockName, SharedKeys};
use crate::model::owner::ClientId;
use crate::model::settings::{OnDeadlock, Settings};
use crate::model::sync::{Mutex, SystemClock, TimedMutex, is_cancelled};
use crate::model::wait::WaitSpec;
use crate::ops::{Operation, RequestSequences};
use crate::store::retry::{
    Answer, CallError, RetryLimit, RetryPolicy, SHORTEST_CALL, call, call_with, map_failure,
};
use crate::store::{Failure, Info, Listener, Location, Memory, ServerId, Store};
use crate::waits::hand_over::QueueWaker;
use crate::waits::registry::{WaitRegistry, WaitSettings};
use crate::watchdog::scheduler::Timer;
use crate::watchdog::{ClientDescription, Watchdog};

/// Where a client's locks are.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Memory(Memory),
    Redis(Box<Location>),
}

/// Whether a client connects at its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartMode {
    /// Connects first, and checks the server.
    Connected,
    /// Connects at the first use.
    Unconnected,
}

/// For how long a shutdown, or the drop of a client, reads the replies to unread releases. Then
/// these releases are queued.
const FINISH_UNREAD_TIMEOUT: Duration = Duration::from_millis(100);

/// One client.
pub(crate) struct ClientCore {
    home: HomeProcess,
    pub(crate) id: ClientId,
    pub(crate) requests: Arc<RequestSequences>,
    pub(crate) shared_keys: Box<SharedKeys>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) settings: Settings,
    pub(crate) store: Arc<Store>,
    pub(crate) holds: Arc<HoldRegistry>,
    pub(crate) waits: Arc<WaitRegistry>,
    pub(crate) watchdog: Arc<Watchdog>,
    pub(crate) deadlocks: DeadlockDetector,
    /// A handle of the watchdog's timer. Dropping the last handle ends the ticker.
    timer: Option<Arc<Timer>>,
    /// The released holds whose keys stay on the server.
    kept: Mutex<KeptHolds>,
    /// Locked by a shutdown until its releases are answered, or its time is over.
    shutting_down: TimedMutex,
    pub(crate) events: Arc<EventDispatcher>,
    pub(crate) wakers: Arc<WakerThread>,
    #[cfg(feature = "metrics")]
    publisher: MetricsPublisher,
    target: Target,
}

/// A panic leaves nothing half done. The state changes under locks that do not poison, in steps
/// that call no foreign code. Another thread finishes a step in which foreign code (a clock, a
/// callback) panics.
impl RefUnwindSafe for ClientCore {}

impl ClientCore {
    /// Starts a client. With [`StartMode::Connected`] an unreachable server is an error.
    pub(crate) fn start(
        target: Target,
        clock: Arc<dyn Clock>,
        settings: Settings,
        callbacks: Callbacks,
        mode: StartMode,
    ) -> Result<Self, Error> {
        // Before anything is started.
        if let Target::Memory(memory) = &target
            && !memory.is_current()
        {
            return Err(Error::Forked);
        }
        let id = ClientId::new(clock.now())?;
        let events = Arc::new(EventDispatcher::start(callbacks, Arc::clone(&clock))?);
        let holds = Arc::new(HoldRegistry::new(settings.max_cached));
        let waits = Arc::new(WaitRegistry::new(
            Arc::clone(&clock),
            Arc::clone(&events),
            Arc::clone(&holds),
            WaitSettings {
                poll_bound: settings.poll_bound,
                hand_over: settings.hand_over,
                lease: settings.watchdog_lease,
                looks_for_deadlocks: settings.on_deadlock != OnDeadlock::Ignore,
                waits_may_fail: settings.on_deadlock == OnDeadlock::Fail,
            },
            &id,
        ));
        let listener: Weak<dyn Listener> = Arc::downgrade(&waits) as Weak<dyn Listener>;
        let mut info = Info::default();
        let store = match &target {
            // A store in memory never evicts.
            Target::Memory(memory) => Store::memory(memory, listener),
            Target::Redis(location) => {
                let timeout = settings.command_timeout;
                let location = Location::clone(location);
                let store = Store::redis(location, timeout, settings.connections, listener)?;
                if mode == StartMode::Connected {
                    let deadline = SystemClock.now() + timeout;
                    let left = || deadline.saturating_duration_since(SystemClock.now());
                    let error = |failure: Failure| failure.into_error_without_name("connect");
                    store.connect(timeout).map_err(error)?;
                    info = store.info(left());
                    store.check_target(&info, left()).map_err(error)?;
                }
                store
            }
        };
        if let Some(policy) = info.evicting.clone().filter(|_| settings.refuse_eviction) {
            return Err(Error::Eviction { policy });
        }
        let store = Arc::new(store);
        let waker = QueueWaker { waits: Arc::clone(&waits), store: Arc::clone(&store) };
        let (watchdog, timer) = Watchdog::start(
            ClientDescription {
                id: id.to_string(),
                label: settings.label.clone().unwrap_or_else(default_label),
                started: id.started(),
            },
            Arc::clone(&store),
            Arc::clone(&clock),
            settings.clone(),
            Arc::clone(&holds),
            Arc::clone(&events),
            Arc::new(waker),
        )?;
        // Set once, here.
        drop(waits.watchdog.set(Arc::downgrade(&watchdog)));
        #[cfg(feature = "metrics")]
        let publisher = {
            let (holds, waits) = (Arc::clone(&holds), Arc::clone(&waits));
            let (counters, releases) =
                (Arc::clone(&watchdog.context.counters), Arc::clone(&watchdog.releases));
            let (warned, store) = (Arc::clone(events.warned()), Arc::downgrade(&store));
            let sources = Sources { holds, waits, counters, releases, warned, store };
            // The watchdog's threads are running, and have to be stopped.
            MetricsPublisher::start(sources, Arc::clone(&clock))
                .inspect_err(|_| watchdog.stop(None))?
        };
        watchdog.context.warn_about(&info);
        Ok(Self {
            home: HomeProcess::new(),
            id,
            requests: Arc::default(),
            shared_keys: Box::default(),
            clock,
            settings,
            store,
            holds,
            waits,
            watchdog,
            deadlocks: DeadlockDetector::default(),
            timer: Some(timer),
            kept: Mutex::default(),
            shutting_down: TimedMutex::default(),
            events,
            wakers: Arc::default(),
            #[cfg(feature = "metrics")]
            publisher,
            target,
        })
    }

    /// Starts another client of the same server, with the same settings and no callbacks.
    pub(crate) fn twin(&self) -> Result<Self, Error> {
        let (target, clock) = (self.target.clone(), Arc::clone(&self.clock));
        let callbacks = Callbacks::default();
        Self::start(target, clock, self.settings.clone(), callbacks, StartMode::Connected)
    }

    /// Whether the client was started in the current process, and not in a parent.
    pub(crate) fn is_current(&self) -> bool {
        self.home.is_current()
    }

    /// Returns this client. Returns an error in a child of a fork, or if the client was shut down.
    pub(crate) fn running(self: &Arc<Self>) -> Result<Arc<Self>, Error> {
        if !self.is_current() {
            Err(Error::Forked)
        } else if self.is_shut_down() {
            Err(Error::Shutdown)
        } else {
            Ok(Arc::clone(self))
        }
    }

    /// The server's address, as far as known. Equal addresses are one server.
    pub(crate) fn server(&self) -> String {
        match &self.target {
            Target::Memory(memory) => memory.identity(),
            Target::Redis(location) => location.identity(),
        }
    }

    /// The server's user, if named by the settings.
    pub(crate) fn user(&self) -> Option<String> {
        match &self.target {
            Target::Memory(_) => None,
            Target::Redis(location) => location.access.username.clone(),
        }
    }

    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Sends `PING` to the servers, in one attempt.
    pub(crate) fn ping(&self) -> Result<(), Error> {
        let generation = self.waits.shutdown().generation();
        let answer = self.store.ping(self.settings.command_timeout, generation);
        answer.map_err(|failure| failure.into_error_without_name("ping"))
    }

    /// Returns the run id of the server of `name`, which identifies a server under any address,
    /// within the wait. Returns `None` if the server does not report its run id. Usually the id is
    /// known, and nothing is sent.
    pub(crate) fn run_id(
        &self,
        name: &LockName,
        wait: WaitSpec<'_>,
    ) -> Result<Option<String>, Error> {
        let now = self.now();
        let policy = self.policy_at(now, wait, RetryLimit::One);
        let answer = call_with(&self.store, &*self.clock, &policy, now, |timeout, generation| {
            self.store.run_id(name.as_str(), timeout, generation)
        });
        self.watchdog.settle_replies();
        answer
            .map(|answer| answer.reply)
            .map_err(|error| error.failure.into_error_without_name("run id"))
    }

    /// Sends `operation` until the server answers, for [`Settings::retry_timeout`] at most.
    pub(crate) fn call<O: Operation>(&self, operation: &O) -> Result<Answer<O::Reply>, CallError> {
        self.call_within(operation, self.settings.retry_timeout(), RetryLimit::UntilAnswered)
    }

    /// Sends `operation` as [`call`](Self::call) does. Returns only the reply. An error names
    /// `name`.
    pub(crate) fn ask<O: Operation>(
        &self,
        operation: &O,
        name: &LockName,
    ) -> Result<O::Reply, Error> {
        map_failure(self.call(operation), operation, name).map(|answer| answer.reply)
    }

    /// Sends `operation` as [`ask`](Self::ask) does, but within the wait. Returns
    /// [`Error::Cancelled`] if the wait is cancelled.
    pub(crate) fn ask_within<O: Operation>(
        &self,
        operation: &O,
        name: &LockName,
        wait: WaitSpec<'_>,
    ) -> Result<O::Reply, Error> {
        if is_cancelled(wait.cancel) {
            return Err(Error::Cancelled { name: name.shown() });
        }
        let answer = self.call_in(operation, wait);
        answer
            .map(|answer| answer.reply)
            .map_err(|error| self.error_in(error, operation, name, wait))
    }

    /// Sends `operation` as [`call`](Self::call) does, but within the wait.
    pub(crate) fn call_in<O: Operation>(
        &self,
        operation: &O,
        wait: WaitSpec<'_>,
    ) -> Result<Answer<O::Reply>, CallError> {
        let now = self.now();
        let policy = RetryPolicy {
            is_wait: wait.waits,
            ..self.policy_at(now, wait, RetryLimit::UntilAnswered)
        };
        self.call_with_policy_at(now, operation, &policy)
    }

    /// Returns the user's error for `name` after a failed call [within the wait](Self::call_in): a
    /// cancellation, a shutdown, or else the failure.
    pub(crate) fn error_in<O: Operation>(
        &self,
        error: CallError,
        operation: &O,
        name: &LockName,
        wait: WaitSpec<'_>,
    ) -> Error {
        if is_cancelled(wait.cancel) {
            return Error::Cancelled { name: name.shown() };
        }
        self.or_shut_down(error.failure.into_error(operation, name))
    }

    /// Sends `operation` as [`call`](Self::call) does, but for `timeout` at most, and as often as
    /// `limit` allows.
    pub(crate) fn call_within<O: Operation>(
        &self,
        operation: &O,
        timeout: Duration,
        limit: RetryLimit,
    ) -> Result<Answer<O::Reply>, CallError> {
        let now = self.now();
        let policy = RetryPolicy {
            deadline: now + timeout,
            limit,
            attempt_timeout: self.settings.command_timeout,
            shutdown: self.waits.shutdown(),
            is_wait: false,
            cancel: None,
        };
        self.call_with_policy_at(now, operation, &policy)
    }

    /// Sends `operation` to `server` until `server` answers, as [`call`](Self::call) does.
    pub(crate) fn call_on_server<O: Operation>(
        &self,
        server: ServerId,
        operation: &O,
    ) -> Result<Answer<O::Reply>, CallError> {
        let now = self.now();
        let policy = self.policy_at(now, WaitSpec::ONE_TRY, RetryLimit::UntilAnswered);
        let answer = call_with(&self.store, &*self.clock, &policy, now, |timeout, generation| {
            self.store.run_on(server, operation, timeout, generation)
        });
        self.watchdog.settle_replies();
        answer
    }

    /// Sends `operation` now, within the limits of `policy`.
    pub(crate) fn call_with_policy<O: Operation>(
        &self,
        operation: &O,
        policy: &RetryPolicy<'_>,
    ) -> Result<Answer<O::Reply>, CallError> {
        self.call_with_policy_at(self.now(), operation, policy)
    }

    /// Sends `operation` within the limits of `policy`. `now` is a fresh reading of the clock.
    pub(crate) fn call_with_policy_at<O: Operation>(
        &self,
        now: Instant,
        operation: &O,
        policy: &RetryPolicy<'_>,
    ) -> Result<Answer<O::Reply>, CallError> {
        let answer = call(&self.store, &*self.clock, operation, policy, now);
        // The call has also read the unread replies of dropped guards on its connection.
        self.watchdog.settle_replies();
        answer
    }

    /// Returns the limits of a try from `now` on. The try is repeated, as `limit` allows, until the
    /// end of the wait, its cancellation or a shutdown, and for [`Settings::retry_timeout`] at
    /// most.
    pub(crate) fn policy_at<'a>(
        &'a self,
        now: Instant,
        wait: WaitSpec<'a>,
        limit: RetryLimit,
    ) -> RetryPolicy<'a> {
        let longest = now + self.settings.retry_timeout();
        let deadline =
            wait.deadline.map_or(longest, |end| longest.min(end.max(now + SHORTEST_CALL)));
        RetryPolicy {
            deadline,
            attempt_timeout: self.settings.command_timeout,
            limit,
            shutdown: self.waits.shutdown(),
            is_wait: true,
            cancel: wait.cancel,
        }
    }

    /// Returns an error if `hold` is over. The first caller to notice the end reports the loss.
    pub(crate) fn check(&self, hold: &Arc<Hold>) -> Result<(), Error> {
        if hold.is_held(self.now()) {
            return Ok(());
        }
        let reason = hold.reason_of_end();
        self.watchdog.lose(hold, reason);
        Err(lost(hold, reason))
    }

    /// Returns how many callbacks, wakers and calls of a metrics recorder panicked.
    pub(crate) fn foreign_panics(&self) -> u64 {
        #[cfg(feature = "metrics")]
        let of_recorder = self.publisher.panics();
        #[cfg(not(feature = "metrics"))]
        let of_recorder = 0;
        self.events.panics() + self.wakers.panics() + of_recorder
    }

    /// Ends `hold` because of a shutdown, and queues the release, unless the hold was over before.
    /// Returns the id of the release if the release cannot be queued: the lease has to expire.
    pub(crate) fn release_at_shutdown(&self, hold: &Arc<Hold>) -> Option<ReleaseId> {
        // If the hold was over before: a loss.
        self.check(hold).ok()?;
        self.watchdog.scheduler.remove(hold);
        self.note_kept(hold);
        let pending = &self.watchdog.releases;
        let is_unreleased = hold.lose(self.now(), LostReason::Shutdown)
            && !pending.queue_new(self.now(), pending.of_hold(hold));
        // After the queueing: either the hold is here, or its release is pending.
        self.holds.remove(hold);
        is_unreleased.then(|| ReleaseId::from(hold.id()))
    }

    /// Counts `hold`, whose release begins, among the kept holds, if its key stays on the server.
    pub(crate) fn note_kept(&self, hold: &Hold) {
        if let Some(until) = hold.kept_until() {
            self.kept.lock().add(self.now(), until);
        }
    }

    /// Ends the client: wakes waiters and releases holds, for `timeout` at most. Returns how many
    /// holds were released, how many keys stay for a while, and the locks whose release no server
    /// has acknowledged.
    ///
    /// A later call gets a new connection, because a permit with a lease of its own may still be
    /// given back. The connections of the renewals stay open for the queued releases.
    pub(crate) fn shut_down(&self, timeout: Duration) -> (usize, usize, Vec<LockName>) {
        let now = self.now();
        let deadline = now.checked_add(timeout).unwrap_or(now + Duration::from_secs(86_400));
        self.waits.close();
        // 1. Another shutdown ends first. No call is cut off before the other shutdown's time is
        //    over.
        let left = deadline.saturating_duration_since(now);
        let Some(alone) = self.shutting_down.try_lock_for(left) else {
            return (0, self.kept.lock().count(self.now()), self.unreleased());
        };
        // 2. Release all holds.
        let holds = self.holds.all();
        let mut unreleased: Vec<ReleaseId> =
            holds.iter().filter_map(|hold| self.release_at_shutdown(hold)).collect();
        self.watchdog.finish_unread(FINISH_UNREAD_TIMEOUT.min(timeout));
        self.watchdog.record.end();
        unreleased.extend(self.watchdog.releases.flush(deadline));
        // 3. Calls under way have the rest of the time. A call that hangs then is cut off, and not
        //    awaited.
        self.store.wait_for_calls(deadline.saturating_duration_since(self.now()));
        self.waits.shutdown().abort_calls();
        self.store.abort_calls();
        let now = self.now();
        let kept = self.kept.lock().count(now);
        let open: HashSet<&ReleaseId> = unreleased.iter().collect();
        let released = holds
            .iter()
            // The release of a multi lock's first hold releases all its holds.
            .filter(|hold| hold.is_released() || hold.lost_reason() == Some(LostReason::Shutdown))
            .filter(|hold| !open.contains(&ReleaseId::from(hold.id())))
            .filter(|hold| hold.kept_until().is_none_or(|until| until <= now))
            .count();
        drop(alone);
        // 4. Callbacks and the recorder. A callback may be in a shutdown of its own.
        self.events.stop(deadline.saturating_duration_since(self.now()));
        #[cfg(feature = "metrics")]
        self.publisher.flush(deadline.saturating_duration_since(self.now()).min(LAST_DELIVERIES));
        (released, kept, unreleased.into_iter().map(|id| id.name).collect())
    }

    /// Returns the locks with a hold, or with an unacknowledged release.
    fn unreleased(&self) -> Vec<LockName> {
        let held: Vec<ReleaseId> =
            self.holds.all().iter().map(|hold| ReleaseId::from(hold.id())).collect();
        let pending = self.watchdog.releases.ledger().unacknowledged_ids();
        let all: HashSet<ReleaseId> = held.into_iter().chain(pending).collect();
        all.into_iter().map(|id| id.name).collect()
    }

    /// Returns [`Error::Shutdown`] if the client was shut down during the acquire, otherwise
    /// `error`. Traces of the acquire are rolled back in any case.
    pub(crate) fn or_shut_down(&self, error: Error) -> Error {
        if self.is_shut_down() { Error::Shutdown } else { error }
    }

    /// Whether the client was shut down.
    pub(crate) fn is_shut_down(&self) -> bool {
        self.waits.is_closed()
    }
}

impl fmt::Debug for ClientCore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ClientCore")
            .field("server", &self.server())
            .field("id", &self.id.to_string())
            .finish_non_exhaustive()
    }
}

impl Drop for ClientCore {
    fn drop(&mut self) {
        if !self.is_current() {
            // A child's copy: the threads and the sockets are the parent's, and a thread of the
            // parent may have been changing any of these fields. The ticker's share of the watchdog
            // is never freed, and retains the handles of the threads.
            mem::forget(self.timer.take());
            mem::forget((Arc::clone(&self.waits), Arc::clone(&self.store)));
            mem::forget((Arc::clone(&self.events), Arc::clone(&self.wakers)));
            mem::forget(mem::take(self.kept.get_mut()));
            return;
        }
        self.waits.close();
        for hold in self.holds.cache.cached() {
            self.watchdog.release_cached(&hold, CacheEnd::ClientEnded);
        }
        self.watchdog.finish_unread(FINISH_UNREAD_TIMEOUT);
        self.watchdog.stop(self.timer.take());
        // By the system's clock: the time of foreign code does not depend on the client's clock.
        let deadline = SystemClock.now() + self.settings.command_timeout.min(LAST_DELIVERIES);
        let left = || deadline.saturating_duration_since(SystemClock.now());
        self.events.stop(left());
        self.wakers.stop(left());
        #[cfg(feature = "metrics")]
        self.publisher.stop(left());
        self.store.close();
    }
}

/// Makes the error of the lost `hold`, with the known reason of the loss, or else with `reason`.
pub(crate) fn lost(hold: &Hold, reason: LostReason) -> Error {
    Error::Lost { name: hold.name.shown(), reason: hold.lost_reason().unwrap_or(reason) }
}
