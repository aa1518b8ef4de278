//! One attempt to acquire a red lock: what each server answered, and whether that decides it. After
//! a grant it lives on with the guard, for members that join later.

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
use crate::watchdog::PendingReleases;

/// Which member has the vote of the server with that run id: the first that met it. One server has
/// one vote, under whatever names (DESIGN: red lock).
pub(crate) type ServerVotes = Mutex<BTreeMap<String, usize>>;

/// Shared by the thread that acquires, or holds, and the threads that send.
#[derive(Debug)]
pub(crate) struct QuorumAttempt {
    quorum_size: usize,
    /// What was granted.
    pub(crate) held: Arc<HeldLocks>,
    /// Of all attempts, so that nested holds are of the same members.
    votes: Arc<ServerVotes>,
    /// Cancels what acquires wait for when the attempt has ended: two that wait for each other's
    /// release would have no end.
    pub(crate) cancel: Receiver<()>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// What the acquiring thread sleeps on until the attempt is decided. A manual clock may wait
    /// for every parker, so it is dropped as soon as no thread sleeps on it.
    parker: Option<Parker>,
    /// The positions of the members whose acquires are queued or sent, and have no answer.
    unanswered: BTreeSet<usize>,
    /// The acquires that were sent and have no answer, by position.
    sent: BTreeMap<usize, SentAcquire>,
    /// Until the attempt ends.
    open: Option<Sender<()>>,
    errors: Vec<Error>,
}

/// An acquire that may be granted after its attempt has ended. The grant is released then, and until
/// that has begun it may be why the next attempt is refused.
#[derive(Debug)]
pub(crate) struct SentAcquire {
    releases: Arc<PendingReleases>,
    name: LockName,
    owner: Owner,
    release: Option<ReleaseNo>,
}

impl SentAcquire {
    /// An acquire of the lock `name` that is about to be sent.
    pub(crate) fn new(core: &ClientCore, name: LockName) -> Self {
        let (releases, owner) = (Arc::clone(&core.watchdog.releases), core.id.next_owner());
        Self { releases, name, owner, release: None }
    }

    /// Its attempt has ended: from now on it counts as a release.
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
    /// An attempt at the lock `name` on that many servers, all of which will be asked.
    pub(crate) fn new(
        name: String,
        servers: usize,
        quorum_size: usize,
        votes: &Arc<ServerVotes>,
        parker: &Parker,
    ) -> Self {
        let (open, cancel) = bounded(0);
        let state = State {
            parker: Some(parker.clone()),
            unanswered: (0..servers).collect(),
            sent: BTreeMap::new(),
            open: Some(open),
            errors: Vec::new(),
        };
        let held = HeldLocks::new(name, quorum_size);
        Self { quorum_size, held, votes: Arc::clone(votes), cancel, state: Mutex::new(state) }
    }

    /// The member that has the vote of this member's server, which may be this one.
    pub(crate) fn voter(&self, position: usize, run_id: String) -> usize {
        let mut votes = self.votes.lock();
        // Those of servers that it led to before.
        votes.retain(|other, voter| *voter != position || *other == run_id);
        *votes.entry(run_id).or_insert(position)
    }

    /// A request is about to be sent. Until then it was queued.
    pub(crate) fn sent(&self, position: usize, acquire: Option<SentAcquire>) {
        self.state.lock().sent.extend(acquire.map(|acquire| (position, acquire)));
    }

    /// A server has answered. A guard that comes too late is released, on the calling thread.
    pub(crate) fn answered(&self, position: usize, answer: Result<Option<RawGuard>, Error>) {
        let (late, error) = match answer {
            Ok(Some(guard)) => (self.held.join(position, guard), None),
            Ok(None) => (None, None),
            Err(error) => (None, Some(error)),
        };
        // This may send a release, so nothing is locked. Its attempt has ended, and until the
        // release has begun the acquire counts as one.
        drop(late);
        // The guard joins before the server counts as answered. Otherwise a majority that is
        // complete could seem out of reach.
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

    /// Whether further answers change nothing: there is a majority, or there cannot be one.
    pub(crate) fn is_decided(&self) -> bool {
        // In this order: a server that answers in between is counted twice rather than not at all.
        let unanswered = self.state.lock().unanswered.len();
        let granted = self.held.len();
        granted >= self.quorum_size || granted + unanswered < self.quorum_size
    }

    /// Ends the wait for answers. Whether there is a majority: if so, what comes late joins it.
    pub(crate) fn grant(&self) -> bool {
        drop(self.state.lock().parker.take());
        self.held.grant()
    }

    /// Marks a missing member as asked again. False if its last request is still unanswered.
    pub(crate) fn ask_again(&self, position: usize) -> bool {
        self.state.lock().unanswered.insert(position)
    }

    /// Ends it: the guards, for the caller to release, the errors, and how many missing answers
    /// left it undecided. A guard that comes later is released by the thread that brings it.
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
