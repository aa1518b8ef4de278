//! The life of a timer: how its ticker starts, once, and how it ends and gives back what was pending.

use std::mem;
use std::sync::{Arc, OnceLock};
use std::thread::{self, ThreadId};

use parking_lot::Mutex;

use crate::alarm::Alarm;
use crate::error::{BuildError, StopError};
use crate::firing::Firing;
use crate::shard::Shard;
use crate::ticker::{Ticker, TickerThread};

/// Owns the ticker, or the thread that it runs on. Dropping it ends both.
pub(crate) struct Lifecycle<T> {
    shards: Arc<[Arc<Shard<T>>]>,
    alarm: Arc<Alarm>,
    firing: Arc<Firing>,
    /// Set when the thread has been started.
    ticker_id: OnceLock<ThreadId>,
    stand: Mutex<Stand<T>>,
}

/// Where the ticker is.
enum Stand<T> {
    /// It waits for the first timeout, to be started under this name.
    Waiting(Box<Ticker<T>>, String),
    /// It runs, or a panic of the clock has ended it.
    Running(TickerThread),
    /// It was told to end and has done so, or was never started.
    Ended,
}

/// How a timer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// At once, but for the batch that the ticker has.
    Stop,
    /// When everything that is already due has been handed over.
    Drain,
}

impl<T: Send + 'static> Lifecycle<T> {
    /// Of a ticker that is yet to be started, on a thread with this name.
    pub(crate) fn new(ticker: Ticker<T>, thread_name: String) -> Self {
        Self {
            shards: Arc::clone(&ticker.shards),
            alarm: Arc::clone(&ticker.alarm),
            firing: Arc::clone(&ticker.firing),
            ticker_id: OnceLock::new(),
            stand: Mutex::new(Stand::Waiting(Box::new(ticker), thread_name)),
        }
    }

    pub(crate) fn is_started(&self) -> bool {
        self.ticker_id.get().is_some()
    }

    /// Starts the thread, if that has not been done and the timer was not ended. After an error, or a panic of the
    /// clock, the ticker still waits to be started.
    pub(crate) fn start(&self) -> Result<(), BuildError> {
        if self.is_started() {
            // Not a look under the lock: a task may ask while another thread, which holds it, waits for the task's end.
            return Ok(());
        }
        let mut stand = self.stand.lock();
        let Stand::Waiting(ticker, name) = &*stand else {
            return Ok(());
        };
        let (thread, seat) = TickerThread::spawn(name.clone()).map_err(BuildError::ThreadSpawn)?;
        // With a thread at hand, or a manual clock would wait for a ticker that never runs. If the clock panics in
        // here, the thread finds that no ticker comes.
        ticker.register();
        // Nobody else sets it: this happens once, under the lock, and before the ticker can call anything.
        let _set = self.ticker_id.set(thread.id());
        if let Stand::Waiting(ticker, _) = mem::replace(&mut *stand, Stand::Running(thread)) {
            // The thread waits for it, so it is taken.
            let _taken = seat.send(ticker);
        }
        Ok(())
    }

    /// Ends the timer, and gives back what was pending by the ticks at which it was due. It waits for the thread to
    /// end; the second time there is nothing left to give.
    pub(crate) fn end(&self, ending: Ending) -> Result<Vec<(u64, T)>, StopError> {
        if self.is_on_ticker_thread() {
            return Err(StopError::OnTickerThread);
        }
        // Held while the thread ends: who calls at the same time must not return before it has.
        let mut stand = self.stand.lock();
        let (running, unstarted) = match mem::replace(&mut *stand, Stand::Ended) {
            Stand::Running(thread) => (Some(thread), None),
            Stand::Waiting(ticker, _) => (None, Some(ticker)),
            Stand::Ended => (None, None),
        };
        let join = || {
            if let Some(thread) = running {
                thread.join();
            }
        };
        let unprocessed = match ending {
            Ending::Stop => {
                let unprocessed = self.close();
                join();
                unprocessed
            }
            Ending::Drain => {
                for shard in &*self.shards {
                    shard.refuse();
                }
                self.alarm.drain();
                join();
                self.close()
            }
        };
        drop(stand);
        // With no lock held, as the handler's destructor is foreign code.
        self.firing.panics.contain(|| drop(unstarted));
        Ok(unprocessed)
    }
}

impl<T> Lifecycle<T> {
    pub(crate) fn alarm(&self) -> &Alarm {
        &self.alarm
    }

    fn is_on_ticker_thread(&self) -> bool {
        self.ticker_id.get().is_some_and(|id| thread::current().id() == *id)
    }

    /// Closes every shard and tells the ticker to end.
    fn close(&self) -> Vec<(u64, T)> {
        self.alarm.stop();
        let mut unprocessed = Vec::new();
        for shard in &*self.shards {
            shard.close(&mut unprocessed);
        }
        // Stable, so that what one thread has scheduled for one tick stays in order.
        unprocessed.sort_by_key(|(tick, _)| *tick);
        unprocessed
    }
}

impl<T> Drop for Lifecycle<T> {
    fn drop(&mut self) {
        let unprocessed = self.close();
        match mem::replace(self.stand.get_mut(), Stand::Ended) {
            Stand::Running(thread) if !self.is_on_ticker_thread() => thread.join(),
            // A task drops its own timer; the thread ends after it.
            Stand::Running(_) | Stand::Ended => {}
            Stand::Waiting(ticker, _) => self.firing.panics.contain(|| drop(ticker)),
        }
        // Last: these destructors are foreign code, and by now nothing of the timer is left to be in their way.
        for (_, value) in unprocessed {
            self.firing.panics.contain(|| drop(value));
        }
    }
}
