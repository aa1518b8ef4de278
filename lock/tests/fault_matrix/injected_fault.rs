//! A fault in force: how it is caused, kept up and removed.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use wheellock_fixture::{Aim, Fault as ProxyFault, Request, Server};

use crate::cell::Cell;
use crate::cell_run::CellRun;
use crate::common::SLACK;
use crate::faults::{Cut, Fault, Times};
use crate::operations::Row;
use crate::sends::Sends;
use crate::servers::{Endpoint, Kind, Proxies, Servers};

/// A fault that happens from now on.
pub(crate) struct InjectedFault {
    aims: Vec<Aim>,
    /// What changed on the server or at the proxy, to be undone.
    undo: Option<Undo>,
    reaction: Option<Reaction>,
}

#[derive(Clone, Debug)]
enum Undo {
    Maxmemory,
    Replica,
    Foreign(String),
    ClosedPort,
}

/// A thread that does something to the server when the operation arrives.
struct Reaction {
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

/// How often a reaction looks.
const BETWEEN_TWO_LOOKS: Duration = Duration::from_millis(3);

impl InjectedFault {
    /// Before it is in force.
    pub(crate) fn new() -> Self {
        Self { aims: Vec::new(), undo: None, reaction: None }
    }

    /// Puts it in force. `foreign` is the key that holds something else under [`Fault::WrongType`].
    pub(crate) fn begin(&mut self, run: &CellRun<'_>, cell: &Cell, foreign: &str) {
        let Cell { row: Row { sends, before, .. }, fault, times, cut } = *cell;
        let (kind, elsewhere) = (run.place.kind, elsewhere(run, Endpoint::Other));
        let proxy_fault = match (fault, fault.answer(kind, &elsewhere)) {
            (Fault::NoScript, _) if times == Times::First => {
                run.place.command(&["SCRIPT", "FLUSH"]);
                ProxyFault::PassOn
            }
            (Fault::NoScript, Some(answer)) => {
                // No server says so of a whole script.
                let is_it = sends.matcher();
                let by_hash =
                    move |request: &Request| request.name() == "EVALSHA" && is_it(request);
                let proxy_fault = ProxyFault::AnswerInstead(answer.into_bytes());
                self.aims.push(run.proxy().on(by_hash, proxy_fault).always());
                // A dropped guard sends its script whole.
                let is_it = sends.matcher();
                let whole = move |request: &Request| request.name() == "EVAL" && is_it(request);
                self.aims.push(run.proxy().on(whole, ProxyFault::PassOn).always());
                return;
            }
            (_, Some(answer)) => ProxyFault::AnswerInstead(answer.into_bytes()),
            (Fault::RequestDropped, _) => ProxyFault::DropRequest,
            (Fault::ReplyDropped, _) => ProxyFault::SwallowReply,
            (Fault::Delayed, _) => ProxyFault::DelayRequest(cell.row.timeout() * 2),
            (Fault::Cut, _) => match cut {
                Cut::After(bytes) => ProxyFault::CutReplyAfter(bytes),
                Cut::BeforeEnd(bytes) => ProxyFault::CutReplyBeforeEnd(bytes),
            },
            (Fault::ResetBefore, _) => ProxyFault::ResetBeforeRequest,
            (Fault::ResetAfter, _) => ProxyFault::ResetBeforeReply,
            (Fault::HalfOpen, _) => ProxyFault::Vanish,
            (Fault::Restarted, _) => ProxyFault::HoldRequest,
            (Fault::Refused, _) => return self.refuse(run, times),
            // It would be tried again at once, so it is over before the answer is there.
            (Fault::ReadOnly, _) if times == Times::First => ProxyFault::HoldReply,
            _ => ProxyFault::PassOn,
        };
        let undo = match fault {
            Fault::OutOfMemory => {
                run.place.command(&["CONFIG", "SET", "maxmemory", "1"]);
                Some(Undo::Maxmemory)
            }
            Fault::ReadOnly if kind != Kind::InCluster => {
                // Nobody is there. Until it finds its master, it serves what it has.
                run.place.command(&["REPLICAOF", "127.0.0.1", "1"]);
                Some(Undo::Replica)
            }
            Fault::WrongType => {
                run.place.command(&["DEL", foreign]);
                run.place.command(&["RPUSH", foreign, "data"]);
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
        let aim = run.proxy().on(is_meant, proxy_fault);
        let aim = if times == Times::Every { aim.always() } else { aim };
        self.aims.push(aim.clone());
        if times == Times::Every && fault.sends_elsewhere() && run.row.endpoint == Endpoint::Server
        {
            self.send_back(run, cell);
        }
        if fault == Fault::Restarted {
            let (servers, proxies, endpoint) =
                (run.place.servers(), Arc::clone(run.proxies), run.row.endpoint);
            // Longer than a call. What else is sent meanwhile gets no answer.
            let pause = cell.row.timeout() * 2 + SLACK;
            let restart = move |aim: &Aim, stopped: &Receiver<()>| {
                restart_at_each(aim, (&servers, &proxies, endpoint), pause, stopped);
            };
            self.reaction = Some(Reaction::start(aim, restart));
        } else if let (Fault::ReadOnly, Times::First, Some(undo)) = (fault, times, undo.clone()) {
            let servers = run.place.servers();
            let reaction = Reaction::start(aim, move |aim, stopped| {
                if wait_for_hit(aim, 1, stopped) {
                    undo.on(servers.server());
                    aim.deliver();
                }
            });
            self.reaction = Some(reaction);
        }
        self.undo = undo;
    }

    /// The other endpoint redirects back to the server.
    fn send_back(&mut self, run: &CellRun<'_>, cell: &Cell) {
        let Some(other) = &run.proxies.other else { return };
        let back = elsewhere(run, Endpoint::Server);
        if let Some(answer) = cell.fault.answer(run.place.kind, &back) {
            let proxy_fault = ProxyFault::AnswerInstead(answer.into_bytes());
            self.aims.push(other.on(cell.row.sends.matcher(), proxy_fault).always());
        }
    }

    fn refuse(&mut self, run: &CellRun<'_>, times: Times) {
        match times {
            Times::First => run.proxy().refuse_next(1),
            Times::Every => {
                run.proxy().close_port(true);
                self.undo = Some(Undo::ClosedPort);
            }
        }
    }

    /// How often the fault has happened. `None` if it cannot be said.
    pub(crate) fn hits(&self) -> Option<usize> {
        (!self.aims.is_empty()).then(|| self.aims.iter().map(Aim::hits).sum())
    }

    /// Takes it back: from now on all is well.
    pub(crate) fn end(&mut self, run: &CellRun<'_>) {
        self.aims.iter().for_each(Aim::withdraw);
        if let Some(reaction) = self.reaction.take() {
            reaction.stop();
        }
        match self.undo.take() {
            Some(Undo::ClosedPort) => run.proxy().close_port(false),
            Some(undo) => undo.on(run.place.servers().server()),
            None => run.proxy().refuse_next(0),
        }
        run.place.wait_until_well();
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
            Self::ClosedPort => {}
        }
    }
}

impl Reaction {
    fn start(aim: Aim, react: impl FnOnce(&Aim, &Receiver<()>) + Send + 'static) -> Self {
        let (stop, stopped) = bounded(1);
        let thread = thread::Builder::new()
            .name("reaction".to_owned())
            .spawn(move || react(&aim, &stopped))
            .unwrap();
        Self { stop, thread }
    }

    fn stop(self) {
        // It fails when the reaction is over.
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
    (servers, proxies, endpoint): (&Servers, &Proxies, Endpoint),
    pause: Duration,
    stopped: &Receiver<()>,
) {
    let mut done = 0;
    while wait_for_hit(aim, done + 1, stopped) {
        done += 1;
        servers.restart(proxies, endpoint);
        if stopped.recv_timeout(pause).is_ok() {
            return;
        }
    }
}

/// The slot of the name, and the address of `endpoint`: what a node of a cluster names. Others are
/// no nodes and name anything.
pub(crate) fn elsewhere(run: &CellRun<'_>, endpoint: Endpoint) -> String {
    match run.place.kind {
        Kind::InCluster => {
            format!("{} {}", run.place.slot(&run.name), run.proxies.at(endpoint).address())
        }
        _ => "3999 127.0.0.1:6381".to_owned(),
    }
}
