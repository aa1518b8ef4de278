//! A relay that makes a round trip longer: what passes is delayed by a fixed time each way.
//!
//! When one side ends its connection, so does the relay, and replies that are on their way are
//! lost. It does not read what it relays, and one thread serves all connections. So it takes less
//! of the processor from what is measured than a proxy that understands commands.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::set_current_timer_slack;

use crate::harness::clock::now;

/// A queue with this much on its way is not read until there is less.
const MOST_BYTES: usize = 1 << 20;
const READ_AT_ONCE: usize = 64 * 1024;
/// How much later than asked for the system may wake the thread, in nanoseconds. It is 50,000 if
/// nothing is said, a fifth of the delay.
const TIMER_SLACK: Option<NonZeroU64> = NonZeroU64::new(1);

/// A relay to one server, until it is dropped.
#[derive(Debug)]
pub(crate) struct Relay {
    address: SocketAddr,
    is_stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Starts a relay to `server`, on which a round trip takes `round_trip` longer.
    pub(crate) fn start(server: SocketAddr, round_trip: Duration) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let is_stopping = Arc::new(AtomicBool::new(false));
        let stopping = Arc::clone(&is_stopping);
        let thread = thread::Builder::new().name("bench-relay".to_owned()).spawn(move || {
            // Without it the round trip is somewhat longer, for all alike.
            set_current_timer_slack(TIMER_SLACK).ok();
            let links = Vec::new();
            let mut worker = Worker { listener, server, delay: round_trip / 2, links };
            while !stopping.load(Ordering::Acquire) {
                worker.turn();
            }
        })?;
        Ok(Self { address, is_stopping, thread: Some(thread) })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.is_stopping.store(true, Ordering::Release);
        // It wakes the thread. If that fails, the thread has ended.
        TcpStream::connect(self.address).ok();
        if let Some(thread) = self.thread.take() {
            // If it panicked, it has said so.
            thread.join().ok();
        }
    }
}

struct Worker {
    listener: TcpListener,
    server: SocketAddr,
    delay: Duration,
    links: Vec<Link>,
}

impl Worker {
    /// Sleeps until something arrives or is due, and moves it.
    fn turn(&mut self) {
        // 1. Sleep.
        let due = self.links.iter().filter_map(Link::next_due).min();
        let timeout = due.map(|due| {
            let left = due.saturating_duration_since(now());
            Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(1),
                tv_nsec: left.subsec_nanos().into(),
            }
        });
        let mut entries = vec![PollFd::new(&self.listener, PollFlags::IN)];
        for link in &self.links {
            entries.push(PollFd::new(&link.client, link.requests.flags(&link.replies)));
            entries.push(PollFd::new(&link.server, link.replies.flags(&link.requests)));
        }
        // It fails when a signal arrives, and then nothing is ready.
        let is_valid = poll(&mut entries, timeout.as_ref()).is_ok();
        let ready: Vec<bool> =
            entries.iter().map(|entry| is_valid && entry.revents().intersects(READABLE)).collect();
        drop(entries);
        // 2. Take in what has arrived.
        let (has_callers, sockets) = match ready.split_first() {
            Some((callers, sockets)) => (*callers, sockets),
            None => (false, &ready[..]),
        };
        let (time, delay) = (now(), self.delay);
        for (link, ready) in self.links.iter_mut().zip(sockets.chunks(2)) {
            if ready.first() == Some(&true) {
                link.requests.receive(&link.client, time + delay);
            }
            if ready.last() == Some(&true) {
                link.replies.receive(&link.server, time + delay);
            }
        }
        // 3. Send on what is due.
        for link in &mut self.links {
            link.requests.send(&link.server, time);
            link.replies.send(&link.client, time);
        }
        self.links.retain(|link| !link.has_ended());
        // 4. Accept.
        if has_callers {
            while let Ok((client, _)) = self.listener.accept() {
                // If the server refuses, the client's connection ends.
                self.links.extend(Link::new(client, self.server));
            }
        }
    }
}

const READABLE: PollFlags = PollFlags::IN.union(PollFlags::HUP).union(PollFlags::ERR);

/// A client's connection, and the one to the server for it.
struct Link {
    client: TcpStream,
    server: TcpStream,
    requests: PacketQueue,
    replies: PacketQueue,
}

impl Link {
    fn new(client: TcpStream, server: SocketAddr) -> Option<Self> {
        let server = TcpStream::connect(server).ok()?;
        for stream in [&client, &server] {
            stream.set_nodelay(true).ok()?;
            stream.set_nonblocking(true).ok()?;
        }
        Some(Self {
            client,
            server,
            requests: PacketQueue::default(),
            replies: PacketQueue::default(),
        })
    }

    fn next_due(&self) -> Option<Instant> {
        [&self.requests, &self.replies].into_iter().filter_map(PacketQueue::next_due).min()
    }

    fn has_ended(&self) -> bool {
        [&self.requests, &self.replies]
            .into_iter()
            .any(|queue| queue.is_closed && queue.packets.is_empty())
    }
}

/// What is on its way in one direction.
#[derive(Default)]
struct PacketQueue {
    /// When they are due, and what is left of them.
    packets: VecDeque<(Instant, Vec<u8>)>,
    bytes: usize,
    /// The sender has closed its connection, or the receiver takes nothing any more.
    is_closed: bool,
    /// The receiver's socket is full.
    is_stuck: bool,
}

impl PacketQueue {
    /// What its sender's socket is polled for; `back` is the other direction.
    fn flags(&self, back: &Self) -> PollFlags {
        let can_read = !self.is_closed && self.bytes < MOST_BYTES;
        let read = if can_read { PollFlags::IN } else { PollFlags::empty() };
        let write = if back.is_stuck { PollFlags::OUT } else { PollFlags::empty() };
        read | write
    }

    /// When the thread has to wake for it.
    fn next_due(&self) -> Option<Instant> {
        let (due, _) = self.packets.front()?;
        (!self.is_stuck).then_some(*due)
    }

    fn receive(&mut self, mut from: &TcpStream, due: Instant) {
        if self.is_closed || self.bytes >= MOST_BYTES {
            return;
        }
        let mut packet = vec![0; READ_AT_ONCE];
        match from.read(&mut packet) {
            Ok(length) if length > 0 => {
                packet.truncate(length);
                self.bytes += length;
                self.packets.push_back((due, packet));
            }
            Err(error) if is_temporary(&error) => (),
            Ok(_) | Err(_) => self.is_closed = true,
        }
    }

    fn send(&mut self, mut to: &TcpStream, time: Instant) {
        self.is_stuck = false;
        while let Some((due, packet)) = self.packets.front_mut()
            && *due <= time
        {
            match to.write(packet) {
                Ok(written) => {
                    packet.drain(..written);
                    self.bytes -= written;
                    if packet.is_empty() {
                        self.packets.pop_front();
                    }
                }
                Err(error) if is_temporary(&error) => {
                    self.is_stuck = true;
                    return;
                }
                Err(_) => {
                    self.is_closed = true;
                    self.packets.clear();
                    self.bytes = 0;
                }
            }
        }
    }
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::raw::connect;

    const ROUND_TRIP: Duration = Duration::from_millis(20);

    /// A server that sends back what it receives, to one client.
    fn echo() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("the system gives a port");
        let address = listener.local_addr().expect("it is bound");
        let echo = thread::Builder::new().name("bench-echo".to_owned()).spawn(move || {
            let (stream, _) = listener.accept().expect("the relay connects");
            // It ends with an error if the relay ends first.
            io::copy(&mut &stream, &mut &stream).ok();
        });
        // It ends with its connection.
        drop(echo.expect("the system gives a thread"));
        address
    }

    #[test]
    fn a_round_trip_takes_the_delay_longer() {
        let relay = Relay::start(echo(), ROUND_TRIP).expect("it starts");
        let mut stream = connect(relay.address());
        for _ in 0..3 {
            let start = now();
            stream.write_all(b"x").expect("the relay reads");
            stream.read_exact(&mut [0]).expect("the relay answers");
            assert!(now() - start >= ROUND_TRIP);
        }
    }

    #[test]
    fn everything_arrives_in_order_when_the_receiver_begins_late() {
        let relay = Relay::start(echo(), ROUND_TRIP).expect("it starts");
        let stream = connect(relay.address());
        // More than the relay and all buffers of the system take.
        let sent: Vec<u8> = (0..24_000_000_u32).map(|number| number.to_be_bytes()[2]).collect();
        let (early, late) = sent.split_at(MOST_BYTES);
        let mut received = Vec::new();
        (&stream).write_all(early).expect("the relay reads");
        thread::scope(|scope| {
            scope.spawn(|| (&stream).write_all(late).expect("the relay reads"));
            let expected = u64::try_from(sent.len()).expect("it is not that long");
            (&stream).take(expected).read_to_end(&mut received).expect("the relay answers");
        });
        assert!(received == sent, "{} of {} bytes arrived", received.len(), sent.len());
    }
}
