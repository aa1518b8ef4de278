//! The permits of one acquire, and their release: all of them in one request (DESIGN: semaphores).

use std::mem;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

use crate::error::{Error, LostReason};
use crate::hold::hold::Hold;
use crate::hold::inherited::LossSignal;
use crate::hold::listener::LossListener;
use crate::ledger::release::{QueuedRelease, ReleaseId};
use crate::lock::lost_future::LostFuture;
use crate::model::kind::Kind;
use crate::model::lease::Lease;
use crate::model::name::LockName;
use crate::model::owner::{LocalHolder, Owner};
use crate::model::permit_id::PermitId;
use crate::model::validity::Validity;
use crate::ops::by_kind::HoldId;
use crate::ops::value::ServerTime;
use crate::ops::{Found, ReleasePermits};
use crate::runtime::client_core::ClientCore;
use crate::runtime::named::dedup_ttl;
use crate::runtime::release::{
    NotReleased, classify_release, end_hold, forget_hold, late_release, permit_releases,
    permits_released, send_on_drop,
};
use crate::store::retry::{RetryLimit, map_failure};

/// The lease that permits are acquired with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PermitLease {
    /// None: until they are given back.
    Endless,
    Leased(Lease),
    /// The watchdog's, which is renewed.
    Watched,
}

impl PermitLease {
    pub(crate) fn lease(self, core: &ClientCore) -> Option<Lease> {
        match self {
            Self::Endless => None,
            Self::Leased(lease) => Some(lease),
            Self::Watched => Some(core.settings.watchdog_lease),
        }
    }
}

/// Permits that are held. Dropping them gives them back.
pub(crate) struct HeldPermits {
    core: Arc<ClientCore>,
    name: LockName,
    ids: Vec<PermitId>,
    expiry: Expiry,
    granted_at: Instant,
    /// Whether late copies of the acquire may arrive.
    late_copies: bool,
    /// The release of permits that are not watched, once it has begun.
    release: OnceLock<Arc<ReleasePermits>>,
    progress: Progress,
}

/// How far the end of permits is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Held,
    /// Until it is done: if the clock panics, the renewal worker finishes it.
    Releasing,
    Done,
}

/// When they end, as far as this client knows.
enum Expiry {
    Endless,
    Leased(Validity),
    Watched {
        /// One for each permit.
        holds: Vec<Arc<Hold>>,
        lost: LossSignal,
    },
}

/// The holds of watched permits that have ended in this process, and their release.
struct EndedHolds {
    holds: Vec<Arc<Hold>>,
    release: Arc<ReleasePermits>,
    /// Until when all would have been valid.
    valid_until: Option<Instant>,
}

/// How long the release of permits without a lease is retried.
pub(crate) const LONGEST_RETRY: Duration = Duration::from_secs(24 * 3600);

impl HeldPermits {
    /// Permits that were granted to a request sent at `sent_at`, of which late copies may arrive
    /// until `late_copy_deadline`.
    pub(crate) fn new(
        core: Arc<ClientCore>,
        name: LockName,
        owners: &[Owner],
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
                let new = |owner: &Owner| {
                    let id =
                        HoldId { kind: Kind::Permit, name: name.clone(), owner: owner.clone() };
                    // Permits do not nest, so which holder it is does not matter.
                    let holder = LocalHolder::current_thread();
                    let lease = core.settings.watchdog_lease;
                    Arc::new(Hold::new(id, holder, lease, true, sent_at, late_copy_deadline))
                };
                let holds = owners.iter().map(new).collect();
                Expiry::Watched { holds, lost: LossSignal::new() }
            }
        };
        let held = Self {
            core,
            name,
            ids: owners.iter().map(PermitId::of).collect(),
            expiry,
            granted_at: sent_at,
            late_copies: late_copy_deadline.is_some(),
            release: OnceLock::new(),
            progress: Progress::Held,
        };
        // If the clock panics, they are given back.
        if let Expiry::Watched { holds, .. } = &held.expiry {
            for hold in holds {
                held.core.holds.insert(hold);
                held.core.watchdog.watch(hold, sent_at);
            }
        }
        held
    }

    pub(crate) fn ids(&self) -> &[PermitId] {
        &self.ids
    }

    pub(crate) fn name(&self) -> String {
        self.name.shown()
    }

    /// Whether all are held for certain.
    pub(crate) fn is_valid(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// How long all are held for certain, without a further renewal.
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

    /// A channel that gets the reason of the first loss; `None` unless they are watched.
    pub(crate) fn lost(&self) -> Option<&Receiver<LostReason>> {
        let Expiry::Watched { holds, lost } = &self.expiry else {
            return None;
        };
        Some(lost.channel(|listener| listen(holds, &listener)))
    }

    /// A future of the same.
    pub(crate) fn lost_future(&self) -> Result<Option<LostFuture>, Error> {
        let Expiry::Watched { holds, lost } = &self.expiry else {
            return Ok(None);
        };
        let end = lost.awaited_end(&self.core.wakers, |listener| listen(holds, &listener))?;
        Ok(Some(LostFuture::of(end)))
    }

    /// Leaves the permits taken. They are not renewed any more.
    pub(crate) fn detach(mut self) {
        self.progress = Progress::Done;
        if let Expiry::Watched { holds, .. } = &self.expiry
            && self.core.is_current()
        {
            for hold in holds {
                let _pending = self.core.watchdog.releases().begin_loss(hold);
                // If it was lost, that was reported, and the server does not know the id any more.
                drop(forget_hold(&self.core, hold));
            }
        }
    }

    /// Gives them back and waits for the answer, for
    /// [`retry_timeout`](crate::model::settings::Settings::retry_timeout) at most.
    pub(crate) fn release(mut self) -> Result<(), Error> {
        self.progress = Progress::Releasing;
        let timeout = self.core.settings.retry_timeout();
        let released = self.release_within(timeout, RetryLimit::UntilAnswered);
        self.progress = Progress::Done;
        released
    }

    fn release_within(&self, timeout: Duration, limit: RetryLimit) -> Result<(), Error> {
        self.check_home()?;
        match &self.expiry {
            Expiry::Watched { holds, .. } => {
                let (ended, first_loss) = self.end_holds(holds);
                first_loss.and(self.send_holds(&ended, timeout, limit))
            }
            Expiry::Endless | Expiry::Leased(_) => self.send_ids(&self.begin_ids(), timeout, limit),
        }
    }

    /// Gives them back when the guard is dropped: without waiting for the reply, unless the
    /// client's settings say so or it cannot be sent at once.
    fn release_on_drop(&self) -> Result<(), Error> {
        self.check_home()?;
        let (core, one) = (&*self.core, RetryLimit::One);
        match &self.expiry {
            Expiry::Watched { holds, .. } => {
                let (ended, first_loss) = self.end_holds(holds);
                let wait = |left| self.send_holds(&ended, left, one);
                let queue = || self.queue_holds(&ended);
                first_loss.and(send_on_drop(core, &self.name, false, wait, queue, |limit| {
                    let EndedHolds { holds, release, valid_until } = &ended;
                    core.watchdog.send_holds_unread(holds, release, *valid_until, limit)
                }))
            }
            Expiry::Endless | Expiry::Leased(_) => {
                let all = self.begin_ids();
                let wait = |left| self.send_ids(&all, left, one);
                let queue = || self.queue_ids(&all);
                send_on_drop(core, &self.name, false, wait, queue, |limit| {
                    let each = permit_releases(core, &self.name, &self.ids, self.dedup_ttl());
                    let (id, ttl) = (self.release_id(&all), self.ttl());
                    core.watchdog.send_permits_unread(id, &all, each, ttl, limit)
                })
            }
        }
    }

    /// An error in a child of a fork: the permits are the parent's, and so are the mutexes inside
    /// these structures. Nothing of them is dropped.
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

    /// The release of permits that are not watched, which is in flight from now on.
    fn begin_ids(&self) -> Arc<ReleasePermits> {
        let all = self.release.get_or_init(|| Arc::new(self.request(self.ids.clone())));
        self.core.watchdog.releases().begin_in_flight(self.release_id(all));
        Arc::clone(all)
    }

    fn send_ids(
        &self,
        all: &Arc<ReleasePermits>,
        timeout: Duration,
        limit: RetryLimit,
    ) -> Result<(), Error> {
        let answer = match self.core.call_within(&**all, timeout, limit) {
            Ok(answer) => answer,
            Err(error) => {
                if error.failure.is_wrong_key() {
                    self.core.watchdog.releases().end_in_flight(self.release_id(all));
                } else {
                    self.queue_ids(all);
                }
                return Err(error.failure.into_error(all, &self.name));
            }
        };
        let found = answer.reply.found;
        if found.is_released() {
            permits_released(&self.core, &self.name, &self.ids, answer.sent_at, self.ttl());
        } else if self.ids.len() > 1 {
            // Some were given back before, and then none is. The others are released one by one,
            // in the background.
            for (id, release) in
                permit_releases(&self.core, &self.name, &self.ids, self.dedup_ttl())
            {
                self.core.watchdog.queue_permit_release(id, release, self.ttl(), None);
            }
        }
        self.core.watchdog.releases().end_in_flight(self.release_id(all));
        classify_release(found, answer.late_copy_deadline, || self.is_valid())
            .map_err(|unknown| self.error(unknown))
    }

    /// Leaves the release of permits that are not watched to the watchdog. If too many are queued,
    /// that is counted.
    fn queue_ids(&self, all: &Arc<ReleasePermits>) {
        let id = self.release_id(all);
        let release = Arc::<ReleasePermits>::clone(all);
        self.core.watchdog.queue_permit_release(id.clone(), release, self.ttl(), None);
        self.core.watchdog.releases().end_in_flight(id);
    }

    /// Ends the holds in this process, before the first byte is sent. And the first error of those
    /// that were over before.
    fn end_holds(&self, holds: &[Arc<Hold>]) -> (EndedHolds, Result<(), Error>) {
        let valid_until = holds.iter().filter_map(|hold| hold.valid_until()).min();
        let mut first_loss = Ok(());
        let mut ended: Vec<Arc<Hold>> = Vec::with_capacity(holds.len());
        for hold in holds {
            match end_hold(&self.core, hold) {
                Ok(()) => ended.push(Arc::clone(hold)),
                Err(error) => first_loss = first_loss.and(Err(error)),
            }
        }
        let ids = ended.iter().map(|hold| PermitId::of(&hold.owner)).collect();
        let release = Arc::new(self.request(ids));
        (EndedHolds { holds: ended, release, valid_until }, first_loss)
    }

    /// Releases them in one request.
    fn send_holds(
        &self,
        ended: &EndedHolds,
        timeout: Duration,
        limit: RetryLimit,
    ) -> Result<(), Error> {
        let (core, EndedHolds { holds, release, valid_until }) = (&self.core, ended);
        if holds.is_empty() {
            return Ok(());
        }
        let answer = core.call_within(&**release, timeout, limit);
        // Of several, one that is missing keeps the others from being given back.
        let is_done = |found: Found| found.is_released() || holds.len() == 1;
        match answer.as_ref().ok().filter(|answer| is_done(answer.reply.found)) {
            Some(answer) => {
                for hold in holds {
                    core.watchdog.releases().end_in_flight(hold.id());
                    core.watchdog.log_release(answer.sent_at, hold);
                }
            }
            None => self.queue_holds(ended),
        }
        // What the answer means.
        let answer = map_failure(answer, &**release, &self.name)?;
        let in_time = || valid_until.is_some_and(|end| core.now() < end);
        let released = classify_release(answer.reply.found, answer.late_copy_deadline, in_time);
        if let ([only], Err(NotReleased::Lost(reason))) = (holds.as_slice(), &released) {
            // No other thread can have reported it. Of several, it is not known which was lost.
            core.watchdog.report_loss(only, *reason);
        }
        released.map_err(|unknown| self.error(unknown))
    }

    /// Leaves them to the watchdog, before they count as released.
    fn queue_holds(&self, ended: &EndedHolds) {
        for hold in &ended.holds {
            self.core.watchdog.queue_hold_release(hold);
        }
        for hold in &ended.holds {
            self.core.watchdog.releases().end_in_flight(hold.id());
        }
    }

    /// Leaves what a panic of the clock has cut short to the renewal thread.
    fn release_in_background(&self) {
        let watchdog = &self.core.watchdog;
        if let Expiry::Watched { holds, .. } = &self.expiry {
            for hold in holds {
                watchdog.end_in_background(hold);
                watchdog.releases().end_in_flight(hold.id());
            }
        } else if let Some(all) = self.release.get() {
            let now = watchdog.catch_panic(|| self.core.now()).unwrap_or(self.granted_at);
            let (id, release) = (self.release_id(all), Arc::<ReleasePermits>::clone(all));
            let longest = match &self.expiry {
                Expiry::Leased(validity) => validity.until(),
                _ => None,
            };
            let lifetime = longest
                .map_or(LONGEST_RETRY, |until| until.saturating_duration_since(self.granted_at));
            let queued = QueuedRelease::new(now, id.clone(), release, lifetime, None, None);
            watchdog.releases().queue(queued);
            watchdog.releases().end_in_flight(id);
        }
    }

    /// The release of some of them. The server remembers it for as long as a late copy of the
    /// acquire may arrive.
    fn request(&self, ids: Vec<PermitId>) -> ReleasePermits {
        let owner = self.core.id.next_owner();
        ReleasePermits::new(self.name.clone(), ids, owner, self.dedup_ttl())
    }

    fn dedup_ttl(&self) -> Duration {
        if self.late_copies { dedup_ttl(&self.core) } else { Duration::ZERO }
    }

    fn release_id(&self, release: &ReleasePermits) -> ReleaseId {
        let (name, owner) = (self.name.clone(), release.request_owner().clone());
        ReleaseId { kind: None, name, owner }
    }

    /// How long they last if they are not given back.
    fn ttl(&self) -> Duration {
        match &self.expiry {
            Expiry::Endless => LONGEST_RETRY,
            Expiry::Leased(_) | Expiry::Watched { .. } => self.remaining(),
        }
    }

    fn error(&self, not_released: NotReleased) -> Error {
        match not_released {
            NotReleased::Lost(reason) => self.lost_by(reason),
            NotReleased::Unknown => late_release(),
        }
    }

    fn lost_by(&self, reason: LostReason) -> Error {
        Error::Lost { name: self.name(), reason }
    }
}

/// Notifies `listener` of the losses.
fn listen(holds: &[Arc<Hold>], listener: &Arc<dyn LossListener>) {
    for hold in holds {
        hold.add_listener(Arc::clone(listener));
    }
}

impl Drop for HeldPermits {
    fn drop(&mut self) {
        let progress = mem::replace(&mut self.progress, Progress::Releasing);
        // A release that fails is queued.
        let is_done = match progress {
            Progress::Held => {
                self.core.watchdog.catch_panic(|| drop(self.release_on_drop())).is_some()
            }
            Progress::Releasing => false,
            Progress::Done => true,
        };
        if !is_done {
            self.release_in_background();
        }
    }
}
