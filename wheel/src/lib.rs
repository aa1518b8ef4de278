//! A hashed timing wheel with rounds, and a timer with a dedicated, tickless thread on top of it.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//! use hashed_wheel::{HashedWheelTimer, ManualClock};
//!
//! let clock = ManualClock::new(); // for the example; without it the timer goes by the system's clock
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
//! * It is not exact. A task runs up to a tick late, plus what the operating system takes to wake a thread, plus the
//!   time of the tasks before it.
//! * It is not real time. Tasks run one after the other on one thread: a task that waits holds up all others.
//! * It keeps no order between timeouts of different threads that are due at one time.
//! * It does not notice what [`Instant`](std::time::Instant) does not: on Linux, that clock stands still while the
//!   machine is suspended. A [`Clock`] of your own may go by another one.
//! * It gives memory back only when it is stopped or dropped: until then a wheel stays as large as the most it ever held.
//!
//! # What it guarantees
//!
//! * *Never early.* A deadline is rounded up to a tick, in one place.
//! * *Idle is idle.* While nothing is due the thread sleeps, whatever is pending. It is woken only for something that
//!   is due earlier than what it sleeps to. A timeout that was cancelled may still wake it once, when it was due.
//! * *No walk.* Nothing that is pending is looked at before it is due, be it a million entries in the same bucket.
//! * *One winner.* Of [`Timeout::cancel`], the ticker and [`HashedWheelTimer::stop`] exactly one gets the task.
//!   Cancelling frees the task at once.
//! * *No lock is held* while a task, a handler, a hook or a destructor of yours runs.
//! * *A panic stops nothing.* It is caught, counted and reported to [`TimerBuilder::on_panic`]. Only that of a [`Clock`]
//!   of your own may end the timer, which then refuses what it could not fire.
//! * *Bounded work.* At most 1024 entries are taken at a time, and what is scheduled during a turn is due after it.
//! * *Bounded memory*, if asked for: [`TimerBuilder::max_pending_timeouts`] is never exceeded, and whatever is refused
//!   is handed back.
//! * *Nothing gets lost.* What was pending when the timer is stopped is given back. What the ticker has taken by then,
//!   1024 tasks at most, still runs, and is not given back.
//!
//! # Ticks, buckets, rounds
//!
//! Time is cut into *ticks*. A wheel has a fixed number of *buckets* and a hand that stands at one of them; each tick
//! moves it on by one. What is due at tick *n* stands in bucket *n mod buckets*. What is due more than a lap ahead
//! shares its bucket with what is due sooner, and is told from it by its *round*: how often the hand passes before.
//!
//! Scheduling and cancelling take constant time, however much is pending, which a heap or a tree does not give. The
//! idea is scheme 6 in George Varghese and Tony Lauck, *Hashed and Hierarchical Timing Wheels* (SOSP 1987). The names,
//! and the shape of the timer, are those of Netty's `HashedWheelTimer`. In two things this one is unlike Netty's: it
//! keeps the later rounds of a bucket apart, so that passing a bucket does not mean walking through it, and its thread
//! does not tick while nothing is due.
//!
//! A wheel of eight buckets at tick 0, with a delay of 5 and one of 17:
//!
//! ```text
//!  hand
//!   v
//!   0    1    2    3    4    5    6    7      bucket
//!        |                   |
//!        17: round 2         5: round 0
//!            due when the        due when the hand comes
//!            hand is here        here for the first time
//!            a third time
//! ```
//!
//! # Three levels
//!
//! * [`HashedWheelTimer`] runs closures, each with a [`Timeout`] to cancel it by. Begin here.
//! * [`BatchTimer`] hands values of one type to one handler in batches. Nothing is boxed. For a program with very many
//!   timeouts of one kind.
//! * [`Wheel`] is plain data, with no thread and no clock. For an event loop that has its own. It needs an allocator and
//!   no standard library: with `default-features = false` it is all that is left of this crate, and there is no dependency.
//!
//! # What else the timer does
//!
//! * [`schedule_periodic`](HashedWheelTimer::schedule_periodic) runs a task at a fixed rate or with a fixed delay, and
//!   [`MissedRuns`] says what becomes of the runs that were missed.
//! * [`after`](HashedWheelTimer::after) and [`interval`](HashedWheelTimer::interval) are channels for `select!`.
//! * [`TimerBuilder::executor`] runs the tasks elsewhere, so that a slow one holds up no other.
//! * [`Timeout::take`] cancels and gives the task back. [`HashedWheelTimer::drain`] runs what is due, then stops.
//! * [`statistics`](HashedWheelTimer::statistics) says how much was done and how late, always.
//!
//! # How lateness comes about
//!
//! A deadline is rounded up to a tick: on average half a tick late, at most one. Then the operating system wakes the
//! thread, usually within 0.1 ms. Then the tasks before it run, one after the other. A task that blocks for a second
//! delays all that is due in that second; [`Statistics::lateness_max`] and [`Statistics::longest_task`] name it. With an
//! executor the ticker only hands tasks on, and what a task takes delays none but those that the executor runs after it.
//!
//! # Choosing the tick and the size of the wheel
//!
//! The *tick* is how late a timeout may be, and how often the thread wakes at most: 10 ms unless set. As nothing ticks
//! while nothing is due, a finer tick costs only when timeouts are many and spread out: with 100,000 timeouts a second,
//! a tick of 1 ms wakes the thread 1000 times for 100 each, and a tick of 10 ms wakes it 100 times for 1000 each.
//!
//! The *size* matters little: 4096 ticks unless set, 41 s at the default tick. A wheel that holds much gives itself
//! longer laps inside, so that the usual delays are found in constant time; what is still further away costs a search in
//! a tree of the distinct due ticks. Nothing gets late or wrong with a wheel that is too small. A bucket takes 8 bytes,
//! in each of the eight wheels of a timer.
//!
//! # Beside other timers
//!
//! | | this | Netty 4.2 | tokio `sleep` | `hierarchical_hash_wheel_timer` | `timer` | crossbeam `after` |
//! |---|---|---|---|---|---|---|
//! | needs | a thread | a JVM, a thread | a runtime | a thread | two threads | nothing |
//! | while nothing is due | sleeps | wakes each tick | sleeps | sleeps; spins before something is due | sleeps | sleeps |
//! | fires early | never | never | never | up to 2 ms | never | never |
//! | a cancelled task is freed | at once | at the next tick | at once | when it was due | when it was due | at once |
//! | a cancel gives the task back | yes | no | no | no | no | nothing is run |
//! | another deadline in place | yes | no | yes | no | no | no |
//! | periodic, with a policy for missed runs | yes | no | yes | periodic | periodic | `tick` |
//! | bound on what is pending | hands the task back | throws | no | no | no | no |
//! | a task that panics | is contained | is contained | is contained | ends the thread | ends the thread | nothing is run |
//! | tasks elsewhere | executor | executor | the runtime | no | no | nothing is run |
//! | stop gives back what is pending | yes | yes | no | no | no | no |
//! | time in tests | manual clock | no | `pause`, one thread | simulation | no | no |
//! | statistics | yes | number pending | no | no | no | no |
//!
//! What they cost, on two cores of an AMD EPYC, medians of five runs side by side of `cargo run --release -p
//! wheellock-benches --bin timer_report`, with a tick of 1 ms and 65,536 buckets (512 for the rows marked *):
//!
//! | | [`BatchTimer`] of `u64` | this, boxed | Netty 4.2.20 | tokio |
//! |---|---:|---:|---:|---:|
//! | schedule and cancel at once, ns | 46 | 56 | 42; 45 | 90 |
//! | the same on two threads, ns on each | 47 | 56 | 97; 105 | 349 |
//! | schedule a million, ns of processor time each | 50 | 231 | 64; 149 | 284 |
//! | cancel a million in random order, ns each | 68 | 229 | 182; 190 | 211 |
//! | bytes of a pending timeout | 28 | 68 | 84 | 128 |
//! | a million pending over an hour, one due each tick, % of a core * | 1.7 | 1.6 | 42; 4.1 | |
//! | a million due within a second, 99 of 100 late by, ms | 1.3 | 1.6 | 2.0 | 646 |
//! | a million due at once, million a second | 71 | 12 | 30 | 3.8 |
//! | 100,000 that re-arm each second, % of a core | 2.6 | 3.0 | 3.8; 4.3 | 5.5 |
//! | a million pending, none due, % of a core | 0.002 | 0.002 | 47; 3.1 | 0.001 |
//!
//! Two figures of Netty are of 512 and of 65,536 buckets. Of tokio it is the bare entry, and a task for each where
//! something is due. `benches/README.md` in the repository says how each was
//! measured, and which of the bars that were set are missed.
//!
//! # Errors
//!
//! [`ScheduleError`] hands back what was to be scheduled and says whether a later try may succeed: a full timer and a
//! thread that could not be started are transient, a stopped timer and a period of zero are not. [`BuildError`] says
//! which setting is out of range. [`StopError`] says that a task tried to stop its own timer.
//!
//! # Testing
//!
//! A [`ManualClock`] stands still until the test moves it. [`ManualClock::advance`] returns when everything that was
//! due has run, so a test of hours takes no time, needs no sleep and comes out the same each time.

#![cfg_attr(not(feature = "std"), no_std)]

extern crate alloc;

#[cfg(feature = "std")]
mod alarm;
#[cfg(feature = "std")]
mod batch;
#[cfg(feature = "std")]
mod bound;
#[cfg(feature = "std")]
mod census;
#[cfg(feature = "std")]
mod channel;
#[cfg(feature = "std")]
mod clock;
#[cfg(feature = "std")]
mod config;
mod error;
#[cfg(feature = "std")]
mod firing;
#[cfg(feature = "std")]
mod histogram;
#[cfg(feature = "std")]
mod job;
#[cfg(feature = "std")]
mod lifecycle;
#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(feature = "std")]
mod panics;
#[cfg(feature = "std")]
mod period;
#[cfg(feature = "std")]
mod periodic;
#[cfg(feature = "std")]
mod shard;
#[cfg(feature = "std")]
mod statistics;
#[cfg(feature = "std")]
mod sync;
#[cfg(feature = "std")]
mod task;
#[cfg(feature = "std")]
mod tick;
#[cfg(feature = "std")]
mod ticker;
#[cfg(feature = "std")]
mod timeout;
#[cfg(feature = "std")]
mod timer;
mod wheel;

#[cfg(feature = "std")]
pub use crate::batch::{BatchTimer, TimerKey};
#[cfg(feature = "std")]
pub use crate::clock::{Clock, ManualClock, Parker, SystemClock};
#[cfg(feature = "std")]
pub use crate::config::TimerBuilder;
pub use crate::error::BuildError;
#[cfg(feature = "std")]
pub use crate::error::{ScheduleError, StopError};
#[cfg(feature = "std")]
pub use crate::histogram::{Histogram, Spread};
#[cfg(feature = "std")]
pub use crate::period::{MissedRuns, Period};
#[cfg(feature = "std")]
pub use crate::periodic::PeriodicTimeout;
#[cfg(feature = "std")]
pub use crate::statistics::Statistics;
#[cfg(feature = "std")]
pub use crate::task::{Executor, Task};
#[cfg(feature = "std")]
pub use crate::timeout::{Timeout, UnprocessedTask};
#[cfg(feature = "std")]
pub use crate::timer::HashedWheelTimer;
pub use crate::wheel::{Key, TICKS_PER_WHEEL_MAX, Wheel};
