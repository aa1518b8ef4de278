//! The state shared by the clones of a red lock: the threads for each server, the servers' votes,
//! and the timer for missing members.

use std::mem;
use std::panic::RefUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashed_wheel::{BuildError, Clock, Period};

use crate::error::{Error, Reason};
use crate::locks::held_locks::RawGuards;
use crate::locks::red::answers::QuorumAnswers;
use crate::locks::red::attempt::ServerVotes;
use crate::locks::red::lane::Lane;
use crate::locks::red::requests::{AcquireRequest, HoldRequest, HoldTask};
use crate::model::fork::HomeProcess;
use crate::model::sync::Mutex;
use crate::model::{HashedWheelTimer, PeriodicTimeout};

/// The state shared by the clones of a red lock: the lanes of each server, the votes, and the timer
/// for missing members.
#[derive(Debug)]
pub(crate) struct RedServers {
    home: HomeProcess,
    clock: Arc<dyn Clock>,
    lanes: Vec<ServerLanes>,
    pub(crate) votes: Arc<ServerVotes>,
    /// The timer for missing members, with a separate thread. Created when first needed.
    upkeep: Mutex<Option<Arc<HashedWheelTimer>>>,
}

/// The lanes of one server. A lane is a queue of requests with its threads. Requests about holds
/// have a separate lane: a refused acquire waits for the releases of the same client, so all
/// threads of the acquire lane may wait for a release.
#[derive(Debug)]
struct ServerLanes {
    acquires: Arc<Lane<AcquireRequest>>,
    holds: Arc<Lane<HoldRequest>>,
}

/// The maximum number of queued acquires. A further acquire is refused, as if the lock were busy.
const MAX_QUEUED_ACQUIRES: usize = 256;

/// The maximum number of queued requests about holds. A further release is left to the client's
/// watchdog, and a further extension is refused.
const MAX_QUEUED_OF_HOLDS: usize = 4096;

/// The resolution of the upkeep: the watchdog's, because the upkeep accompanies the renewals.
const UPKEEP_TICK: Duration = Duration::from_millis(10);

/// The number of buckets of the timer for missing members. Each bucket costs memory, and there are
/// few holds: at most one for each thread or owner.
const UPKEEP_BUCKETS: usize = 64;

// The threads catch panics, and change state only under locks without poisoning.
impl RefUnwindSafe for RedServers {}

impl RedServers {
    /// Returns lanes for `servers` servers, without threads yet, and no votes. `clock` is the clock
    /// of the lanes and of the timer.
    pub(crate) fn new(servers: usize, clock: Arc<dyn Clock>) -> Self {
        let lanes = |_| ServerLanes {
            acquires: Lane::new(&clock, MAX_QUEUED_ACQUIRES),
            holds: Lane::new(&clock, MAX_QUEUED_OF_HOLDS),
        };
        let lanes = (0..servers).map(lanes).collect();
        let (home, upkeep) = (HomeProcess::new(), Mutex::new(None));
        Self { home, clock, lanes, votes: Arc::default(), upkeep }
    }

    /// Whether the threads belong to the current process.
    pub(crate) fn is_current(&self) -> bool {
        self.home.is_current()
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    /// Queues `request` in the lane of its server, for a caller that waits for `timeout` from `now`
    /// on. If the lane is stuck or full, the request reports the refusal at once.
    pub(crate) fn acquire(&self, request: AcquireRequest, now: Instant, timeout: Duration) {
        // There are lanes for each member.
        if let Some(lanes) = self.lanes.get(request.position()) {
            lanes.acquires.send(request, now, timeout);
        }
    }

    /// Ends the holds of `guards` in this process, releases the locks on all servers, and waits for
    /// the answers as [`ask`](Self::ask) does. With `on_drop`, a release counts as answered once
    /// sent. Returns the results, and the number of servers without an answer. If a release cannot
    /// be sent, the client's watchdog queues the release.
    pub(crate) fn release(
        &self,
        guards: RawGuards,
        enough: usize,
        timeout: Duration,
        end: Option<Instant>,
        on_drop: bool,
    ) -> (Vec<Result<(), Error>>, usize) {
        // All holds end in this process first, so no hold counts as held while releases are sent.
        let begun = guards.into_iter().map(|(position, guard)| {
            let task = |release| HoldTask::Release { release: Some(release), on_drop };
            (position, guard.begin_release().map(task))
        });
        self.ask(begun.collect(), enough, timeout, end)
    }

    /// Queues each of `tasks` in the lane of the server at the task's position, and waits for the
    /// answers: for `timeout`, at most until `end`, and not for all servers once `enough` answers
    /// have decided the outcome. Returns the results, and the number of servers without an answer.
    /// A task that is an error is returned among the results.
    pub(crate) fn ask(
        &self,
        tasks: Vec<(usize, Result<HoldTask, Error>)>,
        enough: usize,
        timeout: Duration,
        end: Option<Instant>,
    ) -> (Vec<Result<(), Error>>, usize) {
        if tasks.is_empty() {
            return (Vec::new(), 0);
        }
        let all = Arc::new(QuorumAnswers::new(tasks.len(), enough));
        // 1. Have the threads of each server send the server's request.
        let start = self.clock.now();
        for (position, task) in tasks {
            match (task, self.lanes.get(position)) {
                (Ok(task), Some(lanes)) => {
                    lanes.holds.send(HoldRequest::new(task, &all), start, timeout);
                }
                (task, _) => all.answered(task.map(drop)),
            }
        }
        // 2. Wait for the answers.
        let longest = start + timeout;
        all.wait(self.clock(), start, end.map_or(longest, |end| end.min(longest)))
    }

    /// Runs `task` each time `interval` has passed, on the upkeep thread, until cancelled. `task`
    /// must not block.
    pub(crate) fn every(
        &self,
        interval: Duration,
        task: impl FnMut() + Send + 'static,
    ) -> Result<PeriodicTimeout, Error> {
        let failed = |reason| Error::Thread { reason };
        let timer = self.upkeep().map_err(|error| failed(Reason::caused_by(error)))?;
        let period = Period::fixed_delay(interval);
        timer.schedule_periodic(interval, period, task).map_err(|error| {
            // The timer's thread has ended, as after a panic of the clock. The next call creates
            // another timer.
            drop(self.upkeep.lock().take_if(|other| Arc::ptr_eq(other, &timer)));
            failed(Reason::caused_by(error))
        })
    }

    /// Returns the timer for missing members, and creates the timer if there is none.
    fn upkeep(&self) -> Result<Arc<HashedWheelTimer>, BuildError> {
        if let Some(timer) = &*self.upkeep.lock() {
            return Ok(Arc::clone(timer));
        }
        // The timer is built with nothing locked, because the builder reads the clock. If two
        // threads build a timer, the first is retained.
        let timer = HashedWheelTimer::builder()
            .tick_duration(UPKEEP_TICK)
            .ticks_per_wheel(UPKEEP_BUCKETS)
            .thread_name("lock-member")
            .clock(Arc::clone(&self.clock))
            .build()?;
        Ok(Arc::clone(self.upkeep.lock().get_or_insert_with(|| Arc::new(timer))))
    }
}

impl Drop for RedServers {
    fn drop(&mut self) {
        if self.is_current() {
            for ServerLanes { acquires, holds } in &self.lanes {
                acquires.close();
                holds.close();
            }
        } else {
            // In the child of a fork, a thread of the parent may have locked the mutexes. So the
            // fields are never dropped.
            mem::forget((mem::take(&mut self.lanes), mem::take(&mut self.votes)));
            mem::forget(self.upkeep.get_mut().take());
        }
    }
}
