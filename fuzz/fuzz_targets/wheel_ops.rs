//! Operations on a `Wheel`, compared with a simple model: a sorted map.
//!
//! With a fuzzer: `cargo fuzz run wheel_ops`. Without one, `cargo run --bin wheel_ops` replays the
//! corpus, and `cargo run --bin wheel_ops FILE..` replays files, such as one that the fuzzer found;
//! `cargo run --release --bin wheel_ops -- --random OPERATIONS SEED` runs random inputs.
//!
//! # The input
//!
//! The first byte is the number of buckets. Operations follow: a byte, of which the remainder of a
//! division by six is the kind, and the operands:
//!
//! | kind | operation | operands |
//! |---|---|---|
//! | 0, 1 | insert | tick |
//! | 2 | cancel | key |
//! | 3 | reschedule | key, tick |
//! | 4 | advance without a limit | tick |
//! | 5 | advance with a limit | tick, a byte: the limit; above 128: panic after this less 128 |
//!
//! A key is a byte: an index into all keys so far, so that old keys are used too. A tick is a byte,
//! and sometimes more: see [`Input::tick`]. The operations end with the input.

#![cfg_attr(fuzzing, no_main)]

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use hashed_wheel::{Key, Wheel};

#[cfg(not(fuzzing))]
mod replay;

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    run(bytes);
});

#[cfg(not(fuzzing))]
fn main() -> std::process::ExitCode {
    replay::main("wheel_ops", run)
}

/// Runs the operations of an input, and returns their number.
///
/// # Panics
///
/// If the wheel and the model differ.
fn run(bytes: &[u8]) -> usize {
    let mut input = Input(bytes);
    let Some(buckets) = input.byte() else {
        return 0;
    };
    let Ok(wheel) = Wheel::new(usize::from(buckets).max(1)) else {
        return 0;
    };
    let mut pair = Pair { wheel, model: Model::default(), keys: Vec::new() };
    let mut operations = 0;
    while pair.step(&mut input).is_some() {
        pair.compare();
        operations += 1;
    }
    pair.finish();
    operations
}

/// The wheel and its model, with the same operations.
struct Pair {
    wheel: Wheel<u32>,
    model: Model,
    /// All keys so far. The value of an entry is the index of its key.
    keys: Vec<Key>,
}

impl Pair {
    /// One operation. `None` at the end of the input.
    fn step(&mut self, input: &mut Input<'_>) -> Option<()> {
        let now = self.wheel.now();
        let round = self.wheel.buckets() as u64;
        match input.byte()? % 6 {
            0 | 1 => {
                let deadline = input.tick(now, round)?;
                let value = u32::try_from(self.keys.len()).ok()?;
                let key = self.wheel.insert(deadline, value);
                self.keys.push(key);
                self.model.insert(deadline, value);
                let due = self.model.deadline(value);
                assert_eq!(self.wheel.deadline(key), due);
                let bucket = self.wheel.bucket(key).map(|bucket| bucket as u64);
                assert_eq!(bucket, due.map(|due| due % round), "the bucket of the tick");
            }
            2 => {
                let (key, value) = self.key(input)?;
                assert_eq!(self.wheel.get(key).copied(), self.model.get(value));
                assert_eq!(self.wheel.get_mut(key).copied(), self.model.get(value));
                self.compare_round(key, value);
                assert_eq!(self.wheel.cancel(key), self.model.cancel(value), "cancel {value}");
            }
            3 => {
                let (key, value) = self.key(input)?;
                let deadline = input.tick(now, round)?;
                let moved = self.wheel.reschedule(key, deadline);
                assert_eq!(moved, self.model.reschedule(value, deadline), "reschedule {value}");
                assert_eq!(self.wheel.deadline(key), self.model.deadline(value));
            }
            4 => {
                let to = input.tick(now, round)?;
                self.advance(to, usize::MAX);
            }
            _ => {
                let to = input.tick(now, round)?;
                match usize::from(input.byte()?) {
                    limit @ 0..=128 => self.advance(to, limit),
                    count => self.advance_and_panic(to, count - 128),
                }
            }
        }
        Some(())
    }

    fn advance(&mut self, to: u64, limit: usize) {
        let mut taken = Vec::new();
        let finished = self.wheel.advance(to, limit, |tick, value| taken.push((tick, value)));
        let (expected, expected_finished) = self.model.advance(to, limit);
        assert_eq!(taken, expected, "advance to {to}, {limit} at most");
        assert_eq!(finished, expected_finished, "advance to {to}, {limit} at most: finished");
    }

    /// The panic does not call the panic hook, which a fuzzer would count as a failure.
    fn advance_and_panic(&mut self, to: u64, count: usize) {
        let mut taken = Vec::new();
        let turn = AssertUnwindSafe(|| {
            self.wheel.advance(to, usize::MAX, |tick, value| {
                taken.push((tick, value));
                if taken.len() == count {
                    resume_unwind(Box::new("take panics"));
                }
            });
        });
        assert_eq!(catch_unwind(turn).is_err(), taken.len() == count);
        let (expected, _) = self.model.advance(to, count);
        assert_eq!(taken, expected, "advance to {to}, panic after {count}");
    }

    /// The rounds are counted from the wheel's position, which may be behind `now` and is not
    /// public.
    fn compare_round(&self, key: Key, value: u32) {
        let round = self.wheel.buckets() as u64;
        let rounds = self.wheel.round(key);
        assert_eq!(rounds.is_some(), self.model.get(value).is_some());
        if let (Some(rounds), Some(due)) = (rounds, self.model.deadline(value)) {
            let from_now = due.saturating_sub(self.model.now).saturating_sub(1) / round;
            assert!(rounds >= from_now && rounds <= due.saturating_sub(1) / round);
        }
    }

    fn key(&self, input: &mut Input<'_>) -> Option<(Key, u32)> {
        let index = usize::from(input.byte()?).checked_rem(self.keys.len())?;
        Some((self.keys[index], u32::try_from(index).ok()?))
    }

    /// Compares all that can be observed without a change.
    fn compare(&self) {
        assert_eq!(self.wheel.now(), self.model.now);
        assert_eq!(self.wheel.len(), self.model.pending.len());
        assert_eq!(self.wheel.is_empty(), self.model.pending.is_empty());
        assert_eq!(self.wheel.next_due(), self.model.next_due());
    }

    /// Advances to the end of time, so that nothing is left in the wheel.
    fn finish(&mut self) {
        let mut left: Vec<_> = self.wheel.iter().map(|(_, due, value)| (due, *value)).collect();
        left.sort_unstable();
        let mut expected: Vec<_> =
            self.model.pending.iter().map(|((due, _), value)| (*due, *value)).collect();
        expected.sort_unstable();
        assert_eq!(left, expected);
        self.advance(u64::MAX, usize::MAX);
        self.compare();
        for (key, value) in self.keys.iter().zip(0..) {
            assert_eq!(self.wheel.cancel(*key), None, "the old key of {value} does nothing");
        }
    }
}

/// A slow wheel: pending values by due tick, and those of one tick by the order of insertion.
#[derive(Default)]
struct Model {
    pending: BTreeMap<(u64, u64), u32>,
    positions: BTreeMap<u32, (u64, u64)>,
    now: u64,
    turn: u64,
}

impl Model {
    fn insert(&mut self, deadline: u64, value: u32) {
        // Never a tick that has passed. The last tick has no later one.
        let position = (deadline.max(self.now.saturating_add(1)), self.turn);
        self.turn += 1;
        self.pending.insert(position, value);
        self.positions.insert(value, position);
    }

    fn cancel(&mut self, value: u32) -> Option<u32> {
        let position = self.positions.remove(&value)?;
        self.pending.remove(&position)
    }

    fn reschedule(&mut self, value: u32, deadline: u64) -> bool {
        let pending = self.cancel(value).is_some();
        if pending {
            self.insert(deadline, value);
        }
        pending
    }

    fn advance(&mut self, to: u64, limit: usize) -> (Vec<(u64, u32)>, bool) {
        self.now = self.now.max(to);
        let mut taken = Vec::new();
        while taken.len() < limit {
            let Some(first) = self.pending.first_entry() else {
                break;
            };
            let due = first.key().0;
            if due > self.now {
                break;
            }
            let value = first.remove();
            self.positions.remove(&value);
            taken.push((due, value));
        }
        (taken, self.next_due().is_none_or(|due| due > self.now))
    }

    fn next_due(&self) -> Option<u64> {
        self.pending.first_key_value().map(|((due, _), _)| *due)
    }

    fn deadline(&self, value: u32) -> Option<u64> {
        self.positions.get(&value).map(|position| position.0)
    }

    fn get(&self, value: u32) -> Option<u32> {
        self.positions.contains_key(&value).then_some(value)
    }
}

/// What is left of the input.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// A tick, most often an edge case: near now, whole rounds away, at the end of time.
    fn tick(&mut self, now: u64, round: u64) -> Option<u64> {
        let kind = self.byte()?;
        let small = u64::from(kind & 0x1f);
        Some(match kind >> 5 {
            // Soon.
            0 | 1 => now.saturating_add(small),
            // Around a round from now.
            2 => now.saturating_add(round).saturating_add(small).saturating_sub(16),
            // Whole rounds from now.
            3 => now.saturating_add(round.saturating_mul(small)),
            // Past.
            4 => now.saturating_sub(small),
            // The end of time.
            5 => u64::MAX - small,
            // A power of two from now.
            6 => now.saturating_add(1 << (2 * small)),
            // Any tick at all.
            _ => {
                let (bytes, rest) = self.0.split_first_chunk()?;
                self.0 = rest;
                u64::from_le_bytes(*bytes)
            }
        })
    }
}
