//! A leader election: the candidates and the leader.
//!
//! A leader is the holder of a fenced lock, and the token is the number of the term. A leader's
//! value is in the record of the leader's client, under the owner, so the value ends with the
//! record and never names an earlier leader.

use std::fmt;
use std::sync::Arc;

use crate::admin::status::status_within;
use crate::core::client_core::ClientCore;
use crate::core::spec::LockSpec;
use crate::error::Error;
use crate::locks::guard::OwnedGuard;
use crate::locks::lock::Lock;
use crate::model::name::LockName;
use crate::model::owner::OwnerText;
use crate::model::wait::WaitSpec;
use crate::ops::client_record::{ReadValue, client_record_key, value_field};
use crate::ops::{CurrentLeader, LeaderReply};
use crate::recipes::election::campaign::{Campaign, TermCallback};
use crate::recipes::election::changes::LeaderChanges;
use crate::recipes::election::term::Term;

/// An election of a leader among processes.
///
/// Created by [`Client::leader_election`](crate::Client::leader_election). An election is cheap to
/// create and to clone, and holds no lock.
///
/// Each process willing to lead starts a [`Campaign`], which gives one [`Term`] after another. If
/// the leader resigns, drops the term or shuts the client down, another candidate leads within
/// milliseconds. If the leader dies, another candidate leads when the client's
/// [lease](crate::ClientBuilder::watchdog_lease) is over. A leader whose lock is lost, as after a
/// pause longer than the lease, is notified by [`Term::is_leader`] and [`Term::lost`].
///
/// **Limits.** Two processes may act as the leader for a moment: a process stopped in the middle of
/// a step goes on with this step, and requests of an earlier leader may still be on their way. Only
/// the resource can refuse such requests, by the [number](Term::number) of the term. See [the
/// guide](crate::guide::leaders).
///
/// The leader holds the [`fenced_lock`](crate::Client::fenced_lock) of the election's name. So
/// [`force_unlock`](Lock::force_unlock) ends the term, Redisson's `RFencedLock` may take part, and
/// any holder of a lock of this name counts as the leader. A name wholly in braces, `{x}`, is an
/// [`Error::InvalidName`], as the terms of `{x}` and `x` would have the same counter of numbers.
///
/// ```
/// use wheellock::Client;
///
/// let client = Client::in_memory();
/// let election = client.leader_election("scheduler");
/// assert_eq!(election.leader()?, None);
/// let campaign = election.campaign()?;
/// let term = campaign.next_term().expect("nobody has stopped the campaign");
/// assert_eq!(election.leader()?.unwrap().term, term.number());
/// # Ok::<(), wheellock::Error>(())
/// ```
#[derive(Clone)]
pub struct LeaderElection {
    spec: LockSpec,
    /// The value published while a candidate of this election leads.
    value: Option<Arc<str>>,
}

/// The longest value of a leader, in bytes.
const MAX_VALUE: usize = 1000;

/// The leader, as reported by the server.
///
/// Returned by [`LeaderElection::leader`] and
/// [`LeaderChanges::leader`](crate::LeaderChanges::leader).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The owner of the leader's hold: the [identity](crate::Client::id) of the client and the
    /// number of the hold.
    pub owner: String,
    /// The number of the term, as from [`Term::number`]. For a holder that has drawn no token, such
    /// as a plain lock's, the last number of the election, or zero.
    pub term: u64,
    /// The [label](crate::ClientBuilder::label) of the leader's client. `None` for a thread of
    /// Redisson, until the leader's client has written the client record, about a second after its
    /// first hold, and if this user may not read the record.
    pub label: Option<String>,
    /// The value set by [`LeaderElection::with_value`], such as an address. `None` for a leader
    /// without a value, until the client has written the value, some milliseconds after the term
    /// began, and if this user may not read the client record.
    pub value: Option<String>,
}

impl LeaderElection {
    /// Returns the election whose leader holds the fenced lock of `spec`.
    pub(crate) fn new(spec: LockSpec) -> Self {
        Self { spec, value: None }
    }

    /// Sets a value for the candidates of the returned election, such as an address. While such a
    /// candidate leads, [`Leader::value`] is the value.
    ///
    /// The value has at most 1,000 bytes. For a longer value, [`campaign`](Self::campaign) and
    /// [`campaign_with`](Self::campaign_with) return [`Error::InvalidSetting`].
    ///
    /// The value is stored in the client record, where each user with access to the record can read
    /// the value. If more than 64 candidates of one client lead, each in an election of its own,
    /// only 64 values are stored.
    ///
    /// ```
    /// use wheellock::Client;
    ///
    /// let client = Client::in_memory();
    /// let election = client.leader_election("scheduler");
    /// let campaign = election.clone().with_value("10.0.0.7:8080").campaign()?;
    /// let _term = campaign.next_term().expect("nobody has stopped the campaign");
    /// let mut changes = election.changes()?;
    /// while changes.leader().is_none_or(|leader| leader.value.is_none()) {
    ///     changes.wait(wheellock::Wait::forever())?;
    /// }
    /// assert_eq!(changes.leader().unwrap().value.as_deref(), Some("10.0.0.7:8080"));
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    #[must_use]
    pub fn with_value(self, value: &str) -> Self {
        Self { value: Some(Arc::from(value)), ..self }
    }

    /// Starts a campaign on a new thread, and returns the campaign, from which the caller
    /// [takes](Campaign::next_term) the terms.
    ///
    /// The call does not wait for the server: [`Campaign::error`] has the errors of the thread.
    /// Each call starts a further candidate. The candidate leads also while nobody takes the term,
    /// so a program may use [`Campaign::is_leader`] alone.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidName`] - the name is invalid, or wholly in braces. Permanent.
    /// * [`Error::InvalidSetting`] - the [value](Self::with_value) is too long. Permanent.
    /// * [`Error::Thread`] - the thread cannot be started. Transient.
    /// * [`Error::Shutdown`] - the client was shut down. Permanent.
    /// * [`Error::Forked`] - this process is a fork of the client's process. Permanent.
    pub fn campaign(&self) -> Result<Campaign, Error> {
        self.start(None)
    }

    /// Starts a campaign on a new thread, which calls `lead` with each term.
    ///
    /// `lead` runs on the thread of the campaign, `lock-election`. The term ends when `lead`
    /// returns or panics, and the campaign goes on; a panic is counted in
    /// [`Stats::callback_panics`](crate::Stats::callback_panics). To end the campaign, drop or
    /// [stop](Campaign::stop) the returned [`Campaign`].
    ///
    /// The term may end while `lead` runs: the channel [`Term::lost`] then closes, after a loss
    /// with a message. `lead` should return soon after this, as the candidate does not campaign
    /// again before.
    ///
    /// ```
    /// use wheellock::{Client, crossbeam_channel::bounded};
    ///
    /// let client = Client::in_memory();
    /// let (tell, told) = bounded(1);
    /// let campaign = client.leader_election("scheduler").campaign_with(move |term| {
    ///     tell.send(term.number()).ok();
    ///     // Ends when the term is lost, or the campaign is stopped.
    ///     term.lost().recv().ok();
    /// })?;
    /// assert!(told.recv().unwrap() > 0);
    /// drop(campaign);
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`campaign`](Self::campaign), which has the list.
    pub fn campaign_with(
        &self,
        lead: impl FnMut(&Term) + Send + 'static,
    ) -> Result<Campaign, Error> {
        self.start(Some(Box::new(lead)))
    }

    /// Starts a campaign for a new candidate, with `callback` for the terms, if any. Returns an
    /// error for an invalid name or value.
    fn start(&self, callback: Option<TermCallback>) -> Result<Campaign, Error> {
        self.lock_name()?;
        if let Some(value) = self.value.as_deref().filter(|value| value.len() > MAX_VALUE) {
            let reason = format!("{} bytes are more than {MAX_VALUE}", value.len());
            return Err(Error::invalid_setting("value", reason));
        }
        let core = self.spec.core()?;
        // Candidates of the same client must not nest their holds.
        let candidate = core.id.next_owner().to_string();
        let lock: Lock<OwnedGuard> = Lock::new(self.spec.clone());
        let clock = core.clock.clone();
        Campaign::start(lock.with_owner(&candidate), self.value.clone(), clock, callback)
    }

    /// Returns the name of the election's lock, or [`Error::InvalidName`] for a name wholly in
    /// braces: two elections must not share the counter of terms.
    pub(crate) fn lock_name(&self) -> Result<LockName, Error> {
        self.spec.name()?.without_outer_braces()
    }

    /// Returns the leader, as reported by the server; `None` if nobody leads.
    ///
    /// When this call returns, another candidate may lead. Any holder of a lock of the election's
    /// name counts as the leader. Takes a round trip if nobody leads; otherwise three more: the
    /// hold, and two for the client record.
    ///
    /// # Errors
    ///
    /// The call changes nothing on the server, and may be repeated.
    ///
    /// * [`Error::InvalidName`] - the name is invalid, or wholly in braces. Permanent.
    /// * [`Error::Unreachable`], [`Error::OutcomeUnknown`] - the server did not answer for twice
    ///   the [command timeout](crate::ClientBuilder::command_timeout). Transient.
    /// * [`Error::Refused`], [`Error::Authentication`] - the server refused a command or the user.
    /// * [`Error::WrongType`] - the key holds other data, or a simple or read-write lock.
    ///   Permanent.
    /// * [`Error::Shutdown`] - the client was shut down. Permanent.
    /// * [`Error::Forked`] - this process is a fork of the client's process. Permanent.
    pub fn leader(&self) -> Result<Option<Leader>, Error> {
        self.leader_within(WaitSpec::ONE_TRY)
    }

    /// Returns the leader as [`leader`](Self::leader) does, within the limit of `wait`.
    pub(crate) fn leader_within(&self, wait: WaitSpec<'_>) -> Result<Option<Leader>, Error> {
        let reply = self.spec.call_within(&CurrentLeader::new(self.lock_name()?), wait)?;
        let Some(LeaderReply { owner, token }) = reply else { return Ok(None) };
        let holders = status_within(&self.spec.core()?, &self.spec.name()?, wait)?.holders;
        let holder = holders.into_iter().find(|holder| holder.owner == owner);
        let label = holder.and_then(|holder| holder.label);
        let value = self.value_of(&owner, wait)?.filter(|_| label.is_some());
        Ok(Some(Leader { owner, term: token, label, value }))
    }

    /// Returns the value of the leader `owner` from the record of the leader's client. Returns
    /// `None` without a value, and if the record cannot be read by this user.
    fn value_of(&self, owner: &str, wait: WaitSpec<'_>) -> Result<Option<String>, Error> {
        let Some(parsed) = OwnerText::parse(owner) else { return Ok(None) };
        let read = ReadValue { key: client_record_key(parsed.client), field: value_field(owner) };
        match self.spec.call_within(&read, wait) {
            // Another program's key, or a key that this user may not read.
            Err(Error::WrongType { .. }) => Ok(None),
            Err(error) if error.is_unreadable_key() => Ok(None),
            value => value,
        }
    }

    /// Queries the leader, and returns an observer, which waits for [changes](LeaderChanges::wait)
    /// of this leader.
    ///
    /// # Errors
    ///
    /// The errors of [`leader`](Self::leader), which has the list.
    pub fn changes(&self) -> Result<LeaderChanges, Error> {
        LeaderChanges::new(self.clone())
    }

    /// Returns the running client.
    pub(crate) fn core(&self) -> Result<Arc<ClientCore>, Error> {
        self.spec.core()
    }

    /// Returns the name with the client's prefix, for `Debug` output.
    pub(super) fn shown_name(&self) -> String {
        self.spec.shown_name()
    }
}

impl fmt::Debug for LeaderElection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("LeaderElection")
            .field("name", &self.shown_name())
            .finish_non_exhaustive()
    }
}
