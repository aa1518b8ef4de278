//! The servers of a red lock, and one try at a majority of them.

use std::sync::Arc;
use std::time::Duration;

use hashed_wheel::Parker;

use crate::call::{Attempts, is_cancelled, park};
use crate::crew::Crew;
use crate::error::Error;
use crate::owner::Holder;
use crate::part::Part;
use crate::red_guard::RedGuard;
use crate::round::Round;
use crate::wait::Until;

/// The servers, and who asks them.
#[derive(Clone)]
pub(crate) struct Team {
    pub(crate) parts: Arc<[Part]>,
    pub(crate) quorum: usize,
    pub(crate) crew: Arc<Crew>,
}

/// With two servers, neither may be away: that is a multi-lock, at twice the risk.
const FEWEST: usize = 3;

/// A try that is begun just before a deadline has at least this long, so that a short wait is not an error.
const SHORTEST_TRY: Duration = Duration::from_millis(10);

/// A release that is begun when the time is over has this long, as most are answered in it.
const LEAST_FOR_A_RELEASE: Duration = Duration::from_millis(50);

/// What one try came to.
pub(crate) enum Tried<T> {
    Granted(RedGuard<T>),
    /// Others hold too many of the parts.
    Busy,
    /// Too many servers have failed.
    Failed(Error),
}

impl Team {
    pub(crate) fn new(mut parts: Vec<Part>) -> Result<Self, Error> {
        let wrong = |reason| Err(Error::InvalidSetting { setting: "red_lock", reason });
        if parts.len() < FEWEST {
            return wrong(format!("{} servers are fewer than {FEWEST}", parts.len()));
        }
        for (place, part) in parts.iter().enumerate() {
            if parts.iter().skip(place + 1).any(|other| other.machine() == part.machine()) {
                return wrong(format!("the server {} is there twice", part.machine()));
            }
        }
        for part in &mut parts {
            // One that does not answer counts as one that does not grant; the next round is another try.
            part.plan.attempts = Attempts::One;
        }
        // A client that was shut down is a server that fails: another's clock does as well.
        let clock = parts.iter().map(Part::clock).reduce(Result::or).ok_or_else(none)??;
        let crew = Arc::new(Crew::new(parts.len(), clock));
        Ok(Self { quorum: parts.len() / 2 + 1, parts: parts.into(), crew })
    }

    /// Asks every server once. Ends soon after the deadline.
    pub(crate) fn attempt<T>(
        &self,
        crew: &Arc<Crew>,
        limit: Duration,
        until: Until<'_>,
    ) -> Result<Tried<T>, Error> {
        let Until { deadline, cancel } = until;
        if is_cancelled(cancel) {
            return Err(self.cancelled());
        }
        let round = Arc::new(Round::new(self.parts.len(), self.quorum));
        let start = crew.clock().now();
        let cut_off = deadline.map(|deadline| deadline.max(start + SHORTEST_TRY));
        // Whoever waits here is who holds, and not the threads that ask.
        let caller = Holder::current_thread();
        for (place, part) in self.parts.iter().enumerate() {
            let holder = part.owner.clone().unwrap_or_else(|| caller.clone());
            crew.acquire(place, &self.parts, holder, &round, limit);
        }
        let mut look_at = start + limit;
        while !round.is_decided() && !is_cancelled(cancel) {
            let now = crew.clock().now();
            if cut_off.is_some_and(|cut_off| cut_off <= now) {
                break;
            }
            if look_at <= now {
                match round.look_again_at(now, limit, &crew.stuck(limit)) {
                    Some(later) => look_at = later,
                    None => break,
                }
            }
            let end = cut_off.map_or(look_at, |cut_off| cut_off.min(look_at));
            park(crew.clock(), &round.parker, Some(end), cancel);
        }
        if round.is_granted() {
            let (crew, parts) = (Arc::clone(crew), Arc::clone(&self.parts));
            return Ok(Tried::Granted(RedGuard::new(round, crew, parts, self.quorum, limit)));
        }
        let was_cancelled = !round.is_decided() && is_cancelled(cancel);
        let (grips, mut errors, silent) = round.close();
        // A majority had granted it, and it was too late.
        let late = grips.len() >= self.quorum;
        let lost = late.then(|| grips.values().find_map(|grip| grip.check().err())).flatten();
        // Who does not want to wait any more does not wait for releases.
        let end = if was_cancelled { Some(crew.clock().now()) } else { deadline };
        let end = end.map(|end| end.max(crew.clock().now() + LEAST_FOR_A_RELEASE));
        crew.let_go(grips, self.quorum, limit, end);
        if was_cancelled {
            return Err(self.cancelled());
        }
        if let Some(lost) = lost {
            return Ok(Tried::Failed(lost));
        }
        errors.extend((0..silent).map(|_| Error::OutcomeUnknown {
            operation: "acquire",
            reason: format!("no answer within {limit:?}"),
        }));
        if errors.len() + self.quorum <= self.parts.len() {
            return Ok(Tried::Busy);
        }
        // If some may pass, the next try may find a majority without the others.
        let told = errors.iter().find(|error| error.is_retryable()).or(errors.first());
        Ok(told.map_or(Tried::Busy, |error| Tried::Failed(error.clone())))
    }

    /// For how long failures of too many servers are borne: as long as the most patient of the clients bears its own.
    pub(crate) fn patience(&self) -> Duration {
        self.parts.iter().filter_map(|part| part.patience().ok()).max().unwrap_or_default()
    }

    pub(crate) fn pause(
        &self,
        crew: &Crew,
        pause: Duration,
        until: Until<'_>,
    ) -> Result<(), Error> {
        let end = crew.clock().now() + pause;
        let end = until.deadline.map_or(end, |deadline| deadline.min(end));
        let parker = Parker::new();
        while crew.clock().now() < end {
            if is_cancelled(until.cancel) {
                return Err(self.cancelled());
            }
            park(crew.clock(), &parker, Some(end), until.cancel);
        }
        Ok(())
    }

    pub(crate) fn cancelled(&self) -> Error {
        Error::Cancelled { name: self.parts.first().map(Part::shown).unwrap_or_default() }
    }
}

fn none() -> Error {
    Error::InvalidSetting { setting: "red_lock", reason: "there are no servers".to_owned() }
}
