//! A term: the time in which a candidate leads.

use std::convert::Infallible;
use std::fmt;
use std::mem;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::core::raw_guard::View;
use crate::error::{Error, LostReason};
use crate::hold::listener::{HoldListener, LossSender, forked_channel};
use crate::hold::revocation::{Revocation, RevocationSignal, channel_of};
use crate::locks::guard::{FromRawGuard, OwnedGuard};
use crate::model::fork::HomeProcess;
use crate::model::sync::Mutex;

/// The time in which a candidate of a [`LeaderElection`](crate::LeaderElection) leads. Dropping a
/// term ends the lead.
///
/// Returned by [`Campaign::next_term`](crate::Campaign::next_term), or passed to the closure of
/// [`LeaderElection::campaign_with`](crate::LeaderElection::campaign_with). A term may be sent to
/// another thread.
///
/// **Check the term.** While the value exists, the term may be over: the process may have been
/// stopped, or cut off from the server, for longer than the lease. Call
/// [`is_leader`](Self::is_leader) before each step reserved for the leader, or select on
/// [`lost`](Self::lost). Requests of an earlier leader may still be on their way: give the
/// [number](Self::number) to the resource.
///
/// ```
/// use wheellock::Client;
///
/// let client = Client::in_memory();
/// let campaign = client.leader_election("scheduler").campaign()?;
/// let term = campaign.next_term().expect("nobody has stopped the campaign");
/// assert!(term.is_leader() && campaign.is_leader());
/// term.resign()?;
/// assert!(!campaign.is_leader());
/// # Ok::<(), wheellock::Error>(())
/// ```
#[must_use = "dropping a term resigns"]
pub struct Term {
    state: Arc<TermState>,
    /// Closes when the term is dropped, after the state has ended. The campaign waits for the
    /// close.
    drops: Sender<Infallible>,
}

/// The state shared by a term and the campaign.
pub(crate) struct TermState {
    name: String,
    number: u64,
    view: View,
    lost: Receiver<LostReason>,
    revocation: Arc<RevocationSignal>,
    /// The guard until the term ends. Taken out before the release.
    guard: Mutex<Option<OwnedGuard>>,
    home: HomeProcess,
}

/// The end of a term, as notified to the campaign.
pub(crate) struct TermEnd {
    /// Closes when the term is dropped.
    pub(crate) dropped: Receiver<Infallible>,
    /// Gets the reason of a loss, and closes when the hold is released.
    pub(crate) lost: Receiver<LostReason>,
}

/// Passes the loss of a term's hold to the term and to the campaign, and a revocation request to
/// the term.
#[derive(Debug)]
struct TermListener {
    losses: [Arc<LossSender>; 2],
    revocation: Arc<RevocationSignal>,
}

impl HoldListener for TermListener {
    fn on_lost(&self, reason: LostReason) {
        self.losses.iter().for_each(|sender| sender.on_lost(reason));
    }

    fn on_revocation(&self, revocation: &Revocation) {
        self.revocation.on_revocation(revocation);
    }
}

impl Term {
    /// Begins a term with the hold of `guard`, publishes the leader's `value`, and subscribes to
    /// revocation requests. Returns the term, and the term's end for the campaign.
    pub(crate) fn begin(guard: OwnedGuard, value: Option<&Arc<str>>) -> (Self, TermEnd) {
        let (of_term, lost) = LossSender::new();
        let (of_campaign, lost_too) = LossSender::new();
        let (losses, revocation) = ([of_term, of_campaign], RevocationSignal::new());
        let listener = TermListener { losses, revocation: Arc::clone(&revocation) };
        guard.raw().add_listener(Arc::new(listener));
        guard.raw().subscribe_to_revocations();
        if let Some(value) = value {
            guard.raw().advertise(value);
        }
        let state = TermState {
            name: guard.name(),
            // An acquire of a fenced lock always draws a token.
            number: guard.token().unwrap_or(0),
            view: guard.raw().view(),
            lost,
            revocation,
            guard: Mutex::new(Some(guard)),
            home: HomeProcess::new(),
        };
        let (drops, dropped) = bounded(0);
        let term = Self { state: Arc::new(state), drops };
        (term, TermEnd { dropped, lost: lost_too })
    }

    pub(crate) fn state(&self) -> &Arc<TermState> {
        &self.state
    }

    /// Returns the number of the term: the fencing token of the hold.
    ///
    /// Every later term of this election, of any leader, has a larger number. A resource that
    /// remembers the largest number, and refuses requests with a smaller number, is safe from
    /// earlier leaders.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.state.number
    }

    /// Returns whether this candidate is certainly the leader at the time of the call. Local: no
    /// round trip.
    ///
    /// After `false` the result stays `false`. If the process was paused for longer than the lease,
    /// the next call returns `false`. In the child of a fork the result is `false`.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.state.is_leader()
    }

    /// Returns a channel that receives a single message if the lead is lost: the reason.
    ///
    /// The channel closes without a message if the term ends without a loss: by
    /// [`resign`](Self::resign) or the drop of the term, or by a stop or the drop of the campaign.
    /// A shutdown of the client is a loss. In the child of a fork the channel has the message
    /// [`LostReason::Forked`].
    #[must_use]
    pub fn lost(&self) -> &Receiver<LostReason> {
        if self.state.home.is_current() { &self.state.lost } else { forked_channel() }
    }

    /// Returns a channel that receives a single message when the leader is asked to give up the
    /// lead.
    ///
    /// The request is made by [`Campaign::stop_and_wait`](crate::Campaign::stop_and_wait), or by
    /// [`Lock::ask`](crate::Lock::ask) or `wheellock ask` for the election's name. The lead does
    /// not end by the request: the leader ends the work and drops the term, or goes on. Only the
    /// first request of a term is received. The channel closes without a message when the term is
    /// dropped or its campaign is stopped; a loss alone does not close the channel. In the child of
    /// a fork the channel is closed.
    #[must_use]
    pub fn revocation(&self) -> &Receiver<Revocation> {
        channel_of(self.state.home.is_current().then_some(&self.state.revocation))
    }

    /// Returns whether the leader was asked to give up the lead, as notified by
    /// [`revocation`](Self::revocation). Local: no round trip.
    ///
    /// After `true` the result stays `true`. In the child of a fork the result is `false`.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.state.home.is_current() && self.state.revocation.asked().is_some()
    }

    /// Ends the term, and waits for the server's reply. `Ok` means: this candidate has led until
    /// now.
    ///
    /// Another candidate is woken, and leads within milliseconds. This candidate campaigns again
    /// after a second, so waiting candidates come first. A drop of the term has the same effect,
    /// but does not return a result.
    ///
    /// # Errors
    ///
    /// The term is over in any case.
    ///
    /// * [`Error::Lost`] - this candidate did not lead any more: the lead was lost, or the campaign
    ///   was stopped. Another candidate may have led at the same time. Permanent. In the child of a
    ///   fork the reason is [`LostReason::Forked`].
    /// * [`Error::OutcomeUnknown`], [`Error::Unreachable`], [`Error::Refused`] - the server did not
    ///   acknowledge the release for twice the [command
    ///   timeout](crate::ClientBuilder::command_timeout). The client finishes the release in the
    ///   background; at worst the end of the lease ends the lead on the server.
    pub fn resign(self) -> Result<(), Error> {
        self.state.end_by(OwnedGuard::unlock)
    }
}

impl TermState {
    /// Returns whether the hold of the term is held for certain. `false` in the child of a fork.
    pub(crate) fn is_leader(&self) -> bool {
        self.home.is_current() && self.view.is_held()
    }

    /// Returns whether the hold of the term was lost, and not released.
    pub(crate) fn is_lost(&self) -> bool {
        self.view.was_lost()
    }

    /// Asks the leader to end the work, by the term's revocation signal, with `reason`.
    pub(crate) fn ask(&self, reason: &str) {
        self.revocation.on_revocation(&Revocation { reason: reason.to_owned() });
    }

    /// Ends the term and drops the guard, unless the term has ended.
    pub(crate) fn end(&self) {
        // An unacknowledged release is finished in the background.
        let _ended = self.end_by(|guard| {
            drop(guard);
            Ok(())
        });
    }

    /// Ends the term by `release` of the guard, withdraws the leader's value, and closes the
    /// revocation signal. Returns the result of `release`, or the loss if the term has ended
    /// before.
    fn end_by(&self, release: impl FnOnce(OwnedGuard) -> Result<(), Error>) -> Result<(), Error> {
        if !self.home.is_current() {
            // The mutex is the parent's, and so is the hold.
            return Err(Error::Lost { name: self.name.clone(), reason: LostReason::Forked });
        }
        // Taken in a statement of its own, so the release runs with nothing locked.
        let guard = self.guard.lock().take();
        let ended = match guard {
            Some(guard) => {
                guard.raw().stop_advertising();
                release(guard)
            }
            None => Err(self.view.lost()),
        };
        self.revocation.close();
        ended
    }
}

impl Drop for Term {
    fn drop(&mut self) {
        self.state.end();
        if !self.state.home.is_current() {
            // The channel and the guard are the parent's.
            mem::forget(Arc::clone(&self.state));
            mem::forget(self.drops.clone());
        }
    }
}

impl fmt::Debug for Term {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.state, formatter)
    }
}

impl fmt::Debug for TermState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Term")
            .field("name", &self.name)
            .field("number", &self.number)
            .field("is_leader", &self.is_leader())
            .finish_non_exhaustive()
    }
}
