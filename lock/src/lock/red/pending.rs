//! The servers that have not answered, and how long to wait for them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::{Duration, Instant};

/// By position: when the request was sent, or `None` while it is queued.
#[derive(Debug)]
pub(crate) struct PendingReplies(BTreeMap<usize, Option<Instant>>);

impl PendingReplies {
    pub(crate) fn new(positions: impl IntoIterator<Item = usize>) -> Self {
        Self(positions.into_iter().map(|position| (position, None)).collect())
    }

    /// Its request is sent now. Until then it was queued.
    pub(crate) fn sent(&mut self, position: usize, now: Instant) {
        if let Some(sent_at) = self.0.get_mut(&position) {
            *sent_at = Some(now);
        }
    }

    /// Adds a server. False if it is pending already.
    pub(crate) fn add(&mut self, position: usize) -> bool {
        match self.0.entry(position) {
            Entry::Occupied(_) => false,
            Entry::Vacant(entry) => {
                entry.insert(None);
                true
            }
        }
    }

    pub(crate) fn answered(&mut self, position: usize) {
        self.0.remove(&position);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// When to check again, if at least `needed` servers may still answer. A server may answer for
    /// `timeout` from when its request was sent; while the request is queued, as long as that queue
    /// is not `stuck`.
    pub(crate) fn next_check(
        &self,
        now: Instant,
        timeout: Duration,
        needed: usize,
        stuck: &[bool],
    ) -> Option<Instant> {
        let may_answer = |(position, sent_at): (&usize, &Option<Instant>)| match sent_at {
            Some(sent_at) => Some(*sent_at + timeout).filter(|end| *end > now),
            None => (stuck.get(*position) != Some(&true)).then(|| now + timeout),
        };
        let ends: Vec<Instant> = self.0.iter().filter_map(may_answer).collect();
        ends.iter().min().copied().filter(|_| ends.len() >= needed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::clock::origin;

    const TIMEOUT: Duration = Duration::from_millis(100);

    #[test]
    fn the_timeout_counts_from_when_the_request_was_sent() {
        let (start, mut pending) = (origin(), PendingReplies::new(0..2));
        pending.sent(0, start);
        let late = start + TIMEOUT;
        assert_eq!(pending.next_check(late, TIMEOUT, 1, &[false; 2]), Some(late + TIMEOUT));
        assert_eq!(pending.next_check(late, TIMEOUT, 2, &[false; 2]), None);
        pending.sent(1, late);
        assert_eq!(pending.next_check(late, TIMEOUT, 1, &[false; 2]), Some(late + TIMEOUT));
        assert_eq!(pending.next_check(late + TIMEOUT, TIMEOUT, 1, &[false; 2]), None);
    }

    #[test]
    fn a_stuck_queue_is_not_waited_for() {
        let (start, mut pending) = (origin(), PendingReplies::new(0..2));
        assert_eq!(pending.next_check(start, TIMEOUT, 1, &[true; 2]), None);
        pending.sent(0, start);
        assert_eq!(pending.next_check(start, TIMEOUT, 1, &[true; 2]), Some(start + TIMEOUT));
        pending.answered(0);
        assert_eq!(pending.len(), 1);
    }
}
