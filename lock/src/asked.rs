//! The servers that were asked and have not answered, and for how long they are worth waiting for.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// By their places: when asking was begun, if it was.
#[derive(Debug)]
pub(crate) struct Asked(BTreeMap<usize, Option<Instant>>);

impl Asked {
    pub(crate) fn new(places: impl IntoIterator<Item = usize>) -> Self {
        Self(places.into_iter().map(|place| (place, None)).collect())
    }

    /// It is asked now. Until then it stood in line.
    pub(crate) fn begun(&mut self, place: usize, now: Instant) {
        if let Some(begun) = self.0.get_mut(&place) {
            *begun = Some(now);
        }
    }

    pub(crate) fn answered(&mut self, place: usize) {
        self.0.remove(&place);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// When to look again, if at least `needed` of them may still answer: one that is asked, for `limit` from its
    /// beginning; one that stands in line, as long as its line is not `stuck`.
    pub(crate) fn look_again_at(
        &self,
        now: Instant,
        limit: Duration,
        needed: usize,
        stuck: &[bool],
    ) -> Option<Instant> {
        let may_answer = |(place, begun): (&usize, &Option<Instant>)| match begun {
            Some(begun) => Some(*begun + limit).filter(|end| *end > now),
            None => (stuck.get(*place) != Some(&true)).then(|| now + limit),
        };
        let ends: Vec<Instant> = self.0.iter().filter_map(may_answer).collect();
        ends.iter().min().copied().filter(|_| ends.len() >= needed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::origin;

    const LIMIT: Duration = Duration::from_millis(100);

    #[test]
    fn the_limit_counts_from_when_asking_was_begun() {
        let (start, mut asked) = (origin(), Asked::new(0..2));
        asked.begun(0, start);
        let late = start + LIMIT;
        assert_eq!(asked.look_again_at(late, LIMIT, 1, &[false; 2]), Some(late + LIMIT));
        assert_eq!(asked.look_again_at(late, LIMIT, 2, &[false; 2]), None);
        asked.begun(1, late);
        assert_eq!(asked.look_again_at(late, LIMIT, 1, &[false; 2]), Some(late + LIMIT));
        assert_eq!(asked.look_again_at(late + LIMIT, LIMIT, 1, &[false; 2]), None);
    }

    #[test]
    fn a_line_that_is_stuck_is_not_waited_for() {
        let (start, mut asked) = (origin(), Asked::new(0..2));
        assert_eq!(asked.look_again_at(start, LIMIT, 1, &[true; 2]), None);
        asked.begun(0, start);
        assert_eq!(asked.look_again_at(start, LIMIT, 1, &[true; 2]), Some(start + LIMIT));
        asked.answered(0);
        assert_eq!(asked.len(), 1);
    }
}
