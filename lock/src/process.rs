//! What a client is in one process: an identity, a store, the holds, the waiters and the watchdog.
//!
//! A fork copies the memory and not the threads, and shares the sockets. So nothing of a parent's is touched in a
//! child: the child finds that its process id differs, and makes everything anew, with an identity of its own.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use hashed_wheel::Clock;

use crate::call::{Answer, Attempts, GaveUp, Patience, call};
use crate::claim::Claim;
use crate::config::Settings;
use crate::error::{Error, LostReason};
use crate::hold::{Hold, Left, Loss};
use crate::holds::Holds;
use crate::lease::{self, Lease};
use crate::name::LockName;
use crate::op::{Found, Operation, Recounted};
use crate::owner::{ClientId, Owner};
use crate::report::Warning;
use crate::store::{Failure, Listener, Location, Memory, Redis, Store};
use crate::teller::Teller;
use crate::value::ServerTime;
use crate::wait::{Channels, LONGEST_TRIP};
use crate::watchdog::{Debt, GivesBack, Watchdog};

/// Where a client's locks are.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Memory(Memory),
    Redis(Box<Location>),
}

/// How a client comes to be.
#[derive(Clone, Debug)]
pub(crate) enum Birth {
    /// It is built: it connects first, and looks at the server.
    Built,
    /// It is a child's, whose parent has looked at the server.
    Forked { eviction: Option<String> },
}

/// What a server is still to be told of a guard that is gone.
#[derive(Debug)]
pub(crate) enum Untold {
    /// That so many are left.
    Count(u32),
    /// That it was the last, of a hold that would have been valid until then.
    Release { valid_until: Option<Instant> },
}

/// One client in one process.
#[derive(Debug)]
pub(crate) struct Process {
    pid: u32,
    pub(crate) id: ClientId,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) settings: Settings,
    pub(crate) store: Arc<Store>,
    pub(crate) holds: Arc<Holds>,
    pub(crate) channels: Arc<Channels>,
    pub(crate) watchdog: Watchdog,
    pub(crate) teller: Arc<Teller>,
    target: Target,
    /// The server's policy, if it may evict locks. Set before any fork and never changed, so that a child may read it.
    eviction: Option<String>,
    /// What this client is in a child of this process. Only a child ever fills it in.
    child: OnceLock<Result<Arc<Process>, Error>>,
}

impl Process {
    /// Starts a client. If it is built, a server that cannot be reached is an error at once.
    pub(crate) fn start(
        target: Target,
        clock: Arc<dyn Clock>,
        settings: Settings,
        birth: Birth,
    ) -> Result<Self, Error> {
        let teller = Arc::new(Teller::start(settings.callbacks.clone(), Arc::clone(&clock))?);
        let channels = Channels::new(Arc::clone(&clock), Arc::clone(&teller), settings.poll_bound);
        let channels = Arc::new(channels);
        let listener: Weak<dyn Listener> = Arc::downgrade(&channels) as Weak<dyn Listener>;
        let mut eviction = None;
        let store = match &target {
            // It never evicts.
            Target::Memory(memory) => Store::memory(memory, listener),
            Target::Redis(location) => {
                let timeout = settings.command_timeout;
                let redis =
                    Redis::new(Location::clone(location), timeout, settings.connections, listener)?;
                eviction = match birth {
                    Birth::Built => {
                        redis.connect(timeout).map_err(Failure::into_connect_error)?;
                        redis.eviction(timeout)
                    }
                    Birth::Forked { eviction } => eviction,
                };
                Store::redis(redis)
            }
        };
        if let Some(policy) = eviction.clone().filter(|_| settings.refuse_eviction) {
            return Err(Error::Eviction { policy });
        }
        let store = Arc::new(store);
        let holds = Arc::new(Holds::default());
        let watchdog = Watchdog::start(
            Arc::clone(&store),
            Arc::clone(&clock),
            settings.clone(),
            Arc::clone(&holds),
            Arc::clone(&teller),
        )?;
        if let Some(policy) = eviction.clone() {
            teller.warn(Warning::Eviction { policy });
        }
        Ok(Self {
            pid: std::process::id(),
            id: ClientId::random(),
            clock,
            settings,
            store,
            holds,
            channels,
            watchdog,
            teller,
            target,
            eviction,
            child: OnceLock::new(),
        })
    }

    /// Whether this is the process that runs now, and not a parent of it.
    pub(crate) fn is_current(&self) -> bool {
        self.pid == std::process::id()
    }

    /// What this client is in the process that runs now.
    pub(crate) fn current(self: &Arc<Self>) -> Result<Arc<Self>, Error> {
        let mut process = Arc::clone(self);
        while !process.is_current() {
            let child = process.child.get_or_init(|| {
                let target = match &process.target {
                    Target::Memory(memory) => Target::Memory(memory.forked()),
                    Target::Redis(location) => Target::Redis(location.clone()),
                };
                let clock = Arc::clone(&process.clock);
                let birth = Birth::Forked { eviction: process.eviction.clone() };
                Self::start(target, clock, process.settings.clone(), birth).map(Arc::new)
            });
            let child = child.clone()?;
            process = child;
        }
        Ok(process)
    }

    /// Which server it speaks to, as far as is known: two that say the same speak to the same.
    pub(crate) fn server(&self) -> String {
        match &self.target {
            Target::Memory(memory) => memory.place(),
            Target::Redis(location) => location.identity(),
        }
    }

    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Sends `operation` until it is answered, for as long as a caller who waits for nothing else has patience.
    pub(crate) fn call<O: Operation + ?Sized>(
        &self,
        operation: &O,
    ) -> Result<Answer<O::Reply>, GaveUp> {
        self.call_for(operation, self.settings.patience(), Attempts::UntilAnswered)
    }

    /// The same, for as long as `patience`.
    pub(crate) fn call_for<O: Operation + ?Sized>(
        &self,
        operation: &O,
        patience: Duration,
        attempts: Attempts,
    ) -> Result<Answer<O::Reply>, GaveUp> {
        let patience = Patience {
            until: self.now() + patience,
            attempts,
            attempt: self.settings.command_timeout,
            closed: None,
            cancel: None,
        };
        call(&self.store, &*self.clock, operation, &patience)
    }

    /// An error if `hold` is over. Whoever finds that out first has told everybody.
    pub(crate) fn check(&self, hold: &Arc<Hold>) -> Result<(), Error> {
        if hold.is_held(self.now()) {
            return Ok(());
        }
        let reason = hold.reason_of_end();
        self.watchdog.lose(hold, reason);
        Err(lost(hold, reason))
    }

    /// One guard of `hold` is gone. If it was the last, the hold is released: it is over for everybody before the
    /// first byte is sent. What the server has not acknowledged when this returns is finished in the background.
    pub(crate) fn leave(
        &self,
        hold: &Arc<Hold>,
        watched: bool,
        patience: Duration,
        attempts: Attempts,
    ) -> Result<(), Error> {
        let untold = self.begin_to_leave(hold, watched)?;
        self.tell(hold, &untold, patience, attempts)
    }

    /// One guard of `hold` is gone for everybody here. What the server is to be told: by [`tell`](Self::tell) or
    /// [`tell_later`](Self::tell_later), in any case.
    pub(crate) fn begin_to_leave(&self, hold: &Arc<Hold>, watched: bool) -> Result<Untold, Error> {
        if let Left::Guards(count) = hold.leave(watched) {
            // Unless another guard of the same named owner was the last one just now: then it is released, not lost.
            self.check(hold).or_else(|lost| if hold.is_released() { Ok(()) } else { Err(lost) })?;
            return Ok(Untold::Count(count));
        }
        let valid_until = hold.valid_until();
        self.end(hold)?;
        self.watchdog.releasing(&hold.claim());
        Ok(Untold::Release { valid_until })
    }

    pub(crate) fn tell(
        &self,
        hold: &Arc<Hold>,
        untold: &Untold,
        patience: Duration,
        attempts: Attempts,
    ) -> Result<(), Error> {
        match *untold {
            Untold::Count(count) => self.leave_nested(hold, count, patience, attempts),
            Untold::Release { valid_until } => self.release(hold, valid_until, patience, attempts),
        }
    }

    /// Nobody waits for the server. A release is owed; a count stays one too high there, which the last release does
    /// not mind.
    pub(crate) fn tell_later(&self, hold: &Arc<Hold>, untold: &Untold) {
        if let Untold::Release { .. } = untold {
            // If too many are owed already, that is counted, and the lease ends by itself.
            self.owe_release(hold);
            self.watchdog.released(&hold.claim());
        }
    }

    /// Ends `hold` for everybody, and leaves it to the caller to tell the server. An error if it was over before.
    pub(crate) fn end(&self, hold: &Arc<Hold>) -> Result<(), Error> {
        self.watchdog.forget(hold);
        self.holds.remove(hold);
        self.finish(hold)
    }

    /// From now on nobody believes in `hold`. An error if it was over before; then its release is owed where there is
    /// anything to release.
    fn finish(&self, hold: &Arc<Hold>) -> Result<(), Error> {
        let Err(Loss { reason, first }) = hold.finish(self.now()) else {
            return Ok(());
        };
        // If the watchdog was first, it has told of it, and owes the release already.
        if first {
            self.watchdog.tell_loss(hold, reason);
            if hold.may_outlive() || hold.doubt().is_some() {
                self.owe_release(hold);
            }
        }
        Err(lost(hold, reason))
    }

    fn leave_nested(
        &self,
        hold: &Arc<Hold>,
        count: u32,
        patience: Duration,
        attempts: Attempts,
    ) -> Result<(), Error> {
        let recount = hold.claim().recount(count, None);
        match self.call_for(&recount, patience, attempts) {
            Ok(Answer { reply: Recounted::Written, .. }) => Ok(()),
            Ok(Answer { reply: Recounted::Gone, .. }) if hold.is_released() => Ok(()),
            Ok(Answer { reply: Recounted::Gone, .. }) => {
                self.watchdog.lose(hold, LostReason::Deleted);
                Err(lost(hold, LostReason::Deleted))
            }
            // The count on the server is one too high. The last release deletes whatever count it finds.
            Err(gave_up) => Err(gave_up.failure.into_error(recount.name(), &hold.name)),
        }
    }

    fn release(
        &self,
        hold: &Arc<Hold>,
        valid_until: Option<Instant>,
        patience: Duration,
        attempts: Attempts,
    ) -> Result<(), Error> {
        let claim = hold.claim();
        let release = claim.release();
        let answer = self.call_for(&release, patience, attempts);
        let unfinished = match &answer {
            Ok(answer) => hold.doubt().is_some_and(|doubt| doubt >= answer.reply.at),
            Err(_) => true,
        };
        if unfinished {
            self.owe_release(hold);
        }
        self.watchdog.released(&claim);
        let answer =
            answer.map_err(|gave_up| gave_up.failure.into_error(release.name(), &hold.name))?;
        let in_time = valid_until.is_some_and(|end| self.now() < end);
        let reason = match answer.reply.found {
            Found::Own => return Ok(()),
            // An earlier copy of this very release may have found it. While the lease ran, it was nobody else's.
            Found::Nothing | Found::SomebodyElses if answer.doubt.is_some() && in_time => {
                return Ok(());
            }
            Found::Nothing | Found::SomebodyElses if answer.doubt.is_some() => {
                return Err(Error::OutcomeUnknown {
                    operation: release.name(),
                    reason: "its first copy was not answered while the lease ran".to_owned(),
                });
            }
            // It left in time and arrived too late.
            Found::Nothing if !in_time => LostReason::Expired,
            Found::Nothing => LostReason::Deleted,
            Found::SomebodyElses => LostReason::TakenOver,
        };
        // Nobody else can have told of it: for everybody else the hold was released.
        self.watchdog.tell_loss(hold, reason);
        Err(lost(hold, reason))
    }

    /// An acquire gives up: it leaves the line on the server, and what it was granted. With one try, if there is one
    /// `now`, else in the background.
    pub(crate) fn give_up(
        &self,
        claim: &Claim,
        lease: Lease,
        doubt: Option<ServerTime>,
        now: bool,
    ) {
        self.watchdog.releasing(claim);
        // Somebody whose wait is over waits for this. What takes longer is owed.
        let patience = self.settings.command_timeout.min(LONGEST_TRIP);
        let left = now
            .then(|| self.call_for(&claim.release(), patience, Attempts::One).ok())
            .flatten()
            .is_some_and(|answer| doubt.is_none_or(|doubt| doubt < answer.reply.at));
        if !left {
            // Who does not ask any more is believed to live for no longer than that.
            self.watchdog.owe_release(claim, lease.max(lease::DEFAULT), doubt);
        }
        self.watchdog.released(claim);
    }

    /// The same for permits, which `gives_back` gives back; nothing needs it any more after `lasts`.
    pub(crate) fn give_back(
        &self,
        request: (LockName, Owner),
        gives_back: GivesBack,
        lasts: Duration,
        now: bool,
    ) {
        let (name, owner) = request;
        let debt = Debt { kind: None, name, owner };
        self.watchdog.releasing(debt.clone());
        let patience = self.settings.command_timeout.min(LONGEST_TRIP);
        let done = now && self.call_for(&gives_back, patience, Attempts::One).is_ok();
        if !done {
            // If too many are owed already, that is counted.
            self.watchdog.give_back_in_background(debt.clone(), gives_back, lasts);
        }
        self.watchdog.released(debt);
    }

    /// False if so many are owed that the lease has to end by itself.
    pub(crate) fn owe_release(&self, hold: &Hold) -> bool {
        self.watchdog.owe_release(&hold.claim(), hold.longest_lease(), hold.doubt())
    }

    /// Ends the client: waiters are woken, holds are released, until `timeout`. Answers how many were released, and the
    /// locks whose release no server has acknowledged, whoever sent it.
    pub(crate) fn shut_down(&self, timeout: Duration) -> (usize, Vec<LockName>) {
        let now = self.now();
        let deadline = now.checked_add(timeout).unwrap_or(now + Duration::from_secs(86_400));
        self.channels.close();
        let holds = self.holds.drain();
        let mut unreleased = Vec::new();
        for hold in &holds {
            if self.check(hold).is_err() {
                // It was over before, and that is a loss.
                continue;
            }
            self.watchdog.forget(hold);
            if hold.lose(self.now(), LostReason::Shutdown) && !self.owe_release(hold) {
                unreleased.push(Debt::from(&hold.claim()));
            }
        }
        unreleased.extend(self.watchdog.finish_releases(deadline));
        let open: HashSet<&Debt> = unreleased.iter().collect();
        let released = holds
            .iter()
            .filter(|hold| hold.lost_reason() == Some(LostReason::Shutdown))
            .filter(|hold| !open.contains(&Debt::from(&hold.claim())))
            .count();
        self.teller.stop(deadline.saturating_duration_since(self.now()));
        (released, unreleased.into_iter().map(|debt| debt.name).collect())
    }

    /// Whether it was shut down.
    pub(crate) fn is_shut_down(&self) -> bool {
        self.channels.is_closed()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.is_current() {
            // A child's copy: the threads are not here, and the sockets are the parent's.
            self.watchdog.abandon();
            return;
        }
        self.channels.close();
        self.watchdog.stop();
        self.teller.stop(self.settings.command_timeout);
        self.store.close();
    }
}

/// How a hold was lost, if that is known, else `reason`.
pub(crate) fn lost(hold: &Hold, reason: LostReason) -> Error {
    Error::Lost { name: hold.name.shown(), reason: hold.lost_reason().unwrap_or(reason) }
}
