//! The threads of a red lock: a few for each server, so that a server that hangs blocks only its
//! own threads.
//!
//! A thread runs one [task](crate::lock::red::queue) after the other. A server whose threads have
//! all been at one task for longer than their callers wait is *stuck*. It is given no more until
//! one of them finishes, which takes at most one command timeout. So neither threads nor tasks pile
//! up for a server that hangs.

use std::mem;
use std::panic::RefUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashed_wheel::{BuildError, Clock, Period};

use crate::error::{Error, Reason};
use crate::lock::held_locks::RawGuards;
use crate::lock::red::attempt::ServerVotes;
use crate::lock::red::queue::{Task, TaskQueue};
use crate::lock::red::release::QuorumRelease;
use crate::lock::red::tasks::{AcquireTask, Refusal, ReleaseTask, ServerTask};
use crate::model::fork::HomeProcess;
use crate::model::panics::catch_panic;
use crate::model::sync::{Condvar, Mutex, thread};
use crate::model::{HashedWheelTimer, PeriodicTimeout};
use crate::runtime::client_core::ClientCore;
use crate::runtime::release::ReleaseInProgress;

/// A task queue and threads for each server. Threads start when they are first needed. They end
/// when the pools are dropped and the queue is empty.
#[derive(Debug)]
pub(crate) struct WorkerPools {
    home: HomeProcess,
    clock: Arc<dyn Clock>,
    servers: Vec<Arc<ServerWorkers>>,
    pub(crate) votes: Arc<ServerVotes>,
    /// Asks for missing members, on a thread of its own. Made when it is first needed.
    upkeep: Mutex<Option<Arc<HashedWheelTimer>>>,
}

#[derive(Debug)]
struct ServerWorkers {
    clock: Arc<dyn Clock>,
    state: Mutex<WorkerState>,
    /// There is a task, or the pools are closed.
    wakeup: Condvar,
}

#[derive(Debug)]
struct WorkerState {
    tasks: TaskQueue<AcquireTask, ReleaseTask>,
    closed: bool,
}

// Its threads catch panics, and its state changes under locks that do not poison.
impl RefUnwindSafe for WorkerPools {}

/// The resolution of the upkeep. As the watchdog's, whose renewals it accompanies.
const UPKEEP_TICK: Duration = Duration::from_millis(10);

/// Each bucket costs memory, and there are few holds: one for each thread or owner at most.
const UPKEEP_BUCKETS: usize = 64;

impl WorkerPools {
    pub(crate) fn new(servers: usize, clock: Arc<dyn Clock>) -> Self {
        let servers = (0..servers).map(|_| Arc::new(ServerWorkers::new(&clock))).collect();
        let (home, upkeep) = (HomeProcess::new(), Mutex::new(None));
        Self { home, clock, servers, votes: Arc::default(), upkeep }
    }

    /// Whether its threads are in the current process.
    pub(crate) fn is_current(&self) -> bool {
        self.home.is_current()
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    /// Which servers are stuck, for callers that wait for `timeout`.
    pub(crate) fn stuck(&self, timeout: Duration) -> Vec<bool> {
        let now = self.clock.now();
        self.servers.iter().map(|server| server.state.lock().tasks.is_stuck(now, timeout)).collect()
    }

    /// Asks one server. If it is stuck or its queue is full, the task reports that at once.
    pub(crate) fn acquire(&self, task: AcquireTask, timeout: Duration) {
        self.send(Task::Acquire(task), timeout);
    }

    /// Releases on all servers, and waits for the answers: for `timeout` each, and at most until
    /// `end`. If `on_drop`, a release counts as answered when it was sent. Returns the results, and
    /// how many servers have not answered. A release that cannot be sent is queued with the
    /// client's watchdog.
    pub(crate) fn release(
        &self,
        guards: RawGuards,
        enough: usize,
        timeout: Duration,
        end: Option<Instant>,
        on_drop: bool,
    ) -> (Vec<Result<(), Error>>, usize) {
        if guards.is_empty() {
            return (Vec::new(), 0);
        }
        let all = Arc::new(QuorumRelease::new(guards.keys().copied(), enough));
        // 1. End all holds in this process, so that none counts as held while the others are sent.
        let releases: Vec<(usize, Result<ReleaseInProgress, Error>)> =
            guards.into_iter().map(|(position, guard)| (position, guard.begin_release())).collect();
        // 2. Have each server's threads send its release.
        for (position, release) in releases {
            match release {
                Ok(release) => {
                    let task = ReleaseTask::new(release, &all, position, on_drop);
                    self.send(Task::Release(task), timeout);
                }
                Err(error) => all.answered(position, Err(error)),
            }
        }
        // 3. Wait for the answers.
        all.wait(self.clock(), timeout, end, || self.stuck(timeout))
    }

    /// Runs `task` each time `interval` has passed, on the thread `lock-upkeep`, until it is
    /// cancelled. It must not block.
    pub(crate) fn every(
        &self,
        interval: Duration,
        task: impl FnMut() + Send + 'static,
    ) -> Result<PeriodicTimeout, Error> {
        let failed = |reason| Error::Thread { reason };
        let timer = self.upkeep().map_err(|error| failed(Reason::caused_by(error)))?;
        let period = Period::fixed_delay(interval);
        timer.schedule_periodic(interval, period, task).map_err(|error| {
            // Its thread has ended, as after a panic of the clock. The next call makes another.
            drop(self.upkeep.lock().take_if(|other| Arc::ptr_eq(other, &timer)));
            failed(Reason::caused_by(error))
        })
    }

    fn upkeep(&self) -> Result<Arc<HashedWheelTimer>, BuildError> {
        if let Some(timer) = &*self.upkeep.lock() {
            return Ok(Arc::clone(timer));
        }
        // Built with nothing locked, as it asks the clock. If two threads build one, the first is
        // kept.
        let timer = HashedWheelTimer::builder()
            .tick_duration(UPKEEP_TICK)
            .ticks_per_wheel(UPKEEP_BUCKETS)
            .thread_name("lock-upkeep")
            .clock(Arc::clone(&self.clock))
            .build()?;
        Ok(Arc::clone(self.upkeep.lock().get_or_insert_with(|| Arc::new(timer))))
    }

    fn send(&self, task: ServerTask, timeout: Duration) {
        match self.servers.get(task.position()) {
            Some(server) => server.send(task, self.clock.now(), timeout),
            // Not reached: there are workers for each member.
            None => task.refuse(Refusal::Stuck),
        }
    }
}

impl ServerWorkers {
    fn new(clock: &Arc<dyn Clock>) -> Self {
        let state = Mutex::new(WorkerState { tasks: TaskQueue::new(), closed: false });
        Self { clock: Arc::clone(clock), state, wakeup: Condvar::new() }
    }

    /// Queues a task, or refuses it.
    fn send(self: &Arc<Self>, task: ServerTask, now: Instant, timeout: Duration) {
        let mut state = self.state.lock();
        let refusal = if state.tasks.is_futile(&task, now, timeout) {
            Some(Refusal::Stuck)
        } else if !state.tasks.has_room_for(&task) {
            Some(Refusal::QueueFull)
        } else if state.tasks.has_threads() {
            None
        } else {
            self.start_thread(&mut state).err().map(|error| Refusal::NoThread(error.into()))
        };
        if let Some(refusal) = refusal {
            drop(state);
            return task.refuse(refusal);
        }
        state.tasks.push(task);
        self.start_thread_if_needed(&mut state);
        drop(state);
        self.wakeup.notify_one();
    }

    /// If the system refuses another thread, the running ones do the work.
    fn start_thread_if_needed(self: &Arc<Self>, state: &mut WorkerState) {
        if state.tasks.needs_thread() {
            drop(self.start_thread(state));
        }
    }

    fn start_thread(self: &Arc<Self>, state: &mut WorkerState) -> std::io::Result<()> {
        let workers = Arc::clone(self);
        thread::Builder::new().name("lock-member".to_owned()).spawn(move || workers.run())?;
        state.tasks.add_thread();
        Ok(())
    }

    /// A thread, until the pools are closed and the queue is empty.
    fn run(self: &Arc<Self>) {
        while let Some((id, mut task)) = self.next() {
            let core = task.core();
            let answered = catch_and_count(core.as_deref(), || {
                let now = self.clock.now();
                self.state.lock().tasks.sent(id, now);
                task.run(now)
            });
            self.state.lock().tasks.answered(id);
            // It reports its answer when it is dropped. That is a call of its own, not part of the
            // unwinding above: the clock may panic again.
            catch_and_count(core.as_deref(), || drop(task));
            let mut state = self.state.lock();
            state.tasks.finished(id, answered == Some(true));
            self.start_thread_if_needed(&mut state);
            let closed = state.closed;
            drop(state);
            if closed {
                // Idle threads end.
                self.wakeup.notify_all();
            } else {
                self.wakeup.notify_one();
            }
        }
    }

    fn next(&self) -> Option<(u64, ServerTask)> {
        let mut state = self.state.lock();
        loop {
            if let Some(next) = state.tasks.next() {
                return Some(next);
            }
            if state.closed && state.tasks.is_empty() {
                return None;
            }
            self.wakeup.wait(&mut state);
        }
    }

    fn close(&self) {
        self.state.lock().closed = true;
        self.wakeup.notify_all();
    }
}

/// As [`catch_panic`]. The client counts the panic (DESIGN: foreign code).
pub(crate) fn catch_and_count<T>(
    core: Option<&ClientCore>,
    action: impl FnOnce() -> T,
) -> Option<T> {
    let done = catch_panic(action);
    if let (None, Some(core)) = (&done, core) {
        core.watchdog.counters().panicked();
    }
    done
}

impl Drop for WorkerPools {
    fn drop(&mut self) {
        if self.is_current() {
            self.servers.iter().for_each(|server| server.close());
        } else {
            // A child's copy. The parent's threads may have locked its mutexes: never dropped.
            mem::forget((mem::take(&mut self.servers), mem::take(&mut self.votes)));
            mem::forget(self.upkeep.get_mut().take());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use crossbeam_channel::Receiver;
    use hashed_wheel::{ManualClock, Parker as ParkerOfClock};
    use wheellock_fixture::wait_until;

    use super::*;
    use crate::Client;
    use crate::lock::any_lock::{AsMember, MemberLock};
    use crate::lock::red::attempt::QuorumAttempt;
    use crate::model::owner::LocalHolder;
    use crate::model::sync::{Parker, SystemClock};
    use crate::store::memory::Memory;

    const TIMEOUT: Duration = Duration::from_secs(1);

    /// A clock that ends the attempt when a worker thread reads it, and notes whether the server is
    /// stuck if a timeout has passed by then.
    #[derive(Debug)]
    struct Looks {
        time_of_pools: ManualClock,
        looked_at: OnceLock<(Arc<WorkerPools>, Arc<QuorumAttempt>)>,
        stuck: Mutex<Vec<bool>>,
    }

    impl Clock for Looks {
        fn now(&self) -> Instant {
            if let Some((pools, attempt)) = self.looked_at.get()
                && thread::current().name() == Some("lock-member")
            {
                drop(attempt.close());
                self.time_of_pools.jump(TIMEOUT);
                self.stuck.lock().extend(pools.stuck(TIMEOUT));
            }
            SystemClock.now()
        }

        fn park(
            &self,
            parker: &ParkerOfClock,
            deadline: Option<Instant>,
            interrupt: &Receiver<()>,
        ) {
            SystemClock.park(parker, deadline, interrupt);
        }
    }

    #[test]
    fn a_server_is_not_stuck_while_its_answer_is_reported() {
        let time_of_pools = ManualClock::new();
        let pools = Arc::new(WorkerPools::new(1, Arc::new(time_of_pools.clone())));
        let (looked_at, stuck) = (OnceLock::new(), Mutex::default());
        let clock = Arc::new(Looks { time_of_pools, looked_at, stuck });
        let memory = Memory::new();
        let client = Client::builder().in_memory(&memory).clock(clock.clone()).build().unwrap();
        let members: Arc<[MemberLock]> = Arc::new([client.lock("a").as_member()]);
        let attempt = QuorumAttempt::new("a".to_owned(), 1, 1, &Arc::default(), &Parker::new());
        let attempt = Arc::new(attempt);
        clock.looked_at.set((Arc::clone(&pools), Arc::clone(&attempt))).unwrap();
        let caller = LocalHolder::current_thread();
        pools.acquire(AcquireTask::new(&attempt, &members, &caller, 0, None), TIMEOUT);
        // What it is granted is released while it reports, which reads the clock last.
        wait_until("it has reported", TIMEOUT * 60, || {
            pools.servers[0].state.lock().tasks.is_idle()
        });
        let stuck = clock.stuck.lock().clone();
        assert_eq!((stuck.first(), stuck.last()), (Some(&true), Some(&false)), "{stuck:?}");
        assert!(memory.fields("a").is_empty());
    }
}
