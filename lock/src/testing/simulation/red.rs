//! A red lock over three servers, what goes wrong around its clients, and what must hold.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hashed_wheel::Clock;

use crate::client::client::Client;
use crate::core::client_core::{ClientCore, StartMode};
use crate::core::release::SHORTEST_RELEASE;
use crate::error::Error;
use crate::hold::hold::Hold;
use crate::locks::held_locks::HeldLocks;
use crate::locks::red::guard::RedGuard;
use crate::locks::red::lock::RedLock;
use crate::model::name::{LockName, Prefix};
use crate::model::owner::LocalHolder;
use crate::store::redis::net::socket::set_network;
use crate::store::retry::SHORTEST_CALL;
use crate::testing::modelled::process::{Process, enter_process, note, watch};
use crate::testing::modelled::sync::{SystemClock, below, sleep, thread};
use crate::testing::simulation::faults::{
    Pause, disturb, one_of, paused, plan_faults, sleep_until_undisturbed,
};
use crate::testing::simulation::network::{FIRST_PORT, Net, Servers};
use crate::testing::simulation::process::{
    COMMAND_TIMEOUT, Free, LEASE, Limits, NAME, SLACK, check_end, finish, start, url_of,
};

const SERVERS: u16 = 3;
/// How many of them are a majority.
const MAJORITY: usize = 2;
/// How long each server is waited for, as a lease of nine seconds has it.
const SERVER_TIMEOUT: Duration = Duration::from_millis(250);
/// How long one try, a release or the drop of a guard takes: the answers, and then the rollback of
/// a try that is not granted.
const ONE_CALL: Duration = SERVER_TIMEOUT.saturating_mul(2);
/// How much later than its limit a wait ends: a call that begins just before, and the release of
/// what it was granted.
const END_OF_WAIT: Duration = SHORTEST_CALL.saturating_add(SHORTEST_RELEASE);
/// For how long less than a majority is kept: the watchdog looks every 10 ms.
const END_OF_PARTS: Duration = Duration::from_millis(20).saturating_add(SLACK);
/// The longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_millis(128);

/// All clients, the servers, and what the threads do at the moment.
#[derive(Clone)]
struct Simulation(Arc<Shared>);

struct Shared {
    servers: Servers,
    state: Mutex<State>,
    faults: usize,
}

struct State {
    inside: Vec<Inside>,
    /// The threads that wait: a number of each, its client, and since when.
    waiting: Vec<(u64, u8, Instant)>,
    /// Whether nobody has a hold on any server.
    free: Free,
    /// Of those inside, since when they hold less than a majority, but something.
    parts: BTreeMap<u64, Instant>,
    pauses: Vec<Pause>,
    drawn: u64,
}

/// A thread that was granted the lock and has not begun to release it.
#[derive(Clone)]
struct Inside {
    number: u64,
    client: u8,
    cores: Arc<[Arc<ClientCore>]>,
    holder: LocalHolder,
    held: Arc<HeldLocks>,
    /// On how many servers it was granted.
    servers: usize,
    /// When its acquire began.
    asked_at: Instant,
}

/// Makes one run.
pub(crate) fn run(limits: Limits) {
    let faults = below(limits.faults + 1);
    let nets: Vec<_> = (0..SERVERS).map(|server| Net::new(FIRST_PORT + server)).collect();
    set_network(Arc::new(Servers(nets.clone())));
    let state = State {
        inside: Vec::new(),
        waiting: Vec::new(),
        free: Free::since(SystemClock.now()),
        parts: BTreeMap::new(),
        pauses: Vec::new(),
        drawn: 0,
    };
    let servers = Servers(nets);
    let simulation = Simulation(Arc::new(Shared { servers, state: Mutex::new(state), faults }));
    let watched = simulation.clone();
    watch(Rc::new(move || watched.check()));
    let disturbed = simulation.clone();
    plan_faults(faults, move || {
        let pause = disturb(&disturbed.0.servers.0, limits.clients);
        disturbed.state().pauses.extend(pause);
    });
    let clients = 1 + u8::try_from(below(limits.clients.into())).unwrap();
    let processes: Vec<_> = (0..clients)
        .map(|number| {
            let simulation = simulation.clone();
            thread::spawn(move || simulation.run_client(number, limits))
        })
        .collect();
    for process in processes {
        process.join().unwrap();
    }
    // Each server has locks of its own.
    check_end(&simulation.0.servers.0, faults > 0, |net| !net.losses().is_empty());
}

impl Simulation {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_faults(&self) -> bool {
        self.0.faults > 0
    }

    /// Two threads never hold the lock, unless the servers have lost more than the lock allows.
    /// What is left of a lost one is released.
    fn check(&self) {
        self.check_waiting();
        // To look at a hold may take a lock of the client's.
        let inside = self.state().inside.clone();
        for inside in &inside {
            self.check_parts(inside);
        }
        // To ask a lock ends it if it is lost, so one thread alone is not disturbed.
        if inside.len() < 2 {
            return;
        }
        let held: Vec<_> = inside.iter().filter(|inside| inside.held.is_held()).collect();
        if let [first, second, ..] = held.as_slice() {
            assert!(
                self.is_excused(first, second),
                "two threads hold the red lock, of the clients {} and {}",
                first.client,
                second.client
            );
        }
    }

    /// Nobody sleeps for long while no server has a hold.
    fn check_waiting(&self) {
        let now = SystemClock.now();
        let is_locked = self.0.servers.any(|server| server.is_locked(NAME, now));
        let disturbed = self.0.servers.disturbed_until();
        // It pauses between attempts, and then one takes some round trips. What went wrong before
        // may keep a connection or a thread busy for a command timeout, and each in turn.
        let busy = if self.has_faults() { COMMAND_TIMEOUT * 3 } else { SLACK };
        let longest = LONGEST_PAUSE + self.0.servers.latency() * 10 + busy;
        let mut state = self.state();
        state.free.update(!is_locked, now);
        for (_, client, since) in &state.waiting {
            let idle = state.free.idle(now, *since, disturbed);
            assert!(
                idle <= longest,
                "a thread of client {client} has waited for {idle:?} while the lock was free"
            );
        }
    }

    /// Less than a majority is not kept, even if nobody asks for it.
    fn check_parts(&self, inside: &Inside) {
        let parts = inside.parts();
        let now = SystemClock.now();
        let mut state = self.state();
        if parts == 0 || parts >= MAJORITY {
            state.parts.remove(&inside.number);
            return;
        }
        let since = *state.parts.entry(inside.number).or_insert(now);
        let kept = now.saturating_duration_since(since);
        assert!(
            kept <= END_OF_PARTS + paused(&state.pauses, inside.client, since),
            "client {} keeps what is left of a lost red lock for {kept:?}",
            inside.client
        );
    }

    /// Whether more servers have lost keys than the lock was held on beyond a majority. With other
    /// faults a hold may be on fewer servers later than when it was granted.
    fn is_excused(&self, first: &Inside, second: &Inside) -> bool {
        let now = SystemClock.now();
        let asked_at = first.asked_at.min(second.asked_at);
        let losses = self.0.servers.losses().into_iter();
        let losses = losses.filter(|lost| *lost >= asked_at && now <= *lost + LEASE).count();
        let spare = first.servers.max(second.servers).saturating_sub(MAJORITY);
        losses > if self.0.faults == 1 { spare } else { 0 }
    }

    /// One process: a client of each server, threads, and what is left when they are done.
    fn run_client(&self, number: u8, limits: Limits) {
        enter_process(Process(number));
        // One of the servers may be away.
        let start = |server| start(&url_of(FIRST_PORT + server), StartMode::Unconnected);
        let cores: Arc<[_]> = (0..SERVERS).map(start).collect();
        let clients: Vec<_> =
            cores.iter().map(|core| Client::new(Arc::clone(core), Prefix::new(""))).collect();
        let lock = Client::red_lock(&clients, NAME);
        let threads: Vec<_> = (0..=below(limits.threads))
            .map(|thread| {
                let (simulation, cores, lock) = (self.clone(), Arc::clone(&cores), lock.clone());
                let member = Member { simulation, cores, lock, client: number, thread };
                let rounds = 1 + below(limits.rounds);
                thread::spawn(move || (0..rounds).for_each(|_| member.acquire_and_release()))
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        drop((lock, clients));
        sleep_until_undisturbed(&self.0.servers.0);
        // What was granted too late is released by then.
        sleep(COMMAND_TIMEOUT * 2);
        for core in &*cores {
            finish(number, core);
        }
        note(|| "the client ends".to_owned());
    }
}

impl Inside {
    /// On how many servers it has a hold.
    fn parts(&self) -> usize {
        let (now, name) = (SystemClock.now(), LockName::parse(NAME).unwrap());
        let is_its = |hold: &Hold| hold.is_held(now) && hold.belongs_to(&self.holder);
        self.cores.iter().filter(|core| core.holds.any(&name, is_its)).count()
    }
}

/// One thread of a client.
struct Member {
    simulation: Simulation,
    cores: Arc<[Arc<ClientCore>]>,
    lock: RedLock,
    client: u8,
    thread: usize,
}

impl Member {
    fn note(&self, text: impl FnOnce() -> String) {
        note(|| format!("thread {}: {}", self.thread, text()));
    }

    /// Wants the lock, and holds it for a while.
    fn acquire_and_release(&self) {
        sleep(one_of(&[0, 0, 1, 7, 60, 300]) * Duration::from_millis(1));
        let begun = SystemClock.now();
        let (limit, result) = match below(6) {
            0 => {
                self.note(|| "tries once".to_owned());
                (ONE_CALL, self.lock.try_lock())
            }
            1..4 => {
                let limit = one_of(&[20, 200, 1500]) * Duration::from_millis(1);
                self.note(|| format!("waits for {limit:?} at most"));
                (limit + END_OF_WAIT, self.waiting(|| self.lock.try_lock_for(limit)))
            }
            _ => {
                self.note(|| "waits".to_owned());
                (Duration::from_secs(600), self.waiting(|| self.lock.lock().map(Some)))
            }
        };
        // Asked outside of the note: a run is the same whether it is recorded or not.
        let servers = if let Ok(Some(guard)) = &result { guard.held_on() } else { 0 };
        self.note(|| match &result {
            Ok(Some(_)) => format!("holds it on {servers} servers"),
            Ok(None) => "does not get it".to_owned(),
            Err(error) => error.to_string(),
        });
        self.check_time("the acquire", begun, limit);
        match result {
            Ok(Some(guard)) => {
                self.hold(&guard, begun);
                self.release(guard);
            }
            Ok(None) => {}
            Err(error) => {
                // Where the time is too short for an answer, there is none.
                let latency = self.simulation.0.servers.latency();
                let is_short = limit < latency * 10 + END_OF_WAIT + SLACK;
                assert!(self.simulation.has_faults() || is_short, "{error}");
            }
        }
    }

    fn waiting<R>(&self, wait: impl FnOnce() -> R) -> R {
        let number = {
            let mut state = self.simulation.state();
            state.drawn += 1;
            let number = state.drawn;
            state.waiting.push((number, self.client, SystemClock.now()));
            number
        };
        let result = wait();
        self.simulation.state().waiting.retain(|waiting| waiting.0 != number);
        result
    }

    /// Is inside for a while.
    fn hold(&self, guard: &RedGuard, asked_at: Instant) {
        let number = {
            let (held, servers) = (guard.held_locks(), guard.held_on());
            let mut state = self.simulation.state();
            state.drawn += 1;
            let (number, client, cores) = (state.drawn, self.client, Arc::clone(&self.cores));
            let holder = LocalHolder::current_thread();
            let inside = Inside { number, client, cores, holder, held, servers, asked_at };
            state.inside.push(inside);
            number
        };
        self.simulation.check();
        let nested = (below(5) == 0).then(|| self.lock.try_lock());
        if let Some(Err(error)) = &nested {
            assert!(self.simulation.has_faults(), "{error}");
        }
        sleep(one_of(&[0, 0, 2, 40, 700, 4500]) * Duration::from_millis(1));
        self.simulation.check();
        assert!(guard.is_held() || self.simulation.has_faults(), "it was lost");
        drop(nested);
        self.simulation.state().inside.retain(|inside| inside.number != number);
    }

    fn release(&self, guard: RedGuard) {
        let begun = SystemClock.now();
        if below(2) == 0 {
            self.note(|| "drops its guard".to_owned());
            drop(guard);
            self.check_time("the drop of a guard", begun, ONE_CALL);
            return;
        }
        self.note(|| "releases it".to_owned());
        let released = guard.unlock();
        self.check_time("the release", begun, ONE_CALL);
        if let Err(error) = released {
            self.note(|| format!("{error}"));
            assert!(self.simulation.has_faults(), "{error}");
            let is_expected = matches!(
                error,
                Error::Lost { .. } | Error::OutcomeUnknown { .. } | Error::Unreachable { .. }
            );
            assert!(is_expected, "{error:?}");
        }
    }

    /// A call ends in its time, beside that in which its process was paused.
    fn check_time(&self, what: &str, begun: Instant, limit: Duration) {
        let took = SystemClock.now().saturating_duration_since(begun);
        let paused = paused(&self.simulation.state().pauses, self.client, begun);
        assert!(
            took <= limit + SLACK + paused,
            "{what} took {took:?}, and {limit:?} was the limit"
        );
    }
}
