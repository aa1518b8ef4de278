//! The bare wheel: exact ticks and boundaries.

use hashed_wheel::{BuildError, Key, TICKS_PER_WHEEL_MAX, Wheel};

use crate::{advance_and_panic, due_by, wheel};

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
fn deadlines_around_lap_boundaries_are_due_at_exact_tick() {
    // Miri takes minutes for a large wheel.
    let sizes: &[usize] = if cfg!(miri) { &[1, 8] } else { &[1, 2, 8, 64, 128] };
    for &buckets in sizes {
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
fn an_entry_inserted_during_an_advance_is_due_after_it() {
    let mut wheel = wheel(4);
    for value in 0..3 {
        wheel.insert(2, value);
    }
    let mut due = Vec::new();
    let mut calls = 0;
    while !wheel.advance(10, 1, |tick, value| due.push((tick, value))) {
        calls += 1;
        // Each has a deadline at or before `now`, so without the rule the advance would never end.
        wheel.insert(calls, 100);
    }
    assert_eq!(due, [(2, 0), (2, 1), (2, 2)]);
    assert_eq!(due_by(&mut wheel, 11), [(11, 100), (11, 100)]);
}

#[test]
fn an_advance_continues_where_its_limit_stopped_it() {
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
fn due_entries_are_ordered_by_tick_then_by_insertion() {
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
fn the_last_tick_is_usable() {
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
        // A little more than a lap ahead: for a moment the lowest round of its bucket.
        let short = wheel.insert(tick + 9, 0);
        assert_eq!(wheel.next_due(), Some(tick + 9));
        assert_eq!(wheel.cancel(short), Some(0));
        assert_eq!(wheel.next_due(), Some(80));
        assert_eq!(due_by(&mut wheel, tick), []);
    }
}

#[test]
fn the_wheel_never_goes_back() {
    let mut wheel = wheel(8);
    due_by(&mut wheel, 50);
    wheel.insert(60, ());
    assert_eq!(due_by(&mut wheel, 10), []);
    assert_eq!(wheel.now(), 50);
    assert_eq!(due_by(&mut wheel, 60), [(60, ())]);
}

#[test]
fn a_key_resolves_to_its_entry_and_never_to_another() {
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
fn bucket_count_is_rounded_up_to_power_of_two_and_limited() {
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
fn an_advance_stopped_within_the_last_tick_continues_there() {
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
fn longer_lap_keeps_buckets_rounds_and_order() {
    let mut wheel = wheel(8);
    let mut expected = Vec::new();
    // The first are too far ahead for the number of entries, the last are not: the lap gets longer
    // in between.
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

/// Enough entries that memory is allocated and released several times.
#[test]
#[cfg_attr(miri, ignore = "takes minutes under Miri")]
fn refilled_wheel_keeps_order_and_resolves_no_stale_key() {
    const COUNT: usize = 30_000;
    let mut wheel = wheel(8);
    let mut stale: Vec<Key> = Vec::new();
    for pass in 0..4 {
        let mut expected = Vec::new();
        let mut keys = Vec::new();
        for number in 0..COUNT {
            // 7919 is prime, so the ticks are shuffled, and each comes three times.
            let tick = wheel.now() + 1 + (number * 7919 % (COUNT / 3) * 5) as u64;
            keys.push(wheel.insert(tick, number));
            expected.push((tick, number));
        }
        assert!(stale.iter().all(|key| wheel.get(*key).is_none()));
        assert!(stale.iter().all(|key| wheel.cancel(*key).is_none()));
        // Every second pass empties it by cancelling, and leaves a few.
        if pass % 2 == 0 {
            for (number, key) in keys.iter().enumerate().filter(|(number, _)| number % 1000 > 0) {
                assert_eq!(wheel.cancel(*key), Some(number));
            }
            expected.retain(|(_, number)| number % 1000 == 0);
        }
        expected.sort_unstable();
        assert_eq!(wheel.next_due(), expected.first().map(|(tick, _)| *tick));
        let to = wheel.now() + 5 * COUNT as u64;
        assert_eq!(due_by(&mut wheel, to), expected);
        assert!(wheel.is_empty());
        stale.extend(keys);
    }
}

#[test]
fn a_panicking_take_loses_only_the_entry_it_was_passed() {
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
fn debug_shows_values_without_debug() {
    struct NoDebug;
    let mut wheel = wheel(8);
    let empty = "Wheel { now: 0, len: 0, buckets: 8, next_due: None, .. }";
    assert_eq!(format!("{wheel:?}"), empty);
    for tick in [900, 5, 17, 5] {
        wheel.insert(tick, NoDebug);
    }
    let filled = "Wheel { now: 0, len: 4, buckets: 8, next_due: Some(5), .. }";
    assert_eq!(format!("{wheel:?}"), filled);
}
