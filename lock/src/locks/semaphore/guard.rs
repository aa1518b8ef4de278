//! The guard of permits without ids.
//!
//! The release is a call in a separate request sequence until the release is settled. The
//! background resends the release for 48 s, plus the ledger's 10 s of grace: less than the server
//! remembers the first copy. A later copy could add the permits twice, so the permits stay taken
//! instead.

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::core::client_core::ClientCore;
use crate::core::named::{DEDUP_MARGIN, begin_request};
use crate::core::release::{late_release, send_and_settle, send_on_drop};
use crate::error::{Error, LostReason};
use crate::ledger::release::{GRACE, MAX_PAUSE, Release, ReleaseOp};
use crate::model::name::LockName;
use crate::model::release_no::ReleaseNo;
use crate::ops::GiveBackPermits;
use crate::store::retry::RetryLimit;
use crate::watchdog::settle::{NotReleased, classify_release};

/// Held permits of a [`Semaphore`](crate::Semaphore), given back when the guard is dropped.
///
/// Returned by [`Semaphore::acquire`](crate::Semaphore::acquire) and the other acquires of a
/// semaphore.
///
/// Unlike a [`LockGuard`](crate::LockGuard) the guard can be sent to another thread. The permits
/// have no owner and no lease: the permits are held until the release, or until the semaphore is
/// deleted. [`forget`](Self::forget) leaves the permits taken, to be given back by
/// [`Semaphore::release`](crate::Semaphore::release).
///
/// **Drop.** Dropping the guard sends the release and does not wait for the
/// [answer](crate::guide::dropping). The drop takes one command timeout at most, and never panics.
/// The background resends an unacknowledged release for almost a minute: until shortly before the
/// server forgets the first copy, so all copies count once. If the server does not answer in this
/// time, **the permits stay taken**. [`release`](Self::release) waits and returns the outcome. The
/// [shutdown](crate::Client::shutdown) of the client does not end the guard: a later drop still
/// gives the permits back. In the child of a fork the drop does nothing: the permits are the
/// parent's.
///
/// ```
/// use wheellock::Client;
///
/// let client = Client::in_memory();
/// let downloads = client.semaphore("downloads");
/// downloads.try_set_permits(3)?;
/// let guard = downloads.acquire(2)?;
/// assert_eq!(downloads.available_permits()?, 1);
/// std::thread::spawn(move || drop(guard)).join().unwrap();
/// assert_eq!(downloads.available_permits()?, 3);
/// # Ok::<(), wheellock::Error>(())
/// ```
#[must_use = "the permits are given back as soon as this is dropped"]
#[clippy::has_significant_drop]
pub struct SemaphoreGuard {
    core: Arc<ClientCore>,
    name: LockName,
    /// Zero once the permits are given back or forgotten.
    permits: u32,
    /// The number of the release in the ledger, once begun. If the clock panics, the renewal thread
    /// sends the release.
    begun: Option<ReleaseNo>,
    granted_at: Instant,
}

/// How long a release is queued. The server remembers a call for [`DEDUP_MARGIN`] after the last
/// copy sent by the caller. A queued copy is sent up to [`GRACE`] and one pause after this time.
const RETRY_TIME: Duration = DEDUP_MARGIN.saturating_sub(GRACE).saturating_sub(MAX_PAUSE);

impl SemaphoreGuard {
    /// Returns the guard of `permits` permits, granted now.
    pub(crate) fn new(core: Arc<ClientCore>, name: LockName, permits: u32) -> Self {
        let granted_at = core.now();
        Self { core, name, permits, begun: None, granted_at }
    }

    /// The number of held permits, as requested from the acquire. Local: no round trip.
    #[must_use]
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// The semaphore's name with the client's [prefix](crate::Client::with_prefix), truncated if
    /// very long.
    #[must_use]
    pub fn name(&self) -> String {
        self.name.shown()
    }

    /// Gives the permits back and waits for the answer. `Ok` means that the permits are free again.
    /// Wakes waiters. A guard of zero permits sends nothing.
    ///
    /// # Errors
    ///
    /// * [`Error::Lost`] - nothing was given back. Permanent. The reason is [`LostReason::Deleted`]
    ///   if the semaphore was deleted, [`LostReason::TakenOver`] if permits were added meanwhile
    ///   and the sum would exceed 2,147,483,647, [`LostReason::Forked`] if this process is a fork
    ///   of the guard's.
    /// * [`Error::OutcomeUnknown`], [`Error::Unreachable`], [`Error::Refused`] or
    ///   [`Error::Authentication`] - the server did not acknowledge the release within twice the
    ///   [command timeout](crate::ClientBuilder::command_timeout). The background sends the release
    ///   again, as after a drop.
    /// * [`Error::WrongType`] - the semaphore's key contains a non-numeric value by now. Nothing
    ///   was given back. Permanent.
    pub fn release(mut self) -> Result<(), Error> {
        if !self.core.is_current() {
            return Err(Error::Lost { name: self.name(), reason: LostReason::Forked });
        }
        if self.permits == 0 {
            return Ok(());
        }
        let (no, operation) = self.begin();
        let timeout = self.core.settings.retry_timeout();
        let released = self.send(no, &operation, timeout, RetryLimit::UntilAnswered);
        self.permits = 0;
        released
    }

    /// Ends the guard and leaves the permits taken. Sends nothing. Any client can give the permits
    /// back by [`Semaphore::release`](crate::Semaphore::release).
    ///
    /// ```
    /// use wheellock::Client;
    ///
    /// let client = Client::in_memory();
    /// let downloads = client.semaphore("downloads");
    /// downloads.try_set_permits(1)?;
    /// downloads.acquire(1)?.forget();
    /// assert_eq!(downloads.available_permits()?, 0);
    /// downloads.release(1)?;
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    pub fn forget(mut self) {
        self.permits = 0;
    }

    /// Begins the release in the ledger, and returns the release's number and operation. Nothing is
    /// sent yet.
    fn begin(&mut self) -> (ReleaseNo, ReleaseOp) {
        let core = &*self.core;
        let request = begin_request(core, &self.name);
        let id = (self.name.clone(), request.owner().clone());
        let give_back = GiveBackPermits::new(self.name.clone(), self.permits, request);
        let operation: ReleaseOp = Arc::new(give_back);
        let release = Release::by_operation(id, Arc::clone(&operation), RETRY_TIME, None);
        let no = core.watchdog.releases.begin(release);
        self.begun = Some(no);
        (no, operation)
    }

    /// Sends the begun release `no` within `timeout`, with retries up to `limit`, and settles the
    /// release in the ledger. Returns the outcome.
    fn send(
        &self,
        no: ReleaseNo,
        operation: &ReleaseOp,
        timeout: Duration,
        limit: RetryLimit,
    ) -> Result<(), Error> {
        // The permits have no lease, so none can expire.
        let in_time = |_now| true;
        let sent =
            send_and_settle(&self.core, &[no], operation, &self.name, (timeout, limit), in_time)?;
        // The server answers a copy as the first request, so an unanswered copy changes nothing.
        classify_release(sent.found, false, true).map_err(|not_released| match not_released {
            NotReleased::Lost(reason) => Error::Lost { name: self.name(), reason },
            NotReleased::Unknown => late_release(),
        })
    }

    /// Gives the permits back. Waits for the reply only if `wait_on_drop` is set or the release
    /// cannot be sent at once.
    fn release_on_drop(&mut self) -> Result<(), Error> {
        let (no, operation) = self.begin();
        let (core, name) = (&*self.core, &self.name);
        let wait = |left| self.send(no, &operation, left, RetryLimit::One);
        // A release rejected by a full queue is counted.
        let queue = || {
            core.watchdog.releases.queue(no, core.now());
        };
        send_on_drop(core, name, false, wait, queue, |limit| {
            core.watchdog.send_unread(&[no], (name, &operation), core.now(), limit)
        })
    }
}

impl Drop for SemaphoreGuard {
    fn drop(&mut self) {
        if !self.core.is_current() {
            // The mutexes inside are the parent's, and may be locked.
            mem::forget(Arc::clone(&self.core));
            return;
        }
        if self.permits == 0 {
            return;
        }
        let core = Arc::clone(&self.core);
        let context = &core.watchdog.context;
        // A failed release is queued.
        let is_done =
            self.begun.is_none() && context.catch_panic(|| drop(self.release_on_drop())).is_some();
        if !is_done && let Some(no) = self.begun {
            let now = context.catch_panic(|| core.now()).unwrap_or(self.granted_at);
            core.watchdog.releases.queue(no, now);
        }
    }
}

impl fmt::Debug for SemaphoreGuard {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("SemaphoreGuard")
            .field("name", &self.name())
            .field("permits", &self.permits)
            .finish_non_exhaustive()
    }
}
