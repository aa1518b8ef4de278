//! A process whose threads read and set registers under fenced locks.

use std::env;
use std::io::stdin;
use std::net::SocketAddr;
use std::process::Command;
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use wheellock::{Client, Error, FencedGuard};

use crate::history::Operation;
use crate::recorder::Record;
use crate::register::{Registers, Tokens};
use crate::times::{LEASE, LIMIT, WAIT, let_pass};

/// Where everything is. A child finds it in its environment.
#[derive(Clone, Debug)]
pub(crate) struct Addresses {
    /// The URL of the server of the locks.
    pub(crate) locks: String,
    pub(crate) registers: SocketAddr,
    pub(crate) tokens: Tokens,
    pub(crate) recorder: SocketAddr,
    /// How long to wait for a reply, of the locks' server and of the registers'.
    pub(crate) timeout: Duration,
}

/// Says which of the processes a child is to be. Without it the test of that role does nothing.
pub(crate) const ROLE: &str = "WHEELLOCK_REGISTER_ROLE";

/// The roles: [`work`] and [`be_paused`].
pub(crate) const WORKER: &str = "worker";
pub(crate) const PAUSED: &str = "paused";

const LOCKS: &str = "WHEELLOCK_REGISTER_LOCKS";
const REGISTERS: &str = "WHEELLOCK_REGISTER_REGISTERS";
const RECORDER: &str = "WHEELLOCK_REGISTER_RECORDER";
const IGNORED: &str = "WHEELLOCK_REGISTER_TOKENS_IGNORED";
const TIMEOUT: &str = "WHEELLOCK_REGISTER_TIMEOUT";

impl Addresses {
    /// The command that starts a process with this role.
    pub(crate) fn command(&self, role: &str) -> Command {
        let mut command = Command::new(env::current_exe().unwrap());
        // More than one test thread: with one, the harness would write the test's name in front of
        // the first line.
        command.args(["--exact", "child_role", "--nocapture", "--test-threads=2"]);
        command.env(ROLE, role).env(LOCKS, &self.locks);
        command.env(REGISTERS, self.registers.to_string());
        command.env(RECORDER, self.recorder.to_string());
        command.env(TIMEOUT, self.timeout.as_millis().to_string());
        if self.tokens == Tokens::Ignored {
            command.env(IGNORED, "yes");
        }
        command
    }

    fn of_this_process() -> Self {
        let address = |name| env::var(name).unwrap().parse().unwrap();
        let are_ignored = env::var_os(IGNORED).is_some();
        Self {
            locks: env::var(LOCKS).unwrap(),
            registers: address(REGISTERS),
            tokens: if are_ignored { Tokens::Ignored } else { Tokens::Checked },
            recorder: address(RECORDER),
            timeout: Duration::from_millis(env::var(TIMEOUT).unwrap().parse().unwrap()),
        }
    }

    fn open_registers(&self) -> Registers {
        Registers::open(self.registers, self.tokens, self.timeout).unwrap()
    }

    /// A client, also while the server is not there.
    pub(crate) fn client(&self) -> Client {
        let builder = Client::builder().url(&self.locks).connect_lazily();
        builder.watchdog_lease(LEASE).command_timeout(self.timeout).build().unwrap()
    }
}

const THREADS: usize = 4;

/// Reads and sets registers on several threads until the recorder says that all is over.
pub(crate) fn work() {
    let addresses = Addresses::of_this_process();
    let client = addresses.client();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| Worker::new(&addresses, Rng::new()).work(&client));
        }
    });
    client.shutdown(LIMIT);
}

/// Kleppmann's client: it has read and is about to write when it is paused, and does not look at
/// its lock again.
pub(crate) fn be_paused() {
    let addresses = Addresses::of_this_process();
    let client = addresses.client();
    let mut worker = Worker::new(&addresses, Rng::new());
    let name = worker.record.next().unwrap();
    let guard = client.fenced_lock(&name).lock().unwrap();
    let value = worker.read(&name, &guard).unwrap();
    println!("{HAS_READ}");
    // The pause comes here.
    stdin().read_line(&mut String::new()).unwrap();
    worker.set(&name, &guard, value);
}

/// What it says before its pause.
pub(crate) const HAS_READ: &str = "has read";

/// One process of the histories, or several, one after the other.
pub(crate) struct Worker<'a> {
    addresses: &'a Addresses,
    registers: Registers,
    pub(crate) record: Record,
    rng: Rng,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(addresses: &'a Addresses, rng: Rng) -> Self {
        let (registers, record) = (addresses.open_registers(), Record::open(addresses.recorder));
        Self { addresses, registers, record, rng }
    }

    fn work(&mut self, client: &Client) {
        while let Some(name) = self.record.next() {
            if self.rng.u8(..4) == 0 {
                self.look(&name);
                continue;
            }
            let lock = client.fenced_lock(&name);
            let lock = if self.rng.u8(..4) == 0 { lock.with_lease(LEASE / 2) } else { lock };
            match lock.try_lock_for(WAIT) {
                Ok(Some(guard)) => self.hold(&name, guard),
                Ok(None) => {}
                Err(error) => assert_expected("an acquire", &error),
            }
        }
    }

    /// Sets the register a few times, without a look whether the lock is still held.
    fn hold(&mut self, name: &str, guard: FencedGuard) {
        let mut value = self.read(name, &guard);
        for _ in 0..self.rng.u8(1..4) {
            let Some(old) = value else { break };
            let_pass(self.time_of_work());
            value = self.set(name, &guard, old);
        }
        // A write without a reply may still arrive, with this hold's token. So it is the last one
        // of this hold.
        if self.rng.bool() {
            drop(guard);
        } else if let Err(error) = guard.unlock() {
            assert_expected("a release", &error);
        }
    }

    /// At times more than the half of a lease that some locks have.
    fn time_of_work(&mut self) -> Duration {
        if self.rng.u8(..100) == 0 {
            LEASE * 3 / 4
        } else {
            Duration::from_millis(self.rng.u64(..5))
        }
    }

    /// The value, unless the register refuses the token or does not reply.
    pub(crate) fn read(&mut self, name: &str, guard: &FencedGuard) -> Option<u64> {
        let done = self.perform(name, guard, Operation::Read(None))?;
        let Operation::Read(value) = done else { unreachable!() };
        value
    }

    /// One more than `old`, by a write under the lock, unless the register refuses the token or
    /// does not reply.
    pub(crate) fn set(&mut self, name: &str, guard: &FencedGuard, old: u64) -> Option<u64> {
        let new = old + 1;
        self.perform(name, guard, Operation::Cas { old, new }).map(|_| new)
    }

    fn perform(
        &mut self,
        name: &str,
        guard: &FencedGuard,
        operation: Operation,
    ) -> Option<Operation> {
        self.record.invoke(name, operation);
        match self.registers.perform(name, guard.token(), operation) {
            Ok(Some(done)) => {
                self.record.ok(done);
                Some(done)
            }
            Ok(None) => {
                self.record.fail();
                None
            }
            Err(_) => {
                self.reopen();
                None
            }
        }
    }

    /// Reads without the lock.
    fn look(&mut self, name: &str) {
        self.record.invoke(name, Operation::Read(None));
        match self.registers.look(name) {
            Ok(done) => self.record.ok(done),
            Err(_) => self.reopen(),
        }
    }

    /// A process that does not know what became of its operation does no other one.
    fn reopen(&mut self) {
        self.record = Record::open(self.addresses.recorder);
        self.registers = self.addresses.open_registers();
    }
}

/// In all these faults every error is one that may pass, or says that a hold was lost.
fn assert_expected(what: &str, error: &Error) {
    assert!(error.is_retryable() || matches!(error, Error::Lost { .. }), "{what}: {error}");
}
