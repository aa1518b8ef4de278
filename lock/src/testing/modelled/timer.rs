//! Timers whose tickers are threads of the run. Only tests with `--cfg wheellock_shuttle` have
//! them, in place of `hashed_wheel::BatchTimer` and the periodic tasks of its `HashedWheelTimer`.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hashed_wheel::{BuildError, Clock, Period};

use crate::model::sync::{Mutex, Parker, park, thread};

pub(crate) struct BatchTimer<T> {
    shared: Arc<Shared<T>>,
    ticker: Option<thread::JoinHandle<()>>,
}

/// Names one pending value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TimerKey(u64);

pub(crate) struct TimerBuilder {
    tick: Duration,
    clock: Arc<dyn Clock>,
}

struct Shared<T> {
    origin: Instant,
    tick: Duration,
    clock: Arc<dyn Clock>,
    parker: Parker,
    state: Mutex<State<T>>,
}

struct State<T> {
    /// With the end of the tick in which each is due.
    pending: BTreeMap<TimerKey, (Instant, T)>,
    drawn: u64,
    is_stopped: bool,
}

impl BatchTimer<()> {
    /// The handler tells the type of the values, as with the real one.
    pub(crate) fn builder() -> TimerBuilder {
        TimerBuilder {
            tick: Duration::from_millis(10),
            clock: Arc::new(crate::model::sync::SystemClock),
        }
    }
}

impl<T: Send + 'static> BatchTimer<T> {
    /// As the real one, which can also refuse.
    pub(crate) fn schedule_at(&self, deadline: Instant, value: T) -> Result<TimerKey, Infallible> {
        let key = {
            let mut state = self.shared.state.lock();
            state.drawn += 1;
            let key = TimerKey(state.drawn);
            state.pending.insert(key, (self.shared.tick_end(deadline), value));
            key
        };
        self.shared.parker.unpark();
        Ok(key)
    }

    pub(crate) fn reschedule(&self, key: TimerKey, deadline: Instant) -> bool {
        let due = self.shared.tick_end(deadline);
        let is_sooner = {
            let mut state = self.shared.state.lock();
            let Some((at, _)) = state.pending.get_mut(&key) else { return false };
            due < std::mem::replace(at, due)
        };
        if is_sooner {
            self.shared.parker.unpark();
        }
        true
    }

    pub(crate) fn cancel(&self, key: TimerKey) -> Option<T> {
        self.shared.state.lock().pending.remove(&key).map(|(_, value)| value)
    }
}

impl<T> Shared<T> {
    /// The first end of a tick that is not before `deadline`.
    fn tick_end(&self, deadline: Instant) -> Instant {
        let ticks = deadline
            .saturating_duration_since(self.origin)
            .as_nanos()
            .div_ceil(self.tick.as_nanos());
        self.origin + self.tick * u32::try_from(ticks).unwrap_or(u32::MAX)
    }

    fn run(&self, mut handler: impl FnMut(&mut Vec<T>)) {
        loop {
            let now = self.clock.now();
            let (mut due, next) = {
                let mut state = self.state.lock();
                if state.is_stopped {
                    return;
                }
                let keys = state.pending.iter().filter(|(_, (at, _))| *at <= now);
                let mut keys: Vec<_> = keys.map(|(key, (at, _))| (*at, *key)).collect();
                keys.sort_unstable();
                let due = keys.into_iter().filter_map(|(_, key)| state.pending.remove(&key));
                let due: Vec<T> = due.map(|(_, value)| value).collect();
                (due, state.pending.values().map(|(at, _)| *at).min())
            };
            if due.is_empty() {
                park(&*self.clock, &self.parker, next, None);
            } else {
                handler(&mut due);
            }
        }
    }
}

impl TimerBuilder {
    pub(crate) fn tick_duration(self, tick: Duration) -> Self {
        Self { tick, ..self }
    }

    #[expect(clippy::unused_self, reason = "as the real one has it")]
    pub(crate) fn ticks_per_wheel(self, _: usize) -> Self {
        self
    }

    pub(crate) fn thread_name(self, _: &str) -> Self {
        self
    }

    pub(crate) fn clock(self, clock: Arc<dyn Clock>) -> Self {
        Self { clock, ..self }
    }

    pub(crate) fn build_batch<T: Send + 'static>(
        self,
        handler: impl FnMut(&mut Vec<T>) + Send + 'static,
    ) -> Result<BatchTimer<T>, std::io::Error> {
        let Self { tick, clock } = self;
        let pending = BTreeMap::new();
        let state = Mutex::new(State { pending, drawn: 0, is_stopped: false });
        let (origin, parker) = (clock.now(), Parker::new());
        let shared = Arc::new(Shared { origin, tick, clock, parker, state });
        let own = Arc::clone(&shared);
        let ticker = thread::spawn(move || own.run(handler));
        Ok(BatchTimer { shared, ticker: Some(ticker) })
    }
}

impl<T> Drop for BatchTimer<T> {
    /// Waits for the ticker, unless it is that which drops the timer.
    fn drop(&mut self) {
        let pending = {
            let mut state = self.shared.state.lock();
            state.is_stopped = true;
            std::mem::take(&mut state.pending)
        };
        self.shared.parker.unpark();
        drop(pending);
        let ticker = self.ticker.take();
        if let Some(ticker) = ticker.filter(|own| own.thread().id() != thread::current().id()) {
            drop(ticker.join());
        }
    }
}

impl<T> fmt::Debug for BatchTimer<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("BatchTimer").finish_non_exhaustive()
    }
}

/// Each of its tasks has a thread.
#[derive(Debug)]
pub(crate) struct HashedWheelTimer(Arc<dyn Clock>);

/// A task of a [`HashedWheelTimer`].
#[derive(Debug)]
pub(crate) struct PeriodicTimeout(Arc<Repeat>);

#[derive(Debug)]
struct Repeat {
    parker: Parker,
    is_cancelled: AtomicBool,
}

impl HashedWheelTimer {
    pub(crate) fn builder() -> TimerBuilder {
        BatchTimer::builder()
    }

    /// Runs `task` after `first`, and then again after each interval. The real timer does the same,
    /// and can also refuse.
    #[expect(clippy::unnecessary_wraps, reason = "as the real one")]
    pub(crate) fn schedule_periodic(
        &self,
        first: Duration,
        _: Period,
        mut task: impl FnMut() + Send + 'static,
    ) -> Result<PeriodicTimeout, Infallible> {
        let repeat = Repeat { parker: Parker::new(), is_cancelled: AtomicBool::new(false) };
        let (repeat, clock) = (Arc::new(repeat), Arc::clone(&self.0));
        let own = Arc::clone(&repeat);
        thread::spawn(move || {
            let mut next = clock.now() + first;
            while !own.is_cancelled.load(Ordering::SeqCst) {
                if clock.now() >= next {
                    task();
                    next = clock.now() + first;
                }
                park(&*clock, &own.parker, Some(next), None);
            }
        });
        Ok(PeriodicTimeout(repeat))
    }
}

impl TimerBuilder {
    #[expect(clippy::unnecessary_wraps, reason = "as the real one")]
    pub(crate) fn build(self) -> Result<HashedWheelTimer, BuildError> {
        Ok(HashedWheelTimer(self.clock))
    }
}

impl PeriodicTimeout {
    pub(crate) fn cancel(&self) {
        self.0.is_cancelled.store(true, Ordering::SeqCst);
        self.0.parker.unpark();
    }
}
