//! What `run` holds: a lock of one of four kinds, a permit, or the run of a job's slot. Any thread
//! may release it.

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
    /// The server cannot be reached, and the command runs all the same.
    Nothing,
}

/// What came of an acquire.
pub(crate) enum Acquired {
    Held(Held),
    /// Another owner had it until the end of the wait.
    Busy,
    /// The slot has run.
    RanAlready,
    AttemptsUsedUp,
}

/// What is left of a wait that connecting has used up.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// Nothing shorter is a lease.
const SHORTEST_LEASE: Duration = Duration::from_millis(10);

/// A permit, which is given back no earlier than at `until`.
pub(crate) struct HeldPermit {
    permit: Permit,
    token: u64,
    semaphore: ExpirableSemaphore,
    until: Option<Instant>,
}

impl Held {
    /// Waits for it until `limit`.
    pub(crate) fn acquire(
        client: &Client,
        run: &Run,
        limit: Option<Instant>,
        interrupted: &Receiver<()>,
    ) -> Result<Acquired, Error> {
        let wait = match limit {
            _ if run.is_one_try() => Wait::none(),
            // What is left after connecting. Nothing would be one try, which has no limit.
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
        // Readers share a lock, so none of their tokens is the newest.
        if !run.shared {
            guard.draw_token()?;
        }
        Ok(Acquired::Held(Self::Lock(guard)))
    }

    /// The guard of the lock, if it is one.
    fn guard(&self) -> Option<&OwnedGuard> {
        match self {
            Self::Lock(guard) => Some(guard),
            Self::Slot(run) => Some(run.guard()),
            Self::Permit(_) | Self::Nothing => None,
        }
    }

    /// The owner on the server: of a permit, its id.
    pub(crate) fn owner(&self) -> Option<String> {
        match self {
            Self::Permit(held) => Some(held.permit.id().to_string()),
            _ => self.guard().map(|guard| guard.owner().to_owned()),
        }
    }

    /// The fencing token.
    pub(crate) fn token(&self) -> Option<u64> {
        match self {
            Self::Slot(run) => Some(run.token()),
            // It was drawn when the permit was acquired.
            Self::Permit(held) => Some(held.token),
            _ => self.guard().and_then(OwnedGuard::token),
        }
    }

    /// Which attempt at a slot it is.
    pub(crate) fn attempt(&self) -> Option<u32> {
        match self {
            Self::Slot(run) => Some(run.attempt()),
            _ => None,
        }
    }

    /// A channel that gets a message when somebody asks for it. Nobody asks for a permit.
    pub(crate) fn revocation(&self) -> Receiver<Revocation> {
        self.guard().map_or_else(never, |guard| guard.revocation().clone())
    }

    /// Why it is not held any more. `None` while it is held for certain.
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

    /// For how long it is held for certain.
    pub(crate) fn remaining(&self) -> Duration {
        match self {
            Self::Permit(held) => held.permit.remaining(),
            _ => self.guard().map_or(Duration::MAX, OwnedGuard::remaining),
        }
    }

    /// Tells of a loss. The end of a permit's own lease is told by [`remaining`](Self::remaining)
    /// alone.
    pub(crate) fn lost(&self) -> Receiver<LostReason> {
        match self {
            Self::Permit(held) => held.permit.lost().cloned().unwrap_or_else(never),
            _ => self.guard().map_or_else(never, |guard| guard.lost().clone()),
        }
    }

    /// Releases it. The exit code of the command says whether a slot has run.
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
        // The release of a permit that is gone says so.
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
    // The command line says how many there are, even if it has changed since the semaphore was
    // made.
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
