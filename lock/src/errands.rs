//! What is to be asked of one server: what comes next, how many may be under way, and whether it is stuck.
//!
//! At first one is under way at a time. Whenever the server answers while others stand in line, it may be one more, up
//! to [`MOST`]; when it does not answer, it is one again. So a server that is far away is asked for several at the same
//! time, and one that hangs keeps few threads.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// So many are under way at a time at most.
const MOST: usize = 8;

/// So many acquires stand in line at most. Whoever comes then is refused, as if the lock were busy.
const ACQUIRES: usize = 256;

/// So many releases stand in line at most. What comes then is owed.
const RELEASES: usize = 4096;

/// Acquires and releases.
#[derive(Debug)]
pub(crate) struct Errands<A, R> {
    acquires: VecDeque<A>,
    releases: VecDeque<R>,
    under_way: Vec<UnderWay>,
    /// How many may be under way.
    width: usize,
    threads: usize,
    number: u64,
}

#[derive(Debug)]
struct UnderWay {
    number: u64,
    since: Option<Instant>,
}

/// One that is taken out of the line.
#[derive(Debug)]
pub(crate) enum Errand<A, R> {
    Acquire(A),
    Release(R),
}

impl<A, R> Errands<A, R> {
    pub(crate) fn new() -> Self {
        Self {
            acquires: VecDeque::new(),
            releases: VecDeque::new(),
            under_way: Vec::new(),
            width: 1,
            threads: 0,
            number: 0,
        }
    }

    pub(crate) fn has_room_for(&self, errand: &Errand<A, R>) -> bool {
        match errand {
            Errand::Acquire(_) => self.acquires.len() < ACQUIRES,
            Errand::Release(_) => self.releases.len() < RELEASES,
        }
    }

    /// Puts it in the line, if there [is room](Self::has_room_for).
    pub(crate) fn push(&mut self, errand: Errand<A, R>) {
        match errand {
            Errand::Acquire(acquire) => self.acquires.push_back(acquire),
            Errand::Release(release) => self.releases.push_back(release),
        }
    }

    /// What a thread does next, under a number: releases first, as others wait for them.
    pub(crate) fn next(&mut self) -> Option<(u64, Errand<A, R>)> {
        if self.under_way.len() >= self.width {
            return None;
        }
        let release = self.releases.pop_front().map(Errand::Release);
        let errand = release.or_else(|| self.acquires.pop_front().map(Errand::Acquire))?;
        self.number += 1;
        self.under_way.push(UnderWay { number: self.number, since: None });
        Some((self.number, errand))
    }

    pub(crate) fn begun(&mut self, number: u64, now: Instant) {
        if let Some(begun) = self.under_way.iter_mut().find(|other| other.number == number) {
            begun.since = Some(now);
        }
    }

    pub(crate) fn ended(&mut self, number: u64, answered: bool) {
        self.under_way.retain(|other| other.number != number);
        if !answered {
            self.width = 1;
        } else if !self.is_empty() {
            self.width = (self.width + 1).min(MOST);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.acquires.is_empty() && self.releases.is_empty()
    }

    /// Whether the server seems to hang: something is under way, and all of it has been for `limit`.
    pub(crate) fn is_stuck(&self, now: Instant, limit: Duration) -> bool {
        let hangs = |other: &UnderWay| other.since.is_some_and(|since| since + limit <= now);
        !self.under_way.is_empty() && self.under_way.iter().all(hangs)
    }

    /// Whether there is something to do, and nobody to do it.
    pub(crate) fn wants_a_thread(&self) -> bool {
        let room = self.under_way.len() < self.width;
        room && !self.is_empty() && self.threads == self.under_way.len()
    }

    pub(crate) fn has_threads(&self) -> bool {
        self.threads > 0
    }

    pub(crate) fn thread_began(&mut self) {
        self.threads += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::origin;

    const LIMIT: Duration = Duration::from_millis(100);

    fn in_line(acquires: usize) -> Errands<usize, usize> {
        let mut errands = Errands::new();
        for number in 0..acquires {
            errands.push(Errand::Acquire(number));
        }
        errands
    }

    fn take(errands: &mut Errands<usize, usize>) -> Option<u64> {
        errands.next().map(|(number, _)| number)
    }

    #[test]
    fn answers_make_room_for_more_and_silence_takes_it_away() {
        let mut errands = in_line(100);
        let mut under_way = Vec::new();
        for most in [1, 2, 4, 8, 8] {
            while let Some(number) = take(&mut errands) {
                under_way.push(number);
            }
            assert_eq!(under_way.len(), most);
            for number in under_way.drain(..) {
                errands.ended(number, true);
            }
        }
        let (one, other) = (take(&mut errands).unwrap(), take(&mut errands).unwrap());
        errands.ended(one, false);
        assert_eq!(take(&mut errands), None);
        errands.ended(other, false);
        assert!(take(&mut errands).is_some());
        assert_eq!(take(&mut errands), None);
    }

    #[test]
    fn who_has_no_line_is_asked_for_one_at_a_time() {
        let mut errands = Errands::<usize, usize>::new();
        for number in 0..10 {
            errands.push(Errand::Acquire(number));
            let number = take(&mut errands).unwrap();
            errands.ended(number, true);
        }
        errands.push(Errand::Acquire(0));
        errands.push(Errand::Acquire(1));
        assert!(take(&mut errands).is_some());
        assert!(take(&mut errands).is_none());
    }

    #[test]
    fn releases_come_first_and_have_room_when_acquires_have_none() {
        let mut errands = in_line(ACQUIRES);
        assert!(!errands.has_room_for(&Errand::Acquire(0)));
        assert!(errands.has_room_for(&Errand::Release(7)));
        errands.push(Errand::Release(7));
        assert!(matches!(errands.next(), Some((_, Errand::Release(7)))));
    }

    #[test]
    fn it_is_stuck_when_all_that_is_under_way_is_old() {
        let (start, mut errands) = (origin(), in_line(2));
        assert!(!errands.is_stuck(start + LIMIT, LIMIT));
        let number = take(&mut errands).unwrap();
        assert!(!errands.is_stuck(start + LIMIT, LIMIT));
        errands.begun(number, start);
        assert!(!errands.is_stuck(start, LIMIT));
        assert!(errands.is_stuck(start + LIMIT, LIMIT));
        errands.ended(number, false);
        assert!(!errands.is_stuck(start + LIMIT, LIMIT));
    }

    #[test]
    fn one_that_hangs_is_enough_although_more_might_be_under_way() {
        let (start, mut errands) = (origin(), in_line(2));
        let first = take(&mut errands).unwrap();
        errands.ended(first, true);
        let second = take(&mut errands).unwrap();
        errands.begun(second, start);
        assert!(errands.is_stuck(start + LIMIT, LIMIT));
    }
}
