//! Operations on a `BatchTimer` whose clock advances and jumps, compared with a simple model: a
//! sorted map.
//!
//! With a fuzzer: `cargo fuzz run timer_ops`. Without one, `cargo run --bin timer_ops` replays the
//! corpus, `cargo run --bin timer_ops FILE..` replays files, and `cargo run --bin timer_ops --
//! --random OPERATIONS SEED` runs random inputs.
//!
//! # The input
//!
//! The first byte is the number of buckets, the second the limit on pending timeouts, or none from
//! 128 on. Operations follow: a byte, of which the remainder of a division by nine is the kind, and
//! the operands:
//!
//! | kind | operation | operands |
//! |---|---|---|
//! | 0, 1 | schedule | delay |
//! | 2 | schedule at | a byte: 1 for an instant that has passed; delay |
//! | 3 | schedule many at once | a byte: how many; delay |
//! | 4 | cancel | key |
//! | 5 | cancel many at once | key, a byte: how many |
//! | 6 | reschedule | key, delay |
//! | 7 | advance the clock, from deadline to deadline | delay |
//! | 8 | let the clock jump | delay |
//!
//! A delay is two bytes: the lower 13 bits are a number of eighths of a tick, times 1, 8, 64 or
//! 4096 by the bits above. A key is a byte: an index into all keys so far.

#![cfg_attr(fuzzing, no_main)]

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashed_wheel::crossbeam_channel::{Receiver, unbounded};
use hashed_wheel::{BatchTimer, Clock, ManualClock, ScheduleError, TimerKey};

#[cfg(not(fuzzing))]
mod replay;

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    run(bytes);
});

#[cfg(not(fuzzing))]
fn main() -> std::process::ExitCode {
    replay::main("timer_ops", run)
}

/// Nanoseconds, and a multiple of eight.
const TICK: u64 = 8_000_000;

/// Runs the operations of an input, and returns their number.
///
/// # Panics
///
/// If the timer and the model differ.
fn run(bytes: &[u8]) -> usize {
    let mut input = Input(bytes);
    let Some((buckets, limit)) = input.byte().zip(input.byte()) else {
        return 0;
    };
    let mut pair = Pair::new(usize::from(buckets).max(1), (limit < 128).then_some(limit.max(1)));
    let mut operations = 0;
    while pair.step(&mut input).is_some() {
        assert_eq!(pair.timer.pending_timeouts(), pair.pending.len());
        operations += 1;
    }
    pair.finish();
    operations
}

/// The timer and its model, with the same operations.
struct Pair {
    clock: ManualClock,
    start: Instant,
    timer: BatchTimer<usize>,
    /// What the handler got, and when.
    fired: Receiver<(Instant, usize)>,
    limit: Option<usize>,
    /// All keys so far. A value is the index of its key.
    keys: Vec<TimerKey>,
    /// In nanoseconds after the start.
    now: u64,
    sequence: u64,
    /// The pending values, by due tick and in the order in which they got it.
    pending: BTreeMap<(u64, u64), usize>,
    /// By value: its place in `pending`.
    places: Vec<Option<(u64, u64)>>,
}

impl Pair {
    fn new(buckets: usize, limit: Option<u8>) -> Self {
        let clock = ManualClock::new();
        let (sender, fired) = unbounded();
        let mut builder = BatchTimer::builder()
            .tick_duration(Duration::from_nanos(TICK))
            .ticks_per_wheel(buckets)
            .clock(Arc::new(clock.clone()));
        if let Some(limit) = limit {
            builder = builder.max_pending_timeouts(limit.into());
        }
        let of_handler = clock.clone();
        let built = builder.build_batch(move |batch: &mut Vec<usize>| {
            let now = of_handler.now();
            for value in batch.drain(..) {
                // The receiver is gone when the timer is.
                sender.send((now, value)).ok();
            }
        });
        let Ok(timer) = built else { panic!("the settings are in range, and a thread is there") };
        Self {
            start: clock.now(),
            clock,
            timer,
            fired,
            limit: limit.map(usize::from),
            keys: Vec::new(),
            now: 0,
            sequence: 0,
            pending: BTreeMap::new(),
            places: Vec::new(),
        }
    }

    /// One operation. `None` at the end of the input.
    fn step(&mut self, input: &mut Input<'_>) -> Option<()> {
        match input.byte()? % 9 {
            0 | 1 => {
                let delay = input.delay()?;
                let result = self.timer.schedule(delay, self.keys.len());
                self.scheduled(&result, self.deadline(delay));
            }
            2 => {
                let has_passed = input.byte()? == 1;
                let delay = input.delay()?;
                let deadline = if has_passed {
                    u64::try_from(delay.as_nanos())
                        .map_or(0, |delay| self.now.saturating_sub(delay))
                } else {
                    self.deadline(delay)
                };
                let instant = self.start + Duration::from_nanos(deadline);
                let result = self.timer.schedule_at(instant, self.keys.len());
                self.scheduled(&result, deadline);
            }
            3 => {
                let count = usize::from(input.byte()?);
                // Not at once: it would be left to chance which of them come first.
                let delay = input.delay()?.max(Duration::from_nanos(TICK));
                self.schedule_many(count, delay);
            }
            4 => {
                let (key, value) = self.key(input)?;
                let expected = self.remove(value).then_some(value);
                assert_eq!(self.timer.get(key), expected);
                assert_eq!(self.timer.cancel(key), expected);
            }
            5 => {
                let (_, first) = self.key(input)?;
                let last = self.keys.len().min(first + usize::from(input.byte()?));
                let expected: Vec<_> = (first..last).filter(|value| self.remove(*value)).collect();
                assert_eq!(self.timer.cancel_many(&self.keys[first..last]), expected);
            }
            6 => {
                let (key, value) = self.key(input)?;
                let delay = input.delay()?;
                let expected = self.remove(value);
                assert_eq!(self.timer.reschedule_after(key, delay), expected);
                if expected {
                    self.put(value, self.deadline(delay));
                }
            }
            kind => {
                let delay = input.delay()?;
                self.now = self.deadline(delay);
                if kind == 7 {
                    self.clock.advance(delay);
                } else {
                    self.clock.jump(delay);
                }
                self.compare_fired(kind == 7);
            }
        }
        Some(())
    }

    fn deadline(&self, delay: Duration) -> u64 {
        u64::try_from(delay.as_nanos()).map_or(u64::MAX, |delay| self.now + delay)
    }

    fn scheduled(&mut self, result: &Result<TimerKey, ScheduleError<usize>>, deadline: u64) {
        if self.limit.is_some_and(|limit| self.pending.len() == limit) {
            assert!(matches!(result, Err(ScheduleError::Full(value)) if *value == self.keys.len()));
            return;
        }
        let Ok(key) = result else { panic!("there is room") };
        self.keys.push(*key);
        self.places.push(None);
        self.put(self.keys.len() - 1, deadline);
    }

    fn schedule_many(&mut self, count: usize, delay: Duration) {
        let first = self.keys.len();
        let room = self.limit.map_or(count, |limit| count.min(limit - self.pending.len()));
        let mut timeouts: Vec<_> = (first..first + count).map(|value| (delay, value)).collect();
        let result = self.timer.schedule_many(&mut timeouts, &mut self.keys);
        assert_eq!((result.is_ok(), timeouts.len()), (room == count, count - room));
        assert!(timeouts.iter().map(|(_, value)| *value).eq(first + room..first + count));
        assert_eq!(self.keys.len(), first + room);
        for value in first..first + room {
            self.places.push(None);
            self.put(value, self.deadline(delay));
        }
    }

    /// Enters a value with a new deadline into the model.
    fn put(&mut self, value: usize, deadline: u64) {
        let (mut tick, elapsed) = (deadline.div_ceil(TICK), self.now / TICK);
        if tick <= elapsed {
            // It is due: it comes at once, or at the next tick.
            self.clock.wait_until_idle();
            if let Ok(fired) = self.fired.try_recv() {
                assert_eq!(fired, (self.clock.now(), value));
                return;
            }
            tick = elapsed + 1;
        }
        self.sequence += 1;
        self.pending.insert((tick, self.sequence), value);
        self.places[value] = Some((tick, self.sequence));
        assert_eq!(self.timer.deadline(self.keys[value]), Some(self.instant(tick)));
    }

    fn remove(&mut self, value: usize) -> bool {
        let place = self.places[value].take();
        place.is_some_and(|place| self.pending.remove(&place).is_some())
    }

    /// Exactly what is due has come, in order: at its tick, or at once after a jump.
    fn compare_fired(&mut self, at_its_tick: bool) {
        let later = self.pending.split_off(&(self.now / TICK + 1, 0));
        let due = mem::replace(&mut self.pending, later);
        let expected: Vec<_> = due
            .into_iter()
            .map(|((tick, _), value)| {
                self.places[value] = None;
                (if at_its_tick { self.instant(tick) } else { self.clock.now() }, value)
            })
            .collect();
        assert_eq!(self.fired.try_iter().collect::<Vec<_>>(), expected);
    }

    fn instant(&self, tick: u64) -> Instant {
        self.start + Duration::from_nanos(tick * TICK)
    }

    fn key(&self, input: &mut Input<'_>) -> Option<(TimerKey, usize)> {
        let at = usize::from(input.byte()?);
        let index = at.checked_rem(self.keys.len())?;
        Some((self.keys[index], index))
    }

    /// Stops the timer: it returns what is pending, in order and with the deadlines.
    fn finish(self) {
        let Ok(unprocessed) = self.timer.stop() else { panic!("this is not the ticker's thread") };
        let given = unprocessed.iter().map(|unprocessed| (unprocessed.deadline, unprocessed.value));
        let expected =
            self.pending.iter().map(|((tick, _), value)| (Some(self.instant(*tick)), *value));
        assert!(given.eq(expected));
        assert_eq!((self.fired.len(), self.timer.statistics().panicked), (0, 0));
    }
}

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn delay(&mut self) -> Option<Duration> {
        let bits = u16::from_le_bytes([self.byte()?, self.byte()?]);
        let unit = [1, 8, 64, 4096][usize::from((bits >> 13) & 3)];
        Some(Duration::from_nanos(u64::from(bits & 0x1fff) * unit * (TICK / 8)))
    }
}
