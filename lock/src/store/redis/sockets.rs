//! The open sockets to one server, so that all can be shut at once when it is no longer the one to speak to.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::socket::Socket;

#[derive(Debug, Default)]
pub(super) struct Sockets {
    /// How often all were shut. Written with `open` locked.
    era: AtomicU64,
    open: Mutex<Vec<Weak<Socket>>>,
}

impl Sockets {
    /// How often all were shut. Read it before looking where to connect to.
    pub(super) fn era(&self) -> u64 {
        self.era.load(Ordering::Acquire)
    }

    /// Takes in a socket that was connected in `era`. An error if all were shut since: it may lead to the wrong server.
    pub(super) fn admit(&self, socket: &Arc<Socket>, era: u64) -> io::Result<()> {
        let mut open = self.open.lock();
        if self.era() != era {
            let reason = "another server took over meanwhile";
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, reason));
        }
        open.retain(|open| open.strong_count() > 0);
        open.push(Arc::downgrade(socket));
        Ok(())
    }

    /// Shuts all, idle or in use. Whoever waits for an answer gets an error at once.
    pub(super) fn shut_all(&self) {
        self.shut_all_if(|_| true);
    }

    /// Shuts all of `era`. None if they were shut before, and those that are open now lead elsewhere.
    pub(super) fn shut_all_of(&self, era: u64) {
        self.shut_all_if(|present| present == era);
    }

    fn shut_all_if(&self, condition: impl FnOnce(u64) -> bool) {
        let open = {
            let mut open = self.open.lock();
            if !condition(self.era()) {
                return;
            }
            self.era.fetch_add(1, Ordering::Release);
            std::mem::take(&mut *open)
        };
        for socket in open.iter().filter_map(Weak::upgrade) {
            socket.shut();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;
    use std::time::Duration;

    use super::*;

    #[test]
    fn all_are_shut_once_and_one_that_was_being_opened_meanwhile_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let limit = Duration::from_secs(10);
        let connect = || {
            let address = listener.local_addr().unwrap();
            Arc::new(Socket::connect(&address, limit, limit).unwrap())
        };
        let sockets = Sockets::default();
        let (before, late) = (connect(), connect());
        let era = sockets.era();
        sockets.admit(&before, era).unwrap();
        sockets.shut_all_of(era);
        assert_eq!((&*before).read(&mut [0]).unwrap(), 0);
        assert!(sockets.admit(&late, era).is_err());

        let after = connect();
        sockets.admit(&after, sockets.era()).unwrap();
        // Somebody else has seen the same switch.
        sockets.shut_all_of(era);
        assert_eq!(sockets.era(), era + 1);
        after.set_read_timeout(Duration::from_millis(1)).unwrap();
        let error = (&*after).read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }
}
