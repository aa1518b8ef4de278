//! A campaign: one candidate of an election, with a thread of its own (DESIGN: elections).

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

/// A candidate of a [`LeaderElection`](crate::LeaderElection). Dropping it ends its campaign and
/// its term.
///
/// It has a thread, `lock-election`, which waits for the lead. It works for one term after the
/// other: the next campaign begins when the [`Term`] before is dropped, and after a second if that
/// one was not lost, so that other candidates come first.
///
/// When it is dropped or [stopped](Self::stop), its term is released at once and a waiting thread
/// is cancelled. The thread is not waited for: it ends when a command that is under way is
/// answered, after one command timeout at most, and when a callback returns.
///
/// In the child of a fork a campaign does nothing.
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
    shared: Arc<Shared>,
    /// The term that has begun and that nobody has taken. Never one with a callback.
    terms: Receiver<Term>,
}

/// What a campaign and its thread share.
struct Shared {
    /// To end the campaign, drop it.
    stop: Mutex<Option<Sender<()>>>,
    current: Mutex<Option<CurrentTerm>>,
    /// The thread of the campaign, once it runs.
    thread: OnceLock<ThreadId>,
    error: Mutex<Option<Error>>,
    home: HomeProcess,
}

/// The term that this candidate leads.
struct CurrentTerm {
    state: Arc<TermState>,
    /// Closes when the term is dropped.
    dropped: Receiver<Infallible>,
}

/// What the thread has for itself.
struct Candidate {
    shared: Arc<Shared>,
    lock: Lock<OwnedGuard>,
    /// What the leader says of itself.
    value: Option<Arc<str>>,
    clock: Arc<dyn Clock>,
    /// Closed when the campaign ends.
    stopped: Receiver<()>,
}

/// After a term that was not lost, so that other candidates come first. Each of them asks at least
/// as often.
const PAUSE: Duration = Duration::from_secs(1);

/// What a term is given to.
pub(crate) type TermCallback = Box<dyn FnMut(&Term) + Send>;

impl Campaign {
    /// Starts a thread that campaigns for `lock`. Each term is given to `callback`, or, without
    /// one, to the caller that asks for it.
    pub(crate) fn start(
        lock: Lock<OwnedGuard>,
        value: Option<Arc<str>>,
        clock: Arc<dyn Clock>,
        callback: Option<TermCallback>,
    ) -> Result<Self, Error> {
        let (stop, stopped) = bounded(0);
        let (send, terms) = bounded(1);
        let shared = Arc::new(Shared {
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
            // A panic of the clock ends the campaign; those of a callback are caught one by one.
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

    /// Waits for the next term. `None` when the campaign has ended: it was [stopped](Self::stop),
    /// the client was shut down, or it met an [`error`](Self::error) that does not pass. With a
    /// callback there is never one, and in the child of a fork neither.
    #[must_use]
    pub fn next_term(&self) -> Option<Term> {
        if !self.shared.home.is_current() {
            // The thread that sends them is the parent's, and so is what they wait for.
            return None;
        }
        loop {
            let term = self.terms.recv().ok()?;
            // It may have been lost while nobody took it.
            if term.is_leader() {
                return Some(term);
            }
        }
    }

    /// Each [next term](Self::next_term).
    pub fn terms(&self) -> impl Iterator<Item = Term> + '_ {
        iter::from_fn(|| self.next_term())
    }

    /// Whether this candidate leads for certain, for threads that do not have the [`Term`]. Local:
    /// no round trip.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.shared.home.is_current()
            && self.shared.current.lock().as_ref().is_some_and(|term| term.state.is_leader())
    }

    /// Why the last try to lead has failed; `None` if it has not. After an error that may
    /// [pass](Error::is_retryable) the campaign goes on.
    #[must_use]
    pub fn error(&self) -> Option<Error> {
        if self.shared.home.is_current() { self.shared.error.lock().clone() } else { None }
    }

    /// Ends the campaign, and its term. Any thread may call it, and the callback. The lead is given up
    /// at once, even if the leader's work goes on: [`stop_and_wait`](Self::stop_and_wait) gives the
    /// lead up after the work.
    pub fn stop(&self) {
        self.shared.stop();
    }

    /// Ends the campaign, asks the leader to end its work, and waits until the term is dropped, or the
    /// callback has returned, for `timeout` at most. Until then this candidate leads: no other one
    /// begins while the work of this one goes on.
    ///
    /// The leader learns of it by [`Term::revocation`]. True if nobody of this campaign leads any more.
    /// False if the time is over: the term goes on until it is dropped, and [`stop`](Self::stop) ends
    /// it. Called by the callback itself, it does not wait, and is false.
    ///
    /// The wish is that of users of `client-go`, whose elector gives the lease up while the work is
    /// still ending.
    ///
    /// ```
    /// use std::time::Duration;
    /// use wheellock::Client;
    ///
    /// let client = Client::in_memory();
    /// let campaign = client.leader_election("scheduler").campaign_with(|term| {
    ///     // Works until the lead is lost, or to be given up.
    ///     while term.is_leader() && !term.is_asked() {
    ///         std::thread::yield_now();
    ///     }
    ///     // Writes down how far it came, as the leader still.
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
            // The parent's channels and its term.
            mem::forget((Arc::clone(&self.shared), self.terms.clone()));
        }
        self.stop();
    }
}

impl Shared {
    fn stop(&self) {
        if !self.home.is_current() {
            // The locks, the channels and the term are the parent's.
            return;
        }
        // In this order: a term that begins meanwhile sees the first, or is seen by the second.
        self.stop_campaigning();
        self.end_term();
    }

    fn stop_campaigning(&self) {
        let stop = self.stop.lock().take();
        drop(stop);
    }

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
        // Nothing is ever sent: it returns when the term is dropped, or at the timeout.
        dropped.recv_timeout(timeout) == Err(RecvTimeoutError::Disconnected)
    }

    fn end_term(&self) {
        let term = self.current.lock().take();
        if let Some(term) = term {
            term.state.end();
        }
    }
}

impl Candidate {
    fn call_for_each_term(&self, mut callback: TermCallback) {
        while let Some((term, _)) = self.wait_for_term() {
            // Foreign code: the term ends all the same.
            if catch_panic(|| callback(&term)).is_none() {
                self.lock.count_panic();
            }
            let state = Arc::clone(term.state());
            drop(term);
            if !self.end_of_term(&state) {
                return;
            }
        }
    }

    fn send_each_term(&self, terms: &Sender<Term>, untaken: &Receiver<Term>) {
        while let Some((term, end)) = self.wait_for_term() {
            let state = Arc::clone(term.state());
            // There is room: a term before is taken or dropped.
            drop(terms.try_send(term));
            let TermEnd { dropped, mut lost } = end;
            loop {
                select! {
                    recv(dropped) -> _ => break,
                    recv(lost) -> _ => {
                        // If nobody has taken it, nobody drops it.
                        drop(untaken.try_recv());
                        lost = never();
                    }
                    recv(self.stopped) -> _ => {
                        drop(untaken.try_recv());
                        return;
                    }
                }
            }
            if !self.end_of_term(&state) {
                return;
            }
        }
    }

    /// Campaigns until this candidate leads. `None` when the campaign is over.
    fn wait_for_term(&self) -> Option<(Term, TermEnd)> {
        loop {
            let wait = Wait::forever().or_cancelled(&self.stopped);
            match self.lock.try_lock_with(wait) {
                Ok(Some(guard)) => {
                    *self.shared.error.lock() = None;
                    let (term, end) = Term::begin(guard, self.value.as_ref());
                    let (state, dropped) = (Arc::clone(term.state()), end.dropped.clone());
                    *self.shared.current.lock() = Some(CurrentTerm { state, dropped });
                    if self.is_stopped() {
                        self.shared.end_term();
                        return None;
                    }
                    return Some((term, end));
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

    /// A term is over. False if the campaign is.
    fn end_of_term(&self, term: &TermState) -> bool {
        // It may be another's by now.
        let ended = self.shared.current.lock().take();
        drop(ended);
        !self.is_stopped() && (term.is_lost() || self.pause())
    }

    fn is_stopped(&self) -> bool {
        self.stopped.try_recv() == Err(TryRecvError::Disconnected)
    }

    /// False if the campaign was stopped meanwhile.
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
