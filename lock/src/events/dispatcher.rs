//! Delivers reports to the callbacks, on a separate thread.
//!
//! The thread with a report (the ticker, a renewal thread, a caller) only pushes the report onto a
//! bounded queue. The thread `lock-callbacks` takes the reports in order and calls foreign code
//! with no lock held. So a callback may block, panic, call the client or drop its last handle. The
//! thread only exists with a callback or the feature `tracing`. The thread parks on the client's
//! clock, so a test's callbacks have run when [`ManualClock::advance`](crate::ManualClock::advance)
//! returns.
//!
//! When the client ends, queued reports are still delivered, for a limited time of the system's
//! clock: foreign code takes real time.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded};
use hashed_wheel::Clock;

use crate::error::Error;
use crate::events::callbacks::Callbacks;
use crate::events::report::{HeldLock, LostLock, Report, Warning};
use crate::events::tracing;
use crate::model::panics::catch_panic;
use crate::model::sync::{Mutex, Parker, SystemClock, park};

/// The maximum number of queued reports. A slow callback must not fill the memory.
const MAX_QUEUED: usize = 65_536;
/// The maximum number of retained warnings.
const MAX_WARNINGS: usize = 64;
/// How long queued reports are still delivered when the client ends.
pub(crate) const LAST_DELIVERIES: Duration = Duration::from_secs(5);

/// Accepts the reports of one client, and delivers them to its callbacks.
#[derive(Debug)]
pub(crate) struct EventDispatcher {
    shared: Arc<DispatcherShared>,
    thread: Option<Thread>,
}

/// The running thread `lock-callbacks`, seen from other threads.
#[derive(Debug)]
struct Thread {
    id: ThreadId,
    /// Loses its sender when the thread ends.
    ended: Receiver<Infallible>,
}

/// The state shared by the threads with reports and the thread that delivers the reports.
#[derive(Debug)]
struct DispatcherShared {
    callbacks: Callbacks,
    clock: Arc<dyn Clock>,
    queue: Mutex<EventQueue>,
    /// The retained warnings, oldest first: at most [`MAX_WARNINGS`], each once.
    warnings: Mutex<VecDeque<Warning>>,
    #[cfg(feature = "metrics")]
    warned: Arc<WarningCounts>,
    /// Reports dropped without a delivery.
    unreported: AtomicU64,
    /// Panics of callbacks and of `tracing` subscribers.
    panics: AtomicU64,
}

/// The numbers of reported warnings, by [`Warning::word`].
#[cfg(feature = "metrics")]
pub(crate) type WarningCounts = Mutex<std::collections::BTreeMap<&'static str, u64>>;

/// The reports not delivered yet, and the state of the thread that delivers reports.
#[derive(Debug)]
struct EventQueue {
    reports: VecDeque<Report>,
    /// The thread's parker. `None` without a thread: a manual clock waits for every parker in
    /// existence.
    parker: Option<Parker>,
    /// Set when the client ends: the end of deliveries, by the system's clock.
    deliver_until: Option<Instant>,
}

/// The next step of the thread.
enum Next {
    Deliver(Report),
    Sleep(Parker),
    End,
}

impl EventDispatcher {
    /// Makes a dispatcher, and starts the thread if there is a receiver of reports: a callback or
    /// `tracing`.
    ///
    /// Returns [`Error::Thread`] if the thread cannot be started.
    pub(crate) fn start(callbacks: Callbacks, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        let has_receiver = tracing::ON
            || callbacks.lost.is_some()
            || callbacks.long_hold.is_some()
            || callbacks.warning.is_some();
        let parker = has_receiver.then(Parker::new);
        if let Some(parker) = &parker {
            // A park which returns at once: a manual clock learns of the thread before the thread
            // runs.
            park(&*clock, parker, Some(clock.now()), None);
        }
        let shared = Arc::new(DispatcherShared {
            callbacks,
            clock,
            queue: Mutex::new(EventQueue { reports: VecDeque::new(), parker, deliver_until: None }),
            warnings: Mutex::new(VecDeque::new()),
            #[cfg(feature = "metrics")]
            warned: Arc::default(),
            unreported: AtomicU64::new(0),
            panics: AtomicU64::new(0),
        });
        let thread = if has_receiver { Some(spawn(&shared)?) } else { None };
        Ok(Self { shared, thread })
    }

    /// Queues the report of a lost hold. Calls `lost` only if there is a receiver of this report.
    pub(crate) fn lost(&self, lost: impl FnOnce() -> LostLock) {
        if tracing::ON || self.shared.callbacks.lost.is_some() {
            self.shared.push(Report::Lost(lost()));
        }
    }

    /// Queues the report of a long hold. Calls `held` only if there is a receiver of this report.
    pub(crate) fn long_hold(&self, held: impl FnOnce() -> HeldLock) {
        if tracing::ON || self.shared.callbacks.long_hold.is_some() {
            self.shared.push(Report::LongHold(held()));
        }
    }

    /// Retains a warning, and queues its report even if the warning was already retained.
    pub(crate) fn warn(&self, warning: Warning) {
        self.note(&warning);
        self.report_warning(warning);
    }

    /// Retains a warning and queues its report. No effect if the warning was already retained.
    pub(crate) fn warn_once(&self, warning: Warning) {
        if self.note(&warning) {
            self.report_warning(warning);
        }
    }

    /// Retains a warning, in place of the oldest if there are too many. Returns `false`, without
    /// effect, if the warning was already retained.
    fn note(&self, warning: &Warning) -> bool {
        let mut warnings = self.shared.warnings.lock();
        if warnings.contains(warning) {
            return false;
        }
        if warnings.len() >= MAX_WARNINGS {
            drop(warnings.pop_front());
        }
        warnings.push_back(warning.clone());
        true
    }

    /// Returns the numbers of reported warnings, by [`Warning::word`].
    #[cfg(feature = "metrics")]
    pub(crate) fn warned(&self) -> &Arc<WarningCounts> {
        &self.shared.warned
    }

    /// Counts a warning for metrics, and queues its report if there is a receiver.
    fn report_warning(&self, warning: Warning) {
        #[cfg(feature = "metrics")]
        {
            *self.shared.warned.lock().entry(warning.word()).or_default() += 1;
        }
        if tracing::ON || self.shared.callbacks.warning.is_some() {
            self.shared.push(Report::Warning(warning));
        }
    }

    /// Returns the retained warnings, each once, oldest first.
    pub(crate) fn warnings(&self) -> Vec<Warning> {
        self.shared.warnings.lock().iter().cloned().collect()
    }

    /// Returns the number of reports dropped without a delivery.
    pub(crate) fn unreported(&self) -> u64 {
        self.shared.unreported.load(Ordering::Relaxed)
    }

    /// Counts a panic of a callback which was called elsewhere.
    pub(crate) fn count_panic(&self) {
        // Relaxed: a plain sum.
        self.shared.panics.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of panics of callbacks and of `tracing` subscribers.
    pub(crate) fn panics(&self) -> u64 {
        self.shared.panics.load(Ordering::Relaxed)
    }

    /// Ends the thread once the queued reports are delivered, and waits for its end for at most
    /// `timeout`. Does not wait on the callbacks' own thread. Further calls have no effect.
    pub(crate) fn stop(&self, timeout: Duration) {
        let Some(thread) = &self.thread else { return };
        self.shared.begin_stop();
        if thread::current().id() != thread.id {
            // Nothing is ever sent: `recv_timeout` returns when the sender is dropped, or at the
            // timeout.
            let _ended = thread.ended.recv_timeout(timeout.min(LAST_DELIVERIES));
        }
    }
}

impl Drop for EventDispatcher {
    /// Only matters for a client whose building failed. Any other client has called `stop` before.
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.shared.begin_stop();
        }
    }
}

impl DispatcherShared {
    /// Queues a report, and wakes the thread if the queue was empty. Counts the report as
    /// undelivered if there is no thread, or the queue is full.
    fn push(&self, report: Report) {
        let mut queue = self.queue.lock();
        let Some(parker) = queue.parker.clone().filter(|_| queue.reports.len() < MAX_QUEUED) else {
            drop(queue);
            // Relaxed: a plain sum.
            self.unreported.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let was_empty = queue.reports.is_empty();
        queue.reports.push_back(report);
        drop(queue);
        // Otherwise the thread is still working on the queue, and finds this report before parking.
        if was_empty {
            parker.unpark();
        }
    }

    /// Requests the thread to end once the queued reports are delivered, at the latest after
    /// [`LAST_DELIVERIES`]. Further calls do not prolong this time.
    fn begin_stop(&self) {
        let mut queue = self.queue.lock();
        queue.deliver_until.get_or_insert_with(|| SystemClock.now() + LAST_DELIVERIES);
        if let Some(parker) = &queue.parker {
            parker.unpark();
        }
    }

    /// Takes the next report out of the queue, or tells the thread to sleep or to end. Drops all
    /// queued reports once the time for the last deliveries is over.
    fn next(&self) -> Next {
        let mut queue = self.queue.lock();
        let is_stopping = queue.deliver_until.is_some();
        if queue.deliver_until.is_some_and(|until| SystemClock.now() >= until) {
            self.drop_queued(&mut queue);
        }
        match queue.reports.pop_front() {
            Some(report) => Next::Deliver(report),
            None if is_stopping => {
                queue.parker = None;
                Next::End
            }
            None => queue.parker.clone().map_or(Next::End, Next::Sleep),
        }
    }

    /// Drops the queued reports, and lets no further report enter the queue: the thread has ended
    /// by a panic.
    fn end(&self) {
        let mut queue = self.queue.lock();
        queue.parker = None;
        self.drop_queued(&mut queue);
    }

    /// Drops all reports of `queue`, and counts the reports as undelivered.
    fn drop_queued(&self, queue: &mut EventQueue) {
        let left = u64::try_from(queue.reports.len()).unwrap_or(u64::MAX);
        // Relaxed: a plain sum.
        self.unreported.fetch_add(left, Ordering::Relaxed);
        queue.reports.clear();
    }

    /// Runs the thread `lock-callbacks`: delivers reports until [`next`](Self::next) says to end.
    fn run(&self) {
        if let Some(parker) = self.queue.lock().parker.clone() {
            // A manual clock now knows the thread of this parker: a callback may wait on another
            // parker.
            park(&*self.clock, &parker, Some(self.clock.now()), None);
        }
        loop {
            match self.next() {
                Next::Deliver(report) => {
                    self.catch_panic(|| tracing::emit(&report));
                    self.catch_panic(|| self.callbacks.call(&report));
                }
                Next::Sleep(parker) => park(&*self.clock, &parker, None, None),
                Next::End => return,
            }
        }
    }

    /// Calls `foreign` with no lock held. Catches and counts a panic.
    fn catch_panic(&self, foreign: impl FnOnce()) {
        if catch_panic(foreign).is_none() {
            self.panics.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Starts the thread `lock-callbacks`. Returns [`Error::Thread`] if the thread cannot be started.
fn spawn(shared: &Arc<DispatcherShared>) -> Result<Thread, Error> {
    let (ends, ended) = bounded::<Infallible>(0);
    let worker = Arc::clone(shared);
    let thread = thread::Builder::new()
        .name("lock-callbacks".to_owned())
        .spawn(move || {
            // A panic of the clock: panics of callbacks are caught individually.
            if catch_panic(|| worker.run()).is_none() {
                worker.end();
            }
            drop(ends);
        })
        .map_err(|error| Error::Thread { reason: error.into() })?;
    // The thread is not joined: a callback may never return.
    Ok(Thread { id: thread.thread().id(), ended })
}
