//! The proof of holding a lock on a majority of servers.

use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::crew::Crew;
use crate::error::{Error, LostReason};
use crate::part::Part;
use crate::round::Round;
use crate::tied::ThisThread;

/// A held [`RedLock`](crate::RedLock). Dropping it releases the lock everywhere.
///
/// It does what a [`LockGuard`](crate::LockGuard) does, where held means: on a majority of the servers. It belongs to the
/// thread that took it; or to an [owner](crate::RedLock::with_owner), and then it may be sent to another thread. Each part is
/// renewed by its own client. A part that is lost does not come back. A server that answers later than the majority
/// joins when it does.
///
/// Dropping it tells all servers at the same time, and waits for the answers: of all, if they come at about the same
/// time, and for one [server timeout](crate::RedLock::with_server_timeout) each at most. What is not answered is
/// finished in the background. It never panics.
///
/// ```
/// use wheellock::{Client, LostReason, RedLock};
///
/// let clients = [Client::in_memory(), Client::in_memory(), Client::in_memory()];
/// let guard = RedLock::new(&clients, "orders:42").lock()?;
/// assert!(guard.is_held() && guard.held_on() >= 2);
/// for client in &clients {
///     client.lock("orders:42").force_unlock()?;
/// }
/// assert!(!guard.is_held());
/// assert_eq!(guard.lost().recv(), Ok(LostReason::Deleted));
/// # Ok::<(), wheellock::Error>(())
/// ```
#[must_use = "the lock is released as soon as the guard is dropped"]
#[clippy::has_significant_drop]
pub struct RedGuard<T = ThisThread> {
    round: Arc<Round>,
    crew: Arc<Crew>,
    parts: Arc<[Part]>,
    quorum: usize,
    /// How long one server is waited for.
    limit: Duration,
    told: OnceLock<Receiver<LostReason>>,
    released: bool,
    _tied: PhantomData<T>,
}

impl<T> RedGuard<T> {
    pub(crate) fn new(
        round: Arc<Round>,
        crew: Arc<Crew>,
        parts: Arc<[Part]>,
        quorum: usize,
        limit: Duration,
    ) -> Self {
        Self {
            round,
            crew,
            parts,
            quorum,
            limit,
            told: OnceLock::new(),
            released: false,
            _tied: PhantomData,
        }
    }

    /// Whether the lock is held on a majority of the servers for certain. Once it is `false` it stays so. Local: no
    /// round trip.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.crew.is_current() && self.round.is_held()
    }

    /// An error unless the lock is held on a majority of the servers for certain. Local: no round trip.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] - it is not, and why it was lost on one of them.
    pub fn check(&self) -> Result<(), Error> {
        if !self.crew.is_current() {
            return Err(self.forked());
        }
        self.round.check()
    }

    /// How long a majority holds for certain, without a renewal to come. Zero once it is lost. Local: no round trip.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        if self.crew.is_current() { self.round.remaining() } else { Duration::ZERO }
    }

    /// A channel that gets one message when the majority is gone: why the part was lost that made it so. It closes
    /// without one if the lock is released.
    #[must_use]
    pub fn lost(&self) -> &Receiver<LostReason> {
        self.told.get_or_init(|| {
            if self.crew.is_current() {
                return self.round.listen();
            }
            let (tell, told) = crossbeam_channel::bounded(1);
            let _fits = tell.try_send(LostReason::Forked);
            told
        })
    }

    /// On how many servers it is held for certain. Local: no round trip.
    #[must_use]
    pub fn held_on(&self) -> usize {
        if self.crew.is_current() { self.round.held_on() } else { 0 }
    }

    /// The lock's name, cut short if it is very long: that on the first server, if they differ.
    #[must_use]
    pub fn name(&self) -> String {
        self.parts.first().map(Part::shown).unwrap_or_default()
    }

    /// Releases the lock on all servers and says how it went. `Ok` means that a majority held it until now, and has
    /// released it.
    ///
    /// # Errors
    ///
    /// * [`Error::Lost`] - no majority held it any more. What is left of it is released.
    /// * [`Error::OutcomeUnknown`], [`Error::Unreachable`] or [`Error::Refused`] - too few servers have acknowledged
    ///   the release in time. It is finished in the background; at worst the leases end it.
    pub fn unlock(mut self) -> Result<(), Error> {
        self.let_go()
    }

    fn let_go(&mut self) -> Result<(), Error> {
        if std::mem::replace(&mut self.released, true) {
            return Ok(());
        }
        if !self.crew.is_current() {
            return Err(self.forked());
        }
        let held = self.round.check();
        let (grips, _, _) = self.round.close();
        let (results, missing) = self.crew.let_go(grips, self.quorum, self.limit, None);
        held?;
        self.judge(results, missing)
    }

    /// What the servers' answers mean for the lock.
    fn judge(&self, results: Vec<Result<(), Error>>, missing: usize) -> Result<(), Error> {
        let released = results.iter().filter(|result| result.is_ok()).count();
        if released >= self.quorum {
            return Ok(());
        }
        let errors: Vec<Error> = results.into_iter().filter_map(Result::err).collect();
        let (lost, mut unknown): (Vec<Error>, Vec<Error>) =
            errors.into_iter().partition(|error| matches!(error, Error::Lost { .. }));
        if missing > 0 {
            let reason = format!("no answer within {:?}", self.limit);
            unknown.push(Error::OutcomeUnknown { operation: "release", reason });
        }
        let doubtful = released + missing + unknown.len() - usize::from(missing > 0);
        let told = if doubtful >= self.quorum { &unknown } else { &lost };
        match told.first().or(unknown.first()).or(lost.first()) {
            Some(error) => Err(error.clone()),
            // There are fewer answers than a majority only if there are errors.
            None => Ok(()),
        }
    }

    fn forked(&self) -> Error {
        Error::Lost { name: self.name(), reason: LostReason::Forked }
    }
}

impl<T> Drop for RedGuard<T> {
    fn drop(&mut self) {
        // A failure is not lost: what is owed is finished in the background.
        drop(self.let_go());
    }
}

impl<T> fmt::Debug for RedGuard<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("RedGuard")
            .field("name", &self.name())
            .field("held_on", &self.held_on())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
