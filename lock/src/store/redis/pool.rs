//! The connections that callers share: the last one used is the next one taken, and their number is bounded.

use std::fmt;
use std::io;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use super::connection::{Connection, Limit};
use super::server::Server;
use crate::store::Failure;

/// Last in, first out: the connection that was used last is the one whose memory is warm. The rest lie idle until they
/// are needed, or one breaks.
pub(super) struct Pool {
    server: Arc<Server>,
    limit: usize,
    state: Mutex<State>,
    /// Signalled when a connection comes back or a place becomes free.
    freed: Condvar,
}

#[derive(Default)]
struct State {
    idle: Vec<Connection>,
    /// Idle, in use, or being opened.
    open: usize,
    closed: bool,
}

impl Pool {
    pub(super) fn new(server: Arc<Server>, limit: usize) -> Self {
        Self { server, limit, state: Mutex::new(State::default()), freed: Condvar::new() }
    }

    /// A connection, within the limit. Bring it back with [`give_back`](Self::give_back), or report it with
    /// [`discard`](Self::discard).
    pub(super) fn take(&self, limit: &mut Limit) -> Result<Connection, Failure> {
        {
            let mut state = self.state.lock();
            loop {
                if state.closed {
                    return Err(Failure::Closed);
                }
                while let Some(connection) = state.idle.pop() {
                    if self.server.is_current(&connection) {
                        return Ok(connection);
                    }
                    state.open -= 1;
                }
                if state.open < self.limit {
                    state.open += 1;
                    break;
                }
                let Ok(left) = limit.refresh().left() else {
                    let error = io::Error::new(
                        io::ErrorKind::TimedOut,
                        format!("all {} connections are in use", self.limit),
                    );
                    return Err(self.server.not_sent(&error));
                };
                self.freed.wait_for(&mut state, left);
                limit.refresh();
            }
        }
        // The place is taken; the connection is opened with the pool unlocked.
        self.server.connect(limit).inspect_err(|_| self.vacate())
    }

    /// For a connection that has seen nothing but replies.
    pub(super) fn give_back(&self, connection: Connection) {
        let mut state = self.state.lock();
        if state.closed {
            state.open -= 1;
        } else {
            state.idle.push(connection);
        }
        drop(state);
        self.freed.notify_one();
    }

    /// For one connection that must not be used again, of a server that is well.
    pub(super) fn retire(&self, connection: Connection) {
        drop(connection);
        self.vacate();
    }

    /// For a connection that broke. Those that lie idle are closed with it: they lead to the same server, and each
    /// would cost its taker a failed attempt.
    pub(super) fn discard(&self, connection: Connection) {
        let idle = {
            let mut state = self.state.lock();
            let idle = std::mem::take(&mut state.idle);
            state.open -= idle.len() + 1;
            idle
        };
        self.freed.notify_all();
        drop((connection, idle));
    }

    pub(super) fn close(&self) {
        let idle = {
            let mut state = self.state.lock();
            state.closed = true;
            let idle = std::mem::take(&mut state.idle);
            state.open -= idle.len();
            idle
        };
        self.freed.notify_all();
        drop(idle);
    }

    fn vacate(&self) {
        self.state.lock().open -= 1;
        self.freed.notify_one();
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        formatter
            .debug_struct("Pool")
            .field("open", &state.open)
            .field("idle", &state.idle.len())
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}
