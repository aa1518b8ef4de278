//! The permits of one acquire, all released in one request.
//!
//! A watched permit is a hold like a lock's, and every permit with an id is released as a hold. The
//! permit's id is the hold's owner, shortened to sixteen bytes. So the wheel, the renewal threads
//! and the ledger handle permits as holds.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use std::{iter, mem};

use crossbeam_channel::Receiver;

use crate::core::client_core::ClientCore;
use crate::core::extend::{Prolonged, extend, prolong};
use crate::core::fencing::{draw, token_of};
use crate::core::lost_future::LostFuture;
use crate::core::named::dedup_ttl;
use crate::core::release::{end_hold, late_release, send_and_settle, send_on_drop};
use crate::error::{Error, LostReason};
use crate::events::acquires::MetricsLabel;
use crate::hold::hold::Hold;
use crate::hold::listener::HoldListener;
use crate::hold::loss_signal::LossSignal;
use crate::ledger::release::{Release, ReleaseOp};
use crate::model::kind::{Kind, Layout};
use crate::model::lease::Lease;
use crate::model::name::LockName;
use crate::model::owner::{LocalHolder, Owner};
use crate::model::permit_id::PermitId;
use crate::model::release_no::ReleaseNo;
use crate::model::validity::Validity;
use crate::ops::ReleasePermits;
use crate::ops::by_kind::HoldId;
use crate::ops::value::ServerTime;
use crate::store::retry::RetryLimit;
use crate::watchdog::settle::NotReleased;

/// The lease of acquired permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PermitLease {
    /// No lease: the permits last until the release.
    Endless,
    /// This lease, without renewal.
    Leased(Lease),
    /// The watchdog lease, with renewal.
    Watched,
}

impl PermitLease {
    /// Returns the lease in a request of the client `core`, `None` without a lease.
    pub(crate) fn lease(self, core: &ClientCore) -> Option<Lease> {
        match self {
            Self::Endless => None,
            Self::Leased(lease) => Some(lease),
            Self::Watched => Some(core.settings.watchdog_lease),
        }
    }
}

/// The held permits of one acquire, given back on drop in one request.
pub(crate) struct HeldPermits {
    core: Arc<ClientCore>,
    name: LockName,
    owners: Vec<Owner>,
    ids: Vec<PermitId>,
    expiry: Expiry,
    granted_at: Instant,
    /// The time until which late copies of the acquire may arrive.
    late_copy_deadline: Option<ServerTime>,
    /// The begun releases: of the first permits, in the order of the permits.
    releases: Vec<ReleaseNo>,
    progress: Progress,
    /// The fencing token, once drawn.
    token: OnceLock<u64>,
}

/// How far the release of permits is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// No release has begun.
    Held,
    /// The release is in progress. If the clock panics, the renewal thread finishes the release.
    Releasing,
    /// The permits are given back, or left taken.
    Done,
}

/// The end of the permits, as far as this client knows.
enum Expiry {
    Endless,
    Leased(Validity),
    Watched {
        /// A hold for each permit.
        holds: Vec<Arc<Hold>>,
        lost: LossSignal,
    },
}

impl Expiry {
    /// Returns the expiry of watched permits with these `owners`, granted to a request sent at
    /// `sent_at`, with a new hold for each permit. The watchdog does not know the holds yet.
    fn watched(
        core: &ClientCore,
        name: &LockName,
        owners: &[Owner],
        sent_at: Instant,
        late_copy_deadline: Option<ServerTime>,
    ) -> Self {
        let new = |owner: &Owner| {
            let id = HoldId { kind: Kind::Permit, name: name.clone(), owner: owner.clone() };
            // Permits do not nest, so any holder will do.
            let holder = LocalHolder::current_thread();
            let lease = core.settings.watchdog_lease;
            Arc::new(Hold::new(id, holder, lease, true, sent_at, late_copy_deadline))
        };
        Self::Watched { holds: owners.iter().map(new).collect(), lost: LossSignal::new() }
    }
}

/// The request that releases permits already ended in this process, with the numbers of the
/// releases in the ledger.
struct EndedPermits {
    releases: Vec<ReleaseNo>,
    operation: ReleaseOp,
    /// The time until which all permits would have been valid.
    valid_until: Option<Instant>,
}

/// How long the release of permits without a lease is retried.
pub(crate) const LONGEST_RETRY: Duration = Duration::from_secs(24 * 3600);

impl HeldPermits {
    /// Returns the permits of `owners`, granted to a request sent at `sent_at`. Late copies of the
    /// request may arrive until `late_copy_deadline`. Registers watched permits with the watchdog.
    pub(crate) fn new(
        core: Arc<ClientCore>,
        name: LockName,
        owners: Vec<Owner>,
        lease: PermitLease,
        sent_at: Instant,
        late_copy_deadline: Option<ServerTime>,
    ) -> Self {
        let expiry = match lease {
            PermitLease::Endless => Expiry::Endless,
            PermitLease::Leased(lease) => {
                Expiry::Leased(Validity::new(sent_at, lease.valid_until(sent_at)))
            }
            PermitLease::Watched => {
                Expiry::watched(&core, &name, &owners, sent_at, late_copy_deadline)
            }
        };
        let held = Self {
            core,
            name,
            ids: owners.iter().map(PermitId::of).collect(),
            owners,
            expiry,
            granted_at: sent_at,
            late_copy_deadline,
            releases: Vec::new(),
            progress: Progress::Held,
            token: OnceLock::new(),
        };
        held.begin_to_watch(sent_at);
        held
    }

    /// Marks the holds as counted acquires, so the ends of the holds are counted, too.
    pub(crate) fn count(&self) {
        if let Expiry::Watched { holds, .. } = &self.expiry {
            for hold in holds {
                hold.set_metrics_label(MetricsLabel::NONE);
            }
        }
    }

    pub(crate) fn ids(&self) -> &[PermitId] {
        &self.ids
    }

    pub(crate) fn name(&self) -> String {
        self.name.shown()
    }

    /// Whether all permits are held for certain.
    pub(crate) fn is_valid(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// How long all permits are held for certain, without a further renewal.
    pub(crate) fn remaining(&self) -> Duration {
        if !self.core.is_current() {
            return Duration::ZERO;
        }
        let now = self.core.now();
        match &self.expiry {
            Expiry::Endless => Duration::MAX,
            Expiry::Leased(validity) => validity.remaining(now),
            Expiry::Watched { holds, .. } => {
                holds.iter().map(|hold| hold.remaining(now)).min().unwrap_or_default()
            }
        }
    }

    /// Asks the server for `lease` from now on, for all permits. Permits with a later end are
    /// unchanged.
    pub(crate) fn extend(&self, lease: Lease) -> Result<(), Error> {
        self.check_home()?;
        match &self.expiry {
            // Permits without a lease last until the release.
            Expiry::Endless => Ok(()),
            Expiry::Leased(validity) => self.prolong(validity, lease).map(|_sent_at| ()),
            Expiry::Watched { holds, .. } => holds.iter().try_for_each(|hold| {
                extend(&self.core, hold, lease, false, RetryLimit::UntilAnswered)
            }),
        }
    }

    /// Gives the permits the watchdog lease, and makes the watchdog renew the permits from now on.
    /// Does nothing for watched permits. Returns an error for permits without a lease.
    pub(crate) fn watch(&mut self) -> Result<(), Error> {
        self.check_home()?;
        let validity = match &self.expiry {
            Expiry::Endless => {
                let reason = "a permit without a lease; acquire it from a watched semaphore";
                return Err(Error::invalid_setting("watch", reason));
            }
            Expiry::Leased(validity) => validity,
            Expiry::Watched { .. } => return Ok(()),
        };
        if self.core.is_shut_down() {
            return Err(Error::Shutdown);
        }
        if self.core.watchdog.is_dead(&self.name) {
            return Err(Error::WatchdogGone);
        }
        let sent_at = self.prolong(validity, self.core.settings.watchdog_lease)?;
        let late = self.late_copy_deadline;
        self.expiry = Expiry::watched(&self.core, &self.name, &self.owners, sent_at, late);
        self.begin_to_watch(sent_at);
        if let Expiry::Watched { holds, .. } = &self.expiry
            && self.core.is_shut_down()
        {
            // The shutdown may have ended all holds before these holds were added.
            for hold in holds {
                // A release that does not fit into the queue is counted.
                self.core.release_at_shutdown(hold);
            }
            return Err(Error::Shutdown);
        }
        self.count();
        Ok(())
    }

    /// Asks the server for `lease` from now on, and moves the end of `validity`. Returns the time
    /// at which the request was sent, or the loss if a permit has expired or is unknown to the
    /// server.
    fn prolong(&self, validity: &Validity, lease: Lease) -> Result<Instant, Error> {
        let core = &*self.core;
        let expired = || self.lost_by(LostReason::Expired);
        validity.holds(core.now()).then_some(()).ok_or_else(expired)?;
        let Prolonged { sent_at, losses } = prolong(
            core,
            &self.name,
            Layout::Permit,
            &self.owners,
            lease,
            RetryLimit::UntilAnswered,
        )?;
        if let Some(reason) = losses.into_iter().flatten().next() {
            validity.end(core.now());
            return Err(self.lost_by(reason));
        }
        let is_valid = validity.extend(core.now(), lease.valid_until(sent_at));
        is_valid.then_some(sent_at).ok_or_else(expired)
    }

    /// Returns the fencing token of all permits. At the first call the server draws the token, for
    /// the first permit.
    pub(crate) fn draw_token(&self) -> Result<u64, Error> {
        self.check_home()?;
        if let Expiry::Watched { holds, .. } = &self.expiry
            && let Some(hold) = holds.first()
        {
            holds.iter().try_for_each(|hold| self.core.check(hold))?;
            // Drawn before the permits were watched.
            if let Some(token) = self.token.get() {
                return Ok(*token);
            }
            return token_of(&self.core, hold);
        }
        if !self.is_valid() {
            return Err(self.lost_by(LostReason::Expired));
        }
        if let Some(token) = self.token.get() {
            return Ok(*token);
        }
        let (kind, name) = (Kind::Permit, self.name.clone());
        let Some(owner) = self.owners.first().cloned() else {
            return Err(self.lost_by(LostReason::Deleted));
        };
        match draw(&self.core, &HoldId { kind, name, owner })? {
            Some(token) => Ok(*self.token.get_or_init(|| token)),
            None => Err(self.lost_by(LostReason::Deleted)),
        }
    }

    /// Registers the holds of watched permits with the watchdog. If the clock panics, the drop
    /// gives the permits back.
    fn begin_to_watch(&self, sent_at: Instant) {
        if let Expiry::Watched { holds, .. } = &self.expiry {
            for hold in holds {
                self.core.holds.insert(hold);
                self.core.watchdog.watch(hold, sent_at);
            }
        }
    }

    /// Returns a channel for the reason of the first loss; `None` unless the permits are watched.
    pub(crate) fn lost(&self) -> Option<&Receiver<LostReason>> {
        let Expiry::Watched { holds, lost } = &self.expiry else {
            return None;
        };
        Some(lost.channel(|listener| listen(holds, &listener)))
    }

    /// Returns a future of the first loss; `None` unless the permits are watched.
    pub(crate) fn lost_future(&self) -> Result<Option<LostFuture>, Error> {
        let Expiry::Watched { holds, lost } = &self.expiry else {
            return Ok(None);
        };
        let end = lost.awaited_end(&self.core.wakers, |listener| listen(holds, &listener))?;
        Ok(Some(LostFuture::of(end)))
    }

    /// Leaves the permits taken, and ends the renewal.
    pub(crate) fn detach(mut self) {
        self.progress = Progress::Done;
        if let Expiry::Watched { holds, .. } = &self.expiry
            && self.core.is_current()
        {
            for hold in holds {
                // The loss of a lost hold was reported, and the server no longer knows the id.
                let _ended = self.core.watchdog.forget(hold);
            }
        }
    }

    /// Gives the permits back and waits for the answer, for at most
    /// [`retry_timeout`](crate::model::settings::Settings::retry_timeout).
    pub(crate) fn release(mut self) -> Result<(), Error> {
        self.check_home()?;
        self.progress = Progress::Releasing;
        let (ended, first_loss) = self.end();
        let timeout = self.core.settings.retry_timeout();
        let released = first_loss.and(self.send(&ended, timeout, RetryLimit::UntilAnswered));
        self.progress = Progress::Done;
        released
    }

    /// Gives the permits back when the guard is dropped. Waits for the reply only if `wait_on_drop`
    /// is set or the release cannot be sent at once.
    fn release_on_drop(&mut self) -> Result<(), Error> {
        self.check_home()?;
        let (ended, first_loss) = self.end();
        let EndedPermits { releases, operation, .. } = &ended;
        if releases.is_empty() {
            return first_loss;
        }
        let (core, name) = (&*self.core, &self.name);
        let wait = |left| self.send(&ended, left, RetryLimit::One);
        let queue = || self.queue(releases);
        first_loss.and(send_on_drop(core, name, false, wait, queue, |limit| {
            core.watchdog.send_unread(releases, (name, operation), core.now(), limit)
        }))
    }

    /// Returns [`Error::Lost`] in the child of a fork. The permits and the mutexes in these
    /// structures belong to the parent, so the child drops nothing.
    fn check_home(&self) -> Result<(), Error> {
        if self.core.is_current() {
            return Ok(());
        }
        mem::forget(Arc::clone(&self.core));
        if let Expiry::Watched { holds, .. } = &self.expiry {
            mem::forget(holds.clone());
        }
        Err(self.lost_by(LostReason::Forked))
    }

    /// Ends the permits in this process and begins their releases in the ledger, before the first
    /// byte is sent. Returns the release to send, without permits lost before, and the first loss.
    fn end(&mut self) -> (EndedPermits, Result<(), Error>) {
        let (core, releases) = (&*self.core, &self.core.watchdog.releases);
        let (mut ended, mut ids) = (Vec::new(), Vec::new());
        let (mut valid_until, mut first_loss) = (None, Ok(()));
        if let Expiry::Watched { holds, .. } = &self.expiry {
            valid_until = holds.iter().filter_map(|hold| hold.valid_until()).min();
            for hold in holds {
                let until = hold.valid_until();
                let no = releases.begin(releases.of_hold(hold).ending(hold, until));
                self.releases.push(no);
                match end_hold(core, hold, no) {
                    Ok(()) => {
                        ended.push(no);
                        ids.push(PermitId::of(&hold.owner));
                    }
                    Err(error) => first_loss = first_loss.and(Err(error)),
                }
            }
        } else {
            if let Expiry::Leased(validity) = &self.expiry {
                valid_until = validity.until();
            }
            for owner in &self.owners {
                let (name, owner) = (self.name.clone(), owner.clone());
                let id = HoldId { kind: Kind::Permit, name, owner };
                let release =
                    Release::new(id.into(), None, self.longest(), self.late_copy_deadline);
                self.releases.push(releases.begin(release));
            }
            (ended, ids) = (self.releases.clone(), self.ids.clone());
        }
        let (name, owner) = (self.name.clone(), core.id.next_owner());
        // While the server remembers the release, a late copy of the acquire takes nothing.
        let remembered = self.late_copy_deadline.map_or(Duration::ZERO, |_| dedup_ttl(core));
        let operation = Arc::new(ReleasePermits::new(name, ids, owner, remembered));
        (EndedPermits { releases: ended, operation, valid_until }, first_loss)
    }

    /// Sends the release `ended` within `timeout`, with retries up to `limit`, and settles the
    /// releases in the ledger. Returns the outcome. Sends nothing if all permits were lost before.
    fn send(
        &self,
        ended: &EndedPermits,
        timeout: Duration,
        limit: RetryLimit,
    ) -> Result<(), Error> {
        let (core, EndedPermits { releases, operation, valid_until }) = (&*self.core, ended);
        if releases.is_empty() {
            return Ok(());
        }
        let is_endless = matches!(self.expiry, Expiry::Endless);
        let in_time = |now| is_endless || valid_until.is_some_and(|end| now < end);
        let sent =
            send_and_settle(core, releases, operation, &self.name, (timeout, limit), in_time);
        sent?.verdict.map_err(|unknown| self.error(unknown))
    }

    /// Queues the releases with the watchdog. Releases rejected by a full queue are counted.
    fn queue(&self, releases: &[ReleaseNo]) {
        let now = self.core.now();
        for no in releases {
            self.core.watchdog.releases.queue(*no, now);
        }
    }

    /// Queues a release cut short by a panic of the clock, for the renewal thread to send.
    fn release_in_background(&self) {
        let watchdog = &self.core.watchdog;
        if let Expiry::Watched { holds, .. } = &self.expiry {
            let begun = self.releases.iter().map(|no| Some(*no)).chain(iter::repeat(None));
            for (hold, release) in holds.iter().zip(begun) {
                watchdog.end_in_background(hold, release);
            }
        } else {
            let now = watchdog.context.catch_panic(|| self.core.now()).unwrap_or(self.granted_at);
            for no in &self.releases {
                watchdog.releases.queue(*no, now);
            }
        }
    }

    /// Returns how long the permits may stay on the server without a release: the lease of leased
    /// permits, else [`LONGEST_RETRY`].
    fn longest(&self) -> Duration {
        match &self.expiry {
            Expiry::Leased(validity) => validity
                .until()
                .map_or(LONGEST_RETRY, |until| until.saturating_duration_since(self.granted_at)),
            Expiry::Endless | Expiry::Watched { .. } => LONGEST_RETRY,
        }
    }

    /// Converts the finding that the permits were not released to an error.
    fn error(&self, not_released: NotReleased) -> Error {
        match not_released {
            NotReleased::Lost(reason) => self.lost_by(reason),
            NotReleased::Unknown => late_release(),
        }
    }

    /// Returns the error for the loss of the permits with `reason`.
    fn lost_by(&self, reason: LostReason) -> Error {
        Error::Lost { name: self.name(), reason }
    }
}

/// Registers `listener` for the loss of each hold.
fn listen(holds: &[Arc<Hold>], listener: &Arc<dyn HoldListener>) {
    for hold in holds {
        hold.add_listener(Arc::clone(listener));
    }
}

impl Drop for HeldPermits {
    fn drop(&mut self) {
        let progress = mem::replace(&mut self.progress, Progress::Releasing);
        // A failed release is queued.
        let is_done = match progress {
            Progress::Held => {
                let core = Arc::clone(&self.core);
                core.watchdog.context.catch_panic(|| drop(self.release_on_drop())).is_some()
            }
            Progress::Releasing => false,
            Progress::Done => true,
        };
        if !is_done {
            self.release_in_background();
        }
    }
}
