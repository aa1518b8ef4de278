//! One attempt to acquire a red lock: the servers' answers, and the decision. After a grant the
//! attempt lives on with the guard, for members joining later.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::core::client_core::ClientCore;
use crate::core::raw_guard::RawGuard;
use crate::error::Error;
use crate::ledger::release::{Release, ReleaseId};
use crate::locks::held_locks::{HeldLocks, RawGuards};
use crate::model::name::LockName;
use crate::model::owner::Owner;
use crate::model::release_no::ReleaseNo;
use crate::model::sync::{Mutex, Parker};
use crate::watchdog::SharedLedger;

/// The member with the vote of each server, by the server's run id. A server has a single vote,
/// under whatever addresses: the first member to meet the run id votes, and further members are
/// refused. Each client asks for the run id by `INFO` once after each connection.
pub(crate) type ServerVotes = Mutex<BTreeMap<String, usize>>;

/// An attempt to hold a majority: the votes, the granted members and the outstanding requests.
/// Shared by the acquiring or holding thread and the sending threads.
#[derive(Debug)]
pub(crate) struct QuorumAttempt {
    quorum_size: usize,
    /// The granted members.
    pub(crate) held: Arc<HeldLocks>,
    /// The votes of all attempts, so nested holds have the same members. A nested hold of different
    /// members would contend with the outer hold.
    votes: Arc<ServerVotes>,
    /// Cancels waiting acquires when the attempt has ended. Otherwise mutual waits of two acquires
    /// for a release would have no end.
    pub(crate) cancel: Receiver<()>,
    state: Mutex<AttemptState>,
}

/// The part of an attempt that changes with each request and answer.
#[derive(Debug)]
struct AttemptState {
    /// The acquiring thread sleeps on this parker until the attempt is decided. A manual clock may
    /// wait for every parker, so the parker is dropped as soon as no thread sleeps on it.
    parker: Option<Parker>,
    /// The positions of members with a queued or sent acquire and no answer.
    unanswered: BTreeSet<usize>,
    /// The sent acquires without an answer, by position.
    sent: BTreeMap<usize, SentAcquire>,
    /// Dropped at the end of the attempt, which cancels waiting acquires.
    open: Option<Sender<()>>,
    /// The errors of the servers that answered before the grant.
    errors: Vec<Error>,
}

/// A sent acquire of a member, without an answer. A grant may arrive after the attempt has ended,
/// and is released then by the thread that receives the grant.
///
/// At the end of the attempt the ledger gets an entry without a command. If the acquire causes the
/// refusal of the next attempt, the entry explains the refusal as an unsettled release of this
/// client. The drop, after the answer, cancels the entry: the release of a late grant has a
/// separate entry.
#[derive(Debug)]
pub(crate) struct SentAcquire {
    releases: Arc<SharedLedger>,
    name: LockName,
    /// The owner of the entry. Not the owner of the acquire.
    owner: Owner,
    /// The number of the entry. `None` until the attempt has ended.
    release: Option<ReleaseNo>,
}

impl SentAcquire {
    /// Returns the record of an acquire of the lock `name`, about to be sent by the client `core`.
    pub(crate) fn new(core: &ClientCore, name: LockName) -> Self {
        let (releases, owner) = (Arc::clone(&core.watchdog.releases), core.id.next_owner());
        Self { releases, name, owner, release: None }
    }

    /// Begins a release of the lock in the ledger, unless begun, because the attempt has ended.
    /// While the server's answer is missing, this release explains a refusal of the next attempt.
    /// The drop of the record cancels this release, as a late grant has a separate release.
    fn begin_release(&mut self) {
        let Self { releases, name, owner, release } = self;
        release.get_or_insert_with(|| {
            let id = ReleaseId { owner: owner.clone(), kind: None, name: name.clone() };
            releases.begin(Release::new(id, None, Duration::ZERO, None))
        });
    }
}

impl Drop for SentAcquire {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            self.releases.cancel(release);
        }
    }
}

impl QuorumAttempt {
    /// Returns an attempt at the lock `name` on `servers` servers, all of which will be asked.
    /// `parker` is the parker of the acquiring thread.
    pub(crate) fn new(
        name: String,
        servers: usize,
        quorum_size: usize,
        votes: &Arc<ServerVotes>,
        parker: &Parker,
    ) -> Self {
        let (open, cancel) = bounded(0);
        let state = AttemptState {
            parker: Some(parker.clone()),
            unanswered: (0..servers).collect(),
            sent: BTreeMap::new(),
            open: Some(open),
            errors: Vec::new(),
        };
        let held = HeldLocks::new(name, quorum_size);
        Self { quorum_size, held, votes: Arc::clone(votes), cancel, state: Mutex::new(state) }
    }

    /// Returns the position of the member with the vote of the server `run_id`. Without such a
    /// member, the member at `position` gets the vote.
    pub(crate) fn voter(&self, position: usize, run_id: String) -> usize {
        let mut votes = self.votes.lock();
        // Remove the member's votes of earlier servers at the same address.
        votes.retain(|other, voter| *voter != position || *other == run_id);
        *votes.entry(run_id).or_insert(position)
    }

    /// Records that the acquire of the member at `position` is about to be sent, if there is an
    /// `acquire`.
    pub(crate) fn sent(&self, position: usize, acquire: Option<SentAcquire>) {
        self.state.lock().sent.extend(acquire.map(|acquire| (position, acquire)));
    }

    /// Records the answer of the server at `position`: a guard joins the granted members, an error
    /// counts as a failure. Releases a guard that arrives too late on the calling thread. Wakes the
    /// acquiring thread once the attempt is decided.
    pub(crate) fn answered(&self, position: usize, answer: Result<Option<RawGuard>, Error>) {
        let (late, error) = match answer {
            Ok(Some(guard)) => (self.held.join(position, guard), None),
            Ok(None) => (None, None),
            Err(error) => (None, Some(error)),
        };
        // The drop may send a release, so nothing is locked. The attempt has ended then, and until
        // the release has begun the acquire counts as a release.
        drop(late);
        // The guard joins before the server counts as answered. Otherwise a complete majority could
        // seem out of reach.
        let granted = self.held.is_granted();
        let (parker, sent) = {
            let mut state = self.state.lock();
            state.unanswered.remove(&position);
            // After the grant the errors are not read.
            state.errors.extend(error.filter(|_| !granted));
            (state.parker.clone(), state.sent.remove(&position))
        };
        drop(sent);
        if let Some(parker) = parker.filter(|_| self.is_decided()) {
            parker.unpark();
        }
    }

    /// Whether the attempt is decided: there is a majority, or a majority is impossible.
    pub(crate) fn is_decided(&self) -> bool {
        // In this order, a server answering in between is counted twice rather than not at all.
        let unanswered = self.state.lock().unanswered.len();
        let granted = self.held.len();
        granted >= self.quorum_size || granted + unanswered < self.quorum_size
    }

    /// Ends the wait for answers. Returns whether the members granted so far are a majority; if so,
    /// members granted later join.
    pub(crate) fn grant(&self) -> bool {
        drop(self.state.lock().parker.take());
        self.held.grant()
    }

    /// Records that another request is about to be sent to the member at `position`, which has not
    /// granted. Returns `false`, without effect, if the previous request to the member is still
    /// unanswered.
    pub(crate) fn mark_unanswered(&self, position: usize) -> bool {
        self.state.lock().unanswered.insert(position)
    }

    /// Ends the attempt. Returns the guards, for the caller to release, the errors, and the number
    /// of unanswered requests if the attempt was undecided, else zero. A later guard is released by
    /// the thread that receives the grant.
    pub(crate) fn close(&self) -> (RawGuards, Vec<Error>, usize) {
        let is_decided = self.is_decided();
        let guards = self.held.close();
        let mut state = self.state.lock();
        state.open = None;
        state.sent.values_mut().for_each(SentAcquire::begin_release);
        let unanswered = if is_decided { 0 } else { state.unanswered.len() };
        (guards, mem::take(&mut state.errors), unanswered)
    }
}
