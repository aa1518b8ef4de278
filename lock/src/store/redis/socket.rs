//! A stream of bytes to a server, as several threads may hold it: one reads, another writes, a third shuts it.

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

#[cfg(feature = "tls")]
use super::limit::Limit;
#[cfg(feature = "tls")]
use super::tls::{self, TlsStream};
#[cfg(feature = "tls")]
use super::trust::Trust;

/// A connected socket.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
    // Much larger than the others.
    #[cfg(feature = "tls")]
    Tls(Box<TlsStream>),
}

impl Socket {
    /// Connects within `limit`. `timeout` is the longest that a read or a write may take until another is set, and that
    /// sent bytes may go unacknowledged.
    pub(super) fn connect(
        address: &SocketAddr,
        limit: Duration,
        timeout: Duration,
    ) -> io::Result<Self> {
        Ok(Self::Tcp(tcp(address, limit, timeout)?))
    }

    /// The same over TLS, to a server that shows a certificate for `host`.
    #[cfg(feature = "tls")]
    pub(super) fn connect_tls(
        address: &SocketAddr,
        (trust, host): (&Trust, &str),
        limit: Duration,
        timeout: Duration,
    ) -> io::Result<Self> {
        let mut until = Limit::after(limit);
        let stream = tcp(address, limit, timeout)?;
        let stream = TlsStream::shake_hands(stream, trust.config(), host, &mut until)?;
        let socket = Self::Tls(Box::new(stream));
        socket.set_timeouts(timeout)?;
        Ok(socket)
    }

    /// Connects to a server of this host. It waits only while as many as the server lets wait are before it.
    #[cfg(unix)]
    pub(super) fn connect_unix(
        path: &Path,
        limit: Duration,
        timeout: Duration,
    ) -> io::Result<Self> {
        let stream = socket2::Socket::new(Domain::UNIX, Type::STREAM, None)?;
        // It bounds a connect, too. Where it does not, a full queue is refused at once.
        stream.set_write_timeout(Some(limit))?;
        stream.connect(&SockAddr::unix(path)?)?;
        let socket = Self::Unix(stream.into());
        socket.set_timeouts(timeout)?;
        Ok(socket)
    }

    fn set_timeouts(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(timeout)?;
        self.set_write_timeout(timeout)
    }

    pub(super) fn set_read_timeout(&self, timeout: Duration) -> io::Result<()> {
        let timeout = Some(timeout);
        match self {
            Self::Tcp(stream) => stream.set_read_timeout(timeout),
            #[cfg(unix)]
            Self::Unix(stream) => stream.set_read_timeout(timeout),
            #[cfg(feature = "tls")]
            Self::Tls(tls) => tls.stream().set_read_timeout(timeout),
        }
    }

    pub(super) fn set_write_timeout(&self, timeout: Duration) -> io::Result<()> {
        let timeout = Some(timeout);
        match self {
            Self::Tcp(stream) => stream.set_write_timeout(timeout),
            #[cfg(unix)]
            Self::Unix(stream) => stream.set_write_timeout(timeout),
            #[cfg(feature = "tls")]
            Self::Tls(tls) => tls.stream().set_write_timeout(timeout),
        }
    }

    /// Closes it for whoever reads or writes it, on this thread or another.
    pub(super) fn shut(&self) {
        // It fails if the peer was faster. Then it is closed already.
        drop(match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Both),
            #[cfg(unix)]
            Self::Unix(stream) => stream.shutdown(Shutdown::Both),
            #[cfg(feature = "tls")]
            Self::Tls(tls) => tls.stream().shutdown(Shutdown::Both),
        });
    }

    /// Why one side does not believe the other, if that is what broke the connection.
    pub(super) fn distrust(&self) -> Option<String> {
        match self {
            #[cfg(feature = "tls")]
            Self::Tls(tls) => tls.distrust(),
            _ => None,
        }
    }
}

/// The same, of an error of connecting.
pub(super) fn distrust(error: &io::Error) -> Option<String> {
    #[cfg(feature = "tls")]
    return tls::distrust(error);
    #[cfg(not(feature = "tls"))]
    {
        let _ = error;
        None
    }
}

fn tcp(address: &SocketAddr, limit: Duration, timeout: Duration) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(address, limit)?;
    let socket = SockRef::from(&stream);
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(Duration::from_secs(15)))?;
    // Without it, a peer that vanished keeps bytes in our kernel for a quarter of an hour, to be delivered when it
    // comes back.
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

    /// Nothing is kept: each write is passed on at once, or answers that it was not.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
