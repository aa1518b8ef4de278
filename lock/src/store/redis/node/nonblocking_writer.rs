//! Writes as many bytes as the kernel accepts at once, and retains the rest for later.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use hashed_wheel::Clock;

use crate::model::sync::SystemClock;
use crate::store::redis::net::deadline::is_timeout_or_signal;
use crate::store::redis::net::socket::Socket;

/// A writer that never waits for the peer to read.
pub(crate) struct NonblockingWriter {
    pub(crate) socket: Arc<Socket>,
    /// The bytes of the last call, of which `written` are written. Only the bytes of one call are
    /// retained, so the buffer is bounded.
    bytes: Vec<u8>,
    written: usize,
    /// The time since when the kernel accepts nothing, while bytes are left.
    pub(crate) stuck_since: Option<Instant>,
}

impl NonblockingWriter {
    pub(crate) fn new(socket: Arc<Socket>) -> Self {
        Self { socket, bytes: Vec::new(), written: 0, stuck_since: None }
    }

    /// Writes the bytes left and then the bytes appended by `next`, as many as the kernel accepts.
    /// `next` is not called while bytes are left.
    pub(crate) fn write(&mut self, next: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        let mut next = Some(next);
        loop {
            let rest = self.bytes.get(self.written..).unwrap_or_default();
            if rest.is_empty() {
                // Everything is written. A new buffer, to free the memory of a long buffer.
                (self.bytes, self.written, self.stuck_since) = (Vec::new(), 0, None);
                // Once per call: a thread that adds commands meanwhile also writes them.
                let Some(next) = next.take() else { return Ok(()) };
                next(&mut self.bytes);
                if self.bytes.is_empty() {
                    return Ok(());
                }
                continue;
            }
            match self.socket.try_write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    self.written += written;
                    self.stuck_since = None;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_timeout_or_signal(&error) => {
                    self.stuck_since.get_or_insert_with(|| SystemClock.now());
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::store::redis::net::deadline::Deadline;
    use crate::store::redis::net::socket::Timeouts;

    #[test]
    fn bytes_that_the_kernel_does_not_accept_are_written_later() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let timeout = Duration::from_secs(20);
        let address = listener.local_addr().unwrap();
        let socket =
            Arc::new(Socket::connect(&address, &mut Deadline::after(timeout), timeout).unwrap());
        let (mut peer, _) = listener.accept().unwrap();
        let mut writer = NonblockingWriter::new(Arc::clone(&socket));
        let mut packed: Vec<Vec<u8>> = Vec::new();
        while writer.stuck_since.is_none() {
            let next = |bytes: &mut Vec<u8>| {
                let number = u8::try_from(packed.len() % 251).unwrap();
                bytes.resize(1_000_003, number);
                packed.push(bytes.clone());
            };
            writer.write(next).unwrap();
        }
        // Nothing is appended while bytes are left.
        writer.write(|_| panic!("bytes are left to write")).unwrap();
        let expected = packed.concat();
        let mut read = vec![0; expected.len()];
        let mut filled = 0;
        while filled < read.len() {
            filled += peer.read(&mut read[filled..]).unwrap();
            if writer.stuck_since.is_some() {
                writer.write(|_| {}).unwrap();
            }
        }
        assert_eq!(read, expected);
        // Reads still wait: another thread writes the byte.
        let read = move || {
            let mut timeouts = Timeouts::of_new(timeout);
            socket.read_within(&mut [0], timeout, &mut timeouts).unwrap()
        };
        let reader = thread::Builder::new().spawn(read).unwrap();
        peer.write_all(b"a").unwrap();
        assert_eq!(reader.join().unwrap(), 1);
    }

    #[cfg(feature = "tls")]
    #[test]
    fn tls_writer_sends_bytes_later_when_the_kernel_accepts_no_more() {
        use socket2::SockRef;
        use wheellock_fixture::{Certificates, ClientCertificates, Server};

        use crate::ops::value::Value;
        use crate::store::redis::address::tls_config::TlsConfig;
        use crate::store::redis::address::tls_settings::TlsSettings;
        use crate::store::redis::net::connection::ArrivedReader;
        use crate::store::redis::resp::decode::Decoder;
        use crate::store::redis::resp::encode::Command;

        let certificates = Certificates::new();
        let server = Server::builder().tls(&certificates, ClientCertificates::Ignored).start();
        let settings = TlsSettings::new().authority_pem(certificates.authority().text());
        let trust = TlsConfig::new(&settings).unwrap();
        let timeout = Duration::from_secs(20);
        let (address, host) = (server.tls_address(), server.tls_address().ip().to_string());
        let socket =
            Socket::connect_tls(&address, (&trust, &host), &mut Deadline::after(timeout), timeout)
                .unwrap();
        let Socket::Tls(tls) = &socket else { panic!("{socket:?}") };
        SockRef::from(tls.stream()).set_send_buffer_size(4096).unwrap();
        let socket = Arc::new(socket);
        let mut writer = NonblockingWriter::new(Arc::clone(&socket));
        let mut replies = Decoder::new();
        let mut stuck = 0;
        for number in 0..20 {
            let word = format!("{number}:{}", "x".repeat(100_000));
            writer.write(|bytes| bytes.extend(Command::of(&["ECHO", &word]))).unwrap();
            while writer.stuck_since.is_some() {
                stuck += 1;
                thread::yield_now();
                writer.write(|_| {}).unwrap();
            }
            let mut connection = ArrivedReader(&socket);
            let reply = loop {
                match replies.next(&mut connection) {
                    Err(error) if is_timeout_or_signal(&error) => thread::yield_now(),
                    reply => break reply.unwrap(),
                }
            };
            assert_eq!(reply, Value::Text(word));
        }
        assert!(stuck > 0, "the kernel accepted everything at once");
    }
}
