//! Name resolution with a deadline. The operating system's has none, so it runs on a thread of its own.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use parking_lot::Mutex;

/// Resolves one host. At most one thread of it runs at a time: a resolver that hangs is waited for, not piled up.
#[derive(Debug, Default)]
pub(super) struct Resolver {
    running: Mutex<Option<Receiver<io::Result<Vec<SocketAddr>>>>>,
}

impl Resolver {
    /// The addresses of `host`, or an error within `timeout`.
    pub(super) fn resolve(
        &self,
        host: &str,
        port: u16,
        timeout: Duration,
    ) -> io::Result<Vec<SocketAddr>> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let answer = {
            let mut running = self.running.lock();
            if let Some(answer) = &*running {
                answer.clone()
            } else {
                let answer = start(host.to_owned(), port)?;
                running.insert(answer).clone()
            }
        };
        match answer.recv_timeout(timeout) {
            Ok(addresses) => {
                *self.running.lock() = None;
                addresses
            }
            Err(RecvTimeoutError::Timeout) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the name was not resolved in time",
            )),
            // Another caller took the answer, or the thread died: the next call starts afresh.
            Err(RecvTimeoutError::Disconnected) => {
                *self.running.lock() = None;
                Err(io::Error::new(
                    io::ErrorKind::Interrupted,
                    "the resolver gave no answer",
                ))
            }
        }
    }
}

fn start(host: String, port: u16) -> io::Result<Receiver<io::Result<Vec<SocketAddr>>>> {
    let (tell, answer) = bounded(1);
    thread::Builder::new()
        .name("lock-resolver".to_owned())
        .spawn(move || {
            let addresses = (host.as_str(), port)
                .to_socket_addrs()
                .map(Iterator::collect);
            // Nobody waits any more if the deadline has passed, and the next caller takes the answer.
            drop(tell.send(addresses));
        })?;
    Ok(answer)
}
