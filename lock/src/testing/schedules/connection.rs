//! A connection that threads share, in many schedules (DESIGN: schedules).
//!
//! The server is a thread that answers each ECHO. Whatever the order in which the threads write,
//! read, give up and wake, each call gets its own reply or is told the truth about what became of
//! it, and the next call finds the roles free.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hashed_wheel::Clock;

use crate::ops::value::Value;
use crate::store::pipeline::SentDetached;
use crate::store::redis::net::connection::{Broken, Connection};
use crate::store::redis::net::deadline::Deadline;
use crate::store::redis::net::socket::{Peer, Socket};
use crate::store::redis::node::shared_connection::SharedConnection;
use crate::store::redis::resp::decode::Decoder;
use crate::store::redis::resp::encode::Command;
use crate::testing::modelled::sync::{
    SystemClock, below, explore, let_time_move, move_time, sleep, thread,
};

const LONG: Duration = Duration::from_secs(20);
const MILLISECOND: Duration = Duration::from_millis(1);

/// A connection, what the server has run, and what the threads were told.
#[derive(Clone)]
struct World {
    connection: Arc<SharedConnection>,
    server: Peer,
    log: Arc<std::sync::Mutex<Log>>,
}

#[derive(Default)]
struct Log {
    has_run: BTreeSet<String>,
    not_sent: BTreeSet<String>,
    /// Detached calls that are sent, and those whose handler was called.
    detached: BTreeSet<String>,
    handled: BTreeSet<String>,
}

impl World {
    fn new() -> (Self, thread::JoinHandle<()>) {
        let (socket, server) = Socket::pair();
        let connection = Connection::new(Arc::new(socket), LONG, 0);
        let connection = SharedConnection::new(connection, LONG, SystemClock.now());
        let world = Self { connection: Arc::new(connection), server, log: Arc::default() };
        let of_server = world.clone();
        let server = thread::spawn(move || of_server.serve());
        (world, server)
    }

    /// Answers until the connection ends.
    fn serve(&self) {
        let (mut decoder, mut requests) = (Decoder::new(), self.server.clone());
        while let Ok(Value::Array(words)) = decoder.next(&mut requests) {
            let Some(Value::Text(text)) = words.last() else { panic!("{words:?}") };
            let is_new = self.log.lock().unwrap().has_run.insert(text.clone());
            assert!(is_new, "{text} was sent twice");
            let reply = format!("${}\r\n{text}\r\n", text.len());
            // In two parts, mostly.
            let (first, rest) = reply.as_bytes().split_at(below(reply.len()));
            self.server.reply(first);
            self.server.reply(rest);
        }
    }

    /// What a call ended with that has got its own reply.
    fn call(&self, text: &str, time: Duration) -> Result<(), Broken> {
        let request = Command::of(&["ECHO", text]);
        let reply = self.connection.call(request, 1, &mut Deadline::after(time));
        self.note(text, reply.as_ref().err());
        reply.map(|reply| assert_eq!(reply, Value::Text(text.to_owned()), "another's reply"))
    }

    fn detach(&self, text: &str, time: Duration) -> Result<SentDetached, Broken> {
        let (log, own) = (Arc::clone(&self.log), text.to_owned());
        let handler = Box::new(move |reply: Result<Value, Broken>| {
            if let Ok(reply) = reply {
                assert_eq!(reply, Value::Text(own.clone()), "another's reply");
            }
            assert!(log.lock().unwrap().handled.insert(own), "it was called twice");
        });
        let request = Command::of(&["ECHO", text]);
        let mut deadline = Deadline::after(time);
        let sent = self.connection.send_detached(request, &mut deadline, handler);
        self.note(text, sent.as_ref().err());
        if sent.is_ok() {
            self.log.lock().unwrap().detached.insert(text.to_owned());
        }
        sent
    }

    fn note(&self, text: &str, error: Option<&Broken>) {
        if let Some(Broken::NotSent(_)) = error {
            self.log.lock().unwrap().not_sent.insert(text.to_owned());
        }
    }

    /// All threads have gone. What is unread is read, and the roles are free.
    fn check_end(&self, server: thread::JoinHandle<()>) {
        assert!(self.connection.is_unused());
        if !self.connection.is_retired() {
            self.connection.read_all_detached(&mut Deadline::after(LONG));
            let is_answered = self.call("last", LONG).is_ok();
            assert!(is_answered || self.connection.is_retired(), "a role is taken");
            assert!(!is_answered || self.connection.is_done());
        }
        self.connection.end(io::ErrorKind::ConnectionAborted.into());
        server.join().unwrap();
        assert!(self.connection.is_done());
        let log = self.log.lock().unwrap();
        assert_eq!(log.detached, log.handled, "each handler is called");
        let both: Vec<_> = log.not_sent.intersection(&log.has_run).collect();
        assert!(both.is_empty(), "{both:?} was not sent, and has run");
    }
}

fn spawn(world: &World, run: impl FnOnce(&World) + Send + 'static) -> thread::JoinHandle<()> {
    let world = world.clone();
    thread::spawn(move || run(&world))
}

fn join(threads: Vec<thread::JoinHandle<()>>) {
    for thread in threads {
        thread.join().unwrap();
    }
}

/// Joins the threads while time moves, in small steps.
fn join_in_time(threads: Vec<thread::JoinHandle<()>>) {
    let is_over = Arc::new(AtomicBool::new(false));
    let clock = {
        let is_over = Arc::clone(&is_over);
        thread::spawn(move || {
            while !is_over.load(Ordering::SeqCst) {
                move_time(MILLISECOND / 4);
                thread::yield_now();
            }
        })
    };
    join(threads);
    is_over.store(true, Ordering::SeqCst);
    clock.join().unwrap();
}

#[test]
fn each_call_gets_its_own_reply_whoever_writes_and_reads() {
    explore(7_000, || {
        let (world, server) = World::new();
        let threads = (0..4).map(|number| {
            spawn(&world, move |world| {
                for round in 0..3 {
                    world.call(&format!("{number}.{round}"), LONG).unwrap();
                }
            })
        });
        join(threads.collect());
        world.check_end(server);
    });
}

#[test]
fn detached_calls_are_read_by_whoever_comes_next() {
    explore(5_000, || {
        let (world, server) = World::new();
        let mut threads: Vec<_> = (0..3)
            .map(|number| {
                spawn(&world, move |world| {
                    for round in 0..2 {
                        let text = format!("{number}.{round}");
                        if number == round {
                            world.call(&text, LONG).unwrap();
                        } else {
                            world.detach(&text, LONG).unwrap();
                        }
                    }
                })
            })
            .collect();
        // As the renewal thread does.
        threads.push(spawn(&world, |world| {
            for _ in 0..3 {
                world.connection.read_detached(SystemClock.now(), LONG);
                thread::yield_now();
            }
        }));
        join(threads);
        world.check_end(server);
    });
}

#[test]
fn a_call_that_gives_up_leaves_the_others_alone() {
    let count = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&count);
    let schedules = explore(3_000, move || {
        let_time_move();
        let (world, server) = World::new();
        let threads = (0..4).map(|number| {
            let counted = Arc::clone(&counted);
            spawn(&world, move |world| {
                for round in 0..2 {
                    let text = format!("{number}.{round}");
                    let time = if number < 2 { MILLISECOND * (1 + round) } else { LONG };
                    let ended = match (number + round) % 3 {
                        0 => world.detach(&text, time).map(drop),
                        _ => world.call(&text, time),
                    };
                    match ended {
                        Ok(()) => {}
                        Err(_) if number < 2 => drop(counted.fetch_add(1, Ordering::SeqCst)),
                        // The connection may be left to those that wait on it.
                        Err(Broken::NotSent(_)) => assert!(world.connection.is_retired()),
                        Err(error) => panic!("{error:?}"),
                    }
                }
            })
        });
        join_in_time(threads.collect());
        world.check_end(server);
    });
    assert!(
        std::env::var("SCHEDULE").is_ok() || count.load(Ordering::SeqCst) > schedules as u64 / 10
    );
}

#[test]
fn a_call_that_begins_to_read_late_ends_by_its_deadline() {
    const LIMIT: Duration = Duration::from_millis(400);
    const SLACK: Duration = Duration::from_millis(40);
    explore(400, || {
        let_time_move();
        let (socket, mut server) = Socket::pair();
        let connection = Connection::new(Arc::new(socket), LONG, 0);
        let connection = Arc::new(SharedConnection::new(connection, LONG, SystemClock.now()));
        let mut threads: Vec<_> = (0..2)
            .map(|_| {
                let connection = Arc::clone(&connection);
                thread::spawn(move || {
                    let begun = SystemClock.now();
                    let request = Command::of(&["ECHO", "a"]);
                    drop(connection.call(request, 1, &mut Deadline::after(LIMIT)));
                    let took = SystemClock.now().saturating_duration_since(begun);
                    assert!(took <= LIMIT + SLACK, "it took {took:?}");
                })
            })
            .collect();
        // One is answered in the middle of the other's time, which reads from then on in vain.
        threads.push(thread::spawn(move || {
            drop(Decoder::new().next(&mut server));
            sleep(LIMIT / 2);
            server.reply(b"+a\r\n");
        }));
        join_in_time(threads);
    });
}

#[test]
fn the_end_of_the_connection_ends_every_call_on_it() {
    explore(5_000, || {
        let (world, server) = World::new();
        let mut threads: Vec<_> = (0..3)
            .map(|number| {
                spawn(&world, move |world| {
                    for round in 0..2 {
                        let text = format!("{number}.{round}");
                        if (number + round) % 3 == 0 {
                            drop(world.detach(&text, LONG));
                        } else {
                            drop(world.call(&text, LONG));
                        }
                    }
                })
            })
            .collect();
        threads.push(spawn(&world, |world| {
            thread::yield_now();
            match below(2) {
                0 => world.server.shut(),
                _ => world.connection.end(io::ErrorKind::ConnectionAborted.into()),
            }
        }));
        join(threads);
        world.check_end(server);
    });
}
