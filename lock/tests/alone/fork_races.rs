//! Forks while another thread is in the middle of an operation: that operation never ends in the
//! child, and the child must not wait for it.
//!
//! One test runs all cases one after the other. The standard library holds a lock while a thread
//! starts or ends, and a child forked at that moment can start no thread. So no thread starts or
//! ends here while another one forks.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::env;
use std::process::{self, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::forked::Child;
use crate::ran_in_a_child;
use crossbeam_channel::{Receiver, Sender, bounded, never};
use hashed_wheel::Parker;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use wheellock::{Client, Clock, Error, LostReason, Memory, SystemClock};
use wheellock_fixture::{Server, TestProcess, wait_until};

/// Longer than anything here takes. A fork that hangs ends after it.
const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn a_fork_at_any_moment_leaves_a_usable_child() {
    if ran_in_a_child(a_fork_at_any_moment_leaves_a_usable_child) {
        return;
    }
    if env::var(ROLE).is_ok() {
        return be_process_1();
    }
    // First: nothing of any kind may have been used in this process before.
    a_fork_during_the_first_use_of_a_kind_leaves_a_child_that_can_use_every_kind();
    a_fork_in_a_child_that_is_making_its_client_leaves_a_grandchild_that_makes_its_own();
    threads_of_a_child_that_come_at_the_same_time_have_one_client();
    the_child_shows_its_own_client();
    a_fork_while_another_thread_asks_a_guard_leaves_a_child_that_can_ask_it();
    a_guard_that_was_asked_before_the_fork_tells_the_child_that_it_holds_nothing();
    #[cfg(target_os = "linux")]
    a_child_that_could_not_start_its_threads_tries_again_at_the_next_call();
    #[cfg(target_os = "linux")]
    process_1_of_a_container_and_its_child_that_is_process_1_of_another_do_not_share_a_hold();
}

/// Runs `first` in a thread, calls `meanwhile` again and again until it is done, and waits for it.
/// The thread has started before the first call and ends after the last.
fn beside<T: Send, U>(
    first: impl FnOnce() -> T + Send,
    most: usize,
    mut meanwhile: impl FnMut() -> U,
) -> (T, Vec<U>) {
    let done = &AtomicBool::new(false);
    thread::scope(|scope| {
        let (begins, begun) = bounded(0);
        let (end, may_end) = bounded::<()>(0);
        let thread = scope.spawn(move || {
            begins.send(()).unwrap();
            let result = first();
            done.store(true, Ordering::Release);
            // Until the other end is dropped.
            may_end.recv().unwrap_err();
            result
        });
        begun.recv().unwrap();
        let mut all = Vec::new();
        while !done.load(Ordering::Acquire) && all.len() < most {
            all.push(meanwhile());
        }
        while !done.load(Ordering::Acquire) {
            thread::yield_now();
        }
        drop(end);
        (thread.join().unwrap(), all)
    })
}

/// A client on a store in memory, whose threads have started.
fn in_memory() -> Client {
    in_memory_by(&Gate::new())
}

fn in_memory_by(gate: &Arc<Gate>) -> Client {
    let memory = Memory::with_clock(Arc::clone(gate) as Arc<dyn Clock>);
    let client = Client::builder().in_memory(&memory).build().unwrap();
    gate.wait_for_its_threads();
    client
}

/// A client of a server, whose threads have started.
fn connected_by(url: &str, gate: &Arc<Gate>) -> Client {
    let client = Client::builder().url(url).clock(Arc::clone(gate) as Arc<dyn Clock>).build();
    gate.wait_for_its_threads();
    client.unwrap()
}

/// Takes and releases something of every kind.
fn use_every_kind(client: &Client) -> Result<(), Error> {
    let name = |kind: &str| format!("{kind}:{}", process::id());
    let hour = Duration::from_secs(3600);
    client.lock(&name("lock")).lock()?.unlock()?;
    client.fair_lock(&name("fair")).lock()?.unlock()?;
    client.fenced_lock(&name("fenced")).lock()?.unlock()?;
    client.simple_lock(&name("simple")).lock()?.unlock()?;
    let both = client.read_write_lock(&name("both"));
    both.read_lock().lock()?.unlock()?;
    both.write_lock().lock()?.unlock()?;
    let semaphore = client.semaphore(&name("semaphore"));
    semaphore.try_set_permits(1)?;
    semaphore.acquire(1)?;
    semaphore.release(1)?;
    let permits = client.expirable_semaphore(&name("permits"));
    permits.try_set_permits(1)?;
    permits.with_lease(hour).acquire()?.release()?;
    let latch = client.count_down_latch(&name("latch"));
    latch.try_set_count(1)?;
    latch.count_down()
}

fn a_fork_during_the_first_use_of_a_kind_leaves_a_child_that_can_use_every_kind() {
    let server = Server::start();
    let gate = Gate::new();
    // Not used in this process: all is new in each child.
    let client = connected_by(&server.url(), &gate);
    for _ in 0..10 {
        let child = Child::doing(2 * LIMIT, || {
            gate.wait_for_the_childs_threads(&client);
            let use_all = || use_every_kind(&client).unwrap();
            let ((), forks) = beside(use_all, 8, || Child::doing(LIMIT, use_all));
            forks.into_iter().for_each(Child::wait);
        });
        child.wait();
    }
}

/// The system's clock of one client, at which the next thread that reads it can be made to wait.
#[derive(Debug)]
struct Gate {
    /// How many of the client's two threads are so far that they sleep.
    asleep: [AtomicBool; 2],
    closed: AtomicBool,
    came: (Sender<()>, Receiver<()>),
    goes_on: (Sender<()>, Receiver<()>),
}

impl Gate {
    fn new() -> Arc<Self> {
        let (asleep, closed) = ([const { AtomicBool::new(false) }; 2], AtomicBool::new(false));
        Arc::new(Self { asleep, closed, came: bounded(1), goes_on: bounded(1) })
    }

    fn wait_for_its_threads(&self) {
        let asleep = || self.asleep.iter().all(|asleep| asleep.load(Ordering::SeqCst));
        wait_until("the client's threads have started", LIMIT, asleep);
    }

    /// Makes the client of this child, and waits for its threads.
    fn wait_for_the_childs_threads(&self, client: &Client) {
        self.asleep.iter().for_each(|asleep| asleep.store(false, Ordering::SeqCst));
        assert_eq!(client.id().len(), 36);
        self.wait_for_its_threads();
    }
}

impl Clock for Gate {
    fn now(&self) -> Instant {
        if self.closed.swap(false, Ordering::SeqCst) {
            self.came.0.send(()).unwrap();
            self.goes_on.1.recv().unwrap();
        }
        SystemClock.now()
    }

    fn park(&self, parker: &Parker, deadline: Option<Instant>, interrupt: &Receiver<()>) {
        let threads = ["lock-ticker", "lock-renewal"];
        if let Some(place) = threads.iter().position(|name| thread::current().name() == Some(name))
        {
            self.asleep[place].store(true, Ordering::SeqCst);
        }
        SystemClock.park(parker, deadline, interrupt);
    }

    fn remaining(&self, deadline: Instant) -> Duration {
        SystemClock.remaining(deadline)
    }
}

fn a_fork_in_a_child_that_is_making_its_client_leaves_a_grandchild_that_makes_its_own() {
    let gate = Gate::new();
    let client = in_memory_by(&gate);
    let parents = client.id();
    let child = Child::doing(2 * LIMIT, || {
        gate.closed.store(true, Ordering::SeqCst);
        let mut forked = false;
        let (own, _) = beside(
            || client.id(),
            1,
            || {
                gate.came.1.recv_timeout(LIMIT).unwrap();
                // The other thread is in the middle of making the client of this process.
                let grandchild = Child::doing(LIMIT, || {
                    let own = client.id();
                    assert_ne!(own, parents);
                    let guard = client.lock("a").lock().unwrap();
                    assert!(guard.is_held() && guard.owner().starts_with(&own));
                    assert_eq!(client.id(), own);
                });
                grandchild.wait();
                forked = true;
                gate.goes_on.0.send(()).unwrap();
            },
        );
        assert!(forked);
        assert_ne!(own, parents);
        assert_eq!(client.id(), own);
    });
    child.wait();
}

fn threads_of_a_child_that_come_at_the_same_time_have_one_client() {
    let client = in_memory();
    for _ in 0..10 {
        let child = Child::doing(LIMIT, || {
            thread::scope(|scope| {
                let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| client.id())).collect();
                let own = client.id();
                assert!(threads.into_iter().all(|thread| thread.join().unwrap() == own));
            });
        });
        child.wait();
    }
}

/// Until this is undone no thread can be started in this process: there is no memory for its stack.
fn refuse_threads() -> Rlimit {
    let before = getrlimit(Resource::As);
    let sizes = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = sizes.split(' ').next().unwrap().parse().unwrap();
    // Enough for what is small.
    let room = pages * rustix::param::page_size() as u64 + (1 << 20);
    setrlimit(Resource::As, Rlimit { current: Some(room), ..before }).unwrap();
    // The stacks of threads that have ended are used again.
    let rest = || SystemClock.park(&Parker::new(), None, &never());
    while thread::Builder::new().spawn(rest).is_ok() {}
    before
}

fn the_child_shows_its_own_client() {
    let client = in_memory();
    let (id, shown) = (client.id(), format!("{client:?}"));
    assert!(shown.contains(&id), "{shown}");
    let child = Child::doing(LIMIT, || {
        let in_child = format!("{client:?}");
        assert_ne!(client.id(), id);
        assert_eq!(in_child, shown.replace(&id, &client.id()));
    });
    child.wait();
    assert_eq!(format!("{client:?}"), shown);
}

#[cfg(target_os = "linux")]
fn a_child_that_could_not_start_its_threads_tries_again_at_the_next_call() {
    let client = in_memory();
    let child = Child::doing(LIMIT, || {
        let before = refuse_threads();
        let refused = client.lock("a").try_lock().map(|_| ());
        assert!(refused.clone().is_err_and(|error| error.is_retryable()), "{refused:?}");
        assert!(matches!(refused, Err(Error::Thread { .. })), "{refused:?}");
        setrlimit(Resource::As, before).unwrap();
        let guard = client.lock("a").try_lock().unwrap().unwrap();
        assert!(guard.is_held());
    });
    child.wait();
}

fn a_guard_that_was_asked_before_the_fork_tells_the_child_that_it_holds_nothing() {
    let client = in_memory();
    let others = [in_memory(), in_memory()];
    let clients = [client.clone(), others[0].clone(), others[1].clone()];
    let guard = client.lock("a").lock().unwrap();
    let multi = client.multi_lock(&[&client.lock("b"), &client.lock("c")]).lock().unwrap();
    let red = Client::red_lock(&clients, "red").lock().unwrap();
    let semaphore = client.expirable_semaphore("permits");
    semaphore.try_set_permits(1).unwrap();
    let permit = semaphore.watched().acquire().unwrap();
    let told =
        || [guard.lost(), multi.lost(), red.lost(), permit.lost().unwrap()].map(Receiver::clone);
    let parents = told();
    let owner = guard.owner();
    let look = || {
        for told in told() {
            assert_eq!(told.recv_timeout(LIMIT / 4), Ok(LostReason::Forked));
        }
        // Each guard's channel gets one message, and stays the same.
        assert!(told().iter().all(|told| told.try_recv().is_err()));
        assert_eq!(guard.owner(), owner);
    };
    let child = Child::doing(2 * LIMIT, || {
        look();
        Child::doing(LIMIT, look).wait();
    });
    child.wait();
    assert!(parents.iter().all(|told| told.try_recv().is_err()));
}

fn a_fork_while_another_thread_asks_a_guard_leaves_a_child_that_can_ask_it() {
    let client = in_memory();
    let locks: Vec<_> = (0..500).map(|number| client.lock(&number.to_string())).collect();
    let locks: Vec<_> = locks.iter().map(|lock| lock as &dyn wheellock::AnyLock).collect();
    for _ in 0..10 {
        let guard = client.multi_lock(&locks).with_owner("both").lock().unwrap();
        let guard = &guard;
        let ask = || assert!(guard.lost().is_empty());
        let ((), forks) = beside(ask, 3, || {
            Child::doing(LIMIT, || {
                assert_eq!(guard.lost().recv_timeout(LIMIT / 2), Ok(LostReason::Forked));
            })
        });
        forks.into_iter().for_each(Child::wait);
    }
}

// Namespaces of process ids.

const ROLE: &str = "WHEELLOCK_TEST_ROLE";

/// What makes its program process 1 of a new namespace.
fn in_a_new_namespace() -> Command {
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--pid", "--fork", "--kill-child"]);
    command
}

#[expect(clippy::print_stdout, reason = "says what the environment cannot do")]
fn process_1_of_a_container_and_its_child_that_is_process_1_of_another_do_not_share_a_hold() {
    let possible = in_a_new_namespace().arg("true").output();
    if !possible.as_ref().is_ok_and(|output| output.status.success()) {
        println!("not run: no namespace of process ids can be made here: {possible:?}");
        return;
    }
    let server = Server::start();
    let mut command = in_a_new_namespace();
    command.arg(env::current_exe().unwrap());
    // More than one test thread: with one, the harness would write the test's name in front of the
    // first line.
    command.args([
        "--exact",
        "fork_races::a_fork_at_any_moment_leaves_a_usable_child",
        "--nocapture",
        "--test-threads=2",
    ]);
    command.env(ROLE, "process 1").env("SERVER", server.url());
    let mut first = TestProcess::spawn(&mut command);
    first.wait_for_line("each is process 1", LIMIT);
    assert_eq!(first.wait_for_exit(LIMIT), 0, "{}", first.output());
}

/// In the process that the test above has started.
#[expect(clippy::print_stdout, reason = "a child process tells by printing")]
fn be_process_1() {
    if env::var(ROLE).is_err() {
        return;
    }
    let client = connected_by(&env::var("SERVER").unwrap(), &Gate::new());
    let clients = [client.clone(), in_memory(), in_memory()];
    let guard = client.lock("a").lock().unwrap();
    let red = Client::red_lock(&clients, "red").lock().unwrap();
    let id = client.id();
    assert_eq!(process::id(), 1);
    #[expect(deprecated, reason = "a namespace of process ids touches no file descriptor")]
    rustix::thread::unshare(rustix::thread::UnshareFlags::NEWPID).unwrap();
    let child = Child::doing(LIMIT, || {
        assert_eq!(process::id(), 1);
        assert!(!guard.is_held() && !red.is_held(), "two holders");
        assert_ne!(client.id(), id);
        assert!(client.lock("a").try_lock().unwrap().is_none());
        println!("each is process 1");
    });
    child.wait();
    assert!(guard.is_held() && red.is_held());
}
