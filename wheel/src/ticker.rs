//! The ticker: the thread that sleeps until something is due, takes it, and hands it over in batches.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle, ThreadId};

use crate::alarm::Alarm;
use crate::clock::{Clock, Parker};
use crate::panics::Panics;
use crate::shard::Shard;
use crate::wheel::tick::{NEVER, TickScale};

/// What is called with what is due. It takes the values out; what it leaves is dropped.
pub(crate) type Handler<T> = Box<dyn FnMut(&mut Vec<T>) + Send>;

/// The most values that are taken under one lock, and handed over in one call: few enough that a caller who waits for
/// the lock waits for microseconds, many enough that the lock and the call do not count.
pub(crate) const BATCH_MAX: usize = 1024;

pub(crate) struct Ticker<T> {
    pub(crate) shards: Arc<[Arc<Shard<T>>]>,
    pub(crate) alarm: Arc<Alarm>,
    pub(crate) parker: Arc<Parker>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) scale: TickScale,
    pub(crate) panics: Arc<Panics>,
    pub(crate) handler: Handler<T>,
}

impl<T: Send + 'static> Ticker<T> {
    /// Starts the thread.
    pub(crate) fn start(self, name: String) -> io::Result<TickerThread> {
        // Makes the clock know the parker before anyone can move a manual clock: it then waits for the ticker to come
        // to rest, however late the thread begins. The permit makes the park return at once.
        self.parker.unpark();
        self.clock.park(&self.parker, None, &crossbeam_channel::never());
        let handle = thread::Builder::new().name(name).spawn(move || self.run())?;
        Ok(TickerThread { id: handle.thread().id(), handle })
    }

    fn run(mut self) {
        let mut batch = Vec::new();
        while !self.alarm.is_stopping() {
            let tick = self.scale.elapsed_ticks(self.clock.now());
            self.turn(tick, &mut batch);
            self.sleep();
        }
    }

    /// Hands over everything that was due at `tick` when the turn began. What is scheduled during the turn is due at
    /// the next tick at the earliest, so the turn has an end.
    fn turn(&mut self, tick: u64, batch: &mut Vec<T>) {
        loop {
            let mut full = false;
            // One batch from each shard in turn, so that a long backlog in one does not hold up the others.
            for shard in &*self.shards {
                if shard.plan() > tick {
                    continue;
                }
                shard.take_due(tick, BATCH_MAX - batch.len(), batch);
                if batch.len() == BATCH_MAX {
                    full = true;
                    hand_over(&mut self.handler, &self.panics, batch);
                }
            }
            if !full {
                break;
            }
            if self.alarm.is_stopping() {
                // Whoever stops the timer takes the rest.
                break;
            }
        }
        if !batch.is_empty() {
            hand_over(&mut self.handler, &self.panics, batch);
        }
    }

    /// Sleeps to the earliest plan. It may return before; the caller looks again.
    fn sleep(&self) {
        let wake = self.earliest_plan();
        self.alarm.fall_asleep(wake);
        // Once more, now that those who schedule know how long the sleep is to be.
        if self.earliest_plan() >= wake && !self.alarm.is_stopping() {
            // No instant: nothing is planned, or for later than any clock can say.
            let deadline = self.scale.instant(wake);
            self.clock.park(&self.parker, deadline, &crossbeam_channel::never());
        }
        self.alarm.awake();
    }

    fn earliest_plan(&self) -> u64 {
        self.shards.iter().map(|shard| shard.plan()).min().unwrap_or(NEVER)
    }
}

/// Calls the handler, with no lock held. Not a method, as the shards are borrowed meanwhile.
fn hand_over<T>(handler: &mut Handler<T>, panics: &Panics, batch: &mut Vec<T>) {
    panics.contain(|| handler(batch));
    // Apart from the call, because the destructors of what was left may panic as well.
    panics.contain(|| batch.clear());
}

/// The running thread, seen from outside.
pub(crate) struct TickerThread {
    id: ThreadId,
    handle: JoinHandle<()>,
}

impl TickerThread {
    pub(crate) fn id(&self) -> ThreadId {
        self.id
    }

    /// Waits until the thread has ended. It must have been told to, and must not be the caller's.
    pub(crate) fn join(self) {
        // The thread contains every panic of foreign code but the clock's. That one has been printed by the panic
        // hook, and all that can be done for who stops the timer is to let it stop.
        drop(self.handle.join());
    }
}

impl fmt::Debug for TickerThread {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("TickerThread").field(&self.id).finish()
    }
}
