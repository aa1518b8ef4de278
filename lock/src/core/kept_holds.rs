//! A count of the released holds whose keys stay on the server for a while. Pure: time is an
//! argument.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

/// The ends of the kept keys, the earliest end first.
#[derive(Debug, Default)]
pub(crate) struct KeptHolds(BinaryHeap<Reverse<Instant>>);

/// The largest count. Each end takes 16 bytes.
const MAX_COUNTED: usize = 65_536;

impl KeptHolds {
    /// Counts a key that stays until `end`, unless `end` is over or the largest count is reached.
    pub(crate) fn add(&mut self, now: Instant, end: Instant) {
        self.remove_ended(now);
        if self.0.len() < MAX_COUNTED && now < end {
            self.0.push(Reverse(end));
        }
    }

    /// Returns how many of the counted keys stay beyond `now`.
    pub(crate) fn count(&mut self, now: Instant) -> usize {
        self.remove_ended(now);
        self.0.len()
    }

    /// Removes the ends that are over.
    fn remove_ended(&mut self, now: Instant) {
        while self.0.peek().is_some_and(|Reverse(end)| *end <= now) {
            self.0.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::clock::origin;

    #[test]
    fn they_are_counted_until_they_end_and_up_to_a_limit() {
        let (mut kept, now) = (KeptHolds::default(), origin());
        let second = Duration::from_secs(1);
        kept.add(now, now + second * 3);
        kept.add(now, now + second);
        kept.add(now + second * 2, now + second * 6);
        assert_eq!(kept.count(now + second * 2), 2);
        assert_eq!(kept.count(now + second * 3), 1);
        assert_eq!(kept.count(now + second * 6), 0);
        (0..=MAX_COUNTED).for_each(|_| kept.add(now, now + second));
        assert_eq!(kept.count(now), MAX_COUNTED);
    }
}
