//! The members of a multi-lock that are plain locks of one client: they are acquired in batches.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use crate::error::Error;
use crate::lock::acquire_many::{ManyAcquired, acquire_many};
use crate::lock::any_lock::MemberLock;
use crate::lock::multi::acquire::{MultiAcquire, PartialAcquire};
use crate::lock::spec::Nesting;
use crate::model::kind::{Kind, Layout};
use crate::model::owner::LocalHolder;
use crate::model::release_no::ReleaseNo;
use crate::model::sync::is_cancelled;
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
    /// Returns the positions of the busy locks. Of all or none, the first busy lock ends the acquire.
    pub(crate) fn acquire(
        &self,
        acquire: &MultiAcquire<'_>,
        partial: &mut PartialAcquire<'_>,
        positions: Vec<usize>,
        wait: WaitSpec<'_>,
        all_or_none: bool,
    ) -> Result<Vec<usize>, Error> {
        let core = &self.core;
        let one_try = WaitSpec { waits: false, ..wait };
        let mark = core.watchdog.releases.ledger().mark();
        let mut busy = Vec::new();
        // 1. What the holder has nests, one by one.
        let (own, others): (Vec<usize>, Vec<usize>) =
            positions.into_iter().partition(|position| self.is_own(acquire, *position));
        for position in own {
            match acquire.acquire_member(position, one_try)? {
                Some(guard) => partial.add(position, guard),
                None => busy.push(position),
            }
        }
        // 2. The others, batch by batch.
        let mut batches = in_batches(&core.store, acquire.members, others);
        while let Some(mut batch) = batches.pop_front() {
            if all_or_none && !busy.is_empty() {
                break;
            }
            if is_cancelled(wait.cancel) {
                return Err(acquire.cancelled_error());
            }
            if wait.deadline.is_some_and(|deadline| deadline <= acquire.clock.now()) {
                return Err(unanswered(core, None));
            }
            let specs: Vec<_> = batch
                .iter()
                .filter_map(|position| Some(&acquire.members.get(*position)?.spec))
                .collect();
            let (guards, refused) =
                match acquire_many(core, &specs, &self.holder, one_try, all_or_none)? {
                    ManyAcquired::Answered { guards, busy } => (guards, busy),
                    ManyAcquired::SeveralSlots => {
                        // The store knows by now that the server separates slots. If the names
                        // are of one slot already, each gets a request.
                        let mut smaller = in_batches(&core.store, acquire.members, batch.clone());
                        if smaller.len() == 1 {
                            smaller = batch.into_iter().map(|position| vec![position]).collect();
                        }
                        batches.append(&mut smaller);
                        continue;
                    }
                };
            for (index, guard) in guards {
                if let Some(position) = batch.get(index) {
                    partial.add(*position, guard);
                }
            }
            // 3. A release of this client may have been on its way when the server refused the lock.
            for index in refused {
                let Some(position) = batch.get(index).copied() else { continue };
                let is_own = self.may_be_own_release(acquire, position, mark);
                match if is_own { acquire.acquire_member(position, one_try)? } else { None } {
                    None => busy.push(position),
                    Some(guard) => {
                        partial.add(position, guard);
                        if all_or_none {
                            // Nothing of the batch was taken.
                            let mut rest = mem::take(&mut batch);
                            rest.remove(index);
                            batches.push_front(rest);
                        }
                    }
                }
            }
        }
        Ok(busy)
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
