//! When a hold is renewed next. Pure; time is an argument.
//!
//! A renewal is due two ticks before a third of the lease, so that it is on the server before the third is over. That
//! is the latest; three things bring it forward.
//!
//! * *Spread.* Holds that were taken together, or renewed together after an outage, would stay together for ever. So the
//!   next renewal of each is put anywhere in the last three quarters of the interval, evenly: their places are the
//!   multiples of the golden ratio, of which any that follow each other lie apart. From then on each keeps its place.
//! * *Gathering.* A script for each hold costs the server and the client most. So a renewal is brought forward to the
//!   beginning of its *turn*, with all that are due in the same turn. A turn is as long as it takes to fill one script,
//!   a twentieth of the interval at most, and five ticks at least.
//! * A hold that is alone is not brought forward at all.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::lease::Lease;

/// How renewals are laid out in time.
#[derive(Debug)]
pub(super) struct Schedule {
    /// What turns are counted from.
    origin: Instant,
    tick: Duration,
    /// How many holds fill one script.
    batch: usize,
    /// How many were spread so far.
    spread: AtomicU64,
}

/// What is known of the moment at which a hold is put on the wheel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Company {
    /// So many others came with it that they are to be spread.
    Crowd,
    /// It keeps its place.
    Few,
}

/// The places that are left in the turn in which renewals were sent last.
#[derive(Debug, Default)]
pub(super) struct Places {
    turn: Option<u64>,
    left: usize,
}

/// The fewest turns in one interval.
const TURNS: u32 = 20;
/// The fewest ticks in one turn. Each turn wakes two threads and the server, which costs as much as many renewals.
const TICKS: u32 = 5;

impl Schedule {
    pub(super) fn new(origin: Instant, tick: Duration, batch: usize) -> Self {
        Self { origin, tick, batch, spread: AtomicU64::new(0) }
    }

    pub(super) fn origin(&self) -> Instant {
        self.origin
    }

    /// When to renew a hold whose last request was sent at `sent_at`, if its server has `held` holds of the client's.
    pub(super) fn renew_at(
        &self,
        lease: Lease,
        sent_at: Instant,
        held: usize,
        company: Company,
    ) -> Instant {
        let interval = lease.renewal_interval(self.tick);
        let wait = match company {
            Company::Crowd if held > self.batch => {
                interval / 4 + self.next_part_of(interval / 4 * 3)
            }
            Company::Crowd | Company::Few => interval,
        };
        let due = sent_at + wait;
        if held <= 1 {
            return due;
        }
        let (_, into_turn) = self.turn_of(due, interval, held);
        due.checked_sub(into_turn).map_or(due, |early| early.max(sent_at))
    }

    /// Whether a hold that was renewed by a request sent at `sent_at` keeps its place, which is one of `places`.
    pub(super) fn company(
        &self,
        lease: Lease,
        sent_at: Instant,
        held: usize,
        places: &mut Places,
    ) -> Company {
        let interval = lease.renewal_interval(self.tick);
        let (turn, _) = self.turn_of(sent_at, interval, held);
        if places.turn != Some(turn) {
            *places = Places { turn: Some(turn), left: self.places(interval, held) };
        }
        match places.left.checked_sub(1) {
            Some(left) => {
                places.left = left;
                Company::Few
            }
            None => Company::Crowd,
        }
    }

    /// How many holds of one turn may keep their places: a quarter more than a turn carries if all are spread evenly, or
    /// one script.
    fn places(&self, interval: Duration, held: usize) -> usize {
        let turns = nanos(interval) / nanos(self.turn(interval, held)).max(1);
        let average = held / usize::try_from(turns).unwrap_or(usize::MAX).max(1);
        (average + average / 4).max(self.batch)
    }

    /// The number of the turn in which an instant lies, and how far into it.
    fn turn_of(&self, instant: Instant, interval: Duration, held: usize) -> (u64, Duration) {
        let turn = nanos(self.turn(interval, held)).max(1);
        let nanos = nanos(instant.saturating_duration_since(self.origin));
        (nanos / turn, Duration::from_nanos(nanos % turn))
    }

    /// How long a turn is. A script that is four fifths full has room for those that come by chance.
    fn turn(&self, interval: Duration, held: usize) -> Duration {
        let held = u32::try_from(held.max(1)).unwrap_or(u32::MAX);
        let mostly_full = u32::try_from(self.batch - self.batch / 5).unwrap_or(u32::MAX);
        let fills_a_script = interval.saturating_mul(mostly_full) / held;
        let longest = interval / TURNS;
        let turn = fills_a_script.max(self.tick * TICKS).min(longest);
        // Whole ticks: a turn that began between two would be late by the rest.
        let ticks = nanos(turn) / nanos(self.tick).max(1);
        if ticks == 0 { turn } else { Duration::from_nanos(nanos(self.tick) * ticks) }
    }

    /// The next of a sequence of parts of `whole` that lie evenly in it, however many there are.
    fn next_part_of(&self, whole: Duration) -> Duration {
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        // Relaxed: each number is drawn once, and nothing hangs on the order.
        let number = self.spread.fetch_add(1, Ordering::Relaxed);
        let part = u128::from(number.wrapping_mul(GOLDEN));
        let nanos = (whole.as_nanos() * part) >> u64::BITS;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
    }
}

/// In 584 years it stops counting.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::clock::origin;

    const TICK: Duration = Duration::from_millis(10);

    fn lease(millis: u64) -> Lease {
        Lease::new(Duration::from_millis(millis)).unwrap()
    }

    /// The number of holds in each tick, when `count` that were taken at one instant are placed for the `period`th time.
    fn turns(count: usize, lease: Lease, periods: usize) -> BTreeMap<u128, usize> {
        let origin = origin();
        let schedule = Schedule::new(origin, TICK, 25);
        let mut sent: Vec<Instant> = vec![origin; count];
        for period in 0..periods {
            let company = if period == 0 { Company::Crowd } else { Company::Few };
            for sent_at in &mut sent {
                *sent_at = schedule.renew_at(lease, *sent_at, count, company);
            }
        }
        sent.into_iter().fold(BTreeMap::new(), |mut turns, due| {
            *turns.entry((due - origin).as_nanos() / TICK.as_nanos()).or_default() += 1;
            turns
        })
    }

    #[test]
    fn after_two_periods_no_turn_carries_more_than_twice_the_average_or_one_script() {
        for count in [2, 25, 26, 100, 1000, 10_000, 100_000] {
            for millis in [3000, 30_000] {
                let lease = lease(millis);
                let interval = lease.renewal_interval(TICK);
                let schedule = Schedule::new(origin(), TICK, 25);
                let of_a_turn = schedule.turn(interval, count);
                let average = count as u128 * of_a_turn.as_nanos() / interval.as_nanos();
                let most = turns(count, lease, 2).into_values().max().unwrap();
                assert!(most as u128 <= (2 * average).max(25), "{most} of {count}, {average}");
            }
        }
    }

    #[test]
    fn a_hold_alone_is_renewed_at_the_end_of_its_interval() {
        let origin = origin();
        let schedule = Schedule::new(origin, TICK, 25);
        let due = schedule.renew_at(lease(30_000), origin, 1, Company::Crowd);
        assert_eq!(due - origin, Duration::from_millis(9980));
    }

    #[test]
    fn a_few_that_fall_due_soon_after_each_other_are_gathered() {
        let origin = origin();
        let schedule = Schedule::new(origin, TICK, 25);
        // A twentieth of the interval is 499 ms.
        let dues: Vec<Instant> = (0..20)
            .map(|number| {
                let sent_at = origin + TICK * number;
                schedule.renew_at(lease(30_000), sent_at, 20, Company::Few)
            })
            .collect();
        assert!(dues.windows(2).all(|pair| pair[0] == pair[1]), "{dues:?}");
    }

    #[test]
    fn a_turn_begins_with_a_tick_however_many_are_held() {
        let origin = origin();
        let schedule = Schedule::new(origin, TICK, 25);
        for held in [2, 30, 700, 1300, 7000, 100_000] {
            for company in [Company::Few, Company::Crowd] {
                let sent_at = origin + Duration::from_micros(12_345_678);
                let due = schedule.renew_at(lease(30_000), sent_at, held, company) - origin;
                assert_eq!(due.as_nanos() % TICK.as_nanos(), 0, "of {held}: {due:?}");
            }
        }
    }

    #[test]
    fn of_what_is_renewed_in_one_turn_only_so_many_keep_their_places() {
        let origin = origin();
        let schedule = Schedule::new(origin, TICK, 25);
        let mut places = Places::default();
        for (held, most) in [(1, 25), (25, 25), (1000, 25), (10_000, 62), (100_000, 627)] {
            // Two turns one after the other, with an hour between them.
            for start in [origin, origin + Duration::from_secs(3600)] {
                let few = (0..1000)
                    .map(|_| schedule.company(lease(30_000), start, held, &mut places))
                    .filter(|company| *company == Company::Few)
                    .count();
                assert_eq!(few, most, "of {held}");
            }
        }
    }

    proptest! {
        #[test]
        fn a_renewal_is_never_later_than_the_interval_allows_and_never_before_the_last(
            millis in 100_u64..=3_153_600_000_000,
            after in 0_u64..1_000_000_000_000,
            held in 1_usize..200_000,
            crowd: bool,
        ) {
            let origin = origin();
            let (lease, sent_at) = (lease(millis), origin + Duration::from_nanos(after));
            let schedule = Schedule::new(origin, TICK, 25);
            let company = if crowd { Company::Crowd } else { Company::Few };
            let due = schedule.renew_at(lease, sent_at, held, company);
            prop_assert!(due >= sent_at);
            prop_assert!(due <= sent_at + lease.duration() / 3);
        }
    }
}
