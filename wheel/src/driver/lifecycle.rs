//! The life of a timer: its ticker starts once, and ends by returning what was pending.

use std::io;
use std::mem;
use std::sync::{Arc, OnceLock};
use std::thread::{self, ThreadId};

use parking_lot::Mutex;

use super::context::Context;
use super::shard::Shard;
use super::ticker::{Ticker, TickerThread};
use super::wakeup::Wakeup;
use crate::error::StopError;

/// Owns the ticker, or the thread that it runs on. Dropping it ends both.
pub(crate) struct Lifecycle<T> {
    shards: Arc<[Arc<Shard<T>>]>,
    wakeup: Arc<Wakeup>,
    context: Arc<Context>,
    /// Set when the thread has been started.
    ticker_id: OnceLock<ThreadId>,
    ticker: Mutex<TickerState<T>>,
}

/// Where the ticker is.
enum TickerState<T> {
    /// It has not started. With the name of its thread.
    Unstarted(Box<Ticker<T>>, String),
    /// It runs, or a panic of the clock has ended it.
    Running(TickerThread),
    /// It was told to end and has ended, or never started.
    Ended,
}

/// How a timer stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopMode {
    /// At once, after the batch that the ticker has taken.
    Stop,
    /// When everything that is already due has been handed over.
    Drain,
}

impl<T: Send + 'static> Lifecycle<T> {
    /// For a ticker that is not started yet, on a thread with this name.
    pub(crate) fn new(ticker: Ticker<T>, thread_name: String) -> Self {
        Self {
            shards: Arc::clone(&ticker.shards),
            wakeup: Arc::clone(&ticker.wakeup),
            context: Arc::clone(&ticker.context),
            ticker_id: OnceLock::new(),
            ticker: Mutex::new(TickerState::Unstarted(Box::new(ticker), thread_name)),
        }
    }

    pub(crate) fn is_started(&self) -> bool {
        self.ticker_id.get().is_some()
    }

    /// Starts the thread, unless it is started or the timer was stopped. After an error, or a panic
    /// of the clock, the ticker can still be started.
    pub(crate) fn start(&self) -> io::Result<()> {
        // Checked without the lock: a task may call this while the thread that holds the lock waits
        // for the task to end. In a child of a fork that thread may not exist.
        if self.is_started() || !self.context.home.is_current() {
            return Ok(());
        }
        let mut state = self.ticker.lock();
        let TickerState::Unstarted(ticker, name) = &*state else {
            return Ok(());
        };
        let (thread, sender) = TickerThread::spawn(name.clone())?;
        // Only now that the thread exists, or a manual clock would wait for a ticker that never
        // runs. If the clock panics here, the sender is dropped and the thread ends.
        ticker.register();
        // It is set nowhere else: only here, once, under the lock, before the ticker can call
        // anything.
        let _set = self.ticker_id.set(thread.id());
        if let TickerState::Unstarted(ticker, _) =
            mem::replace(&mut *state, TickerState::Running(thread))
        {
            // The thread waits to receive it.
            let _received = sender.send(ticker);
        }
        Ok(())
    }

    /// Stops the timer and returns what was pending, with the due ticks. It waits for the thread to
    /// end. The second call returns nothing.
    pub(crate) fn stop(&self, mode: StopMode) -> Result<Vec<(u64, T)>, StopError> {
        // First: a task that forks is on the ticker thread in the child too.
        if !self.context.home.is_current() {
            return Err(StopError::Forked);
        }
        if self.is_on_ticker_thread() {
            return Err(StopError::OnTickerThread);
        }
        // Locked until the thread has ended: a second call must not return earlier than that.
        let mut state = self.ticker.lock();
        let (running, unstarted) = match mem::replace(&mut *state, TickerState::Ended) {
            TickerState::Running(thread) => (Some(thread), None),
            TickerState::Unstarted(ticker, _) => (None, Some(ticker)),
            TickerState::Ended => (None, None),
        };
        let join = || {
            if let Some(thread) = running {
                thread.join();
            }
        };
        let unprocessed = match mode {
            StopMode::Stop => {
                let unprocessed = close(&self.shards, &self.wakeup);
                join();
                unprocessed
            }
            StopMode::Drain => {
                refuse(&self.shards);
                self.wakeup.drain();
                join();
                close(&self.shards, &self.wakeup)
            }
        };
        drop(state);
        // Without the lock, because the handler's destructor is a user's code.
        self.context.panics.catch(|| drop(unstarted));
        Ok(unprocessed)
    }
}

impl<T> Lifecycle<T> {
    fn is_on_ticker_thread(&self) -> bool {
        self.ticker_id.get().is_some_and(|id| thread::current().id() == *id)
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
    // All shards refuse before the first is emptied. Emptying one gives its capacity back, and
    // another that still accepted values would use it again: more would be returned than the
    // capacity (DESIGN: shards).
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
        if !self.context.home.is_current() {
            // The thread does not exist here, and what is pending is the parent's: neither is
            // touched.
            mem::forget(mem::replace(self.ticker.get_mut(), TickerState::Ended));
            mem::forget(Arc::clone(&self.shards));
            return;
        }
        let unprocessed = close(&self.shards, &self.wakeup);
        match mem::replace(self.ticker.get_mut(), TickerState::Ended) {
            TickerState::Running(thread) if !self.is_on_ticker_thread() => thread.join(),
            // A task drops its own timer; the thread ends after it.
            TickerState::Running(_) | TickerState::Ended => {}
            TickerState::Unstarted(ticker, _) => self.context.panics.catch(|| drop(ticker)),
        }
        // Last: these destructors are a user's code, and by now the timer holds nothing they could
        // wait for.
        for (_, value) in unprocessed {
            self.context.panics.catch(|| drop(value));
        }
    }
}
