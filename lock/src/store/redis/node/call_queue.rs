//! The calls on one connection, in the order of their bytes, and which of their threads write and
//! read for all (DESIGN: shared connection).
//!
//! These are the rules alone: no socket, no thread, and time is an argument. There are two roles,
//! and one thread at a time has each: the writer takes all bytes that are queued, the reader all
//! replies that arrive. Roles are taken by a call that arrives, and handed on by one that leaves.

use std::collections::VecDeque;
use std::time::Instant;

use crate::ops::value::Value;

/// One call. A later one has a higher number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CallId(u64);

/// Who wants the reply to a call. `W` is what its thread sleeps on, `H` what takes a reply that no
/// thread waits for.
#[derive(Debug)]
pub(crate) enum Caller<W, H> {
    /// The thread that reads: it gets the reply as it reads it.
    Reader,
    /// A thread that sleeps until it gets the reply or a role, or that writes.
    Waiting(W),
    /// A thread that stays only until its bytes are written.
    Sending(W, H),
    /// No thread.
    Detached(H),
    /// The caller has given up. The reply is dropped.
    Gone,
}

/// Which roles a thread has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Roles {
    pub(crate) read: bool,
    pub(crate) write: bool,
}

impl Roles {
    pub(crate) fn add(&mut self, more: Self) {
        self.read |= more.read;
        self.write |= more.write;
    }
}

/// Who gets a reply.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Delivery<W, H> {
    /// The thread that reads.
    Own(Value),
    Waiting(W, Value),
    /// A thread that was only sending is to be told that its bytes are written.
    Detached(Option<W>, H, Value),
    Nobody,
}

/// What became of a call that was given up.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Abandoned {
    /// It was answered before.
    Answered,
    /// Its bytes were not written and never will be.
    Withdrawn,
    /// Its bytes are written, or will be unless the connection ends: `whole` says which. `silent`:
    /// nothing was received since it was given to a writer.
    InFlight { whole: bool, silent: bool },
}

/// The calls of one connection that are not answered.
#[derive(Debug)]
pub(crate) struct CallQueue<W, H> {
    /// The oldest first. The first `committed` of them were given to a writer.
    calls: VecDeque<Call<W, H>>,
    committed: usize,
    next_id: u64,
    /// The bytes of the calls that were not given to a writer.
    unwritten: Vec<u8>,
    /// Positions in the stream of bytes: what is answered, accepted by the kernel, and given to a
    /// writer.
    answered_to: u64,
    written_to: u64,
    committed_to: u64,
    taken: Roles,
    /// How often something was received.
    receipts: u64,
    /// Calls with a thread.
    live: usize,
    /// Calls whose thread stays only until its bytes are written.
    sending: usize,
}

#[derive(Debug)]
struct Call<W, H> {
    id: CallId,
    caller: Caller<W, H>,
    sent_at: Instant,
    /// How many bytes it has, and once it was given to a writer, where they end.
    length: usize,
    end: u64,
    /// How many replies it still gets. Only the last one is its own; see [`CallQueue::receive`].
    replies: u8,
    earlier_refusal: Option<Value>,
    /// `receipts` when it was given to a writer.
    receipts: u64,
}

/// How many bytes may be queued before callers wait for room.
pub(crate) const MAX_UNWRITTEN_BYTES: usize = 64 * 1024;

/// How many calls, and how many of their bytes, may be unanswered when one more is detached. A
/// process that ends with more unread replies may lose requests (DESIGN: shared connection).
pub(crate) const MAX_UNREAD_CALLS: usize = 8;
pub(crate) const MAX_UNREAD_BYTES: u64 = 8 * 1024;

impl<W: Clone, H> CallQueue<W, H> {
    pub(crate) fn new() -> Self {
        Self {
            calls: VecDeque::new(),
            committed: 0,
            next_id: 0,
            unwritten: Vec::new(),
            answered_to: 0,
            written_to: 0,
            committed_to: 0,
            taken: Roles::default(),
            receipts: 0,
            live: 0,
            sending: 0,
        }
    }

    /// Whether so many bytes may be queued. Bytes that nobody would have to wait for may.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.unwritten.is_empty() || self.unwritten.len() + bytes <= MAX_UNWRITTEN_BYTES
    }

    /// Whether one more detached call keeps what is unanswered within its bounds.
    pub(crate) fn may_detach(&self, bytes: usize) -> bool {
        let unread = self.committed_to - self.answered_to;
        self.calls.len() < MAX_UNREAD_CALLS && unread + bytes as u64 <= MAX_UNREAD_BYTES
    }

    /// Takes the roles that are free for a call that is about to be queued. With `batching`, the
    /// next bytes are written only when nobody reads: one batch is in flight at a time.
    pub(crate) fn take_roles(&mut self, batching: bool) -> Roles {
        let Roles { read, write } = self.taken;
        let roles = Roles { read: !read && !write, write: !write && !(read && batching) };
        self.taken = Roles { read: read || roles.read, write: write || roles.write };
        roles
    }

    /// The same for a call whose thread does not wait for the reply.
    pub(crate) fn take_write_role(&mut self, batching: bool) -> Roles {
        let write = !self.taken.write && !(self.taken.read && batching);
        self.taken.write |= write;
        Roles { read: false, write }
    }

    /// Takes the role of the reader, if it is free.
    pub(crate) fn take_read_role(&mut self) -> bool {
        !std::mem::replace(&mut self.taken.read, true)
    }

    /// The call's thread, which has just written, becomes the reader if nobody else is. False also
    /// if the call was answered.
    pub(crate) fn become_reader(&mut self, id: CallId) -> bool {
        if self.taken.read {
            return false;
        }
        let call = self.find(id).and_then(|index| self.calls.get_mut(index));
        let Some(call) = call.filter(|call| call.is_waiting()) else { return false };
        call.caller = Caller::Reader;
        self.taken.read = true;
        true
    }

    /// Queues a call. It gets `replies`, of which the last is its own.
    pub(crate) fn push(
        &mut self,
        bytes: Vec<u8>,
        replies: u8,
        sent_at: Instant,
        caller: Caller<W, H>,
    ) -> CallId {
        let id = CallId(self.next_id);
        self.next_id += 1;
        self.live += usize::from(caller.has_thread());
        self.sending += usize::from(matches!(caller, Caller::Sending(..)));
        let (length, earlier_refusal) = (bytes.len(), None);
        if self.unwritten.is_empty() {
            self.unwritten = bytes;
        } else {
            self.unwritten.extend_from_slice(&bytes);
        }
        let (end, receipts) = (u64::MAX, 0);
        let call = Call { id, caller, sent_at, length, end, replies, earlier_refusal, receipts };
        self.calls.push_back(call);
        id
    }

    pub(crate) fn has_unwritten(&self) -> bool {
        !self.unwritten.is_empty()
    }

    /// The bytes that are queued, for the writer.
    pub(crate) fn commit(&mut self) -> Vec<u8> {
        for call in self.calls.range_mut(self.committed..) {
            self.committed_to += call.length as u64;
            (call.end, call.receipts) = (self.committed_to, self.receipts);
        }
        self.committed = self.calls.len();
        std::mem::take(&mut self.unwritten)
    }

    /// How many bytes of the stream are to be written until this call is whole.
    pub(crate) fn missing_bytes(&self, id: CallId) -> u64 {
        let call = self.find(id).and_then(|index| self.calls.get(index));
        call.map_or(0, |call| call.end.saturating_sub(self.written_to))
    }

    /// The kernel has accepted so many more bytes. Calls `written` with each thread that was only
    /// waiting for that.
    pub(crate) fn wrote(&mut self, bytes: u64, mut written: impl FnMut(W)) {
        self.written_to += bytes;
        if self.sending == 0 {
            return;
        }
        for call in self.calls.range_mut(..self.committed) {
            if call.end > self.written_to || !matches!(call.caller, Caller::Sending(..)) {
                continue;
            }
            if let Caller::Sending(thread, handler) =
                std::mem::replace(&mut call.caller, Caller::Gone)
            {
                call.caller = Caller::Detached(handler);
                self.live -= 1;
                self.sending -= 1;
                written(thread);
            }
        }
    }

    /// Something was received.
    pub(crate) fn count_receipt(&mut self) {
        self.receipts += 1;
    }

    /// The next reply, which belongs to the oldest call. `None`: there is no such call.
    ///
    /// A call of two replies is an operation behind `ASKING`. If both are refused, the first
    /// refusal tells why.
    pub(crate) fn receive(&mut self, reply: Value) -> Option<Delivery<W, H>> {
        if self.committed == 0 {
            return None;
        }
        let call = self.calls.front_mut()?;
        call.replies = call.replies.saturating_sub(1);
        let is_refusal = matches!(reply, Value::Refusal { .. });
        if call.replies > 0 {
            call.earlier_refusal = Some(reply).filter(|_| is_refusal);
            return Some(Delivery::Nobody);
        }
        let call = self.calls.pop_front()?;
        self.committed -= 1;
        self.answered_to = call.end;
        self.live -= usize::from(call.caller.has_thread());
        let reply = call.earlier_refusal.filter(|_| is_refusal).unwrap_or(reply);
        Some(match call.caller {
            Caller::Reader => Delivery::Own(reply),
            Caller::Waiting(thread) => Delivery::Waiting(thread, reply),
            Caller::Sending(thread, handler) => {
                self.sending -= 1;
                Delivery::Detached(Some(thread), handler, reply)
            }
            Caller::Detached(handler) => Delivery::Detached(None, handler, reply),
            Caller::Gone => Delivery::Nobody,
        })
    }

    /// The thread of a call leaves. A detached call stays so.
    pub(crate) fn abandon(&mut self, id: CallId) -> Abandoned {
        let Some(index) = self.find(id) else { return Abandoned::Answered };
        if index >= self.committed {
            // The bytes are still here: take them out.
            let lengths = self.calls.range(self.committed..index).map(|call| call.length);
            let start: usize = lengths.sum();
            if let Some(call) = self.calls.remove(index) {
                self.unwritten.drain(start..start + call.length);
                self.live -= usize::from(call.caller.has_thread());
                self.sending -= usize::from(matches!(call.caller, Caller::Sending(..)));
            }
            return Abandoned::Withdrawn;
        }
        let Some(call) = self.calls.get_mut(index) else { return Abandoned::Answered };
        self.live -= usize::from(call.caller.has_thread());
        call.caller = match std::mem::replace(&mut call.caller, Caller::Gone) {
            Caller::Sending(_, handler) => {
                self.sending -= 1;
                Caller::Detached(handler)
            }
            Caller::Detached(handler) => Caller::Detached(handler),
            _ => Caller::Gone,
        };
        let silent = call.receipts == self.receipts;
        Abandoned::InFlight { whole: call.end <= self.written_to, silent }
    }

    /// Gives roles back.
    pub(crate) fn give_back(&mut self, roles: Roles) {
        self.taken.read &= !roles.read;
        self.taken.write &= !roles.write;
    }

    /// Gives the free roles to the oldest calls with a thread that need them: first the reader,
    /// which also writes if bytes are left. Calls `promoted` with each of these threads.
    pub(crate) fn hand_over(&mut self, batching: bool, mut promoted: impl FnMut(W, Roles)) {
        if self.live == 0 {
            return;
        }
        let mut needs_writer =
            !self.taken.write && (self.has_unwritten() || self.written_to < self.committed_to);
        // 1. A reader, if somebody waits for a reply.
        if !self.taken.read {
            let waiting = self.calls.iter_mut().find(|call| call.is_waiting());
            if let Some(call) = waiting
                && let Caller::Waiting(thread) = std::mem::replace(&mut call.caller, Caller::Reader)
            {
                let roles = Roles { read: true, write: needs_writer };
                self.taken.read = true;
                self.taken.write |= needs_writer;
                needs_writer = false;
                promoted(thread, roles);
            }
        }
        // 2. A writer. With `batching`, the reader writes the next batch when it leaves.
        let is_partial = self.written_to < self.committed_to;
        if needs_writer && (!self.taken.read || !batching || is_partial) {
            let written_to = self.written_to;
            let unwritten = self.calls.iter().find(|call| call.end > written_to && call.sleeps());
            if let Some(Call {
                caller: Caller::Waiting(thread) | Caller::Sending(thread, _), ..
            }) = unwritten
            {
                self.taken.write = true;
                promoted(thread.clone(), Roles { read: false, write: true });
            }
        }
    }

    pub(crate) fn taken(&self) -> Roles {
        self.taken
    }

    /// Whether no thread is on the connection.
    pub(crate) fn is_unused(&self) -> bool {
        self.live == 0
    }

    /// Whether the reply to a detached call is still to be read.
    pub(crate) fn has_detached(&self) -> bool {
        self.calls.iter().any(|call| matches!(call.caller, Caller::Detached(_)))
    }

    /// When the oldest call that was given to a writer was sent.
    pub(crate) fn oldest_sent_at(&self) -> Option<Instant> {
        self.calls.front().filter(|_| self.committed > 0).map(|call| call.sent_at)
    }

    /// How many calls were given to a writer and are not answered.
    pub(crate) fn in_flight(&self) -> usize {
        self.committed
    }

    /// The connection has ended: takes out all calls, and whether each was written whole.
    pub(crate) fn take_all(&mut self) -> Vec<(Caller<W, H>, bool)> {
        let written_to = self.written_to;
        self.unwritten = Vec::new();
        (self.committed, self.live, self.sending) = (0, 0, 0);
        let whole = |call: Call<W, H>| (call.caller, call.end <= written_to);
        self.calls.drain(..).map(whole).collect()
    }

    fn find(&self, id: CallId) -> Option<usize> {
        self.calls.binary_search_by_key(&id, |call| call.id).ok()
    }
}

impl<W, H> Caller<W, H> {
    fn has_thread(&self) -> bool {
        matches!(self, Self::Reader | Self::Waiting(_) | Self::Sending(..))
    }
}

impl<W, H> Call<W, H> {
    fn is_waiting(&self) -> bool {
        matches!(self.caller, Caller::Waiting(_))
    }

    fn sleeps(&self) -> bool {
        matches!(self.caller, Caller::Waiting(_) | Caller::Sending(..))
    }
}
