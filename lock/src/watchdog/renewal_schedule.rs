//! When to renew a hold next. Pure: time is an argument.
//!
//! A renewal is due two ticks before a third of the lease, so the server has the renewal before the
//! third is over, and never less than two thirds of the lease are left. This is the latest time;
//! three rules decide whether a renewal is brought forward.
//!
//! * *Spreading.* Holds acquired together, or renewed together after an outage, would stay together
//!   forever. So the next renewal of each hold is put anywhere in the last three quarters of the
//!   interval, evenly: at multiples of the golden ratio, whose consecutive terms lie apart. From
//!   then on each hold retains its place. Random jitter was rejected: each renewal would blur the
//!   groups of the previous renewal.
//! * *Batching.* A script for each hold costs the server and the client most. So a renewal is
//!   brought forward to the start of its *window*, with all renewals due in the same window. A
//!   window is as long as it takes to fill one script: at most a twentieth of the interval, and at
//!   least five ticks.
//! * A single hold is not brought forward at all.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::model::lease::Lease;

/// Decides when each hold is renewed next. Counts the holds that were spread.
#[derive(Debug)]
pub(crate) struct RenewalSchedule {
    /// The instant from which windows are counted.
    origin: Instant,
    tick: Duration,
    /// The number of holds that fill one script.
    holds_per_script: usize,
    /// The number of holds spread so far.
    spread: AtomicU64,
}

/// Whether a hold retains its place in the interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spreading {
    /// The hold may be one of many from the same moment, and gets a new place.
    Redistribute,
    /// The hold retains its place.
    Retain,
}

/// How many more holds of one window may retain their places in the interval.
#[derive(Debug, Default)]
pub(crate) struct WindowQuota {
    /// The number of the window in which renewals were last sent.
    window: Option<u64>,
    /// The number of holds in this window that may still retain their places.
    left: usize,
}

/// The minimum number of windows in one interval.
const MIN_WINDOWS: u32 = 20;
/// The minimum number of ticks in one window. Each window wakes two threads and the server, at the
/// cost of many renewals.
const MIN_TICKS: u32 = 5;
/// The minimum number of groups in one window, whose holds were spread to the same place.
const MIN_GROUPS: usize = 8;

impl RenewalSchedule {
    /// Makes a schedule whose windows are counted from `origin`. `holds_per_script` holds fill one
    /// script.
    pub(crate) fn new(origin: Instant, tick: Duration, holds_per_script: usize) -> Self {
        Self { origin, tick, holds_per_script, spread: AtomicU64::new(0) }
    }

    /// Returns the instant from which windows are counted.
    pub(crate) fn origin(&self) -> Instant {
        self.origin
    }

    /// Returns when to renew a hold whose last request was sent at `sent_at`. `held` is the number
    /// of this client's holds on one server. `spreading` says whether the hold gets a new place in
    /// the interval.
    pub(crate) fn renew_at(
        &self,
        lease: Lease,
        sent_at: Instant,
        held: usize,
        spreading: Spreading,
    ) -> Instant {
        let interval = lease.renewal_interval(self.tick);
        let wait = match spreading {
            Spreading::Redistribute if held > self.holds_per_script => {
                let together = self.neighbours(interval, held);
                interval / 4 + self.next_part_of(interval / 4 * 3, together)
            }
            Spreading::Redistribute | Spreading::Retain => interval,
        };
        let due = sent_at + wait;
        if held <= 1 {
            return due;
        }
        let (_, into_turn) = self.window_of(due, interval, held);
        due.checked_sub(into_turn).map_or(due, |early| early.max(sent_at))
    }

    /// Decides whether a hold, renewed by a request sent at `sent_at`, retains its place. If so,
    /// the hold counts against `quota`, which begins anew with each window.
    pub(crate) fn spreading(
        &self,
        lease: Lease,
        sent_at: Instant,
        held: usize,
        quota: &mut WindowQuota,
    ) -> Spreading {
        let interval = lease.renewal_interval(self.tick);
        let (window, _) = self.window_of(sent_at, interval, held);
        if quota.window != Some(window) {
            *quota = WindowQuota { window: Some(window), left: self.quota(interval, held) };
        }
        match quota.left.checked_sub(1) {
            Some(left) => {
                quota.left = left;
                Spreading::Retain
            }
            None => Spreading::Redistribute,
        }
    }

    /// Returns how many holds of one window may retain their places: a quarter more than an evenly
    /// spread window carries, but at least one script.
    fn quota(&self, interval: Duration, held: usize) -> usize {
        let average = self.average(interval, held);
        (average + average / 4).max(self.holds_per_script)
    }

    /// Returns how many consecutively spread holds get the same place: a script at most, and few
    /// enough for windows of equal size. Such holds are mostly neighbours in memory, which makes a
    /// script cheaper for the server.
    fn neighbours(&self, interval: Duration, held: usize) -> usize {
        (self.average(interval, held) / MIN_GROUPS).clamp(1, self.holds_per_script.max(1))
    }

    /// Returns the number of holds in each window if all holds are spread evenly.
    fn average(&self, interval: Duration, held: usize) -> usize {
        let windows = nanos(interval) / nanos(self.window(interval, held)).max(1);
        held / usize::try_from(windows).unwrap_or(usize::MAX).max(1)
    }

    /// Returns the number of the window that contains `instant`, and the time since the window's
    /// start.
    fn window_of(&self, instant: Instant, interval: Duration, held: usize) -> (u64, Duration) {
        let window = nanos(self.window(interval, held)).max(1);
        let nanos = nanos(instant.saturating_duration_since(self.origin));
        (nanos / window, Duration::from_nanos(nanos % window))
    }

    /// Returns the length of a window in which `held` holds fill a script to four fifths, within
    /// the limits. The last fifth is room for chance arrivals.
    fn window(&self, interval: Duration, held: usize) -> Duration {
        let held = u32::try_from(held.max(1)).unwrap_or(u32::MAX);
        let mostly_full =
            u32::try_from(self.holds_per_script - self.holds_per_script / 5).unwrap_or(u32::MAX);
        let fills_a_script = interval.saturating_mul(mostly_full) / held;
        let longest = interval / MIN_WINDOWS;
        let window = fills_a_script.max(self.tick * MIN_TICKS).min(longest);
        // Whole ticks: a window which began between two ticks would be late by the remainder.
        let ticks = nanos(window) / nanos(self.tick).max(1);
        if ticks == 0 { window } else { Duration::from_nanos(nanos(self.tick) * ticks) }
    }

    /// Returns the next part of `whole` from a sequence that stays evenly spread at any length.
    /// Every `together` consecutive calls return the same part.
    fn next_part_of(&self, whole: Duration, together: usize) -> Duration {
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        // Relaxed: each number is drawn once, and the order does not matter.
        let number = self.spread.fetch_add(1, Ordering::Relaxed) / together.max(1) as u64;
        let part = u128::from(number.wrapping_mul(GOLDEN));
        let nanos = (whole.as_nanos() * part) >> u64::BITS;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
    }
}

/// Returns the nanoseconds of `duration`; saturates after 584 years.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::model::clock::origin;

    const TICK: Duration = Duration::from_millis(10);

    fn lease(millis: u64) -> Lease {
        Lease::new(Duration::from_millis(millis)).unwrap()
    }

    /// The number of holds in each tick, when `count` that were acquired at one instant are
    /// scheduled for the `periods`th time.
    fn windows(count: usize, lease: Lease, periods: usize) -> BTreeMap<u128, usize> {
        let origin = origin();
        let schedule = RenewalSchedule::new(origin, TICK, 25);
        let mut sent: Vec<Instant> = vec![origin; count];
        for period in 0..periods {
            let spreading = if period == 0 { Spreading::Redistribute } else { Spreading::Retain };
            for sent_at in &mut sent {
                *sent_at = schedule.renew_at(lease, *sent_at, count, spreading);
            }
        }
        sent.into_iter().fold(BTreeMap::new(), |mut windows, due| {
            *windows.entry((due - origin).as_nanos() / TICK.as_nanos()).or_default() += 1;
            windows
        })
    }

    #[test]
    fn window_load_is_at_most_twice_the_average_or_a_script() {
        for count in [2, 25, 26, 100, 1000, 10_000, 100_000] {
            for millis in [3000, 30_000] {
                let lease = lease(millis);
                let interval = lease.renewal_interval(TICK);
                let schedule = RenewalSchedule::new(origin(), TICK, 25);
                let of_a_window = schedule.window(interval, count);
                let average = count as u128 * of_a_window.as_nanos() / interval.as_nanos();
                let max = windows(count, lease, 2).into_values().max().unwrap();
                assert!(max as u128 <= (2 * average).max(25), "{max} of {count}, {average}");
            }
        }
    }

    #[test]
    fn a_single_hold_is_renewed_at_the_end_of_its_interval() {
        let origin = origin();
        let schedule = RenewalSchedule::new(origin, TICK, 25);
        let due = schedule.renew_at(lease(30_000), origin, 1, Spreading::Redistribute);
        assert_eq!(due - origin, Duration::from_millis(9980));
    }

    #[test]
    fn a_few_that_are_due_soon_after_each_other_are_batched() {
        let origin = origin();
        let schedule = RenewalSchedule::new(origin, TICK, 25);
        // A twentieth of the interval is 499 ms.
        let dues: Vec<Instant> = (0..20)
            .map(|number| {
                let sent_at = origin + TICK * number;
                schedule.renew_at(lease(30_000), sent_at, 20, Spreading::Retain)
            })
            .collect();
        assert!(dues.windows(2).all(|pair| pair[0] == pair[1]), "{dues:?}");
    }

    #[test]
    fn among_many_a_script_of_neighbours_is_renewed_in_one_turn() {
        let origin = origin();
        for (held, together) in [(100, 1), (10_000, 6), (100_000, 25), (1_000_000, 25)] {
            let schedule = RenewalSchedule::new(origin, TICK, 25);
            let due = || schedule.renew_at(lease(30_000), origin, held, Spreading::Redistribute);
            let dues: Vec<Instant> = (0..together * 10).map(|_| due()).collect();
            let groups: Vec<usize> =
                dues.chunk_by(|one, next| one == next).map(<[Instant]>::len).collect();
            assert_eq!(groups, vec![together; 10], "of {held}");
        }
    }

    #[test]
    fn a_turn_starts_at_a_tick_however_many_are_held() {
        let origin = origin();
        let schedule = RenewalSchedule::new(origin, TICK, 25);
        for held in [2, 30, 700, 1300, 7000, 100_000] {
            for spreading in [Spreading::Retain, Spreading::Redistribute] {
                let sent_at = origin + Duration::from_micros(12_345_678);
                let due = schedule.renew_at(lease(30_000), sent_at, held, spreading) - origin;
                assert_eq!(due.as_nanos() % TICK.as_nanos(), 0, "of {held}: {due:?}");
            }
        }
    }

    #[test]
    fn only_the_quota_of_a_turn_keeps_its_place() {
        let origin = origin();
        let schedule = RenewalSchedule::new(origin, TICK, 25);
        let mut quota = WindowQuota::default();
        for (held, max) in [(1, 25), (25, 25), (1000, 25), (10_000, 62), (100_000, 627)] {
            // Two windows one after the other, with an hour between them.
            for start in [origin, origin + Duration::from_secs(3600)] {
                let kept = (0..1000)
                    .map(|_| schedule.spreading(lease(30_000), start, held, &mut quota))
                    .filter(|spreading| *spreading == Spreading::Retain)
                    .count();
                assert_eq!(kept, max, "of {held}");
            }
        }
    }

    proptest! {
        #[test]
        fn renewal_is_due_after_sending_and_within_a_third_of_the_lease(
            millis in 100_u64..=3_153_600_000_000,
            after in 0_u64..1_000_000_000_000,
            held in 1_usize..200_000,
            redistribute: bool,
        ) {
            let origin = origin();
            let (lease, sent_at) = (lease(millis), origin + Duration::from_nanos(after));
            let schedule = RenewalSchedule::new(origin, TICK, 25);
            let spreading = if redistribute { Spreading::Redistribute } else { Spreading::Retain };
            let due = schedule.renew_at(lease, sent_at, held, spreading);
            prop_assert!(due >= sent_at);
            prop_assert!(due <= sent_at + lease.duration() / 3);
        }
    }
}
