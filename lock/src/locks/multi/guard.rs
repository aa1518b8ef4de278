//! The guard of a multi-lock.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::core::lost_future::LostFuture;
use crate::core::raw_guard::RawGuard;
use crate::core::revocation_future::RevocationFuture;
use crate::error::{Error, LostReason};
use crate::events::wakers::WakerThread;
use crate::hold::loss_signal::LossSignal;
use crate::hold::revocation::{Revocation, RevocationSignal, channel_of};
use crate::locks::guard::ThisThread;
use crate::locks::held_locks::{Extension, HeldLocks, RawGuards};
use crate::locks::multi::release::{ReleaseMode, release_all};
use crate::model::lease::Lease;
use crate::model::name::LockName;
use crate::model::panics;

/// All locks of a [`MultiLock`](crate::MultiLock), held. Dropping the guard releases all locks.
///
/// Returned by [`MultiLock::lock`](crate::MultiLock::lock) and the other acquires of a multi-lock.
///
/// The guard does for all locks together the same as a [`LockGuard`](crate::LockGuard) for a single
/// lock. The guard belongs to the acquiring thread and cannot be sent to another thread, unless the
/// locks are [sendable](crate::MultiLock::sendable) or have a [named
/// owner](crate::MultiLock::with_owner).
///
/// The loss of a lock is the loss of all locks: the remaining locks are released at once, in the
/// background, even if no method of the guard is called.
///
/// **Drop.** A drop does not wait for the servers' [answers](crate::guide::dropping), unless a
/// release carries dozens of locks. A drop takes at most twice the command timeout, and never
/// panics. Releases are sent to different servers at the same time, from threads that end with the
/// call.
/// After a failed send, the remaining locks of the same server are released in the background. So
/// are all locks whose release got no acknowledgement. [`unlock`](Self::unlock) waits for the
/// answers.
///
/// ```
/// use wheellock::Client;
///
/// let client = Client::in_memory();
/// let (order, stock) = (client.lock("orders:42"), client.lock("stock:7"));
/// let guard = client.multi_lock(&[&stock, &order]).lock()?;
/// assert!(guard.is_held() && order.is_locked()? && stock.is_locked()?);
/// guard.unlock()?;
/// assert!(!order.is_locked()? && !stock.is_locked()?);
/// # Ok::<(), wheellock::Error>(())
/// ```
#[must_use = "the locks are released as soon as the guard is dropped"]
#[clippy::has_significant_drop]
pub struct MultiGuard<T = ThisThread> {
    held: Arc<HeldLocks>,
    names: Vec<LockName>,
    lost: LossSignal,
    /// The waker thread of a member's client. The client's hold is lost before the thread ends.
    wakers: Arc<WakerThread>,
    _tied: PhantomData<T>,
}

impl<T> MultiGuard<T> {
    /// Returns the guard of all the locks of `guards`. If a lock is lost already, returns an error
    /// and releases all locks.
    pub(crate) fn new(guards: RawGuards) -> Result<Self, Error> {
        let names: Vec<LockName> = guards.values().map(|guard| guard.lock_name().clone()).collect();
        let first = names.first().map(LockName::shown).unwrap_or_default();
        let held = HeldLocks::new(first, guards.len());
        let wakers = guards.values().next().map(RawGuard::wakers).unwrap_or_default();
        let multi = Self { held, names, lost: LossSignal::new(), wakers, _tied: PhantomData };
        for (position, guard) in guards {
            if let Some(lost) = multi.held.join(position, guard) {
                lost.check()?;
            }
        }
        if !multi.held.grant() {
            multi.held.check()?;
        }
        Ok(multi)
    }

    /// Returns the signal of revocation requests for any of the locks; `None` in the child of a
    /// fork. The first call subscribes the locks' clients to the requests.
    fn signal(&self) -> Option<&Arc<RevocationSignal>> {
        self.lost.revocation(|listener| self.held.subscribe_to_revocations(listener))
    }

    /// Whether all the locks are held for certain. Once the result is `false`, the result stays
    /// `false`. Local: no round trip.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.held.is_held()
    }

    /// Returns an error unless all the locks are held for certain. Local: no round trip.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] - a lock is not held any more. Permanent. The error names the lock and the
    /// reason. The remaining locks are released in the background.
    pub fn check(&self) -> Result<(), Error> {
        self.held.check()
    }

    /// How long all locks are held for certain, without a further renewal: the shortest of the
    /// members' times. Zero after a loss. Local: no round trip.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.held.remaining()
    }

    /// Extends each lease to at least `lease` from now on, in sequence, and waits for the replies.
    /// Costs a round trip for each lock.
    ///
    /// A lock that already lasts longer than `lease` keeps the later end. `lease` is between 10 ms
    /// and a hundred years. See [`LockGuard::extend`](crate::LockGuard::extend).
    ///
    /// ```
    /// use std::time::Duration;
    /// use wheellock::Client;
    ///
    /// let client = Client::in_memory();
    /// let minute = Duration::from_secs(60);
    /// let order = client.lock("orders:42").with_lease(minute);
    /// let stock = client.lock("stock:7").with_lease(minute);
    /// let guard = client.multi_lock(&[&order, &stock]).lock()?;
    /// guard.extend(10 * minute)?;
    /// assert!(guard.remaining() > 9 * minute);
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The call ends with the error of the first failed lock. Earlier locks have the new lease.
    ///
    /// * [`Error::InvalidLease`] - `lease` is out of bounds. Permanent; nothing was sent.
    /// * [`Error::Lost`] - a lock was no longer held, with the reason. Permanent.
    /// * [`Error::Unreachable`], [`Error::OutcomeUnknown`] or [`Error::Refused`] - no reply within
    ///   twice the command timeout, or a refusal. The end of the failed lock's hold is unchanged.
    /// * [`Error::Shutdown`] - a lock's client was shut down during the call.
    pub fn extend(&self, lease: Duration) -> Result<(), Error> {
        self.held.extend(Extension::Lease(Lease::new(lease)?))
    }

    /// Has the watchdogs renew all locks from now on, until the guard is gone. Costs a round trip
    /// for each lock that is not renewed yet, in sequence. See
    /// [`LockGuard::watch`](crate::LockGuard::watch).
    ///
    /// # Errors
    ///
    /// The call ends with the error of the first failed lock. Earlier locks are watched.
    ///
    /// * [`Error::Lost`] - a lock was no longer held, with the reason. Permanent.
    /// * [`Error::WatchdogGone`] - the thread that would renew a lock has ended. Permanent.
    /// * [`Error::Unreachable`], [`Error::OutcomeUnknown`] or [`Error::Refused`] - no reply within
    ///   twice the command timeout, or a refusal. The failed lock is not watched.
    /// * [`Error::Shutdown`] - a lock's client was shut down during the call.
    pub fn watch(&self) -> Result<(), Error> {
        self.held.extend(Extension::Watched)
    }

    /// A channel for the first loss of a lock, which receives the reason as a single message. The
    /// channel closes without a message when the guard is gone.
    ///
    /// A loss before the first call is received too. In the child of a fork the message is
    /// [`LostReason::Forked`].
    ///
    /// ```
    /// use wheellock::{Client, LostReason};
    ///
    /// let client = Client::in_memory();
    /// let (order, stock) = (client.lock("orders:42"), client.lock("stock:7"));
    /// let guard = client.multi_lock(&[&order, &stock]).lock()?;
    /// stock.force_unlock()?;
    /// assert_eq!(guard.lost().recv(), Ok(LostReason::Deleted));
    /// assert!(!guard.is_held());
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    #[must_use]
    pub fn lost(&self) -> &Receiver<LostReason> {
        self.lost.channel(|listener| self.held.add_listener(listener))
    }

    /// A future for the first loss of a lock, which resolves with the reason, or with `None` when
    /// the guard is gone. See [`LostFuture`].
    ///
    /// ```
    /// use wheellock::{Client, LostFuture};
    ///
    /// let client = Client::in_memory();
    /// let (order, stock) = (client.lock("orders:42"), client.lock("stock:7"));
    /// let guard = client.multi_lock(&[&order, &stock]).lock()?;
    /// // To be awaited, also in another task.
    /// let lost: LostFuture = guard.lost_future()?;
    /// # drop(lost);
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Thread`] - the operating system refused the thread to wake the task. Transient.
    pub fn lost_future(&self) -> Result<LostFuture, Error> {
        let listen = |listener| self.held.add_listener(listener);
        Ok(LostFuture::of(self.lost.awaited_end(&self.wakers, listen)?))
    }

    /// A channel for a [request](crate::Lock::ask) to release any of the locks, which receives the
    /// first request as a single message. The channel closes without a message when the guard is
    /// gone.
    ///
    /// A request is no loss: the holder ends the work and drops the guard, or continues. The first
    /// call for a client subscribes to requests, and returns at once: earlier requests are missed.
    /// See [`LockGuard::revocation`](crate::LockGuard::revocation).
    #[must_use]
    pub fn revocation(&self) -> &Receiver<Revocation> {
        channel_of(self.signal())
    }

    /// Whether a [request](crate::Lock::ask) to release any of the locks was received. Local: no
    /// round trip.
    ///
    /// The first call for a client subscribes to requests, as for [`revocation`](Self::revocation):
    /// earlier requests are missed. Once the result is `true`, the result stays `true`.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.signal().is_some_and(|signal| signal.is_asked())
    }

    /// A future for a [request](crate::Lock::ask) to release any of the locks, which resolves with
    /// the first request, or with `None` when the guard is gone. See [`RevocationFuture`].
    ///
    /// # Errors
    ///
    /// [`Error::Thread`] - the operating system refused the thread to wake the task. Transient.
    pub fn revocation_future(&self) -> Result<RevocationFuture, Error> {
        RevocationFuture::of(self.signal(), &self.wakers)
    }

    /// The names of the locks, ordered by server and name. A name of more than 80 characters is
    /// truncated. A lock given twice is listed once.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.names.iter().map(LockName::shown).collect()
    }

    /// The [fencing tokens](crate::FencedGuard::token), in the order of [`names`](Self::names).
    /// `None` stands for a lock that is not fenced and has no [drawn](Self::draw_tokens) token.
    /// Local: no round trip.
    #[must_use]
    pub fn tokens(&self) -> Vec<Option<u64>> {
        let mut tokens = self.held.tokens();
        tokens.resize(self.names.len(), None);
        tokens
    }

    /// The fencing token of each lock, in the order of [`names`](Self::names). Costs a round trip
    /// for each lock without a token, in sequence.
    ///
    /// A token is a number larger than the tokens of all earlier holds of the lock's name. See
    /// [`LockGuard::draw_token`](crate::LockGuard::draw_token).
    ///
    /// ```
    /// use wheellock::Client;
    ///
    /// let guard = Client::in_memory().lock_many(&["orders:42", "stock:7"]).lock()?;
    /// assert_eq!(guard.draw_tokens()?.len(), 2);
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The call ends with the first error of
    /// [`LockGuard::draw_token`](crate::LockGuard::draw_token), such as [`Error::Lost`] or
    /// [`Error::Unreachable`]. Locks retain the tokens drawn before.
    pub fn draw_tokens(&self) -> Result<Vec<u64>, Error> {
        self.held.draw_tokens()
    }

    /// Releases all locks, even after a failed release, and waits for the servers' answers. `Ok`
    /// means: all locks were held until now and are free. A lock with other guards stays held, and
    /// only the hold's count decreases.
    ///
    /// If a lock was lost before, the remaining locks are released in the background.
    ///
    /// # Errors
    ///
    /// The result is the first error of any lock.
    ///
    /// * [`Error::Lost`] - a lock was no longer held, with the reason. Another owner may have held
    ///   the lock at the same time.
    /// * [`Error::OutcomeUnknown`], [`Error::Unreachable`] or [`Error::Refused`] - a server did not
    ///   acknowledge a release within twice the command timeout, or refused the release. The
    ///   release is finished in the background; at worst the lease ends the hold.
    pub fn unlock(self) -> Result<(), Error> {
        let held = self.check();
        let released = release_all(self.held.close(), ReleaseMode::Answered);
        held.and(released)
    }
}

impl<T> Drop for MultiGuard<T> {
    fn drop(&mut self) {
        // A failed release is queued. If the clock panics, each guard is dropped.
        let guards = self.held.close();
        let Some(core) = guards.values().next().map(|guard| guard.parts().0) else { return };
        panics::catch_panic(|| {
            let end = core.now() + core.settings.command_timeout;
            drop(release_all(guards, ReleaseMode::OnDrop(&*core.clock, end)));
        });
    }
}

impl<T> fmt::Debug for MultiGuard<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("MultiGuard")
            .field("names", &self.names())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use hashed_wheel::SystemClock;

    use super::*;
    use crate::core::acquire::acquire;
    use crate::core::client_core::{ClientCore, StartMode, Target};
    use crate::core::spec::LockSpec;
    use crate::events::callbacks::Callbacks;
    use crate::model::kind::Kind;
    use crate::model::name::Prefix;
    use crate::model::owner::LocalHolder;
    use crate::model::settings::Settings;
    use crate::model::wait::WaitSpec;
    use crate::store::Memory;

    #[test]
    fn a_dropped_nested_guard_leaves_no_listener_behind() {
        let (target, clock) = (Target::Memory(Memory::new()), Arc::new(SystemClock));
        let core = ClientCore::start(
            target,
            clock,
            Settings::default(),
            Callbacks::default(),
            StartMode::Connected,
        );
        let core = Arc::new(core.unwrap());
        let take = |name| {
            let spec = LockSpec::new(Arc::clone(&core), Kind::Reentrant, Prefix::new(""), name);
            acquire(&spec.core().unwrap(), &spec, &LocalHolder::current_thread(), WaitSpec::ONE_TRY)
                .unwrap()
                .unwrap()
        };
        let take_both = || {
            MultiGuard::<ThisThread>::new(["a", "b"].map(take).into_iter().enumerate().collect())
        };
        let outer = take_both().unwrap();
        for _ in 0..1000 {
            assert!(take_both().unwrap().is_held());
        }
        let holds = core.holds.all();
        let listeners: Vec<usize> = holds.iter().map(|hold| hold.listeners()).collect();
        assert_eq!(listeners, [1, 1]);
        assert!(outer.is_held());
    }
}
