//! A fault in force: how it is brought about, kept up and taken back.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use wheellock_fixture::{Aim, Fault as Spoil, Request, Server};

use crate::cell::{Cell, TIMEOUT};
use crate::faults::{Cut, Fault, Times};
use crate::operations::Row;
use crate::place::Sends;
use crate::stage::Stage;

/// A fault that happens from now on.
pub(crate) struct Trouble {
    aim: Option<Aim>,
    /// How often the operation was sent, by whatever try.
    pub(crate) sent: Arc<AtomicUsize>,
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
const BETWEEN_TWO_LOOKS: Duration = Duration::from_millis(1);

impl Trouble {
    /// Counts how often the operation is sent. Before the fault is in force.
    pub(crate) fn new(stage: &Stage<'_>, sends: Sends) -> Self {
        let sent = Arc::new(AtomicUsize::new(0));
        let (is_it, counted) = (sends.matcher(), Arc::clone(&sent));
        let count = move |request: &Request| {
            // Relaxed: a number to look at.
            counted.fetch_add(usize::from(is_it(request)), Ordering::Relaxed);
            false
        };
        stage.proxy.on(count, Spoil::PassOn).always();
        Self { aim: None, sent, undo: None, hand: None }
    }

    /// Puts it in force. `foreign` is the key that holds something else under [`Fault::WrongType`].
    pub(crate) fn begin(&mut self, stage: &Stage<'_>, cell: &Cell, foreign: &str) {
        let Cell { row: Row { sends, before, .. }, fault, times, cut } = *cell;
        let spoil = match (fault, fault.answer()) {
            (Fault::NoScript, _) if times == Times::First => {
                stage.place.command(&["SCRIPT", "FLUSH"]);
                Spoil::PassOn
            }
            (Fault::NoScript, Some(answer)) => {
                // No server says so of a whole script.
                let is_it = sends.matcher();
                let by_hash =
                    move |request: &Request| request.name() == "EVALSHA" && is_it(request);
                let spoil = Spoil::AnswerInstead(answer.as_bytes().to_vec());
                self.aim = Some(stage.proxy.on(by_hash, spoil).always());
                return;
            }
            (_, Some(answer)) => Spoil::AnswerInstead(answer.as_bytes().to_vec()),
            (Fault::RequestDropped, _) => Spoil::DropRequest,
            (Fault::ReplyDropped, _) => Spoil::SwallowReply,
            (Fault::Delayed, _) => Spoil::DelayRequest(TIMEOUT * 2),
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
            Fault::ReadOnly => {
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
        let aim = stage.proxy.on(is_meant, spoil);
        let aim = if times == Times::Every { aim.always() } else { aim };
        self.aim = Some(aim.clone());
        if fault == Fault::Restarted {
            self.hand = Some(Hand::start(aim, stage.place.server(), restart_at_each));
        } else if let (Fault::ReadOnly, Times::First, Some(undo)) = (fault, times, undo.clone()) {
            let hand = Hand::start(aim, stage.place.server(), move |aim, server, stopped| {
                if wait_for_hit(aim, 1, stopped) {
                    undo.on(server);
                    aim.deliver();
                }
            });
            self.hand = Some(hand);
        }
        self.undo = undo;
    }

    fn refuse(&mut self, stage: &Stage<'_>, times: Times) {
        match times {
            Times::First => stage.proxy.refuse_next(1),
            Times::Every => {
                stage.proxy.close_entrance(true);
                self.undo = Some(Undo::Entrance);
            }
        }
    }

    /// How often the fault has happened. `None` if it cannot be said.
    pub(crate) fn hits(&self) -> Option<usize> {
        self.aim.as_ref().map(Aim::hits)
    }

    /// Takes it back: from now on all is well.
    pub(crate) fn end(&mut self, stage: &Stage<'_>) {
        if let Some(aim) = &self.aim {
            aim.withdraw();
        }
        if let Some(hand) = self.hand.take() {
            hand.stop();
        }
        match self.undo.take() {
            Some(Undo::Entrance) => stage.proxy.close_entrance(false),
            Some(undo) => undo.on(&stage.place.server()),
            None => stage.proxy.refuse_next(0),
        }
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
    fn start(
        aim: Aim,
        server: Arc<Server>,
        part: impl FnOnce(&Aim, &Server, &Receiver<()>) + Send + 'static,
    ) -> Self {
        let (stop, stopped) = bounded(1);
        let thread = thread::Builder::new()
            .name("hand".to_owned())
            .spawn(move || part(&aim, &server, &stopped))
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

fn restart_at_each(aim: &Aim, server: &Server, stopped: &Receiver<()>) {
    let mut done = 0;
    while wait_for_hit(aim, done + 1, stopped) {
        done += 1;
        server.restart();
        // What else is sent meanwhile is to have its time.
        if stopped.recv_timeout(TIMEOUT * 2).is_ok() {
            return;
        }
    }
}
