//! A stream of bytes to a server that several threads share: one reads, another writes, a third
//! shuts it.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
#[cfg(unix)]
use std::os::unix::net::UnixStream;
#[cfg(unix)]
use std::path::Path;
use std::time::Duration;

#[cfg(unix)]
use socket2::{Domain, SockAddr, Type};
use socket2::{SockRef, TcpKeepalive};

use crate::error::Reason;

#[cfg(feature = "tls")]
use crate::store::redis::address::tls_config::TlsConfig;
use crate::store::redis::net::deadline::{Deadline, Now};
#[cfg(unix)]
use crate::store::redis::net::deadline::{is_timeout_or_signal, socket_timeout};
#[cfg(feature = "tls")]
use crate::store::redis::net::tls_stream::{self, TlsStream};

/// A connected socket.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
    // Much larger than the others.
    #[cfg(feature = "tls")]
    Tls(Box<TlsStream>),
}

impl Socket {
    /// Whether it speaks TLS.
    pub(crate) fn is_tls(&self) -> bool {
        match self {
            Self::Tcp(_) => false,
            #[cfg(unix)]
            Self::Unix(_) => false,
            #[cfg(feature = "tls")]
            Self::Tls(_) => true,
        }
    }

    /// Connects by the deadline. `timeout` is the longest that a read or a write may take until
    /// another is set, and that sent bytes may go unacknowledged.
    pub(crate) fn connect(
        address: &SocketAddr,
        deadline: &mut Deadline,
        timeout: Duration,
    ) -> io::Result<Self> {
        Ok(Self::Tcp(tcp(address, deadline, timeout)?))
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
        let stream = tcp(address, deadline, timeout)?;
        let stream = TlsStream::handshake(stream, tls.config(), host, deadline)?;
        let socket = Self::Tls(Box::new(stream));
        socket.set_timeouts(timeout)?;
        Ok(socket)
    }

    /// Connects to a server on this host. It waits only while the server's backlog is full.
    #[cfg(unix)]
    pub(crate) fn connect_unix(
        path: &Path,
        deadline: &mut Deadline,
        timeout: Duration,
    ) -> io::Result<Self> {
        let stream = socket2::Socket::new(Domain::UNIX, Type::STREAM, None)?;
        let path = SockAddr::unix(path)?;
        loop {
            // It bounds a connect, too. Where it does not, a full backlog is refused at once.
            stream.set_write_timeout(Some(socket_timeout(deadline.left()?)))?;
            match stream.connect(&path) {
                Err(error) if is_timeout_or_signal(&error) => deadline.refresh(),
                connected => break connected?,
            };
        }
        let socket = Self::Unix(stream.into());
        socket.set_timeouts(timeout)?;
        Ok(socket)
    }

    fn set_timeouts(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(timeout)?;
        self.set_write_timeout(timeout)
    }

    pub(crate) fn set_read_timeout(&self, timeout: Duration) -> io::Result<()> {
        let timeout = Some(timeout);
        match self {
            Self::Tcp(stream) => stream.set_read_timeout(timeout),
            #[cfg(unix)]
            Self::Unix(stream) => stream.set_read_timeout(timeout),
            #[cfg(feature = "tls")]
            Self::Tls(tls) => tls.stream().set_read_timeout(timeout),
        }
    }

    pub(crate) fn set_write_timeout(&self, timeout: Duration) -> io::Result<()> {
        let timeout = Some(timeout);
        match self {
            Self::Tcp(stream) => stream.set_write_timeout(timeout),
            #[cfg(unix)]
            Self::Unix(stream) => stream.set_write_timeout(timeout),
            #[cfg(feature = "tls")]
            Self::Tls(tls) => tls.stream().set_write_timeout(timeout),
        }
    }

    /// Writes what the kernel accepts without blocking: `WouldBlock` if that is nothing. One thread
    /// may do so at a time, and none may write in another way. On other systems than Linux, a
    /// thread that reads meanwhile may get `WouldBlock` too early.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write_now(bytes),
            #[cfg(unix)]
            Self::Unix(stream) => stream.write_now(bytes),
            #[cfg(feature = "tls")]
            Self::Tls(tls) => tls.try_write(bytes),
        }
    }

    /// Reads what has arrived without blocking: `WouldBlock` if that is nothing, over TLS also if
    /// it is no whole record. One thread may read at a time. On other systems than Linux, a thread
    /// that writes meanwhile may get `WouldBlock` too early.
    pub(crate) fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read_now(buffer),
            #[cfg(unix)]
            Self::Unix(stream) => stream.read_now(buffer),
            #[cfg(feature = "tls")]
            Self::Tls(tls) => tls.try_read(buffer),
        }
    }

    /// Whether there is nothing to be read, not even its end. Does not block. On other systems than
    /// Linux, a thread that reads or writes meanwhile may get `WouldBlock` too early.
    pub(crate) fn has_no_input(&self) -> bool {
        let mut byte = [0];
        let peeked = match self {
            Self::Tcp(stream) => stream.peek_now(&mut byte),
            #[cfg(unix)]
            Self::Unix(stream) => stream.peek_now(&mut byte),
            #[cfg(feature = "tls")]
            Self::Tls(tls) => tls.stream().peek_now(&mut byte),
        };
        peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Ends it for every thread that reads or writes it.
    pub(crate) fn shut(&self) {
        // It fails if the peer was faster: then it is closed already.
        drop(match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Both),
            #[cfg(unix)]
            Self::Unix(stream) => stream.shutdown(Shutdown::Both),
            #[cfg(feature = "tls")]
            Self::Tls(tls) => tls.stream().shutdown(Shutdown::Both),
        });
    }

    /// Why TLS failed, if that is what broke the connection.
    pub(crate) fn tls_error(&self) -> Option<Reason> {
        match self {
            #[cfg(feature = "tls")]
            Self::Tls(tls) => tls.error(),
            _ => None,
        }
    }
}

/// Why TLS failed, if that is the cause of an error of connecting.
pub(crate) fn tls_error(error: &io::Error) -> Option<Reason> {
    #[cfg(feature = "tls")]
    return tls_stream::tls_error(error);
    #[cfg(not(feature = "tls"))]
    {
        let _ = error;
        None
    }
}

fn tcp(address: &SocketAddr, deadline: &Deadline, timeout: Duration) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(address, deadline.left()?)?;
    let socket = SockRef::from(&stream);
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(Duration::from_secs(15)))?;
    // Without it, the kernel keeps bytes for a peer that vanished for a quarter of an hour, and
    // delivers them when it comes back.
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(timeout))?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    Ok(stream)
}

impl Read for &Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => (&*stream).read(buffer),
            #[cfg(unix)]
            Socket::Unix(stream) => (&*stream).read(buffer),
            #[cfg(feature = "tls")]
            Socket::Tls(tls) => tls.read(buffer),
        }
    }
}

impl Write for &Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => (&*stream).write(bytes),
            #[cfg(unix)]
            Socket::Unix(stream) => (&*stream).write(bytes),
            #[cfg(feature = "tls")]
            Socket::Tls(tls) => tls.write(bytes),
        }
    }

    /// Nothing is buffered: each write is passed on at once, or reports that it was not.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
