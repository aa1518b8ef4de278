//! A hashed timing wheel with rounds, and a timer with a dedicated, tickless thread on top of it.

mod alarm;
mod batch;
mod clock;
mod config;
mod error;
mod panics;
mod shard;
mod ticker;
mod timeout;
mod timer;
mod wheel;

pub use crate::batch::{BatchTimer, TimerKey};
pub use crate::clock::{Clock, ManualClock, Parker, SystemClock};
pub use crate::config::TimerBuilder;
pub use crate::error::{BuildError, ScheduleError, StopError};
pub use crate::timeout::{Task, Timeout, UnprocessedTask};
pub use crate::timer::HashedWheelTimer;
pub use crate::wheel::{Key, TICKS_PER_WHEEL_MAX, Wheel};
