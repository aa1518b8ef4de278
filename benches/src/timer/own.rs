//! The two timers of hashed-wheel.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use hashed_wheel::{BatchTimer, HashedWheelTimer, Timeout, TimerBuilder, TimerKey, TscClock};

use crate::harness::clock::now;
use crate::timer::bench_timer::{BenchTimer, PERIOD, again, due_again};
use crate::timer::record::{fired, fired_batch};

const THREAD: &str = "hashed-wheel";
const TICK: Duration = Duration::from_millis(1);

fn builder(buckets: usize, is_tsc: bool) -> TimerBuilder {
    let builder = HashedWheelTimer::builder();
    let builder = builder.tick_duration(TICK).ticks_per_wheel(buckets).thread_name(THREAD);
    if !is_tsc {
        return builder;
    }
    let clock = TscClock::new();
    assert!(clock.uses_counter(), "the system keeps its time by another clock");
    builder.clock(Arc::new(clock))
}

/// `BatchTimer<u64>`, on the default clock or on a [`TscClock`].
#[derive(Clone, Debug)]
pub(crate) struct Typed<const TSC: bool>(&'static TypedShared);

/// `BatchTimer<u64>` on the default clock. Timeouts in a row are scheduled and cancelled 256 at a
/// time.
#[derive(Clone, Debug)]
pub(crate) struct TypedMany(Typed<false>);

#[derive(Debug)]
struct TypedShared {
    timer: OnceLock<BatchTimer<u64>>,
    /// What the deadlines of timeouts that re-arm themselves are counted from.
    origin: Instant,
}

impl TypedShared {
    fn timer(&self) -> &BatchTimer<u64> {
        self.timer.get().expect("it is set before anything is scheduled")
    }

    fn arm(&self, deadline: Instant) {
        let number = again(deadline - self.origin);
        self.timer().schedule_at(deadline, number).expect("the timer runs");
    }

    fn handle(&self, batch: &mut Vec<u64>) {
        // A process has either timeouts that re-arm themselves or others.
        if batch.first().copied().and_then(due_again).is_none() {
            fired_batch(batch);
            batch.clear();
        }
        for since_origin in batch.drain(..).filter_map(due_again) {
            self.arm(self.origin + since_origin);
        }
    }
}

impl<const TSC: bool> BenchTimer for Typed<TSC> {
    type Handle = TimerKey;
    const THREAD: Option<&'static str> = Some(THREAD);

    fn start(buckets: usize) -> Self {
        let shared: &TypedShared =
            Box::leak(Box::new(TypedShared { timer: OnceLock::new(), origin: now() }));
        let timer = builder(buckets, TSC).build_batch(|batch| shared.handle(batch));
        shared.timer.set(timer.expect("the system gives a thread")).expect("it is set once");
        Self(shared)
    }

    fn schedule(&mut self, delay: Duration, number: u64) -> TimerKey {
        self.0.timer().schedule(delay, number).expect("the timer runs")
    }

    fn schedule_at(&mut self, deadline: Instant, number: u64) -> TimerKey {
        self.0.timer().schedule_at(deadline, number).expect("the timer runs")
    }

    fn cancel(&mut self, handle: TimerKey) {
        self.0.timer().cancel(handle);
    }

    fn arm(&mut self, deadline: Instant) {
        self.0.arm(deadline);
    }
}

impl BenchTimer for TypedMany {
    type Handle = TimerKey;
    const THREAD: Option<&'static str> = Some(THREAD);

    fn start(buckets: usize) -> Self {
        Self(Typed::start(buckets))
    }

    fn schedule(&mut self, delay: Duration, number: u64) -> TimerKey {
        self.0.schedule(delay, number)
    }

    fn cancel(&mut self, handle: TimerKey) {
        self.0.cancel(handle);
    }

    fn schedule_all(
        &mut self,
        slots: &mut [Option<TimerKey>],
        mut delay: impl FnMut() -> Duration,
    ) {
        let (mut timeouts, mut keys) = (Vec::new(), Vec::new());
        for slots in slots.chunks_mut(MANY) {
            timeouts.extend(slots.iter().map(|_| (delay(), 0)));
            self.0.0.timer().schedule_many(&mut timeouts, &mut keys).expect("the timer runs");
            for (slot, key) in slots.iter_mut().zip(keys.drain(..)) {
                *slot = Some(key);
            }
        }
    }

    fn cancel_all(&mut self, slots: &mut [Option<TimerKey>]) {
        let mut keys = Vec::new();
        for slots in slots.chunks_mut(MANY) {
            keys.extend(slots.iter_mut().filter_map(Option::take));
            self.0.0.timer().cancel_many(&keys);
            keys.clear();
        }
    }
}

const MANY: usize = 256;

/// `HashedWheelTimer`, with closures that hold a number, on the default clock or on a [`TscClock`].
#[derive(Clone, Debug)]
pub(crate) struct Boxed<const TSC: bool>(&'static HashedWheelTimer);

impl<const TSC: bool> BenchTimer for Boxed<TSC> {
    type Handle = Timeout;
    const THREAD: Option<&'static str> = Some(THREAD);

    fn start(buckets: usize) -> Self {
        let timer = builder(buckets, TSC).build().expect("the system gives a thread");
        Self(Box::leak(Box::new(timer)))
    }

    fn schedule(&mut self, delay: Duration, number: u64) -> Timeout {
        self.0.schedule(delay, move || fired(number)).expect("the timer runs")
    }

    fn schedule_at(&mut self, deadline: Instant, number: u64) -> Timeout {
        self.0.schedule_at(deadline, move || fired(number)).expect("the timer runs")
    }

    fn cancel(&mut self, handle: Timeout) {
        handle.cancel();
    }

    fn arm(&mut self, deadline: Instant) {
        arm(self.0, deadline);
    }
}

fn arm(timer: &'static HashedWheelTimer, deadline: Instant) {
    timer.schedule_at(deadline, move || arm(timer, deadline + PERIOD)).expect("the timer runs");
}
