//! The open sockets to one server, all shut at once when another server takes over.
//!
//! Taking the sockets to shut and raising the generation is one step, under one lock. A connecting
//! thread reads the generation before the address, and its socket is refused if the generation has
//! passed. So no connection to the old server remains, whatever the order of events.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crate::model::sync::Mutex;
use crate::store::redis::net::socket::Socket;

/// The open sockets to one server. The generation counts how often all sockets were shut.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    /// Number of times all sockets were shut. Written with `open` locked.
    generation: AtomicU64,
    open: Mutex<Vec<Weak<Socket>>>,
}

impl Sockets {
    /// Returns the number of times all sockets were shut. Read the generation before the server's
    /// address.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Adds a socket connected in `generation`. Fails if all sockets were shut since: the socket
    /// may lead to the wrong server.
    pub(crate) fn admit(&self, socket: &Arc<Socket>, generation: u64) -> io::Result<()> {
        let mut open = self.open.lock();
        if self.generation() != generation {
            let reason = "another server took over meanwhile, or the client was shut down";
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, reason));
        }
        open.retain(|open| open.strong_count() > 0);
        open.push(Arc::downgrade(socket));
        Ok(())
    }

    /// Returns the number of open sockets.
    pub(crate) fn open(&self) -> usize {
        self.open.lock().iter().filter(|open| open.strong_count() > 0).count()
    }

    /// Shuts all sockets, idle or in use, and begins a new generation. A thread waiting for a reply
    /// gets an error at once.
    pub(crate) fn shut_all(&self) {
        self.shut_all_if(|_| true);
    }

    /// Shuts all sockets if `generation` is the present generation. Otherwise does nothing: the
    /// present sockets lead to another server.
    pub(crate) fn shut_all_of(&self, generation: u64) {
        self.shut_all_if(|present| present == generation);
    }

    /// Shuts all sockets and begins a new generation, if `condition` accepts the present
    /// generation.
    fn shut_all_if(&self, condition: impl FnOnce(u64) -> bool) {
        let open = {
            let mut open = self.open.lock();
            if !condition(self.generation()) {
                return;
            }
            self.generation.fetch_add(1, Ordering::Release);
            std::mem::take(&mut *open)
        };
        for socket in open.iter().filter_map(Weak::upgrade) {
            socket.shut();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::Duration;

    use super::*;
    use crate::store::redis::net::deadline::Deadline;

    #[test]
    fn shut_all_runs_once_and_refuses_sockets_opened_meanwhile() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let limit = Duration::from_secs(10);
        let connect = || {
            let address = listener.local_addr().unwrap();
            Arc::new(Socket::connect(&address, &mut Deadline::after(limit), limit).unwrap())
        };
        let sockets = Sockets::default();
        let (before, late) = (connect(), connect());
        let generation = sockets.generation();
        sockets.admit(&before, generation).unwrap();
        sockets.shut_all_of(generation);
        assert_eq!(before.try_read(&mut [0]).unwrap(), 0);
        assert!(sockets.admit(&late, generation).is_err());

        let after = connect();
        sockets.admit(&after, sockets.generation()).unwrap();
        // Another thread has seen the same failover.
        sockets.shut_all_of(generation);
        assert_eq!(sockets.generation(), generation + 1);
        let error = after.try_read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }
}
