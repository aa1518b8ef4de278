//! Random runs of threads in three clients, on a clock that a test moves, beside an oracle that
//! knows what each thread holds and waits for.
//!
//! `DEADLOCK_SEED` repeats the first run, and `DEADLOCK_SCHEDULES` is the number of runs.

use std::collections::BTreeSet;
use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hashed_wheel::Parker;

use crate::common::{built, now, pause};
use crate::cycles;
use wheellock::crossbeam_channel::{Receiver, Sender, bounded};
use wheellock::{
    Client, Clock, Error, LockGuard, ManualClock, Memory, MultiGuard, OnDeadlock, OwnedGuard,
    Permit,
};
use wheellock_fixture::wait_until;

const CLIENTS: usize = 3;
const THREADS: usize = 6;
/// Within this time of the last wait each cycle is found.
const FOUND: Duration = Duration::from_secs(3);
/// A bound for what takes moments.
const SOON: Duration = Duration::from_secs(20);

/// How a thread acquires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Plain,
    Sendable,
    Cached,
    Fair,
    Read,
    Write,
    /// Two plain locks as one.
    Multi,
    Permit,
}

const HOWS: [How; 8] = [
    How::Plain,
    How::Sendable,
    How::Cached,
    How::Fair,
    How::Read,
    How::Write,
    How::Multi,
    How::Permit,
];

impl How {
    /// The names from which it acquires: the first of them with this number, and of a multi-lock the
    /// next too.
    fn names(self, number: usize) -> Vec<String> {
        match self {
            Self::Plain | Self::Sendable | Self::Cached => vec![format!("lock-{}", number % 3)],
            Self::Multi => {
                vec![format!("lock-{}", number % 3), format!("lock-{}", (number + 1) % 3)]
            }
            Self::Fair => vec![format!("fair-{}", number % 2)],
            Self::Read | Self::Write => vec![format!("read-write-{}", number % 2)],
            Self::Permit => vec!["permits".to_owned()],
        }
    }

    /// Whether the hold belongs to the thread.
    fn is_of_thread(self) -> bool {
        !matches!(self, Self::Sendable | Self::Permit)
    }
}

#[derive(Debug)]
enum Command {
    Acquire { how: How, names: Vec<String>, limit: Option<Duration> },
    ReleaseLast,
}

#[expect(dead_code, reason = "the guards are dropped")]
enum Held {
    Guard(LockGuard),
    Owned(OwnedGuard),
    Multi(MultiGuard),
    Permit(Permit),
}

/// What a thread is told to do, and what came of it: whether something was acquired.
struct Worker {
    commands: Sender<Command>,
    results: Receiver<Result<bool, Error>>,
    thread: JoinHandle<()>,
}

impl Worker {
    fn start(client: Client) -> Self {
        let (commands, orders) = bounded::<Command>(1);
        let (done, results) = bounded(1);
        let work = move || {
            let mut held = Vec::new();
            for command in orders {
                let result = match command {
                    Command::Acquire { how, names, limit } => acquire(&client, how, &names, limit)
                        .map(|got| got.map(|got| held.push(got)).is_some()),
                    Command::ReleaseLast => Ok(held.pop().is_some()),
                };
                done.send(result).unwrap();
            }
        };
        let thread = thread::Builder::new().name("worker".to_owned()).spawn(work).unwrap();
        Self { commands, results, thread }
    }
}

fn acquire(
    client: &Client,
    how: How,
    names: &[String],
    limit: Option<Duration>,
) -> Result<Option<Held>, Error> {
    let name = names[0].as_str();
    let wait = || limit.map_or_else(wheellock::Wait::forever, wheellock::Wait::at_most);
    let lock = match how {
        How::Plain => client.lock(name),
        How::Cached => client.lock(name).with_cache(Duration::from_secs(2)),
        How::Fair => client.fair_lock(name),
        How::Read => client.read_write_lock(name).read_lock(),
        How::Write => client.read_write_lock(name).write_lock(),
        How::Sendable => {
            let lock = client.lock(name).sendable();
            return Ok(lock.try_lock_with(wait())?.map(Held::Owned));
        }
        How::Multi => {
            let locks: Vec<&str> = names.iter().map(String::as_str).collect();
            return Ok(client.lock_many(&locks).try_lock_with(wait())?.map(Held::Multi));
        }
        How::Permit => {
            let semaphore = client.expirable_semaphore(name).watched();
            return Ok(semaphore.try_acquire_with(wait())?.map(Held::Permit));
        }
    };
    Ok(lock.try_lock_with(wait())?.map(Held::Guard))
}

/// What the oracle knows of a thread.
#[derive(Clone, Debug, Default)]
struct Known {
    holds: Vec<(How, Vec<String>)>,
    waits: Option<(How, Vec<String>)>,
}

/// Whether a hold keeps a wait for one of the names from ending.
fn keeps(held: &(How, Vec<String>), wait: How, name: &str) -> bool {
    let is_shared = held.0 == How::Read && wait == How::Read;
    held.0.is_of_thread() && !is_shared && held.1.iter().any(|held| held == name)
}

/// Which of the locks that are held a multi-lock waits for.
#[derive(Clone, Copy, Debug)]
enum Choice {
    Any,
    /// Of each thread the first or the last, by a bit.
    ByBits(usize),
}

/// The threads that are in a cycle whatever the multi-locks wait for.
fn certainly_in_cycles(threads: &[Known]) -> BTreeSet<usize> {
    let choices = (0..1 << threads.len()).map(|bits| in_cycles(threads, Choice::ByBits(bits)));
    choices.reduce(|all, cycles| &all & &cycles).unwrap_or_default()
}

/// The threads that are in a cycle.
fn in_cycles(threads: &[Known], choice: Choice) -> BTreeSet<usize> {
    // A thread nests its own hold, unless it asks for a guard that belongs to no thread.
    let nests = |waiter: usize, holder: usize, wait: How| waiter == holder && wait.is_of_thread();
    let holders = |waiter: usize, wait: How, name: &str| -> BTreeSet<usize> {
        let keeps = |thread: &Known| thread.holds.iter().any(|held| keeps(held, wait, name));
        let others = (0..threads.len()).filter(|holder| !nests(waiter, *holder, wait));
        others.filter(|holder| keeps(&threads[*holder])).collect()
    };
    // Holds of no thread count as busy, and their holders may release them.
    let is_busy = |waiter: usize, wait: How, name: &str| {
        threads.iter().enumerate().any(|(holder, thread)| {
            let blocks = |held: &&(How, Vec<String>)| {
                !(nests(waiter, holder, wait) && held.0.is_of_thread())
                    && held.1.iter().any(|held| held == name)
            };
            thread.holds.iter().any(|held| blocks(&held))
        })
    };
    // Whom a thread waits for.
    let next = |thread: usize| -> BTreeSet<usize> {
        let Some((how, names)) = &threads[thread].waits else { return BTreeSet::new() };
        if *how == How::Permit {
            return BTreeSet::new();
        }
        let busy: Vec<&String> = names.iter().filter(|name| is_busy(thread, *how, name)).collect();
        let chosen = match choice {
            Choice::Any => busy,
            Choice::ByBits(bits) if bits >> thread & 1 == 0 => {
                busy.first().copied().into_iter().collect()
            }
            Choice::ByBits(_) => busy.last().copied().into_iter().collect(),
        };
        chosen.into_iter().flat_map(|name| holders(thread, *how, name)).collect()
    };
    let reaches_itself = |first: &usize| {
        let (mut seen, mut open) = (BTreeSet::new(), next(*first));
        while let Some(thread) = open.pop_first() {
            if seen.insert(thread) {
                open.extend(next(thread));
            }
        }
        seen.contains(first)
    };
    (0..threads.len()).filter(reaches_itself).collect()
}

/// The clock of the clients, which counts the workers that sleep on it: a thread that the system
/// has not scheduled yet would miss the time that a test lets pass.
#[derive(Debug)]
struct CountingClock {
    clock: ManualClock,
    asleep: AtomicUsize,
}

impl Clock for CountingClock {
    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn park(&self, parker: &Parker, deadline: Option<Instant>, interrupt: &Receiver<()>) {
        let workers = usize::from(thread::current().name() == Some("worker"));
        self.asleep.fetch_add(workers, Ordering::SeqCst);
        self.clock.park(parker, deadline, interrupt);
        self.asleep.fetch_sub(workers, Ordering::SeqCst);
    }

    fn pass_until(&self, parker: &Parker, deadline: Instant, interrupt: &Receiver<()>) {
        self.clock.pass_until(parker, deadline, interrupt);
    }
}

/// Three clients, their threads, and what the oracle knows.
struct Play {
    random: fastrand::Rng,
    clock: ManualClock,
    counting: Arc<CountingClock>,
    clients: Vec<Client>,
    workers: Vec<Worker>,
    known: Vec<Known>,
    /// As it was when every thread was idle or asleep.
    at_rest: Vec<Known>,
    log: Vec<String>,
}

impl Play {
    fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let clock = ManualClock::new();
        let counting =
            Arc::new(CountingClock { clock: clock.clone(), asleep: AtomicUsize::new(0) });
        let memory = Memory::with_clock(counting.clone());
        let on_deadlock = if random.bool() { OnDeadlock::Fail } else { OnDeadlock::Warn };
        let client = |number: usize| {
            let builder = Client::builder().in_memory(&memory).clock(counting.clone());
            let builder = builder.on_deadlock(on_deadlock);
            built(builder.label(&format!("client {number}")))
        };
        let clients: Vec<Client> = (0..CLIENTS).map(client).collect();
        clients[0].expirable_semaphore("permits").set_permits(2).unwrap();
        let workers =
            (0..THREADS).map(|thread| Worker::start(clients[thread % CLIENTS].clone())).collect();
        let known = vec![Known::default(); THREADS];
        let (at_rest, log) = (known.clone(), vec![format!("{on_deadlock:?}")]);
        Self { random, clock, counting, clients, workers, known, at_rest, log }
    }

    /// One command to a thread that does not wait.
    fn step(&mut self) {
        let idle: Vec<usize> =
            (0..THREADS).filter(|thread| self.known[*thread].waits.is_none()).collect();
        let Some(thread) = self.random.choice(idle) else { return };
        if !self.known[thread].holds.is_empty() && self.random.u8(..) < 50 {
            self.log.push(format!("{thread} releases"));
            self.workers[thread].commands.send(Command::ReleaseLast).unwrap();
            self.workers[thread].results.recv_timeout(SOON).unwrap().unwrap();
            self.known[thread].holds.pop();
        } else {
            let how = self.random.choice(HOWS).unwrap();
            let names = how.names(self.random.usize(..6));
            // Most waits have no limit, and some a longer one than it takes to find a cycle.
            let limit = match self.random.u8(..10) {
                0 => Some(Duration::from_secs(1)),
                1 => Some(Duration::from_secs(20)),
                _ => None,
            };
            self.log.push(format!("{thread} acquires {how:?} {names:?} {limit:?}"));
            let (sent, names) = (names.clone(), names);
            self.workers[thread]
                .commands
                .send(Command::Acquire { how, names: sent, limit })
                .unwrap();
            self.known[thread].waits = Some((how, names));
        }
        self.wait_until_idle();
    }

    /// Waits until each thread has ended its command or sleeps, and takes the results.
    fn wait_until_idle(&mut self) {
        let end = now() + SOON;
        for look in 1.. {
            if self.is_idle() {
                break;
            }
            assert!(now() < end, "{:?}: {:#?}", self.known, self.log);
            pause(Duration::from_micros(50));
            // A multi-lock pauses between two attempts.
            if look % 20 == 0 {
                self.clock.advance(Duration::from_millis(1));
            }
        }
        self.clock.wait_until_idle();
        self.take_results();
        self.at_rest = self.known.clone();
    }

    /// Whether each thread has ended its command or sleeps.
    fn is_idle(&mut self) -> bool {
        self.take_results();
        let waits = |client: usize| {
            let threads = (client..THREADS).step_by(CLIENTS);
            threads.filter(|thread| self.known[*thread].waits.is_some()).count()
        };
        (0..CLIENTS).all(|client| self.clients[client].stats().waiters == waits(client))
            && self.counting.asleep.load(Ordering::SeqCst) == (0..CLIENTS).map(waits).sum::<usize>()
    }

    fn take_results(&mut self) {
        for thread in 0..THREADS {
            let Ok(result) = self.workers[thread].results.try_recv() else { continue };
            let Some(wait) = self.known[thread].waits.take() else {
                panic!("{thread} has no command: {:#?}", self.log)
            };
            self.log.push(format!("{thread}: {result:?}"));
            match result {
                Ok(true) => self.known[thread].holds.push(wait),
                Ok(false) | Err(Error::Upgrade { .. } | Error::AlreadyHeld { .. }) => {}
                // Two waits may end that began at the same instant: as it was when all were at rest.
                Err(Error::Deadlock { .. }) => assert!(
                    in_cycles(&self.at_rest, Choice::Any).contains(&thread),
                    "{thread} waits for nobody: {:#?}",
                    self.log
                ),
                Err(error) => panic!("{error}: {:#?}", self.log),
            }
        }
    }

    /// Lets as much time pass as it takes to find a cycle. Each that was there all the time is
    /// reported, and none that was not.
    fn look(&mut self) {
        let clients = |threads: BTreeSet<usize>| -> BTreeSet<usize> {
            threads.into_iter().map(|thread| thread % CLIENTS).collect()
        };
        let must = certainly_in_cycles(&self.known);
        let may = in_cycles(&self.known, Choice::Any);
        let before: Vec<usize> = self.clients.iter().map(|client| cycles(client).len()).collect();
        let waits = self.known.clone();
        self.clock.advance(FOUND);
        // A multi-lock waits for one lock after the other for moments, and for a cached lock for up to
        // two seconds.
        let is_multi = |thread: &usize| matches!(waits[*thread].waits, Some((How::Multi, _)));
        if must.iter().any(is_multi) {
            self.clock.advance(FOUND * 2);
        }
        self.wait_until_idle();
        let ended = |thread: &usize| self.known[*thread].waits != waits[*thread].waits;
        for (number, client) in self.clients.iter().enumerate() {
            let reported = cycles(client);
            let is_new = reported.len() > before[number];
            assert!(
                !is_new || clients(may.clone()).contains(&number),
                "{number} reports {reported:?}: {:#?}",
                self.log
            );
        }
        // A thread that is out of time ends a cycle.
        if may.iter().any(ended) {
            return;
        }
        // A thread that was granted a lock meanwhile may be the thread that a multi-lock waits for now.
        let must = &must & &certainly_in_cycles(&self.known);
        for number in clients(must) {
            let reported = cycles(&self.clients[number]);
            assert!(!reported.is_empty(), "{number} reports nothing: {:#?}", self.log);
        }
    }

    fn end(self) -> bool {
        let found = self.clients.iter().any(|client| !cycles(client).is_empty());
        for client in &self.clients {
            client.shutdown(Duration::ZERO);
        }
        for Worker { commands, results, thread } in self.workers {
            drop((commands, results.try_recv().ok()));
            // A multi-lock may pause between two attempts.
            wait_until("the thread has ended", SOON, || {
                self.clock.advance(Duration::from_millis(1));
                thread.is_finished()
            });
            thread.join().unwrap();
        }
        found
    }
}

#[test]
fn every_cycle_is_found_and_no_other() {
    let number = |name: &str| env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let seed = number("DEADLOCK_SEED").unwrap_or_else(|| fastrand::u64(..));
    let random_runs = number("DEADLOCK_SCHEDULES").unwrap_or(200);
    println!("DEADLOCK_SEED={seed}");
    let mut found = 0;
    for run in 0..random_runs {
        let seed = seed.wrapping_add(run);
        let mut play = Play::new(seed);
        play.log.push(format!("DEADLOCK_SEED={seed} DEADLOCK_SCHEDULES=1"));
        for _ in 0..4 {
            for _ in 0..play.random.usize(2..10) {
                play.step();
            }
            play.look();
        }
        found += u64::from(play.end());
    }
    println!("{found} of {random_runs} runs had a cycle");
    assert!(random_runs < 100 || found > random_runs / 10, "{found} of {random_runs}");
}
