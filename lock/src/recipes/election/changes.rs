//! Changes of the leader, for observers.

use std::fmt;
use std::time::Instant;

use crate::core::tries::{Try, TryAnswer, WaitParameters, wait_for};
use crate::error::Error;
use crate::model::wait::{Wait, WaitSpec};
use crate::model::wait_mode::{WaitMode, WakeHint};
use crate::recipes::election::election::{Leader, LeaderElection};
use crate::store::retry::RetryPolicy;

/// An observer of a [`LeaderElection`], from [`LeaderElection::changes`]. An observer has no
/// thread, and is no candidate.
///
/// Name and use are as for `observe` in etcd's elections.
///
/// ```
/// use std::time::Duration;
/// use wheellock::Client;
///
/// let client = Client::in_memory();
/// let election = client.leader_election("scheduler");
/// let mut changes = election.changes()?;
/// assert_eq!(changes.leader(), None);
/// let campaign = election.campaign()?;
/// while changes.wait(Duration::from_secs(10))? {
///     println!("{:?}", changes.leader());
/// #   break;
/// }
/// # Ok::<(), wheellock::Error>(())
/// ```
pub struct LeaderChanges {
    election: LeaderElection,
    leader: Option<Leader>,
}

impl LeaderChanges {
    /// Queries the leader of `election`, and returns an observer that has seen this leader.
    pub(crate) fn new(election: LeaderElection) -> Result<Self, Error> {
        let leader = election.leader()?;
        Ok(Self { election, leader })
    }

    /// The leader at the last query; `None` if nobody led.
    #[must_use]
    pub fn leader(&self) -> Option<&Leader> {
        self.leader.as_ref()
    }

    /// Waits for a change, as long as [`wait`](crate::Wait) says: another leader, no leader, or a
    /// newly known [value](Leader::value). Returns whether there was a change;
    /// [`leader`](Self::leader) then has the new leader. Terms that begin and end in between are
    /// not seen.
    ///
    /// The end of a term wakes the observer within milliseconds. An expired lease, and a new term,
    /// send no message: the observer polls once a second.
    ///
    /// # Errors
    ///
    /// As [`Lock::lock`](crate::Lock::lock). The observer may wait again after an error.
    #[expect(single_use_lifetimes, reason = "it cannot be elided in an `impl Trait`")]
    pub fn wait<'a>(&mut self, wait: impl Into<Wait<'a>>) -> Result<bool, Error> {
        let core = self.election.core()?;
        let name = self.election.lock_name()?;
        let wait = wait.into().begin(&*core.clock);
        let channel = name.channel();
        let parameters = WaitParameters::new(&name, &channel, WaitMode::Watching, wait);
        let mut look = LeaderTry { election: &self.election, before: self.leader.as_ref(), wait };
        let Some(leader) = wait_for(&core, parameters, &mut look)?.granted else {
            return Ok(false);
        };
        self.leader = leader;
        Ok(true)
    }
}

/// Queries the leader, and is granted the leader once the owner, the term or the value differs from
/// `before`.
struct LeaderTry<'a> {
    election: &'a LeaderElection,
    before: Option<&'a Leader>,
    wait: WaitSpec<'a>,
}

impl Try for LeaderTry<'_> {
    type Grant = Option<Leader>;

    fn ask(&mut self, _: &RetryPolicy<'_>, _: Instant) -> Result<TryAnswer<Option<Leader>>, Error> {
        let leader = self.election.leader_within(self.wait)?;
        // The label of a client is known a moment after the lead. A new label is no change.
        let term = |leader: Option<&Leader>| {
            leader.map(|it| (it.owner.clone(), it.term, it.value.clone()))
        };
        if term(leader.as_ref()) == term(self.before) {
            return Ok(TryAnswer::Busy(None, WakeHint::MayTry));
        }
        Ok(TryAnswer::Granted(leader, WakeHint::MayTry))
    }
}

impl fmt::Debug for LeaderChanges {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("LeaderChanges")
            .field("election", &self.election.shown_name())
            .field("leader", &self.leader)
            .finish_non_exhaustive()
    }
}
