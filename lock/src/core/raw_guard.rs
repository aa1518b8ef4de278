//! The body of every guard: one guard's part in a hold, and its release.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crossbeam_channel::Receiver;
use hashed_wheel::Clock;

use crate::core::cache::cache;
use crate::core::client_core::ClientCore;
use crate::core::extend::extend;
use crate::core::fencing::token_of;
use crate::core::lost_future::LostFuture;
use crate::core::release::{GuardRelease, hand_over, unsent_release};
use crate::core::revocation_future::RevocationFuture;
use crate::error::{Error, LostReason};
use crate::events::wakers::{AwaitedEnd, WakerThread};
use crate::hold::hold::Hold;
use crate::hold::listener::{HoldListener, TaskWaker, forked_channel};
use crate::hold::revocation::RevocationSignal;
use crate::hold::state::ListenerId;
use crate::model::kind::Kind;
use crate::model::lease::Lease;
use crate::model::name::LockName;
use crate::model::owner::Owner;
use crate::store::retry::RetryLimit;

/// One of the guards of a hold. Dropping the guard counts the guard off the hold, and releases the
/// hold after the last guard. Public only for a sealed trait: code outside of the crate cannot name
/// the type.
pub struct RawGuard {
    core: Arc<ClientCore>,
    hold: Arc<Hold>,
    /// Whether the watchdog renews the hold for this guard.
    watched: AtomicBool,
    /// The next user of the hold after its last guard.
    reuse: Reuse,
    released: bool,
    /// Boxed, as hardly any of a hundred thousand guards has extras.
    extras: OnceLock<Box<Extras>>,
}

/// The next user of a hold after its last guard, before a release on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reuse {
    Never,
    /// A waiting thread of the client.
    HandOver,
    /// A waiting thread, or an acquire within this time.
    Cache(Duration),
}

/// Parts of a guard, each made at its first use.
#[derive(Default)]
struct Extras {
    lost: OnceLock<Receiver<LostReason>>,
    /// This guard's listener at the hold. Removed with the guard, as other guards may nest the hold
    /// for long.
    listener: OnceLock<ListenerId>,
    /// The end awaited by tasks, and its listener.
    awaited: OnceLock<(Arc<AwaitedEnd>, Option<ListenerId>)>,
    /// A request for the hold, and its listener.
    revocation: OnceLock<(Arc<RevocationSignal>, Option<ListenerId>)>,
    owner: OnceLock<String>,
}

impl RawGuard {
    /// Makes a guard that `hold` has counted already. `watched`: whether the watchdog renews the
    /// hold for this guard, as counted too.
    pub(crate) fn new(core: Arc<ClientCore>, hold: Arc<Hold>, watched: bool) -> Self {
        let extras = OnceLock::new();
        let watched = AtomicBool::new(watched);
        Self { core, hold, watched, reuse: Reuse::Never, released: false, extras }
    }

    /// Sets the next user of the hold after its last guard.
    pub(crate) fn reused_by(mut self, reuse: Reuse) -> Self {
        self.reuse = reuse;
        self
    }

    pub(crate) fn is_held(&self) -> bool {
        self.core.is_current() && self.hold.is_held(self.core.now())
    }

    /// Returns [`Error::Lost`] if the hold is over, or in a child of a fork. The first caller to
    /// notice the end reports the loss.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if !self.core.is_current() {
            return Err(Error::Lost { name: self.name(), reason: LostReason::Forked });
        }
        self.core.check(&self.hold)
    }

    pub(crate) fn remaining(&self) -> Duration {
        if !self.core.is_current() {
            return Duration::ZERO;
        }
        self.hold.remaining(self.core.now())
    }

    /// Extends the hold to `lease` from now on, and waits for the reply. A later end of the hold
    /// stays.
    pub(crate) fn extend(&self, lease: Duration) -> Result<(), Error> {
        self.check()?;
        extend(&self.core, &self.hold, Lease::new(lease)?, false, RetryLimit::UntilAnswered)
    }

    /// Has the watchdog renew the hold until this guard is gone, and extends the hold to the
    /// watchdog's lease. Does nothing for a watched guard.
    pub(crate) fn watch(&self) -> Result<(), Error> {
        self.check()?;
        // Of two concurrent calls, only the call that sets the flag asks the server.
        if self.watched.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let lease = self.core.settings.watchdog_lease;
        extend(&self.core, &self.hold, lease, true, RetryLimit::UntilAnswered)
            .inspect_err(|_| self.watched.store(false, Ordering::Relaxed))
    }

    /// Returns the client and the hold, so that a caller can extend the hold while the guard is
    /// behind a lock.
    pub(crate) fn parts(&self) -> (Arc<ClientCore>, Arc<Hold>) {
        (Arc::clone(&self.core), Arc::clone(&self.hold))
    }

    /// Whether this is a guard of `hold`.
    pub(crate) fn is_of(&self, hold: &Arc<Hold>) -> bool {
        Arc::ptr_eq(&self.hold, hold)
    }

    /// Marks the guard as watched, so that its release counts a watched guard off the hold. The
    /// caller has counted the guard as watched at the hold. Returns `false` if the guard was marked
    /// or released before.
    pub(crate) fn set_watched(&self) -> bool {
        !self.released && !self.watched.swap(true, Ordering::Relaxed)
    }

    /// Whether the watchdog renews the hold for this guard.
    fn is_watched(&self) -> bool {
        // Relaxed: the flag is changed through references, and read when there is none.
        self.watched.load(Ordering::Relaxed)
    }

    /// Returns the channel for the reason of a loss, made at the first call. In a child of a fork,
    /// the channel has the message [`LostReason::Forked`].
    pub(crate) fn lost(&self) -> &Receiver<LostReason> {
        if !self.core.is_current() {
            return forked_channel();
        }
        self.extras().lost.get_or_init(|| {
            let (lost, listener) = self.hold.listen();
            self.set_listener(listener);
            lost
        })
    }

    /// Makes a future of the end of the hold. Returns an error if the thread for wakers cannot be
    /// started.
    pub(crate) fn lost_future(&self) -> Result<LostFuture, Error> {
        if !self.core.is_current() {
            return Ok(LostFuture::forked());
        }
        let awaited = &self.extras().awaited;
        if awaited.get().is_none() {
            let end = self.core.wakers.awaited_end()?;
            awaited.get_or_init(|| {
                let listener = self.hold.add_listener(Arc::new(TaskWaker(Arc::clone(&end))));
                (end, listener)
            });
        }
        Ok(LostFuture::of(awaited.get().map(|(end, _)| end)))
    }

    /// Subscribes this client to requests for its locks.
    pub(crate) fn subscribe_to_revocations(&self) {
        self.core.waits.subscribe_to_revocations(&self.core.store);
    }

    /// Publishes `value`, the holder's description, in the client's record from now on.
    pub(crate) fn advertise(&self, value: &Arc<str>) {
        let owner = self.hold.owner.to_string();
        self.core.watchdog.record.advertise(&owner, value, self.core.now());
    }

    /// Removes the holder's description from the client's record.
    pub(crate) fn stop_advertising(&self) {
        self.core.watchdog.record.stop_advertising(&self.hold.owner.to_string());
    }

    /// Returns the signal of a request for the hold, and subscribes this client to requests. `None`
    /// in the child of a fork.
    pub(crate) fn revocation(&self) -> Option<&Arc<RevocationSignal>> {
        if !self.core.is_current() {
            return None;
        }
        self.subscribe_to_revocations();
        let (signal, _) = self.extras().revocation.get_or_init(|| {
            let signal = RevocationSignal::new();
            let listener = self.hold.add_listener(Arc::clone(&signal) as _);
            (signal, listener)
        });
        Some(signal)
    }

    /// Makes a future of a request for the hold. Returns an error if the thread for wakers cannot
    /// be started.
    pub(crate) fn revocation_future(&self) -> Result<RevocationFuture, Error> {
        RevocationFuture::of(self.revocation(), &self.core.wakers)
    }

    /// Returns the thread for wakers, which wakes the tasks awaiting the loss.
    pub(crate) fn wakers(&self) -> Arc<WakerThread> {
        Arc::clone(&self.core.wakers)
    }

    /// Notifies `listener` if the hold is lost during the guard's life. For one listener of each
    /// guard: only the first listener is removed with the guard.
    pub(crate) fn add_listener(&self, listener: Arc<dyn HoldListener>) {
        if self.core.is_current() {
            self.set_listener(self.hold.add_listener(listener));
        } else {
            listener.on_lost(LostReason::Forked);
        }
    }

    /// Notifies a group of holds when this hold is lost, until the guard
    /// [leaves](Self::leave_group). The group may have a hundred thousand guards, so no listener id
    /// is stored for each.
    pub(crate) fn join_group(&self, group: Arc<dyn HoldListener>) {
        if self.core.is_current() {
            let _id = self.hold.add_listener(group);
        } else {
            group.on_lost(LostReason::Forked);
        }
    }

    /// Removes the group from the listeners of the hold.
    pub(crate) fn leave_group(&self, group: &Arc<dyn HoldListener>) {
        if self.core.is_current() {
            self.hold.remove_group_listener(group);
        }
    }

    /// Stores the id of the guard's listener, which the drop removes from the hold. `None` stores
    /// nothing.
    fn set_listener(&self, listener: Option<ListenerId>) {
        if let Some(listener) = listener {
            // Set once: repeated calls at a guard return the same channel.
            let _first = self.extras().listener.set(listener);
        }
    }

    /// Returns a view for queries while the guard is behind a lock.
    pub(crate) fn view(&self) -> View {
        View { clock: Arc::clone(&self.core.clock), hold: Arc::clone(&self.hold) }
    }

    /// Whether the hold was reported to be over. Does not call the clock.
    pub(crate) fn is_over(&self) -> bool {
        self.hold.is_over()
    }

    /// Returns how the hold was lost, if the loss was reported.
    pub(crate) fn lost_reason(&self) -> Option<LostReason> {
        self.hold.lost_reason()
    }

    /// Releases the guard without a wait, without a call of the clock, and without a drop of the
    /// guard. After the last guard, a renewal thread ends the hold and sends the release. A count
    /// on the server stays one too high, which the last release ignores.
    pub(crate) fn abandon(&mut self) {
        let released = std::mem::replace(&mut self.released, true);
        if released || !self.core.is_current() || self.hold.is_over() {
            return;
        }
        if self.hold.remove_guard(self.is_watched()) == 0 {
            self.core.watchdog.end_in_background(&self.hold, None);
        }
    }

    pub(crate) fn lock_name(&self) -> &LockName {
        &self.hold.name
    }

    pub(crate) fn name(&self) -> String {
        self.hold.name.shown()
    }

    pub(crate) fn owner(&self) -> &str {
        if !self.core.is_current() {
            // Leaked: the parent's text may have been copied while a thread made it.
            return self.hold.owner.to_string().leak();
        }
        self.extras().owner.get_or_init(|| self.hold.owner.to_string())
    }

    pub(crate) fn hold_owner(&self) -> &Owner {
        &self.hold.owner
    }

    /// Returns the fencing token of the hold; `None` before the first draw.
    pub(crate) fn token(&self) -> Option<u64> {
        // A child of a fork must not touch the parent's locks.
        if self.core.is_current() { self.hold.token() } else { None }
    }

    /// Returns the fencing token of the hold, drawn by the server unless the hold has a token.
    pub(crate) fn draw_token(&self) -> Result<u64, Error> {
        self.check()?;
        token_of(&self.core, &self.hold)
    }

    /// Releases the guard and waits for the answer, for
    /// [`retry_timeout`](crate::model::settings::Settings::retry_timeout) at most.
    pub(crate) fn release(mut self) -> Result<(), Error> {
        self.released = true;
        self.send_release(self.core.settings.retry_timeout(), RetryLimit::UntilAnswered)
    }

    /// Releases the guard, but leaves the key for the rest of the certain validity.
    pub(crate) fn keep_until_lease_ends(self) -> Result<(), Error> {
        if self.core.is_current()
            && let Some(until) = self.hold.valid_until()
        {
            self.hold.keep_until(until);
        }
        self.release()
    }

    /// Releases the guard as a drop does. Returns an error if the hold is lost, or if the release
    /// could not be sent without a wait and got no answer.
    pub(crate) fn release_on_drop(mut self) -> Result<(), Error> {
        self.released = true;
        self.send_release_on_drop()
    }

    /// Releases the guard in one attempt, waits for `timeout` at most, and returns the result. If
    /// `timeout` is zero, queues the release.
    pub(crate) fn release_within(mut self, timeout: Duration) -> Result<(), Error> {
        if timeout.is_zero() {
            return self.defer_release();
        }
        self.released = true;
        let timeout = timeout.min(self.core.settings.command_timeout);
        self.send_release(timeout, RetryLimit::One)
    }

    /// Releases the guard without waiting: the hold is over at once, and the renewal thread sends
    /// the release.
    pub(crate) fn defer_release(self) -> Result<(), Error> {
        self.begin_release().map(GuardRelease::queue)
    }

    /// Counts the guard off the hold, and ends the hold after its last guard. The caller sends the
    /// returned release. Returns an error if the hold was over.
    pub(crate) fn begin_release(mut self) -> Result<GuardRelease, Error> {
        self.released = true;
        self.check_home()?;
        GuardRelease::begin(&self.core, &self.hold, self.is_watched())
    }

    /// Whether a batch may carry the release: the guard is the last guard of a plain lock, and
    /// nothing of the hold stays.
    pub(crate) fn is_released_in_batch(&self) -> bool {
        self.core.is_current()
            && self.reuse == Reuse::Never
            && self.hold.kind == Kind::Reentrant
            && self.hold.kept_until().is_none()
            && self.hold.guards() == 1
    }

    /// Whether both guards are of the same client, and so of the same server.
    pub(crate) fn same_client(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.core, &other.core)
    }

    /// Formats the guard as a guard of the type `guard`.
    pub(crate) fn fmt_as(&self, guard: &str, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct(guard)
            .field("name", &self.name())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }

    /// Returns the extras of the guard, made at the first call.
    fn extras(&self) -> &Extras {
        self.extras.get_or_init(Box::default)
    }

    /// Hands the hold over or caches the hold, or else sends the release for `timeout` at most and
    /// returns the server's verdict.
    fn send_release(&self, timeout: Duration, limit: RetryLimit) -> Result<(), Error> {
        self.hand_over_or_begin()?.map_or(Ok(()), |mut release| release.send(timeout, limit))
    }

    /// Hands the hold over or caches the hold, or else sends the release, usually without waiting
    /// for the reply. Never panics, even if the clock does.
    fn send_release_on_drop(&self) -> Result<(), Error> {
        let send =
            || self.hand_over_or_begin()?.map_or(Ok(()), |mut release| release.send_on_drop());
        self.core.watchdog.context.catch_panic(send).unwrap_or_else(|| Err(unsent_release()))
    }

    /// Hands the hold over or caches the hold, if [`Reuse`] allows, and returns `None`. Otherwise
    /// counts the guard off the hold, and returns the begun release. Returns an error if the hold
    /// was over.
    fn hand_over_or_begin(&self) -> Result<Option<GuardRelease>, Error> {
        self.check_home()?;
        let is_reused = match self.reuse {
            Reuse::Never => false,
            Reuse::HandOver => hand_over(&self.core, &self.hold),
            Reuse::Cache(time) => {
                hand_over(&self.core, &self.hold) || cache(&self.core, &self.hold, time)
            }
        };
        if is_reused {
            return Ok(None);
        }
        GuardRelease::begin(&self.core, &self.hold, self.is_watched()).map(Some)
    }

    /// Returns an error in a child of a fork: the hold is the parent's, and so are the locks inside
    /// these structures. Only constant fields are read, and nothing is dropped.
    fn check_home(&self) -> Result<(), Error> {
        if self.core.is_current() {
            return Ok(());
        }
        std::mem::forget((Arc::clone(&self.core), Arc::clone(&self.hold)));
        Err(Error::Lost { name: self.name(), reason: LostReason::Forked })
    }
}

/// A hold and its clock. A view does not keep the client alive, so a drop is harmless anywhere.
#[derive(Debug)]
pub(crate) struct View {
    clock: Arc<dyn Clock>,
    hold: Arc<Hold>,
}

impl View {
    pub(crate) fn is_held(&self) -> bool {
        self.hold.is_held(self.clock.now())
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.hold.remaining(self.clock.now())
    }

    /// Whether the hold was reported to be over.
    pub(crate) fn is_over(&self) -> bool {
        self.hold.is_over()
    }

    /// Whether the hold was found to be lost.
    pub(crate) fn was_lost(&self) -> bool {
        self.hold.lost_reason().is_some()
    }

    /// Makes the error with the reason of the loss, once the hold is over.
    pub(crate) fn lost(&self) -> Error {
        let reason = self.hold.lost_reason().unwrap_or_else(|| self.hold.reason_of_end());
        Error::Lost { name: self.hold.name.shown(), reason }
    }
}

impl Drop for RawGuard {
    fn drop(&mut self) {
        if self.extras.get().is_some() && !self.core.is_current() {
            // The parent owns the channel.
            std::mem::forget(std::mem::take(&mut self.extras));
        }
        if !self.released {
            // A failure is not swallowed: the release is queued, and the renewal thread finishes
            // the queued release.
            drop(self.send_release_on_drop());
        }
        // Last, so that the listeners still receive a loss found by ending the hold.
        let Some(extras) = self.extras.get().filter(|_| self.core.is_current()) else { return };
        if let Some(listener) = extras.listener.get() {
            self.hold.remove_listener(*listener);
        }
        if let Some((end, listener)) = extras.awaited.get() {
            if let Some(listener) = listener {
                self.hold.remove_listener(*listener);
            }
            end.resolve(None);
        }
        if let Some((signal, listener)) = extras.revocation.get() {
            if let Some(listener) = listener {
                self.hold.remove_listener(*listener);
            }
            signal.close();
        }
    }
}

impl fmt::Debug for RawGuard {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_as("RawGuard", formatter)
    }
}
