//! A connection for calls, and the unanswered requests, in the order of their bytes.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::ops::operation::Script;
use crate::ops::value::{ServerTime, Value};
use crate::store::redis::net::connection::{Broken, Connection};
use crate::store::redis::net::deadline::Deadline;
use crate::store::redis::node::waiting_call::{CallReply, NoReply, WaitingCall};
use crate::store::unread::UnreadReleases;

/// A connection for calls.
///
/// A connection has one owner at any time: the list of idle connections, a running thread, or the
/// state of a waiter being woken. So a connection has no lock, and no system call is made under a
/// lock. Dropping the owner closes the connection, so a panic of a thread loses one connection
/// only.
pub(crate) struct CallConnection {
    connection: Connection,
    /// The requests that the owning thread writes. Retained for its memory.
    requests: Vec<u8>,
    pending: VecDeque<Pending>,
    /// Number of pending replies that no thread waits for, and the bytes of their requests.
    unread: usize,
    unread_bytes: usize,
    /// The callers' generation when the connection was made.
    pub(crate) callers_generation: u64,
    /// Time of the last use by a call.
    pub(crate) used_at: Instant,
}

/// A request that has no reply yet.
#[derive(Debug)]
struct Pending {
    caller: Caller,
    sent_at: Instant,
}

/// The receiver of a reply.
#[derive(Debug)]
enum Caller {
    /// The thread that owns the connection.
    Own,
    Waiting(Arc<WaitingCall>),
    Unread(UnreadRequest),
    /// No receiver: the caller has given up.
    Nobody,
}

/// A request whose reply no thread waits for.
#[derive(Debug)]
pub(crate) struct UnreadRequest {
    pub(crate) unread: UnreadReleases,
    pub(crate) script: Option<&'static Script>,
    pub(crate) not_after: ServerTime,
    /// Length of the request.
    pub(crate) bytes: usize,
    /// Hash of the request's key.
    pub(crate) key: u64,
}

/// The answer to an [`UnreadRequest`] that was not sent before `sent_at`.
pub(crate) struct UnreadAnswer {
    pub(crate) request: UnreadRequest,
    pub(crate) sent_at: Instant,
    pub(crate) answer: Result<CallReply, Broken>,
}

/// Replies to deliver once nothing is owned or locked.
#[derive(Default)]
pub(crate) struct Deliveries {
    to_wake: Vec<Arc<WaitingCall>>,
    pub(crate) unread: Vec<UnreadAnswer>,
}

/// Largest number of unanswered requests when a reply is left unread.
///
/// When a process ends, the system resets a connection with unread data, and discards unsent bytes.
/// With eight small requests all bytes were already sent; with sixteen, behind a stopped server,
/// some were not.
const MAX_UNREAD: usize = 8;
/// [`MAX_UNREAD`] over TLS. A server runs the requests of a record before reading the next record,
/// and discards the rest if a reply cannot be sent.
const MAX_UNREAD_TLS: usize = 1;
/// Largest number of bytes of requests with unread replies.
const MAX_UNREAD_BYTES: usize = 8 * 1024;

/// Memory for requests that an idle connection retains.
const RETAINED_BYTES: usize = 16 * 1024;

/// Idle time after which no reply is left unread. A firewall forgets an idle connection without a
/// sign, mostly after minutes, and the request would be lost unnoticed.
const MAX_IDLE: Duration = Duration::from_secs(10);

/// Idle time after which the socket is inspected before a use: the server may have closed the
/// connection because of its setting `timeout`, at least a second.
const MAX_UNSEEN: Duration = Duration::from_millis(500);

/// Longest time without any reply before other calls use another connection. Short scripts take far
/// less time. So either the server hangs, and another connection is no better, or only this
/// connection hangs, as after a lost entry in a firewall, and costs a single caller its time.
pub(crate) const MAX_SILENCE: Duration = Duration::from_millis(250);

impl CallConnection {
    pub(crate) fn new(connection: Connection, callers_generation: u64, now: Instant) -> Self {
        Self {
            connection,
            requests: Vec::new(),
            pending: VecDeque::new(),
            unread: 0,
            unread_bytes: 0,
            callers_generation,
            used_at: now,
        }
    }

    /// Returns the generation of the server's sockets when the connection was made.
    pub(crate) fn generation(&self) -> u64 {
        self.connection.generation
    }

    /// Returns the inner connection, for a caller that owns the connection alone.
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(crate) fn connection_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// Returns whether the reply to a request about the key with the hash `key` is unread.
    pub(crate) fn has_unread_about(&self, key: u64) -> bool {
        self.unread > 0
            && self.pending.iter().any(
                |pending| matches!(&pending.caller, Caller::Unread(unread) if unread.key == key),
            )
    }

    /// Returns whether there is a pending reply that no thread waits for.
    pub(crate) fn has_unread(&self) -> bool {
        self.unread > 0
    }

    /// Returns whether the reply to another request of `bytes` may be left unread.
    pub(crate) fn may_leave_unread(&self, bytes: usize, now: Instant) -> bool {
        let most = if self.connection.is_tls() { MAX_UNREAD_TLS } else { MAX_UNREAD };
        self.pending.len() < most
            && self.unread_bytes + bytes <= MAX_UNREAD_BYTES
            && now.saturating_duration_since(self.used_at) <= MAX_IDLE
    }

    /// Returns whether to inspect the socket before a use: the socket may have ended, or replies
    /// may be late. `broke_at` is the time when another connection broke.
    pub(crate) fn must_look(&self, now: Instant, broke_at: Option<Instant>) -> bool {
        now.saturating_duration_since(self.used_at) > MAX_UNSEEN
            || broke_at.is_some_and(|broke_at| self.used_at <= broke_at)
            || self.is_silent(now, MAX_SILENCE)
    }

    /// Returns whether the oldest request has been without a reply for `longest`.
    pub(crate) fn is_silent(&self, now: Instant, longest: Duration) -> bool {
        let oldest = self.pending.front();
        oldest.is_some_and(|oldest| now.saturating_duration_since(oldest.sent_at) >= longest)
    }

    /// Returns the buffer for the next requests.
    pub(crate) fn requests(&mut self) -> &mut Vec<u8> {
        &mut self.requests
    }

    /// Writes the requests, and empties the buffer. An error has the number of bytes that the
    /// kernel has accepted.
    pub(crate) fn write(&mut self, deadline: &mut Deadline) -> Result<(), (usize, io::Error)> {
        let written = self.connection.send_counted(&self.requests, deadline);
        self.requests.clear();
        self.requests.shrink_to(RETAINED_BYTES);
        written
    }

    /// Records that the owning thread expects the next reply.
    pub(crate) fn expect_own(&mut self, sent_at: Instant) {
        self.pending.push_back(Pending { caller: Caller::Own, sent_at });
    }

    /// Records that `waiter` expects the next reply.
    pub(crate) fn expect_for(&mut self, waiter: Arc<WaitingCall>, sent_at: Instant) {
        self.pending.push_back(Pending { caller: Caller::Waiting(waiter), sent_at });
    }

    /// Records that no thread expects the next reply, which belongs to `request`.
    pub(crate) fn expect_unread(&mut self, request: UnreadRequest, sent_at: Instant) {
        self.unread += 1;
        self.unread_bytes += request.bytes;
        self.pending.push_back(Pending { caller: Caller::Unread(request), sent_at });
    }

    /// Waits for a reply, and takes all replies that have arrived. Returns the reply to the owning
    /// thread, if any, and adds all other replies to `deliveries`.
    pub(crate) fn receive(
        &mut self,
        deadline: &mut Deadline,
        deliveries: &mut Deliveries,
    ) -> io::Result<Option<Value>> {
        let first = self.connection.receive(deadline)?;
        let mut own = self.deliver(first, deliveries)?;
        while let Some(next) = self.connection.buffered() {
            let delivered = self.deliver(next, deliveries)?;
            own = own.or(delivered);
        }
        Ok(own)
    }

    /// Adds the replies that have arrived to `deliveries`, without waiting.
    pub(crate) fn receive_arrived(&mut self, deliveries: &mut Deliveries) -> io::Result<()> {
        while let Some(reply) = self.connection.receive_arrived()? {
            self.deliver(reply, deliveries)?;
        }
        Ok(())
    }

    /// Assigns `reply` to the oldest request. Returns the reply if the owning thread expects the
    /// reply, and otherwise adds the reply to `deliveries`.
    fn deliver(&mut self, reply: Value, deliveries: &mut Deliveries) -> io::Result<Option<Value>> {
        let Some(Pending { caller, sent_at }) = self.pending.pop_front() else {
            let reason = "the server sent a reply to no command";
            return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        };
        let answer = |value| CallReply { value, generation: self.connection.generation };
        match caller {
            Caller::Own => return Ok(Some(reply)),
            Caller::Waiting(waiter) => deliveries.finish(waiter, Ok(answer(reply))),
            Caller::Unread(request) => {
                self.unread -= 1;
                self.unread_bytes -= request.bytes;
                let answer = Ok(answer(reply));
                deliveries.unread.push(UnreadAnswer { request, sent_at, answer });
            }
            Caller::Nobody => {}
        }
        Ok(None)
    }

    /// Marks the owning thread's request, because the thread gives up: the reply is dropped on
    /// arrival.
    pub(crate) fn give_up(&mut self) {
        let own = self.pending.iter_mut().find(|one| matches!(one.caller, Caller::Own));
        if let Some(own) = own {
            own.caller = Caller::Nobody;
        }
    }

    /// Gives the connection to the next thread that waits for a reply. Returns the connection if no
    /// thread waits.
    pub(crate) fn hand_on(mut self: Box<Self>) -> Option<Box<Self>> {
        for index in 0..self.pending.len() {
            let Some(Pending { caller, .. }) = self.pending.get_mut(index) else { break };
            let Caller::Waiting(waiter) = caller else { continue };
            let waiter = Arc::clone(waiter);
            if !waiter.is_there() {
                *caller = Caller::Nobody;
                continue;
            }
            *caller = Caller::Own;
            match waiter.read(self) {
                Ok(()) => return None,
                Err(back) => {
                    self = back;
                    self.give_up();
                }
            }
        }
        Some(self)
    }

    /// Closes the connection, and adds the failure of each request without a reply to `deliveries`.
    /// The requests may have run.
    pub(crate) fn end(self: Box<Self>, error: &io::Error, deliveries: &mut Deliveries) {
        let Self { connection, pending, .. } = *self;
        drop(connection);
        for Pending { caller, sent_at } in pending {
            let broken = || Broken::Unanswered(copy_of(error));
            match caller {
                Caller::Waiting(waiter) => {
                    deliveries.finish(waiter, Err(NoReply::Broken(broken())));
                }
                Caller::Unread(request) => {
                    let answer = Err(broken());
                    deliveries.unread.push(UnreadAnswer { request, sent_at, answer });
                }
                Caller::Own | Caller::Nobody => {}
            }
        }
    }
}

impl Deliveries {
    /// Sets the outcome of a call, and remembers its thread for [`wake`](Self::wake).
    pub(crate) fn finish(&mut self, waiter: Arc<WaitingCall>, outcome: Result<CallReply, NoReply>) {
        if waiter.finish(outcome) {
            self.to_wake.push(waiter);
        }
    }

    /// Wakes the threads whose calls have ended.
    pub(crate) fn wake(&mut self) {
        for waiter in self.to_wake.drain(..) {
            waiter.wake();
        }
    }
}

/// Returns a copy of `error`, for each of several receivers.
pub(crate) fn copy_of(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

impl fmt::Debug for CallConnection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("CallConnection")
            .field("pending", &self.pending)
            .finish_non_exhaustive()
    }
}
