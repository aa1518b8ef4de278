//! The bare wheel: exact ticks, boundaries, and a model that holds every public method against a `BTreeMap`.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use hashed_wheel::{BuildError, Key, TICKS_PER_WHEEL_MAX, Wheel};
use proptest::prelude::*;

fn wheel<T>(buckets: usize) -> Wheel<T> {
    Wheel::new(buckets).unwrap()
}

/// Moves to `tick` and returns everything that was due.
fn due_by<T>(wheel: &mut Wheel<T>, tick: u64) -> Vec<(u64, T)> {
    let mut due = Vec::new();
    assert!(wheel.advance(tick, usize::MAX, |tick, value| due.push((tick, value))));
    due
}

#[test]
fn the_textbook_example_of_eight_buckets() {
    let mut wheel = wheel(8);
    let soon = wheel.insert(5, "soon");
    let later = wheel.insert(17, "later");
    assert_eq!((wheel.bucket(soon), wheel.round(soon)), (Some(5), Some(0)));
    assert_eq!((wheel.bucket(later), wheel.round(later)), (Some(1), Some(2)));

    let mut passes_of_bucket_1 = 0;
    for tick in 1..=17 {
        if tick % 8 == 1 {
            passes_of_bucket_1 += 1;
        }
        let due = due_by(&mut wheel, tick);
        match tick {
            5 => assert_eq!(due, [(5, "soon")]),
            17 => assert_eq!(due, [(17, "later")]),
            _ => assert!(due.is_empty(), "tick {tick}"),
        }
        if (1..17).contains(&tick) {
            assert_eq!(wheel.round(later), Some(2 - passes_of_bucket_1), "tick {tick}");
        }
    }
    assert_eq!(passes_of_bucket_1, 3);
}

#[test]
fn every_deadline_is_due_at_its_own_tick_around_the_boundaries_of_laps() {
    for buckets in [1, 2, 8, 64, 128] {
        let lap = buckets as u64;
        for start in [0, 1, lap - 1, lap, lap + 1, 1_000_003] {
            for delay in [1, lap - 1, lap, lap + 1, 2 * lap - 1, 2 * lap, 2 * lap + 1, 10 * lap] {
                let delay = delay.max(1);
                let mut wheel = wheel(buckets);
                due_by::<()>(&mut wheel, start);
                let key = wheel.insert(start + delay, ());
                assert_eq!(wheel.deadline(key), Some(start + delay));
                assert_eq!(wheel.round(key), Some((delay - 1) / lap));
                assert_eq!(wheel.next_due(), Some(start + delay));
                assert_eq!(due_by(&mut wheel, start + delay - 1), []);
                assert_eq!(due_by(&mut wheel, start + delay), [(start + delay, ())]);
                assert!(wheel.is_empty());
            }
        }
    }
}

#[test]
fn an_entry_due_now_or_earlier_is_due_at_the_next_tick() {
    let mut wheel = wheel(8);
    due_by(&mut wheel, 100);
    for deadline in [0, 99, 100] {
        wheel.insert(deadline, deadline);
    }
    assert_eq!(wheel.next_due(), Some(101));
    assert_eq!(due_by(&mut wheel, 100), []);
    assert_eq!(due_by(&mut wheel, 101), [(101, 0), (101, 99), (101, 100)]);
}

#[test]
fn what_is_inserted_during_a_turn_is_due_after_it() {
    let mut wheel = wheel(4);
    for value in 0..3 {
        wheel.insert(2, value);
    }
    let mut turn = Vec::new();
    let mut calls = 0;
    while !wheel.advance(10, 1, |tick, value| turn.push((tick, value))) {
        calls += 1;
        // Each is due at or before the tick of the turn, so an endless turn would be easy to have.
        wheel.insert(calls, 100);
    }
    assert_eq!(turn, [(2, 0), (2, 1), (2, 2)]);
    assert_eq!(due_by(&mut wheel, 11), [(11, 100), (11, 100)]);
}

#[test]
fn a_turn_takes_up_where_its_limit_stopped_it() {
    let mut wheel = wheel(8);
    for tick in [3, 3, 3, 30, 30, 31] {
        wheel.insert(tick, tick);
    }
    let mut due = Vec::new();
    assert!(!wheel.advance(30, 2, |tick, _| due.push(tick)));
    assert_eq!(wheel.next_due(), Some(3));
    assert!(!wheel.advance(30, 2, |tick, _| due.push(tick)));
    assert_eq!(wheel.next_due(), Some(30));
    assert!(!wheel.advance(30, 0, |tick, _| due.push(tick)));
    assert!(wheel.advance(30, 1, |tick, _| due.push(tick)), "the limit was reached with the last");
    assert_eq!(due, [3, 3, 3, 30, 30]);
    assert_eq!(wheel.len(), 1);
}

#[test]
fn entries_come_by_tick_and_within_a_tick_in_the_order_of_insertion() {
    let mut wheel = wheel(4);
    wheel.insert(9, "far, first");
    wheel.insert(2, "near");
    let moved = wheel.insert(9, "far, rescheduled");
    due_by(&mut wheel, 6);
    wheel.insert(9, "inserted within the lap");
    assert!(wheel.reschedule(moved, 9));
    wheel.insert(8, "earlier");
    let due = due_by(&mut wheel, 20);
    assert_eq!(
        due,
        [
            (8, "earlier"),
            (9, "far, first"),
            (9, "inserted within the lap"),
            (9, "far, rescheduled"),
        ]
    );
}

#[test]
fn the_last_tick_there_is_is_a_tick_like_any_other() {
    let mut wheel = wheel(8);
    let last = wheel.insert(u64::MAX, "last");
    let other = wheel.insert(u64::MAX - 1, "last but one");
    assert_eq!(wheel.round(last), Some((u64::MAX - 1) / 8));
    assert_eq!(due_by(&mut wheel, u64::MAX - 2), []);
    assert_eq!(wheel.deadline(other), Some(u64::MAX - 1));
    assert_eq!(due_by(&mut wheel, u64::MAX - 1), [(u64::MAX - 1, "last but one")]);
    wheel.insert(5, "in the past");
    assert_eq!(due_by(&mut wheel, u64::MAX), [(u64::MAX, "last"), (u64::MAX, "in the past")]);
    let key = wheel.insert(0, "after the end");
    assert_eq!(wheel.deadline(key), Some(u64::MAX));
    assert_eq!(wheel.round(key), Some(0));
    assert_eq!(due_by(&mut wheel, u64::MAX), [(u64::MAX, "after the end")]);
    assert!(wheel.is_empty());
}

#[test]
fn a_gap_of_years_is_one_step() {
    let mut wheel = wheel(512);
    let year = 365 * 24 * 3600 * 1000;
    for years in 1..=100 {
        wheel.insert(years * year, years);
    }
    for years in 1..=100 {
        assert_eq!(wheel.next_due(), Some(years * year));
        assert_eq!(due_by(&mut wheel, years * year), [(years * year, years)]);
    }
}

#[test]
fn cancelling_in_later_rounds_never_leaves_a_stale_next_due() {
    let mut wheel = wheel(8);
    for round in 10..1000 {
        wheel.insert(round * 8, round);
    }
    for tick in 1..70 {
        // A little more than a lap: it is the lowest round of its bucket for a moment.
        let short = wheel.insert(tick + 9, 0);
        assert_eq!(wheel.next_due(), Some(tick + 9));
        assert_eq!(wheel.cancel(short), Some(0));
        assert_eq!(wheel.next_due(), Some(80));
        assert_eq!(due_by(&mut wheel, tick), []);
    }
}

#[test]
fn the_wheel_never_turns_back() {
    let mut wheel = wheel(8);
    due_by(&mut wheel, 50);
    wheel.insert(60, ());
    assert_eq!(due_by(&mut wheel, 10), []);
    assert_eq!(wheel.now(), 50);
    assert_eq!(due_by(&mut wheel, 60), [(60, ())]);
}

#[test]
fn a_key_finds_its_entry_and_after_that_nothing() {
    let mut wheel = wheel(8);
    let key = wheel.insert(3, String::from("value"));
    wheel.get_mut(key).unwrap().push_str(" changed");
    assert_eq!(wheel.get(key).map(String::as_str), Some("value changed"));
    assert_eq!(wheel.cancel(key).as_deref(), Some("value changed"));
    let tenant = wheel.insert(3, String::from("next tenant"));
    assert_ne!(key, tenant);
    assert_eq!(wheel.get(key), None);
    assert_eq!(wheel.get_mut(key), None);
    assert_eq!(wheel.deadline(key), None);
    assert_eq!(wheel.bucket(key), None);
    assert_eq!(wheel.round(key), None);
    assert_eq!(wheel.cancel(key), None);
    assert!(!wheel.reschedule(key, 5));
    assert_eq!(wheel.deadline(tenant), Some(3));
}

#[test]
fn a_key_of_another_wheel_does_not_break_this_one() {
    let mut first = wheel(8);
    let mut second: Wheel<u8> = wheel(8);
    let key = first.insert(3, 1);
    assert_eq!(second.cancel(key), None);
}

#[test]
fn the_number_of_buckets_is_rounded_up_to_a_power_of_two_and_has_limits() {
    for (asked, given) in [(1, 1), (2, 2), (3, 4), (512, 512), (513, 1024)] {
        assert_eq!(wheel::<()>(asked).buckets(), given);
    }
    assert_eq!(wheel::<()>(TICKS_PER_WHEEL_MAX).buckets(), TICKS_PER_WHEEL_MAX);
    for asked in [0, TICKS_PER_WHEEL_MAX + 1, 1 << (usize::BITS - 1), usize::MAX] {
        let refused = Wheel::<()>::new(asked);
        assert!(matches!(refused, Err(BuildError::TicksPerWheel(count)) if count == asked));
    }
}

#[test]
fn a_turn_that_its_limit_stops_within_the_last_tick_goes_on_there() {
    let mut wheel = wheel(8);
    for value in 0..3 {
        wheel.insert(u64::MAX, value);
    }
    let mut due = Vec::new();
    assert!(!wheel.advance(u64::MAX, 1, |_, value| due.push(value)));
    assert_eq!(wheel.next_due(), Some(u64::MAX));
    wheel.insert(0, 3);
    assert!(!wheel.advance(u64::MAX, 2, |_, value| due.push(value)));
    wheel.insert(u64::MAX, 4);
    assert!(wheel.advance(u64::MAX, usize::MAX, |_, value| due.push(value)));
    assert_eq!(due, [0, 1, 2, 3, 4]);
    assert_eq!(wheel.next_due(), None);
}

#[test]
fn a_wheel_that_gets_crowded_keeps_its_buckets_its_rounds_and_its_order() {
    let mut wheel = wheel(8);
    let mut expected = Vec::new();
    // The first are far away for so few entries, the last are not: they change places in between.
    for value in 0..1000 {
        let tick = 17 + value % 50 * 8;
        let key = wheel.insert(tick, value);
        assert_eq!((wheel.bucket(key), wheel.round(key)), (Some(1), Some((tick - 1) / 8)));
        expected.push((tick, value));
    }
    assert_eq!(wheel.buckets(), 8);
    assert_eq!(wheel.next_due(), Some(17));
    expected.sort_unstable();
    assert_eq!(due_by(&mut wheel, 17 + 49 * 8), expected);
}

/// Moves to `to` and lets `take` panic with the `count`th value that it is given. The hook that prints panics is not
/// called.
fn advance_and_panic<T>(wheel: &mut Wheel<T>, to: u64, count: usize) -> (bool, Vec<(u64, T)>) {
    let mut due = Vec::new();
    let turn = AssertUnwindSafe(|| {
        wheel.advance(to, usize::MAX, |tick, value| {
            due.push((tick, value));
            if due.len() == count {
                resume_unwind(Box::new("take panics"));
            }
        });
    });
    let panicked = catch_unwind(turn).is_err();
    (panicked, due)
}

#[test]
fn a_panicking_take_loses_no_entry_but_the_one_it_was_given() {
    let mut wheel = wheel(8);
    for (tick, value) in [(3, 'a'), (3, 'b'), (20, 'c'), (20, 'd'), (21, 'e')] {
        wheel.insert(tick, value);
    }
    for (to, due) in [(3, (3, 'a')), (3, (3, 'b')), (30, (20, 'c')), (30, (20, 'd'))] {
        let left = wheel.len() - 1;
        assert_eq!(advance_and_panic(&mut wheel, to, 1), (true, vec![due]));
        assert_eq!((wheel.len(), wheel.iter().count(), wheel.now()), (left, left, to));
    }
    assert_eq!(wheel.next_due(), Some(21));
    wheel.insert(0, 'f');
    assert_eq!(due_by(&mut wheel, 31), [(21, 'e'), (31, 'f')]);
}

#[test]
fn debug_shows_what_is_due_first_whatever_the_values_are() {
    struct NoDebug;
    let mut wheel = wheel(8);
    assert_eq!(
        format!("{wheel:?}"),
        "Wheel { now: 0, len: 0, buckets: 8, next_due: None, due: [], due_later: 0, .. }"
    );
    for tick in [900, 5, 17, 5] {
        wheel.insert(tick, NoDebug);
    }
    assert_eq!(
        format!("{wheel:?}"),
        "Wheel { now: 0, len: 4, buckets: 8, next_due: Some(5), due: [5, 5, 17, 900], due_later: 0, .. }"
    );
    for _ in 0..100 {
        wheel.insert(16, NoDebug);
    }
    let shown = format!("{wheel:?}");
    assert!(shown.contains(&format!("due: [5, 5{}], due_later: 88", ", 16".repeat(14))), "{shown}");
}

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

/// Mostly small steps, or every history would be over at once.
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

/// What a wheel is, written down without any wheel.
#[derive(Default)]
struct Model {
    now: u64,
    /// Whether the limit or a panic stopped the last turn, so that the hand is not at `now` yet.
    mid_turn: bool,
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
        let place = self.place(key)?;
        self.pending.remove(&place).map(|(_, value)| value)
    }

    fn place(&self, key: Key) -> Option<(u64, u64)> {
        self.pending.iter().find(|(_, (other, _))| *other == key).map(|(place, _)| *place)
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
        self.mid_turn = self.next_due().is_some_and(|due| due <= self.now);
        (!self.mid_turn, due)
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
    let earliest: Vec<_> = model.pending.keys().map(|(due, _)| *due).take(16).collect();
    let shown =
        format!("due: {earliest:?}, due_later: {}, ..", model.pending.len() - earliest.len());
    let debug = format!("{wheel:?}");
    prop_assert!(debug.contains(&shown), "{} instead of {}", debug, shown);
    let lap = wheel.buckets() as u64;
    for key in keys {
        let place = model.place(*key);
        let due = place.map(|(due, _)| due);
        prop_assert_eq!(wheel.deadline(*key), due);
        prop_assert_eq!(wheel.get(*key), place.map(|place| &model.pending[&place].1));
        prop_assert_eq!(wheel.bucket(*key).map(|bucket| bucket as u64), due.map(|due| due % lap));
        if !model.mid_turn {
            let round = due.map(|due| due.saturating_sub(model.now).saturating_sub(1) / lap);
            prop_assert_eq!(wheel.round(*key), round);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_wheel_does_what_a_sorted_map_does(
        buckets in prop_oneof![1_usize..10, Just(64), Just(100), Just(256)],
        operations in prop::collection::vec(operation(), 1..120),
    ) {
        let mut wheel = Wheel::new(buckets).unwrap();
        let mut model = Model::default();
        // Every key there ever was: the stale ones must stay stale.
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
                    let place = model.place(key);
                    prop_assert_eq!(wheel.get_mut(key).is_some(), place.is_some());
                    if let (Some(value), Some(place)) = (wheel.get_mut(key), place) {
                        *value += 1_000_000;
                        let entry = model.pending.get_mut(&place).unwrap();
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
                    model.mid_turn |= panicked;
                }
                _ => {}
            }
            agree(&wheel, &model, &keys)?;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Thousands of entries, so that slots are let again in every way, and the wheel makes room for many rounds.
    #[test]
    fn a_crowded_wheel_does_what_a_sorted_map_does(
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
            // It fills up first, and then it empties.
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
