//! Clients whose threads want one lock of any kind, what goes wrong around them, and what must
//! hold.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hashed_wheel::Clock;

use crate::client::client::Client;
use crate::core::client_core::{ClientCore, StartMode};
use crate::error::Error;
use crate::hold::hold::Hold;
use crate::locks::guard::{FromRawGuard, Guard, LockGuard};
use crate::locks::lock::Lock;
use crate::model::kind::Kind;
use crate::model::name::{LockName, Prefix};
use crate::model::settings::{QUEUE_POLL_BOUND, Settings};
use crate::ops::operation::WRITE;
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
use crate::testing::simulation::slot_moves::{form_cluster, move_slot};

/// A wait without a limit ends by then all the same.
const UNLIMITED: Duration = Duration::from_secs(600);
/// How long after the end of a restart a client overlooks that its hold is gone.
const LOSS_NOTICED_WITHIN: Duration = Duration::from_millis(2500);
/// How long after the end of a restart a client of a cluster overlooks that its hold is gone. The
/// lock may have been granted through `ASK`, by a node at which the client does not look yet. Then
/// the next renewal finds out, after a third of the lease.
const LOSS_NOTICED_WITHIN_IN_CLUSTER: Duration = Duration::from_millis(3600);
/// How long a waiter that died keeps its place in a fair queue.
const LIVENESS: Duration = Duration::from_secs(30);

/// What the threads of a run want.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Plain,
    /// A plain lock that stays with its client between two uses, for so long.
    Cached(Duration),
    Fair,
    Fenced,
    /// Some threads read, others write.
    ReadWrite,
}

/// All clients, the network, and what the threads do at the moment.
#[derive(Clone)]
struct Simulation(Arc<Shared>);

struct Shared {
    net: Servers,
    state: Mutex<State>,
    wanted: Wanted,
    has_faults: bool,
}

struct State {
    inside: Vec<Inside>,
    waiting: Vec<Waiting>,
    /// Whether the lock is free for a thread that wants it alone, and for a reader, and since when.
    free: Free,
    free_for_readers: Free,
    /// Whether no thread is inside, and since when.
    unused: Free,
    pauses: Vec<Pause>,
    drawn: u64,
    /// The threads that want the lock or have it, and until when others did.
    competing: Vec<Competitor>,
    finished: Vec<(Competitor, Instant)>,
    /// The largest fencing token that a thread was told.
    token: u64,
}

/// A thread of a client, and whether it wants to read.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Competitor {
    client: u8,
    thread: usize,
    reads: bool,
}

/// A thread that was granted the lock and has not begun to release it.
#[derive(Clone)]
struct Inside {
    number: u64,
    client: u8,
    hold: Arc<Hold>,
    /// When its acquire began.
    asked_at: Instant,
}

/// A thread that waits for the lock.
struct Waiting {
    number: u64,
    client: u8,
    reads: bool,
    since: Instant,
}

/// How many attempts of one client's threads were granted, refused, or failed.
#[derive(Default)]
struct AttemptCounts {
    granted: Cell<u64>,
    refused: Cell<u64>,
    failed: Cell<u64>,
}

/// Makes one run, on one server.
pub(crate) fn run(limits: Limits) {
    run_on(|| Servers(vec![Net::new(FIRST_PORT)]), limits, 0);
}

/// Makes one run, in a cluster of two nodes between which the slot of the lock moves.
pub(crate) fn run_in_cluster(limits: Limits) {
    let cluster = || {
        let nets = [FIRST_PORT, FIRST_PORT + 1].map(Net::new);
        form_cluster(&nets);
        Servers(nets.to_vec())
    };
    run_on(cluster, limits, 1 + below(2));
}

fn run_on(servers: impl FnOnce() -> Servers, limits: Limits, moves: usize) {
    let faults = below(limits.faults + 1);
    let now = SystemClock.now();
    let cached = one_of(&[1, 50, 1000, 3000]) * Duration::from_millis(1);
    let wanted = one_of(&[
        Wanted::Plain,
        Wanted::Plain,
        Wanted::Cached(cached),
        Wanted::Cached(cached),
        Wanted::Fair,
        Wanted::Fenced,
        Wanted::ReadWrite,
    ]);
    note(|| format!("the lock is {wanted:?}"));
    let net = servers();
    set_network(Arc::new(net.clone()));
    let state = State {
        inside: Vec::new(),
        waiting: Vec::new(),
        free: Free::since(now),
        free_for_readers: Free::since(now),
        unused: Free::since(now),
        pauses: Vec::new(),
        drawn: 0,
        competing: Vec::new(),
        finished: Vec::new(),
        token: 0,
    };
    let shared = Shared { net, state: Mutex::new(state), wanted, has_faults: faults + moves > 0 };
    let simulation = Simulation(Arc::new(shared));
    let watched = simulation.clone();
    watch(Rc::new(move || watched.check()));
    let disturbed = simulation.clone();
    plan_faults(faults, move || {
        let pause = disturb(&disturbed.0.net.0, limits.clients);
        disturbed.state().pauses.extend(pause);
    });
    let moved = simulation.clone();
    plan_faults(moves, move || move_slot(&moved.0.net.0));
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
    let shared = &simulation.0;
    check_end(&shared.net.0, shared.has_faults, |_| !shared.net.losses().is_empty());
}

impl Simulation {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_cluster(&self) -> bool {
        self.0.net.0.len() > 1
    }

    /// What must hold at any time.
    fn check(&self) {
        let now = SystemClock.now();
        let is_locked = self.0.net.any(|server| server.is_locked(NAME, now));
        let is_written = self.0.net.any(|server| server.is_written(NAME, now));
        let mut state = self.state();
        state.free.update(!is_locked, now);
        state.free_for_readers.update(!is_written, now);
        let is_unused = state.inside.is_empty();
        state.unused.update(is_unused, now);

        // Two threads never hold the lock, unless both read, or the server has lost one of the
        // holds.
        let mut held: Vec<_> =
            state.inside.iter().filter(|inside| inside.hold.is_held(now)).collect();
        held.sort_by_key(|inside| inside.reads());
        if let [first, second, ..] = held.as_slice()
            && !first.reads()
        {
            let asked_at = first.asked_at.min(second.asked_at);
            let excuses = self.0.net.losses();
            let is_excused = excuses.iter().any(|lost| *lost >= asked_at && now <= *lost + LEASE);
            assert!(
                is_excused,
                "two threads hold the lock, of the clients {} and {}",
                first.client, second.client
            );
        }

        // A client whose hold is not on the server any more finds out.
        let restarted = self.0.net.restarted();
        let unnoticed =
            if self.is_cluster() { LOSS_NOTICED_WITHIN_IN_CLUSTER } else { LOSS_NOTICED_WITHIN };
        for inside in held {
            let (Some(restarted), Some(disturbed)) = (restarted, self.0.net.disturbed_until())
            else {
                continue;
            };
            if restarted < inside.asked_at || now <= disturbed + unnoticed {
                continue;
            }
            let owner = inside.hold.owner.to_string();
            let is_its = |field: &str| field.strip_suffix(WRITE).unwrap_or(field) == owner;
            let has_hold = self
                .0
                .net
                .any(|server| server.fields(NAME, now).iter().any(|(field, _)| is_its(field)));
            assert!(has_hold, "client {} does not know that its hold is lost", inside.client);
        }

        // Nobody sleeps while the lock is free.
        let disturbed = self.0.net.disturbed_until();
        for waiting in &state.waiting {
            let free = if waiting.reads { &state.free_for_readers } else { &state.free };
            let idle = free.idle(now, waiting.since, disturbed);
            let longest = self.longest_idle();
            assert!(
                idle <= longest,
                "a thread of client {} has waited for {idle:?} while the lock was free",
                waiting.client
            );
            // Nor while it is cached elsewhere: the holder's client is told. Some time passes from
            // a release until the release is on its way, and from a grant until a thread is inside.
            if matches!(self.0.wanted, Wanted::Cached(_)) && !self.0.has_faults {
                let unused = state.unused.idle(now, waiting.since, disturbed);
                assert!(
                    unused <= longest,
                    "a thread of client {} has waited for {unused:?} while nobody was inside",
                    waiting.client
                );
            }
        }
    }

    /// For how long a waiter may overlook that the lock is free.
    fn longest_idle(&self) -> Duration {
        if self.0.has_faults {
            // It polls. A first try may be lost with the connection. In a queue only the first two
            // poll as often as all do elsewhere.
            let is_fair = self.0.wanted == Wanted::Fair;
            let poll_bound =
                if is_fair { QUEUE_POLL_BOUND } else { Settings::default().poll_bound };
            // A failover may bring waiters back into the queue that have left. They count as dead
            // after their liveness deadline, which all get from their last request.
            let returned = is_fair && !self.0.net.losses().is_empty();
            let liveness = if returned { LIVENESS } else { Duration::ZERO };
            poll_bound + liveness + COMMAND_TIMEOUT * 3
        } else {
            // A message wakes it, and another client may be given the turn before.
            Duration::from_millis(40) + self.0.net.latency() * 20
        }
    }

    /// One process: a client, its threads, and what is left when they are done.
    fn run_client(&self, number: u8, limits: Limits) {
        enter_process(Process(number));
        let url = url_of(FIRST_PORT);
        let url = if self.is_cluster() { url.replace("redis", "redis-cluster") } else { url };
        let core = start(&url, StartMode::Connected);
        let threads = 1 + below(limits.threads);
        let threads: Vec<_> = (0..threads)
            .map(|thread| {
                let member = Member {
                    simulation: self.clone(),
                    core: Arc::clone(&core),
                    client: number,
                    thread,
                    counts: AttemptCounts::default(),
                };
                let rounds = 1 + below(limits.rounds);
                thread::spawn(move || {
                    (0..rounds).for_each(|_| member.acquire_and_release());
                    member.counts
                })
            })
            .collect();
        let counts: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();

        // Nothing is wrong any more, and nothing is left.
        sleep_until_undisturbed(&self.0.net.0);
        let stats = finish(number, &core);
        let sum = |count: fn(&AttemptCounts) -> &Cell<u64>| {
            counts.iter().map(|counts| count(counts).get()).sum::<u64>()
        };
        let counts: [u64; 3] = [
            sum(|counts| &counts.granted),
            sum(|counts| &counts.refused),
            sum(|counts| &counts.failed),
        ];
        let acquires = stats.acquires.total();
        let counted = [acquires.acquired, acquires.timed_out, acquires.failed];
        if self.0.has_faults {
            // A nested guard of a hold that is lost is one more acquire.
            let all = counted.iter().zip(&counts);
            assert!(
                all.clone().all(|(counted, counts)| counted >= counts),
                "{counted:?}, {counts:?}"
            );
        } else {
            assert_eq!(counted, counts, "acquires, refusals and errors");
        }
        note(|| "the client ends".to_owned());
        drop(core);
    }
}

/// One thread of a client.
struct Member {
    simulation: Simulation,
    core: Arc<ClientCore>,
    client: u8,
    thread: usize,
    counts: AttemptCounts,
}

/// How a thread asks for the lock.
#[derive(Clone, Copy)]
enum Ask {
    Once,
    AtMost(Duration),
    Forever,
}

impl Ask {
    fn of<G: Guard>(self, lock: &Lock<G>) -> Result<Option<LockGuard>, Error> {
        let guard = match self {
            Self::Once => lock.try_lock(),
            Self::AtMost(limit) => lock.try_lock_for(limit),
            Self::Forever => lock.lock().map(Some),
        };
        guard.map(|guard| guard.map(|guard| LockGuard::from_raw(guard.into_raw())))
    }
}

impl Inside {
    fn reads(&self) -> bool {
        self.hold.kind == Kind::Read
    }
}

impl Member {
    fn ask(&self, ask: Ask, reads: bool) -> Result<Option<LockGuard>, Error> {
        let client = Client::new(Arc::clone(&self.core), Prefix::new(""));
        match self.simulation.0.wanted {
            Wanted::Plain => ask.of(&client.lock(NAME)),
            Wanted::Cached(time) => ask.of(&client.lock(NAME).with_cache(time)),
            Wanted::Fair => ask.of(&client.fair_lock(NAME)),
            Wanted::Fenced => ask.of(&client.fenced_lock(NAME)),
            Wanted::ReadWrite if reads => ask.of(&client.read_write_lock(NAME).read_lock()),
            Wanted::ReadWrite => ask.of(&client.read_write_lock(NAME).write_lock()),
        }
    }

    fn note(&self, text: impl FnOnce() -> String) {
        note(|| format!("thread {}: {}", self.thread, text()));
    }

    /// Wants the lock, and holds it for a while.
    fn acquire_and_release(&self) {
        sleep(one_of(&[0, 0, 1, 7, 60, 300]) * Duration::from_millis(1));
        let reads = self.simulation.0.wanted == Wanted::ReadWrite && below(3) > 0;
        let own = Competitor { client: self.client, thread: self.thread, reads };
        self.simulation.state().competing.push(own);
        self.acquire_and_release_now(own);
        let mut state = self.simulation.state();
        state.competing.retain(|other| *other != own);
        // Its release may be on its way, also that of an acquire without an answer.
        state.finished.push((own, SystemClock.now() + COMMAND_TIMEOUT));
    }

    fn acquire_and_release_now(&self, own: Competitor) {
        let (begun, token) = (SystemClock.now(), self.simulation.state().token);
        let waits = |ask| self.waiting(own.reads, || self.ask(ask, own.reads));
        let what = if own.reads { " to read" } else { "" };
        let (limit, result) = match below(8) {
            0 => {
                self.note(|| format!("tries once{what}"));
                (COMMAND_TIMEOUT * 2, self.ask(Ask::Once, own.reads))
            }
            1..4 => {
                let limit = one_of(&[1, 20, 200, 1500]) * Duration::from_millis(1);
                self.note(|| format!("waits{what} for {limit:?} at most"));
                (limit + Duration::from_millis(10), waits(Ask::AtMost(limit)))
            }
            _ => {
                self.note(|| format!("waits{what}"));
                (UNLIMITED, waits(Ask::Forever))
            }
        };
        self.note(|| match &result {
            Ok(Some(guard)) => format!("holds it, as {}", guard.owner()),
            Ok(None) => "does not get it".to_owned(),
            Err(error) => error.to_string(),
        });
        self.check_time("the acquire", begun, limit);
        let guard = match result {
            Ok(Some(guard)) => guard,
            Ok(None) => {
                self.counts.refused.set(self.counts.refused.get() + 1);
                self.check_refusal(own, limit, begun);
                return;
            }
            Err(error) => {
                self.counts.failed.set(self.counts.failed.get() + 1);
                // Where the time is too short for an answer, there is none.
                let is_short = limit < self.simulation.0.net.latency() * 10 + SLACK;
                // Nor where a waiter asks for the first time just before its deadline.
                let is_cut_off = matches!(error, Error::OutcomeUnknown { .. })
                    && limit < UNLIMITED
                    && self.simulation.0.net.latency() * 3 > SHORTEST_CALL;
                assert!(self.simulation.0.has_faults || is_short || is_cut_off, "{error}");
                return;
            }
        };
        self.counts.granted.set(self.counts.granted.get() + 1);
        if self.simulation.0.wanted == Wanted::Fenced {
            self.check_token(&guard, token);
        }
        let reading = self.hold(&guard, begun);
        self.release(guard);
        if let Some(reading) = reading {
            // It goes on reading what it has written.
            assert!(self.hold(&reading, begun).is_none(), "a reader has written");
            self.release(reading);
        }
    }

    fn waiting<R>(&self, reads: bool, wait: impl FnOnce() -> R) -> R {
        let number = {
            let mut state = self.simulation.state();
            state.drawn += 1;
            let (number, client) = (state.drawn, self.client);
            state.waiting.push(Waiting { number, client, reads, since: SystemClock.now() });
            number
        };
        let result = wait();
        self.simulation.state().waiting.retain(|waiting| waiting.number != number);
        result
    }

    /// Is inside for a while. May return a guard that reads, if it writes.
    fn hold(&self, guard: &LockGuard, asked_at: Instant) -> Option<LockGuard> {
        let held = self.core.holds.of_name(&LockName::parse(NAME).unwrap());
        let own = held.into_iter().find(|hold| hold.owner.to_string() == guard.owner());
        // Otherwise it is lost already.
        let Some(hold) = own else {
            assert!(self.simulation.0.has_faults, "it was lost at once");
            return None;
        };
        let inside = {
            let mut state = self.simulation.state();
            state.drawn += 1;
            let (number, client) = (state.drawn, self.client);
            // What was handed over was acquired for another thread.
            let asked_at = asked_at.min(hold.granted_at());
            let inside = Inside { number, client, hold, asked_at };
            state.inside.push(inside.clone());
            inside
        };
        self.simulation.check();
        let nested = (below(5) == 0).then(|| self.nest(&inside)).flatten();
        sleep(one_of(&[0, 0, 0, 2, 2, 40, 700, 4500]) * Duration::from_millis(1));
        self.simulation.check();
        assert!(guard.is_held() || self.simulation.0.has_faults, "it was lost");
        let stays = inside.hold.kind == Kind::Write && below(2) == 0;
        let nested = nested.filter(|(_, reads)| stays && *reads).map(|(guard, _)| guard);
        self.simulation.state().inside.retain(|other| other.number != inside.number);
        nested
    }

    /// A guard more, and whether it reads.
    fn nest(&self, inside: &Inside) -> Option<(LockGuard, bool)> {
        let reads = inside.reads() || inside.hold.kind == Kind::Write && below(2) == 0;
        let is_new = reads && !inside.reads();
        let count = match self.ask(Ask::Once, reads) {
            Ok(Some(guard)) => {
                let count = &self.counts.granted;
                count.set(count.get() + u64::from(is_new));
                return Some((guard, reads));
            }
            Ok(None) => &self.counts.refused,
            Err(error) => {
                assert!(self.simulation.0.has_faults, "{error}");
                &self.counts.failed
            }
        };
        count.set(count.get() + u64::from(is_new));
        None
    }

    fn release(&self, guard: LockGuard) {
        let begun = SystemClock.now();
        if below(2) == 0 {
            self.note(|| "drops its guard".to_owned());
            drop(guard);
            self.check_time("the drop of a guard", begun, COMMAND_TIMEOUT * 2);
            return;
        }
        self.note(|| "releases it".to_owned());
        let released = guard.unlock();
        self.check_time("the release", begun, COMMAND_TIMEOUT * 2);
        if let Err(error) = released {
            self.note(|| format!("{error}"));
            assert!(self.simulation.0.has_faults, "{error}");
            let is_expected = match &error {
                Error::Lost { .. } | Error::OutcomeUnknown { .. } | Error::Unreachable { .. } => {
                    true
                }
                // The keys of the lock are on two nodes, or one of them does not exist.
                Error::Refused { code, .. } => code == "TRYAGAIN" && self.simulation.is_cluster(),
                _ => false,
            };
            assert!(is_expected, "{error:?}");
        }
    }

    /// It has a larger token than every hold that was granted before it was asked for.
    fn check_token(&self, guard: &LockGuard, before: u64) {
        let token = guard.raw().token().unwrap_or(0);
        let mut state = self.simulation.state();
        // What the server forgets, its clock replaces, unless that was set too.
        let may_fall = self.simulation.0.net.losses().len() > 1;
        assert!(token > before || may_fall, "the token {token} came after {before}");
        state.token = state.token.max(token);
    }

    /// `None` is true: the server said so since the call began, and another thread was there. Or
    /// this one was: a short wait may end before the release of its last hold is there, or that of
    /// an acquire without an answer.
    fn check_refusal(&self, own: Competitor, limit: Duration, begun: Instant) {
        let refused = self.simulation.0.net.refused(self.client);
        let state = self.simulation.state();
        let is_short = limit < self.simulation.0.net.latency() * 10 + SLACK;
        let is_own = |other: &Competitor| (other.client, other.thread) == (own.client, own.thread);
        let before = state
            .finished
            .iter()
            .filter(|(other, until)| *until >= begun && (is_short || !is_own(other)));
        let now = state.competing.iter().filter(|other| !is_own(other));
        let others = now.chain(before.map(|(other, _)| other));
        let others: Vec<_> = others.filter(|other| !(own.reads && other.reads)).collect();
        // That a thread of this client has the lock, the client knows by itself.
        let is_known = others.iter().any(|other| other.client == self.client);
        assert!(is_known || refused.is_some_and(|at| at >= begun), "the server did not say so");
        let may_be_cached = matches!(self.simulation.0.wanted, Wanted::Cached(_));
        let is_explained = !others.is_empty() || may_be_cached || self.simulation.0.has_faults;
        assert!(is_explained, "nobody else wants it");
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
