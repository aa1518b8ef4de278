//! The wheel alone: a timer with one thread, without Redis.
//!
//! Look at three things. The handle that `schedule` returns cancels and reschedules. `stop` returns
//! the tasks that have not run. A timer with a `ManualClock` does the same while a test sets the
//! time, so that a day takes no time.
//!
//! ```text
//! cargo run --example timer
//! ```

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::unbounded;
use hashed_wheel::{Clock as _, HashedWheelTimer, ManualClock};

fn main() -> Result<(), Box<dyn Error>> {
    println!("On the system's clock");
    on_the_systems_clock()?;
    println!("\nOn a manual clock");
    on_a_manual_clock()
}

fn on_the_systems_clock() -> Result<(), Box<dyn Error>> {
    let timer = HashedWheelTimer::builder().tick_duration(Duration::from_millis(1)).build()?;
    let clock = Arc::clone(timer.clock());
    let start = clock.now();
    let (sender, done) = unbounded();

    // One shot. A task runs on the timer's thread and should be short: this one sends a message.
    let due = Duration::from_millis(20);
    timer.schedule(due, {
        let (sender, clock) = (sender.clone(), Arc::clone(&clock));
        move || {
            sender.send(clock.now()).ok();
        }
    })?;
    let ran = done.recv()?.duration_since(start);
    println!("  one shot: due after {due:?}, ran after {ran:.1?}: never early");

    // Cancel. The task is dropped in this call without running. The result says whether it was in
    // time.
    let request = timer.schedule(Duration::from_secs(30), || println!("  never printed"))?;
    println!("  cancel: in time: {}, pending: {}", request.cancel(), timer.pending_timeouts());
    println!("  cancel again: in time: {}", request.cancel());

    // Reschedule. The same task gets another deadline, here an earlier one.
    let later = timer.schedule(Duration::from_secs(3600), {
        let clock = Arc::clone(&clock);
        move || {
            sender.send(clock.now()).ok();
        }
    })?;
    let moved = clock.now();
    later.reschedule(moved + Duration::from_millis(10));
    let ran = done.recv()?.duration_since(moved);
    println!("  reschedule: from an hour to 10ms, ran after {ran:.1?}: {}", later.is_expired());

    // Stop. It returns the tasks that have not run, in the order of their deadlines.
    timer.schedule(Duration::from_secs(120), || {
        println!("  the second, run by hand");
    })?;
    timer.schedule(Duration::from_secs(60), || {
        println!("  the first, run by hand");
    })?;
    let unprocessed = timer.stop()?;
    println!("  stop: {} tasks had not run", unprocessed.len());
    for task in unprocessed {
        (task.value)();
    }
    let refused = timer.schedule(Duration::ZERO, || println!("  never printed"));
    println!("  after stop: {}", refused.err().map_or_else(String::new, |error| error.to_string()));
    Ok(())
}

fn on_a_manual_clock() -> Result<(), Box<dyn Error>> {
    let clock = ManualClock::new();
    let timer = HashedWheelTimer::builder().clock(Arc::new(clock.clone())).build()?;
    let (sender, done) = unbounded();
    let report = |text: &'static str| {
        let sender = sender.clone();
        move || {
            sender.send(text).ok();
        }
    };

    let breakfast = timer.schedule(Duration::from_secs(8 * 3600), report("breakfast"))?;
    let lunch = timer.schedule(Duration::from_secs(12 * 3600), report("lunch"))?;
    let dinner = timer.schedule(Duration::from_secs(19 * 3600), report("dinner"))?;

    // `advance` returns when the timer's thread has run all that became due, so no sleep is needed.
    clock.advance(Duration::from_secs(8 * 3600 - 1));
    println!("  a second before: breakfast has run: {}", breakfast.is_expired());
    clock.advance(Duration::from_secs(1));
    println!("  on time: breakfast has run: {}", breakfast.is_expired());

    println!("  lunch is cancelled: {}", lunch.cancel());
    dinner.reschedule(clock.now() + Duration::from_secs(24 * 3600));
    clock.advance(Duration::from_secs(23 * 3600));
    println!("  dinner is a day later, and has run: {}", dinner.is_expired());

    println!("  what ran: {:?}", done.try_iter().collect::<Vec<_>>());
    println!("  stop: {} task had not run", timer.stop()?.len());
    Ok(())
}
