//! The bare wheel compared with a sorted map, for every public method.

use std::collections::BTreeMap;

use hashed_wheel::{Key, Wheel};
use proptest::prelude::*;

use crate::advance_and_panic;

#[derive(Clone, Debug)]
enum Operation {
    Insert(Tick),
    Cancel(prop::sample::Index),
    Reschedule(prop::sample::Index, Tick),
    Change(prop::sample::Index),
    Advance(Tick, usize),
    AdvanceAndPanic(Tick, usize),
}

#[derive(Clone, Copy, Debug)]
enum Tick {
    Before(u64),
    Ahead(u64),
    Laps(u64),
    BeforeTheEnd(u64),
    Any(u64),
}

impl Tick {
    fn resolve(self, wheel: &Wheel<u64>) -> u64 {
        match self {
            Self::Before(ticks) => wheel.now().saturating_sub(ticks),
            Self::Ahead(ticks) => wheel.now().saturating_add(ticks),
            Self::Laps(laps) => wheel.now().saturating_add(laps * wheel.buckets() as u64),
            Self::BeforeTheEnd(ticks) => u64::MAX - ticks,
            Self::Any(tick) => tick,
        }
    }
}

fn tick() -> impl Strategy<Value = Tick> {
    prop_oneof![
        2 => (0_u64..300).prop_map(Tick::Before),
        20 => (0_u64..300).prop_map(Tick::Ahead),
        4 => (0_u64..20).prop_map(Tick::Laps),
        1 => (0_u64..5).prop_map(Tick::BeforeTheEnd),
        1 => any::<u64>().prop_map(Tick::Any),
    ]
}

/// Mostly small steps, or the first steps would fire everything.
fn step() -> impl Strategy<Value = Tick> {
    prop_oneof![
        30 => (0_u64..40).prop_map(Tick::Ahead),
        10 => (0_u64..300).prop_map(Tick::Ahead),
        4 => (0_u64..3).prop_map(Tick::Laps),
        1 => tick(),
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    let limit = prop_oneof![3 => Just(usize::MAX), 2 => 0_usize..4];
    prop_oneof![
        6 => tick().prop_map(Operation::Insert),
        2 => any::<prop::sample::Index>().prop_map(Operation::Cancel),
        2 => (any::<prop::sample::Index>(), tick()).prop_map(|(at, to)| Operation::Reschedule(at, to)),
        1 => any::<prop::sample::Index>().prop_map(Operation::Change),
        5 => (step(), limit).prop_map(|(to, limit)| Operation::Advance(to, limit)),
        1 => (step(), 1_usize..6).prop_map(|(to, count)| Operation::AdvanceAndPanic(to, count)),
    ]
}

/// A wheel as a sorted map.
#[derive(Default)]
struct Model {
    now: u64,
    /// Whether the limit or a panic stopped the last advance before `now`.
    unfinished: bool,
    sequence: u64,
    pending: BTreeMap<(u64, u64), (Key, u64)>,
}

impl Model {
    fn due(&self, deadline: u64) -> u64 {
        deadline.max(self.now.saturating_add(1))
    }

    fn insert(&mut self, deadline: u64, key: Key, value: u64) {
        self.sequence += 1;
        self.pending.insert((self.due(deadline), self.sequence), (key, value));
    }

    fn remove(&mut self, key: Key) -> Option<u64> {
        let position = self.position(key)?;
        self.pending.remove(&position).map(|(_, value)| value)
    }

    fn position(&self, key: Key) -> Option<(u64, u64)> {
        self.pending.iter().find(|(_, (other, _))| *other == key).map(|(position, _)| *position)
    }

    fn advance(&mut self, to: u64, limit: usize) -> (bool, Vec<(u64, u64)>) {
        self.now = self.now.max(to);
        let mut due = Vec::new();
        while due.len() < limit {
            let Some(entry) = self.pending.first_entry().filter(|entry| entry.key().0 <= self.now)
            else {
                break;
            };
            due.push((entry.key().0, entry.get().1));
            entry.remove();
        }
        self.unfinished = self.next_due().is_some_and(|due| due <= self.now);
        (!self.unfinished, due)
    }

    fn next_due(&self) -> Option<u64> {
        self.pending.first_key_value().map(|((due, _), _)| *due)
    }
}

fn agree(wheel: &Wheel<u64>, model: &Model, keys: &[Key]) -> Result<(), TestCaseError> {
    prop_assert_eq!(wheel.now(), model.now);
    prop_assert_eq!(wheel.len(), model.pending.len());
    prop_assert_eq!(wheel.is_empty(), model.pending.is_empty());
    prop_assert_eq!(wheel.next_due(), model.next_due());
    let mut listed: Vec<_> = wheel.iter().map(|(key, due, value)| (key, due, *value)).collect();
    let mut expected: Vec<_> =
        model.pending.iter().map(|((due, _), (key, value))| (*key, *due, *value)).collect();
    listed.sort_unstable();
    expected.sort_unstable();
    prop_assert_eq!(listed, expected);
    let lap = wheel.buckets() as u64;
    for key in keys {
        let position = model.position(*key);
        let due = position.map(|(due, _)| due);
        prop_assert_eq!(wheel.deadline(*key), due);
        prop_assert_eq!(wheel.get(*key), position.map(|position| &model.pending[&position].1));
        prop_assert_eq!(wheel.bucket(*key).map(|bucket| bucket as u64), due.map(|due| due % lap));
        if !model.unfinished {
            let round = due.map(|due| due.saturating_sub(model.now).saturating_sub(1) / lap);
            prop_assert_eq!(wheel.round(*key), round);
        }
    }
    Ok(())
}

/// The most operations of one case. Miri takes a second for each.
const OPERATIONS: usize = if cfg!(miri) { 30 } else { 120 };

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 256 }))]

    #[test]
    fn a_wheel_behaves_like_a_sorted_map(
        buckets in prop_oneof![1_usize..10, Just(64), Just(100), Just(256)],
        operations in prop::collection::vec(operation(), 1..OPERATIONS),
    ) {
        let mut wheel = Wheel::new(buckets).unwrap();
        let mut model = Model::default();
        // Every key ever returned: old ones must never resolve again.
        let mut keys = Vec::new();
        let mut values = 0..;
        for operation in operations {
            match operation {
                Operation::Insert(tick) => {
                    let (tick, value) = (tick.resolve(&wheel), values.next().unwrap());
                    let key = wheel.insert(tick, value);
                    prop_assert!(!keys.contains(&key), "no key is used twice");
                    keys.push(key);
                    model.insert(tick, key, value);
                }
                Operation::Cancel(at) if !keys.is_empty() => {
                    let key = *at.get(&keys);
                    prop_assert_eq!(wheel.cancel(key), model.remove(key));
                }
                Operation::Reschedule(at, tick) if !keys.is_empty() => {
                    let (key, tick) = (*at.get(&keys), tick.resolve(&wheel));
                    let value = model.remove(key);
                    if let Some(value) = value {
                        model.insert(tick, key, value);
                    }
                    prop_assert_eq!(wheel.reschedule(key, tick), value.is_some());
                }
                Operation::Change(at) if !keys.is_empty() => {
                    let key = *at.get(&keys);
                    let position = model.position(key);
                    prop_assert_eq!(wheel.get_mut(key).is_some(), position.is_some());
                    if let (Some(value), Some(position)) = (wheel.get_mut(key), position) {
                        *value += 1_000_000;
                        let entry = model.pending.get_mut(&position).unwrap();
                        entry.1 += 1_000_000;
                        prop_assert_eq!(wheel.get(key), Some(&entry.1));
                    }
                }
                Operation::Advance(tick, limit) => {
                    let tick = tick.resolve(&wheel);
                    let mut due = Vec::new();
                    let finished = wheel.advance(tick, limit, |tick, value| due.push((tick, value)));
                    prop_assert_eq!((finished, due), model.advance(tick, limit));
                }
                Operation::AdvanceAndPanic(tick, count) => {
                    let tick = tick.resolve(&wheel);
                    let (panicked, due) = advance_and_panic(&mut wheel, tick, count);
                    prop_assert_eq!(panicked, due.len() == count);
                    prop_assert_eq!(due, model.advance(tick, count).1);
                    model.unfinished |= panicked;
                }
                _ => {}
            }
            agree(&wheel, &model, &keys)?;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Thousands of entries, so that slots are reused in every way, and the lap gets longer.
    #[test]
    #[cfg_attr(miri, ignore = "takes minutes under Miri")]
    fn a_large_wheel_behaves_like_a_sorted_map(
        buckets in prop_oneof![Just(1_usize), Just(8), Just(512)],
        span in prop_oneof![Just(50_u64), Just(3_000), Just(100_000)],
        numbers in prop::collection::vec(any::<u64>(), 3_000..6_000),
    ) {
        let mut wheel = Wheel::new(buckets).unwrap();
        let mut model = Model::default();
        let mut keys: Vec<Key> = Vec::new();
        for (number, value) in numbers.iter().copied().zip(0..) {
            let tick = wheel.now() + (number >> 8) % span;
            let at = usize::try_from(number >> 40).unwrap() % keys.len().max(1);
            // It fills first, and then empties.
            let inserts = if value < 2_000 { 12 } else { 4 };
            match number % 16 {
                kind if kind < inserts || keys.is_empty() => {
                    let key = wheel.insert(tick, value);
                    model.insert(tick, key, value);
                    keys.push(key);
                }
                0..14 => {
                    let key = keys.swap_remove(at);
                    prop_assert_eq!(wheel.cancel(key), model.remove(key));
                }
                14 => {
                    let value = model.remove(keys[at]);
                    prop_assert_eq!(wheel.reschedule(keys[at], tick), value.is_some());
                    if let Some(value) = value {
                        model.insert(tick, keys[at], value);
                    }
                }
                _ => {
                    let tick = wheel.now() + (number >> 8) % (span / 50 + 1);
                    let mut due = Vec::new();
                    let finished = wheel.advance(tick, 20, |tick, value| due.push((tick, value)));
                    prop_assert_eq!((finished, due), model.advance(tick, 20));
                }
            }
            prop_assert_eq!((wheel.len(), wheel.next_due()), (model.pending.len(), model.next_due()));
        }
        agree(&wheel, &model, &keys[..keys.len().min(50)])?;
        let mut due = Vec::new();
        prop_assert!(wheel.advance(u64::MAX, usize::MAX, |tick, value| due.push((tick, value))));
        prop_assert_eq!(due, model.advance(u64::MAX, usize::MAX).1);
    }
}
