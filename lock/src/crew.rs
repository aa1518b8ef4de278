//! The threads of a red lock: one for each server, so that a server that hangs holds up its own thread and nobody else.
//!
//! A thread takes one request after the other. One that has been at the same request for longer than its caller waits
//! is
//! *stuck*: it is given nothing more until it is through, which is after one command timeout at most. So neither
//! threads nor requests pile up before a server that hangs.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use hashed_wheel::Clock;
use parking_lot::Mutex;

use crate::error::Error;
use crate::farewell::Farewell;
use crate::grip::Grip;
use crate::owner::Holder;
use crate::part::Part;
use crate::plan::Wait;
use crate::round::Round;

/// One thread for each server, started when it is needed first. They end with the crew; one that is stuck, when it is
/// through.
#[derive(Debug)]
pub(crate) struct Crew {
    process_id: u32,
    clock: Arc<dyn Clock>,
    members: Vec<Member>,
    /// What it is in a child of this process, which has none of the threads. Only a child ever fills it in.
    child: OnceLock<Arc<Crew>>,
}

#[derive(Debug, Default)]
struct Member {
    requests: Mutex<Option<Sender<Request>>>,
    busy: Arc<Busy>,
}

/// Since when a thread has been at one request.
#[derive(Debug, Default)]
struct Busy(Mutex<Option<Instant>>);

enum Request {
    Take { round: Arc<Round>, parts: Arc<[Part]>, holder: Holder, place: usize },
    LetGo { grip: Grip, farewell: Arc<Farewell> },
}

/// Requests that wait for one server's thread: several threads may share a red lock.
const QUEUE: usize = 64;

impl Crew {
    pub(crate) fn new(servers: usize, clock: Arc<dyn Clock>) -> Self {
        let members = (0..servers).map(|_| Member::default()).collect();
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

    /// Asks one server for its part. A server whose thread is stuck for longer than `limit` has answered herewith.
    pub(crate) fn take(
        &self,
        place: usize,
        parts: &Arc<[Part]>,
        holder: Holder,
        round: &Arc<Round>,
        limit: Duration,
    ) {
        let request =
            Request::Take { round: Arc::clone(round), parts: Arc::clone(parts), holder, place };
        if let Err((_, reason)) = self.send(place, request, limit) {
            let server = parts.get(place).map(|part| part.server.clone()).unwrap_or_default();
            round.answered(place, Err(Error::Unreachable { server, reason }));
        }
    }

    /// Lets go of what was taken on each server, and waits for `limit` at most. Where a thread is stuck, the release is
    /// owed at once. Answers what came of each, and how many have not answered.
    pub(crate) fn let_go(
        &self,
        grips: BTreeMap<usize, Grip>,
        enough: usize,
        limit: Duration,
    ) -> (Vec<Result<(), Error>>, usize) {
        if grips.is_empty() {
            return (Vec::new(), 0);
        }
        let farewell = Arc::new(Farewell::new(grips.len(), enough));
        for (place, grip) in grips {
            let request = Request::LetGo { grip, farewell: Arc::clone(&farewell) };
            if let Err((Request::LetGo { grip, .. }, reason)) = self.send(place, request, limit) {
                let unsent = Error::OutcomeUnknown { operation: "release", reason };
                farewell.answered(grip.let_go_later().and(Err(unsent)));
            }
        }
        farewell.wait(self.clock(), limit)
    }

    /// Gives it to the server's thread; gives it back if that cannot take it.
    fn send(
        &self,
        place: usize,
        request: Request,
        limit: Duration,
    ) -> Result<(), (Request, String)> {
        let Some(member) = self.members.get(place) else {
            return Err((request, "there is no such server".to_owned()));
        };
        if member.busy.since().is_some_and(|since| since + limit <= self.clock.now()) {
            return Err((request, "it has not answered the request before".to_owned()));
        }
        let mut requests = member.requests.lock();
        let sender = match requests.take().map_or_else(|| member.start(&self.clock), Ok) {
            Ok(sender) => sender,
            Err(error) => return Err((request, error.to_string())),
        };
        match sender.try_send(request) {
            Ok(()) => {
                *requests = Some(sender);
                Ok(())
            }
            Err(TrySendError::Full(request)) => {
                *requests = Some(sender);
                Err((request, "too many requests wait for it".to_owned()))
            }
            // The next request starts another thread.
            Err(TrySendError::Disconnected(request)) => {
                Err((request, "its thread has ended".to_owned()))
            }
        }
    }
}

impl Member {
    fn start(&self, clock: &Arc<dyn Clock>) -> std::io::Result<Sender<Request>> {
        let (sender, requests) = bounded(QUEUE);
        let (busy, clock) = (Arc::clone(&self.busy), Arc::clone(clock));
        thread::Builder::new()
            .name("lock-red".to_owned())
            .spawn(move || run(&requests, &busy, &*clock))?;
        Ok(sender)
    }
}

/// One server's thread.
fn run(requests: &Receiver<Request>, busy: &Busy, clock: &dyn Clock) {
    for request in requests {
        let _busy = busy.begin(clock.now());
        match request {
            // Nobody wants it any more.
            Request::Take { round, place, .. } if round.is_over() => {
                round.answered(place, Ok(None));
            }
            Request::Take { round, parts, holder, place } => {
                let taken = parts.get(place).map(|part| part.plan.carry_out(&holder, Wait::No));
                round.answered(place, taken.unwrap_or(Ok(None)));
            }
            Request::LetGo { grip, farewell } => farewell.answered(grip.let_go_once()),
        }
    }
}

impl Busy {
    fn begin(&self, now: Instant) -> BusyUntilDropped<'_> {
        *self.0.lock() = Some(now);
        BusyUntilDropped(self)
    }

    fn since(&self) -> Option<Instant> {
        *self.0.lock()
    }
}

struct BusyUntilDropped<'a>(&'a Busy);

impl Drop for BusyUntilDropped<'_> {
    fn drop(&mut self) {
        *self.0.0.lock() = None;
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        if !self.is_current() {
            // A child's copy. What the parent's threads may have had locked is not touched.
            std::mem::forget(std::mem::take(&mut self.members));
        }
    }
}
