//! The threads of a red lock: a few for each server, so that a server that hangs holds up its own threads and nobody
//! else.
//!
//! A thread does one [errand](crate::errands) after the other. A server whose threads have all been at the same errand
//! for longer than their callers wait is *stuck*: it is given nothing more until one is through, which is after one
//! command timeout at most. So neither threads nor errands pile up before a server that hangs.

use std::collections::BTreeMap;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use hashed_wheel::Clock;
use parking_lot::{Condvar, Mutex};

use crate::errands::{Errand, Errands};
use crate::error::Error;
use crate::farewell::Farewell;
use crate::grip::Grip;
use crate::leaving::Leaving;
use crate::owner::Holder;
use crate::part::Part;
use crate::plan::Wait;
use crate::process::Process;
use crate::round::Round;

/// A line and its threads for each server, the first of which is started when it is needed. They end with the crew; one
/// that is stuck, when it is through.
#[derive(Debug)]
pub(crate) struct Crew {
    process_id: u32,
    clock: Arc<dyn Clock>,
    members: Vec<Arc<Member>>,
    /// What it is in a child of this process, which has none of the threads. Only a child ever fills it in.
    child: OnceLock<Arc<Crew>>,
}

#[derive(Debug)]
struct Member {
    clock: Arc<dyn Clock>,
    desk: Mutex<Desk>,
    called: Condvar,
}

#[derive(Debug)]
struct Desk {
    errands: Errands<Acquire, Release>,
    closed: bool,
}

/// Asks one server for its part. Dropped without having done so, it says that there is no answer.
#[derive(Debug)]
struct Acquire {
    round: Arc<Round>,
    parts: Arc<[Part]>,
    holder: Holder,
    place: usize,
    answered: bool,
}

/// Tells one server that its part is released. Dropped without having done so, it says so, and the release is owed.
#[derive(Debug)]
struct Release {
    leaving: Option<Leaving>,
    farewell: Arc<Farewell>,
    place: usize,
    result: Result<(), Error>,
}

/// Why an errand is not done.
enum Refusal {
    Full,
    Stuck,
    Thread(String),
}

impl Crew {
    pub(crate) fn new(servers: usize, clock: Arc<dyn Clock>) -> Self {
        let members = (0..servers).map(|_| Arc::new(Member::new(&clock))).collect();
        Self { process_id: std::process::id(), clock, members, child: OnceLock::new() }
    }

    /// Whether its threads are in the process that runs now.
    pub(crate) fn is_current(&self) -> bool {
        self.process_id == std::process::id()
    }

    /// What it is in the process that runs now.
    pub(crate) fn current(self: &Arc<Self>) -> Arc<Self> {
        let mut crew = Arc::clone(self);
        while !crew.is_current() {
            let child = crew
                .child
                .get_or_init(|| Arc::new(Self::new(crew.members.len(), Arc::clone(&crew.clock))));
            let child = Arc::clone(child);
            crew = child;
        }
        crew
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    /// Which servers are stuck for callers who wait for `limit`.
    pub(crate) fn stuck(&self, limit: Duration) -> Vec<bool> {
        let now = self.clock.now();
        self.members.iter().map(|member| member.desk.lock().errands.is_stuck(now, limit)).collect()
    }

    /// Asks one server for its part. A server that is stuck has answered herewith. So has one before which too many
    /// stand in line: that is contention, and no error.
    pub(crate) fn acquire(
        &self,
        place: usize,
        parts: &Arc<[Part]>,
        holder: Holder,
        round: &Arc<Round>,
        limit: Duration,
    ) {
        let (round, parts) = (Arc::clone(round), Arc::clone(parts));
        let acquire = Acquire { round, parts, holder, place, answered: false };
        self.send(place, Errand::Acquire(acquire), limit);
    }

    /// Lets go of what was taken on each server: at once for everybody here, and then the servers are told. Waits for
    /// their answers for `limit` each, and not beyond `end`. Where nobody can tell the server, the release is owed.
    /// Answers what came of each, and how many have not answered.
    pub(crate) fn let_go(
        &self,
        grips: BTreeMap<usize, Grip>,
        enough: usize,
        limit: Duration,
        end: Option<Instant>,
    ) -> (Vec<Result<(), Error>>, usize) {
        if grips.is_empty() {
            return (Vec::new(), 0);
        }
        let farewell = Arc::new(Farewell::new(grips.keys().copied(), enough));
        // First all, so that nothing is believed in while a server is told.
        let left: Vec<(usize, Result<Leaving, Error>)> =
            grips.into_iter().map(|(place, grip)| (place, grip.begin_to_let_go())).collect();
        for (place, leaving) in left {
            match leaving {
                Ok(leaving) => {
                    let (leaving, farewell) = (Some(leaving), Arc::clone(&farewell));
                    let release = Release { leaving, farewell, place, result: Err(untold()) };
                    self.send(place, Errand::Release(release), limit);
                }
                Err(error) => farewell.answered(place, Err(error)),
            }
        }
        farewell.wait(self.clock(), limit, end, || self.stuck(limit))
    }

    /// Gives it to a server's threads.
    fn send(&self, place: usize, errand: Errand<Acquire, Release>, limit: Duration) {
        match self.members.get(place) {
            Some(member) => member.send(errand, self.clock.now(), limit),
            // There is a member for each part.
            None => errand.refuse(Refusal::Stuck),
        }
    }
}

impl Member {
    fn new(clock: &Arc<dyn Clock>) -> Self {
        let desk = Mutex::new(Desk { errands: Errands::new(), closed: false });
        Self { clock: Arc::clone(clock), desk, called: Condvar::new() }
    }

    fn send(self: &Arc<Self>, errand: Errand<Acquire, Release>, now: Instant, limit: Duration) {
        let mut desk = self.desk.lock();
        let refusal = if desk.errands.is_stuck(now, limit) {
            Some(Refusal::Stuck)
        } else if !desk.errands.has_room_for(&errand) {
            Some(Refusal::Full)
        } else if desk.errands.has_threads() {
            None
        } else {
            self.start(&mut desk).err().map(|error| Refusal::Thread(error.to_string()))
        };
        if let Some(refusal) = refusal {
            drop(desk);
            return errand.refuse(refusal);
        }
        desk.errands.push(errand);
        self.start_another(&mut desk);
        drop(desk);
        self.called.notify_one();
    }

    /// One more thread, if there is something for it. If the system refuses it, the others do what is to be done.
    fn start_another(self: &Arc<Self>, desk: &mut Desk) {
        if desk.errands.wants_a_thread() {
            drop(self.start(desk));
        }
    }

    fn start(self: &Arc<Self>, desk: &mut Desk) -> std::io::Result<()> {
        let member = Arc::clone(self);
        thread::Builder::new().name("lock-red".to_owned()).spawn(move || member.run())?;
        desk.errands.thread_began();
        Ok(())
    }

    /// A thread, until the crew ends and everything is done.
    fn run(self: &Arc<Self>) {
        while let Some((number, mut errand)) = self.next() {
            let process = errand.process();
            let done = contained(process.as_deref(), || {
                let now = self.clock.now();
                self.desk.lock().errands.begun(number, now);
                errand.carry_out(now)
            });
            // What was not done says so when it is dropped. Not while a panic unwinds: the clock may do so again.
            contained(process.as_deref(), || drop(errand));
            let answered = done == Some(true);
            let mut desk = self.desk.lock();
            desk.errands.ended(number, answered);
            self.start_another(&mut desk);
            let closed = desk.closed;
            drop(desk);
            if closed {
                // Whoever has nothing to do any more ends.
                self.called.notify_all();
            } else {
                self.called.notify_one();
            }
        }
    }

    fn next(&self) -> Option<(u64, Errand<Acquire, Release>)> {
        let mut desk = self.desk.lock();
        loop {
            if let Some(next) = desk.errands.next() {
                return Some(next);
            }
            if desk.closed && desk.errands.is_empty() {
                return None;
            }
            self.called.wait(&mut desk);
        }
    }

    fn close(&self) {
        self.desk.lock().closed = true;
        self.called.notify_all();
    }
}

/// Does something in which the clock may panic, which is foreign. That is counted, and there is no result.
fn contained<T>(process: Option<&Process>, action: impl FnOnce() -> T) -> Option<T> {
    // What it changes is changed under locks that know no poison, or not at all.
    catch_unwind(AssertUnwindSafe(action))
        .inspect_err(|_| {
            if let Some(process) = process {
                process.watchdog.counters().panicked();
            }
        })
        // The payload's destructor is foreign too.
        .map_err(mem::forget)
        .ok()
}

impl Errand<Acquire, Release> {
    /// It is not done.
    fn refuse(self, refusal: Refusal) {
        match self {
            Self::Acquire(acquire) => acquire.refuse(refusal),
            // It says so when it is dropped.
            Self::Release(release) => drop(release),
        }
    }

    /// Whose errand it is.
    fn process(&self) -> Option<Arc<Process>> {
        match self {
            Self::Acquire(acquire) => acquire.parts.get(acquire.place)?.plan.process().ok(),
            Self::Release(release) => release.leaving.as_ref().map(Leaving::process),
        }
    }

    /// Answers whether the server did.
    fn carry_out(&mut self, now: Instant) -> bool {
        match self {
            Self::Acquire(acquire) => acquire.carry_out(now),
            Self::Release(release) => release.carry_out(now),
        }
    }
}

impl Acquire {
    fn carry_out(&mut self, now: Instant) -> bool {
        // Nobody may want it any more.
        let part = self.parts.get(self.place).filter(|_| !self.round.is_over());
        self.round.begun(self.place, now);
        let taken = part.map_or(Ok(None), |part| part.plan.carry_out(&self.holder, Wait::No));
        let answered = !taken.as_ref().is_err_and(Error::is_the_servers_state);
        self.answer(taken);
        answered
    }

    /// Too many in the line are contention, and no error.
    fn refuse(mut self, refusal: Refusal) {
        let answer = match refusal {
            Refusal::Full => Ok(None),
            Refusal::Thread(reason) => Err(Error::Thread { reason }),
            Refusal::Stuck => {
                let part = self.parts.get(self.place);
                let server = part.map(|part| part.server.clone()).unwrap_or_default();
                let reason = "it has not answered the request before".to_owned();
                Err(Error::Unreachable { server, reason })
            }
        };
        self.answer(answer);
    }

    fn answer(&mut self, answer: Result<Option<Grip>, Error>) {
        self.answered = true;
        self.round.answered(self.place, answer);
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        if !self.answered {
            let reason = "its thread has panicked".to_owned();
            self.answer(Err(Error::OutcomeUnknown { operation: "acquire", reason }));
        }
    }
}

impl Release {
    fn carry_out(&mut self, now: Instant) -> bool {
        self.farewell.begun(self.place, now);
        if let Some(leaving) = &mut self.leaving {
            self.result = leaving.tell_once();
        }
        !self.result.as_ref().is_err_and(Error::is_retryable)
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        // Before what may panic. If the server was not told, the release is owed from now on.
        self.farewell.answered(self.place, mem::replace(&mut self.result, Ok(())));
        drop(self.leaving.take());
    }
}

fn untold() -> Error {
    let reason = "the server was not told yet".to_owned();
    Error::OutcomeUnknown { operation: "release", reason }
}

impl Drop for Crew {
    fn drop(&mut self) {
        if self.is_current() {
            self.members.iter().for_each(|member| member.close());
        } else {
            // A child's copy. What the parent's threads may have had locked is not touched.
            mem::forget(mem::take(&mut self.members));
        }
    }
}
