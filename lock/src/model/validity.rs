//! A deadline which never revives once seen to pass: one atomic word.
//!
//! Once a caller has learned of the end of a hold, a late reply to a renewal must not revive the
//! hold. So the word is a deadline or [`ENDED`]. A thread which sees the deadline passed stores
//! `ENDED` before returning, and an extension replaces a deadline but never `ENDED`. Time is an
//! argument.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A deadline which can be extended until seen to pass, or ended.
#[derive(Debug)]
pub(crate) struct Validity {
    /// The instant from which the word counts.
    origin: Instant,
    /// Nanoseconds since the origin, or `ENDED`.
    until: AtomicU64,
}

/// The word after the end.
const ENDED: u64 = 0;

impl Validity {
    /// Makes a validity until `until`. `origin` is any instant not after `until`.
    pub(crate) fn new(origin: Instant, until: Instant) -> Self {
        let validity = Self { origin, until: AtomicU64::new(ENDED) };
        validity.until.store(validity.word(until), Ordering::Release);
        validity
    }

    /// Whether `now` is before the deadline. After the first `false`, all later results are
    /// `false`.
    pub(crate) fn holds(&self, now: Instant) -> bool {
        !self.remaining(now).is_zero()
    }

    /// Returns the remaining time; zero after the end. A result of zero ends the validity.
    pub(crate) fn remaining(&self, now: Instant) -> Duration {
        loop {
            // Acquire, here and below, and release at the stores: a thread which trusts an
            // extension sees the renewing thread's earlier writes.
            let seen = self.until.load(Ordering::Acquire);
            if seen == ENDED {
                return Duration::ZERO;
            }
            let left = self.instant(seen).saturating_duration_since(now);
            if !left.is_zero() {
                return left;
            }
            // After a failed exchange, another thread has extended or ended the validity: load
            // again.
            if self.until.compare_exchange(seen, ENDED, Ordering::AcqRel, Ordering::Acquire).is_ok()
            {
                return Duration::ZERO;
            }
        }
    }

    /// Extends the deadline to `until` if later. Returns whether the validity still holds: an
    /// extension at or after the end changes nothing.
    pub(crate) fn extend(&self, now: Instant, until: Instant) -> bool {
        let wanted = self.word(until);
        loop {
            if !self.holds(now) {
                return false;
            }
            let seen = self.until.load(Ordering::Acquire);
            if seen == ENDED {
                return false;
            }
            if seen >= wanted
                || self
                    .until
                    .compare_exchange(seen, wanted, Ordering::AcqRel, Ordering::Acquire)
                    .is_ok()
            {
                return true;
            }
        }
    }

    /// Ends the validity. Returns whether `now` was before the deadline.
    pub(crate) fn end(&self, now: Instant) -> bool {
        let seen = self.until.swap(ENDED, Ordering::AcqRel);
        seen != ENDED && self.instant(seen) > now
    }

    /// Returns the origin given to `new`.
    pub(crate) fn origin(&self) -> Instant {
        self.origin
    }

    /// Returns the deadline, or `None` after the end.
    pub(crate) fn until(&self) -> Option<Instant> {
        let seen = self.until.load(Ordering::Acquire);
        (seen != ENDED).then(|| self.instant(seen))
    }

    /// Converts an instant into a word, which is never `ENDED`.
    fn word(&self, instant: Instant) -> u64 {
        let nanos = instant.saturating_duration_since(self.origin).as_nanos();
        // A hundred years are 3.2 * 10^18 ns; the word holds 1.8 * 10^19. Zero means ended, so the
        // minimum is 1.
        u64::try_from(nanos).unwrap_or(u64::MAX).max(ENDED + 1)
    }

    /// Converts a word into an instant.
    fn instant(&self, word: u64) -> Instant {
        self.origin + Duration::from_nanos(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::clock::origin;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn once_seen_to_have_passed_it_never_comes_back() {
        let start = origin();
        let validity = Validity::new(start, start + SECOND);
        assert!(validity.holds(start));
        assert!(!validity.holds(start + SECOND));
        assert!(!validity.extend(start, start + SECOND * 9));
        assert!(!validity.holds(start));
    }

    #[test]
    fn an_extension_that_nobody_missed_counts() {
        let start = origin();
        let validity = Validity::new(start, start + SECOND);
        assert!(validity.extend(start, start + SECOND * 3));
        assert!(validity.holds(start + SECOND * 2));
        assert_eq!(validity.remaining(start + SECOND * 2), SECOND);
    }

    #[test]
    fn an_extension_never_shortens() {
        let start = origin();
        let validity = Validity::new(start, start + SECOND * 3);
        assert!(validity.extend(start, start + SECOND));
        assert!(validity.holds(start + SECOND * 2));
    }

    #[test]
    fn an_extension_after_the_end_is_refused_even_if_nobody_looked() {
        let start = origin();
        let validity = Validity::new(start, start + SECOND);
        assert!(!validity.extend(start + SECOND, start + SECOND * 9));
    }

    #[test]
    fn ending_says_whether_it_was_valid_until_then() {
        let start = origin();
        assert!(Validity::new(start, start + SECOND).end(start));
        let late = Validity::new(start, start + SECOND);
        assert!(!late.end(start + SECOND));
        assert!(!late.end(start));
        assert!(!late.holds(start));
    }
}
