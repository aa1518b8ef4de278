//! A stream of bytes to a server, shared by several threads: a thread reads, another thread writes,
//! a third shuts the stream. Reads and writes end within the time left, to the millisecond.

use std::io::{self, Read};
use std::net::{Shutdown, SocketAddr};
#[cfg(unix)]
use std::path::Path;
use std::time::Duration;

use rustix::event::PollFlags;
use socket2::{Domain, SockAddr, TcpKeepalive, Type};

use crate::error::Reason;
#[cfg(feature = "tls")]
use crate::store::redis::address::tls_config::TlsConfig;
#[cfg(unix)]
use crate::store::redis::net::deadline::is_timeout_or_signal;
use crate::store::redis::net::deadline::{
    Deadline, Now, is_close_enough, socket_timeout, wait_for,
};
#[cfg(feature = "tls")]
use crate::store::redis::net::tls_stream::{self, TlsStream};

/// A connected socket.
#[derive(Debug)]
pub(crate) enum Socket {
    /// TCP, or a unix socket.
    Plain(socket2::Socket),
    // Boxed, because a `TlsStream` is much larger than a socket.
    #[cfg(feature = "tls")]
    Tls(Box<TlsStream>),
}

/// The current timeouts of a socket, so that not every read and write sets a timeout.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    read: Duration,
    write: Duration,
}

impl Timeouts {
    /// Returns the timeouts of a socket connected with `timeout`.
    pub(crate) fn of_new(timeout: Duration) -> Self {
        Self { read: timeout, write: timeout }
    }
}

impl Socket {
    /// Returns whether the socket speaks TLS.
    pub(crate) fn is_tls(&self) -> bool {
        !matches!(self, Self::Plain(_))
    }

    /// Connects by the deadline. `timeout` is the longest time for sent bytes to be unacknowledged,
    /// and the initial timeout of reads and writes.
    pub(crate) fn connect(
        address: &SocketAddr,
        deadline: &mut Deadline,
        timeout: Duration,
    ) -> io::Result<Self> {
        let socket = socket2::Socket::new(Domain::for_address(*address), Type::STREAM, None)?;
        socket.connect_timeout(&SockAddr::from(*address), deadline.left()?)?;
        socket.set_tcp_nodelay(true)?;
        socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(Duration::from_secs(15)))?;
        // Without this option, the kernel retains bytes for a vanished peer for a quarter of an
        // hour, and delivers the bytes when the peer is back.
        #[cfg(target_os = "linux")]
        socket.set_tcp_user_timeout(Some(timeout))?;
        Self::plain(socket, timeout)
    }

    /// Connects over TLS by the deadline, with `timeout` as in [`connect`](Self::connect). The
    /// server must present a certificate for `host`.
    #[cfg(feature = "tls")]
    pub(crate) fn connect_tls(
        address: &SocketAddr,
        (tls, host): (&TlsConfig, &str),
        deadline: &mut Deadline,
        timeout: Duration,
    ) -> io::Result<Self> {
        let Self::Plain(socket) = Self::connect(address, deadline, timeout)? else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let stream = TlsStream::handshake(socket.into(), tls.config(), host, deadline)?;
        Ok(Self::Tls(Box::new(stream)))
    }

    /// Connects to a server on this host by the deadline. Waits only while the server's backlog is
    /// full.
    #[cfg(unix)]
    pub(crate) fn connect_unix(
        path: &Path,
        deadline: &mut Deadline,
        timeout: Duration,
    ) -> io::Result<Self> {
        let socket = socket2::Socket::new(Domain::UNIX, Type::STREAM, None)?;
        let path = SockAddr::unix(path)?;
        loop {
            // The write timeout also bounds a connect. On systems without this bound, a full
            // backlog is refused at once.
            let left = deadline.left()?;
            socket.set_write_timeout(Some(socket_timeout(left).unwrap_or(left)))?;
            match socket.connect(&path) {
                Err(error) if is_timeout_or_signal(&error) => deadline.refresh(),
                connected => break connected?,
            };
        }
        Self::plain(socket, timeout)
    }

    /// Sets both timeouts of a connected socket, and wraps the socket without TLS.
    fn plain(socket: socket2::Socket, timeout: Duration) -> io::Result<Self> {
        socket.set_read_timeout(Some(timeout))?;
        socket.set_write_timeout(Some(timeout))?;
        Ok(Self::Plain(socket))
    }

    /// Waits for bytes for at most `left`, and reads the bytes that have arrived. May fail earlier
    /// with `WouldBlock`, `TimedOut` or `Interrupted`. Only one thread may read at a time.
    pub(crate) fn read_within(
        &self,
        buffer: &mut [u8],
        left: Duration,
        timeouts: &mut Timeouts,
    ) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => {
                let Some(timeout) = socket_timeout(left) else {
                    wait_for(socket, PollFlags::IN, left)?;
                    return socket.read_now(buffer);
                };
                if !is_close_enough(timeouts.read, left) {
                    socket.set_read_timeout(Some(timeout))?;
                    timeouts.read = timeout;
                }
                (&*socket).read(buffer)
            }
            #[cfg(feature = "tls")]
            Self::Tls(tls) => tls.read_within(buffer, left),
        }
    }

    /// Writes at least one byte, and as many as the kernel accepts, waits for at most `left`, and
    /// returns the number of bytes. May fail earlier, like [`read_within`](Self::read_within). Over
    /// TLS, some bytes may be sent before such an error: write the same bytes again.
    pub(crate) fn write_within(
        &self,
        bytes: &[u8],
        left: Duration,
        timeouts: &mut Timeouts,
    ) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => {
                let Some(timeout) = socket_timeout(left) else {
                    wait_for(socket, PollFlags::OUT, left)?;
                    return socket.write_now(bytes);
                };
                if !is_close_enough(timeouts.write, left) {
                    socket.set_write_timeout(Some(timeout))?;
                    timeouts.write = timeout;
                }
                socket.write_blocking(bytes)
            }
            #[cfg(feature = "tls")]
            Self::Tls(tls) => tls.write_within(bytes, left),
        }
    }

    /// Writes as many bytes as the kernel accepts, without blocking. Fails with `WouldBlock` if the
    /// kernel accepts none. Only one thread may write at a time, by this method only. On systems
    /// other than Linux, a concurrent reader may get `WouldBlock` too early.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write_now(bytes),
            #[cfg(feature = "tls")]
            Self::Tls(tls) => tls.try_write(bytes),
        }
    }

    /// Reads the arrived bytes, without blocking. Fails with `WouldBlock` if there are none, over
    /// TLS also without a whole record. Only one thread may read at a time. On systems other than
    /// Linux, a concurrent writer may get `WouldBlock` too early.
    pub(crate) fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read_now(buffer),
            #[cfg(feature = "tls")]
            Self::Tls(tls) => tls.try_read(buffer),
        }
    }

    /// Returns whether there is nothing to read, neither bytes nor the end of the stream. Does not
    /// block. On systems other than Linux, a concurrent reader or writer may get `WouldBlock` too
    /// early.
    pub(crate) fn has_no_input(&self) -> bool {
        let mut byte = [0];
        let peeked = match self {
            Self::Plain(socket) => socket.peek_now(&mut byte),
            #[cfg(feature = "tls")]
            Self::Tls(tls) => tls.stream().peek(&mut byte),
        };
        peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Shuts the socket for every reader and writer.
    pub(crate) fn shut(&self) {
        // Fails if the peer was faster: the socket is closed already.
        drop(match self {
            Self::Plain(socket) => socket.shutdown(Shutdown::Both),
            #[cfg(feature = "tls")]
            Self::Tls(tls) => tls.stream().shutdown(Shutdown::Both),
        });
    }

    /// Returns the TLS error that broke the connection, if any.
    pub(crate) fn tls_error(&self) -> Option<Reason> {
        match self {
            Self::Plain(_) => None,
            #[cfg(feature = "tls")]
            Self::Tls(tls) => tls.error(),
        }
    }
}

/// Returns the TLS error behind an error of connecting, if any.
pub(crate) fn tls_error(error: &io::Error) -> Option<Reason> {
    #[cfg(feature = "tls")]
    return tls_stream::tls_error(error);
    #[cfg(not(feature = "tls"))]
    {
        let _ = error;
        None
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    #[test]
    fn reads_end_on_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let read = |number: u64| {
            let length = Duration::from_millis(1 + 37 * number);
            let mut deadline = Deadline::after(length);
            let socket = Socket::connect(&address, &mut deadline, length).unwrap();
            let mut timeouts = Timeouts::of_new(length);
            while let Ok(left) = deadline.refresh().left() {
                let error = socket.read_within(&mut [0], left, &mut timeouts).unwrap_err();
                assert!(is_timeout_or_signal(&error), "{error}");
            }
            deadline.read_at().saturating_duration_since(deadline.instant())
        };
        let mut late: Vec<_> = thread::scope(|scope| {
            let reads: Vec<_> = (0..31).map(|number| scope.spawn(move || read(number))).collect();
            reads.into_iter().map(|read| read.join().unwrap()).collect()
        });
        late.sort_unstable();
        // The median: a busy machine delays few of them as much.
        assert!(late[late.len() / 2] < Duration::from_millis(10), "{late:?}");
    }
}
