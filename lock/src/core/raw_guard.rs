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
use crate::core::release::{ReleaseInProgress, hand_over, unsent_release};
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

/// One of the guards of a hold. Dropping it releases it. Public only for a sealed trait: it cannot
/// be named outside of the crate.
pub struct RawGuard {
    core: Arc<ClientCore>,
    hold: Arc<Hold>,
    /// Whether the watchdog renews the hold for this guard.
    watched: AtomicBool,
    /// Who may get the hold when this was the last guard.
    reuse: Reuse,
    released: bool,
    /// Boxed, as hardly any of a hundred thousand guards has it.
    extras: OnceLock<Box<Extras>>,
}

/// Who may get a hold when its last guard is gone, before it is released on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reuse {
    Never,
    /// A thread of the client that waits.
    HandOver,
    /// The same, or an acquire that comes within this time.
    Cache(Duration),
}

/// What is made when a guard is asked for it.
#[derive(Default)]
struct Extras {
    lost: OnceLock<Receiver<LostReason>>,
    /// This guard's listener at the hold. It goes with the guard: others may nest the hold for
    /// long.
    listener: OnceLock<ListenerId>,
    /// What tasks await, and its listener.
    awaited: OnceLock<(Arc<AwaitedEnd>, Option<ListenerId>)>,
    /// A request for the hold, and its listener.
    revocation: OnceLock<(Arc<RevocationSignal>, Option<ListenerId>)>,
    owner: OnceLock<String>,
}

impl RawGuard {
    pub(crate) fn new(core: Arc<ClientCore>, hold: Arc<Hold>, watched: bool) -> Self {
        let extras = OnceLock::new();
        let watched = AtomicBool::new(watched);
        Self { core, hold, watched, reuse: Reuse::Never, released: false, extras }
    }

    /// Sets who may get the hold when this was the last guard.
    pub(crate) fn reused_by(mut self, reuse: Reuse) -> Self {
        self.reuse = reuse;
        self
    }

    pub(crate) fn is_held(&self) -> bool {
        self.core.is_current() && self.hold.is_held(self.core.now())
    }

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

    /// Asks the server for `lease` from now on. The hold lasts at least that long.
    pub(crate) fn extend(&self, lease: Duration) -> Result<(), Error> {
        self.check()?;
        extend(&self.core, &self.hold, Lease::new(lease)?, false, RetryLimit::UntilAnswered)
    }

    /// The watchdog renews the hold until this guard is gone.
    pub(crate) fn watch(&self) -> Result<(), Error> {
        self.check()?;
        // Whoever sets it asks: of two calls side by side, one.
        if self.watched.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let lease = self.core.settings.watchdog_lease;
        extend(&self.core, &self.hold, lease, true, RetryLimit::UntilAnswered)
            .inspect_err(|_| self.watched.store(false, Ordering::Relaxed))
    }

    /// The hold, for an extension while the guard is behind a lock.
    pub(crate) fn parts(&self) -> (Arc<ClientCore>, Arc<Hold>) {
        (Arc::clone(&self.core), Arc::clone(&self.hold))
    }

    pub(crate) fn is_of(&self, hold: &Arc<Hold>) -> bool {
        Arc::ptr_eq(&self.hold, hold)
    }

    /// The watchdog renews the hold for this guard too, from now on. False if it does already, or
    /// the guard was released.
    pub(crate) fn set_watched(&self) -> bool {
        !self.released && !self.watched.swap(true, Ordering::Relaxed)
    }

    /// Whether the watchdog renews the hold for this guard.
    fn is_watched(&self) -> bool {
        // Relaxed: the flag is changed by whoever has a reference, and read when there is none.
        self.watched.load(Ordering::Relaxed)
    }

    pub(crate) fn lost(&self) -> &Receiver<LostReason> {
        if !self.core.is_current() {
            return forked_channel();
        }
        self.extras().lost.get_or_init(|| {
            let (lost, listener) = self.hold.listen();
            self.keep(listener);
            lost
        })
    }

    /// A future that ends when the hold is over. An error if the thread that wakes its task cannot
    /// be started.
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

    /// From now on this client hears requests for its locks.
    pub(crate) fn hear_requests(&self) {
        self.core.waits.hear_requests(&self.core.store);
    }

    /// The record of this client has what the holder says of itself, from now on.
    pub(crate) fn advertise(&self, value: &Arc<str>) {
        let owner = self.hold.owner.to_string();
        self.core.watchdog.record.advertise(&owner, value, self.core.now());
    }

    /// The holder says nothing of itself any more.
    pub(crate) fn stop_advertising(&self) {
        self.core.watchdog.record.stop_advertising(&self.hold.owner.to_string());
    }

    /// What learns of a request for the hold. `None` in the child of a fork.
    pub(crate) fn revocation(&self) -> Option<&Arc<RevocationSignal>> {
        if !self.core.is_current() {
            return None;
        }
        self.hear_requests();
        let (signal, _) = self.extras().revocation.get_or_init(|| {
            let signal = RevocationSignal::new();
            let listener = self.hold.add_listener(Arc::clone(&signal) as _);
            (signal, listener)
        });
        Some(signal)
    }

    /// A future of a request for the hold. An error if the thread that wakes its task cannot be
    /// started.
    pub(crate) fn revocation_future(&self) -> Result<RevocationFuture, Error> {
        RevocationFuture::of(self.revocation(), &self.core.wakers)
    }

    /// What wakes the tasks that await its loss.
    pub(crate) fn wakers(&self) -> Arc<WakerThread> {
        Arc::clone(&self.core.wakers)
    }

    /// Notifies `listener` if the hold is lost while this guard is there. Once for each guard.
    pub(crate) fn add_listener(&self, listener: Arc<dyn HoldListener>) {
        if self.core.is_current() {
            self.keep(self.hold.add_listener(listener));
        } else {
            listener.on_lost(LostReason::Forked);
        }
    }

    /// Notifies a group of holds when this hold is lost, until it [leaves](Self::leave_group). The
    /// group may have a hundred thousand guards, so nothing is kept for each.
    pub(crate) fn join_group(&self, group: Arc<dyn HoldListener>) {
        if self.core.is_current() {
            let _id = self.hold.add_listener(group);
        } else {
            group.on_lost(LostReason::Forked);
        }
    }

    pub(crate) fn leave_group(&self, group: &Arc<dyn HoldListener>) {
        if self.core.is_current() {
            self.hold.remove_group_listener(group);
        }
    }

    fn keep(&self, listener: Option<ListenerId>) {
        if let Some(listener) = listener {
            // Set once: a guard that is asked again gives the same channel.
            let _first = self.extras().listener.set(listener);
        }
    }

    /// What is needed to look at it while it is behind a lock.
    pub(crate) fn view(&self) -> View {
        View { clock: Arc::clone(&self.core.clock), hold: Arc::clone(&self.hold) }
    }

    /// Whether its hold was reported to be over. Does not call the clock.
    pub(crate) fn is_over(&self) -> bool {
        self.hold.is_over()
    }

    /// How its hold was lost, if that was reported.
    pub(crate) fn lost_reason(&self) -> Option<LostReason> {
        self.hold.lost_reason()
    }

    /// Releases it where nothing may wait, the clock must not be called, and it cannot be dropped:
    /// the renewal worker does the rest. A count on the server stays one too high, which the last
    /// release ignores.
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
            // Leaked: the parent's text may have been copied while it was made.
            return self.hold.owner.to_string().leak();
        }
        self.extras().owner.get_or_init(|| self.hold.owner.to_string())
    }

    pub(crate) fn hold_owner(&self) -> &Owner {
        &self.hold.owner
    }

    /// The fencing token of the hold; `None` if none was drawn yet.
    pub(crate) fn token(&self) -> Option<u64> {
        // A child of a fork must not touch the parent's locks.
        if self.core.is_current() { self.hold.token() } else { None }
    }

    /// The fencing token of the hold, which the server draws unless the hold has one.
    pub(crate) fn draw_token(&self) -> Result<u64, Error> {
        self.check()?;
        token_of(&self.core, &self.hold)
    }

    /// Releases it and waits for the answer, for
    /// [`retry_timeout`](crate::model::settings::Settings::retry_timeout) at most.
    pub(crate) fn release(mut self) -> Result<(), Error> {
        self.released = true;
        self.send_release(self.core.settings.retry_timeout(), RetryLimit::UntilAnswered)
    }

    /// Releases it, and its key stays for as long as it is held for certain now.
    pub(crate) fn keep_until_lease_ends(self) -> Result<(), Error> {
        if self.core.is_current()
            && let Some(until) = self.hold.valid_until()
        {
            self.hold.keep_until(until);
        }
        self.release()
    }

    /// Releases it as dropping it does. An error if it was found to be lost, or could not be sent
    /// without a wait and got no answer.
    pub(crate) fn release_on_drop(mut self) -> Result<(), Error> {
        self.released = true;
        self.send_release_on_drop()
    }

    /// Releases it in one attempt, waits no longer than `timeout`, and returns the result.
    pub(crate) fn release_within(mut self, timeout: Duration) -> Result<(), Error> {
        if timeout.is_zero() {
            return self.defer_release();
        }
        self.released = true;
        let timeout = timeout.min(self.core.settings.command_timeout);
        self.send_release(timeout, RetryLimit::One)
    }

    /// Releases it without waiting: the hold is over at once, and the renewal worker tells the
    /// server.
    pub(crate) fn defer_release(self) -> Result<(), Error> {
        self.begin_release().map(ReleaseInProgress::queue)
    }

    /// Ends the hold, and leaves it to the caller to tell the server. An error if the hold was
    /// over.
    pub(crate) fn begin_release(mut self) -> Result<ReleaseInProgress, Error> {
        self.released = true;
        self.check_home()?;
        ReleaseInProgress::begin(&self.core, &self.hold, self.is_watched())
    }

    /// Whether its release may be sent with others: it is the last guard of a plain lock, of which
    /// nothing stays.
    pub(crate) fn is_released_in_batch(&self) -> bool {
        self.core.is_current()
            && self.reuse == Reuse::Never
            && self.hold.kind == Kind::Reentrant
            && self.hold.kept_until().is_none()
            && self.hold.guards() == 1
    }

    /// Whether the two are of one client, and so of one server.
    pub(crate) fn same_client(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.core, &other.core)
    }

    /// What a guard of the type `guard` shows of itself.
    pub(crate) fn fmt_as(&self, guard: &str, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct(guard)
            .field("name", &self.name())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }

    fn extras(&self) -> &Extras {
        self.extras.get_or_init(Box::default)
    }

    fn send_release(&self, timeout: Duration, limit: RetryLimit) -> Result<(), Error> {
        self.hand_over_or_begin()?.map_or(Ok(()), |mut release| release.send(timeout, limit))
    }

    /// Never panics: the clock may.
    fn send_release_on_drop(&self) -> Result<(), Error> {
        let send =
            || self.hand_over_or_begin()?.map_or(Ok(()), |mut release| release.send_on_drop());
        self.core.watchdog.context.catch_panic(send).unwrap_or_else(|| Err(unsent_release()))
    }

    /// What the server is still to be told. Nothing, if another thread has the hold now, or the hold
    /// waits for the next acquire.
    fn hand_over_or_begin(&self) -> Result<Option<ReleaseInProgress>, Error> {
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
        ReleaseInProgress::begin(&self.core, &self.hold, self.is_watched()).map(Some)
    }

    /// An error in a child of a fork: the hold is the parent's, and so are the locks inside these
    /// structures. Only what never changes is read of them, and nothing is dropped.
    fn check_home(&self) -> Result<(), Error> {
        if self.core.is_current() {
            return Ok(());
        }
        std::mem::forget((Arc::clone(&self.core), Arc::clone(&self.hold)));
        Err(Error::Lost { name: self.name(), reason: LostReason::Forked })
    }
}

/// A hold and its clock. It does not keep the client, so it may be dropped anywhere.
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

    /// Whether it was reported to be over.
    pub(crate) fn is_over(&self) -> bool {
        self.hold.is_over()
    }

    /// Whether it was found to be lost.
    pub(crate) fn was_lost(&self) -> bool {
        self.hold.lost_reason().is_some()
    }

    /// How it was lost, if it is not held any more.
    pub(crate) fn lost(&self) -> Error {
        let reason = self.hold.lost_reason().unwrap_or_else(|| self.hold.reason_of_end());
        Error::Lost { name: self.hold.name.shown(), reason }
    }
}

impl Drop for RawGuard {
    fn drop(&mut self) {
        if self.extras.get().is_some() && !self.core.is_current() {
            // The parent's channel.
            std::mem::forget(std::mem::take(&mut self.extras));
        }
        if !self.released {
            // A failure is not swallowed: the release is queued, and the renewal worker finishes
            // it.
            drop(self.send_release_on_drop());
        }
        // Afterwards, so that they still get a loss that is found by ending the hold.
        let Some(extras) = self.extras.get().filter(|_| self.core.is_current()) else { return };
        if let Some(listener) = extras.listener.get() {
            self.hold.remove_listener(*listener);
        }
        if let Some((end, listener)) = extras.awaited.get() {
            if let Some(listener) = listener {
                self.hold.remove_listener(*listener);
            }
            end.come(None);
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
