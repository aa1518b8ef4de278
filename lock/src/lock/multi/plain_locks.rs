//! The members of a multi-lock that are plain locks of one client: they are acquired in batches.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use crate::error::Error;
use crate::lock::acquire_many::{ManyAcquired, acquire_many};
use crate::lock::any_lock::MemberLock;
use crate::lock::multi::acquire::{MultiAcquire, PartialAcquire};
use crate::lock::multi::batch_queue::BatchQueue;
use crate::lock::raw_guard::RawGuard;
use crate::lock::spec::Nesting;
use crate::model::kind::{Kind, Layout};
use crate::model::owner::LocalHolder;
use crate::model::release_no::ReleaseNo;
use crate::model::sync::{Mutex, is_cancelled};
use crate::model::wait::WaitSpec;
use crate::runtime::client_core::ClientCore;
use crate::runtime::tries::unanswered;
use crate::store::Store;

/// The most locks of one request. A server needs about 3 us for each.
pub(crate) const MAX_BATCH: usize = 1000;

/// That all members are plain locks of this client, with one holder and one lease.
pub(crate) struct PlainLocks {
    core: Arc<ClientCore>,
    holder: LocalHolder,
}

impl PlainLocks {
    /// `None` if the members are acquired one by one.
    pub(crate) fn of(members: &[MemberLock]) -> Result<Option<Self>, Error> {
        let [first, _, ..] = members else { return Ok(None) };
        if matches!(first.owner, Some(LocalHolder::Named(_))) {
            // The threads of a named owner take turns, name by name.
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

    /// Acquires the members at `positions`, one try for each, and adds their guards to `partial`.
    /// Returns the positions of the busy locks. Of all or none, a busy lock ends the acquire.
    pub(crate) fn acquire(
        &self,
        acquire: &MultiAcquire<'_>,
        partial: &mut PartialAcquire<'_>,
        positions: Vec<usize>,
        wait: WaitSpec<'_>,
        all_or_none: bool,
    ) -> Result<Vec<usize>, Error> {
        let wait = WaitSpec { waits: false, ..wait };
        let mark = self.core.watchdog.releases.ledger().mark();
        let mut busy = Vec::new();
        // 1. What the holder has nests, one by one.
        let (own, others): (Vec<usize>, Vec<usize>) =
            positions.into_iter().partition(|position| self.is_own(acquire, *position));
        for position in own {
            match acquire.acquire_member(position, wait)? {
                Some(guard) => partial.add(position, guard),
                None => busy.push(position),
            }
        }
        if all_or_none && !busy.is_empty() {
            return Ok(busy);
        }
        // 2. The others, batch by batch. Several threads send them and collect their answers.
        let request = BatchRequest { locks: self, acquire, wait, mark, all_or_none };
        let queue = BatchQueue::new(in_batches(&self.core.store, acquire.members, others));
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

    /// Whether the holder has the lock, or the client has cached it.
    fn is_own(&self, acquire: &MultiAcquire<'_>, position: usize) -> bool {
        let name = acquire.members.get(position).and_then(|member| member.spec.name().ok());
        name.is_some_and(|name| {
            self.core.holds.find_for(&name, &self.holder, Layout::Counted).is_some()
        })
    }

    /// Whether a release of this client that had begun at the mark explains a refusal.
    fn may_be_own_release(
        &self,
        acquire: &MultiAcquire<'_>,
        position: usize,
        mark: ReleaseNo,
    ) -> bool {
        let Some(name) = acquire.members.get(position).and_then(|member| member.spec.name().ok())
        else {
            return false;
        };
        let releases = &self.core.watchdog.releases;
        releases.explain_refusal(&name, mark) || releases.ledger().was_settled(&name, mark)
    }
}

/// What is the same for all batches of an acquire.
struct BatchRequest<'a> {
    locks: &'a PlainLocks,
    acquire: &'a MultiAcquire<'a>,
    wait: WaitSpec<'a>,
    /// Releases that began before may explain a refusal.
    mark: ReleaseNo,
    all_or_none: bool,
}

/// What has become of a batch.
#[derive(Default)]
struct BatchAnswer {
    guards: Vec<(usize, RawGuard)>,
    busy: Vec<usize>,
    /// What is to be sent in other batches.
    unsent: VecDeque<Vec<usize>>,
}

impl BatchRequest<'_> {
    /// Sends the locks at these positions.
    fn send(&self, batch: Vec<usize>) -> Result<BatchAnswer, Error> {
        let Self { locks, acquire, wait, mark, all_or_none } = *self;
        let core = &locks.core;
        if is_cancelled(wait.cancel) {
            return Err(acquire.cancelled_error());
        }
        if wait.deadline.is_some_and(|deadline| deadline <= acquire.clock.now()) {
            return Err(unanswered(core, None));
        }
        let spec = |position: &usize| Some(&acquire.members.get(*position)?.spec);
        let specs: Vec<_> = batch.iter().filter_map(spec).collect();
        let (guards, refused) = match acquire_many(core, &specs, &locks.holder, wait, all_or_none)?
        {
            ManyAcquired::Answered { guards, busy } => (guards, busy),
            ManyAcquired::SeveralSlots => {
                // The store knows by now that the server separates slots. If the names are of one
                // slot already, each gets a request.
                let mut unsent = in_batches(&core.store, acquire.members, batch.clone());
                if unsent.len() == 1 {
                    unsent = batch.into_iter().map(|position| vec![position]).collect();
                }
                return Ok(BatchAnswer { unsent, ..BatchAnswer::default() });
            }
        };
        let position = |index: usize| batch.get(index).copied();
        let granted =
            guards.into_iter().filter_map(|(index, guard)| Some((position(index)?, guard)));
        let mut answer = BatchAnswer { guards: granted.collect(), ..BatchAnswer::default() };
        for position in refused.into_iter().filter_map(position) {
            // A release of this client may have been on its way when the server refused the lock.
            let is_own = locks.may_be_own_release(acquire, position, mark);
            match if is_own { acquire.acquire_member(position, wait)? } else { None } {
                None => answer.busy.push(position),
                Some(guard) => {
                    answer.guards.push((position, guard));
                    if all_or_none {
                        // Nothing of the batch was taken.
                        let others = batch.iter().filter(|other| **other != position).copied();
                        answer.unsent.push_back(others.collect());
                    }
                }
            }
        }
        Ok(answer)
    }
}

/// Cuts the positions into batches, each of one slot, in their order.
fn in_batches(
    store: &Store,
    members: &[MemberLock],
    positions: Vec<usize>,
) -> VecDeque<Vec<usize>> {
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
        .flat_map(|slot| slot.chunks(MAX_BATCH))
        .map(|batch| batch.iter().map(|(_, position)| *position).collect())
        .collect()
}
