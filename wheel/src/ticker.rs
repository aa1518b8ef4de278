//! The ticker: the thread that sleeps until something is due, takes it, and hands it over in batches.

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle, ThreadId};

use crossbeam_channel::{Sender, bounded, never};

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
    /// Makes the clock know the parker, before anyone can move a manual clock: that then waits for the ticker to come to
    /// rest, however late its thread begins. A panic of the clock is the caller's.
    pub(crate) fn register(&self) {
        // The permit makes the park return at once.
        self.parker.unpark();
        self.firing.clock.park(&self.parker, None, &never());
    }

    /// What the thread does, from its beginning to its end.
    fn live(mut self) {
        // The panic is that of the clock: all else that is foreign is contained in the turn. Nothing is half done then,
        // as the clock is called between two turns, with no lock held.
        let outcome = catch_unwind(AssertUnwindSafe(|| self.run()));
        // Nobody comes for what is scheduled from now on. Before the report, so that who hears of the panic can rely on
        // it; what is pending stays until the timer is stopped. After a stop all this is so already.
        for shard in &*self.shards {
            shard.refuse();
        }
        if let Err(payload) = outcome {
            self.firing.panics.report(payload);
        }
        let Self { parker, firing, handler, .. } = self;
        // First, so that no manual clock waits for the handler's destructor. That one is foreign code as well.
        drop(parker);
        firing.panics.contain(|| drop(handler));
    }

    /// Takes turns and sleeps, until it is told to end.
    pub(crate) fn run(&mut self) {
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
            self.firing.clock.park(&self.parker, deadline, &never());
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
    /// Starts a thread that waits for the ticker to be sent to it, and ends if none comes.
    pub(crate) fn spawn<T: Send + 'static>(
        name: String,
    ) -> io::Result<(Self, Sender<Box<Ticker<T>>>)> {
        let (seat, seated) = bounded::<Box<Ticker<T>>>(1);
        let body = move || {
            if let Ok(ticker) = seated.recv() {
                ticker.live();
            }
        };
        let handle = thread::Builder::new().name(name).spawn(body)?;
        Ok((Self { id: handle.thread().id(), handle }, seat))
    }

    pub(crate) fn id(&self) -> ThreadId {
        self.id
    }

    /// Waits until the thread has ended. It must have been told to, and must not be the caller's.
    pub(crate) fn join(self) {
        // The thread contains every panic, and there is no other result.
        drop(self.handle.join());
    }
}

impl fmt::Debug for TickerThread {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("TickerThread").field(&self.id).finish()
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::{Clock, ManualClock};
    use crate::panics::Panics;
    use crate::statistics::Record;
    use crate::tick::{TickDuration, TickScale};
    use crate::wheel::Wheel;

    #[test]
    fn a_ticker_that_is_told_to_end_takes_no_other_batch_of_its_backlog() {
        let clock = Arc::new(ManualClock::new());
        let scale =
            TickScale::new(clock.now(), TickDuration::try_from(Duration::from_secs(1)).unwrap());
        let parker = Arc::new(Parker::new());
        let alarm = Arc::new(Alarm::new(Arc::downgrade(&parker)));
        let shard =
            || Arc::new(Shard::new(Wheel::new(8).unwrap(), scale, Arc::clone(&alarm), None));
        let shards: Arc<[_]> = Arc::new([shard(), shard()]);
        for value in 0..3000 {
            shards[value % 2].schedule(1, value, &shards).unwrap();
        }
        clock.jump(Duration::from_secs(1));
        let (sender, batches) = bounded(3);
        // Through the timer's face this cannot be seen for sure: a stop also takes what is left, and how far it has
        // come with that when the handler returns is a matter of chance.
        let stopper = Arc::clone(&alarm);
        let handler = move |due: &mut Due<usize>| {
            sender.send(due.values.len()).unwrap();
            stopper.stop();
        };
        let mut ticker = Ticker {
            shards: Arc::clone(&shards),
            alarm,
            parker,
            firing: Arc::new(Firing {
                clock,
                scale,
                panics: Panics::new(None),
                record: Record::new(),
            }),
            handler: Box::new(handler),
            keeps_place: |_| false,
        };
        ticker.run();
        assert_eq!(batches.try_iter().collect::<Vec<_>>(), [BATCH_MAX]);
        let left: usize = shards.iter().map(|shard| shard.pending()).sum();
        assert_eq!(left, 3000 - BATCH_MAX);
    }
}
