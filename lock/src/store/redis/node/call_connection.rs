//! One connection for calls, and the requests on it that are unanswered, in the order of their
//! bytes (DESIGN: connections for calls).

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::ops::operation::Script;
use crate::ops::value::{ServerTime, Value};
use crate::store::owed::Owed;
use crate::store::redis::net::connection::{Broken, Connection};
use crate::store::redis::net::deadline::Deadline;
use crate::store::redis::node::waiting_call::{CallReply, NoReply, WaitingCall};

/// A connection. It has one owner at any time: the list of idle ones, a running thread, or the slot
/// of a waiter that is being woken. So it has no lock.
pub(crate) struct CallConnection {
    connection: Connection,
    /// The requests that the thread which owns the connection writes. Kept for its memory.
    requests: Vec<u8>,
    pending: VecDeque<Pending>,
    /// How many of the pending replies no thread waits for, and the bytes of their requests.
    owed: usize,
    owed_bytes: usize,
    /// How often all connections of the callers had been shut when it was made.
    pub(crate) callers_generation: u64,
    /// When a call used it last.
    pub(crate) used_at: Instant,
}

/// A request without a reply.
#[derive(Debug)]
struct Pending {
    caller: Caller,
    sent_at: Instant,
}

/// Who gets a reply.
#[derive(Debug)]
enum Caller {
    /// The thread that owns the connection.
    Own,
    Waiting(Arc<WaitingCall>),
    Owed(OwedRequest),
    /// The caller has given up.
    Nobody,
}

/// A request whose reply no thread waits for.
#[derive(Debug)]
pub(crate) struct OwedRequest {
    pub(crate) owed: Owed,
    pub(crate) script: Option<&'static Script>,
    pub(crate) not_after: ServerTime,
    /// How long the request is.
    pub(crate) bytes: usize,
    /// The hash of the key that the request is about.
    pub(crate) key: u64,
}

/// The answer to such a request, which was not sent before `sent_at`.
pub(crate) struct OwedAnswer {
    pub(crate) request: OwedRequest,
    pub(crate) sent_at: Instant,
    pub(crate) answer: Result<CallReply, Broken>,
}

/// What is to be done with replies once nothing is owned or locked.
#[derive(Default)]
pub(crate) struct Deliveries {
    to_wake: Vec<Arc<WaitingCall>>,
    pub(crate) owed: Vec<OwedAnswer>,
}

/// How many replies, and of how many bytes of requests, may be unread when one more is left unread.
/// A process that ends with more of them may lose requests (DESIGN: unread releases).
const MAX_OWED: usize = 8;
/// Over TLS a server reads one record after the other, and gives up the rest when it cannot send a
/// reply.
const MAX_OWED_TLS: usize = 1;
const MAX_OWED_BYTES: usize = 8 * 1024;

/// How much memory for requests an idle connection keeps.
const KEPT_BYTES: usize = 16 * 1024;

/// After this much idle time no reply is left unread. What closes idle connections would lose the
/// request unnoticed: a firewall forgets a connection without a word, mostly after minutes.
const MAX_IDLE: Duration = Duration::from_secs(10);

/// After this much the socket is looked at first: a server's `timeout`, which is a second or more,
/// may have closed it.
const MAX_UNSEEN: Duration = Duration::from_millis(500);

/// How long a request may be without any reply before others use another connection. Short scripts
/// take far less, so either the server hangs, and another connection is no better, or only this
/// connection does.
pub(crate) const MAX_SILENCE: Duration = Duration::from_millis(250);

impl CallConnection {
    pub(crate) fn new(connection: Connection, callers_generation: u64, now: Instant) -> Self {
        Self {
            connection,
            requests: Vec::new(),
            pending: VecDeque::new(),
            owed: 0,
            owed_bytes: 0,
            callers_generation,
            used_at: now,
        }
    }

    pub(crate) fn generation(&self) -> u64 {
        self.connection.generation
    }

    /// The connection itself, for a caller that has it alone.
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(crate) fn connection_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// Whether a reply is owed to a request about this key.
    pub(crate) fn owes(&self, key: u64) -> bool {
        self.owed > 0
            && self
                .pending
                .iter()
                .any(|pending| matches!(&pending.caller, Caller::Owed(owed) if owed.key == key))
    }

    pub(crate) fn has_owed(&self) -> bool {
        self.owed > 0
    }

    /// Whether the reply to one more request of that length may be left unread.
    pub(crate) fn may_owe(&self, bytes: usize, now: Instant) -> bool {
        let most = if self.connection.is_tls() { MAX_OWED_TLS } else { MAX_OWED };
        self.pending.len() < most
            && self.owed_bytes + bytes <= MAX_OWED_BYTES
            && now.saturating_duration_since(self.used_at) <= MAX_IDLE
    }

    /// Whether the socket is to be looked at before the connection is used: it may have ended, or
    /// replies may be late. `broke_at` is when another connection broke.
    pub(crate) fn must_look(&self, now: Instant, broke_at: Option<Instant>) -> bool {
        now.saturating_duration_since(self.used_at) > MAX_UNSEEN
            || broke_at.is_some_and(|broke_at| self.used_at <= broke_at)
            || self.is_silent(now, MAX_SILENCE)
    }

    /// Whether the oldest request is without a reply for that long.
    pub(crate) fn is_silent(&self, now: Instant, longest: Duration) -> bool {
        let oldest = self.pending.front();
        oldest.is_some_and(|oldest| now.saturating_duration_since(oldest.sent_at) >= longest)
    }

    /// Where the next requests are encoded.
    pub(crate) fn requests(&mut self) -> &mut Vec<u8> {
        &mut self.requests
    }

    /// Writes the requests. After an error, says how many bytes the kernel has accepted.
    pub(crate) fn write(&mut self, deadline: &mut Deadline) -> Result<(), (usize, io::Error)> {
        let written = self.connection.send_counted(&self.requests, deadline);
        self.requests.clear();
        self.requests.shrink_to(KEPT_BYTES);
        written
    }

    pub(crate) fn expect_own(&mut self, sent_at: Instant) {
        self.pending.push_back(Pending { caller: Caller::Own, sent_at });
    }

    pub(crate) fn expect_for(&mut self, waiter: Arc<WaitingCall>, sent_at: Instant) {
        self.pending.push_back(Pending { caller: Caller::Waiting(waiter), sent_at });
    }

    pub(crate) fn expect_owed(&mut self, request: OwedRequest, sent_at: Instant) {
        self.owed += 1;
        self.owed_bytes += request.bytes;
        self.pending.push_back(Pending { caller: Caller::Owed(request), sent_at });
    }

    /// Waits for a reply, and takes all that have arrived with it. Returns that of the thread that
    /// owns the connection.
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

    /// Takes the replies that have arrived, without waiting.
    pub(crate) fn receive_arrived(&mut self, deliveries: &mut Deliveries) -> io::Result<()> {
        while let Some(reply) = self.connection.receive_arrived()? {
            self.deliver(reply, deliveries)?;
        }
        Ok(())
    }

    fn deliver(&mut self, reply: Value, deliveries: &mut Deliveries) -> io::Result<Option<Value>> {
        let Some(Pending { caller, sent_at }) = self.pending.pop_front() else {
            let reason = "the server sent a reply to no command";
            return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        };
        let answer = |value| CallReply { value, generation: self.connection.generation };
        match caller {
            Caller::Own => return Ok(Some(reply)),
            Caller::Waiting(waiter) => deliveries.finish(waiter, Ok(answer(reply))),
            Caller::Owed(request) => {
                self.owed -= 1;
                self.owed_bytes -= request.bytes;
                let answer = Ok(answer(reply));
                deliveries.owed.push(OwedAnswer { request, sent_at, answer });
            }
            Caller::Nobody => {}
        }
        Ok(None)
    }

    /// The thread that owns the connection gives up: its reply is dropped when it comes.
    pub(crate) fn give_up(&mut self) {
        let own = self.pending.iter_mut().find(|one| matches!(one.caller, Caller::Own));
        if let Some(own) = own {
            own.caller = Caller::Nobody;
        }
    }

    /// The connection goes to the next thread that waits for a reply on it. It comes back if there
    /// is none.
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

    /// Ends the connection. What was sent on it may have run.
    pub(crate) fn end(self: Box<Self>, error: &io::Error, deliveries: &mut Deliveries) {
        let Self { connection, pending, .. } = *self;
        drop(connection);
        for Pending { caller, sent_at } in pending {
            let broken = || Broken::Unanswered(copy_of(error));
            match caller {
                Caller::Waiting(waiter) => {
                    deliveries.finish(waiter, Err(NoReply::Broken(broken())));
                }
                Caller::Owed(request) => {
                    let answer = Err(broken());
                    deliveries.owed.push(OwedAnswer { request, sent_at, answer });
                }
                Caller::Own | Caller::Nobody => {}
            }
        }
    }
}

impl Deliveries {
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

/// A copy of the error. Each of those that it concerns gets one.
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
