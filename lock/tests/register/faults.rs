//! The faults, one after the other, in an order that follows from a seed.

use std::time::{Duration, Instant};

use fastrand::Rng;
use wheellock_fixture::{Fault as RequestFault, Proxy, Server, TestProcess};

use crate::recorder::Recorder;
use crate::register::Tokens;
use crate::times::{TIMEOUT, let_pass, now};
use crate::worker::{Addresses, WORKER};

#[derive(Clone, Copy, Debug)]
enum Fault {
    // To a process.
    Stop,
    Kill,
    // Between the processes and the server of the locks.
    Cut,
    Reset,
    Delay,
    LoseReplies,
    LateRequests,
    // To that server.
    Pause,
    RestartEmpty,
    // Between the processes and the registers.
    CutRegisters,
    LoseWrites,
    LateWrites,
    LoseRepliesToWrites,
}

const ALL: [Fault; 13] = [
    Fault::Stop,
    Fault::Kill,
    Fault::Cut,
    Fault::Reset,
    Fault::Delay,
    Fault::LoseReplies,
    Fault::LateRequests,
    Fault::Pause,
    Fault::RestartEmpty,
    Fault::CutRegisters,
    Fault::LoseWrites,
    Fault::LateWrites,
    Fault::LoseRepliesToWrites,
];

/// A server of locks and one of registers, each behind a proxy, and the recorder.
pub(crate) struct FaultyServers {
    // Each before its server: it ends first.
    lock_proxy: Proxy,
    register_proxy: Proxy,
    locks: Server,
    _registers: Server,
    pub(crate) recorder: Recorder,
}

impl FaultyServers {
    /// With so many registers in use at a time.
    pub(crate) fn start(in_use: usize) -> Self {
        let (locks, registers) = (Server::start(), Server::start());
        Self {
            lock_proxy: Proxy::start(locks.address()),
            register_proxy: Proxy::start(registers.address()),
            recorder: Recorder::start(registers.address(), in_use),
            locks,
            _registers: registers,
        }
    }

    pub(crate) fn addresses(&self, tokens: Tokens, timeout: Duration) -> Addresses {
        Addresses {
            locks: self.lock_proxy.url(),
            registers: self.register_proxy.address(),
            tokens,
            recorder: self.recorder.address,
            timeout,
        }
    }
}

/// Processes that work, and what happens to them and around them.
pub(crate) struct Stage<'a> {
    setup: &'a FaultyServers,
    addresses: Addresses,
    pub(crate) processes: Vec<TestProcess>,
    rng: Rng,
}

impl<'a> Stage<'a> {
    pub(crate) fn start(setup: &'a FaultyServers, processes: usize, seed: u64) -> Self {
        let addresses = setup.addresses(Tokens::Checked, TIMEOUT);
        let start = |_| TestProcess::spawn(&mut addresses.command(WORKER));
        let processes = (0..processes).map(start).collect();
        Self { setup, addresses, processes, rng: Rng::with_seed(seed) }
    }

    /// Lets faults happen until `end`, and until each has happened once. How many there were.
    pub(crate) fn inject_faults(&mut self, end: Instant) -> usize {
        let mut number = 0;
        loop {
            let mut faults = ALL;
            self.rng.shuffle(&mut faults);
            for fault in faults {
                if number >= ALL.len() && now() >= end {
                    return number;
                }
                let_pass(self.millis(50, 400));
                self.inject(fault);
                number += 1;
            }
        }
    }

    fn inject(&mut self, fault: Fault) {
        let FaultyServers { lock_proxy, register_proxy, locks, .. } = self.setup;
        // Longer than a lease about half the time.
        let long = self.millis(200, 1800);
        let number = self.rng.usize(..self.processes.len());
        match fault {
            Fault::Stop => {
                self.processes[number].pause();
                let_pass(long);
                self.processes[number].resume();
            }
            Fault::Kill => {
                self.processes[number].kill();
                self.processes[number] = TestProcess::spawn(&mut self.addresses.command(WORKER));
            }
            Fault::Cut => lock_proxy.cut_all(),
            Fault::Reset => lock_proxy.reset_all(),
            Fault::Delay => {
                lock_proxy.hold_all(true);
                let_pass(long / 2);
                lock_proxy.hold_all(false);
            }
            Fault::LoseReplies => self.aim(lock_proxy, RequestFault::SwallowReply, TIMEOUT),
            Fault::LateRequests => self.aim(lock_proxy, RequestFault::HoldRequest, long),
            Fault::Pause => {
                locks.pause();
                let_pass(long);
                locks.resume();
            }
            Fault::RestartEmpty => locks.restart(),
            Fault::CutRegisters => register_proxy.cut_all(),
            Fault::LoseWrites => self.aim(register_proxy, RequestFault::SwallowRequest, TIMEOUT),
            Fault::LateWrites => self.aim(register_proxy, RequestFault::HoldRequest, long),
            Fault::LoseRepliesToWrites => {
                self.aim(register_proxy, RequestFault::SwallowReply, TIMEOUT);
            }
        }
    }

    /// Aims at a few scripts. What is held back arrives when the time is over.
    fn aim(&mut self, proxy: &Proxy, fault: RequestFault, time: Duration) {
        let is_held = fault == RequestFault::HoldRequest;
        let is_script = |name: &str| name == "EVALSHA" || name == "EVAL";
        let aim = proxy.on(move |request| is_script(&request.name()), fault);
        let aim = aim.times(self.rng.usize(1..5));
        let_pass(time);
        aim.withdraw();
        if is_held && aim.hits() > 0 {
            aim.deliver();
        }
    }

    fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(self.rng.u64(from..to))
    }
}
