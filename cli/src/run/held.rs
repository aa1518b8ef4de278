//! The hold of `run`: a lock of any of four kinds, a permit, or the run of a job's slot.
//!
//! Unless the arguments select another kind, the lock is fenced, so that there is a token. A fenced
//! lock has the keys and the channel of a plain lock. Any thread may release the hold, as the
//! release runs on a separate thread.

use std::time::{Duration, Instant};

use wheellock::crossbeam_channel::{Receiver, never};
use wheellock::{
    AnyThread, Client, Clock as _, Error, ExpirableSemaphore, JobRun, LostReason, OwnedGuard,
    Permit, Revocation, RunStart, SystemClock, Wait,
};

use crate::arguments::Run;

pub(crate) enum Held {
    Lock(OwnedGuard),
    Permit(Box<HeldPermit>),
    Slot(Box<JobRun<'static, AnyThread>>),
    /// The server cannot be reached, and the command runs without a lock.
    Nothing,
}

/// The outcome of an acquire.
pub(crate) enum Acquired {
    Held(Held),
    /// Another owner had the lock until the end of the wait.
    Busy,
    /// The slot has run.
    RanAlready,
    AttemptsUsedUp,
}

/// The rest of a wait used up by connecting.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// The shortest valid lease.
const SHORTEST_LEASE: Duration = Duration::from_millis(10);

/// A permit, released no earlier than `until`.
pub(crate) struct HeldPermit {
    permit: Permit,
    token: u64,
    semaphore: ExpirableSemaphore,
    until: Option<Instant>,
}

impl Held {
    /// Acquires the hold selected by the arguments. Waits until `limit`, or until a message to
    /// `interrupted`, which is [`Error::Cancelled`].
    pub(crate) fn acquire(
        client: &Client,
        run: &Run,
        limit: Option<Instant>,
        interrupted: &Receiver<()>,
    ) -> Result<Acquired, Error> {
        let wait = match limit {
            _ if run.is_one_try() => Wait::none(),
            // The rest of the wait after connecting. A wait of zero would be a single try without a
            // time limit.
            Some(limit) => {
                let left = limit.saturating_duration_since(SystemClock.now());
                Wait::at_most(left.max(SHORTEST_WAIT))
            }
            None => Wait::forever(),
        };
        let wait = wait.or_cancelled(interrupted);
        let lock = if let Some(slot) = &run.slot {
            let job = client.job(&run.name).with_max_attempts(run.retries.saturating_add(1));
            return Ok(match job.begin(slot, wait)? {
                RunStart::Begun(begun) => Acquired::Held(Self::Slot(Box::new(begun))),
                RunStart::RunningElsewhere => Acquired::Busy,
                RunStart::RanAlready => Acquired::RanAlready,
                RunStart::AttemptsUsedUp => Acquired::AttemptsUsedUp,
            });
        } else if let Some(permits) = run.permits {
            let held = acquire_permit(client, run, permits, wait)?;
            return Ok(held.map_or(Acquired::Busy, Acquired::Held));
        } else if run.fair {
            client.fair_lock(&run.name).sendable()
        } else if run.shared {
            client.read_write_lock(&run.name).read_lock().sendable()
        } else if run.exclusive {
            client.read_write_lock(&run.name).write_lock().sendable()
        } else {
            client.fenced_lock(&run.name).sendable()
        };
        let lock = match run.lease {
            Some(lease) => lock.with_lease(lease),
            None => lock,
        };
        let lock = lock.with_min_hold(run.min_hold.unwrap_or_default());
        let Some(guard) = lock.try_lock_with(wait)? else { return Ok(Acquired::Busy) };
        // Readers share a lock, so no reader's token is the newest.
        if !run.shared {
            guard.draw_token()?;
        }
        Ok(Acquired::Held(Self::Lock(guard)))
    }

    /// The guard, unless a permit or nothing is held.
    fn guard(&self) -> Option<&OwnedGuard> {
        match self {
            Self::Lock(guard) => Some(guard),
            Self::Slot(run) => Some(run.guard()),
            Self::Permit(_) | Self::Nothing => None,
        }
    }

    /// The owner on the server. For a permit, the permit's id.
    pub(crate) fn owner(&self) -> Option<String> {
        match self {
            Self::Permit(held) => Some(held.permit.id().to_string()),
            _ => self.guard().map(|guard| guard.owner().to_owned()),
        }
    }

    /// The fencing token, if any.
    pub(crate) fn token(&self) -> Option<u64> {
        match self {
            Self::Slot(run) => Some(run.token()),
            // The token was drawn at the acquire of the permit.
            Self::Permit(held) => Some(held.token),
            _ => self.guard().and_then(OwnedGuard::token),
        }
    }

    /// The number of the attempt at a slot. `None` without a slot.
    pub(crate) fn attempt(&self) -> Option<u32> {
        match self {
            Self::Slot(run) => Some(run.attempt()),
            _ => None,
        }
    }

    /// A channel with a message once somebody asks for the lock. A permit cannot be asked for.
    pub(crate) fn revocation(&self) -> Receiver<Revocation> {
        self.guard().map_or_else(never, |guard| guard.revocation().clone())
    }

    /// The reason for a loss. `None` while the hold is certain.
    pub(crate) fn loss(&self) -> Option<LostReason> {
        let held = match self {
            Self::Lock(guard) => guard.check(),
            Self::Slot(run) => run.check(),
            Self::Nothing => Ok(()),
            Self::Permit(held) if held.permit.is_valid() => Ok(()),
            Self::Permit(held) => {
                let told = held.permit.lost().and_then(|lost| lost.try_recv().ok());
                return Some(told.unwrap_or(LostReason::Expired));
            }
        };
        match held {
            Ok(()) => None,
            Err(Error::Lost { reason, .. }) => Some(reason),
            Err(_) => Some(LostReason::Expired),
        }
    }

    /// The time for which the hold is certain. [`Duration::MAX`] if nothing is held.
    pub(crate) fn remaining(&self) -> Duration {
        match self {
            Self::Permit(held) => held.permit.remaining(),
            _ => self.guard().map_or(Duration::MAX, OwnedGuard::remaining),
        }
    }

    /// A channel with a message after a loss. The end of a permit's lease without renewal sends no
    /// message, and only [`remaining`](Self::remaining) shows this end.
    pub(crate) fn lost(&self) -> Receiver<LostReason> {
        match self {
            Self::Permit(held) => held.permit.lost().cloned().unwrap_or_else(never),
            _ => self.guard().map_or_else(never, |guard| guard.lost().clone()),
        }
    }

    /// Releases the hold. For a slot, the command's exit code `code` is recorded and decides
    /// whether the slot has run. [`Error::Lost`] if the hold was lost.
    pub(crate) fn release(self, code: u8) -> Result<(), Error> {
        match self {
            Self::Lock(guard) => guard.unlock(),
            Self::Permit(held) => held.release(),
            Self::Slot(run) => run.finish(code.into()),
            Self::Nothing => Ok(()),
        }
    }
}

impl HeldPermit {
    fn release(self) -> Result<(), Error> {
        let now = SystemClock.now();
        let Some(until) = self.until.filter(|until| *until > now + SHORTEST_LEASE) else {
            return self.permit.release();
        };
        let id = self.permit.into_id();
        // If the permit is gone, the release returns the error.
        if self.semaphore.update_lease(&id, until - now)? {
            Ok(())
        } else {
            self.semaphore.release(&id)
        }
    }
}

fn acquire_permit(
    client: &Client,
    run: &Run,
    permits: u32,
    wait: Wait<'_>,
) -> Result<Option<Held>, Error> {
    let semaphore = client.expirable_semaphore(&run.name);
    // The command line decides the number of permits, also if the number has changed since the
    // semaphore was made.
    if !semaphore.try_set_permits(permits)? && semaphore.permits()? != i64::from(permits) {
        semaphore.set_permits(permits)?;
    }
    let semaphore = match run.lease {
        Some(lease) => semaphore.with_lease(lease),
        None => semaphore.watched(),
    };
    let Some(permit) = semaphore.try_acquire_with(wait)? else { return Ok(None) };
    let token = permit.draw_token()?;
    let until = run.min_hold.and_then(|min_hold| SystemClock.now().checked_add(min_hold));
    Ok(Some(Held::Permit(Box::new(HeldPermit { permit, token, semaphore, until }))))
}
