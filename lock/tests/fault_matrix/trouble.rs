//! A fault in force: how it is caused, kept up and removed.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use wheellock_fixture::{Aim, Fault as Spoil, Request, Server};

use crate::cell::Cell;
use crate::common::SLACK;
use crate::faults::{Cut, Fault, Times};
use crate::operations::Row;
use crate::sends::Sends;
use crate::stage::Stage;
use crate::world::{Door, Doors, Kind, World};

/// A fault that happens from now on.
pub(crate) struct Trouble {
    aims: Vec<Aim>,
    /// What changed on the server or at the proxy's entrance, to be undone.
    undo: Option<Undo>,
    hand: Option<Hand>,
}

#[derive(Clone, Debug)]
enum Undo {
    Maxmemory,
    Replica,
    Foreign(String),
    Entrance,
}

/// A thread that does its part when the operation arrives.
struct Hand {
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

/// How often a hand looks.
const BETWEEN_TWO_LOOKS: Duration = Duration::from_millis(3);

impl Trouble {
    /// Before it is in force.
    pub(crate) fn new() -> Self {
        Self { aims: Vec::new(), undo: None, hand: None }
    }

    /// Puts it in force. `foreign` is the key that holds something else under [`Fault::WrongType`].
    pub(crate) fn begin(&mut self, stage: &Stage<'_>, cell: &Cell, foreign: &str) {
        let Cell { row: Row { sends, before, .. }, fault, times, cut } = *cell;
        let (kind, elsewhere) = (stage.place.kind, elsewhere(stage, Door::Other));
        let spoil = match (fault, fault.answer(kind, &elsewhere)) {
            (Fault::NoScript, _) if times == Times::First => {
                stage.place.command(&["SCRIPT", "FLUSH"]);
                Spoil::PassOn
            }
            (Fault::NoScript, Some(answer)) => {
                // No server says so of a whole script.
                let is_it = sends.matcher();
                let by_hash =
                    move |request: &Request| request.name() == "EVALSHA" && is_it(request);
                let spoil = Spoil::AnswerInstead(answer.into_bytes());
                self.aims.push(stage.proxy().on(by_hash, spoil).always());
                return;
            }
            (_, Some(answer)) => Spoil::AnswerInstead(answer.into_bytes()),
            (Fault::RequestDropped, _) => Spoil::DropRequest,
            (Fault::ReplyDropped, _) => Spoil::SwallowReply,
            (Fault::Delayed, _) => Spoil::DelayRequest(cell.row.timeout() * 2),
            (Fault::Cut, _) => match cut {
                Cut::After(bytes) => Spoil::CutReplyAfter(bytes),
                Cut::BeforeEnd(bytes) => Spoil::CutReplyBeforeEnd(bytes),
            },
            (Fault::ResetBefore, _) => Spoil::ResetBeforeRequest,
            (Fault::ResetAfter, _) => Spoil::ResetBeforeReply,
            (Fault::HalfOpen, _) => Spoil::Vanish,
            (Fault::Restarted, _) => Spoil::HoldRequest,
            (Fault::Refused, _) => return self.refuse(stage, times),
            // It would be tried again at once, so it is over before the answer is there.
            (Fault::ReadOnly, _) if times == Times::First => Spoil::HoldReply,
            _ => Spoil::PassOn,
        };
        let undo = match fault {
            Fault::OutOfMemory => {
                stage.place.command(&["CONFIG", "SET", "maxmemory", "1"]);
                Some(Undo::Maxmemory)
            }
            Fault::ReadOnly if kind != Kind::InCluster => {
                // Nobody is there. Until it finds its master, it serves what it has.
                stage.place.command(&["REPLICAOF", "127.0.0.1", "1"]);
                Some(Undo::Replica)
            }
            Fault::WrongType => {
                stage.place.command(&["DEL", foreign]);
                stage.place.command(&["RPUSH", foreign, "data"]);
                Some(Undo::Foreign(foreign.to_owned()))
            }
            _ => None,
        };
        let is_it = sends.matcher();
        // What the server is in, it is in for whatever comes first.
        let is_before = before.filter(|_| undo.is_some()).map(Sends::matcher);
        let is_meant = move |request: &Request| {
            is_it(request) || is_before.as_ref().is_some_and(|is_before| is_before(request))
        };
        let aim = stage.proxy().on(is_meant, spoil);
        let aim = if times == Times::Every { aim.always() } else { aim };
        self.aims.push(aim.clone());
        if times == Times::Every && fault.sends_elsewhere() && stage.row.door == Door::Server {
            self.send_back(stage, cell);
        }
        if fault == Fault::Restarted {
            let (world, doors, door) =
                (stage.place.world(), Arc::clone(stage.doors), stage.row.door);
            // Longer than a call. What else is sent meanwhile gets no answer.
            let pause = cell.row.timeout() * 2 + SLACK;
            let restart = move |aim: &Aim, stopped: &Receiver<()>| {
                restart_at_each(aim, (&world, &doors, door), pause, stopped);
            };
            self.hand = Some(Hand::start(aim, restart));
        } else if let (Fault::ReadOnly, Times::First, Some(undo)) = (fault, times, undo.clone()) {
            let world = stage.place.world();
            let hand = Hand::start(aim, move |aim, stopped| {
                if wait_for_hit(aim, 1, stopped) {
                    undo.on(world.server());
                    aim.deliver();
                }
            });
            self.hand = Some(hand);
        }
        self.undo = undo;
    }

    /// Whom the one door sends to the other, that one sends back.
    fn send_back(&mut self, stage: &Stage<'_>, cell: &Cell) {
        let Some(other) = &stage.doors.other else { return };
        let back = elsewhere(stage, Door::Server);
        if let Some(answer) = cell.fault.answer(stage.place.kind, &back) {
            let spoil = Spoil::AnswerInstead(answer.into_bytes());
            self.aims.push(other.on(cell.row.sends.matcher(), spoil).always());
        }
    }

    fn refuse(&mut self, stage: &Stage<'_>, times: Times) {
        match times {
            Times::First => stage.proxy().refuse_next(1),
            Times::Every => {
                stage.proxy().close_entrance(true);
                self.undo = Some(Undo::Entrance);
            }
        }
    }

    /// How often the fault has happened. `None` if it cannot be said.
    pub(crate) fn hits(&self) -> Option<usize> {
        (!self.aims.is_empty()).then(|| self.aims.iter().map(Aim::hits).sum())
    }

    /// Takes it back: from now on all is well.
    pub(crate) fn end(&mut self, stage: &Stage<'_>) {
        self.aims.iter().for_each(Aim::withdraw);
        if let Some(hand) = self.hand.take() {
            hand.stop();
        }
        match self.undo.take() {
            Some(Undo::Entrance) => stage.proxy().close_entrance(false),
            Some(undo) => undo.on(stage.place.world().server()),
            None => stage.proxy().refuse_next(0),
        }
        stage.place.wait_until_well();
    }
}

impl Undo {
    fn on(&self, server: &Server) {
        match self {
            Self::Maxmemory => drop(server.command(&["CONFIG", "SET", "maxmemory", "0"])),
            Self::Replica => drop(server.command(&["REPLICAOF", "NO", "ONE"])),
            Self::Foreign(key) => {
                if server.command(&["TYPE", key]).text() == "list" {
                    server.command(&["DEL", key]);
                }
            }
            Self::Entrance => {}
        }
    }
}

impl Hand {
    fn start(aim: Aim, part: impl FnOnce(&Aim, &Receiver<()>) + Send + 'static) -> Self {
        let (stop, stopped) = bounded(1);
        let thread = thread::Builder::new()
            .name("hand".to_owned())
            .spawn(move || part(&aim, &stopped))
            .unwrap();
        Self { stop, thread }
    }

    fn stop(self) {
        // It fails when the hand has done its part.
        self.stop.try_send(()).ok();
        self.thread.join().unwrap();
    }
}

/// Waits for that many hits. False if it was stopped before.
fn wait_for_hit(aim: &Aim, hits: usize, stopped: &Receiver<()>) -> bool {
    while aim.hits() < hits {
        if stopped.recv_timeout(BETWEEN_TWO_LOOKS).is_ok() {
            return false;
        }
    }
    true
}

fn restart_at_each(
    aim: &Aim,
    (world, doors, door): (&World, &Doors, Door),
    pause: Duration,
    stopped: &Receiver<()>,
) {
    let mut done = 0;
    while wait_for_hit(aim, done + 1, stopped) {
        done += 1;
        world.restart(doors, door);
        if stopped.recv_timeout(pause).is_ok() {
            return;
        }
    }
}

/// The slot of the name, and a door: what a node of a cluster names. Others are no nodes and name
/// anything.
pub(crate) fn elsewhere(stage: &Stage<'_>, door: Door) -> String {
    match stage.place.kind {
        Kind::InCluster => {
            format!("{} {}", stage.place.slot(&stage.name), stage.doors.at(door).address())
        }
        _ => "3999 127.0.0.1:6381".to_owned(),
    }
}
