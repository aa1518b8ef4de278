//! A call waiting for a connection, or for another thread to read the reply.

use std::mem;
use std::sync::Arc;

use crate::model::sync::{Condvar, Mutex};
use crate::ops::value::Value;
use crate::store::failure::Failure;
use crate::store::redis::net::connection::Broken;
use crate::store::redis::net::deadline::Deadline;
use crate::store::redis::node::call_connection::CallConnection;

/// A reply, and the generation of the connection.
#[derive(Debug)]
pub(crate) struct CallReply {
    pub(crate) value: Value,
    pub(crate) generation: u64,
}

/// Why a call got no reply.
#[derive(Debug)]
pub(crate) enum NoReply {
    /// The call got no connection.
    NoConnection(Failure),
    /// The connection has ended, or the call's deadline has passed.
    Broken(Broken),
}

/// The end of a call: the reply, or the reason for its absence.
pub(crate) type Outcome = Result<CallReply, NoReply>;

/// The purpose for which a call wants a connection.
#[derive(Debug)]
pub(crate) enum Wanted {
    /// To send this request, perhaps with other requests.
    Call(Vec<u8>),
    /// For the caller alone.
    Alone,
}

/// State of a waiting call.
#[derive(Debug)]
pub(crate) enum CallState {
    /// In the queue. A call that gives up is not sent.
    Queued(Wanted),
    /// The call has a connection, and writes for the queue.
    Writes(Box<CallConnection>, Wanted),
    /// Another thread writes or reads. A call that gives up may run.
    InBatch,
    /// The call has the connection of the reply, and reads.
    Reads(Box<CallConnection>),
    Done(Outcome),
    /// The thread no longer waits.
    Gone,
}

/// A call that waits, shared by its thread and the threads that serve the call.
#[derive(Debug)]
pub(crate) struct WaitingCall {
    state: Mutex<CallState>,
    changed: Condvar,
}

impl WaitingCall {
    pub(crate) fn new(wanted: Wanted) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(CallState::Queued(wanted)), changed: Condvar::new() })
    }

    /// Waits until the call has a connection or an outcome. After the deadline, returns the
    /// unchanged state, `Queued` or `InBatch`.
    pub(crate) fn wait(&self, deadline: &mut Deadline) -> CallState {
        let mut state = self.state.lock();
        loop {
            if matches!(*state, CallState::Queued(_) | CallState::InBatch)
                && let Ok(left) = deadline.left()
            {
                self.changed.wait_for(&mut state, left);
                deadline.refresh();
            } else {
                return mem::replace(&mut *state, CallState::Gone);
            }
        }
    }

    /// Gives the connection to the call, which writes for the queue once [woken](Self::wake).
    /// Returns the connection if the call is not in the queue.
    pub(crate) fn write(&self, connection: Box<CallConnection>) -> Result<(), Box<CallConnection>> {
        let mut state = self.state.lock();
        match mem::replace(&mut *state, CallState::Gone) {
            CallState::Queued(wanted) => {
                *state = CallState::Writes(connection, wanted);
                Ok(())
            }
            other => {
                *state = other;
                Err(connection)
            }
        }
    }

    /// Returns whether the call may be sent together with other calls.
    pub(crate) fn may_join(&self) -> bool {
        !matches!(*self.state.lock(), CallState::Queued(Wanted::Alone))
    }

    /// Takes the request, for another thread to write. `None` if the call has left the queue.
    pub(crate) fn join(&self) -> Option<Vec<u8>> {
        let mut state = self.state.lock();
        match mem::replace(&mut *state, CallState::Gone) {
            CallState::Queued(Wanted::Call(request)) => {
                *state = CallState::InBatch;
                Some(request)
            }
            other => {
                *state = other;
                None
            }
        }
    }

    /// Gives the connection to the call, which reads from now on. Returns the connection if the
    /// call has left.
    pub(crate) fn read(&self, connection: Box<CallConnection>) -> Result<(), Box<CallConnection>> {
        let mut state = self.state.lock();
        if matches!(*state, CallState::Gone) {
            return Err(connection);
        }
        *state = CallState::Reads(connection);
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    /// Returns whether the thread still waits.
    pub(crate) fn is_there(&self) -> bool {
        !matches!(*self.state.lock(), CallState::Gone)
    }

    /// Sets the outcome of the call. Returns whether to wake the thread.
    pub(crate) fn finish(&self, outcome: Outcome) -> bool {
        let mut state = self.state.lock();
        let is_there = !matches!(*state, CallState::Gone);
        if is_there {
            *state = CallState::Done(outcome);
        }
        is_there
    }

    /// Wakes the thread of the call.
    pub(crate) fn wake(&self) {
        self.changed.notify_one();
    }
}
