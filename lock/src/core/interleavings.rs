//! Random orders of the steps in which several threads acquire, hand over and release one lock.
//!
//! The threads are simulated: each step is one uninterrupted action of a thread, mostly under one
//! lock. So every possible order of real threads' steps can occur here, with a seed that repeats
//! the order. In every order, two threads never hold the lock, and no thread waits for a poll.

use crate::model::sync::thread::{self, ThreadId};
use std::sync::Arc;
use std::time::Duration;

use hashed_wheel::{Clock, ManualClock};
use proptest::prelude::*;

use crate::core::client_core::{ClientCore, StartMode, Target};
use crate::error::{Error, LostReason};
use crate::events::callbacks::Callbacks;
use crate::hold::hold::Hold;
use crate::model::kind::Kind;
use crate::model::name::LockName;
use crate::model::owner::LocalHolder;
use crate::model::settings::{HandOver, Settings};
use crate::model::sync::is_unparked;
use crate::model::wait::WaitSpec;
use crate::model::wait_mode::{WaitMode, WakeHint};
use crate::ops::Acquired;
use crate::ops::by_kind::HoldId;

use crate::core::tries::WaitParameters;
use crate::core::wait::{QueueVisit, Waiter};
use crate::store::memory::Memory;
use crate::store::retry::RetryLimit;
use crate::waits::queue::{Step, Ticket, Wakes};
use crate::waits::registry::Recipient;

const THREADS: usize = 5;
const STEPS: usize = 400;
/// All idle time together is below the poll bound.
const PAUSE: Duration = Duration::from_millis(9);

/// The next step of a simulated thread.
enum ThreadStage<'a> {
    Idle,
    Waits(Waiter<'a>),
    /// The thread sends an acquire.
    Asks(Waiter<'a>),
    /// The thread reports the answer.
    TryAnswer(Waiter<'a>, Option<Arc<Hold>>),
    /// The thread has reported a grant.
    Granted(Waiter<'a>, Arc<Hold>),
    Holds(Arc<Hold>),
    /// The thread has counted its guard off.
    Closes(Arc<Hold>),
    /// The hold is over in the process.
    Ends(Arc<Hold>),
    /// The thread sends the release.
    Releases(Arc<Hold>, bool),
    /// The thread reports the answer.
    Released(Arc<Hold>, Option<u32>),
}

/// A wait ended only by a grant.
fn without_limit<'a>(
    name: &'a LockName,
    channel: &'a Arc<str>,
    mode: WaitMode,
) -> WaitParameters<'a> {
    let wait = WaitSpec { waits: true, deadline: None, cancel: None };
    let retries = RetryLimit::UntilAnswered;
    WaitParameters { name, channel, mode, wait, retries, recipient: None, named: None, need: None }
}

struct Interleaving<'a> {
    core: &'a ClientCore,
    memory: &'a Memory,
    clock: &'a ManualClock,
    name: &'a LockName,
    channel: &'a Arc<str>,
    ids: Vec<ThreadId>,
    random: fastrand::Rng,
    /// Whether anything happened since the flag was cleared.
    progress: bool,
}

impl<'a> Interleaving<'a> {
    fn join(&self, thread: usize) -> Waiter<'a> {
        let watchdog = &self.core.watchdog;
        let recipient = Recipient { name: self.name, thread: Some(self.ids[thread]), watchdog };
        let request = WaitParameters {
            recipient: Some(recipient),
            ..without_limit(self.name, self.channel, WaitMode::Exclusive)
        };
        self.core.waits.join(&self.core.store, request)
    }

    fn ask(&self, thread: usize) -> Option<Arc<Hold>> {
        ask(self.core, self.name, LocalHolder::Thread(self.ids[thread]))
    }

    /// One step of one thread. `may_begin`: an idle thread may join, and a waiting thread may
    /// leave.
    fn step(&mut self, thread: usize, stage: ThreadStage<'a>, may_begin: bool) -> ThreadStage<'a> {
        let core = self.core;
        let now = self.clock.now();
        self.progress = true;
        match stage {
            ThreadStage::Idle if may_begin => ThreadStage::Waits(self.join(thread)),
            // A cancellation: the thread leaves, even with a hold given meanwhile.
            ThreadStage::Waits(_) if may_begin && self.random.u8(..) < 8 => ThreadStage::Idle,
            ThreadStage::Waits(mut waiter) => match waiter.visit_queue(now) {
                QueueVisit::Step(Step::Try(wakes)) => {
                    waiter.trying = Some((wakes, now));
                    ThreadStage::Asks(waiter)
                }
                QueueVisit::Step(Step::Sleep(_)) => {
                    if waiter.parker.is_none() {
                        waiter.set_parker();
                    } else {
                        self.progress = false;
                    }
                    ThreadStage::Waits(waiter)
                }
                QueueVisit::HandedOver(hold) => ThreadStage::Holds(hold),
            },
            ThreadStage::Asks(waiter) => {
                let granted = self.ask(thread);
                ThreadStage::TryAnswer(waiter, granted)
            }
            ThreadStage::TryAnswer(mut waiter, Some(hold)) => {
                waiter.granted(WakeHint::Wait);
                ThreadStage::Granted(waiter, hold)
            }
            ThreadStage::Granted(waiter, hold) => {
                drop(waiter);
                ThreadStage::Holds(hold)
            }
            ThreadStage::TryAnswer(mut waiter, None) => {
                waiter.refused(None, WakeHint::Wait);
                ThreadStage::Waits(waiter)
            }
            ThreadStage::Holds(hold) => {
                if core.waits.give_to_first_waiter(&hold, core.now()) {
                    return ThreadStage::Idle;
                }
                hold.remove_guard(true);
                ThreadStage::Closes(hold)
            }
            // An error: the hold was lost before.
            ThreadStage::Closes(hold) => {
                core.watchdog.forget(&hold).map_or(ThreadStage::Idle, |()| ThreadStage::Ends(hold))
            }
            ThreadStage::Ends(hold) => {
                let waited_for = core.waits.release_begins(&core.store, &hold);
                ThreadStage::Releases(hold, waited_for)
            }
            ThreadStage::Releases(hold, waited_for) => {
                let answer = core.call(&hold.id().release()).unwrap();
                if waited_for {
                    ThreadStage::Released(hold, answer.reply.receivers)
                } else {
                    ThreadStage::Idle
                }
            }
            ThreadStage::Released(hold, receivers) => {
                core.waits.release_ends(&core.store, &hold, receivers);
                ThreadStage::Idle
            }
            ThreadStage::Idle => {
                self.progress = false;
                ThreadStage::Idle
            }
        }
    }

    /// Deletes the lock of a holder, and has a renewal find the loss.
    fn lose(&self) {
        let held = self.core.holds.of_name(self.name);
        if let Some(hold) = held.iter().find(|hold| hold.is_held(self.clock.now())) {
            self.memory.delete(self.name.as_str());
            self.core.watchdog.lose(hold, LostReason::Deleted);
        }
    }
}

/// Sends an acquire to the server, and makes the hold.
fn ask(core: &ClientCore, name: &LockName, holder: LocalHolder) -> Option<Arc<Hold>> {
    let lease = core.settings.watchdog_lease;
    let owner = core.id.next_owner();
    let id = HoldId { kind: Kind::Reentrant, name: name.clone(), owner };
    let answer = core.call(&id.acquire(lease, true, None)).unwrap();
    if let Acquired::Busy(_) = answer.reply {
        return None;
    }
    let hold = Arc::new(Hold::new(id, holder, lease, true, answer.sent_at, None));
    core.holds.insert(&hold);
    core.watchdog.watch(&hold, answer.sent_at);
    Some(hold)
}

fn is_held(stage: &ThreadStage<'_>, clock: &ManualClock) -> bool {
    matches!(stage, ThreadStage::Holds(hold) | ThreadStage::Granted(_, hold) if hold.is_held(clock.now()))
}

fn start(clock: &ManualClock, memory: &Memory, hand_over: HandOver) -> ClientCore {
    let settings = Settings { hand_over, ..Settings::default() };
    let (target, clock) = (Target::Memory(memory.clone()), Arc::new(clock.clone()));
    ClientCore::start(target, clock, settings, Callbacks::default(), StartMode::Connected).unwrap()
}

fn run(seed: u64, hand_over: HandOver) -> Result<u64, TestCaseError> {
    let clock = ManualClock::new();
    let memory = Memory::with_clock(Arc::new(clock.clone()));
    let core = start(&clock, &memory, hand_over);
    let name = LockName::parse("a").unwrap();
    let channel = name.channel();
    let id = |_| thread::Builder::new().spawn(|| thread::current().id()).unwrap().join().unwrap();
    let mut interleaving = Interleaving {
        core: &core,
        memory: &memory,
        clock: &clock,
        name: &name,
        channel: &channel,
        ids: (0..THREADS).map(id).collect(),
        random: fastrand::Rng::with_seed(seed),
        progress: true,
    };
    let mut stages: Vec<ThreadStage<'_>> = (0..THREADS).map(|_| ThreadStage::Idle).collect();
    // 1. Steps in any order, and losses and pauses of the process between them.
    for _ in 0..STEPS {
        match interleaving.random.u8(..) {
            0..4 => interleaving.lose(),
            4..6 => clock.jump(Duration::from_secs(31)),
            6..16 => clock.jump(Duration::from_millis(1)),
            _ => {
                let thread = interleaving.random.usize(..THREADS);
                let stage = std::mem::replace(&mut stages[thread], ThreadStage::Idle);
                stages[thread] = interleaving.step(thread, stage, true);
            }
        }
        let holders = stages.iter().filter(|stage| is_held(stage, &clock)).count();
        prop_assert!(holders <= 1, "{holders} threads hold the lock");
    }
    // 2. No thread joins any more. All waiting threads get the lock, without a poll.
    let mut idle = 0;
    while !stages.iter().all(|stage| matches!(stage, ThreadStage::Idle)) {
        let mut progress = false;
        for (thread, place) in stages.iter_mut().enumerate() {
            let stage = std::mem::replace(place, ThreadStage::Idle);
            *place = interleaving.step(thread, stage, false);
            progress |= interleaving.progress;
        }
        idle = if progress { 0 } else { idle + 1 };
        prop_assert!(idle < 20, "all wait for a poll");
        if !progress {
            clock.advance(PAUSE);
        }
    }
    prop_assert_eq!(core.waits.waiters(), 0);
    prop_assert!(core.waits.channels().by_name.is_empty(), "a channel was left behind");
    Ok(core.waits.hand_overs())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn two_threads_never_hold_it_and_nobody_is_forgotten(seed: u64, timed: bool) {
        let budget = HandOver::Within(Duration::from_millis(5));
        run(seed, if timed { budget } else { HandOver::Times(5) })?;
    }
}

#[test]
fn holds_are_handed_over_in_these_orders() {
    let total: u64 = (0..20).map(|seed| run(seed, HandOver::Times(5)).unwrap()).sum();
    assert!(total > 100, "{total}");
}

/// Whether a new hold is handed over to each waiter in turn, after each of the pauses.
fn handed_over(hand_over: HandOver, pauses: &[Duration]) -> Vec<bool> {
    let clock = ManualClock::new();
    let memory = Memory::with_clock(Arc::new(clock.clone()));
    let core = start(&clock, &memory, hand_over);
    let name = LockName::parse("a").unwrap();
    let channel = name.channel();
    let interleaving = Interleaving {
        core: &core,
        memory: &memory,
        clock: &clock,
        name: &name,
        channel: &channel,
        ids: vec![thread::current().id()],
        random: fastrand::Rng::with_seed(0),
        progress: true,
    };
    let hold = interleaving.ask(0).unwrap();
    let hand_over = |pause: &Duration| {
        clock.jump(*pause);
        let mut waiter = interleaving.join(0);
        let is_given = core.waits.give_to_first_waiter(&hold, clock.now());
        let look = waiter.visit_queue(clock.now());
        assert_eq!(matches!(look, QueueVisit::HandedOver(_)), is_given);
        is_given
    };
    pauses.iter().map(hand_over).collect()
}

#[test]
fn a_hold_is_handed_over_until_its_budget_is_used_up() {
    let millis = [0, 4, 1].map(Duration::from_millis);
    let within = Settings::default().hand_over;
    assert_eq!(handed_over(within, &millis), [true, true, false]);
    let counted = handed_over(within.counted(), &[Duration::ZERO; 102]);
    assert_eq!(counted.iter().position(|is_given| !is_given), Some(100));
}

/// A client in memory whose steps are taken by a test.
struct SteppedClient {
    core: ClientCore,
    clock: ManualClock,
    name: LockName,
    channel: Arc<str>,
}

impl SteppedClient {
    fn new(hand_over: HandOver) -> Self {
        let clock = ManualClock::new();
        let core = start(&clock, &Memory::with_clock(Arc::new(clock.clone())), hand_over);
        let name = LockName::parse("a").unwrap();
        Self { core, clock, channel: name.channel(), name }
    }

    fn join(&self, mode: WaitMode) -> Waiter<'_> {
        let watchdog = &self.core.watchdog;
        let recipient = Recipient { name: &self.name, thread: None, watchdog };
        let request = WaitParameters {
            recipient: (mode == WaitMode::Exclusive).then_some(recipient),
            ..without_limit(&self.name, &self.channel, mode)
        };
        self.core.waits.join(&self.core.store, request)
    }

    /// Begins a try, if the waiter may try. Returns the wakes of the try.
    fn begin_try(&self, waiter: &mut Waiter<'_>) -> Option<Wakes> {
        let now = self.clock.now();
        let QueueVisit::Step(Step::Try(wakes)) = waiter.visit_queue(now) else { return None };
        waiter.trying = Some((wakes, now));
        Some(wakes)
    }
}

#[test]
fn first_waiter_tries_at_once_while_another_queue_uses_channel() {
    let client = SteppedClient::new(HandOver::Off);
    // The reader has sent a try without an answer yet: the channel is not subscribed for the
    // reader.
    let _reader = client.join(WaitMode::Shared);
    for _ in 0..2 {
        let mut writer = client.join(WaitMode::Exclusive);
        let mut tries = 0;
        while client.begin_try(&mut writer).is_some() {
            tries += 1;
            writer.refused(None, WakeHint::Wait);
        }
        assert!(tries > 0, "it waits for a message, or for the next poll");
    }
}

#[test]
fn a_waiter_that_comes_alone_is_in_its_queue_for_all_that_look() {
    let client = SteppedClient::new(HandOver::Off);
    let begin = || {
        let mut lone = client.join(WaitMode::Exclusive);
        assert_eq!(client.begin_try(&mut lone), Some(Wakes::FIRST));
        lone
    };
    let queued = || {
        let mut channels = client.core.waits.channels();
        let channel = channels.by_name.get_mut(&client.channel);
        channel.map(|channel| channel.of(false).exclusive.queue.tickets().collect::<Vec<_>>())
    };
    // The waiter tries, and is granted before or after another thread inspects the queues.
    begin().granted(WakeHint::Wait);
    assert_eq!(queued(), None);
    let mut lone = begin();
    assert_eq!(queued(), Some(vec![Ticket::FIRST]));
    lone.granted(WakeHint::Wait);
    drop(lone);
    assert_eq!(queued(), None);
    // The waiter gets no answer.
    drop(begin());
    assert_eq!(queued(), None);
    // The waiter is refused, and stays.
    let mut lone = begin();
    lone.refused(None, WakeHint::Wait);
    assert_eq!(queued(), Some(vec![Ticket::FIRST]));
    drop(lone);
    assert_eq!(queued(), None);
}

#[test]
fn an_answer_ends_what_is_known_of_an_earlier_failure() {
    let client = SteppedClient::new(HandOver::Off);
    let (mut first, behind) = (client.join(WaitMode::Exclusive), client.join(WaitMode::Exclusive));
    assert!(client.begin_try(&mut first).is_some());
    drop(first.failed(Error::Shutdown));
    assert!(behind.failure().is_some());
    first.refused(None, WakeHint::Wait);
    assert!(behind.failure().is_none());
}

#[test]
fn a_failure_is_forgotten_with_the_waiters_that_it_concerned() {
    let client = SteppedClient::new(HandOver::Off);
    // The channel stays for a reader.
    let _reader = client.join(WaitMode::Shared);
    let writer = client.join(WaitMode::Exclusive);
    drop(writer.failed(Error::Shutdown));
    assert!(writer.failure().is_some());
    drop(writer);
    assert!(client.join(WaitMode::Exclusive).failure().is_none());
}

/// Whether the waiter, which sleeps, was woken.
fn is_woken(waiter: &Waiter<'_>) -> bool {
    waiter.parker.as_ref().is_some_and(is_unparked)
}

#[test]
fn granted_waiter_wakes_the_next_which_then_tries() {
    let client = SteppedClient::new(HandOver::Off);
    let [mut first, mut second] = [(); 2].map(|()| client.join(WaitMode::Exclusive));
    assert!(client.begin_try(&mut first).is_some());
    assert!(client.begin_try(&mut second).is_none());
    second.set_parker();
    first.granted(WakeHint::Wait);
    drop(first);
    // Nobody has subscribed: no message will wake it.
    assert!(is_woken(&second) && client.begin_try(&mut second).is_some());
}

#[test]
fn leader_after_a_hand_over_wakes_its_deputy_when_it_tries() {
    let client = SteppedClient::new(HandOver::Times(5));
    let now = client.clock.now();
    let hold = ask(&client.core, &client.name, LocalHolder::Guard).unwrap();
    let [mut first, mut leader, deputy] = [(); 3].map(|()| client.join(WaitMode::Exclusive));
    assert!(client.core.waits.give_to_first_waiter(&hold, now));
    assert!(matches!(first.visit_queue(now), QueueVisit::HandedOver(_)));
    drop(first);
    client.core.watchdog.lose(&hold, LostReason::Deleted);
    assert!(is_woken(&leader) && !is_woken(&deputy));
    assert!(client.begin_try(&mut leader).is_some());
    assert!(is_woken(&deputy), "it watches the call");
}
