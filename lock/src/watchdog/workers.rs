//! The renewal threads, one for each server with something to do. A thread starts on first use, and
//! ends when the client no longer knows its server.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::Error;
use crate::model::panics;
use crate::model::sync::thread::{self, JoinHandle};
use crate::model::sync::{Mutex, MutexGuard, park};
use crate::store::ServerId;
use crate::watchdog::context::Context;
use crate::watchdog::scheduler::Scheduler;
use crate::watchdog::worker::RenewalWorker;

/// The main function of a renewal thread.
pub(crate) type WorkerMain = Arc<dyn Fn(&RenewalWorker) + Send + Sync>;

/// Starts, finds, wakes and joins the renewal threads of one client.
pub(crate) struct Workers {
    context: Arc<Context>,
    scheduler: Arc<Scheduler>,
    main: WorkerMain,
    list: Mutex<WorkerList>,
    /// Whether some thread has ended unexpectedly.
    any_dead: AtomicBool,
}

/// All workers. No operation which may block runs while the list is locked.
#[derive(Debug, Default)]
pub(crate) struct WorkerList {
    all: Vec<Running>,
}

/// A worker with the handle of its thread.
#[derive(Debug)]
struct Running {
    worker: Arc<RenewalWorker>,
    /// `None` once another thread joins the thread.
    thread: Option<JoinHandle<()>>,
}

impl WorkerList {
    /// Returns the worker of a server; `None` if the server has no thread.
    pub(crate) fn find(&self, server: ServerId) -> Option<&RenewalWorker> {
        // There are few servers, so a linear search is quick.
        self.iter().find(|worker| worker.server == server)
    }

    /// Returns all workers, dead workers too.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &RenewalWorker> {
        self.all.iter().map(|running| &*running.worker)
    }
}

impl Workers {
    pub(crate) fn new(context: Arc<Context>, scheduler: Arc<Scheduler>, main: WorkerMain) -> Self {
        let (list, any_dead) = (Mutex::default(), AtomicBool::new(false));
        Self { context, scheduler, main, list, any_dead }
    }

    /// Locks the list of workers.
    pub(crate) fn lock(&self) -> MutexGuard<'_, WorkerList> {
        self.list.lock()
    }

    /// Starts the thread of a server, unless already running.
    ///
    /// Returns [`Error::Shutdown`] if the client ends, and [`Error::Thread`] if the thread cannot
    /// be started.
    pub(crate) fn start(&self, server: ServerId) -> Result<(), Error> {
        let worker = Arc::new(RenewalWorker::new(server));
        let clock = &self.context.clock;
        // A park which returns at once: a manual clock learns of the thread before the thread runs,
        // and does not advance without the thread.
        park(&**clock, &worker.parker, Some(clock.now()), None);
        let mut list = self.lock();
        if list.find(server).is_some() {
            return Ok(());
        }
        // With the list locked: `stop` takes the threads after it has set this flag.
        if self.context.is_stopping() {
            return Err(Error::Shutdown);
        }
        let (main, own) = (Arc::clone(&self.main), Arc::clone(&worker));
        let thread = thread::Builder::new()
            .name("lock-renewal".to_owned())
            .spawn(move || {
                // Only a panic of the clock ends `main`, and its consequences are handled by then.
                panics::catch_panic(|| main(&own));
            })
            .map_err(|error| Error::Thread { reason: error.into() })?;
        // After the start, as only a running thread is woken. The thread checks once more, because
        // the move may have happened before.
        self.context.store.wake_on_move(server, &worker.parker);
        worker.parker.unpark();
        list.all.push(Running { worker, thread: Some(thread) });
        self.scheduler.set_servers(list.all.len());
        Ok(())
    }

    /// Runs `action` with the worker of a server and the list locked, and starts the thread if
    /// needed. Returns `None`, without a call of `action`, if the thread cannot be started.
    pub(crate) fn with_worker<R>(
        &self,
        server: ServerId,
        action: impl FnOnce(&RenewalWorker) -> R,
    ) -> Option<R> {
        // With the list locked, or the thread might end in between.
        {
            let list = self.lock();
            if let Some(worker) = list.find(server) {
                return Some(action(worker));
            }
        }
        self.context.catch_panic(|| self.start(server))?.ok()?;
        self.lock().find(server).map(action)
    }

    /// Wakes every thread to check for work. Returns false if there is no thread.
    pub(crate) fn wake(&self) -> bool {
        let list = self.lock();
        list.iter().for_each(|worker| worker.parker.unpark());
        !list.all.is_empty()
    }

    /// Removes the worker from the list if the client no longer knows its server, and no work or
    /// release is left there. Returns whether the worker was removed; the thread must then end.
    pub(crate) fn dismiss(
        &self,
        worker: &RenewalWorker,
        has_releases: impl FnOnce() -> bool,
    ) -> bool {
        if self.context.store.knows(worker.server) {
            return false;
        }
        let mut list = self.lock();
        if !worker.is_idle() || has_releases() {
            return false;
        }
        list.all.retain(|running| running.worker.server != worker.server);
        self.scheduler.set_servers(list.all.len());
        true
    }

    /// Returns whether no server has a renewal thread.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().all.is_empty()
    }

    /// Records that the thread of `worker` has ended unexpectedly. From now on
    /// [`is_any_dead`](Self::is_any_dead) returns `true`.
    pub(crate) fn set_dead(&self, worker: &RenewalWorker) {
        self.any_dead.store(true, Ordering::Release);
        worker.set_dead();
    }

    /// Returns whether some thread has ended unexpectedly.
    pub(crate) fn is_any_dead(&self) -> bool {
        self.any_dead.load(Ordering::Acquire)
    }

    /// Returns whether the thread of a server has ended unexpectedly.
    pub(crate) fn is_dead(&self, server: ServerId) -> bool {
        self.lock().find(server).is_some_and(RenewalWorker::is_dead)
    }

    /// Returns the servers whose threads have ended unexpectedly.
    pub(crate) fn dead(&self) -> Vec<ServerId> {
        if !self.is_any_dead() {
            return Vec::new();
        }
        let list = self.lock();
        list.iter().filter(|worker| worker.is_dead()).map(|worker| worker.server).collect()
    }

    /// Waits for the end of all threads except the calling thread. The threads were already
    /// requested to end.
    pub(crate) fn join(&self) {
        let threads: Vec<_> =
            self.lock().all.iter_mut().filter_map(|running| running.thread.take()).collect();
        let own = thread::current().id();
        for thread in threads.into_iter().filter(|thread| thread.thread().id() != own) {
            // The thread catches its panics, so its result is empty.
            drop(thread.join());
        }
    }
}

impl fmt::Debug for Workers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Workers").field("list", &self.list).finish_non_exhaustive()
    }
}
