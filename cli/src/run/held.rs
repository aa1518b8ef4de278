//! What `run` holds: a lock of one of four kinds, or a permit. Any thread may release it.

use std::time::{Duration, Instant};

use wheellock::crossbeam_channel::{Receiver, never};
use wheellock::{
    Client, Clock as _, Error, ExpirableSemaphore, LostReason, OwnedGuard, Permit, Revocation,
    SystemClock, Wait,
};

use crate::arguments::Run;

pub(crate) enum Held {
    Lock(OwnedGuard),
    Permit(Box<HeldPermit>),
}

/// What is left of a wait that connecting has used up.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// Nothing shorter is a lease.
const SHORTEST_LEASE: Duration = Duration::from_millis(10);

/// A permit, which is given back no earlier than at `until`.
pub(crate) struct HeldPermit {
    permit: Permit,
    semaphore: ExpirableSemaphore,
    until: Option<Instant>,
}

impl Held {
    /// Waits for it until `limit`. `None` if it could not be had in time.
    pub(crate) fn acquire(
        client: &Client,
        run: &Run,
        limit: Option<Instant>,
        interrupted: &Receiver<()>,
    ) -> Result<Option<Self>, Error> {
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
        let lock = if let Some(permits) = run.permits {
            return acquire_permit(client, run, permits, wait);
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
        Ok(lock.try_lock_with(wait)?.map(Self::Lock))
    }

    /// The owner on the server: of a permit, its id.
    pub(crate) fn owner(&self) -> String {
        match self {
            Self::Lock(guard) => guard.owner().to_owned(),
            Self::Permit(held) => held.permit.id().to_string(),
        }
    }

    /// The fencing token.
    pub(crate) fn token(&self) -> Option<u64> {
        match self {
            Self::Lock(guard) => guard.token(),
            Self::Permit(_) => None,
        }
    }

    /// A channel that gets a message when somebody asks for it. Nobody asks for a permit.
    pub(crate) fn revocation(&self) -> Receiver<Revocation> {
        match self {
            Self::Lock(guard) => guard.revocation().clone(),
            Self::Permit(_) => never(),
        }
    }

    /// Why it is not held any more. `None` while it is held for certain.
    pub(crate) fn loss(&self) -> Option<LostReason> {
        let held = match self {
            Self::Lock(guard) => guard.check(),
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
            Self::Lock(guard) => guard.remaining(),
            Self::Permit(held) => held.permit.remaining(),
        }
    }

    /// Tells of a loss. The end of a permit's own lease is told by [`remaining`](Self::remaining)
    /// alone.
    pub(crate) fn lost(&self) -> Receiver<LostReason> {
        match self {
            Self::Lock(guard) => guard.lost().clone(),
            Self::Permit(held) => held.permit.lost().cloned().unwrap_or_else(never),
        }
    }

    pub(crate) fn release(self) -> Result<(), Error> {
        match self {
            Self::Lock(guard) => guard.unlock(),
            Self::Permit(held) => held.release(),
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
    let until = run.min_hold.and_then(|min_hold| SystemClock.now().checked_add(min_hold));
    Ok(Some(Held::Permit(Box::new(HeldPermit { permit, semaphore, until }))))
}
