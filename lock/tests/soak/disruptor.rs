//! Carries the faults out, each track of them on its own thread.

use std::io;
use std::time::{Duration, Instant};

use fastrand::Rng;
use wheellock_fixture::{Cluster, Fault, Proxy, Server, TestProcess, wait_until};

use crate::child;
use crate::plan::{Disruption, Step, millis, rng_of};
use crate::register_server::RegisterServer;
use crate::servers::{Servers, name_of};
use crate::times::{LIMIT, let_pass, now};

/// A track's own place in time, the same for all.
pub(crate) struct Disruptor<'a> {
    pub(crate) start: Instant,
    pub(crate) seed: u64,
    pub(crate) servers: &'a Servers,
    pub(crate) server: &'a RegisterServer,
}

impl Disruptor<'_> {
    /// Disrupts servers.
    pub(crate) fn disrupt_servers(&self, steps: &[Step]) {
        for (step, row) in steps.iter().zip(1000..) {
            self.wait_for(step);
            let rng = rng_of(self.seed, row);
            match step.disruption {
                Disruption::FailOver | Disruption::PauseMaster => self.disrupt_master(*step),
                Disruption::PauseReplica | Disruption::PauseSentinel => {
                    self.disrupt_sentinels(*step, rng);
                }
                Disruption::MoveSlot(lock)
                | Disruption::StayHalfMoved(lock)
                | Disruption::HandOver(lock)
                | Disruption::PauseNode(lock) => self.disrupt_cluster(*step, lock, rng),
                _ => self.disrupt_single(*step, rng),
            }
        }
    }

    /// Disrupts the processes, and gives them back.
    pub(crate) fn disrupt_processes(&self, steps: &[Step], mut processes: Processes) -> Processes {
        for step in steps {
            self.wait_for(step);
            match step.disruption {
                Disruption::Kill(number) => processes.replace(number, self),
                Disruption::Stop(number) => {
                    let process = &processes.alive[number].1;
                    process.pause();
                    let_pass(step.lasts);
                    process.resume();
                }
                _ => panic!("{:?} is nothing that happens to a process", step.disruption),
            }
        }
        processes
    }

    fn wait_for(&self, step: &Step) {
        let_pass((self.start + step.at).saturating_duration_since(now()));
    }

    fn disrupt_single(&self, step: Step, mut rng: Rng) {
        let Servers { proxy, server, .. } = self.servers;
        let during = |switch: &dyn Fn(bool)| {
            switch(true);
            let_pass(step.lasts);
            switch(false);
        };
        let delay = millis(&mut rng, 1, 300);
        let by = |on| if on { delay } else { Duration::ZERO };
        match step.disruption {
            Disruption::DelayRequests => during(&|on| proxy.delay_requests(by(on))),
            Disruption::DelayReplies => during(&|on| proxy.delay_replies(by(on))),
            Disruption::HoldAll => during(&|on| proxy.hold_all(on)),
            Disruption::Refuse => during(&|on| {
                proxy.refuse(on);
                proxy.cut_all();
            }),
            Disruption::HangNewConnections => during(&|on| {
                proxy.hang_new_connections(on);
                proxy.cut_all();
            }),
            Disruption::LoseMessages => during(&|on| proxy.lose_messages(on)),
            Disruption::CutAll => proxy.cut_all(),
            Disruption::ResetAll => proxy.reset_all(),
            Disruption::DropRequests => spoil(proxy, Fault::DropRequest, step, &mut rng),
            Disruption::LoseReplies => spoil(proxy, Fault::SwallowReply, step, &mut rng),
            Disruption::CutReplies => {
                spoil(proxy, Fault::CutReplyAfter(rng.usize(..6)), step, &mut rng);
            }
            Disruption::LateCopies => spoil(proxy, Fault::HoldRequest, step, &mut rng),
            Disruption::ForgetScripts => drop(server.command(&["SCRIPT", "FLUSH"])),
            Disruption::PauseServer => pause(server, step.lasts),
            _ => panic!("{:?} is nothing that happens to a single server", step.disruption),
        }
    }

    fn disrupt_master(&self, step: Step) {
        let sentinels = self.servers.sentinels();
        if step.disruption == Disruption::FailOver {
            sentinels.fail_over();
        } else {
            pause(sentinels.master(), step.lasts);
        }
        sentinels.wait_until_all_is_well();
    }

    fn disrupt_sentinels(&self, step: Step, mut rng: Rng) {
        let sentinels = self.servers.sentinels();
        if step.disruption == Disruption::PauseReplica {
            pause(sentinels.replicas()[0], step.lasts);
        } else {
            let all = sentinels.sentinels();
            pause(&all[rng.usize(..all.len())], step.lasts);
        }
        sentinels.wait_until_all_is_well();
    }

    fn disrupt_cluster(&self, step: Step, lock: usize, mut rng: Rng) {
        let cluster = self.servers.cluster();
        let slot = cluster.slot_of(&name_of(lock));
        let owner = cluster.node_of(slot);
        match step.disruption {
            Disruption::HandOver(_) => drop(cluster.fail_over(&owner)),
            Disruption::PauseNode(_) => pause(&owner, step.lasts),
            _ => {
                let mut move_it = || {
                    let mut others = cluster.masters();
                    others.retain(|other| other.address() != owner.address());
                    slowly(cluster, slot, &others[rng.usize(..others.len())], step.lasts)
                };
                // An election that an earlier pause has brought about may come in between.
                wait_until("the slot has moved", LIMIT, || move_it().is_ok());
            }
        }
        cluster.wait_until_ok();
    }
}

/// Moves a slot, which stays half moved for so long: first with all keys where they were,
/// then with all of them on the other side.
fn slowly(cluster: &Cluster, slot: u16, target: &Server, time: Duration) -> io::Result<()> {
    let slot_move = cluster.begin_move(slot, target)?;
    let_pass(time / 2);
    slot_move.move_all_keys()?;
    let_pass(time / 2);
    slot_move.finish()
}

fn pause(server: &Server, time: Duration) {
    server.pause();
    let_pass(time);
    server.resume();
}

/// Spoils a few scripts. What is held back arrives afterwards, long after its sender has given it
/// up.
fn spoil(proxy: &Proxy, fault: Fault, step: Step, rng: &mut Rng) {
    let is_held = fault == Fault::HoldRequest;
    let aim = proxy.on(|request| request.name() == "EVALSHA", fault).times(1 + rng.usize(..8));
    let_pass(step.lasts);
    aim.withdraw();
    if is_held && aim.hits() > 0 {
        aim.deliver();
    }
}

/// The processes with clients, each with the name by which it goes now.
pub(crate) struct Processes {
    pub(crate) alive: Vec<(String, TestProcess)>,
    started: usize,
}

impl Processes {
    pub(crate) fn start(number: usize, disruptor: &Disruptor<'_>) -> Self {
        let mut processes = Self { alive: Vec::new(), started: 0 };
        for _ in 0..number {
            let one = processes.one_more(disruptor);
            processes.alive.push(one);
        }
        processes
    }

    fn replace(&mut self, number: usize, disruptor: &Disruptor<'_>) {
        self.alive[number].1.kill();
        self.alive[number] = self.one_more(disruptor);
    }

    fn one_more(&mut self, disruptor: &Disruptor<'_>) -> (String, TestProcess) {
        self.started += 1;
        let name = format!("process-{}", self.started);
        let seed = disruptor.seed.wrapping_add(self.started as u64);
        let process = child::start(&name, seed, disruptor.servers, disruptor.server);
        (name, process)
    }

    pub(crate) fn threads(&self) -> Vec<String> {
        self.alive.iter().flat_map(|(name, _)| child::threads_of(name)).collect()
    }
}
