//! A socket whose other end is a network of the test. Only tests with
//! `--cfg wheellock_shuttle` have it, in place of the real one.
//!
//! Little fits into it, and reads and writes end where shuttle's random numbers say.

#![expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "as the real one has them")]

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hashed_wheel::Clock;

use crate::error::Reason;
use crate::model::sync::{Condvar, Mutex, MutexGuard, SystemClock};
use crate::store::redis::net::deadline::Deadline;
use crate::testing::modelled::sync::below;

/// The client's end.
#[derive(Debug)]
pub(crate) struct Socket(Arc<Stream>);

/// The server's end.
#[derive(Clone, Debug)]
pub(crate) struct Peer(Arc<Stream>);

#[derive(Debug)]
struct Stream {
    state: Mutex<State>,
    changed: Condvar,
}

/// Carries what a client writes.
pub(crate) trait Carrier: Send + Sync {
    /// These bytes are on their way, until the network reports that they are
    /// [delivered](Peer::delivered).
    fn carry(&self, bytes: Vec<u8>);

    /// The client has closed the connection.
    fn close(&self);
}

/// Where connections lead.
pub(crate) trait Network: Send + Sync {
    /// A client connects to a port. The network opens or shuts its end later.
    fn connect(&self, port: u16, peer: Peer) -> Arc<dyn Carrier>;
}

shuttle::lazy_static! {
    /// The network of one run.
    static ref NETWORK: std::sync::Mutex<Option<Arc<dyn Network>>> = std::sync::Mutex::default();
}

/// From now on connections are made in this network.
pub(crate) fn set_network(network: Arc<dyn Network>) {
    *NETWORK.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(network);
}

#[derive(Debug)]
struct State {
    /// How many bytes the network has not delivered.
    under_way: usize,
    to_client: VecDeque<u8>,
    is_open: bool,
    carrier: Carried,
    /// How many bytes are accepted in all from now on.
    accepts: usize,
    /// The client or the server has ended it.
    is_shut: bool,
}

/// `None` if the connection is shut.
struct Carried(Option<Arc<dyn Carrier>>);

impl fmt::Debug for Carried {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.is_some().fmt(formatter)
    }
}

/// How many bytes are under way to the server at most.
const CAPACITY: usize = 4096;

/// What the timeouts of a socket are set to: here each wait has its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts;

impl Timeouts {
    pub(crate) fn of_new(_: Duration) -> Self {
        Self
    }
}

impl Stream {
    /// Waits until `act` does something, for at most `timeout` as `io` counts it.
    fn wait<R>(
        &self,
        timeout: Duration,
        mut act: impl FnMut(&mut State) -> Option<R>,
    ) -> io::Result<R> {
        let begun = SystemClock.now();
        let mut state = self.state.lock();
        loop {
            if let Some(done) = act(&mut state) {
                self.changed.notify_all();
                return Ok(done);
            }
            let waited = SystemClock.now().saturating_duration_since(begun);
            let left = timeout.saturating_sub(waited);
            if left.is_zero() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.changed.wait_for(&mut state, left);
        }
    }

    fn now<R>(&self, act: impl FnOnce(&mut State) -> Option<R>) -> io::Result<R> {
        let mut state = self.state.lock();
        let done = act(&mut state).ok_or(io::ErrorKind::WouldBlock)?;
        self.changed.notify_all();
        Ok(done)
    }

    fn shut(&self) -> Option<Arc<dyn Carrier>> {
        let carrier = {
            let mut state = self.state.lock();
            state.is_shut = true;
            state.carrier.0.take()
        };
        self.changed.notify_all();
        carrier
    }
}

impl State {
    /// Of what has arrived, a part. Nothing at its end.
    fn take(from: &mut VecDeque<u8>, is_shut: bool, buffer: &mut [u8]) -> Option<usize> {
        if from.is_empty() {
            return is_shut.then_some(0);
        }
        let most = from.len().min(buffer.len());
        let length = if below(2) == 0 { most } else { 1 + below(most) };
        for (to, byte) in buffer.iter_mut().zip(from.drain(..length)) {
            *to = byte;
        }
        Some(length)
    }

    fn write(&mut self, bytes: &[u8]) -> Option<io::Result<usize>> {
        if self.is_shut {
            return Some(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let Some(carrier) = &self.carrier.0 else {
            return Some(Err(io::ErrorKind::BrokenPipe.into()));
        };
        let room = bytes.len().min(CAPACITY - self.under_way).min(self.accepts);
        if room == 0 {
            return None;
        }
        // Mostly all of them.
        let length = if below(8) == 0 { 1 + below(room) } else { room };
        self.under_way += length;
        self.accepts -= length;
        carrier.carry(bytes.iter().take(length).copied().collect());
        Some(Ok(length))
    }
}

impl Socket {
    fn new() -> (Self, Peer) {
        let state = State {
            under_way: 0,
            to_client: VecDeque::new(),
            is_open: false,
            carrier: Carried(None),
            accepts: usize::MAX,
            is_shut: false,
        };
        let stream = Arc::new(Stream { state: Mutex::new(state), changed: Condvar::new() });
        (Self(Arc::clone(&stream)), Peer(stream))
    }

    pub(crate) fn is_tls(&self) -> bool {
        false
    }

    /// Connects in the network of the run.
    pub(crate) fn connect(
        address: &SocketAddr,
        deadline: &mut Deadline,
        _: Duration,
    ) -> io::Result<Self> {
        let network = NETWORK.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        let network = network.ok_or(io::ErrorKind::Unsupported)?;
        let (socket, peer) = Self::new();
        let carrier = network.connect(address.port(), peer);
        socket.0.state.lock().carrier = Carried(Some(carrier));
        let left = deadline.left()?;
        let opened = socket.0.wait(left, |state| match (state.is_shut, state.is_open) {
            (true, _) => Some(Err(io::Error::from(io::ErrorKind::ConnectionRefused))),
            (false, is_open) => is_open.then_some(Ok(())),
        });
        match opened {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            opened => opened??,
        }
        Ok(socket)
    }

    pub(crate) fn connect_unix(_: &Path, _: &mut Deadline, _: Duration) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn read_within(
        &self,
        buffer: &mut [u8],
        left: Duration,
        _: &mut Timeouts,
    ) -> io::Result<usize> {
        self.0.wait(left, |state| State::take(&mut state.to_client, state.is_shut, buffer))
    }

    pub(crate) fn write_within(
        &self,
        bytes: &[u8],
        left: Duration,
        _: &mut Timeouts,
    ) -> io::Result<usize> {
        self.0.wait(left, |state| state.write(bytes))?
    }

    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.0.now(|state| state.write(bytes))?
    }

    pub(crate) fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.now(|state| State::take(&mut state.to_client, state.is_shut, buffer))
    }

    pub(crate) fn has_no_input(&self) -> bool {
        let state: MutexGuard<'_, State> = self.0.state.lock();
        state.to_client.is_empty() && !state.is_shut
    }

    /// Closes the connection, in both directions.
    pub(crate) fn shut(&self) {
        if let Some(carrier) = self.0.shut() {
            carrier.close();
        }
    }

    pub(crate) fn tls_error(&self) -> Option<Reason> {
        None
    }
}

pub(crate) fn tls_error(_: &io::Error) -> Option<Reason> {
    None
}

/// What was written before is delivered all the same.
impl Drop for Socket {
    fn drop(&mut self) {
        let carrier = self.0.state.lock().carrier.0.take();
        if let Some(carrier) = carrier {
            carrier.close();
        }
    }
}

impl Peer {
    /// The connection is made.
    pub(crate) fn open(&self) {
        self.0.state.lock().is_open = true;
        self.0.changed.notify_all();
    }

    /// So many bytes have left the network.
    pub(crate) fn delivered(&self, bytes: usize) {
        {
            let mut state = self.0.state.lock();
            state.under_way = state.under_way.saturating_sub(bytes);
        }
        self.0.changed.notify_all();
    }

    /// The client's system accepts so many bytes more, and no others until the end.
    pub(crate) fn accept_only(&self, bytes: usize) {
        self.0.state.lock().accepts = bytes;
    }

    /// Ends the connection; what has not been read is lost.
    pub(crate) fn reset(&self) {
        self.0.state.lock().to_client.clear();
        drop(self.0.shut());
    }

    pub(crate) fn reply(&self, bytes: &[u8]) {
        self.0.state.lock().to_client.extend(bytes);
        self.0.changed.notify_all();
    }

    /// Closes the connection, in both directions.
    pub(crate) fn shut(&self) {
        drop(self.0.shut());
    }
}
