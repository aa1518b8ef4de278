//! An event loop with a socket and 10,000 idle timeouts, on one thread: a server whose client names
//! a session in each message. A session of which nothing is heard for a while is closed.
//!
//! The loop has its own clock and its own sleep, the read of the socket. [`Wheel`] tells what is
//! due, and [`TickScale`] turns instants into ticks and says how long to sleep.
//!
//!     cargo run --example event_loop

use std::collections::HashMap;
use std::error::Error;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use hashed_wheel::{Clock, Key, SystemClock, TickScale, Wheel};

/// How long a session may be silent.
pub(crate) const IDLE: Duration = Duration::from_millis(200);

const TICK: Duration = Duration::from_millis(10);
const SESSIONS: u32 = 10_000;

/// A session while it is open.
#[derive(Debug)]
struct Session {
    idle: Key,
    last_heard: Instant,
}

/// A session that was closed, and how long it was silent.
pub(crate) type Closed = (u32, Duration);

/// The message after which no other comes.
const END: u32 = u32::MAX;

/// Serves until the client has ended and every session is closed. A client that is delayed for
/// longer than that finds its session closed, and opens it again.
fn serve(mut socket: TcpStream) -> Result<Vec<Closed>, Box<dyn Error>> {
    let clock = SystemClock;
    let scale = TickScale::new(clock.now(), TICK)?;
    let mut wheel = Wheel::new(512)?;
    let mut sessions: HashMap<u32, Session> = HashMap::new();
    let mut closed = Vec::new();
    let (mut message, mut length, mut has_ended) = ([0; 4], 0, false);
    loop {
        // 1. Close what is due. The present is rounded down to a tick, so nothing is early.
        let now = clock.now();
        wheel.advance(scale.elapsed_ticks(now), usize::MAX, |_, number| {
            if let Some(session) = sessions.remove(&number) {
                closed.push((number, now - session.last_heard));
            }
        });
        if has_ended && sessions.is_empty() {
            return Ok(closed);
        }
        // 2. Sleep in the read until the next is due; without a limit if nothing is pending.
        let sleep = wheel.next_due().and_then(|tick| scale.time_until(tick, now));
        socket.set_read_timeout(sleep)?;
        match socket.read(&mut message[length..]) {
            Ok(0) => return Err("the client is gone".into()),
            Ok(count) => length += count,
            Err(error) if is_timeout(&error) => {}
            Err(error) => return Err(error.into()),
        }
        // 3. A whole message came: its session may be silent again. Deadlines are rounded up.
        if length == message.len() {
            length = 0;
            let number = u32::from_le_bytes(message);
            if number == END {
                has_ended = true;
                continue;
            }
            let last_heard = clock.now();
            let due = scale.deadline_tick(last_heard + IDLE);
            let open = |number: &u32| Session { idle: wheel.insert(due, *number), last_heard };
            let session = sessions.entry(number).or_insert_with_key(open);
            session.last_heard = last_heard;
            wheel.reschedule(session.idle, due);
        }
    }
}

/// Sends a message of each session, two more of the first hundred, and the end. Returns the socket,
/// so that it stays open.
fn talk(mut socket: TcpStream, sessions: u32) -> io::Result<TcpStream> {
    for number in (0..sessions).chain(0..100).chain(0..100).chain([END]) {
        socket.write_all(&number.to_le_bytes())?;
    }
    Ok(socket)
}

/// A server, and a client with this many sessions.
pub(crate) fn run(sessions: u32) -> Result<Vec<Closed>, Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let socket = TcpStream::connect(listener.local_addr()?)?;
    let client = thread::Builder::new().spawn(move || talk(socket, sessions))?;
    let closed = serve(listener.accept()?.0)?;
    client.join().map_err(|_| "the client panicked")??;
    Ok(closed)
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

#[expect(clippy::print_stdout, reason = "it is a program")]
fn main() -> Result<(), Box<dyn Error>> {
    let closed = run(SESSIONS)?;
    let silent = || closed.iter().map(|(_, silent)| *silent);
    println!(
        "{} sessions closed, after {:?} to {:?} of silence",
        closed.len(),
        silent().min().unwrap_or_default(),
        silent().max().unwrap_or_default(),
    );
    Ok(())
}
