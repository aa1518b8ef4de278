//! The open sockets to one server, so that all can be shut at once when it is no longer the one to speak to.

use std::io;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::socket::Socket;

#[derive(Debug, Default)]
pub(super) struct Sockets {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// How often all were shut.
    era: u64,
    open: Vec<Weak<Socket>>,
}

impl Sockets {
    /// How often all were shut. Read it before looking where to connect to.
    pub(super) fn era(&self) -> u64 {
        self.state.lock().era
    }

    /// Takes in a socket that was connected in `era`. An error if all were shut since: it may lead to the wrong server.
    pub(super) fn admit(&self, socket: &Arc<Socket>, era: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        if state.era != era {
            let reason = "another server took over meanwhile";
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, reason));
        }
        state.open.retain(|open| open.strong_count() > 0);
        state.open.push(Arc::downgrade(socket));
        Ok(())
    }

    #[expect(dead_code, reason = "the next step: a master that moves")]
    /// Shuts all, idle or in use. Whoever waits for an answer gets an error at once.
    pub(super) fn shut_all(&self) {
        let open = {
            let mut state = self.state.lock();
            state.era += 1;
            std::mem::take(&mut state.open)
        };
        for socket in open.iter().filter_map(Weak::upgrade) {
            socket.shut();
        }
    }
}
