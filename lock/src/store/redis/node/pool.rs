//! The connections of requests that cannot share one (DESIGN: connection pool).

use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use crate::model::sync::{Condvar, Mutex, MutexGuard};
use crate::store::failure::Failure;
use crate::store::redis::net::connection::Connection;
use crate::store::redis::net::deadline::Deadline;
use crate::store::redis::net::open_sockets::Sockets;
use crate::store::redis::node::server::Server;
use crate::store::shutdown::CallGeneration;

/// A bounded pool, last in, first out: the memory of the connection that was used last is warm. The
/// others stay idle until they are needed or one breaks.
pub(crate) struct Pool {
    server: Arc<Server>,
    /// The sockets of this pool's connections.
    sockets: Sockets,
    capacity: usize,
    state: Mutex<State>,
    /// Signalled when a connection comes back or a slot becomes free.
    freed: Condvar,
}

#[derive(Default)]
struct State {
    idle: Vec<Connection>,
    /// Slots in use: connections that are idle, in use, or being opened.
    open: usize,
    closed: bool,
}

/// A connection in use. Dropping it closes it and frees its slot, even when a panic unwinds.
pub(crate) struct PooledConnection<'a> {
    // Declared before the slot, so it is closed first.
    connection: Connection,
    /// The generation of the pool's sockets when it was taken.
    generation: u64,
    slot: PoolSlot<'a>,
}

/// One of the connections that a pool may have. Dropping it frees the slot.
struct PoolSlot<'a> {
    pool: &'a Pool,
}

impl Pool {
    pub(crate) fn new(server: Arc<Server>, capacity: usize) -> Self {
        let (state, freed) = (Mutex::new(State::default()), Condvar::new());
        Self { server, sockets: Sockets::default(), capacity, state, freed }
    }

    /// Takes a connection, or waits for one. Return it with [`give_back`](Self::give_back), report
    /// it with [`discard`](Self::discard) if it broke, or drop it if the server is fine and only
    /// this connection must not be used again.
    ///
    /// Fails for a call that began before [`abort_calls`](Self::abort_calls).
    pub(crate) fn take(
        &self,
        deadline: &mut Deadline,
        call_generation: CallGeneration,
    ) -> Result<PooledConnection<'_>, Failure> {
        let (slot, generation) = {
            let mut state = self.state.lock();
            loop {
                let generation = self.sockets.generation();
                if state.closed || generation > call_generation.0 {
                    return Err(Failure::Closed);
                }
                // An idle connection, the last used first. One to an old master is closed instead.
                while let Some(connection) = state.idle.pop() {
                    if self.server.is_current(connection.generation) {
                        let slot = PoolSlot { pool: self };
                        return Ok(PooledConnection { connection, generation, slot });
                    }
                    state.open -= 1;
                }
                // A free slot for a new connection.
                if state.open < self.capacity {
                    state.open += 1;
                    break (PoolSlot { pool: self }, generation);
                }
                // Neither: wait until another caller is done.
                let Ok(left) = deadline.refresh().left() else {
                    let error = io::Error::new(
                        io::ErrorKind::TimedOut,
                        format!("all {} connections are in use", self.capacity),
                    );
                    return Err(self.server.not_sent(error));
                };
                self.freed.wait_for(&mut state, left);
                deadline.refresh();
            }
        };
        // Connects with the pool unlocked. If it fails, the slot is freed.
        let connection = self.server.connect_for(Some((&self.sockets, generation)), deadline)?;
        Ok(PooledConnection { connection, generation, slot })
    }

    /// Returns a connection whose replies were all read.
    pub(crate) fn give_back(&self, returned: PooledConnection<'_>) {
        let PooledConnection { connection, generation, slot } = returned;
        let mut state = self.state.lock();
        if state.closed || self.sockets.generation() != generation {
            drop(state);
            drop((connection, slot));
            return;
        }
        state.idle.push(connection);
        drop(state);
        // The idle connection keeps the slot.
        std::mem::forget(slot);
        self.freed.notify_one();
    }

    /// Closes a connection that broke, and the idle ones: they lead to the same server, and each
    /// would cost a caller a failed attempt.
    pub(crate) fn discard(&self, broken: PooledConnection<'_>) {
        let idle = self.state.lock().take_idle();
        drop((broken, idle));
        self.freed.notify_all();
    }

    /// Closes the idle connections: another one to the same server broke.
    pub(crate) fn discard_idle(&self) {
        self.close_idle(self.state.lock());
    }

    /// No connection is taken from now on. Those in use are closed when they come back.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        self.close_idle(state);
    }

    /// Shuts all connections, idle or in use. A call that waits for a reply or for a connection
    /// fails at once. Later calls get new connections.
    pub(crate) fn abort_calls(&self) {
        let state = self.state.lock();
        self.sockets.shut_all();
        self.close_idle(state);
    }

    fn close_idle(&self, mut state: MutexGuard<'_, State>) {
        let idle = state.take_idle();
        drop(state);
        self.freed.notify_all();
        drop(idle);
    }

    /// Waits until no connection is in use, for at most `longest`.
    pub(crate) fn wait_until_unused(&self, longest: Duration) {
        let mut deadline = Deadline::after(longest);
        let mut state = self.state.lock();
        while state.open > state.idle.len() {
            let Ok(left) = deadline.refresh().left() else { return };
            self.freed.wait_for(&mut state, left);
        }
    }
}

impl State {
    fn take_idle(&mut self) -> Vec<Connection> {
        self.open -= self.idle.len();
        std::mem::take(&mut self.idle)
    }
}

impl Drop for PoolSlot<'_> {
    fn drop(&mut self) {
        self.pool.state.lock().open -= 1;
        self.pool.freed.notify_all();
    }
}

impl Deref for PooledConnection<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

impl DerefMut for PooledConnection<'_> {
    fn deref_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::thread;

    use super::*;
    use crate::store::redis::node::server::local_server;

    const TIMEOUT: Duration = Duration::from_secs(10);

    /// A pool of one connection.
    fn pool() -> Pool {
        Pool::new(Arc::new(local_server(TIMEOUT)), 1)
    }

    fn take(pool: &Pool, call_generation: CallGeneration) -> Result<PooledConnection<'_>, Failure> {
        pool.take(&mut Deadline::after(TIMEOUT), call_generation)
    }

    #[test]
    fn a_panic_frees_the_slot_of_its_connection() {
        let pool = pool();
        for _ in 0..3 {
            let panics = AssertUnwindSafe(|| {
                let _in_use = take(&pool, CallGeneration(0)).unwrap();
                panic!("a command panics");
            });
            assert!(catch_unwind(panics).is_err());
            assert_eq!(pool.state.lock().open, 0);
        }
        let connection = take(&pool, CallGeneration(0)).unwrap();
        pool.give_back(connection);
        let state = pool.state.lock();
        assert_eq!((state.open, state.idle.len()), (1, 1));
    }

    #[test]
    fn an_aborted_call_gets_no_connection_and_a_later_one_does() {
        let pool = pool();
        let mut in_use = take(&pool, CallGeneration(0)).unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| take(&pool, CallGeneration(0)).map(drop));
            pool.abort_calls();
            assert!(matches!(waiting.join().unwrap(), Err(Failure::Closed)));
        });
        assert!(in_use.receive(&mut Deadline::after(TIMEOUT)).is_err(), "it is shut");
        pool.give_back(in_use);
        assert_eq!(pool.state.lock().open, 0, "a shut connection is not kept");
        assert!(matches!(take(&pool, CallGeneration(0)).map(drop), Err(Failure::Closed)));
        let later = take(&pool, CallGeneration(1)).unwrap();
        pool.give_back(later);
        assert_eq!(pool.state.lock().idle.len(), 1);
    }
}
