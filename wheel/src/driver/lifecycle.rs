//! The lifecycle of a timer: the ticker thread starts with the timer, and a stop ends the thread
//! and returns the pending values.

use std::io;
use std::mem;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::thread::{self, JoinHandle, ThreadId};

use parking_lot::Mutex;

use super::context::Context;
use super::panics::drop_payload;
use super::shard::Shard;
use super::ticker::Ticker;
use super::wakeup::Wakeup;
use crate::error::StopError;

/// Owns the ticker thread. A drop ends the thread.
pub(crate) struct Lifecycle<T> {
    shards: Arc<[Arc<Shard<T>>]>,
    wakeup: Arc<Wakeup>,
    context: Arc<Context>,
    ticker_id: ThreadId,
    /// `None` once a stop has joined the thread.
    thread: Mutex<Option<JoinHandle<()>>>,
}

// A panic cannot leave a `Lifecycle` half changed: no user code runs under the lock.
impl<T> UnwindSafe for Lifecycle<T> {}
impl<T> RefUnwindSafe for Lifecycle<T> {}

impl<T: Send + 'static> Lifecycle<T> {
    /// Starts the ticker on a thread named `thread_name`. Returns the error of the operating system
    /// if the thread cannot be spawned. A panic of the clock propagates to the caller.
    pub(crate) fn start(ticker: Ticker<T>, thread_name: String) -> io::Result<Self> {
        let (shards, wakeup) = (Arc::clone(&ticker.shards), Arc::clone(&ticker.wakeup));
        let context = Arc::clone(&ticker.context);
        ticker.register();
        let thread = thread::Builder::new().name(thread_name).spawn(|| ticker.run_to_end())?;
        let ticker_id = thread.thread().id();
        Ok(Self { shards, wakeup, context, ticker_id, thread: Mutex::new(Some(thread)) })
    }
}

impl<T> Lifecycle<T> {
    /// Stops the timer, waits for the thread to end, and returns the pending values with their due
    /// ticks. A second call returns no values. Fails with [`StopError::Forked`] in a child of the
    /// timer's process, and with [`StopError::OnTickerThread`] on the ticker thread.
    pub(crate) fn stop(&self) -> Result<Vec<(u64, T)>, StopError> {
        // Checked first: after a fork in a task, the child runs on a copy of the ticker thread.
        if !self.context.home.is_current() {
            return Err(StopError::Forked);
        }
        if self.is_on_ticker_thread() {
            return Err(StopError::OnTickerThread);
        }
        // Locked until the thread has ended: a second call must not return before the first call.
        let mut thread = self.thread.lock();
        let unprocessed = close(&self.shards, &self.wakeup);
        if let Some(thread) = thread.take() {
            join(thread);
        }
        Ok(unprocessed)
    }

    fn is_on_ticker_thread(&self) -> bool {
        thread::current().id() == self.ticker_id
    }
}

/// Waits until the ticker thread has ended, and drops the payload of a panic. The ticker catches
/// every panic except in the destructors of the clock and of the hooks.
fn join(thread: JoinHandle<()>) {
    if let Err(payload) = thread.join() {
        drop_payload(payload);
    }
}

/// Makes every shard refuse new values.
pub(crate) fn refuse<T>(shards: &[Arc<Shard<T>>]) {
    for shard in shards {
        shard.refuse();
    }
}

/// Tells the ticker to end, and takes the pending values out of every shard, with the due ticks.
pub(crate) fn close<T>(shards: &[Arc<Shard<T>>], wakeup: &Wakeup) -> Vec<(u64, T)> {
    // All shards refuse before the first shard is emptied. Emptying a shard gives the shard's
    // capacity back. A shard still accepting values would use the capacity again, and the call
    // would return more values than the limit allows.
    refuse(shards);
    wakeup.stop();
    let mut unprocessed = Vec::new();
    for shard in shards {
        shard.close(&mut unprocessed);
    }
    // A stable sort: values scheduled by one thread for one tick stay in order.
    unprocessed.sort_by_key(|(tick, _)| *tick);
    unprocessed
}

impl<T> Drop for Lifecycle<T> {
    fn drop(&mut self) {
        let thread = self.thread.get_mut().take();
        if !self.context.home.is_current() {
            // The thread does not exist here, and the pending values belong to the parent: both
            // stay untouched.
            mem::forget(thread);
            mem::forget(Arc::clone(&self.shards));
            return;
        }
        let unprocessed = close(&self.shards, &self.wakeup);
        // If a task drops the task's own timer, the thread ends after the task.
        if let Some(thread) = thread.filter(|_| !self.is_on_ticker_thread()) {
            join(thread);
        }
        // Last: the destructors are user code, and by now the timer holds no lock or thread for
        // which a destructor could wait.
        for (_, value) in unprocessed {
            self.context.panics.catch(|| drop(value));
        }
    }
}
