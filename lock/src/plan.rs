//! Taking a lock, from the first look at the holder's own holds to the guard.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

use crate::back_off::BackOff;
use crate::call::{Attempts, Patience, call};
use crate::claim::Claim;
use crate::error::{Error, LostReason};
use crate::grip::Grip;
use crate::hold::Hold;
use crate::kind::{Kind, Layout};
use crate::lease::Lease;
use crate::name::{LockName, Prefix};
use crate::op::{Acquired, DrawToken, Operation, Recounted};
use crate::owner::{Holder, Owner};
use crate::process::Process;
use crate::store::Failure;
use crate::value::ServerTime;
use crate::wait::{self, Attempt, Others, Until, Waited};

/// Which lock is to be taken, and on what terms.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    process: Arc<Process>,
    prefix: Prefix,
    name: Result<LockName, Error>,
    pub(crate) kind: Kind,
    terms: Result<Terms, Error>,
    pub(crate) nesting: Nesting,
    pub(crate) back_off: BackOff,
    /// How often one try is sent that is not answered.
    pub(crate) attempts: Attempts,
}

/// How a hold lasts.
#[derive(Clone, Copy, Debug)]
struct Terms {
    lease: Lease,
    watched: bool,
}

/// Whether who holds the lock may take it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nesting {
    Allowed,
    /// It is an error.
    Refused,
    /// It waits, as anybody else does.
    Contends,
}

/// How long to wait, and for what.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait<'a> {
    /// One try.
    No,
    /// One try, which ends by then.
    Once(Until<'a>),
    For(Until<'a>),
}

impl<'a> Wait<'a> {
    fn deadline(self) -> Option<Instant> {
        match self {
            Self::No => None,
            Self::Once(until) | Self::For(until) => until.deadline,
        }
    }

    fn cancel(self) -> Option<&'a Receiver<()>> {
        match self {
            Self::No => None,
            Self::Once(until) | Self::For(until) => until.cancel,
        }
    }

    fn is_without_end(self) -> bool {
        matches!(self, Self::For(Until { deadline: None, .. }))
    }
}

impl Plan {
    pub(crate) fn new(process: Arc<Process>, kind: Kind, prefix: Prefix, name: &str) -> Self {
        let terms = Terms { lease: process.settings.watchdog_lease, watched: true };
        Self {
            process,
            name: prefix.name(name),
            prefix,
            kind,
            terms: Ok(terms),
            nesting: Nesting::Allowed,
            back_off: BackOff::default(),
            attempts: Attempts::UntilAnswered,
        }
    }

    pub(crate) fn set_lease(&mut self, lease: Duration) {
        self.terms = Lease::new(lease).map(|lease| Terms { lease, watched: false });
    }

    pub(crate) fn set_name(&mut self, name: &str) {
        self.name = self.prefix.name(name);
    }

    pub(crate) fn name(&self) -> Result<LockName, Error> {
        self.name.clone()
    }

    /// Which server it is on, as far as is known.
    pub(crate) fn server(&self) -> String {
        self.process.server()
    }

    /// Whether both are of one client.
    pub(crate) fn is_of_the_client_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.process, &other.process)
    }

    /// The lease that is asked for.
    pub(crate) fn lease(&self) -> Result<Duration, Error> {
        self.terms.clone().map(|terms| terms.lease.duration())
    }

    /// The client as it is in the process that runs now, unless it was shut down.
    pub(crate) fn process(&self) -> Result<Arc<Process>, Error> {
        let process = self.process.current()?;
        if process.is_shut_down() { Err(Error::Shutdown) } else { Ok(process) }
    }

    /// The holder's hold, if it is one for certain.
    pub(crate) fn held_by(&self, holder: &Holder) -> Option<Arc<Hold>> {
        let (process, name) = (self.process.current().ok()?, self.name.as_ref().ok()?);
        let hold = process.holds.find(name, holder, self.kind.layout())?;
        hold.is_held(process.now()).then_some(hold)
    }

    pub(crate) fn ask<O: Operation + ?Sized>(&self, operation: &O) -> Result<O::Reply, Error> {
        let name = self.name()?;
        match self.process()?.call(operation) {
            Ok(answer) => Ok(answer.reply),
            Err(gave_up) => Err(gave_up.failure.into_error(operation.name(), &name)),
        }
    }

    /// Re-enters a hold of this holder, or takes the lock anew. `None` if it could not be had in time.
    pub(crate) fn carry_out(&self, holder: &Holder, wait: Wait<'_>) -> Result<Option<Grip>, Error> {
        let process = self.process()?;
        let (name, terms) = (self.name()?, self.terms.clone()?);
        let (deadline, cancel) = (wait.deadline(), wait.cancel());
        // Until when one call goes on trying.
        let until = || {
            let now = process.now();
            let patience = now + process.settings.patience();
            deadline.map_or(patience, |deadline| patience.min(deadline.max(now + SHORTEST_CALL)))
        };
        // If the old hold turns out to be lost, it has been told so. Whoever asks now gets a new one, or waits for it.
        if let Some(hold) = process.holds.find(&name, holder, self.kind.layout())
            && let Some(grip) = self.enter_again(&process, &hold, terms, wait, until())?
        {
            return Ok(Some(grip));
        }
        let under = self.under(&process, &name, holder)?;
        let claim = Claim { kind: self.kind, name: name.clone(), owner: process.id.draw() };
        let mut acquirer = Acquirer {
            process: &process,
            holder,
            terms,
            claim,
            under,
            waits: matches!(wait, Wait::For(_)),
            back_off: self.back_off,
            attempts: self.attempts,
            refusals: 0,
            doubt: None,
            line: InLine::No,
            answered: false,
            unkept: false,
        };
        let Wait::For(end) = wait else {
            return match acquirer.attempt(until(), cancel)? {
                Attempt::Granted(grip, _) => Ok(Some(grip)),
                Attempt::Busy(..) => Ok(None),
            };
        };
        let (line, kind) = (acquirer.claim.line(), acquirer.claim.waits_as());
        let waited = process
            .channels
            .wait(&process.store, &line, kind, end, || acquirer.attempt(until(), cancel))?;
        match waited {
            Waited::Granted(grip) => Ok(Some(grip)),
            Waited::TimedOut => Ok(None),
            Waited::Cancelled => Err(Error::Cancelled { name: name.shown() }),
            Waited::Closed => Err(Error::Shutdown),
        }
    }

    /// The writer under whose hold a reader may come in: the same holder. The new hold has an owner of its own all the
    /// same, or what is still on its way of an earlier read hold would end this one.
    fn under(
        &self,
        process: &Process,
        name: &LockName,
        holder: &Holder,
    ) -> Result<Option<Owner>, Error> {
        let held = |layout| {
            let hold = process.holds.find(name, holder, layout)?;
            hold.is_held(process.now()).then_some(hold)
        };
        match self.kind {
            Kind::Write if held(Layout::Reader).is_some() => {
                Err(Error::Upgrade { name: name.shown() })
            }
            Kind::Read => Ok(held(Layout::Writer).map(|writer| writer.owner.clone())),
            _ => Ok(None),
        }
    }

    /// One more guard of a hold that this holder has. `None` if it turns out to be lost.
    fn enter_again(
        &self,
        process: &Arc<Process>,
        hold: &Arc<Hold>,
        terms: Terms,
        wait: Wait<'_>,
        until: Instant,
    ) -> Result<Option<Grip>, Error> {
        let Terms { lease, watched } = terms;
        if !hold.is_held(process.now()) {
            process.watchdog.lose(hold, hold.reason_of_end());
            return Ok(None);
        }
        let for_ever = hold.watched_lease().is_some() && wait.is_without_end();
        match self.nesting {
            Nesting::Allowed => {}
            Nesting::Contends if !for_ever => return Ok(None),
            Nesting::Contends | Nesting::Refused => {
                return Err(Error::AlreadyHeld { name: hold.name.shown() });
            }
        }
        renewable(process, terms, &hold.name)?;
        let Some(count) = hold.enter(lease, watched) else {
            // Another thread of the same owner releases it just now.
            return Ok(None);
        };
        let patience = patience(process, until, wait.cancel(), self.attempts);
        match self.confirm(process, hold, count, lease, &patience) {
            Ok(true) => Ok(Some(Grip::new(Arc::clone(process), Arc::clone(hold), watched))),
            Ok(false) => Ok(None),
            Err(error) => {
                // The count on the server may be one too high, which no decision reads. What matters is whether this
                // was the last guard by now, and then its release is owed.
                if let Ok(untold) = process.begin_to_leave(hold, watched) {
                    process.tell_later(hold, &untold);
                }
                Err(error)
            }
        }
    }

    /// Tells the server of one more guard. False if the hold turns out to be lost.
    fn confirm(
        &self,
        process: &Arc<Process>,
        hold: &Arc<Hold>,
        count: u32,
        lease: Lease,
        patience: &Patience<'_>,
    ) -> Result<bool, Error> {
        let recount = hold.claim().recount(count, Some(lease));
        let answer = call(&process.store, &*process.clock, &recount, patience)
            .map_err(|gave_up| gave_up.failure.into_error(recount.name(), &hold.name))?;
        if answer.reply == Recounted::Gone {
            process.watchdog.lose(hold, LostReason::Deleted);
            return Ok(false);
        }
        if !hold.extend(process.now(), lease, answer.sent_at) {
            // It ended while the answer was on its way. Whoever saw that first owes its release.
            process.watchdog.lose(hold, hold.reason_of_end());
            return Ok(false);
        }
        process.watchdog.watch(hold, answer.sent_at);
        if self.kind != Kind::Fenced || hold.token().is_some() {
            return Ok(true);
        }
        // Taken as a lock without tokens. A copy that comes late draws one more, which does no harm.
        let draw = DrawToken::new(hold.name.clone(), hold.owner.clone());
        let answer = call(&process.store, &*process.clock, &draw, patience)
            .map_err(|gave_up| gave_up.failure.into_error(draw.name(), &hold.name))?;
        let Some(token) = answer.reply else {
            process.watchdog.lose(hold, LostReason::Deleted);
            return Ok(false);
        };
        hold.set_token(token);
        Ok(true)
    }
}

/// A call that is begun just before a deadline has at least this long, so that a short wait is not an error.
const SHORTEST_CALL: Duration = Duration::from_millis(10);

/// Whether the owner of an acquire stands in line on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InLine {
    No,
    Perhaps,
    /// A shutdown waits until it has left.
    Yes,
}

/// One acquire of a new hold, over all its attempts. If it ends without a guard, however it ends, the line on the
/// server is left; and if a copy of an attempt may still reach the server, a release is owed.
struct Acquirer<'a> {
    process: &'a Arc<Process>,
    holder: &'a Holder,
    terms: Terms,
    claim: Claim,
    /// The owner of the write hold under which it reads.
    under: Option<Owner>,
    waits: bool,
    back_off: BackOff,
    attempts: Attempts,
    refusals: u32,
    doubt: Option<ServerTime>,
    line: InLine,
    /// Whether the last attempt was answered.
    answered: bool,
    /// Whether it was granted what must not be kept.
    unkept: bool,
}

impl Acquirer<'_> {
    fn attempt(
        &mut self,
        until: Instant,
        cancel: Option<&Receiver<()>>,
    ) -> Result<Attempt<Grip>, Error> {
        let process = self.process;
        renewable(process, self.terms, &self.claim.name)?;
        let acquire = match &self.under {
            Some(writer) => self.claim.acquire_under(writer, self.terms.lease),
            None => self.claim.acquire(self.terms.lease, self.waits),
        };
        let patience = patience(process, until, cancel, self.attempts);
        // Before it is sent: it may stand in line although no answer comes.
        if self.line == InLine::No && self.waits && self.claim.queues() {
            self.line = InLine::Perhaps;
        }
        self.answered = false;
        let answer = match call(&process.store, &*process.clock, &acquire, &patience) {
            Ok(answer) => answer,
            Err(gave_up) => {
                self.doubt = self.doubt.max(gave_up.doubt);
                if matches!(gave_up.failure, Failure::Scattered { .. }) {
                    // Nothing is ever sent of it, also not that it leaves.
                    self.line = InLine::No;
                }
                self.unkept = gave_up.failure.was_granted();
                self.answered = self.unkept;
                return Err(gave_up.failure.into_error(acquire.name(), &self.claim.name));
            }
        };
        self.answered = true;
        self.doubt = self.doubt.max(answer.doubt);
        let others = match self.claim.others() {
            Others::Wait if !self.terms.watched => Others::WaitFor(self.terms.lease.duration()),
            others => others,
        };
        let token = match answer.reply {
            Acquired::Busy(busy) => {
                if self.line == InLine::Perhaps {
                    self.line = InLine::Yes;
                    process.watchdog.releasing(&self.claim);
                }
                return Ok(Attempt::Busy(self.pause(busy), Others::Wait));
            }
            Acquired::Granted => None,
            Acquired::Fenced(token) => Some(token),
        };
        self.granted(answer.sent_at, token).map(|grip| Attempt::Granted(grip, others))
    }

    /// How long to sleep after a refusal.
    fn pause(&mut self, busy: Option<Duration>) -> Option<Duration> {
        if self.claim.waits_as() != wait::Kind::Polled {
            return busy;
        }
        let pause = self.back_off.pause(self.refusals);
        self.refusals = self.refusals.saturating_add(1);
        Some(busy.map_or(pause, |busy| busy.min(pause)))
    }

    fn granted(&mut self, sent_at: Instant, token: Option<u64>) -> Result<Grip, Error> {
        let process = self.process;
        let Terms { lease, watched } = self.terms;
        // From here on the hold answers for the doubt, and who holds stands in no line.
        let doubt = self.doubt.take();
        if std::mem::replace(&mut self.line, InLine::No) == InLine::Yes {
            process.watchdog.released(&self.claim);
        }
        let (claim, holder) = (self.claim.clone(), self.holder.clone());
        let hold = Arc::new(Hold::new(claim, holder, lease, watched, sent_at, doubt));
        if let Some(token) = token {
            hold.set_token(token);
        }
        let in_time = hold.is_held(process.now());
        if !in_time {
            // The server counts from when the request arrived, and that was late.
            hold.ask_for(lease);
        }
        process.holds.insert(&hold);
        process.watchdog.watch(&hold, sent_at);
        let grip = Grip::new(Arc::clone(process), hold, watched);
        if process.is_shut_down() {
            // The shutdown may have ended all holds before this one was among them. Dropping the guard releases it.
            return Err(Error::Shutdown);
        }
        if in_time {
            return Ok(grip);
        }
        // Granted, and over before the answer was here. Letting go says so, and cleans up.
        grip.let_go()?;
        Err(Error::Lost { name: self.claim.name.shown(), reason: LostReason::Expired })
    }
}

impl Drop for Acquirer<'_> {
    fn drop(&mut self) {
        if self.line != InLine::No || self.unkept {
            // A server that did not answer just now is not asked again while a caller waits.
            self.process.give_up(&self.claim, self.terms.lease, self.doubt, self.answered);
        } else if let Some(doubt) = self.doubt {
            self.process.watchdog.owe_release(&self.claim, self.terms.lease, Some(doubt));
        }
    }
}

/// An error if the hold would be watched, and nobody is there to renew it.
fn renewable(process: &Process, terms: Terms, name: &LockName) -> Result<(), Error> {
    let gone = terms.watched && process.watchdog.is_gone(name);
    if gone { Err(Error::WatchdogGone) } else { Ok(()) }
}

/// What an acquire keeps trying for: until its end, a cancellation or a shutdown.
fn patience<'a>(
    process: &'a Process,
    until: Instant,
    cancel: Option<&'a Receiver<()>>,
    attempts: Attempts,
) -> Patience<'a> {
    Patience {
        until,
        attempt: process.settings.command_timeout,
        attempts,
        closed: Some(process.channels.closed()),
        cancel,
    }
}
