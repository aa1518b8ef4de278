//! A hashed timing wheel with rounds, and timers on it with a thread that sleeps while nothing is
//! due.
//!
//! For programs with threads and many timeouts, most of which are cancelled: requests to give up,
//! leases to renew, idle connections to close.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//! use hashed_wheel::{HashedWheelTimer, ManualClock, crossbeam_channel};
//!
//! // For the example; without it the timer uses the system's clock.
//! let clock = ManualClock::new();
//! let timer = HashedWheelTimer::builder().clock(Arc::new(clock.clone())).build()?;
//! let (sender, receiver) = crossbeam_channel::unbounded();
//! let late = sender.clone();
//! timer.schedule(Duration::from_secs(5), move || late.send("too late").unwrap())?;
//! let other = timer.schedule(Duration::from_secs(5), move || sender.send("cancelled").unwrap())?;
//! assert!(other.cancel());
//! clock.advance(Duration::from_secs(6));
//! assert_eq!(receiver.iter().collect::<Vec<_>>(), ["too late"]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it does not do
//!
//! * It is not exact. A task runs up to a tick late, plus the time to wake a thread, plus the tasks
//!   before it.
//! * It is not real-time. Tasks run one after the other on one thread: a task that blocks delays
//!   all others.
//! * It keeps no order between timeouts of different threads that are due at one time.
//! * It goes by [`Instant`](std::time::Instant), which on Linux stands still while the machine is
//!   suspended. A [`Clock`] of your own may use another time.
//! * It frees only part of its memory while it runs: empty chunks of entries and empty pages of
//!   buckets. The tables that index them stay as large as they ever were.
//!
//! # What it guarantees
//!
//! * *Never early.* A deadline is rounded up to a tick.
//! * *Idle is idle.* The thread sleeps until something is due, whatever is pending. It is woken
//!   only for a timeout that is due before the end of its sleep, and to free memory after many
//!   cancels. A cancelled timeout may wake it once, when it was due.
//! * *No walk.* No pending entry is looked at before it is due, even with a million of them in one
//!   bucket.
//! * *One winner.* Either [`Timeout::cancel`], the ticker or [`HashedWheelTimer::stop`] gets a
//!   task. Cancelling frees the task at once.
//! * *No lock is held* while a task, a handler, a hook or a destructor of yours runs.
//! * *A panic stops nothing.* It is caught, counted and reported to [`TimerBuilder::on_panic`].
//!   Only a panic of a [`Clock`] of your own may end the timer, which then refuses everything.
//! * *Bounded work.* The ticker takes at most 1024 entries at a time. What is scheduled while it
//!   fires is due later.
//! * *Bounded memory*, if asked for. [`TimerBuilder::max_pending_timeouts`] is never exceeded, and
//!   a refused task is returned.
//! * *A fork leaves the timer to the parent.* The child has no ticker thread: there each call
//!   returns `Forked`, handles find their task no longer pending, a drop is quiet and drops no
//!   task, and nothing waits for a lock. The channels of [`WeakTimer::after`] and
//!   [`WeakTimer::interval`] receive nothing there. A child builds timers of its own. A [`Wheel`] is
//!   plain data, which a fork copies.
//! * *Nothing is lost.* A stop returns what was pending. Tasks that the ticker has already taken,
//!   at most 1024, still run.
//!
//! # Three levels
//!
//! * [`HashedWheelTimer`] runs closures, each with a [`Timeout`] to cancel it. Start here.
//! * [`BatchTimer`] passes values of one type to one handler in batches, and boxes nothing. For a
//!   program with very many timeouts of one kind.
//! * [`Wheel`] is plain data without a thread or a clock, for an event loop that has its own.
//!
//! [`ScheduleError`] returns what was to be scheduled and tells whether a later call may succeed.
//! [`BuildError`] names the setting that is out of range.
//!
//! The [`guide`] explains how the wheel works, what makes a timeout late, how to choose the tick
//! and the size, how to test with a [`ManualClock`], and how this compares with other timers.
//!
//! # Features
//!
//! * `std` (default): the timers. Without it there is only [`Wheel`], which needs an allocator and
//!   has no dependencies.
//! * `tsc`: a clock that reads the processor's time-stamp counter where a delay begins.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(feature = "std"), no_std)]

extern crate alloc;

// Comments cite sections of DESIGN.md, which is in the repository: `(DESIGN: buckets)`.

// From the top, each importing only what is below it: `timer`, `driver`, `stats`, `time`, `wheel`.

#[cfg(feature = "std")]
mod driver;
mod error;
#[cfg(feature = "std")]
pub mod guide;
#[cfg(feature = "std")]
mod stats;
#[cfg(feature = "std")]
mod time;
#[cfg(feature = "std")]
mod timer;
mod wheel;

/// The crate whose channels are in some signatures, such as that of [`WeakTimer::after`].
#[cfg(feature = "std")]
pub use crossbeam_channel;

pub use crate::error::BuildError;
pub use crate::wheel::{Key, TICKS_PER_WHEEL_MAX, Wheel};

#[cfg(feature = "tsc")]
pub use crate::time::tsc_clock::TscClock;
#[cfg(feature = "std")]
pub use crate::{
    error::{ScheduleError, StopError},
    stats::histogram::{Histogram, Summary},
    stats::statistics::Statistics,
    time::clock::{Clock, Parker, SystemClock},
    time::manual_clock::ManualClock,
    time::tick::TickScale,
    timer::batch_timer::{BatchTimer, Unprocessed},
    timer::builder::TimerBuilder,
    timer::cancel_on_drop::CancelOnDrop,
    timer::hashed_wheel_timer::HashedWheelTimer,
    timer::period::{MissedRuns, Period},
    timer::periodic::PeriodicTimeout,
    timer::task::Task,
    timer::timeout::Timeout,
    timer::weak_batch_timer::{TimerKey, WeakBatchTimer},
    timer::weak_timer::WeakTimer,
};

/// Runs the examples of the README as tests.
#[cfg(all(doctest, feature = "std"))]
#[doc = include_str!("../README.md")]
mod readme {}
