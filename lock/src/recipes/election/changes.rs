//! Changes of the leader, for observers.

use std::fmt;
use std::time::Instant;

use crate::core::tries::{Try, TryAnswer, WaitParameters, wait_for};
use crate::error::Error;
use crate::model::wait::{Wait, WaitSpec};
use crate::model::wait_mode::{WaitMode, WakeHint};
use crate::recipes::election::election::{Leader, LeaderElection};
use crate::store::retry::RetryPolicy;

/// An observer of the leader of a [`LeaderElection`].
///
/// Returned by [`LeaderElection::changes`]. An observer has no thread, and is no candidate. The
/// idea is `observe` of etcd's elections.
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

    /// Returns the leader at the last change that this observer has seen; `None` if nobody led.
    /// Local: no round trip.
    ///
    /// At first, the leader is as of [`LeaderElection::changes`]. Only [`wait`](Self::wait) queries
    /// the server again. A later change of the [label](Leader::label) alone is not seen.
    #[must_use]
    pub fn leader(&self) -> Option<&Leader> {
        self.leader.as_ref()
    }

    /// Waits until the leader is different from [`leader`](Self::leader), as long as
    /// [`wait`](crate::Wait) says.
    ///
    /// Returns `true` after a change: another term, the end of a term without a next leader, or a
    /// different [value](Leader::value) of the same leader. [`leader`](Self::leader) then returns
    /// the new leader. Returns `false` if the wait ends without a change. With
    /// [`Wait::none`](crate::Wait::none) the server is queried once. A term that begins and ends
    /// between two queries is not seen.
    ///
    /// A leader that resigns wakes the observer within milliseconds. The begin of a term, and the
    /// end of a lease, send no message: the observer queries the server once a second, with the
    /// round trips of [`LeaderElection::leader`].
    ///
    /// # Errors
    ///
    /// [`Error::Cancelled`] if the wait is cancelled, and the errors of [`LeaderElection::leader`].
    /// The observer may wait again after an error, and has the same leader as before.
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
