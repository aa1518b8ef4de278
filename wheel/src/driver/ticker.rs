//! The ticker: the thread that sleeps until something is due, takes it, and calls the handler in
//! batches.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crossbeam_channel::never;

use super::context::Context;
use super::lifecycle::refuse;
use super::shard::{Due, Shard};
use super::wakeup::Wakeup;
use crate::time::clock::Parker;
use crate::time::tick::NEVER;

/// Called with what is due. It takes the values out; those that it leaves are dropped.
pub(crate) type Handler<T> = Box<dyn FnMut(&mut Due<T>) + Send>;

/// The most values that are taken under one lock, and passed in one call: few enough that a caller
/// waits for the lock for microseconds, many enough that the lock and the call do not count.
pub(crate) const BATCH_MAX: usize = 1024;

pub(crate) struct Ticker<T> {
    pub(crate) shards: Arc<[Arc<Shard<T>>]>,
    pub(crate) wakeup: Arc<Wakeup>,
    pub(crate) parker: Arc<Parker>,
    pub(crate) context: Arc<Context>,
    pub(crate) handler: Handler<T>,
    /// Whether a value keeps its unit of capacity when it is taken out.
    pub(crate) keeps_capacity: fn(&T) -> bool,
}

impl<T: Send + 'static> Ticker<T> {
    /// Makes the parker known to the clock, before anything can move a manual clock: that clock
    /// then waits for the ticker to park, however late its thread starts. A panic of the clock goes
    /// to the caller.
    pub(crate) fn register(&self) {
        // The permit makes the park return at once.
        self.parker.unpark();
        self.context.clock.park(&self.parker, None, &never());
    }

    /// What the thread does, from start to end.
    pub(crate) fn run_to_end(mut self) {
        // Only the clock can panic here: all other code of a user is called through the context,
        // which catches. Nothing is half done then: the clock is called between two batches,
        // without a lock.
        let outcome = catch_unwind(AssertUnwindSafe(|| self.run()));
        if !self.context.home.is_current() {
            // A task has forked, and this is the copy of the thread in the child, which touches
            // nothing of the parent's.
            mem::forget(self);
            return;
        }
        // From now on nothing is fired, so nothing is accepted. Before the report, so that the
        // panic hook can rely on it. Pending values stay until the timer is stopped. After a stop
        // this changes nothing.
        refuse(&self.shards);
        if let Err(payload) = outcome {
            self.context.panics.report(payload);
        }
        let Self { parker, context, handler, .. } = self;
        // The parker first, so that no manual clock waits for the handler's destructor, a user's
        // code.
        drop(parker);
        context.panics.catch(|| drop(handler));
    }

    /// Fires what is due and sleeps, until the timer stops.
    pub(crate) fn run(&mut self) {
        let mut due = Due::new();
        while !self.wakeup.is_stopping() {
            // 1. Fire everything that is due.
            let tick = self.context.scale.elapsed_ticks(self.context.clock.now());
            self.fire_due(tick, &mut due);
            if !self.context.home.is_current_by_count() {
                break;
            }
            // 2. Sleep until something else is due.
            self.sleep();
        }
    }

    /// Hands over everything that was due at `tick` when it was called. A value that is scheduled
    /// meanwhile is due at the next tick at the earliest, so this ends.
    fn fire_due(&mut self, tick: u64, due: &mut Due<T>) {
        loop {
            let mut full = false;
            // One batch from each shard in turn, so that a long backlog in one does not delay the
            // others.
            for shard in &*self.shards {
                if shard.next_wake() > tick {
                    continue;
                }
                // Fills up the batch that the shards before have begun.
                shard.take_due(tick, BATCH_MAX - due.values.len(), due, self.keeps_capacity);
                if due.values.len() == BATCH_MAX {
                    full = true;
                    call_handler(&mut self.handler, &self.context, due);
                    if self.wakeup.is_stopping() {
                        // The thread that stops the timer takes the rest.
                        return;
                    }
                }
            }
            if !full {
                // Every shard was asked and had room left in the batch: none has anything due.
                break;
            }
        }
        if !due.values.is_empty() {
            call_handler(&mut self.handler, &self.context, due);
        }
    }

    /// Sleeps to the earliest next wake. It may return early; the caller looks again.
    fn sleep(&self) {
        // 1. Announce how long the sleep is to be (DESIGN: wakeup).
        let wake = self.earliest_wake();
        self.wakeup.begin_sleep(wake);
        // 2. Look again, now that callers know: one that scheduled before could not know to wake
        //    it.
        if self.earliest_wake() >= wake && !self.wakeup.is_stopping() {
            // 3. Park. Without a deadline if nothing is pending, or later than any clock can tell.
            let deadline = self.context.scale.instant(wake);
            self.context.clock.park(&self.parker, deadline, &never());
        }
        self.wakeup.end_sleep();
    }

    fn earliest_wake(&self) -> u64 {
        self.shards.iter().map(|shard| shard.next_wake()).min().unwrap_or(NEVER)
    }
}

/// Calls the handler, without a lock. Not a method, because the shards are borrowed meanwhile.
fn call_handler<T>(handler: &mut Handler<T>, context: &Context, due: &mut Due<T>) {
    context.panics.catch(|| handler(due));
    due.ticks.clear();
    // Not inside the call above, because the destructors of what was left may panic as well.
    for left in due.values.drain(..) {
        // One by one: a second destructor that panics while the first unwinds would abort the
        // process.
        context.panics.catch(|| drop(left));
    }
}

#[cfg(test)]
#[cfg(not(hashed_wheel_loom))]
mod tests {
    use std::time::Duration;

    use crossbeam_channel::bounded;

    use super::*;
    use crate::time::clock::Clock;
    use crate::time::manual_clock::ManualClock;
    use crate::time::tick::TickScale;
    use crate::wheel::Wheel;

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes under Miri")]
    fn a_ticker_that_is_stopped_takes_no_further_batch_of_its_backlog() {
        let clock = Arc::new(ManualClock::new());
        let scale = TickScale::new(clock.now(), Duration::from_secs(1)).unwrap();
        let context = Arc::new(Context::new(Arc::<ManualClock>::clone(&clock), scale, None));
        let parker = Arc::new(Parker::new());
        let wakeup = Arc::new(Wakeup::new(Arc::downgrade(&parker)));
        let shard = || {
            Arc::new(Shard::new(
                Wheel::new(8).unwrap(),
                Arc::clone(&context),
                Arc::clone(&wakeup),
                None,
            ))
        };
        let shards: Arc<[_]> = Arc::new([shard(), shard()]);
        for value in 0..3000 {
            shards[value % 2].schedule(1, value).unwrap();
        }
        clock.jump(Duration::from_secs(1));
        let (sender, batches) = bounded(3);
        // A test of the whole timer could not tell: a stop also takes what is left, and how much of
        // it before the handler returns is left to chance.
        let stopper = Arc::clone(&wakeup);
        let handler = move |due: &mut Due<usize>| {
            sender.send(due.values.len()).unwrap();
            stopper.stop();
        };
        let mut ticker = Ticker {
            shards: Arc::clone(&shards),
            wakeup,
            parker,
            context,
            handler: Box::new(handler),
            keeps_capacity: |_| false,
        };
        ticker.run();
        assert_eq!(batches.try_iter().collect::<Vec<_>>(), [BATCH_MAX]);
        let left: usize = shards.iter().map(|shard| shard.pending()).sum();
        assert_eq!(left, 3000 - BATCH_MAX);
    }
}
