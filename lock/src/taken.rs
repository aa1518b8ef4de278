//! What one acquire of permits took, and how it is given back: together, in one release, whatever the number.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded};

use crate::call::Attempts;
use crate::caller::remembered;
use crate::claim::Claim;
use crate::error::{Error, LostReason};
use crate::hold::Hold;
use crate::kind::Kind;
use crate::lease::Lease;
use crate::name::LockName;
use crate::op::{Operation, OwedPermits, PermitsFound, ReleasePermits};
use crate::owner::{Holder, Owner};
use crate::permit_id::PermitId;
use crate::process::Process;
use crate::told::{Listener, Together};
use crate::validity::Validity;
use crate::value::ServerTime;
use crate::watchdog::Debt;

/// How long permits last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Term {
    /// Until they are given back.
    Endless,
    Leased(Lease),
    /// As long as they are renewed.
    Watched,
}

impl Term {
    /// The lease that is asked for.
    pub(crate) fn lease(self, process: &Process) -> Option<Lease> {
        match self {
            Self::Endless => None,
            Self::Leased(lease) => Some(lease),
            Self::Watched => Some(process.settings.watchdog_lease),
        }
    }
}

/// Permits that are held. Dropping them gives them back.
pub(crate) struct Taken {
    process: Arc<Process>,
    name: LockName,
    ids: Vec<PermitId>,
    lasts: Lasts,
    /// Whether a copy of the acquire may still be on its way.
    in_doubt: bool,
    /// Whether `release` has done what `drop` would do, or the ids were taken out.
    done: bool,
}

/// What is known here of their end.
enum Lasts {
    Endless,
    Leased(Validity),
    Watched(Watched),
}

/// One hold for each permit.
struct Watched {
    holds: Vec<Arc<Hold>>,
    told: OnceLock<Receiver<LostReason>>,
}

/// How long to try to give permits back that do not end by themselves.
pub(crate) const LONG: Duration = Duration::from_secs(24 * 3600);

impl Taken {
    /// Permits that were granted to a request sent at `sent_at`. Copies of it may arrive until `doubt`.
    pub(crate) fn new(
        process: Arc<Process>,
        name: LockName,
        owners: &[Owner],
        term: Term,
        sent_at: Instant,
        doubt: Option<ServerTime>,
    ) -> Self {
        let lasts = match term {
            Term::Endless => Lasts::Endless,
            Term::Leased(lease) => {
                Lasts::Leased(Validity::new(sent_at, lease.valid_until(sent_at)))
            }
            Term::Watched => {
                let watch = |owner: &Owner| {
                    let claim =
                        Claim { kind: Kind::Permit, name: name.clone(), owner: owner.clone() };
                    // It is never nested, so it does not matter whose it is here.
                    let holder = Holder::current_thread();
                    let lease = process.settings.watchdog_lease;
                    let hold = Arc::new(Hold::new(claim, holder, lease, true, sent_at, doubt));
                    process.holds.insert(&hold);
                    process.watchdog.watch(&hold, sent_at);
                    hold
                };
                let holds = owners.iter().map(watch).collect();
                Lasts::Watched(Watched { holds, told: OnceLock::new() })
            }
        };
        let ids = owners.iter().map(PermitId::of).collect();
        Self { process, name, ids, lasts, in_doubt: doubt.is_some(), done: false }
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

    /// How long all are held for certain, without a renewal to come.
    pub(crate) fn remaining(&self) -> Duration {
        if !self.process.is_current() {
            return Duration::ZERO;
        }
        let now = self.process.now();
        match &self.lasts {
            Lasts::Endless => Duration::MAX,
            Lasts::Leased(validity) => validity.remaining(now),
            Lasts::Watched(watched) => {
                let left = watched.holds.iter().map(|hold| hold.remaining(now));
                left.min().unwrap_or(Duration::ZERO)
            }
        }
    }

    /// A channel that gets the reason of the first loss, if somebody watches them.
    pub(crate) fn lost(&self) -> Option<&Receiver<LostReason>> {
        let Lasts::Watched(watched) = &self.lasts else {
            return None;
        };
        Some(watched.told.get_or_init(|| {
            if !self.process.is_current() {
                // The parent's holds are not touched here: their locks may have been taken when the fork copied them.
                let (tell, told) = bounded(1);
                let _fits = tell.try_send(LostReason::Forked);
                return told;
            }
            let all = watched.holds.len();
            let (together, told) = Together::new(all, all);
            for hold in &watched.holds {
                hold.listen_by(Listener::Together(Arc::clone(&together)));
            }
            told
        }))
    }

    /// The ids alone: the permits stay taken, and are not renewed any more.
    pub(crate) fn into_ids(mut self) -> Vec<PermitId> {
        self.done = true;
        if let Lasts::Watched(watched) = &self.lasts
            && self.process.is_current()
        {
            for hold in &watched.holds {
                // One that was lost has been told of, and whoever has its id learns it from the server.
                drop(self.process.end(hold));
            }
        }
        std::mem::take(&mut self.ids)
    }

    /// Gives them back, for as long as a caller who waits for nothing else has patience.
    pub(crate) fn release(mut self) -> Result<(), Error> {
        self.done = true;
        self.leave(self.process.settings.patience(), Attempts::UntilAnswered)
    }

    fn leave(&self, patience: Duration, attempts: Attempts) -> Result<(), Error> {
        let process = &self.process;
        if !process.is_current() {
            // A child of a fork: the permits are the parent's, and so are the locks inside these structures. Nothing of
            // them is dropped.
            std::mem::forget(Arc::clone(process));
            if let Lasts::Watched(watched) = &self.lasts {
                std::mem::forget(watched.holds.clone());
            }
            return Err(self.lost_by(LostReason::Forked));
        }
        match &self.lasts {
            Lasts::Watched(watched) => self.leave_holds(&watched.holds, patience, attempts),
            Lasts::Endless | Lasts::Leased(_) => self.leave_leases(patience, attempts),
        }
    }

    fn leave_leases(&self, patience: Duration, attempts: Attempts) -> Result<(), Error> {
        let process = &self.process;
        let remembered = self.remembered();
        let release =
            |ids| ReleasePermits::new(self.name.clone(), ids, process.id.draw(), remembered);
        let all = release(self.ids.clone());
        let answer = match process.call_for(&all, patience, attempts) {
            Ok(answer) => answer,
            Err(gave_up) => {
                if !gave_up.failure.is_of_the_request() {
                    self.owe(all.clone());
                }
                return Err(gave_up.failure.into_error(all.name(), &self.name));
            }
        };
        let found = answer.reply.found;
        if found == PermitsFound::Missing && self.ids.len() > 1 {
            // Somebody gave some of them back, and so none was now. The others are in the background.
            for id in &self.ids {
                self.owe(release(vec![*id]));
            }
        }
        came_to(found, answer.doubt, self.is_valid()).map_err(|reason| self.told(reason))
    }

    /// For how long the server has to know that they were given back: as long as a copy of the acquire may come.
    fn remembered(&self) -> Duration {
        if self.in_doubt { remembered(&self.process) } else { Duration::ZERO }
    }

    /// Nobody waits for this release. If too many are owed already, that is counted.
    fn owe(&self, release: ReleasePermits) {
        let lasts = match &self.lasts {
            Lasts::Endless => LONG,
            Lasts::Leased(_) | Lasts::Watched(_) => self.remaining(),
        };
        let debt = Debt { kind: None, name: self.name.clone(), owner: release.request().clone() };
        let owed = Arc::new(OwedPermits(release));
        self.process.watchdog.give_back_in_background(debt, owed, lasts);
    }

    /// The holds are over for everybody before the first byte is sent.
    fn leave_holds(
        &self,
        holds: &[Arc<Hold>],
        patience: Duration,
        attempts: Attempts,
    ) -> Result<(), Error> {
        let process = &self.process;
        let valid_until = holds.iter().filter_map(|hold| hold.valid_until()).min();
        let mut ended = Ok(());
        let mut left: Vec<&Arc<Hold>> = Vec::with_capacity(holds.len());
        for hold in holds {
            match process.end(hold) {
                Ok(()) => left.push(hold),
                // The first loss is the one to tell of.
                Err(error) => ended = ended.and(Err(error)),
            }
        }
        if left.is_empty() {
            return ended;
        }
        let claims: Vec<Claim> = left.iter().map(|hold| hold.claim()).collect();
        for claim in &claims {
            process.watchdog.releasing(claim);
        }
        let ids = left.iter().map(|hold| PermitId::of(&hold.owner)).collect();
        let release =
            ReleasePermits::new(self.name.clone(), ids, process.id.draw(), self.remembered());
        let answer = process.call_for(&release, patience, attempts);
        let finished = answer.as_ref().is_ok_and(|answer| {
            // Of several, one that is missing keeps the others from being given back.
            answer.reply.found != PermitsFound::Missing || left.len() == 1
        });
        for hold in left.iter().filter(|_| !finished) {
            // If too many are owed already, that is counted, and the lease ends by itself.
            process.owe_release(hold);
        }
        for claim in &claims {
            process.watchdog.released(claim);
        }
        let answer =
            answer.map_err(|gave_up| gave_up.failure.into_error(release.name(), &self.name))?;
        let in_time = valid_until.is_some_and(|end| process.now() < end);
        let came_to = came_to(answer.reply.found, answer.doubt, in_time);
        if let ([only], Err(NotReleased::Lost(reason))) = (left.as_slice(), &came_to) {
            // Nobody else can have told of it. Of several, nobody knows which was lost.
            process.watchdog.tell_loss(only, *reason);
        }
        ended.and(came_to.map_err(|reason| self.told(reason)))
    }

    fn told(&self, left: NotReleased) -> Error {
        match left {
            NotReleased::Lost(reason) => self.lost_by(reason),
            NotReleased::Unknown => Error::OutcomeUnknown {
                operation: "release",
                reason: "its first copy was not answered while the lease ran".to_owned(),
            },
        }
    }

    fn lost_by(&self, reason: LostReason) -> Error {
        Error::Lost { name: self.name(), reason }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if !self.done {
            // A failure is not lost: the release is owed, and finished by the renewal thread.
            drop(self.leave(self.process.settings.command_timeout, Attempts::One));
        }
    }
}

/// Why a release that was answered is not known to have ended what was held until then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NotReleased {
    Lost(LostReason),
    /// An earlier copy of it may have, and in time or not.
    Unknown,
}

/// What a release that was answered means, if copies of it may have come before, and came in time or not.
fn came_to(
    found: PermitsFound,
    doubt: Option<ServerTime>,
    in_time: bool,
) -> Result<(), NotReleased> {
    match found {
        PermitsFound::All => Ok(()),
        // An earlier copy of this very release may have found them. While the lease ran, nobody else had them.
        PermitsFound::Missing if doubt.is_some() && in_time => Ok(()),
        PermitsFound::Missing if doubt.is_some() => Err(NotReleased::Unknown),
        PermitsFound::Missing if in_time => Err(NotReleased::Lost(LostReason::Deleted)),
        PermitsFound::Late | PermitsFound::Missing => Err(NotReleased::Lost(LostReason::Expired)),
    }
}
