//! A stream of bytes to a server, as several threads may hold it: one reads, another writes, a third shuts it.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

/// A connected socket.
#[derive(Debug)]
pub(super) struct Socket {
    stream: TcpStream,
}

impl Socket {
    /// Connects within `limit`. `timeout` is the longest that a read or a write may take until another is set, and that
    /// sent bytes may go unacknowledged.
    pub(super) fn connect(
        address: &SocketAddr,
        limit: Duration,
        timeout: Duration,
    ) -> io::Result<Self> {
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
        Ok(Self { stream })
    }

    pub(super) fn set_read_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.stream.set_read_timeout(Some(timeout))
    }

    pub(super) fn set_write_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.stream.set_write_timeout(Some(timeout))
    }

    /// Closes it for whoever reads or writes it, on this thread or another.
    pub(super) fn shut(&self) {
        // It fails if the peer was faster. Then it is closed already.
        drop(self.stream.shutdown(Shutdown::Both));
    }
}

impl Read for &Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&self.stream).read(buffer)
    }
}

impl Write for &Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&self.stream).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        (&self.stream).flush()
    }
}
