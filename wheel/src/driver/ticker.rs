//! The ticker: the thread which sleeps until values are due, takes the due values out of the
//! shards, and calls the handler in batches.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crossbeam_channel::never;

use super::context::Context;
use super::lifecycle::refuse;
use super::shard::{DueValues, Shard};
use super::wakeup::Wakeup;
use crate::time::clock::Parker;
use crate::time::tick::NEVER;

/// Called with a batch of due values. The handler takes values out; the ticker drops the rest.
pub(crate) type Handler<T> = Box<dyn FnMut(&mut DueValues<T>) + Send>;

/// The most values taken under one lock and passed in one call. The batch is small enough for
/// callers to wait for the lock for microseconds only, and large enough to make the cost of the
/// lock and the call negligible.
pub(crate) const MAX_BATCH_VALUES: usize = 1024;

pub(crate) struct Ticker<T> {
    pub(crate) shards: Arc<[Arc<Shard<T>>]>,
    pub(crate) wakeup: Arc<Wakeup>,
    pub(crate) parker: Arc<Parker>,
    pub(crate) context: Arc<Context>,
    pub(crate) handler: Handler<T>,
    /// Whether a value retains its unit of capacity when taken out.
    pub(crate) retains_capacity: fn(&T) -> bool,
}

impl<T: Send + 'static> Ticker<T> {
    /// Registers the parker with the clock, before a manual clock can be moved. A manual clock then
    /// waits for the ticker to park, however late the ticker's thread starts. A panic of the clock
    /// propagates to the caller.
    pub(crate) fn register(&self) {
        // The permit makes the park return at once.
        self.parker.unpark();
        self.context.clock.park(&self.parker, None, &never());
    }

    /// Runs the ticker until the timer stops, then cleans up. The body of the ticker thread.
    pub(crate) fn run_to_end(mut self) {
        // Only the clock can panic here: the context calls all other user code and catches panics.
        // The ticker calls the clock between two batches and without a lock, so no work is half
        // done.
        let outcome = catch_unwind(AssertUnwindSafe(|| self.run()));
        if !self.context.home.is_current() {
            // A task has forked, and this thread is the copy in the child. The copy touches no
            // state of the parent.
            mem::forget(self);
            return;
        }
        // The ticker fires no more values, so the shards refuse new values. They refuse before the
        // report, so the panic hook can rely on the refusal. Pending values stay until the timer is
        // stopped. After a stop, the call has no effect.
        refuse(&self.shards);
        if let Err(payload) = outcome {
            self.context.panics.report(payload);
        }
        let Self { parker, context, handler, .. } = self;
        // The parker first, so no manual clock waits for the handler's destructor, which is user
        // code.
        drop(parker);
        context.panics.catch(|| drop(handler));
    }

    /// Fires due values and sleeps, until the timer stops.
    pub(crate) fn run(&mut self) {
        let mut due = DueValues::new();
        while !self.wakeup.is_stopping() {
            // 1. Fire all due values.
            let tick = self.context.scale.elapsed_ticks(self.context.clock.now());
            self.fire_due(tick, &mut due);
            if !self.context.home.is_current_by_count() {
                break;
            }
            // 2. Sleep until more values are due.
            self.sleep();
        }
    }

    /// Passes all values due at `tick` to the handler. A value scheduled during the call is due at
    /// the next tick at the earliest, so the loop ends.
    fn fire_due(&mut self, tick: u64, due: &mut DueValues<T>) {
        loop {
            let mut full = false;
            // One batch from each shard in turn: a long backlog in one shard does not delay the
            // other shards.
            for shard in &*self.shards {
                if shard.next_wake() > tick {
                    continue;
                }
                // Fills up the batch begun by the previous shards.
                shard.take_due(
                    tick,
                    MAX_BATCH_VALUES - due.values.len(),
                    due,
                    self.retains_capacity,
                );
                if due.values.len() == MAX_BATCH_VALUES {
                    full = true;
                    call_handler(&mut self.handler, &self.context, due);
                    if self.wakeup.is_stopping() {
                        // The stopping thread takes the remaining values.
                        return;
                    }
                }
            }
            if !full {
                // Every shard was inspected, and the batch had room left: no shard has due values.
                break;
            }
        }
        if !due.values.is_empty() {
            call_handler(&mut self.handler, &self.context, due);
        }
    }

    /// Sleeps until the earliest next wake. The park may return early; the caller checks the shards
    /// again.
    fn sleep(&self) {
        // 1. Announce the tick to which the ticker sleeps.
        let wake = self.earliest_wake();
        self.wakeup.begin_sleep(wake);
        // 2. Read the next wakes again. A caller may have scheduled before the announcement, and
        //    such a caller may not have unparked the ticker.
        if self.earliest_wake() >= wake && !self.wakeup.is_stopping() {
            // 3. Park. The deadline is `None` if no entry is pending or no instant represents the
            //    tick.
            let deadline = self.context.scale.instant(wake);
            self.context.clock.park(&self.parker, deadline, &never());
        }
        self.wakeup.end_sleep();
    }

    fn earliest_wake(&self) -> u64 {
        self.shards.iter().map(|shard| shard.next_wake()).min().unwrap_or(NEVER)
    }
}

/// Calls the handler, without a lock. A free function, because `fire_due` borrows the shards
/// meanwhile.
fn call_handler<T>(handler: &mut Handler<T>, context: &Context, due: &mut DueValues<T>) {
    context.panics.catch(|| handler(due));
    due.ticks.clear();
    // Outside of the call above, because the destructors of the remaining values may panic as well.
    for left in due.values.drain(..) {
        // In a call for each value: a second destructor's panic while the first unwinds would abort
        // the process.
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
    fn stopped_ticker_hands_over_no_further_batch_of_backlog() {
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
        let handler = move |due: &mut DueValues<usize>| {
            sender.send(due.values.len()).unwrap();
            stopper.stop();
        };
        let mut ticker = Ticker {
            shards: Arc::clone(&shards),
            wakeup,
            parker,
            context,
            handler: Box::new(handler),
            retains_capacity: |_| false,
        };
        ticker.run();
        assert_eq!(batches.try_iter().collect::<Vec<_>>(), [MAX_BATCH_VALUES]);
        let left: usize = shards.iter().map(|shard| shard.pending()).sum();
        assert_eq!(left, 3000 - MAX_BATCH_VALUES);
    }
}
