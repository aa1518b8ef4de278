//! What the models of the two timers share: a clock, points in time, and the rounding to a tick.

pub(crate) mod operations;
pub(crate) mod sorted;
pub(crate) mod tasks;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use hashed_wheel::{Clock, ManualClock, Parker};
use parking_lot::Mutex;
use proptest::prelude::*;

/// In nanoseconds. Not a round number, so that a wrong rounding is not right by chance.
pub(crate) const TICK: u64 = 7_000_001;
pub(crate) const NEVER: u64 = u64::MAX;

/// A manual clock that can run ahead without waking the ticker, which then sleeps past what is due.
#[derive(Clone, Debug)]
pub(crate) struct AheadClock {
    pub(crate) manual: ManualClock,
    pub(crate) ahead: Arc<Mutex<Duration>>,
}

impl AheadClock {
    pub(crate) fn new() -> Self {
        Self { manual: ManualClock::new(), ahead: Arc::default() }
    }
}

impl Clock for AheadClock {
    fn now(&self) -> Instant {
        self.manual.now() + *self.ahead.lock()
    }

    fn park(&self, parker: &Parker, deadline: Option<Instant>, interrupt: &Receiver<()>) {
        let ahead = *self.ahead.lock();
        let deadline = deadline.map(|deadline| deadline.checked_sub(ahead).unwrap());
        self.manual.park(parker, deadline, interrupt);
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Point {
    /// Nanoseconds ago.
    Before(u64),
    /// Nanoseconds ahead.
    Ahead(u64),
    /// This many ticks after the last one.
    OnTick(u64),
    /// Laps ahead, and a few ticks more or less.
    Laps(u64, i64),
    /// Around the last nanosecond in range: 584 years after the start.
    Edge(i64),
    Never,
}

impl Point {
    /// In nanoseconds after the start; `None` for never.
    pub(crate) fn nanos(self, now: u64, buckets: usize) -> Option<i128> {
        let (now, tick) = (i128::from(now), i128::from(TICK));
        match self {
            Self::Before(nanos) => Some(now - i128::from(nanos)),
            Self::Ahead(nanos) => Some(now + i128::from(nanos)),
            Self::OnTick(ticks) => Some((now / tick + i128::from(ticks)) * tick),
            Self::Laps(laps, ticks) => {
                Some(now + (i128::from(laps) * buckets as i128 + i128::from(ticks)) * tick)
            }
            Self::Edge(nanos) => Some(i128::from(u64::MAX) + i128::from(nanos)),
            Self::Never => None,
        }
    }
}

pub(crate) fn duration(nanos: i128) -> Duration {
    let nanos = nanos.max(0);
    let seconds = u64::try_from(nanos / 1_000_000_000).unwrap();
    Duration::new(seconds, u32::try_from(nanos % 1_000_000_000).unwrap())
}

pub(crate) fn point() -> impl Strategy<Value = Point> {
    prop_oneof![
        3 => (0..TICK * 100).prop_map(Point::Before),
        8 => (0..TICK * 3).prop_map(Point::Ahead),
        4 => (0..TICK * 300).prop_map(Point::Ahead),
        6 => (0..40_u64).prop_map(Point::OnTick),
        4 => (1..4_u64, -1..2_i64).prop_map(|(laps, ticks)| Point::Laps(laps, ticks)),
        1 => (-20_000_000..20_000_000_i64).prop_map(Point::Edge),
        1 => Just(Point::Never),
    ]
}

pub(crate) fn step() -> impl Strategy<Value = Point> {
    prop_oneof![
        8 => (0..TICK * 3).prop_map(Point::Ahead),
        3 => (0..TICK * 100).prop_map(Point::Ahead),
        3 => (0..12_u64).prop_map(Point::OnTick),
        3 => (1..3_u64, -1..2_i64).prop_map(|(laps, ticks)| Point::Laps(laps, ticks)),
    ]
}

/// The first tick at or after this number of nanoseconds from the start.
pub(crate) fn tick_of(nanos: Option<i128>) -> u64 {
    nanos
        .and_then(|nanos| u64::try_from(nanos.max(0)).ok())
        .map_or(NEVER, |nanos| nanos.div_ceil(TICK))
}

/// The instant of a tick. `None` more than 584 years after the start: such a tick never comes.
pub(crate) fn instant(start: Instant, tick: u64) -> Option<Instant> {
    tick.checked_mul(TICK).map(|nanos| start + Duration::from_nanos(nanos))
}

/// The instant this number of nanoseconds after the start; for `None` one that never comes.
pub(crate) fn deadline(start: Instant, at: Option<i128>) -> Instant {
    match at {
        Some(nanos) if nanos < 0 => start.checked_sub(duration(-nanos)).unwrap_or(start),
        Some(nanos) => start + duration(nanos),
        None => start + Duration::from_nanos(u64::MAX) * 3,
    }
}
