//! The teller: brings reports to the callbacks, on a thread of its own.
//!
//! Whoever finds something out (the ticker, the renewal thread, a caller) only pushes it onto a bounded queue. The thread
//! `lock-callbacks` takes one after the other and calls foreign code with no lock held, so that code may block, panic,
//! call the client or drop its last handle. It exists only if there is somebody to call.
//!
//! At the end what is queued is still delivered, within a limit of time by the system's clock: how long foreign code
//! takes is the outside world's business.

use std::any::Any;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded, never};
use hashed_wheel::{Clock, Parker, SystemClock};
use parking_lot::Mutex;

use crate::callbacks::Callbacks;
use crate::error::Error;
use crate::report::{HeldLock, LostLock, Report, Warning};
use crate::trace;

/// Reports that wait at most. A callback that is slower than the losses come must not fill the memory.
const QUEUE: usize = 65_536;
/// Warnings that are kept to be looked at.
const WARNINGS: usize = 64;
/// For how long, at the end, what is queued is still delivered.
const LAST_DELIVERIES: Duration = Duration::from_secs(5);

/// Tells whoever wants to hear.
#[derive(Debug)]
pub(crate) struct Teller {
    shared: Arc<Shared>,
    thread: Option<Thread>,
}

#[derive(Debug)]
struct Thread {
    id: ThreadId,
    /// Loses its sender when the thread ends.
    ended: Receiver<Infallible>,
}

#[derive(Debug)]
struct Shared {
    callbacks: Callbacks,
    clock: Arc<dyn Clock>,
    queue: Mutex<Queue>,
    warnings: Mutex<VecDeque<Warning>>,
    unreported: AtomicU64,
    panics: AtomicU64,
}

#[derive(Debug)]
struct Queue {
    reports: VecDeque<Report>,
    /// What the thread sleeps on. None if there is no thread (any more): a manual clock waits for every parker that
    /// there is.
    parker: Option<Parker>,
    /// Set when the end has begun: until when, by the system's clock, what is queued is delivered.
    until: Option<Instant>,
}

/// What the thread does next.
enum Next {
    Deliver(Report),
    Sleep(Parker),
    End,
}

impl Teller {
    /// Starts the thread if there is somebody to tell.
    pub(crate) fn start(callbacks: Callbacks, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        let wanted = trace::ON
            || callbacks.hear_losses()
            || callbacks.hear_long_holds()
            || callbacks.hear_warnings();
        let parker = wanted.then(Parker::new);
        if let Some(parker) = &parker {
            // A park that returns at once: a manual clock knows the thread before it runs.
            clock.park(parker, Some(clock.now()), &never());
        }
        let shared = Arc::new(Shared {
            callbacks,
            clock,
            queue: Mutex::new(Queue { reports: VecDeque::new(), parker, until: None }),
            warnings: Mutex::new(VecDeque::new()),
            unreported: AtomicU64::new(0),
            panics: AtomicU64::new(0),
        });
        let thread = if wanted { Some(spawn(&shared)?) } else { None };
        Ok(Self { shared, thread })
    }

    /// A hold was lost. `lost` is called only if somebody hears of it.
    pub(crate) fn lost(&self, lost: impl FnOnce() -> LostLock) {
        if trace::ON || self.shared.callbacks.hear_losses() {
            self.shared.push(Report::Lost(lost()));
        }
    }

    /// A hold lasts for long. `held` is called only if somebody hears of it.
    pub(crate) fn long_hold(&self, held: impl FnOnce() -> HeldLock) {
        if trace::ON || self.shared.callbacks.hear_long_holds() {
            self.shared.push(Report::LongHold(held()));
        }
    }

    /// The server endangers locks, or delays waiters.
    pub(crate) fn warn(&self, warning: Warning) {
        {
            let mut warnings = self.shared.warnings.lock();
            if !warnings.contains(&warning) {
                if warnings.len() >= WARNINGS {
                    drop(warnings.pop_front());
                }
                warnings.push_back(warning.clone());
            }
        }
        if trace::ON || self.shared.callbacks.hear_warnings() {
            self.shared.push(Report::Warning(warning));
        }
    }

    /// The same, unless it was told before and is still among the last.
    pub(crate) fn warn_once(&self, warning: Warning) {
        if !self.shared.warnings.lock().contains(&warning) {
            self.warn(warning);
        }
    }

    /// The last warnings, each once, oldest first.
    pub(crate) fn warnings(&self) -> Vec<Warning> {
        self.shared.warnings.lock().iter().cloned().collect()
    }

    /// Reports that nobody was told of.
    pub(crate) fn unreported(&self) -> u64 {
        self.shared.unreported.load(Ordering::Relaxed)
    }

    /// Callbacks that panicked.
    pub(crate) fn panics(&self) -> u64 {
        self.shared.panics.load(Ordering::Relaxed)
    }

    /// Ends the thread once what is queued is delivered, and waits for that, for at most `patience`. A callback that
    /// calls this does not wait for itself. Calling it again does no harm.
    pub(crate) fn stop(&self, patience: Duration) {
        let Some(thread) = &self.thread else { return };
        self.shared.begin_end();
        if thread::current().id() != thread.id {
            // Nothing is ever sent: it ends with the sender or with the patience.
            let _ended = thread.ended.recv_timeout(patience.min(LAST_DELIVERIES));
        }
    }
}

impl Drop for Teller {
    /// For a client that could not be built; the others have stopped it before.
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.shared.begin_end();
        }
    }
}

impl Shared {
    fn push(&self, report: Report) {
        let mut queue = self.queue.lock();
        let Some(parker) = queue.parker.clone().filter(|_| queue.reports.len() < QUEUE) else {
            drop(queue);
            // Relaxed: a plain sum.
            self.unreported.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let was_empty = queue.reports.is_empty();
        queue.reports.push_back(report);
        drop(queue);
        // Else the thread has not come to the end of the queue, and will find this one before it sleeps.
        if was_empty {
            parker.unpark();
        }
    }

    fn begin_end(&self) {
        let mut queue = self.queue.lock();
        queue.until.get_or_insert_with(|| SystemClock.now() + LAST_DELIVERIES);
        if let Some(parker) = &queue.parker {
            parker.unpark();
        }
    }

    fn next(&self) -> Next {
        let mut queue = self.queue.lock();
        let ends = queue.until.is_some();
        if queue.until.is_some_and(|until| SystemClock.now() >= until) {
            let left = u64::try_from(queue.reports.len()).unwrap_or(u64::MAX);
            self.unreported.fetch_add(left, Ordering::Relaxed);
            queue.reports.clear();
        }
        match queue.reports.pop_front() {
            Some(report) => Next::Deliver(report),
            None if ends => {
                queue.parker = None;
                Next::End
            }
            None => queue.parker.clone().map_or(Next::End, Next::Sleep),
        }
    }

    fn run(&self) {
        loop {
            match self.next() {
                Next::Deliver(report) => {
                    self.contain(|| trace::emit(&report));
                    self.contain(|| self.callbacks.call(&report));
                }
                Next::Sleep(parker) => self.clock.park(&parker, None, &never()),
                Next::End => return,
            }
        }
    }

    /// Calls `foreign` and returns, whether it panics or not. Unwind safety is asserted: it is called with no lock
    /// held, and what it shares with others is its own.
    fn contain(&self, foreign: impl FnOnce()) {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(foreign)) {
            self.panics.fetch_add(1, Ordering::Relaxed);
            let_go(payload);
        }
    }
}

/// Drops what a panic carried. Its destructor is foreign code too, and whoever panics with a payload that panics could
/// do so for ever: the second is leaked.
fn let_go(payload: Box<dyn Any + Send>) {
    mem::forget(catch_unwind(AssertUnwindSafe(|| drop(payload))));
}

fn spawn(shared: &Arc<Shared>) -> Result<Thread, Error> {
    let (ends, ended) = bounded::<Infallible>(0);
    let worker = Arc::clone(shared);
    let thread = thread::Builder::new()
        .name("lock-callbacks".to_owned())
        .spawn(move || {
            worker.run();
            drop(ends);
        })
        .map_err(|error| Error::Thread { reason: error.to_string() })?;
    // It is not joined: a callback may never return.
    Ok(Thread { id: thread.thread().id(), ended })
}
