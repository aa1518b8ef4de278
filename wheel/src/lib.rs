//! A hashed timing wheel with rounds, and timers whose thread sleeps while nothing is due.
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
//! # Limits
//!
//! * *Not exact.* A task runs up to a tick late, plus the time to wake a thread, plus the tasks
//!   before the task.
//! * *Not real-time.* Tasks run one after another on one thread: a task that blocks delays all
//!   later tasks.
//! * No order holds between timeouts of different threads that are due at the same time.
//! * Time is [`Instant`](std::time::Instant), which on Linux stands still while the machine is
//!   suspended. A custom [`Clock`] may use another time.
//! * Only part of the memory is freed while the timer runs: empty chunks of entries and empty pages
//!   of buckets. The tables that index them never shrink.
//!
//! # Guarantees
//!
//! * *Never early.* A deadline is rounded up to a tick.
//! * *Idle is idle.* The thread sleeps until something is due, whatever is pending. The thread is
//!   woken only for a timeout due before the end of the sleep, and to free memory after many
//!   cancels. A cancelled timeout may wake the thread once, at its due tick.
//! * *No walk.* No pending entry is inspected before the entry is due, even with a million of them
//!   in one bucket.
//! * *One winner.* Either [`Timeout::cancel`], the ticker or [`HashedWheelTimer::stop`] gets a
//!   task. Cancelling frees the task at once.
//! * *No lock is held* while user code runs: a task, a handler, a hook or a destructor.
//! * *A panic stops nothing.* A panic is caught, counted and reported to
//!   [`TimerBuilder::on_panic`]. Only a panic of a custom [`Clock`] may end the timer, which then
//!   refuses everything.
//! * *Bounded work.* The ticker takes at most 1024 entries at a time. An entry scheduled while the
//!   ticker fires is due later.
//! * *Bounded memory*, on request. [`TimerBuilder::max_pending_timeouts`] is never exceeded, and a
//!   refused task is returned.
//! * *A fork leaves the timer to the parent.* The child has no ticker thread: there each call
//!   returns `Forked`, handles find their task no longer pending, a drop is quiet and drops no
//!   task, and nothing waits for a lock. The channels of [`WeakTimer::after`] and
//!   [`WeakTimer::interval`] receive nothing there. A child builds its own timers. A [`Wheel`] is
//!   plain data, which a fork copies.
//! * *Nothing is lost.* A stop returns the pending tasks. Tasks already taken by the ticker, at
//!   most 1024, still run.
//!
//! # Three levels
//!
//! * [`HashedWheelTimer`] runs closures, each with a [`Timeout`] to cancel it. Start here.
//! * [`BatchTimer`] passes values of one type to one handler in batches, and boxes nothing. For a
//!   program with very many timeouts of one kind.
//! * [`Wheel`] is plain data without a thread or a clock, for an event loop with its own clock.
//!
//! [`ScheduleError`] returns the refused value or task and tells whether a later call may succeed.
//! [`BuildError`] names the setting that is out of range.
//!
//! The [`guide`] explains the mechanism of the wheel, the causes of lateness, the choice of tick
//! and size, tests with a [`ManualClock`], and the differences to other timers.
//!
//! # Features
//!
//! * `std` (default): the timers. Without `std` there is only [`Wheel`], which needs an allocator
//!   and has no dependencies.
//! * `tsc`: a clock that reads the processor's time-stamp counter at the start of a delay.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(feature = "std"), no_std)]

extern crate alloc;

// From the top, each importing only from those below: `timer`, `driver`, `stats`, `time`, `wheel`.

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

/// The crate of the channels in some signatures, such as [`WeakTimer::after`]'s.
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
