//! The proof of holding one permit of an expirable semaphore, and how it ends.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::call::Attempts;
use crate::caller::remembered;
use crate::error::{Error, LostReason};
use crate::lease::Lease;
use crate::name::LockName;
use crate::op::{Operation, OwedPermits, PermitsFound, ReleasePermits};
use crate::permit_id::PermitId;
use crate::process::Process;
use crate::validity::Validity;

/// A permit that is held. Dropping it gives it back.
///
/// Any thread may do that: unlike a [`LockGuard`](crate::LockGuard) it can be sent. It ends with its lease, if it has
/// one: ask [`is_valid`](Self::is_valid) before each step that needs it. [`into_id`](Self::into_id) takes the id out
/// and leaves the permit taken, to be given back by whoever has the id.
///
/// Dropping it sends the release and waits for the answer, for at most one command timeout. It never panics. A release
/// that is not answered is finished in the background. [`release`](Self::release) does the same and says how it went.
/// Shutting the client down does not give it back; dropping it does, also afterwards.
///
/// ```
/// use std::time::Duration;
/// use wheellock::Client;
///
/// let client = Client::in_memory();
/// let seats = client.expirable_semaphore("seats").with_lease(Duration::from_secs(60));
/// seats.try_set_permits(1)?;
/// let permit = seats.acquire()?;
/// std::thread::scope(|scope| {
///     scope.spawn(move || {
///         assert!(permit.is_valid());
///         permit.release()
///     });
/// });
/// assert_eq!(seats.available_permits()?, 1);
/// # Ok::<(), wheellock::Error>(())
/// ```
#[must_use = "the permit is given back as soon as this is dropped"]
#[clippy::has_significant_drop]
pub struct Permit {
    process: Arc<Process>,
    name: LockName,
    id: PermitId,
    /// None for a permit that does not end by itself.
    validity: Option<Validity>,
    /// Whether a copy of its acquire may still be on its way.
    in_doubt: bool,
    /// Whether `release` has done what `drop` would do, or the id was taken out.
    done: bool,
}

impl Permit {
    /// A permit that was granted to a request sent at `sent_at`.
    pub(crate) fn new(
        process: Arc<Process>,
        name: LockName,
        id: PermitId,
        lease: Option<Lease>,
        sent_at: Instant,
        in_doubt: bool,
    ) -> Self {
        let validity = lease.map(|lease| Validity::new(sent_at, lease.valid_until(sent_at)));
        Self { process, name, id, validity, in_doubt, done: false }
    }

    /// Whether the permit is held for certain, as far as its lease goes. Local: no round trip.
    ///
    /// The answer is what the clock says of the lease, counted from before its request was sent. Once it is `false` it
    /// stays so. Without a lease it is `true`. In the child of a fork it is `false`: the parent holds the permit.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// How long the permit is held for certain; [`Duration::MAX`] if it has no lease, zero once it is over. Local: no
    /// round trip.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        if !self.process.is_current() {
            return Duration::ZERO;
        }
        let now = self.process.now();
        self.validity.as_ref().map_or(Duration::MAX, |validity| validity.remaining(now))
    }

    /// The semaphore's name, cut short if it is very long.
    #[must_use]
    pub fn name(&self) -> String {
        self.name.shown()
    }

    /// Which permit it is.
    #[must_use]
    pub fn id(&self) -> PermitId {
        self.id
    }

    /// The id alone. The permit stays taken until its lease ends, or until somebody gives it back by
    /// [`ExpirableSemaphore::release`](crate::ExpirableSemaphore::release).
    ///
    /// ```
    /// use wheellock::Client;
    ///
    /// let client = Client::in_memory();
    /// let seats = client.expirable_semaphore("seats");
    /// seats.try_set_permits(1)?;
    /// let id = seats.acquire()?.into_id();
    /// assert_eq!(seats.available_permits()?, 0);
    /// seats.release(&id)?;
    /// assert_eq!(seats.available_permits()?, 1);
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    #[must_use = "nobody else knows the id"]
    pub fn into_id(mut self) -> PermitId {
        self.done = true;
        self.id
    }

    /// Gives the permit back and says how it went. `Ok` means that it was held until now.
    ///
    /// # Errors
    ///
    /// * [`Error::Lost`] - it was no longer held: its lease had run out, or somebody gave it back.
    /// * [`Error::OutcomeUnknown`], [`Error::Unreachable`] or [`Error::Refused`] - the server did not acknowledge the
    ///   release within twice the command timeout. It is finished in the background.
    /// * [`Error::WrongType`] - the semaphore's keys hold something else by now.
    pub fn release(mut self) -> Result<(), Error> {
        self.done = true;
        self.leave(self.process.settings.patience(), Attempts::UntilAnswered)
    }

    fn leave(&self, patience: Duration, attempts: Attempts) -> Result<(), Error> {
        let process = &self.process;
        if !process.is_current() {
            // A child of a fork: the permit is the parent's, and so are the locks inside these structures.
            std::mem::forget(Arc::clone(process));
            return Err(self.lost(LostReason::Forked));
        }
        let request = process.id.draw();
        let remembered = if self.in_doubt { remembered(process) } else { Duration::ZERO };
        let release =
            ReleasePermits::new(self.name.clone(), vec![self.id], request.clone(), remembered);
        let answer = match process.call_for(&release, patience, attempts) {
            Ok(answer) => answer,
            Err(gave_up) => {
                if !gave_up.failure.is_of_the_request() {
                    let (name, owed) = (self.name.clone(), Arc::new(OwedPermits(release.clone())));
                    let lasts = self.validity.as_ref().map_or(LONG, |_| self.remaining());
                    process.watchdog.give_back_in_background(name, request, owed, lasts);
                }
                return Err(gave_up.failure.into_error(release.name(), &self.name));
            }
        };
        let reason = match answer.reply.found {
            PermitsFound::All => return Ok(()),
            // An earlier copy of this very release may have found it. While the lease ran, nobody else had it.
            PermitsFound::Missing if answer.doubt.is_some() && self.is_valid() => return Ok(()),
            PermitsFound::Missing if answer.doubt.is_some() => {
                return Err(Error::OutcomeUnknown {
                    operation: release.name(),
                    reason: "its first copy was not answered while the lease ran".to_owned(),
                });
            }
            PermitsFound::Missing if self.is_valid() => LostReason::Deleted,
            PermitsFound::Late | PermitsFound::Missing => LostReason::Expired,
        };
        Err(self.lost(reason))
    }

    fn lost(&self, reason: LostReason) -> Error {
        Error::Lost { name: self.name(), reason }
    }
}

/// How long to try to give a permit back that does not end by itself.
const LONG: Duration = Duration::from_secs(24 * 3600);

impl Drop for Permit {
    fn drop(&mut self) {
        if !self.done {
            // A failure is not lost: the release is owed, and finished by the renewal thread.
            drop(self.leave(self.process.settings.command_timeout, Attempts::One));
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Permit")
            .field("name", &self.name)
            .field("id", &self.id)
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
