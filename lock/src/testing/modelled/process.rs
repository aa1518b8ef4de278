//! Simulated time: one thread at a time runs, as a seed decides, and when none can, time moves to
//! the next event. Only tests with `--cfg wheellock_shuttle` have this.
//!
//! A thread takes no time for what it does. Threads belong to processes, and a process can be
//! paused: then none of its threads runs, and time goes on.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashed_wheel::Clock;
use shuttle::current::{get_label_for_task, me, set_label_for_task};
use shuttle::scheduler::{Schedule, Scheduler, Task, TaskId};

use crate::testing::modelled::sync::{
    SystemClock, let_time_move, move_time_to, next_deadline, number, thread, wake_overdue,
};

/// The process that a thread belongs to. Threads belong to that of the thread that started them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process(pub(crate) u8);

type Event = Box<dyn FnOnce()>;

/// The state of the present run. All of its threads are coroutines of one system thread.
struct Simulation {
    seed: Cell<u64>,
    random: RefCell<fastrand::Rng>,
    /// Of 256 steps, how many may go to another thread.
    switches: Cell<u8>,
    clock: Cell<Option<TaskId>>,
    /// Whether only the clock can go on.
    is_idle: Cell<bool>,
    /// The test has ended: threads that still run are about to.
    is_over: Cell<bool>,
    /// One bit for each process.
    paused: Cell<u64>,
    events: RefCell<BTreeMap<(Instant, u64), Event>>,
    drawn: Cell<u64>,
    /// Runs after each event.
    watch: RefCell<Option<Rc<dyn Fn()>>>,
    began: Cell<Option<Instant>>,
    records: Cell<bool>,
    history: RefCell<String>,
}

std::thread_local! {
    static NOW: Simulation = Simulation {
        seed: Cell::new(0),
        random: RefCell::new(fastrand::Rng::with_seed(0)),
        switches: Cell::new(0),
        clock: Cell::new(None),
        is_idle: Cell::new(false),
        is_over: Cell::new(false),
        paused: Cell::new(0),
        events: RefCell::default(),
        drawn: Cell::new(0),
        watch: RefCell::default(),
        began: Cell::new(None),
        records: Cell::new(false),
        history: RefCell::default(),
    };
}

/// How far time may move while threads could go on, as if the processor were busy elsewhere.
const LONGEST_PREEMPTION: Duration = Duration::from_micros(100);
/// No run takes as long.
const LONGEST: Duration = Duration::from_secs(900);

/// Runs `action` when that time has passed, on the clock's thread. It must not wait.
pub(crate) fn after(delay: Duration, action: impl FnOnce() + 'static) {
    at(SystemClock.now() + delay, action);
}

/// Runs `action` at that instant, on the clock's thread. It must not wait.
pub(crate) fn at(instant: Instant, action: impl FnOnce() + 'static) {
    NOW.with(|now| {
        now.drawn.set(now.drawn.get() + 1);
        now.events.borrow_mut().insert((instant, now.drawn.get()), Box::new(action));
    });
}

/// The present thread, and those that it starts from now on, belong to this process.
pub(crate) fn enter_process(process: Process) {
    set_label_for_task(me(), process);
}

pub(crate) fn process() -> Option<Process> {
    get_label_for_task(me())
}

/// No thread of the process runs for that time.
pub(crate) fn pause(process: Process, duration: Duration) {
    let bit = 1 << process.0;
    NOW.with(|now| now.paused.set(now.paused.get() | bit));
    after(duration, move || NOW.with(|now| now.paused.set(now.paused.get() & !bit)));
}

/// Runs `check` after each event of this run. It must not wait.
pub(crate) fn watch(check: Rc<dyn Fn()>) {
    NOW.with(|now| now.watch.replace(Some(check)));
}

/// Adds a line to the history, which is shown if the run fails.
pub(crate) fn note(text: impl FnOnce() -> String) {
    if NOW.with(|now| now.records.get()) {
        let line = text();
        let began = NOW.with(|now| now.began.get());
        let passed = SystemClock.now().saturating_duration_since(began.unwrap_or_else(origin));
        let who =
            process().map_or_else(String::new, |Process(number)| format!("client {number}: "));
        NOW.with(|now| {
            let mut history = now.history.borrow_mut();
            let millis = passed.as_secs_f64() * 1e3;
            history.push_str(&format!("{millis:>12.3} ms  {who}{line}\n"));
        });
    }
}

fn origin() -> Instant {
    SystemClock.now()
}

/// Runs `test` once for each seed, on simulated time.
/// `SCHEDULES` says how many, `SEED` is the first. A seed that fails is run again, and its
/// history printed. Returns how many there were.
#[expect(clippy::print_stdout, reason = "a failure shows what repeats it")]
pub(crate) fn simulate(runs: usize, test: impl Fn() + Send + Sync + 'static) -> usize {
    let runs = number("SCHEDULES").unwrap_or(runs);
    let first: u64 = number("SEED").unwrap_or(1);
    println!("{runs} runs, SEED={first}");
    let test: Arc<dyn Fn() + Send + Sync> = Arc::new(test);
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(first, runs, &test))) {
        let seed = NOW.with(|now| now.seed.get());
        NOW.with(|now| now.records.set(true));
        let again = catch_unwind(AssertUnwindSafe(|| run(seed, 1, &test)));
        NOW.with(|now| now.records.set(false));
        println!("{}", NOW.with(|now| now.history.take()));
        let nth = seed - first + 1;
        println!("It failed in run {nth}. SEED={seed} SCHEDULES=1 repeats it.");
        if again.is_ok() {
            println!("When it was repeated, it did not fail.");
        }
        resume_unwind(panic);
    }
    runs
}

/// The history of one run.
pub(crate) fn history_of(seed: u64, test: impl Fn() + Send + Sync + 'static) -> String {
    let test: Arc<dyn Fn() + Send + Sync> = Arc::new(test);
    NOW.with(|now| now.records.set(true));
    run(seed, 1, &test);
    NOW.with(|now| now.records.set(false));
    NOW.with(|now| now.history.take())
}

fn run(first: u64, runs: usize, test: &Arc<dyn Fn() + Send + Sync>) {
    let mut config = shuttle::Config::new();
    config.silence_warnings = true;
    config.stack_size = 256 * 1024;
    config.max_steps = shuttle::MaxSteps::FailAfter(3_000_000);
    config.failure_persistence = shuttle::FailurePersistence::None;
    let scheduler = SeededScheduler { next: first, left: runs };
    let test = Arc::clone(test);
    shuttle::Runner::new(scheduler, config).run(move || {
        let_time_move();
        NOW.with(|now| now.began.set(Some(SystemClock.now())));
        let clock = thread::spawn(run_clock);
        NOW.with(|now| now.clock.set(Some(usize::from(clock.thread().id()).into())));
        test();
        NOW.with(|now| now.is_over.set(true));
        clock.join().unwrap();
    });
}

/// The thread that moves time. It is always ready, and runs when no other can.
fn run_clock() {
    let began = SystemClock.now();
    loop {
        if NOW.with(|now| now.is_idle.get()) && wake_overdue() {
            // Time moves once that thread has gone on, unless its process is paused.
            thread::yield_now();
        }
        let now = SystemClock.now();
        let first_event = NOW.with(|now| now.events.borrow().keys().next().map(|(at, _)| *at));
        let next = next_deadline().into_iter().chain(first_event).min();
        let is_idle = NOW.with(|now| now.is_idle.get());
        match next {
            Some(next) if is_idle || next <= now + LONGEST_PREEMPTION => {
                let next = next.max(now);
                move_time_to(next);
                run_event(next);
                let watch = NOW.with(|now| now.watch.borrow().clone());
                watch.iter().for_each(|check| check());
                assert!(next < began + LONGEST, "it does not end");
            }
            Some(_) => {}
            None if is_idle => {
                let is_over = NOW.with(|now| now.is_over.get());
                assert!(is_over, "all threads wait, and nothing will happen any more");
                return;
            }
            None => {}
        }
        thread::yield_now();
    }
}

/// Runs the first event that is due.
fn run_event(now: Instant) {
    let event = NOW.with(|simulation| {
        let mut events = simulation.events.borrow_mut();
        let first = events.first_entry().filter(|first| first.key().0 <= now)?;
        Some(first.remove())
    });
    if let Some(event) = event {
        event();
    }
}

/// One run for each seed.
struct SeededScheduler {
    next: u64,
    left: usize,
}

impl Scheduler for SeededScheduler {
    fn new_execution(&mut self) -> Option<Schedule> {
        let (seed, left) = (self.next, self.left.checked_sub(1)?);
        (self.next, self.left) = (seed + 1, left);
        let mut random = fastrand::Rng::with_seed(seed);
        // What the client draws itself.
        fastrand::seed(random.u64(..));
        NOW.with(|now| {
            now.seed.set(seed);
            now.switches.set([8, 64, 255][random.usize(..3)]);
            now.random.replace(random);
            now.clock.set(None);
            now.is_over.set(false);
            now.paused.set(0);
            now.began.set(None);
            now.history.borrow_mut().clear();
            drop((now.events.take(), now.watch.take()));
        });
        Some(Schedule::new(seed))
    }

    fn next_task(
        &mut self,
        runnable: &[&Task],
        current: Option<TaskId>,
        is_yielding: bool,
    ) -> Option<TaskId> {
        NOW.with(|now| {
            let mut random = now.random.borrow_mut();
            let clock = now.clock.get();
            let may_run = |task: &&&Task| {
                Some(task.id()) != clock && (now.paused.get() == 0 || !is_paused(now, task.id()))
            };
            let ready = runnable.iter().filter(may_run).count();
            let has_clock = clock.is_some_and(|id| runnable.iter().any(|task| task.id() == id));
            now.is_idle.set(ready == 0);
            if ready == 0 {
                // Only a paused thread can unlock what the clock waits for.
                return if has_clock { clock } else { runnable.first().map(|task| task.id()) };
            }
            let switches = random.u8(..) < now.switches.get();
            if has_clock && switches && random.u8(..) < 8 {
                return clock;
            }
            let mut own = runnable.iter().filter(may_run).map(|task| task.id());
            if !switches && !is_yielding && own.any(|id| Some(id) == current) {
                return current;
            }
            let chosen = random.usize(..ready);
            runnable.iter().filter(may_run).nth(chosen).map(|task| task.id())
        })
    }

    fn next_u64(&mut self) -> u64 {
        NOW.with(|now| now.random.borrow_mut().u64(..))
    }
}

fn is_paused(now: &Simulation, task: TaskId) -> bool {
    get_label_for_task(task)
        .is_some_and(|Process(number): Process| now.paused.get() & (1 << number) != 0)
}
