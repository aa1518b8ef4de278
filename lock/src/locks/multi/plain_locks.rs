//! The plain locks of a client as members of a multi-lock, acquired in batches.
//!
//! Each lock has a separate hold, try and release, like a lock alone. Only the request and the
//! reply are shared, so late copies, renewals and losses need no second mechanism.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use crate::core::acquire::count_not_acquired;
use crate::core::acquire_many::{ManyAcquired, acquire_many};
use crate::core::client_core::ClientCore;
use crate::core::raw_guard::RawGuard;
use crate::core::spec::Nesting;
use crate::core::tries::{unacknowledged_release, unanswered, wait_for_own_releases};
use crate::error::Error;
use crate::locks::any_lock::MemberLock;
use crate::locks::multi::acquire::{MultiAcquire, PartialAcquire};
use crate::locks::multi::batch_queue::BatchQueue;
use crate::model::kind::{Kind, Layout};
use crate::model::owner::LocalHolder;
use crate::model::release_no::ReleaseNo;
use crate::model::sync::{Mutex, is_cancelled};
use crate::model::wait::WaitSpec;
use crate::store::Store;
use crate::store::retry::RetryLimit;

/// The maximum number of locks in a request. A server needs about 3 us for each lock.
pub(crate) const MAX_BATCH_LOCKS: usize = 1000;

/// Proof that the members of a multi-lock are plain locks of one client, with the same holder and
/// lease, so batches may carry the members.
pub(crate) struct PlainLocks {
    core: Arc<ClientCore>,
    holder: LocalHolder,
}

impl PlainLocks {
    /// Returns the proof for `members`, or `None` if the members have to be acquired one at a time.
    pub(crate) fn of(members: &[MemberLock]) -> Result<Option<Self>, Error> {
        let [first, _, ..] = members else { return Ok(None) };
        if matches!(first.owner, Some(LocalHolder::Named(_))) {
            // The threads of a named owner try one by one, name by name.
            return Ok(None);
        }
        let policy = first.spec.lease_policy()?;
        for member in members {
            let (spec, own) = (&member.spec, member.spec.lease_policy()?);
            let is_alike = spec.same_client(&first.spec)
                && spec.kind == Kind::Reentrant
                && spec.nesting == Nesting::Allowed
                && spec.min_hold()?.is_none()
                && member.owner == first.owner
                && (own.lease, own.watched) == (policy.lease, policy.watched);
            if !is_alike {
                return Ok(None);
            }
        }
        Ok(Some(Self { core: first.spec.core()?, holder: first.holder() }))
    }

    /// Acquires the members at `positions`, with a single try for each, and adds the guards to
    /// `partial`. Returns the sorted positions of the busy locks. With `all_or_none`, a busy lock
    /// ends the acquire; the guards acquired before stay in `partial`.
    pub(crate) fn acquire(
        &self,
        acquire: &MultiAcquire<'_>,
        partial: &mut PartialAcquire<'_>,
        positions: Vec<usize>,
        wait: WaitSpec<'_>,
        all_or_none: bool,
    ) -> Result<Vec<usize>, Error> {
        let is_one_try = !wait.waits;
        let wait = WaitSpec { waits: false, ..wait };
        let mark = self.core.watchdog.releases.ledger().mark();
        let request = BatchedAcquire { locks: self, acquire, wait, is_one_try, mark, all_or_none };
        let mut busy = Vec::new();
        // 1. Locks of the holder nest, one at a time.
        let (own, others): (Vec<usize>, Vec<usize>) =
            positions.into_iter().partition(|position| self.is_own(acquire, *position));
        for position in own {
            request.check_time()?;
            match acquire.acquire_member(position, wait)? {
                Some(guard) => partial.add(position, guard),
                None => busy.push(position),
            }
        }
        if all_or_none && !busy.is_empty() {
            return Ok(busy);
        }
        // 2. The remaining locks, in batches. Several threads send the batches and collect the
        // answers.
        let queue =
            BatchQueue::new(acquire_batches(&self.core.store, acquire.members, others, false));
        let collected = Mutex::new((partial, busy, Ok(())));
        queue.run(|batch| {
            let answer = request.send(batch);
            let (partial, busy, result) = &mut *collected.lock();
            match answer {
                Ok(answer) => {
                    for (position, guard) in answer.guards {
                        partial.add(position, guard);
                    }
                    busy.extend(answer.busy);
                    queue.push(answer.unsent);
                }
                Err(error) => *result = mem::replace(result, Ok(())).and(Err(error)),
            }
            if result.is_err() || (all_or_none && !busy.is_empty()) {
                queue.close();
            }
        });
        let (_, mut busy, result) = collected.into_inner();
        busy.sort_unstable();
        result.map(|()| busy)
    }

    /// Returns whether the holder has the lock at `position`, or the client has cached the lock.
    fn is_own(&self, acquire: &MultiAcquire<'_>, position: usize) -> bool {
        let name = acquire.members.get(position).and_then(|member| member.spec.name().ok());
        name.is_some_and(|name| {
            self.core.holds.find_for(&name, &self.holder, Layout::Counted).is_some()
        })
    }
}

/// The common state of all batches of an acquire.
struct BatchedAcquire<'a> {
    locks: &'a PlainLocks,
    acquire: &'a MultiAcquire<'a>,
    wait: WaitSpec<'a>,
    /// Whether the acquire does not wait. Then a refusal is inconclusive while a release of this
    /// client may explain the refusal.
    is_one_try: bool,
    /// The ledger's mark at the begin of the acquire. A release begun before may explain a refusal.
    mark: ReleaseNo,
    /// Whether a busy lock ends the acquire of all locks.
    all_or_none: bool,
}

/// The positions of the locks in one request.
#[derive(Clone)]
struct AcquireBatch {
    positions: Vec<usize>,
    /// Whether the locks were refused before, and the releases of this client have ended since.
    is_asked_again: bool,
}

/// The server's answer to an [`AcquireBatch`]: granted and busy locks, by position.
#[derive(Default)]
struct AcquireBatchAnswer {
    guards: Vec<(usize, RawGuard)>,
    busy: Vec<usize>,
    /// Locks to send in further batches.
    unsent: VecDeque<AcquireBatch>,
}

impl BatchedAcquire<'_> {
    /// Returns an error if the acquire was cancelled or has timed out.
    fn check_time(&self) -> Result<(), Error> {
        let Self { locks, acquire, wait, .. } = self;
        if is_cancelled(wait.cancel) {
            return Err(acquire.cancelled_error());
        }
        if wait.deadline.is_some_and(|deadline| deadline <= acquire.clock.now()) {
            return Err(unanswered(&locks.core, None));
        }
        Ok(())
    }

    /// Sends the acquire of `batch` and returns the answer. If the server separates the hash slots
    /// of the locks, splits the batch and acquires nothing. A lock refused to a single try is tried
    /// again, in a further batch, once the releases of this client that may explain the refusal are
    /// settled; if such a release stays unsettled, returns an error.
    fn send(&self, batch: AcquireBatch) -> Result<AcquireBatchAnswer, Error> {
        self.check_time()?;
        let Self { locks: PlainLocks { core, holder }, acquire, wait, all_or_none, .. } = *self;
        let AcquireBatch { positions, is_asked_again } = batch;
        let spec = |position: &usize| Some(&acquire.members.get(*position)?.spec);
        let specs: Vec<_> = positions.iter().filter_map(spec).collect();
        let (guards, refused) = match acquire_many(core, &specs, holder, wait, all_or_none)? {
            ManyAcquired::Answered { guards, busy } => (guards, busy),
            ManyAcquired::SeveralHashSlots => {
                // By now the store knows that the server separates hash slots. If all names are of
                // the same hash slot already, each name gets a request.
                let (store, members) = (&core.store, acquire.members);
                let mut unsent = acquire_batches(store, members, positions.clone(), is_asked_again);
                if unsent.len() == 1 {
                    let alone =
                        |position| AcquireBatch { positions: vec![position], is_asked_again };
                    unsent = positions.into_iter().map(alone).collect();
                }
                return Ok(AcquireBatchAnswer { unsent, ..AcquireBatchAnswer::default() });
            }
        };
        let at = |index: usize| positions.get(index).copied();
        let granted = guards.into_iter().filter_map(|(index, guard)| Some((at(index)?, guard)));
        let guards = granted.collect();
        let refused: Vec<usize> = refused.into_iter().filter_map(at).collect();
        // A release of this client may have been in flight when the server refused a lock.
        let (again, busy) = if self.is_one_try && !is_asked_again {
            self.after_own_releases(positions, refused)
        } else {
            (Vec::new(), refused)
        };
        for position in &busy {
            let Some(member) = acquire.members.get(*position) else { continue };
            if self.is_one_try && self.is_explained(member) {
                return Err(unacknowledged_release());
            }
            count_not_acquired(core, &member.spec, None);
        }
        let again = Some(AcquireBatch { positions: again, is_asked_again: true });
        let unsent = again.filter(|batch| !batch.positions.is_empty()).into_iter().collect();
        Ok(AcquireBatchAnswer { guards, busy, unsent })
    }

    /// Waits for the releases of this client that may explain the refusals at `refused`. Returns
    /// the positions to try again, and the busy positions. With `all_or_none`, all `positions` of
    /// the batch are to be tried again if any is.
    fn after_own_releases(
        &self,
        positions: Vec<usize>,
        refused: Vec<usize>,
    ) -> (Vec<usize>, Vec<usize>) {
        let core = &self.locks.core;
        let policy = core.policy_at(core.now(), self.wait, RetryLimit::UntilAnswered);
        let is_over = |position: &usize| {
            let name = self.acquire.members.get(*position).and_then(|it| it.spec.name().ok());
            name.is_some_and(|name| wait_for_own_releases(core, &name, self.mark, &policy))
        };
        let (again, busy): (Vec<_>, Vec<_>) = refused.into_iter().partition(is_over);
        if self.all_or_none && !again.is_empty() {
            // Nothing of the batch was taken, and the server has named a single lock: further locks
            // may have had releases in flight too.
            for position in &positions {
                let _is_over = is_over(position);
            }
            return (positions, busy);
        }
        (again, busy)
    }

    /// Returns whether a release of this client, begun before the mark, still explains a refusal of
    /// `member`.
    fn is_explained(&self, member: &MemberLock) -> bool {
        let releases = &self.locks.core.watchdog.releases;
        member.spec.name().is_ok_and(|name| releases.explain_refusal(&name, self.mark))
    }
}

/// Splits `positions` into batches of a single hash slot and at most [`MAX_BATCH_LOCKS`] locks
/// each, ordered by hash slot and position.
fn acquire_batches(
    store: &Store,
    members: &[MemberLock],
    positions: Vec<usize>,
    is_asked_again: bool,
) -> VecDeque<AcquireBatch> {
    let mut positions: Vec<_> = positions
        .into_iter()
        .map(|position| {
            let key = members.get(position).map(MemberLock::key).unwrap_or_default();
            (store.hash_slot(&key).0, position)
        })
        .collect();
    positions.sort_unstable();
    let slots = positions.chunk_by(|(one, _), (other, _)| one == other);
    slots
        .flat_map(|slot| slot.chunks(MAX_BATCH_LOCKS))
        .map(|batch| batch.iter().map(|(_, position)| *position).collect())
        .map(|positions| AcquireBatch { positions, is_asked_again })
        .collect()
}
