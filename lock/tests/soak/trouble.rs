//! Carries the faults out, each track of them on its own thread.

use std::io;
use std::time::{Duration, Instant};

use wheellock_fixture::{Cluster, Fault, Proxy, Server, TestProcess, wait_until};

use crate::child;
use crate::dice::Dice;
use crate::register_server::RegisterServer;
use crate::schedule::{Step, Trouble};
use crate::times::{LIMIT, let_pass, now};
use crate::worlds::{Worlds, name_of};

/// A track's own place in time, the same for all.
pub(crate) struct Stage<'a> {
    pub(crate) start: Instant,
    pub(crate) seed: u64,
    pub(crate) worlds: &'a Worlds,
    pub(crate) server: &'a RegisterServer,
}

impl Stage<'_> {
    /// Makes trouble for servers.
    pub(crate) fn trouble_servers(&self, steps: &[Step]) {
        for (step, row) in steps.iter().zip(1000..) {
            self.wait_for(step);
            let dice = Dice::row(self.seed, row);
            match step.trouble {
                Trouble::FailOver | Trouble::PauseMaster => self.trouble_master(*step),
                Trouble::PauseReplica | Trouble::PauseSentinel => {
                    self.trouble_sentinels(*step, dice);
                }
                Trouble::MoveSlot(lock)
                | Trouble::StayHalfMoved(lock)
                | Trouble::HandOver(lock)
                | Trouble::PauseNode(lock) => self.trouble_cluster(*step, lock, dice),
                _ => self.trouble_single(*step, dice),
            }
        }
    }

    /// Makes trouble for the processes and gives them back.
    pub(crate) fn trouble_processes(&self, steps: &[Step], mut processes: Processes) -> Processes {
        for step in steps {
            self.wait_for(step);
            match step.trouble {
                Trouble::Kill(number) => processes.replace(number, self),
                Trouble::Stop(number) => {
                    let process = &processes.alive[number].1;
                    process.pause();
                    let_pass(step.lasts);
                    process.resume();
                }
                _ => panic!("{:?} is nothing that happens to a process", step.trouble),
            }
        }
        processes
    }

    fn wait_for(&self, step: &Step) {
        let_pass((self.start + step.at).saturating_duration_since(now()));
    }

    fn trouble_single(&self, step: Step, mut dice: Dice) {
        let Worlds { proxy, server, .. } = self.worlds;
        let during = |switch: &dyn Fn(bool)| {
            switch(true);
            let_pass(step.lasts);
            switch(false);
        };
        let delay = dice.millis(1, 300);
        let by = |on| if on { delay } else { Duration::ZERO };
        match step.trouble {
            Trouble::DelayRequests => during(&|on| proxy.delay_requests(by(on))),
            Trouble::DelayReplies => during(&|on| proxy.delay_replies(by(on))),
            Trouble::HoldAll => during(&|on| proxy.hold_all(on)),
            Trouble::Refuse => during(&|on| {
                proxy.refuse(on);
                proxy.cut_all();
            }),
            Trouble::HangNewConnections => during(&|on| {
                proxy.hang_new_connections(on);
                proxy.cut_all();
            }),
            Trouble::LoseMessages => during(&|on| proxy.lose_messages(on)),
            Trouble::CutAll => proxy.cut_all(),
            Trouble::ResetAll => proxy.reset_all(),
            Trouble::DropRequests => spoil(proxy, Fault::DropRequest, step, &mut dice),
            Trouble::LoseReplies => spoil(proxy, Fault::SwallowReply, step, &mut dice),
            Trouble::CutReplies => {
                spoil(proxy, Fault::CutReplyAfter(dice.pick(6)), step, &mut dice);
            }
            Trouble::LateCopies => spoil(proxy, Fault::HoldRequest, step, &mut dice),
            Trouble::ForgetScripts => drop(server.command(&["SCRIPT", "FLUSH"])),
            Trouble::PauseServer => pause(server, step.lasts),
            _ => panic!("{:?} is nothing that happens to a single server", step.trouble),
        }
    }

    fn trouble_master(&self, step: Step) {
        let sentinels = self.worlds.sentinels();
        if step.trouble == Trouble::FailOver {
            sentinels.fail_over();
        } else {
            pause(sentinels.master(), step.lasts);
        }
        sentinels.wait_until_all_is_well();
    }

    fn trouble_sentinels(&self, step: Step, mut dice: Dice) {
        let sentinels = self.worlds.sentinels();
        if step.trouble == Trouble::PauseReplica {
            pause(sentinels.replicas()[0], step.lasts);
        } else {
            let all = sentinels.sentinels();
            pause(&all[dice.pick(all.len())], step.lasts);
        }
        sentinels.wait_until_all_is_well();
    }

    fn trouble_cluster(&self, step: Step, lock: usize, mut dice: Dice) {
        let cluster = self.worlds.cluster();
        let slot = cluster.slot_of(&name_of(lock));
        let owner = cluster.node_of(slot);
        match step.trouble {
            Trouble::HandOver(_) => drop(cluster.fail_over(&owner)),
            Trouble::PauseNode(_) => pause(&owner, step.lasts),
            _ => {
                let mut move_it = || {
                    let mut others = cluster.masters();
                    others.retain(|other| other.address() != owner.address());
                    slowly(cluster, slot, &others[dice.pick(others.len())], step.lasts)
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
fn spoil(proxy: &Proxy, fault: Fault, step: Step, dice: &mut Dice) {
    let is_held = fault == Fault::HoldRequest;
    let aim = proxy.on(|request| request.name() == "EVALSHA", fault).times(1 + dice.pick(8));
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
    pub(crate) fn start(number: usize, stage: &Stage<'_>) -> Self {
        let mut processes = Self { alive: Vec::new(), started: 0 };
        for _ in 0..number {
            let one = processes.one_more(stage);
            processes.alive.push(one);
        }
        processes
    }

    fn replace(&mut self, number: usize, stage: &Stage<'_>) {
        self.alive[number].1.kill();
        self.alive[number] = self.one_more(stage);
    }

    fn one_more(&mut self, stage: &Stage<'_>) -> (String, TestProcess) {
        self.started += 1;
        let name = format!("process-{}", self.started);
        let seed = stage.seed.wrapping_add(self.started as u64);
        let process = child::start(&name, seed, stage.worlds, stage.server);
        (name, process)
    }

    pub(crate) fn threads(&self) -> Vec<String> {
        self.alive.iter().flat_map(|(name, _)| child::threads_of(name)).collect()
    }
}
