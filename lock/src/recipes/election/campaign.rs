//! A campaign: a candidate of an election, with a dedicated thread.
//!
//! A program willing to lead has other work, hence the thread. The lock has a named owner, so two
//! candidates of a client do not nest. The term owns the guard, and the campaign can take the guard
//! out: stopping a campaign ends the term at once, whichever thread has the term, without waiting
//! for foreign code.
//!
//! The next campaign begins only after the last term was dropped. Otherwise a loop still acting as
//! the leader would be elected again unnoticed, or leave a lead that nobody takes. After a term
//! that was not lost, and after an error that may pass, the campaign pauses for a second. A fair
//! lock would order the candidates more exactly, but needs a queue of keys without an expiry.

use std::convert::Infallible;
use std::fmt;
use std::iter;
use std::mem;
use std::sync::{Arc, OnceLock};
use std::thread::{self, ThreadId};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded, never, select};
use hashed_wheel::Clock;

use crate::error::Error;
use crate::locks::guard::OwnedGuard;
use crate::locks::lock::Lock;
use crate::model::fork::HomeProcess;
use crate::model::panics::catch_panic;
use crate::model::sync::Mutex;
use crate::model::wait::{Wait, WaitSpec};
use crate::recipes::election::term::{Term, TermEnd, TermState};

/// A candidate of a [`LeaderElection`](crate::LeaderElection). Dropping a campaign
/// [stops](Self::stop) the campaign.
///
/// Created by [`LeaderElection::campaign`](crate::LeaderElection::campaign) or
/// [`LeaderElection::campaign_with`](crate::LeaderElection::campaign_with).
///
/// The thread `lock-election` of the campaign waits for the lead, gives the [`Term`] to the
/// program, and waits until the program drops the term. After a term that was lost, the thread at
/// once waits for the lead again; after any other term, a second later, so other candidates come
/// first.
///
/// In the child of a fork a campaign does nothing: there is no term, and no method waits.
///
/// ```
/// use wheellock::Client;
///
/// let client = Client::in_memory();
/// let campaign = client.leader_election("scheduler").campaign()?;
/// for term in campaign.terms() {
///     while term.is_leader() {
///         // Lead, a step at a time.
/// #       campaign.stop();
///     }
/// }
/// # Ok::<(), wheellock::Error>(())
/// ```
pub struct Campaign {
    shared: Arc<CampaignShared>,
    /// The begun term, not yet taken. Always empty with a callback.
    terms: Receiver<Term>,
}

/// The state shared by a campaign and the campaign's thread.
struct CampaignShared {
    /// Dropping the sender ends the campaign.
    stop: Mutex<Option<Sender<()>>>,
    /// The term of this candidate, until the term is ended or cleared.
    current: Mutex<Option<CurrentTerm>>,
    /// The thread of the campaign, once running.
    thread: OnceLock<ThreadId>,
    /// Why the last try to lead has failed; `None` after a grant.
    error: Mutex<Option<Error>>,
    home: HomeProcess,
}

/// The term in which this candidate leads, or has led until just now.
struct CurrentTerm {
    state: Arc<TermState>,
    /// Closes when the term is dropped.
    dropped: Receiver<Infallible>,
}

/// The state of a campaign's thread, which acquires the lock for each term.
struct Candidate {
    shared: Arc<CampaignShared>,
    lock: Lock<OwnedGuard>,
    /// The value published while this candidate leads.
    value: Option<Arc<str>>,
    clock: Arc<dyn Clock>,
    /// Closed when the campaign ends.
    stopped: Receiver<()>,
}

/// The pause after a term without a loss: candidates elsewhere come first, as each polls at least
/// as often. Also the pause after an error.
const PAUSE: Duration = Duration::from_secs(1);

/// The callback of a campaign, called with each term.
pub(crate) type TermCallback = Box<dyn FnMut(&Term) + Send>;

impl Campaign {
    /// Starts a thread that campaigns for `lock` and publishes `value` while this candidate leads.
    /// Each term is given to `callback`, or, without a callback, to the caller of
    /// [`next_term`](Self::next_term). Returns [`Error::Thread`] if the thread cannot be started.
    pub(crate) fn start(
        lock: Lock<OwnedGuard>,
        value: Option<Arc<str>>,
        clock: Arc<dyn Clock>,
        callback: Option<TermCallback>,
    ) -> Result<Self, Error> {
        let (stop, stopped) = bounded(0);
        let (send, terms) = bounded(1);
        let shared = Arc::new(CampaignShared {
            stop: Mutex::new(Some(stop)),
            current: Mutex::default(),
            thread: OnceLock::new(),
            error: Mutex::default(),
            home: HomeProcess::new(),
        });
        let candidate = Candidate { shared: Arc::clone(&shared), lock, value, clock, stopped };
        let untaken = terms.clone();
        let run = move || {
            // Set once, here.
            let _first = candidate.shared.thread.set(thread::current().id());
            // A panic of the clock ends the campaign. Panics of a callback are caught in each call.
            let ended = match callback {
                Some(callback) => {
                    // Nobody waits for a term.
                    drop(send);
                    catch_panic(|| candidate.call_for_each_term(callback))
                }
                None => catch_panic(|| candidate.send_each_term(&send, &untaken)),
            };
            if ended.is_none() {
                candidate.shared.end_term();
            }
        };
        thread::Builder::new()
            .name("lock-election".to_owned())
            .spawn(run)
            .map_err(|error| Error::Thread { reason: error.into() })?;
        Ok(Self { shared, terms })
    }

    /// Waits without a limit for the next term of this candidate.
    ///
    /// A new term begins only after the term before was dropped: a thread that retains a term and
    /// calls this method does not get another term. If several threads wait, each term is given to
    /// one of the threads.
    ///
    /// Returns `None` when the campaign has ended: the campaign was [stopped](Self::stop), the
    /// client was shut down, or an [`error`](Self::error) was permanent. Also returns `None` for a
    /// campaign with a [closure](crate::LeaderElection::campaign_with), and in the child of a fork.
    #[must_use]
    pub fn next_term(&self) -> Option<Term> {
        if !self.shared.home.is_current() {
            // The sending thread exists only in the parent.
            return None;
        }
        loop {
            let term = self.terms.recv().ok()?;
            // The term may have been lost while nobody took it.
            if term.is_leader() {
                return Some(term);
            }
        }
    }

    /// Returns an iterator over the terms of this candidate, which waits for each
    /// [`next_term`](Self::next_term), and ends with the campaign.
    ///
    /// Each term must be dropped before the next term begins, as at the end of the body of a `for`
    /// loop.
    pub fn terms(&self) -> impl Iterator<Item = Term> + '_ {
        iter::from_fn(|| self.next_term())
    }

    /// Returns whether this candidate leads for certain, as [`Term::is_leader`] does, for threads
    /// without the [`Term`]. Local: no round trip.
    ///
    /// The result may become `true` again with a later term. In the child of a fork the result is
    /// `false`.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.shared.home.is_current()
            && self.shared.current.lock().as_ref().is_some_and(|term| term.state.is_leader())
    }

    /// Returns why this candidate's last acquire of the lead has failed; `None` before a failure,
    /// after this candidate was elected, and in the child of a fork. Local: no round trip.
    ///
    /// After a [retryable](Error::is_retryable) error, and after [`Error::Lost`], which here means
    /// a grant that arrived too late, the candidate tries again a second later. After any other
    /// error the campaign has ended.
    #[must_use]
    pub fn error(&self) -> Option<Error> {
        if self.shared.home.is_current() { self.shared.error.lock().clone() } else { None }
    }

    /// Ends the campaign and the current term, even if the leader's work goes on.
    /// [`stop_and_wait`](Self::stop_and_wait) ends the term after the work.
    ///
    /// The release of the lead is sent as for a [dropped guard](crate::guide::dropping): this call
    /// returns within one [command timeout](crate::ClientBuilder::command_timeout), even if the
    /// server does not answer. Any thread may call this method, also the closure of
    /// [`campaign_with`](crate::LeaderElection::campaign_with). A second call has no effect.
    ///
    /// This call does not wait for the thread of the campaign. The thread ends when a command in
    /// flight is answered, after one command timeout at most, or when the closure returns. If this
    /// command grants the lead, the thread releases the lead, and no term is given to the program.
    pub fn stop(&self) {
        self.shared.stop();
    }

    /// Ends the campaign, asks the leader to end the work, and waits until the term is dropped, for
    /// `timeout` at most.
    ///
    /// The leader receives the request by [`Term::revocation`] and [`Term::is_asked`], and leads
    /// until the term is dropped. The term of a closure is dropped when the closure returns. So no
    /// other candidate leads while the work goes on, unless the lead is lost.
    ///
    /// Returns `true` if the term was dropped, or if there was no term. Returns `false` if the term
    /// still exists after `timeout`, also a lost term: the term goes on until the term is dropped,
    /// [`stop`](Self::stop) ends the term, or the campaign is dropped. A later call waits again. A
    /// call by the closure of [`campaign_with`](crate::LeaderElection::campaign_with) does not
    /// wait, and returns `false`. A thread that retains the term itself waits in vain. In the child
    /// of a fork the call returns `true`.
    ///
    /// Users of `client-go` have asked for such a method: the elector of `client-go` releases the
    /// lease while the work is still ending.
    ///
    /// ```
    /// use std::time::Duration;
    /// use wheellock::Client;
    ///
    /// let client = Client::in_memory();
    /// let campaign = client.leader_election("scheduler").campaign_with(|term| {
    ///     // Works until the lead is lost or is to be given up.
    ///     while term.is_leader() && !term.is_asked() {
    ///         std::thread::yield_now();
    ///     }
    ///     // Saves the progress, still as the leader.
    /// })?;
    /// assert!(campaign.stop_and_wait(Duration::from_secs(10)));
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    #[must_use = "the work may go on"]
    pub fn stop_and_wait(&self, timeout: Duration) -> bool {
        self.shared.stop_and_wait(timeout)
    }
}

impl Drop for Campaign {
    fn drop(&mut self) {
        if !self.shared.home.is_current() {
            // The channels and the term are the parent's.
            mem::forget((Arc::clone(&self.shared), self.terms.clone()));
        }
        self.stop();
    }
}

impl CampaignShared {
    /// Cancels the wait of the thread, and releases the current term. Does nothing in the child of
    /// a fork.
    fn stop(&self) {
        if !self.home.is_current() {
            // The locks, the channels and the term are the parent's.
            return;
        }
        // In this order: a term that begins meanwhile is ended by the thread or here.
        self.stop_campaigning();
        self.end_term();
    }

    /// Closes the channel that stops the campaign: the thread begins no further term.
    fn stop_campaigning(&self) {
        let stop = self.stop.lock().take();
        drop(stop);
    }

    /// Ends the campaign, asks the leader to end the work, and waits until the term is dropped, for
    /// `timeout` at most. Returns `true` if this candidate leads no more. On the campaign's thread
    /// returns `false` without a wait while there is a term.
    fn stop_and_wait(&self, timeout: Duration) -> bool {
        if !self.home.is_current() {
            return true;
        }
        // In the order of `stop`.
        self.stop_campaigning();
        let current = self
            .current
            .lock()
            .as_ref()
            .map(|CurrentTerm { state, dropped }| (Arc::clone(state), dropped.clone()));
        let Some((state, dropped)) = current else { return true };
        state.ask("its campaign is stopped");
        if self.thread.get() == Some(&thread::current().id()) {
            return false;
        }
        // Nothing is ever sent: the call returns when the term is dropped, or at the timeout.
        dropped.recv_timeout(timeout) == Err(RecvTimeoutError::Disconnected)
    }

    /// Releases the current term, if any, whichever thread has the term.
    fn end_term(&self) {
        let term = self.current.lock().take();
        if let Some(term) = term {
            term.state.end();
        }
    }
}

impl Candidate {
    /// Calls `callback` with each term until the campaign is over. Drops the term after each call,
    /// and counts a panic of the callback.
    fn call_for_each_term(&self, mut callback: TermCallback) {
        while let Some((term, _)) = self.wait_for_term() {
            // Foreign code may panic: the term ends all the same.
            if catch_panic(|| callback(&term)).is_none() {
                self.lock.count_panic();
            }
            let state = Arc::clone(term.state());
            drop(term);
            if !self.clear_term(&state) {
                return;
            }
        }
    }

    /// Sends each term to `terms`, and waits until the term is dropped. Returns when the campaign
    /// is over. `untaken` is the receiving end: a term that is lost or stopped before anybody takes
    /// the term is dropped there.
    fn send_each_term(&self, terms: &Sender<Term>, untaken: &Receiver<Term>) {
        while let Some((term, end)) = self.wait_for_term() {
            let state = Arc::clone(term.state());
            // There is room: the term before is taken or dropped.
            drop(terms.try_send(term));
            let TermEnd { dropped, mut lost } = end;
            loop {
                select! {
                    recv(dropped) -> _ => break,
                    recv(lost) -> _ => {
                        // Nobody else drops a term that was not taken.
                        drop(untaken.try_recv());
                        lost = never();
                    }
                    recv(self.stopped) -> _ => {
                        drop(untaken.try_recv());
                        return;
                    }
                }
            }
            if !self.clear_term(&state) {
                return;
            }
        }
    }

    /// Campaigns until this candidate leads, and returns the begun term and the term's end. Returns
    /// `None` when the campaign is over. Stores each failure of a try for [`Campaign::error`].
    fn wait_for_term(&self) -> Option<(Term, TermEnd)> {
        loop {
            let wait = Wait::forever().or_cancelled(&self.stopped);
            match self.lock.try_lock_with(wait) {
                Ok(Some(guard)) => {
                    *self.shared.error.lock() = None;
                    let (term, end) = Term::begin(guard, self.value.as_ref());
                    let (state, dropped) = (Arc::clone(term.state()), end.dropped.clone());
                    // With the current term locked, a stop either prevents the term here, or finds
                    // the term.
                    let mut current = self.shared.current.lock();
                    let is_stopped = self.is_stopped();
                    if !is_stopped {
                        *current = Some(CurrentTerm { state, dropped });
                    }
                    drop(current);
                    // Dropping the term releases the lock.
                    return (!is_stopped).then_some((term, end));
                }
                // A wait without a limit ends with a lock or an error.
                Ok(None) => {}
                Err(Error::Cancelled { .. }) => return None,
                Err(error) => {
                    let may_pass = error.is_retryable() || matches!(error, Error::Lost { .. });
                    *self.shared.error.lock() = Some(error);
                    if !may_pass || !self.pause() {
                        return None;
                    }
                }
            }
        }
    }

    /// Clears the ended `term`, and pauses unless the term was lost. Returns `false` if the
    /// campaign is over.
    fn clear_term(&self, term: &TermState) -> bool {
        // The lead may be another candidate's by now.
        let ended = self.shared.current.lock().take();
        drop(ended);
        !self.is_stopped() && (term.is_lost() || self.pause())
    }

    /// Returns whether the campaign is stopped.
    fn is_stopped(&self) -> bool {
        self.stopped.try_recv() == Err(TryRecvError::Disconnected)
    }

    /// Pauses for [`PAUSE`]. Returns `false` if the campaign was stopped meanwhile.
    fn pause(&self) -> bool {
        let wait = WaitSpec { waits: true, deadline: None, cancel: Some(&self.stopped) };
        wait.pause(&*self.clock, PAUSE)
    }
}

impl fmt::Debug for Campaign {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Campaign")
            .field("is_leader", &self.is_leader())
            .finish_non_exhaustive()
    }
}
