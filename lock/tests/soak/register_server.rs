//! The TCP interface of the register: one line per request, one per reply.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use parking_lot::Mutex;

use crate::register::{Answer, Register};
use crate::times::{LIMIT, now};

/// The register, open until the soak is over.
#[derive(Debug)]
pub(crate) struct RegisterServer {
    pub(crate) address: SocketAddr,
    pub(crate) register: Arc<Mutex<Register>>,
    over: Arc<AtomicBool>,
}

impl RegisterServer {
    pub(crate) fn open() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let register = Arc::new(Mutex::new(Register::new()));
        let over = Arc::new(AtomicBool::new(false));
        let server = Self { address, register: Arc::clone(&register), over: Arc::clone(&over) };
        // Ends with the test program.
        let serve = move || {
            for caller in listener.incoming().map_while(Result::ok) {
                let (register, over) = (Arc::clone(&register), Arc::clone(&over));
                named("register", move || listen(&caller, &register, &over));
            }
        };
        named("register-accept", serve);
        server
    }

    /// Tells every later visitor to stop.
    pub(crate) fn close(&self) {
        self.over.store(true, Ordering::SeqCst);
    }
}

fn named(name: &str, work: impl FnOnce() + Send + 'static) {
    thread::Builder::new().name(name.to_owned()).spawn(work).unwrap();
}

/// Until the caller has gone, or was killed.
fn listen(caller: &TcpStream, register: &Mutex<Register>, over: &AtomicBool) {
    caller.set_nodelay(true).unwrap();
    let mut answers = caller;
    for question in BufReader::new(caller).lines().map_while(Result::ok) {
        let mut answer = answer(&question, &mut register.lock(), over);
        answer.push('\n');
        if answers.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

fn answer(question: &str, register: &mut Register, over: &AtomicBool) -> String {
    let words: Vec<_> = question.splitn(3, ' ').collect();
    let [what, thread, rest] = words.as_slice() else { panic!("not understood: {question:?}") };
    let now = now();
    let traces = register.sign(thread, now);
    let said = match *what {
        "sign" => None,
        "vain" => {
            traces.in_vain += 1;
            None
        }
        "complain" => {
            register.complain(format!("{thread}: {rest}"));
            None
        }
        "enter" => {
            let (lock, token, holder, _, _) = parse_access(rest);
            let said = register.read(lock, token, holder);
            let traces = register.sign(thread, now);
            if said == Answer::Stale {
                traces.refused += 1;
            } else {
                traces.enter(now);
            }
            Some(said)
        }
        "write" => {
            let (lock, token, holder, old, new) = parse_access(rest);
            let said = register.write(lock, token, holder, old, new);
            let traces = register.sign(thread, now);
            if said == Answer::Stale {
                traces.refused += 1;
            } else {
                traces.written += 1;
            }
            Some(said)
        }
        _ => panic!("not understood: {question:?}"),
    };
    match said {
        Some(Answer::Value(value)) => value.to_string(),
        Some(Answer::Stale) => "stale".to_owned(),
        None if over.load(Ordering::SeqCst) => "over".to_owned(),
        None => "go".to_owned(),
    }
}

/// Parses `<lock> <token> <holder> <old> <new>`; a read leaves out the last two.
fn parse_access(text: &str) -> (usize, u64, &str, u64, u64) {
    let words: Vec<_> = text.split(' ').collect();
    let number = |place: usize| words.get(place).map_or(0, |word| word.parse().unwrap());
    (usize::try_from(number(0)).unwrap(), number(1), words[2], number(3), number(4))
}

/// A thread's own connection to the register.
#[derive(Debug)]
pub(crate) struct Visitor {
    name: String,
    questions: TcpStream,
    answers: BufReader<TcpStream>,
}

impl Visitor {
    pub(crate) fn new(address: &str, name: String) -> Self {
        let questions = TcpStream::connect(address).unwrap();
        questions.set_nodelay(true).unwrap();
        questions.set_read_timeout(Some(LIMIT)).unwrap();
        let answers = BufReader::new(questions.try_clone().unwrap());
        Self { name, questions, answers }
    }

    /// Whether to go on.
    pub(crate) fn sign(&mut self) -> bool {
        self.ask("sign", "-") == "go"
    }

    pub(crate) fn in_vain(&mut self) {
        self.ask("vain", "-");
    }

    pub(crate) fn complain(&mut self, what: &str) {
        self.ask("complain", &what.replace('\n', " "));
    }

    pub(crate) fn enter(&mut self, lock: usize, token: u64, holder: &str) -> Answer {
        parsed(&self.ask("enter", &format!("{lock} {token} {holder}")))
    }

    pub(crate) fn write(&mut self, lock: usize, token: u64, holder: &str, old: u64) -> Answer {
        parsed(&self.ask("write", &format!("{lock} {token} {holder} {old} {}", old + 1)))
    }

    fn ask(&mut self, what: &str, rest: &str) -> String {
        let question = format!("{what} {} {rest}\n", self.name);
        self.questions.write_all(question.as_bytes()).unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        answer.trim_end().to_owned()
    }
}

fn parsed(answer: &str) -> Answer {
    answer.parse().map_or(Answer::Stale, Answer::Value)
}
