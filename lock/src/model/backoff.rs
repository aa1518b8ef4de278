//! Pauses between tries of a waiter which no message wakes.

use std::time::Duration;

/// The pauses between the tries of a waiter, which double with each refusal.
///
/// Created by [`new`](Self::new), or by `default`: from 1 to 128 ms.
///
/// The first pause is the shortest, each further pause is twice as long up to the longest, and no
/// pause is longer than one second. A waiter sleeps for a random time between half of the pause and
/// the whole pause, to separate waiters that begin at the same moment. A backoff applies to waiters
/// that no message wakes: a [`spin_lock`](crate::Client::spin_lock), a
/// [`simple_lock`](crate::Client::simple_lock), a [`RedLock`](crate::RedLock), and the rounds of a
/// [`MultiLock`](crate::MultiLock). The idea is Redisson's (`LockOptions.ExponentialBackoff`).
///
/// ```
/// use std::time::Duration;
/// use wheellock::{Backoff, Client};
///
/// let patient = Backoff::new(Duration::from_millis(5), Duration::from_millis(250));
/// let lock = Client::in_memory().spin_lock("orders:42").with_backoff(patient);
/// # let _guard = lock.lock()?;
/// # Ok::<(), wheellock::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    shortest: Duration,
    longest: Duration,
}

/// The shortest pause. A shorter pause only loads the server.
const LEAST: Duration = Duration::from_millis(1);

/// The longest pause. A longer pause would leave the lock free for longer than users expect.
const MOST: Duration = Duration::from_secs(1);

impl Backoff {
    /// Creates a backoff with pauses from `shortest` to `longest`.
    ///
    /// A value below a millisecond counts as a millisecond, a value above a second as a second, and
    /// a `longest` below `shortest` as `shortest`.
    #[must_use]
    pub fn new(shortest: Duration, longest: Duration) -> Self {
        let shortest = shortest.max(LEAST);
        Self { shortest, longest: longest.max(shortest) }
    }

    /// Draws a pause after this many refusals.
    pub(crate) fn pause(self, refusals: u32) -> Duration {
        let doubled =
            2_u32.checked_pow(refusals).and_then(|times| self.shortest.checked_mul(times));
        let whole = doubled.map_or(self.longest, |pause| pause.min(self.longest)).min(MOST);
        whole.mul_f64(0.5 + fastrand::f64() / 2.0)
    }
}

impl Default for Backoff {
    /// Returns the pauses from 1 to 128 ms, as in Redisson.
    fn default() -> Self {
        Self::new(LEAST, Duration::from_millis(128))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pauses_of_the_same_number_differ() {
        let backoff = Backoff::default();
        let pauses: Vec<Duration> = (0..8).map(|_| backoff.pause(7)).collect();
        assert!(pauses.iter().any(|pause| *pause != pauses[0]), "{pauses:?}");
    }

    proptest! {
        #[test]
        fn a_pause_lies_between_half_and_whole_of_a_doubling_that_ends(
            shortest in 0_u64..5_000,
            longest in 0_u64..5_000,
            refusals: u32,
        ) {
            let (shortest, longest) = (Duration::from_millis(shortest), Duration::from_millis(longest));
            let backoff = Backoff::new(shortest, longest);
            let pause = backoff.pause(refusals);
            prop_assert!(pause >= shortest.clamp(LEAST, MOST) / 2);
            prop_assert!(pause <= longest.max(shortest).clamp(LEAST, MOST));
            if refusals == 0 {
                prop_assert!(pause <= shortest.clamp(LEAST, MOST));
            }
            if refusals > 20 {
                prop_assert!(pause >= longest.min(MOST) / 2);
            }
        }
    }
}
