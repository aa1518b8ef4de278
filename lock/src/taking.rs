//! One taking of several locks: one try for each, or round after round, and nothing is held for long while another is
//! waited for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashed_wheel::{Clock, Parker};

use crate::back_off::BackOff;
use crate::bundle::Bundle;
use crate::call::{is_cancelled, park};
use crate::error::Error;
use crate::grip::Grip;
use crate::part::{Part, shown};
use crate::plan::Wait;
use crate::wait::Until;

/// One call that takes all.
pub(crate) struct Taking<'a> {
    /// In the order in which everybody takes them.
    pub(crate) parts: &'a [Part],
    /// What the wait is measured by.
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) back_off: BackOff,
}

/// For how long a thread waits for further locks while it holds some.
const WHILE_HOLDING: Duration = Duration::from_millis(100);

/// The same in the end, if it is not others who hold them, but the answers that take longer. Nobody would ever have
/// many locks of a server that is far away.
const LONGEST_WHILE_HOLDING: Duration = Duration::from_secs(3);

/// A release that is begun when the time is over has this long, as most are answered in it.
const LEAST_FOR_A_RELEASE: Duration = Duration::from_millis(50);

/// Grips by the places of their locks.
type Taken = BTreeMap<usize, Grip>;

/// A lock that could not be had while others were held.
struct Missing {
    place: usize,
    /// Why, if it was not that somebody else has it.
    unanswered: Option<Error>,
}

impl Taking<'_> {
    /// One try for each.
    pub(crate) fn at_once(&self) -> Result<Option<Bundle>, Error> {
        let mut hand = Hand::new(self, None);
        for (place, part) in self.parts.iter().enumerate() {
            match part.take(Wait::No)? {
                Some(grip) => hand.keep(place, grip),
                None => return Ok(None),
            }
        }
        hand.into_bundle().map(Some)
    }

    /// Round after round: one lock is waited for with nothing held, and then the others. The one that was missing is
    /// the next to be waited for.
    pub(crate) fn by_rounds(&self, until: Until<'_>) -> Result<Option<Bundle>, Error> {
        let (mut bound, longest) = self.while_holding()?;
        let mut first = 0;
        let mut rounds = 0;
        loop {
            let mut hand = Hand::new(self, until.deadline);
            let wait = Wait::For(self.by_its_clock(first, until)?);
            let Some(grip) = self.part(first)?.take(wait)? else {
                return Ok(None);
            };
            hand.keep(first, grip);
            let Some(missing) = self.take_others(&mut hand, first, until, bound)? else {
                return hand.into_bundle().map(Some);
            };
            drop(hand);
            if until.deadline.is_some_and(|deadline| deadline <= self.clock.now()) {
                // If others had one of them before, that is why it took so long.
                return missing.unanswered.filter(|_| rounds == 0).map_or(Ok(None), Err);
            }
            if missing.unanswered.is_some() {
                bound = (bound * 2).min(longest);
            }
            first = self.first_of_its_key(missing.place);
            // The missing one is waited for at once, so that the moment in which it is free is not missed. Only where
            // that has not helped before, others are let go first.
            if rounds > 0 {
                self.pause(self.back_off.pause(rounds - 1), until)?;
            }
            rounds = rounds.saturating_add(1);
        }
    }

    /// Takes all but `first`, which is held, for `bound` at most. Answers which one could not be had.
    fn take_others(
        &self,
        hand: &mut Hand<'_>,
        first: usize,
        until: Until<'_>,
        bound: Duration,
    ) -> Result<Option<Missing>, Error> {
        let end = self.clock.now() + bound;
        let end = until.deadline.map_or(end, |deadline| deadline.min(end));
        for (place, part) in self.parts.iter().enumerate() {
            if place == first {
                continue;
            }
            let until = self.by_its_clock(place, Until { deadline: Some(end), ..until })?;
            // Against the order nobody is waited for, but for the answer.
            let wait = if place > first { Wait::For(until) } else { Wait::Once(until) };
            match part.take(wait) {
                Ok(Some(grip)) => hand.keep(place, grip),
                Ok(None) => return Ok(Some(Missing { place, unanswered: None })),
                Err(_) if is_cancelled(until.cancel) => return Err(self.cancelled()),
                // Its server is slow, or away. With nothing held there is more time to find out.
                Err(error) if error.is_retryable() => {
                    return Ok(Some(Missing { place, unanswered: Some(error) }));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// The bound for waiting while holding: at first, and in the end.
    fn while_holding(&self) -> Result<(Duration, Duration), Error> {
        let mut half = Duration::MAX;
        for part in self.parts {
            half = half.min(part.plan.lease()? / 2);
        }
        Ok((WHILE_HOLDING.min(half), LONGEST_WHILE_HOLDING.min(half)))
    }

    /// Who writes and reads one key begins with writing: nobody can become a writer while reading.
    fn first_of_its_key(&self, place: usize) -> usize {
        let Some(missing) = self.parts.get(place) else {
            return place;
        };
        self.parts.iter().position(|part| part.is_of_the_key_of(missing)).unwrap_or(place)
    }

    /// The same end by the clock of that lock's own client.
    fn by_its_clock<'b>(&self, place: usize, until: Until<'b>) -> Result<Until<'b>, Error> {
        let Some(deadline) = until.deadline else {
            return Ok(until);
        };
        let left = deadline.saturating_duration_since(self.clock.now());
        let deadline = self.part(place)?.clock()?.now().checked_add(left);
        Ok(Until { deadline, ..until })
    }

    fn part(&self, place: usize) -> Result<&Part, Error> {
        self.parts.get(place).ok_or_else(none)
    }

    fn pause(&self, pause: Duration, until: Until<'_>) -> Result<(), Error> {
        let end = self.clock.now() + pause;
        let end = until.deadline.map_or(end, |deadline| deadline.min(end));
        let parker = Parker::new();
        while self.clock.now() < end {
            if is_cancelled(until.cancel) {
                return Err(self.cancelled());
            }
            park(&*self.clock, &parker, Some(end), until.cancel);
        }
        Ok(())
    }

    fn cancelled(&self) -> Error {
        Error::Cancelled { name: shown(self.parts) }
    }
}

/// What one round has taken. Dropping it lets go of all, of several servers at the same time, and does not wait long
/// beyond the deadline.
struct Hand<'a> {
    taken: Taken,
    clock: &'a dyn Clock,
    deadline: Option<Instant>,
}

impl<'a> Hand<'a> {
    fn new(taking: &'a Taking<'_>, deadline: Option<Instant>) -> Self {
        Self { taken: Taken::new(), clock: &*taking.clock, deadline }
    }

    fn keep(&mut self, place: usize, grip: Grip) {
        // Each place is taken once, so nothing is let go here.
        drop(self.taken.insert(place, grip));
    }

    /// An error if what was granted first is not there any more when the last is. Then all are let go.
    fn into_bundle(mut self) -> Result<Bundle, Error> {
        self.taken.values().try_for_each(Grip::check)?;
        Ok(Bundle::new(std::mem::take(&mut self.taken)))
    }
}

impl Drop for Hand<'_> {
    fn drop(&mut self) {
        let bundle = Bundle::new(std::mem::take(&mut self.taken));
        match self.deadline {
            None => drop(bundle),
            Some(deadline) => {
                let end = deadline.max(self.clock.now() + LEAST_FOR_A_RELEASE);
                bundle.let_go_by(self.clock, end);
            }
        }
    }
}

/// What is wrong with an empty list.
pub(crate) fn none() -> Error {
    Error::InvalidSetting { setting: "multi_lock", reason: "there are no locks".to_owned() }
}
