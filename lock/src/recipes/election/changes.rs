//! Who leads, as an observer sees it change.

use std::fmt;
use std::time::Instant;

use crate::core::tries::{Try, TryAnswer, WaitRequest, wait_for};
use crate::error::Error;
use crate::model::wait::{Wait, WaitSpec};
use crate::model::wait_mode::{WaitMode, WakeHint};
use crate::recipes::election::election::{Leader, LeaderElection};
use crate::store::retry::RetryPolicy;

/// An observer of a [`LeaderElection`], which takes no part in it: from
/// [`LeaderElection::changes`]. It has no thread, and is no candidate.
///
/// The name and the use are those of `observe` in etcd's elections.
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
    pub(crate) fn new(election: LeaderElection) -> Result<Self, Error> {
        let leader = election.leader()?;
        Ok(Self { election, leader })
    }

    /// Who led at the last look; `None` if nobody did.
    #[must_use]
    pub fn leader(&self) -> Option<&Leader> {
        self.leader.as_ref()
    }

    /// Waits as long as [`wait`](crate::Wait) says until another one leads, or nobody, or the leader's
    /// [value](Leader::value) is known, and returns whether that is so: [`leader`](Self::leader) has it then. Terms that come and go in between are
    /// not seen.
    ///
    /// The end of a term wakes the observer within milliseconds. A lease that ends, and a new term,
    /// send no message: the observer asks once a second.
    ///
    /// # Errors
    ///
    /// As [`Lock::lock`](crate::Lock::lock). The observer may go on waiting.
    #[expect(single_use_lifetimes, reason = "it cannot be elided in an `impl Trait`")]
    pub fn wait<'a>(&mut self, wait: impl Into<Wait<'a>>) -> Result<bool, Error> {
        let core = self.election.core()?;
        let name = self.election.lock_name()?;
        let wait = wait.into().begin(&*core.clock);
        let channel = name.channel();
        let request = WaitRequest::new(&name, &channel, WaitMode::Watching, wait);
        let mut look = LeaderTry { election: &self.election, before: self.leader.as_ref(), wait };
        let Some(leader) = wait_for(&core, request, &mut look)?.granted else { return Ok(false) };
        self.leader = leader;
        Ok(true)
    }
}

/// Whether another one leads than before.
struct LeaderTry<'a> {
    election: &'a LeaderElection,
    before: Option<&'a Leader>,
    wait: WaitSpec<'a>,
}

impl Try for LeaderTry<'_> {
    type Grant = Option<Leader>;

    fn ask(&mut self, _: &RetryPolicy<'_>, _: Instant) -> Result<TryAnswer<Option<Leader>>, Error> {
        let leader = self.election.leader_within(self.wait)?;
        // The label of a client is known a moment later than its lead, and that is no change.
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
            .field("election", &self.election.name())
            .field("leader", &self.leader)
            .finish_non_exhaustive()
    }
}
