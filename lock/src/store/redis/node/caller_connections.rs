//! Which connection the calls of a server share: one at a time, and a fresh one after one that does
//! not answer (DESIGN: shared connection).

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hashed_wheel::Clock;

use crate::model::sync::{Condvar, Mutex, MutexGuard, SystemClock};
use crate::store::failure::Failure;
use crate::store::redis::net::deadline::Deadline;
use crate::store::redis::net::open_sockets::Sockets;
use crate::store::redis::node::server::Server;
use crate::store::redis::node::shared_connection::SharedConnection;
use crate::store::shutdown::CallGeneration;

pub(crate) struct CallerConnections {
    server: Arc<Server>,
    /// The sockets of these connections.
    sockets: Sockets,
    /// How many there may be, the retired ones included.
    limit: usize,
    state: Mutex<State>,
    /// Signalled when an attempt to connect has ended, or a connection.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    current: Option<Arc<SharedConnection>>,
    /// Connections that new calls do not use, with calls that are not answered.
    retired: Vec<Arc<SharedConnection>>,
    is_connecting: bool,
    /// How many attempts to connect have ended, and how the last one failed, if it says something
    /// to other callers.
    attempts: u64,
    failure: Option<Failure>,
    closed: bool,
}

/// The only thread that connects. When it is dropped, another may.
struct Connecting<'a>(&'a CallerConnections);

impl CallerConnections {
    pub(crate) fn new(server: Arc<Server>, limit: usize) -> Self {
        let (state, changed) = (Mutex::new(State::default()), Condvar::new());
        Self { server, sockets: Sockets::default(), limit, state, changed }
    }

    /// The connection for a call, which is made if there is none. One thread connects, and the
    /// others wait for it, each until its own deadline.
    ///
    /// Fails for a call that began before [`abort_calls`](Self::abort_calls).
    pub(crate) fn get(
        &self,
        deadline: &mut Deadline,
        call_generation: CallGeneration,
    ) -> Result<Arc<SharedConnection>, Failure> {
        let mut state = self.state.lock();
        let attempts = state.attempts;
        let generation = loop {
            // 1. The present connection.
            let generation = self.sockets.generation();
            if state.closed || generation > call_generation.0 {
                return Err(Failure::Closed);
            }
            if let Some(current) = &state.current {
                if self.is_usable(current) {
                    return Ok(Arc::clone(current));
                }
                current.retire();
                let done = state.take_done();
                drop(state);
                drop(done);
                state = self.state.lock();
                continue;
            }
            // 2. A new one, unless another thread is about to make it, or there are too many.
            if !state.is_connecting && state.retired.len() < self.limit {
                state.is_connecting = true;
                break generation;
            }
            let Ok(left) = deadline.refresh().left() else {
                let reason = if state.is_connecting {
                    "another thread is connecting and has no answer yet".to_owned()
                } else {
                    format!("all {} connections for calls wait for replies", self.limit)
                };
                return Err(self.server.not_sent(io::Error::new(io::ErrorKind::TimedOut, reason)));
            };
            self.changed.wait_for(&mut state, left);
            deadline.refresh();
            // 3. What was found out meanwhile is true for this thread too.
            if state.attempts != attempts
                && let Some(failure) = state.failure.clone()
            {
                return Err(failure);
            }
        };
        drop(state);
        self.connect(generation, deadline)
    }

    fn connect(
        &self,
        generation: u64,
        deadline: &mut Deadline,
    ) -> Result<Arc<SharedConnection>, Failure> {
        let connecting = Connecting(self);
        let connected = self.server.connect_for(Some((&self.sockets, generation)), deadline);
        // An attempt that ended with its caller's time says nothing to others.
        let in_time = deadline.refresh().left().is_ok();
        let mut state = self.state.lock();
        let result = connected.map(|connection| {
            let (timeout, now) = (self.server.command_timeout, deadline.read_at());
            Arc::new(SharedConnection::new(connection, timeout, now))
        });
        state.failure = result.as_ref().err().filter(|_| in_time).cloned();
        if let Ok(connection) = &result
            && !state.closed
            && self.sockets.generation() == generation
        {
            state.current = Some(Arc::clone(connection));
        }
        drop(state);
        drop(connecting);
        result
    }

    /// Forgets a connection that failed a call, so that later ones use another. An idle one is
    /// closed.
    pub(crate) fn discard(&self, connection: &Arc<SharedConnection>) {
        connection.retire();
        self.prune();
    }

    /// Closes the connection if no thread uses it: another one to the same server broke.
    pub(crate) fn discard_idle(&self) {
        let state = self.state.lock();
        if let Some(current) = &state.current
            && current.is_unused()
        {
            current.retire();
        }
        drop(state);
        self.prune();
    }

    /// A call on a retired connection has ended.
    pub(crate) fn prune(&self) {
        let done = self.state.lock().take_done();
        self.changed.notify_all();
        drop(done);
    }

    /// Reads the replies to detached calls that have arrived. True if some are left to come.
    pub(crate) fn read_detached(&self) -> bool {
        let all = self.all();
        if all.is_empty() {
            return false;
        }
        let now = SystemClock.now();
        let timeout = self.server.command_timeout;
        let mut is_any_left = false;
        for connection in &all {
            is_any_left |= connection.read_detached(now, timeout);
        }
        drop(all);
        self.prune_retired();
        is_any_left
    }

    /// No connection is used by calls that begin from now on. Replies to detached calls are waited
    /// for, for at most `longest`.
    pub(crate) fn close(&self, longest: Duration) {
        self.state.lock().closed = true;
        let mut deadline = Deadline::after(longest);
        for connection in self.all() {
            deadline.refresh();
            connection.read_all_detached(&mut deadline);
            connection.retire();
        }
        let state = self.state.lock();
        let all = Self::take_all(state);
        self.changed.notify_all();
        drop(all);
    }

    /// Shuts all connections. The calls on them fail at once, and later ones get a new one.
    pub(crate) fn abort_calls(&self) {
        let state = self.state.lock();
        self.sockets.shut_all();
        let all = Self::take_all(state);
        self.changed.notify_all();
        for connection in all {
            connection.end(io::ErrorKind::ConnectionAborted.into());
        }
    }

    /// Waits until no thread is on a connection, for at most `longest`.
    pub(crate) fn wait_until_unused(&self, longest: Duration) {
        let mut deadline = Deadline::after(longest);
        loop {
            let mut state = self.state.lock();
            if state.is_connecting {
                let Ok(left) = deadline.refresh().left() else { return };
                self.changed.wait_for(&mut state, left);
                continue;
            }
            drop(state);
            let all = self.all();
            let Some(in_use) = all.iter().find(|connection| !connection.is_unused()) else {
                return;
            };
            if deadline.refresh().left().is_err() {
                return;
            }
            in_use.wait_until_unused(&mut deadline);
        }
    }

    fn is_usable(&self, connection: &SharedConnection) -> bool {
        !connection.is_retired() && self.server.is_current(connection.generation)
    }

    fn prune_retired(&self) {
        if !self.state.lock().retired.is_empty() {
            self.prune();
        }
    }

    fn all(&self) -> Vec<Arc<SharedConnection>> {
        let state = self.state.lock();
        state.current.iter().chain(&state.retired).map(Arc::clone).collect()
    }

    fn take_all(mut state: MutexGuard<'_, State>) -> Vec<Arc<SharedConnection>> {
        let mut all = std::mem::take(&mut state.retired);
        all.extend(state.current.take());
        all
    }
}

impl State {
    /// Puts a retired connection to the others, and takes out those that no call needs. Drop them
    /// with nothing locked.
    fn take_done(&mut self) -> Vec<Arc<SharedConnection>> {
        self.retired.extend(self.current.take_if(|current| current.is_retired()));
        let (done, retired) =
            std::mem::take(&mut self.retired).into_iter().partition(|retired| retired.is_done());
        self.retired = retired;
        done
    }
}

impl Drop for Connecting<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.is_connecting = false;
        state.attempts += 1;
        drop(state);
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::node::server::local_server;

    const TIMEOUT: Duration = Duration::from_secs(10);

    #[test]
    fn an_aborted_call_gets_no_connection_and_a_later_one_gets_a_new_one() {
        let connections = CallerConnections::new(Arc::new(local_server(TIMEOUT)), 2);
        let get = |number| connections.get(&mut Deadline::after(TIMEOUT), CallGeneration(number));
        let shut = get(0).unwrap();
        connections.abort_calls();
        assert!(matches!(get(0), Err(Failure::Closed)));
        assert!(!Arc::ptr_eq(&shut, &get(1).unwrap()));
    }
}
