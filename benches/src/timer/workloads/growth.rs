//! Eight million timeouts are scheduled hours ahead without a pause: the slowest call, and how late
//! the timeouts of another thread are meanwhile. Alone, or beside threads of the same process that
//! keep both cores or the memory busy.

use std::hint::{black_box, spin_loop};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::clock::{now, sleep};
use crate::harness::process::thread_processor_time;
use crate::timer::bench_timer::BenchTimer;
use crate::timer::random::Random;
use crate::timer::record::Record;
use crate::timer::workloads::{Numbers, millis_at};

const TIMEOUTS: u32 = 8_000_000;
/// The latest deadline in seconds. Some thousands are due meanwhile, so the timer's thread is busy
/// all the time.
const HOURS: u64 = 4 * 3600;
/// What the other thread schedules: one each millisecond, due soon.
const PROBES: u32 = 60_000;
const PAUSE: Duration = Duration::from_millis(1);
const LEAD: Duration = Duration::from_millis(10);
/// The number of timeouts whose firing is not recorded.
const UNRECORDED: u64 = u32::MAX as u64;

/// How much a thread that keeps the memory busy maps, fills and unmaps at a time: as much as the
/// processor's caches and twice that.
const FILLED: usize = 64 << 20;

static DONE: AtomicBool = AtomicBool::new(false);

/// What other threads do meanwhile.
#[derive(Clone, Copy, Debug)]
pub(super) enum Beside {
    Nothing,
    /// One for each core spins.
    BusyCores,
    /// One for each core maps, fills and unmaps memory. What is scheduled waits for its pages, and
    /// finds nothing in a cache.
    BusyMemory,
}

impl Beside {
    /// Does it until all is scheduled.
    fn run(self) {
        while !DONE.load(Ordering::Relaxed) {
            match self {
                Self::Nothing => return,
                Self::BusyCores => spin_loop(),
                Self::BusyMemory => drop(black_box(vec![1_u8; FILLED])),
            }
        }
    }
}

/// The slowest call in milliseconds, by the clock and by the thread's processor time, which does
/// not count what other programs take; the mean in nanoseconds, both clocks included; and the
/// lateness of the other timeouts.
pub(super) fn growth<T: BenchTimer>(timer: &T, beside: Beside) -> Numbers {
    let record = Record::begin(PROBES);
    for _ in 0..thread::available_parallelism().map_or(1, NonZeroUsize::get) {
        let work = move || beside.run();
        thread::Builder::new().spawn(work).expect("a thread can be started");
    }
    let mut probing = timer.clone();
    let prober = thread::Builder::new()
        .name("bench-probes".to_owned())
        .spawn(move || probe(&mut probing))
        .expect("a thread can be started");
    let mut own = timer.clone();
    let (mut slowest, mut slowest_processor, begun) = (Duration::ZERO, Duration::ZERO, now());
    timer.within(|| {
        let mut random = Random::new(1);
        let (mut before, mut processor_before) = (begun, thread_processor_time());
        for _ in 0..TIMEOUTS {
            T::leave(own.schedule(random.delay(0, HOURS), UNRECORDED));
            let (after, processor_after) = (now(), thread_processor_time());
            slowest = slowest.max(after - before);
            let processor = processor_after.saturating_sub(processor_before);
            slowest_processor = slowest_processor.max(processor);
            (before, processor_before) = (after, processor_after);
        }
    });
    let took = now() - begun;
    DONE.store(true, Ordering::Relaxed);
    let deadlines = prober.join().expect("it does not panic");
    sleep(Duration::from_secs(1));
    let mut late: Vec<Duration> = deadlines
        .into_iter()
        .zip(record.times())
        .map(|(deadline, fired)| fired.map_or(Duration::MAX, |fired| fired - deadline))
        .collect();
    late.sort_unstable();
    let late = |permille| millis_at(&late, permille);
    vec![
        ("slowest", slowest.as_secs_f64() * 1e3),
        ("slowest-processor", slowest_processor.as_secs_f64() * 1e3),
        ("mean", took.as_secs_f64() * 1e9 / f64::from(TIMEOUTS)),
        ("p50", late(500)),
        ("p99.9", late(999)),
        ("max", late(1000)),
    ]
}

/// Schedules one timeout after the other, and returns when they are due.
fn probe<T: BenchTimer>(own: &mut T) -> Vec<Instant> {
    let mut deadlines = Vec::new();
    for number in 0..PROBES {
        if DONE.load(Ordering::Relaxed) {
            break;
        }
        let deadline = now() + LEAD;
        T::leave(own.schedule_at(deadline, u64::from(number)));
        deadlines.push(deadline);
        sleep(PAUSE);
    }
    deadlines
}
