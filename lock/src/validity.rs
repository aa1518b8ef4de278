//! Until when a hold may be believed, and that it never comes back: one atomic word.
//!
//! Once somebody has been told that the hold is over, a renewal that is answered late must not bring it back. So the
//! word is a deadline or [`ENDED`]; whoever sees the deadline passed makes it `ENDED` before saying so, and an
//! extension replaces a deadline but never `ENDED`. Time is an argument.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A deadline that can be moved until it has been seen to pass, or has been ended.
#[derive(Debug)]
pub(crate) struct Validity {
    /// The instant that the word counts from.
    origin: Instant,
    /// Nanoseconds after the origin, or `ENDED`.
    until: AtomicU64,
}

const ENDED: u64 = 0;

impl Validity {
    /// Valid until `until`. `origin` is any instant that is not after it.
    pub(crate) fn new(origin: Instant, until: Instant) -> Self {
        let validity = Self { origin, until: AtomicU64::new(ENDED) };
        validity.until.store(validity.word(until), Ordering::Release);
        validity
    }

    /// Whether it is valid at `now`. Once this has answered no, it never answers yes again.
    pub(crate) fn holds(&self, now: Instant) -> bool {
        !self.remaining(now).is_zero()
    }

    /// How long it is still valid; zero once it is over.
    pub(crate) fn remaining(&self, now: Instant) -> Duration {
        loop {
            // Acquire, here and below, and release at the stores: what the renewer did before it extended is seen by
            // whoever believes the extension.
            let seen = self.until.load(Ordering::Acquire);
            if seen == ENDED {
                return Duration::ZERO;
            }
            let left = self.instant(seen).saturating_duration_since(now);
            if !left.is_zero() {
                return left;
            }
            // A failed exchange means that it was extended or ended meanwhile: look again.
            if self.until.compare_exchange(seen, ENDED, Ordering::AcqRel, Ordering::Acquire).is_ok()
            {
                return Duration::ZERO;
            }
        }
    }

    /// Moves the deadline to `until` if that is later. Answers whether it is valid: an extension that comes at or
    /// after the end changes nothing.
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

    /// Ends it. Answers whether it was valid until this moment.
    pub(crate) fn end(&self, now: Instant) -> bool {
        let seen = self.until.swap(ENDED, Ordering::AcqRel);
        seen != ENDED && self.instant(seen) > now
    }

    /// The instant that it was made with.
    pub(crate) fn origin(&self) -> Instant {
        self.origin
    }

    /// The deadline, unless it is over.
    pub(crate) fn until(&self) -> Option<Instant> {
        let seen = self.until.load(Ordering::Acquire);
        (seen != ENDED).then(|| self.instant(seen))
    }

    fn word(&self, instant: Instant) -> u64 {
        let nanos = instant.saturating_duration_since(self.origin).as_nanos();
        // A hundred years are 3.2 * 10^18 ns; the word holds 1.8 * 10^19. Zero means ended, so one is the least.
        u64::try_from(nanos).unwrap_or(u64::MAX).max(ENDED + 1)
    }

    fn instant(&self, word: u64) -> Instant {
        self.origin + Duration::from_nanos(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::origin;

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
