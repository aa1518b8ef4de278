//! A process with clients: eight threads that count under sixteen locks until they are stopped.

use std::env;
use std::process::Command;
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use wheellock::{Client, Error, FencedGuard};
use wheellock_fixture::{TestProcess, wait_until};

use crate::plan::{millis, rng_of};
use crate::register::Answer;
use crate::register_server::{RegisterServer, Visitor};
use crate::servers::{IN_USE, Kind, LOCKS, Servers, THREADS, kind_of, name_of};
use crate::times::{LEASE, LIMIT, LONG_WORK, TIMEOUT, WAIT, let_pass};

/// Says which of the processes a child is to be. Without it the test of that role does nothing.
pub(crate) const ROLE: &str = "WHEELLOCK_SOAK_ROLE";

/// Starts a process, which goes by this name.
pub(crate) fn start(
    name: &str,
    seed: u64,
    servers: &Servers,
    server: &RegisterServer,
) -> TestProcess {
    let mut command = Command::new(env::current_exe().unwrap());
    // More than one test thread: with one, the harness would write the test's name in front of the
    // first line.
    command.args(["--exact", "child_role", "--nocapture", "--test-threads=2"]);
    command.env(ROLE, name).env(SEED, seed.to_string()).env(REGISTER, server.address.to_string());
    for kind in IN_USE {
        command.env(variable(*kind), servers.url(*kind));
    }
    TestProcess::spawn(&mut command)
}

const SEED: &str = "WHEELLOCK_SOAK_SEED";
const REGISTER: &str = "WHEELLOCK_SOAK_REGISTER";

fn variable(kind: Kind) -> String {
    format!("WHEELLOCK_SOAK_{kind:?}")
}

/// The names by which the threads of a process go.
pub(crate) fn threads_of(process: &str) -> impl Iterator<Item = String> {
    (0..THREADS).map(move |thread| format!("{process}.{thread}"))
}

/// What such a process does.
pub(crate) fn live(name: &str) {
    let seed: u64 = env::var(SEED).unwrap().parse().unwrap();
    let address = env::var(REGISTER).unwrap();
    let clients: Vec<_> = IN_USE.iter().map(|kind| (*kind, client(*kind))).collect();
    thread::scope(|scope| {
        for (thread, row) in threads_of(name).zip(0..) {
            let (clients, address) = (&clients, &address);
            scope.spawn(move || {
                let visitor = Visitor::new(address, thread);
                Worker { clients, visitor, rng: rng_of(seed, row) }.work();
            });
        }
    });
    let mut visitor = Visitor::new(&address, format!("{name}.end"));
    for (kind, client) in &clients {
        let stats = client.stats();
        if (stats.held, stats.waiters, stats.panics, stats.callback_panics) != (0, 0, 0, 0) {
            visitor.complain(&format!("{kind:?} at the end: {stats:?}"));
        }
        client.shutdown(LIMIT);
    }
}

/// A client connects when it is built, possibly during a fault.
fn client(kind: Kind) -> Client {
    let url = env::var(variable(kind)).unwrap();
    let mut built = None;
    wait_until("the client is built", LIMIT, || {
        let builder = Client::builder().url(&url).watchdog_lease(LEASE).command_timeout(TIMEOUT);
        match builder.build() {
            Ok(client) => built = Some(client),
            Err(error) => assert!(error.is_retryable(), "{kind:?}: {error}"),
        }
        built.is_some()
    });
    built.unwrap()
}

struct Worker<'a> {
    clients: &'a [(Kind, Client)],
    visitor: Visitor,
    rng: Rng,
}

impl Worker<'_> {
    fn work(&mut self) {
        while self.visitor.sign() {
            let lock = self.rng.usize(..LOCKS);
            match self.take(lock) {
                Ok(Some(guard)) => self.hold(lock, guard),
                Ok(None) => self.visitor.in_vain(),
                Err(error) => {
                    self.look_at("an acquire", &error);
                    self.visitor.in_vain();
                }
            }
            let_pass(millis(&mut self.rng, 0, 10));
        }
    }

    fn take(&mut self, lock: usize) -> Result<Option<FencedGuard>, Error> {
        let kind = kind_of(lock);
        let (_, client) = self.clients.iter().find(|(known, _)| *known == kind).unwrap();
        let fenced = client.fenced_lock(&name_of(lock));
        let fenced = if self.rng.u32(..4) == 0 { fenced.with_lease(LEASE / 2) } else { fenced };
        if self.rng.u32(..8) == 0 { fenced.try_lock() } else { fenced.try_lock_for(WAIT) }
    }

    /// Counts up a few times, at times for longer than the lease lasts, and without looking whether
    /// the lock is held.
    fn hold(&mut self, lock: usize, guard: FencedGuard) {
        for _ in 0..=self.rng.usize(..3) {
            let entered = self.visitor.enter(lock, guard.token(), guard.owner());
            let Answer::Value(old) = self.believed(lock, &guard, entered) else { break };
            let_pass(self.work_time());
            let written = self.visitor.write(lock, guard.token(), guard.owner(), old);
            if self.believed(lock, &guard, written) == Answer::Stale {
                break;
            }
        }
        if self.rng.u32(..4) == 0 {
            drop(guard);
        } else if let Err(error) = guard.unlock() {
            self.look_at("a release", &error);
        }
    }

    /// A holder refused for an old token must have a lost hold: another one has the lock.
    fn believed(&mut self, lock: usize, guard: &FencedGuard, answer: Answer) -> Answer {
        if answer == Answer::Stale && guard.is_held() && kind_of(lock).keeps_its_locks() {
            self.visitor.complain(&format!("{guard:?} is held twice"));
        }
        answer
    }

    fn work_time(&mut self) -> Duration {
        if self.rng.u32(..200) == 0 { LONG_WORK } else { millis(&mut self.rng, 0, 5) }
    }

    /// Under all these disruptions every error is one that may pass, or says that a hold was lost.
    fn look_at(&mut self, what: &str, error: &Error) {
        if !error.is_retryable() && !matches!(error, Error::Lost { .. }) {
            self.visitor.complain(&format!("{what}: {error}"));
        }
    }
}
