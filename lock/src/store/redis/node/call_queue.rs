//! The calls on one connection, in the order of their bytes, and which of their threads write and
//! read for all (DESIGN: shared connection).
//!
//! These are the rules alone: no socket, no thread, and time is an argument. There are two roles,
//! and one thread at a time has each: the writer takes all bytes that are queued, the reader all
//! replies that arrive. Roles are taken by a call that arrives, and handed on by one that leaves.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

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
pub(crate) enum Abandoned<H> {
    /// It was answered before.
    Answered,
    /// Its bytes were not written and never will be. What would have taken the reply is not needed.
    Withdrawn(Option<H>),
    /// Its bytes are written, or will be unless the connection ends: `whole` says which. `silent`:
    /// nothing was received since it was given to a writer.
    InFlight { whole: bool, silent: bool },
}

/// The calls of one connection that are not answered.
#[derive(Debug)]
pub(crate) struct CallQueue<W, H> {
    max_unread_calls: usize,
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
/// Over TLS a server reads one record after the other, and gives up the rest when it cannot send a
/// reply.
pub(crate) const MAX_UNREAD_TLS_CALLS: usize = 1;
pub(crate) const MAX_UNREAD_BYTES: u64 = 8 * 1024;

impl<W: Clone, H> CallQueue<W, H> {
    pub(crate) fn new(max_unread_calls: usize) -> Self {
        Self {
            max_unread_calls,
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

    /// Whether this number of bytes may be queued. If nothing is queued, any number may.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.unwritten.is_empty() || self.unwritten.len() + bytes <= MAX_UNWRITTEN_BYTES
    }

    /// Whether one more detached call keeps what is unanswered within its bounds.
    pub(crate) fn may_detach(&self, bytes: usize) -> bool {
        let unread = self.committed_to - self.answered_to;
        self.calls.len() < self.max_unread_calls && unread + bytes as u64 <= MAX_UNREAD_BYTES
    }

    /// Takes the roles that are free for a call that is about to be queued. With `batching`, the
    /// next bytes are written only when nobody reads: one batch is in flight at a time.
    pub(crate) fn take_roles(&mut self, batching: bool) -> Roles {
        let Roles { read, write } = self.taken;
        let may_write = !read || !batching;
        let roles = Roles { read: !read && !write, write: !write && may_write };
        self.taken = Roles { read: read || roles.read, write: write || roles.write };
        roles
    }

    /// Takes the role of the writer, if it is free, for a call whose thread does not wait for the
    /// reply. With `batching`, only when nobody reads.
    pub(crate) fn take_write_role(&mut self, batching: bool) -> Roles {
        let may_write = !self.taken.read || !batching;
        let write = !self.taken.write && may_write;
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

    /// The kernel has accepted `bytes` more. Calls `written` with each thread that was only
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
    pub(crate) fn abandon(&mut self, id: CallId) -> Abandoned<H> {
        let Some(index) = self.find(id) else { return Abandoned::Answered };
        if index >= self.committed {
            // The bytes are still here: take them out.
            let lengths = self.calls.range(self.committed..index).map(|call| call.length);
            let start: usize = lengths.sum();
            let Some(call) = self.calls.remove(index) else { return Abandoned::Answered };
            self.unwritten.drain(start..start + call.length);
            self.live -= usize::from(call.caller.has_thread());
            return Abandoned::Withdrawn(match call.caller {
                Caller::Sending(_, handler) => {
                    self.sending -= 1;
                    Some(handler)
                }
                _ => None,
            });
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

    /// Takes out the calls that were not given to a writer and whose threads sleep: they can go to
    /// another connection.
    pub(crate) fn take_unwritten(&mut self) -> Vec<Caller<W, H>> {
        let mut moved = Vec::new();
        for index in (self.committed..self.calls.len()).rev() {
            let Some(call) = self.calls.get(index).filter(|call| call.sleeps()) else { continue };
            let id = call.id;
            if let Some(call) = self.calls.get_mut(index) {
                moved.push(std::mem::replace(&mut call.caller, Caller::Reader));
            }
            // As a reader, it counts as a thread that leaves.
            self.sending -= usize::from(matches!(moved.last(), Some(Caller::Sending(..))));
            self.abandon(id);
        }
        moved.reverse();
        moved
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
        // 1. A reader, if somebody waits for a reply. While another thread writes the bytes of the
        //    call, it must not: that thread may leave some to it, and hands over when it leaves.
        if !self.taken.read {
            let (is_written, written_to) = (!self.taken.write, self.written_to);
            let waiting = self.calls.iter_mut().find(|call| call.is_waiting());
            if let Some(call) = waiting.filter(|call| is_written || call.end <= written_to)
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

    /// Whether nothing was received for longer than `longest`, although a thread waits for a reply.
    /// What nobody waits for may have arrived and is only unread.
    pub(crate) fn is_silent(&self, now: Instant, longest: Duration) -> bool {
        let mut committed = self.calls.range(..self.committed);
        committed.find(|call| call.caller.has_thread()).is_some_and(|oldest| {
            oldest.receipts == self.receipts
                && now.saturating_duration_since(oldest.sent_at) > longest
        })
    }

    /// When the oldest call was queued.
    pub(crate) fn oldest_sent_at(&self) -> Option<Instant> {
        self.calls.front().map(|call| call.sent_at)
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use hashed_wheel::{Clock, SystemClock};
    use proptest::prelude::*;

    use super::*;

    /// Threads, a kernel and a server around the queue. A call's bytes are its number, repeated,
    /// and the server answers each whole call with that number.
    struct World {
        queue: CallQueue<u64, u64>,
        now: Instant,
        /// Calls whose thread is there, and those that a handler waits for.
        threads: BTreeMap<u64, Thread>,
        detached: BTreeMap<u64, u64>,
        /// What the writer was given and has not written.
        chunk: Vec<u8>,
        /// Bytes that were written and not reported.
        unreported: u64,
        /// What the kernel has accepted and the server has not read.
        kernel: Vec<u8>,
        /// In the order in which calls were given to a writer: number, length, replies.
        sent: VecDeque<(u64, usize, u8)>,
        arrived: VecDeque<Value>,
        answered: Vec<u64>,
        withdrawn: Vec<u64>,
        batching: bool,
    }

    #[derive(Debug)]
    struct Thread {
        id: CallId,
        roles: Roles,
        length: usize,
        replies: u8,
        sends_only: bool,
        /// It was told how its call ended.
        done: bool,
    }

    #[derive(Clone, Debug)]
    enum Step {
        Arrive { length: usize, replies: u8, sends_only: bool },
        Write { bytes: usize },
        Serve,
        Read { replies: usize },
        TimeOut { index: usize },
        Batching(bool),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (1..20_usize, 1..3_u8, prop::bool::weighted(0.3)).prop_map(
                |(length, replies, sends_only)| Step::Arrive { length, replies, sends_only }
            ),
            6 => (1..60_usize).prop_map(|bytes| Step::Write { bytes }),
            4 => Just(Step::Serve),
            6 => (1..6_usize).prop_map(|replies| Step::Read { replies }),
            1 => (0..20_usize).prop_map(|index| Step::TimeOut { index }),
            1 => any::<bool>().prop_map(Step::Batching),
        ];
        prop::collection::vec(step, 0..200)
    }

    impl World {
        fn new() -> Self {
            Self {
                queue: CallQueue::new(MAX_UNREAD_CALLS),
                now: SystemClock.now(),
                threads: BTreeMap::new(),
                detached: BTreeMap::new(),
                chunk: Vec::new(),
                unreported: 0,
                kernel: Vec::new(),
                sent: VecDeque::new(),
                arrived: VecDeque::new(),
                answered: Vec::new(),
                withdrawn: Vec::new(),
                batching: false,
            }
        }

        fn run(&mut self, step: &Step) {
            match *step {
                Step::Arrive { length, replies, sends_only } => {
                    let replies = if sends_only { 1 } else { replies };
                    self.arrive(length, replies, sends_only);
                }
                Step::Write { bytes } => self.write(bytes),
                Step::Serve => self.serve(),
                Step::Read { replies } => self.read(replies),
                Step::TimeOut { index } => {
                    let mut threads = self.threads.iter().filter(|(_, thread)| !thread.done);
                    if let Some(number) = threads.nth(index).map(|(number, _)| *number) {
                        self.time_out(number);
                    }
                }
                Step::Batching(batching) => self.batching = batching,
            }
            self.check();
        }

        fn arrive(&mut self, length: usize, replies: u8, sends_only: bool) {
            let number = self.queue.next_id;
            let roles = if sends_only {
                self.queue.take_write_role(self.batching)
            } else {
                self.queue.take_roles(self.batching)
            };
            let caller = match (sends_only, roles.read) {
                (true, _) => Caller::Sending(number, number),
                (false, true) => Caller::Reader,
                (false, false) => Caller::Waiting(number),
            };
            let bytes = vec![u8::try_from(number % 251).unwrap(); length];
            let id = self.queue.push(bytes, replies, self.now, caller);
            let thread = Thread { id, roles, length, replies, sends_only, done: false };
            self.threads.insert(number, thread);
            if roles.write {
                self.commit();
            }
        }

        fn commit(&mut self) {
            let committed = self.queue.calls.range(self.queue.committed..);
            for call in committed {
                self.sent.push_back((call.id.0, call.length, call.replies));
            }
            self.chunk.extend(self.queue.commit());
        }

        fn with_role(&self, role: impl Fn(Roles) -> bool) -> Option<u64> {
            self.threads.iter().find(|(_, thread)| role(thread.roles)).map(|(number, _)| *number)
        }

        fn report(&mut self) {
            let mut written = Vec::new();
            self.queue.wrote(std::mem::take(&mut self.unreported), |number| written.push(number));
            for number in written {
                let thread = self.threads.get_mut(&number).unwrap();
                thread.done = true;
                self.detached.insert(number, number);
            }
        }

        /// The writer writes this number of bytes, and hands the role on when there is nothing
        /// left.
        fn write(&mut self, bytes: usize) {
            let Some(number) = self.with_role(|roles| roles.write) else { return };
            if self.chunk.is_empty() {
                self.commit();
            }
            let bytes = bytes.min(self.chunk.len());
            self.kernel.extend(self.chunk.drain(..bytes));
            self.unreported += bytes as u64;
            if !self.chunk.is_empty() {
                return;
            }
            let thread = &self.threads[&number];
            if thread.roles.read && self.batching {
                return;
            }
            let (id, reads) = (thread.id, thread.roles.read);
            self.report();
            self.queue.give_back(Roles { read: false, write: true });
            let reads = reads || self.queue.become_reader(id);
            self.threads.get_mut(&number).unwrap().roles = Roles { read: reads, write: false };
            self.hand_over();
        }

        fn hand_over(&mut self) {
            let mut promoted = Vec::new();
            self.queue.hand_over(self.batching, |number, roles| promoted.push((number, roles)));
            for (number, roles) in promoted {
                self.threads.get_mut(&number).unwrap().roles.add(roles);
                if roles.write {
                    self.commit();
                }
            }
            self.drop_done();
        }

        /// Threads that were told the end of their call leave, and give back what they got last.
        fn drop_done(&mut self) {
            while let Some(number) =
                self.threads.iter().find(|(_, thread)| thread.done).map(|(number, _)| *number)
            {
                let thread = self.threads.remove(&number).unwrap();
                self.queue.give_back(thread.roles);
                if thread.roles != Roles::default() {
                    self.hand_over();
                }
            }
        }

        /// The server reads what it got, and answers the calls that are whole.
        fn serve(&mut self) {
            while let Some((number, length, replies)) = self.sent.front().copied() {
                if self.kernel.len() < length {
                    return;
                }
                let bytes: Vec<u8> = self.kernel.drain(..length).collect();
                assert!(bytes.iter().all(|byte| u64::from(*byte) == number % 251), "mixed bytes");
                self.sent.pop_front();
                self.arrived.extend((1..replies).map(|_| Value::Nil));
                self.arrived.push_back(Value::Integer(i64::try_from(number).unwrap()));
            }
        }

        /// The reader reads at most this number of replies, and leaves if its own is among them.
        fn read(&mut self, replies: usize) {
            let Some(reader) = self.with_role(|roles| roles.read) else { return };
            if self.arrived.is_empty() {
                return;
            }
            self.report();
            self.queue.count_receipt();
            for _ in 0..replies {
                let Some(reply) = self.arrived.pop_front() else { break };
                let (number, value) = match self.queue.receive(reply).unwrap() {
                    Delivery::Own(value) => (reader, value),
                    Delivery::Waiting(number, value) => (number, value),
                    Delivery::Detached(thread, number, value) => {
                        if let Some(thread) = thread {
                            self.threads.get_mut(&thread).unwrap().done = true;
                        }
                        self.detached.remove(&number);
                        self.answer(number, &value);
                        continue;
                    }
                    Delivery::Nobody => continue,
                };
                self.answer(number, &value);
                self.threads.get_mut(&number).unwrap().done = true;
            }
            // The reader writes the next batch when it leaves.
            let thread = &self.threads[&reader];
            if thread.done && self.queue.has_unwritten() {
                let writes = thread.roles.write || self.queue.take_write_role(false).write;
                if writes {
                    self.threads.get_mut(&reader).unwrap().roles.write = true;
                    self.commit();
                    let bytes = self.chunk.len() / 2;
                    self.kernel.extend(self.chunk.drain(..bytes));
                    self.unreported += bytes as u64;
                    self.report();
                }
            }
            self.drop_done();
        }

        fn answer(&mut self, number: u64, value: &Value) {
            assert_eq!(*value, Value::Integer(i64::try_from(number).unwrap()), "another's reply");
            self.answered.push(number);
        }

        fn time_out(&mut self, number: u64) {
            self.report();
            let Some(thread) = self.threads.get(&number).filter(|thread| !thread.done) else {
                return self.drop_done();
            };
            match self.queue.abandon(thread.id) {
                Abandoned::Withdrawn(_) => self.withdrawn.push(number),
                Abandoned::InFlight { .. } if thread.sends_only => {
                    self.detached.insert(number, number);
                }
                Abandoned::InFlight { .. } => {}
                Abandoned::Answered => panic!("its thread would have been told"),
            }
            self.threads.get_mut(&number).unwrap().done = true;
            self.hand_over();
            self.drop_done();
        }

        fn check(&self) {
            let taken = self.queue.taken();
            // 1. Each role has one thread, or none.
            let having = |role: fn(Roles) -> bool| {
                self.threads.values().filter(|thread| role(thread.roles)).count()
            };
            assert_eq!(having(|roles| roles.read), usize::from(taken.read));
            assert_eq!(having(|roles| roles.write), usize::from(taken.write));
            // 2. While a thread waits for a reply, somebody reads, or writes and reads next.
            let waits = self.threads.values().any(|thread| !thread.sends_only);
            assert!(!waits || taken.read || taken.write, "nobody reads");
            // 3. Bytes have a writer, or a reader that writes them when it leaves.
            let has_bytes = self.queue.has_unwritten() || !self.chunk.is_empty();
            let has_threads = !self.threads.is_empty();
            assert!(!has_bytes || !has_threads || taken.read || taken.write, "nobody writes");
            // 4. The counts are right.
            assert_eq!(self.queue.live, self.threads.len());
            assert_eq!(self.queue.is_unused(), self.threads.is_empty());
            let lengths = self.queue.calls.range(self.queue.committed..).map(|call| call.length);
            assert_eq!(self.queue.unwritten.len(), lengths.sum::<usize>());
            assert!(self.threads.values().all(|thread| thread.length > 0 && thread.replies > 0));
        }
    }

    proptest! {
        #[test]
        fn every_call_gets_its_reply_whoever_writes_reads_and_gives_up(steps in steps()) {
            let mut world = World::new();
            for step in &steps {
                world.run(step);
            }
            // Everything that is left is answered, as nobody gives up any more.
            for _ in 0..2_000 {
                for step in [Step::Write { bytes: 7 }, Step::Serve, Step::Read { replies: 3 }] {
                    world.run(&step);
                }
            }
            prop_assert!(world.threads.is_empty(), "{:?}", world.threads);
            let mut once = world.answered.clone();
            once.sort_unstable();
            once.dedup();
            prop_assert_eq!(once.len(), world.answered.len());
            prop_assert!(world.withdrawn.iter().all(|number| !once.contains(number)));
        }
    }

    fn queue() -> (CallQueue<u64, u64>, Instant) {
        (CallQueue::new(MAX_UNREAD_CALLS), SystemClock.now())
    }

    #[test]
    fn a_call_that_was_not_given_to_a_writer_leaves_no_bytes() {
        let (mut queue, now) = queue();
        let first = queue.push(b"aaa".to_vec(), 1, now, Caller::Waiting(1));
        let second = queue.push(b"bb".to_vec(), 1, now, Caller::Waiting(2));
        queue.push(b"c".to_vec(), 1, now, Caller::Waiting(3));
        assert_eq!(queue.abandon(second), Abandoned::Withdrawn(None));
        assert_eq!(queue.commit(), b"aaac");
        assert_eq!(queue.abandon(first), Abandoned::InFlight { whole: false, silent: true });
        queue.wrote(3, drop);
        queue.count_receipt();
        assert_eq!(queue.receive(Value::Integer(1)), Some(Delivery::Nobody));
        assert_eq!(queue.receive(Value::Integer(3)), Some(Delivery::Waiting(3, Value::Integer(3))));
        assert_eq!(queue.receive(Value::Nil), None);
    }

    #[test]
    fn with_batches_nothing_is_written_while_somebody_reads() {
        let (mut queue, _) = queue();
        assert_eq!(queue.take_roles(true), Roles { read: true, write: true });
        queue.give_back(Roles { read: false, write: true });
        assert_eq!(queue.take_roles(true), Roles::default());
        assert_eq!(queue.take_roles(false), Roles { read: false, write: true });
    }

    #[test]
    fn the_first_of_two_refusals_tells_why_asking_failed() {
        let refusal = |code: &str| Value::Refusal { code: code.to_owned(), message: String::new() };
        for (replies, expected) in [
            ([refusal("NOPERM"), refusal("MOVED")], refusal("NOPERM")),
            ([refusal("NOPERM"), Value::Nil], Value::Nil),
            ([Value::Nil, refusal("MOVED")], refusal("MOVED")),
        ] {
            let (mut queue, now) = queue();
            queue.push(b"a".to_vec(), 2, now, Caller::Reader);
            drop(queue.commit());
            let [first, second] = replies;
            assert_eq!(queue.receive(first), Some(Delivery::Nobody));
            assert_eq!(queue.receive(second), Some(Delivery::Own(expected)));
        }
    }

    #[test]
    fn what_may_stay_unread_and_unwritten_is_bounded() {
        let (mut queue, now) = queue();
        assert!(queue.may_detach(8 * 1024) && !queue.may_detach(8 * 1024 + 1));
        for _ in 0..MAX_UNREAD_CALLS {
            assert!(queue.may_detach(1));
            queue.push(b"a".to_vec(), 1, now, Caller::Detached(1));
        }
        assert!(!queue.may_detach(1));
        assert!(queue.has_room(MAX_UNWRITTEN_BYTES - MAX_UNREAD_CALLS));
        assert!(!queue.has_room(MAX_UNWRITTEN_BYTES));
        drop(queue.commit());
        assert!(queue.has_room(usize::MAX), "alone it has room, however long it is");
    }
}
