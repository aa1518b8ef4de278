//! Records what the processes do, in this one, in one order. A process says that it begins before
//! it begins, and that it has ended after it has ended, so what is recorded takes no less time than
//! the operation did.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::mem;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;
use wheellock_fixture::wait_until;

use crate::history::{Event, Kind, Operation};
use crate::register::{Registers, Tokens};
use crate::times::LIMIT;

/// How many events a register's history has before another one takes its place, so that the
/// checker's time stays in proportion to that of the run.
const EVENTS: usize = 500;

/// The histories of all registers, by name.
pub(crate) type Histories = BTreeMap<String, Vec<Event>>;

/// The recorder, open until its process ends.
#[derive(Debug)]
pub(crate) struct Recorder {
    pub(crate) address: SocketAddr,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    registers: Registers,
    histories: Histories,
    /// The registers in use, which the processes are sent to in turn.
    in_use: Vec<String>,
    turn: usize,
    processes: usize,
    is_over: bool,
}

/// The process that makes the registers, and looks at them at the end.
const HARNESS: usize = 0;

impl Recorder {
    /// With so many registers in use at a time, on the server at this address.
    pub(crate) fn start(registers: SocketAddr, in_use: usize) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let mut state = State {
            registers: Registers::open(registers, Tokens::Checked, LIMIT).unwrap(),
            histories: BTreeMap::new(),
            in_use: Vec::new(),
            turn: 0,
            processes: HARNESS,
            is_over: false,
        };
        state.in_use = (0..in_use).map(|_| state.new_register()).collect();
        let state = Arc::new(Mutex::new(state));
        let shared = Arc::clone(&state);
        // Ends with the test program.
        named("recorder-accept", move || {
            for process in listener.incoming().map_while(Result::ok) {
                let shared = Arc::clone(&shared);
                named("recorder", move || Session::new(&shared).listen(&process));
            }
        });
        Self { address, state }
    }

    /// Waits until each register in use was set once more.
    pub(crate) fn wait_for_progress(&self) {
        let in_use: Vec<_> = {
            let state = self.state.lock();
            state.in_use.iter().map(|name| (name.clone(), state.histories[name].len())).collect()
        };
        for (name, length) in in_use {
            wait_until(&format!("{name} is set once more"), LIMIT, || {
                let state = self.state.lock();
                let is_used_up = !state.in_use.contains(&name);
                is_used_up || state.histories[&name][length..].iter().any(|it| it.is_set(Kind::Ok))
            });
        }
    }

    /// Tells every process to end.
    pub(crate) fn close(&self) {
        self.state.lock().is_over = true;
    }

    /// All histories, each with a last read, when all processes have ended.
    pub(crate) fn histories(&self) -> Histories {
        let mut state = self.state.lock();
        let mut histories = mem::take(&mut state.histories);
        for (name, events) in &mut histories {
            let read = state.registers.look(name).unwrap();
            events.extend(both(Operation::Read(None), read));
        }
        histories
    }
}

fn named(name: &str, work: impl FnOnce() + Send + 'static) {
    thread::Builder::new().name(name.to_owned()).spawn(work).unwrap();
}

/// What the harness does, from beginning to end.
fn both(operation: Operation, done: Operation) -> [Event; 2] {
    [(Kind::Invoke, operation), (Kind::Ok, done)].map(|(kind, operation)| Event {
        process: HARNESS,
        kind,
        operation,
    })
}

impl State {
    fn new_register(&mut self) -> String {
        let name = format!("register-{}", self.histories.len());
        self.registers.make(&name);
        self.histories.insert(name.clone(), both(Operation::Write(0), Operation::Write(0)).into());
        name
    }

    fn next_register(&mut self) -> String {
        self.turn = (self.turn + 1) % self.in_use.len();
        if self.histories[&self.in_use[self.turn]].len() >= EVENTS {
            self.in_use[self.turn] = self.new_register();
        }
        self.in_use[self.turn].clone()
    }
}

/// A connection, which is one process of the histories. A process that leaves an operation open and
/// goes, or is killed, does not know what became of it.
struct Session<'a> {
    state: &'a Mutex<State>,
    process: usize,
    pending: Option<(String, Operation)>,
}

impl<'a> Session<'a> {
    fn new(state: &'a Mutex<State>) -> Self {
        let process = {
            let mut state = state.lock();
            state.processes += 1;
            state.processes
        };
        Self { state, process, pending: None }
    }

    fn listen(mut self, stream: &TcpStream) {
        stream.set_nodelay(true).unwrap();
        let mut replies = stream;
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            let reply = self.reply(&line);
            if replies.write_all(format!("{reply}\n").as_bytes()).is_err() {
                break;
            }
        }
        if self.pending.is_some() {
            self.end(Kind::Info, None);
        }
    }

    fn reply(&mut self, line: &str) -> String {
        match line.splitn(3, ' ').collect::<Vec<_>>().as_slice() {
            ["next"] => {
                let mut state = self.state.lock();
                if state.is_over { OVER.to_owned() } else { state.next_register() }
            }
            ["invoke", name, operation] => {
                let operation = Operation::parse(operation).unwrap();
                self.record(name, Kind::Invoke, operation);
                self.pending = Some(((*name).to_owned(), operation));
                RECORDED.to_owned()
            }
            ["fail"] => {
                self.end(Kind::Fail, None);
                RECORDED.to_owned()
            }
            ["ok", ..] => {
                self.end(Kind::Ok, Some(Operation::parse(&line["ok ".len()..]).unwrap()));
                RECORDED.to_owned()
            }
            _ => panic!("not understood: {line:?}"),
        }
    }

    fn end(&mut self, kind: Kind, done: Option<Operation>) {
        let (name, operation) = self.pending.take().expect("no operation is under way");
        self.record(&name, kind, done.unwrap_or(operation));
    }

    fn record(&self, name: &str, kind: Kind, operation: Operation) {
        let event = Event { process: self.process, kind, operation };
        // Histories that were handed out are complete.
        if let Some(events) = self.state.lock().histories.get_mut(name) {
            events.push(event);
        }
    }
}

const OVER: &str = "over";
const RECORDED: &str = "recorded";

/// A thread's connection to the recorder.
#[derive(Debug)]
pub(crate) struct Record {
    lines: TcpStream,
    replies: BufReader<TcpStream>,
}

impl Record {
    pub(crate) fn open(address: SocketAddr) -> Self {
        let lines = TcpStream::connect(address).unwrap();
        lines.set_nodelay(true).unwrap();
        lines.set_read_timeout(Some(LIMIT)).unwrap();
        let replies = BufReader::new(lines.try_clone().unwrap());
        Self { lines, replies }
    }

    /// The register to work on, until all is over.
    pub(crate) fn next(&mut self) -> Option<String> {
        Some(self.say("next")).filter(|reply| reply != OVER)
    }

    pub(crate) fn invoke(&mut self, name: &str, operation: Operation) {
        self.say(&format!("invoke {name} {operation}"));
    }

    pub(crate) fn ok(&mut self, done: Operation) {
        self.say(&format!("ok {done}"));
    }

    pub(crate) fn fail(&mut self) {
        self.say("fail");
    }

    fn say(&mut self, line: &str) -> String {
        self.lines.write_all(format!("{line}\n").as_bytes()).unwrap();
        let mut reply = String::new();
        self.replies.read_line(&mut reply).unwrap();
        reply.trim_end().to_owned()
    }
}
