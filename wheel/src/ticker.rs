//! The ticker: the thread that sleeps until something is due, takes it, and hands it over in batches.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle, ThreadId};

use parking_lot::Mutex;

use crate::alarm::Alarm;
use crate::clock::Parker;
use crate::firing::Firing;
use crate::shard::{Due, Shard};
use crate::tick::NEVER;

/// What is called with what is due. It takes the values out; what it leaves is dropped.
pub(crate) type Handler<T> = Box<dyn FnMut(&mut Due<T>) + Send>;

/// The most values that are taken under one lock, and handed over in one call: few enough that a caller who waits for
/// the lock waits for microseconds, many enough that the lock and the call do not count.
pub(crate) const BATCH_MAX: usize = 1024;

pub(crate) struct Ticker<T> {
    pub(crate) shards: Arc<[Arc<Shard<T>>]>,
    pub(crate) alarm: Arc<Alarm>,
    pub(crate) parker: Arc<Parker>,
    pub(crate) firing: Arc<Firing>,
    pub(crate) handler: Handler<T>,
    /// Of which values the place under the bound stays taken when they are due.
    pub(crate) keeps_place: fn(&T) -> bool,
}

impl<T: Send + 'static> Ticker<T> {
    /// Starts the thread. If the system gives none, the ticker is handed back, to be started another time.
    pub(crate) fn start(self, name: String) -> Result<TickerThread, (io::Error, Box<Self>)> {
        // Makes the clock know the parker before anyone can move a manual clock: it then waits for the ticker to come
        // to rest, however late the thread begins. The permit makes the park return at once.
        self.parker.unpark();
        self.firing.clock.park(&self.parker, None, &crossbeam_channel::never());
        // A closure that could not be given a thread is dropped, and must not take the ticker with it.
        let seat = Arc::new(Mutex::new(Some(Box::new(self))));
        let passenger = Arc::clone(&seat);
        let body = move || {
            let ticker = passenger.lock().take();
            if let Some(ticker) = ticker {
                ticker.run();
            }
        };
        match thread::Builder::new().name(name).spawn(body) {
            Ok(handle) => Ok(TickerThread { id: handle.thread().id(), handle }),
            Err(error) => match seat.lock().take() {
                Some(ticker) => Err((error, ticker)),
                None => unreachable!("no thread was there to take it"),
            },
        }
    }

    pub(crate) fn run(mut self) {
        let mut due = Due::new();
        while !self.alarm.is_stopping() {
            // Before the turn: what was due when the draining began is then in it.
            let last = self.alarm.is_draining();
            let tick = self.firing.scale.elapsed_ticks(self.firing.clock.now());
            self.turn(tick, &mut due);
            if last {
                break;
            }
            self.sleep();
        }
    }

    /// Hands over everything that was due at `tick` when the turn began. What is scheduled during the turn is due at
    /// the next tick at the earliest, so the turn has an end.
    fn turn(&mut self, tick: u64, due: &mut Due<T>) {
        loop {
            let mut full = false;
            // One batch from each shard in turn, so that a long backlog in one does not hold up the others.
            for shard in &*self.shards {
                if shard.plan() > tick {
                    continue;
                }
                shard.take_due(tick, BATCH_MAX - due.values.len(), due, self.keeps_place);
                if due.values.len() == BATCH_MAX {
                    full = true;
                    hand_over(&mut self.handler, &self.firing, due);
                    if self.alarm.is_stopping() {
                        // Whoever stops the timer takes the rest.
                        return;
                    }
                }
            }
            if !full {
                break;
            }
        }
        if !due.values.is_empty() {
            hand_over(&mut self.handler, &self.firing, due);
        }
    }

    /// Sleeps to the earliest plan. It may return before; the caller looks again.
    fn sleep(&self) {
        let wake = self.earliest_plan();
        self.alarm.fall_asleep(wake);
        // Once more, now that those who schedule know how long the sleep is to be.
        if self.earliest_plan() >= wake && !self.alarm.is_ending() {
            // No instant: nothing is planned, or for later than any clock can say.
            let deadline = self.firing.scale.instant(wake);
            self.firing.clock.park(&self.parker, deadline, &crossbeam_channel::never());
        }
        self.alarm.awake();
    }

    fn earliest_plan(&self) -> u64 {
        self.shards.iter().map(|shard| shard.plan()).min().unwrap_or(NEVER)
    }
}

/// Calls the handler, with no lock held. Not a method, as the shards are borrowed meanwhile.
fn hand_over<T>(handler: &mut Handler<T>, firing: &Firing, due: &mut Due<T>) {
    firing.panics.contain(|| handler(due));
    due.ticks.clear();
    // Apart from the call, because the destructors of what was left may panic as well.
    for left in due.values.drain(..) {
        // One by one: a second destructor that panics while the first unwinds would end the process.
        firing.panics.contain(|| drop(left));
    }
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
