//! A million values that are scheduled and cancelled many at a time, compared with a list.

use std::time::Duration;
use std::{iter, thread};

use hashed_wheel::{BatchTimer, TimerKey};

const MILLION: u64 = 1_000_000;
const HOUR: Duration = Duration::from_secs(3600);

/// Pseudorandom numbers, the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, count: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) % count
    }

    fn shuffle<T>(&mut self, values: &mut [T]) {
        for last in (1..values.len()).rev() {
            let other = self.below(last as u64 + 1);
            values.swap(last, usize::try_from(other).unwrap());
        }
    }
}

/// Schedules these numbers on the calling thread, and returns each with its key.
fn schedule(timer: &BatchTimer<u64>, numbers: impl Iterator<Item = u64>) -> Vec<(TimerKey, u64)> {
    let mut random = Random(7);
    let mut timeouts: Vec<_> = numbers
        .map(|number| (HOUR + Duration::from_millis(random.below(60_000)), number))
        .collect();
    let numbers: Vec<_> = timeouts.iter().map(|(_, number)| *number).collect();
    let mut keys = Vec::new();
    timer.schedule_many(&mut timeouts, &mut keys).unwrap();
    assert!(timeouts.is_empty());
    iter::zip(keys, numbers).collect()
}

/// What the work of four threads makes, each with its number.
fn on_four_threads<T: Send, I: Iterator<Item = T>>(work: impl Fn(u64) -> I + Sync) -> Vec<T> {
    let work = &work;
    thread::scope(|scope| {
        let threads =
            [0, 1, 2, 3].map(|number| scope.spawn(move || work(number).collect::<Vec<_>>()));
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn million_keys_in_random_order_are_cancelled_once_each() {
    let timer = BatchTimer::builder().build_batch(|_: &mut Vec<u64>| {}).unwrap();
    let mut pending = on_four_threads(|part| {
        schedule(&timer, (0..MILLION).filter(|number| number % 4 == part)).into_iter()
    });
    let mut random = Random(1);
    random.shuffle(&mut pending);
    let (mut gone, mut step) = (Vec::<TimerKey>::new(), 0);
    while !pending.is_empty() {
        step += 1;
        // Some keys that are gone, and some twice, among those that are pending.
        let count = usize::try_from(random.below(20_000)).unwrap().min(pending.len());
        let taken = pending.split_off(pending.len() - count);
        let mut keys: Vec<_> = taken.iter().map(|(key, _)| *key).collect();
        keys.extend(gone.iter().rev().step_by(97).take(100));
        keys.extend_from_within(..count / 50);
        random.shuffle(&mut keys);
        let mut expected: Vec<_> = taken.iter().map(|(_, number)| *number).collect();
        let mut cancelled = timer.cancel_many(&keys);
        cancelled.sort_unstable();
        expected.sort_unstable();
        assert_eq!(cancelled, expected, "step {step}");
        assert_eq!(timer.pending_timeouts(), pending.len());
        // Each fifth part comes back, under new keys and perhaps in the slots of old ones.
        if step % 5 == 0 {
            pending.extend(schedule(&timer, expected.into_iter().filter(|at| at % 5 == 0)));
            random.shuffle(&mut pending);
        }
        gone.extend(taken.into_iter().map(|(key, _)| key));
    }
    assert!(timer.cancel_many(&gone).is_empty());
    let statistics = timer.statistics();
    assert_eq!(statistics.scheduled, statistics.cancelled);
    assert!(statistics.scheduled > MILLION);
}

#[test]
fn concurrent_cancels_of_same_keys_return_each_value_once() {
    const VALUES: u64 = 100_000;
    let timer = BatchTimer::builder().build_batch(|_: &mut Vec<u64>| {}).unwrap();
    let own = |part| (0..VALUES).filter(move |number| number % 4 == part);
    let mut keys: Vec<TimerKey> =
        on_four_threads(|part| schedule(&timer, own(part)).into_iter().map(|(key, _)| key));
    Random(3).shuffle(&mut keys);
    // Each thread cancels three quarters of all keys, beginning at another place.
    let quarter = keys.len() / 4;
    let mut cancelled = on_four_threads(|part| {
        let mut keys = keys.clone();
        keys.rotate_left(usize::try_from(part).unwrap() * quarter);
        timer.cancel_many(&keys[..3 * quarter]).into_iter()
    });
    cancelled.sort_unstable();
    assert!(cancelled.into_iter().eq(0..VALUES));
    assert_eq!(timer.statistics().cancelled, VALUES);
}

#[test]
fn clear_returns_million_values_and_leaves_timer_usable() {
    let timer = BatchTimer::builder()
        .max_pending_timeouts(usize::try_from(MILLION).unwrap())
        .build_batch(|_: &mut Vec<u64>| {})
        .unwrap();
    let here = schedule(&timer, 0..MILLION / 2);
    thread::scope(|scope| {
        scope.spawn(|| schedule(&timer, MILLION / 2..MILLION));
    });
    assert!(timer.schedule(HOUR, MILLION).is_err(), "it is full");
    let mut cleared = timer.clear();
    cleared.sort_unstable();
    assert!(cleared.into_iter().eq(0..MILLION));
    assert!(here.iter().all(|(key, _)| timer.get(*key).is_none()));
    // Its capacity is free again.
    let (key, _) = schedule(&timer, 0..MILLION)[0];
    assert_eq!(timer.get(key), Some(0));
    assert!(timer.clear().len() == 1_000_000 && timer.clear().is_empty());
}
