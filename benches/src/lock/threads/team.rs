//! Threads that repeat a piece of work, measured over a window.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::Duration;

use crate::harness::clock::{now, sleep};
use crate::harness::figures::at_permille;
use crate::harness::measured::{BEGUN, OVER, ready_and_wait, tell};
use crate::harness::process::{processor_time, processor_time_since};

/// What a thread repeats. It returns the time that is of interest.
pub(crate) type Work = Box<dyn FnMut() -> Duration + Send>;

/// The phases of a run.
const SETTLING: u8 = 0;
const MEASURING: u8 = 1;
const OVER_PHASE: u8 = 2;
/// A thousand threads share an address space.
const STACK_SIZE: usize = 256 * 1024;

/// How long the threads run before they are measured, and how long they are measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) settle: Duration,
    pub(crate) window: Duration,
}

/// What was measured.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// How often each thread ended its work in the window.
    counts: Vec<u32>,
    /// All times that were returned since the window began, in order.
    samples: Vec<Duration>,
    window: Duration,
    processor_time: Duration,
}

/// Waits until the report says to go on, and runs each work in a thread of its own.
///
/// What ends in the window is counted. Its time is a sample, and so is that of what ends after the
/// window: a wait that lasts longer than the window is in the samples.
pub(crate) fn measure(works: Vec<Work>, times: Times) -> Outcome {
    ready_and_wait();
    let phase = AtomicU8::new(SETTLING);
    let together = Barrier::new(works.len() + 1);
    thread::scope(|scope| {
        let mut threads = Vec::with_capacity(works.len());
        for mut work in works {
            let (phase, together) = (&phase, &together);
            let repeat = move || {
                let (mut count, mut samples) = (0, Vec::new());
                together.wait();
                while phase.load(Ordering::Relaxed) != OVER_PHASE {
                    let sample = work();
                    let phase = phase.load(Ordering::Relaxed);
                    count += u32::from(phase == MEASURING);
                    if phase != SETTLING {
                        samples.push(sample);
                    }
                }
                (count, samples)
            };
            let thread = thread::Builder::new().stack_size(STACK_SIZE);
            threads.push(thread.spawn_scoped(scope, repeat).expect("the system gives a thread"));
        }
        together.wait();
        sleep(times.settle);
        tell(BEGUN);
        let (start, before) = (now(), processor_time());
        phase.store(MEASURING, Ordering::Relaxed);
        sleep(times.window);
        phase.store(OVER_PHASE, Ordering::Relaxed);
        let (window, processor_time) = (now() - start, processor_time_since(before));
        tell(OVER);
        let (mut counts, mut samples) = (Vec::new(), Vec::new());
        for thread in threads {
            let (count, mut own) = thread.join().expect("no work panics");
            counts.push(count);
            samples.append(&mut own);
        }
        samples.sort_unstable();
        Outcome { counts, samples, window, processor_time }
    })
}

impl Outcome {
    /// How often the work was done a second.
    pub(crate) fn rate(&self) -> f64 {
        self.sum() / self.window.as_secs_f64()
    }

    /// The processor time of this process for each, in microseconds.
    pub(crate) fn client_micros(&self) -> f64 {
        self.processor_time.as_secs_f64() * 1e6 / self.sum()
    }

    /// The sample that `permille` of a thousand do not exceed, in microseconds.
    pub(crate) fn micros_at(&self, permille: usize) -> f64 {
        micros(at_permille(&self.samples, permille))
    }

    pub(crate) fn longest_micros(&self) -> f64 {
        micros(self.samples.last().copied())
    }

    /// The share of the samples that are this one.
    pub(crate) fn share_of(&self, sample: Duration) -> f64 {
        let count = self.samples.iter().filter(|other| **other == sample).count();
        let number = |count: usize| u32::try_from(count).map_or(f64::NAN, f64::from);
        number(count) / number(self.samples.len())
    }

    /// How often the thread with the fewest and that with the most has done its work.
    pub(crate) fn least_and_most(&self) -> (f64, f64) {
        let least = self.counts.iter().min().copied().unwrap_or_default();
        let most = self.counts.iter().max().copied().unwrap_or_default();
        (least.into(), most.into())
    }

    fn sum(&self) -> f64 {
        self.counts.iter().copied().map(f64::from).sum()
    }
}

fn micros(sample: Option<Duration>) -> f64 {
    sample.map_or(f64::NAN, |sample| sample.as_secs_f64() * 1e6)
}
