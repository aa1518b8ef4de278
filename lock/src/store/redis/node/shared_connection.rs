//! One connection that the calls of many threads share, without a thread of its own
//! (DESIGN: shared connection).
//!
//! [`CallQueue`] decides which thread writes and which one reads. Here is what they share: the
//! socket, the queue, and how the connection ends. No system call is made while the queue is
//! locked.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::model::sync::{Condvar, Mutex, MutexGuard};
use crate::ops::value::Value;
use crate::store::redis::net::connection::{Broken, Connection};
use crate::store::redis::net::deadline::Deadline;
use crate::store::redis::net::socket::Socket;
use crate::store::redis::node::call_queue::{
    CallQueue, Delivery, MAX_UNREAD_CALLS, MAX_UNREAD_TLS_CALLS, MAX_UNWRITTEN_BYTES,
};
use crate::store::redis::node::mailbox::{DeferredWork, Mailbox, RawReplyHandler};
use crate::store::redis::node::round_trip::RoundTrip;
use crate::store::redis::node::stream_halves::{ReadHalf, WriteHalf};

pub(crate) struct SharedConnection {
    pub(crate) socket: Arc<Socket>,
    /// The [generation](crate::store::redis::net::open_sockets::Sockets::generation) in which it
    /// was made.
    pub(crate) generation: u64,
    /// Whether new calls should use another connection.
    pub(crate) retired: AtomicBool,
    pub(crate) state: Mutex<State>,
    /// Signalled when there is room for bytes, and when no thread is left.
    pub(crate) changed: Condvar,
    /// Locked by the thread with the role, and never while `state` is locked.
    pub(crate) read_half: Mutex<ReadHalf>,
    pub(crate) write_half: Mutex<WriteHalf>,
}

pub(crate) struct State {
    pub(crate) queue: CallQueue<Arc<Mailbox>, RawReplyHandler>,
    /// Why the connection has ended. No call is queued then.
    pub(crate) ended: Option<io::Error>,
    pub(crate) round_trip: RoundTrip,
    /// When the last call was queued.
    pub(crate) used_at: Instant,
    /// Threads that wait for `changed`.
    pub(crate) watchers: usize,
}

impl SharedConnection {
    /// `timeout` is what the socket's are set to.
    pub(crate) fn new(connection: Connection, timeout: Duration, now: Instant) -> Self {
        let generation = connection.generation;
        let (socket, decoder) = connection.into_parts();
        let decoder = decoder.with_room();
        let max_unread_calls =
            if socket.is_tls() { MAX_UNREAD_TLS_CALLS } else { MAX_UNREAD_CALLS };
        Self {
            socket,
            generation,
            retired: AtomicBool::new(false),
            state: Mutex::new(State {
                queue: CallQueue::new(max_unread_calls),
                ended: None,
                round_trip: RoundTrip::default(),
                used_at: now,
                watchers: 0,
            }),
            changed: Condvar::new(),
            read_half: Mutex::new(ReadHalf { decoder, timeout, replies: Vec::new() }),
            write_half: Mutex::new(WriteHalf { bytes: Vec::new(), written: 0, timeout }),
        }
    }

    /// New calls use another connection from now on.
    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed)
    }

    /// Whether no call needs it any more.
    pub(crate) fn is_done(&self) -> bool {
        let state = self.state.lock();
        state.queue.is_unused() && (state.ended.is_some() || !state.queue.has_detached())
    }

    /// Whether no thread is on it.
    pub(crate) fn is_unused(&self) -> bool {
        self.state.lock().queue.is_unused()
    }

    /// Waits until no thread is on it, or the deadline.
    pub(crate) fn wait_until_unused(&self, deadline: &mut Deadline) {
        let mut state = self.state.lock();
        state.watchers += 1;
        while !state.queue.is_unused() {
            let Ok(left) = deadline.refresh().left() else { break };
            self.changed.wait_for(&mut state, left);
        }
        state.watchers -= 1;
    }

    /// Nothing more is queued or written.
    pub(crate) fn break_off(&self, error: io::Error) {
        let mut state = self.state.lock();
        state.ended.get_or_insert(error);
        self.retire();
        self.notify(&state);
        drop(state);
        self.socket.shut();
    }

    /// Waits until this number of bytes may be queued.
    pub(crate) fn enter(
        &self,
        bytes: usize,
        deadline: &mut Deadline,
    ) -> Result<MutexGuard<'_, State>, Broken> {
        let mut state = self.state.lock();
        while state.ended.is_none() && !self.is_retired() && !state.queue.has_room(bytes) {
            let Ok(left) = deadline.refresh().left() else {
                let reason = format!("{MAX_UNWRITTEN_BYTES} bytes wait to be written before it");
                let error = io::Error::new(io::ErrorKind::TimedOut, reason);
                return Err(Broken::NotSent(error));
            };
            state.watchers += 1;
            self.changed.wait_for(&mut state, left);
            state.watchers -= 1;
        }
        if state.is_silent(deadline.read_at()) {
            self.retire();
        }
        match &state.ended {
            Some(error) => Err(Broken::NotSent(copy_of(error))),
            None if self.is_retired() => {
                Err(Broken::NotSent(io::ErrorKind::ConnectionAborted.into()))
            }
            None => Ok(state),
        }
    }

    pub(crate) fn notify(&self, state: &State) {
        if state.watchers > 0 {
            self.changed.notify_all();
        }
    }
}

impl Drop for SharedConnection {
    fn drop(&mut self) {
        let mut deferred = DeferredWork::default();
        for (caller, is_whole) in self.state.get_mut().queue.take_all() {
            let error = io::ErrorKind::ConnectionAborted.into();
            deferred.fail(caller, Broken::new(error, is_whole));
        }
        deferred.run();
    }
}

impl State {
    /// Delivers replies, in their order, to the oldest calls. Returns that of the thread that
    /// reads.
    pub(crate) fn deliver(
        &mut self,
        replies: &mut Vec<Value>,
        deferred: &mut DeferredWork,
    ) -> io::Result<Option<Value>> {
        self.queue.count_receipt();
        let mut own = None;
        for reply in replies.drain(..) {
            match self.queue.receive(reply) {
                Some(Delivery::Own(reply)) => own = Some(reply),
                Some(Delivery::Waiting(mailbox, reply)) => {
                    deferred.post(mailbox, |mail| mail.outcome = Some(Ok(reply)));
                }
                Some(Delivery::Detached(mailbox, handler, reply)) => {
                    if let Some(mailbox) = mailbox {
                        deferred.post(mailbox, |mail| mail.is_written = true);
                    }
                    deferred.replies.push((handler, Ok(reply)));
                }
                Some(Delivery::Nobody) => {}
                None if own.is_some() => break,
                None => {
                    let reason = "the server sent a reply to no command";
                    return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
                }
            }
        }
        Ok(own)
    }

    /// Whether a request has been without any reply for so long that other calls should not wait
    /// behind it.
    pub(crate) fn is_silent(&self, now: Instant) -> bool {
        self.queue.is_silent(now, self.round_trip.longest_silence())
    }

    /// Tells the calls that are not written that they need another connection.
    pub(crate) fn move_unwritten(&mut self, deferred: &mut DeferredWork) {
        for caller in self.queue.take_unwritten() {
            let reason = "an earlier call on the connection is not answered";
            let error = io::Error::new(io::ErrorKind::ConnectionAborted, reason);
            deferred.fail(caller, Broken::NotSent(error));
        }
    }

    pub(crate) fn hand_over(&mut self, deferred: &mut DeferredWork) {
        self.queue.hand_over(self.round_trip.is_short(), |mailbox, roles| {
            if mailbox.post(|mail| mail.roles.add(roles)) {
                // Before those that have their replies: it works for all.
                deferred.to_wake.insert(0, mailbox);
            }
        });
    }
}

/// A copy of the error. Each of those that it concerns gets one.
pub(crate) fn copy_of(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}
