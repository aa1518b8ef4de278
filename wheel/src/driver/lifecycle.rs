//! The life of a timer: the ticker thread starts with the timer, and a stop ends the thread and
//! returns what was pending.

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

/// Owns the ticker thread. Dropping it ends the thread.
pub(crate) struct Lifecycle<T> {
    shards: Arc<[Arc<Shard<T>>]>,
    wakeup: Arc<Wakeup>,
    context: Arc<Context>,
    ticker_id: ThreadId,
    /// `None` once a stop has joined the thread.
    thread: Mutex<Option<JoinHandle<()>>>,
}

// A panic cannot leave it half changed: no code of a user runs under its lock.
impl<T> UnwindSafe for Lifecycle<T> {}
impl<T> RefUnwindSafe for Lifecycle<T> {}

impl<T: Send + 'static> Lifecycle<T> {
    /// Starts the ticker on a thread with this name. A panic of the clock goes to the caller.
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
    /// Stops the timer and returns what was pending, with the due ticks. Waits for the thread to
    /// end. The second call returns nothing.
    pub(crate) fn stop(&self) -> Result<Vec<(u64, T)>, StopError> {
        // First: a task that forks is on the ticker thread in the child too.
        if !self.context.home.is_current() {
            return Err(StopError::Forked);
        }
        if self.is_on_ticker_thread() {
            return Err(StopError::OnTickerThread);
        }
        // Locked until the thread has ended: a second call must not return earlier than the first.
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

/// Waits until the ticker thread has ended. The ticker catches every panic except in the
/// destructors of the clock and of the hooks.
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

/// Tells the ticker to end, and takes what is pending out of every shard, with the due ticks.
pub(crate) fn close<T>(shards: &[Arc<Shard<T>>], wakeup: &Wakeup) -> Vec<(u64, T)> {
    // All shards refuse before the first is emptied. Emptying a shard gives its capacity back. A
    // shard that still accepted values would use the capacity again, and more values would be
    // returned than the limit allows (DESIGN: shards).
    refuse(shards);
    wakeup.stop();
    let mut unprocessed = Vec::new();
    for shard in shards {
        shard.close(&mut unprocessed);
    }
    // Stable, so that values that one thread scheduled for one tick stay in order.
    unprocessed.sort_by_key(|(tick, _)| *tick);
    unprocessed
}

impl<T> Drop for Lifecycle<T> {
    fn drop(&mut self) {
        let thread = self.thread.get_mut().take();
        if !self.context.home.is_current() {
            // The thread does not exist here, and what is pending is the parent's: neither is
            // touched.
            mem::forget(thread);
            mem::forget(Arc::clone(&self.shards));
            return;
        }
        let unprocessed = close(&self.shards, &self.wakeup);
        // If a task drops its own timer, the thread ends after the task.
        if let Some(thread) = thread.filter(|_| !self.is_on_ticker_thread()) {
            join(thread);
        }
        // Last: these destructors are a user's code, and by now the timer holds nothing that they
        // could wait for.
        for (_, value) in unprocessed {
            self.context.panics.catch(|| drop(value));
        }
    }
}
