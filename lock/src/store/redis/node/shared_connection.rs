//! One connection that the calls of many threads share, without a thread of its own
//! (DESIGN: shared connection).
//!
//! [`CallQueue`] decides which thread writes and which one reads; here are the socket and the
//! sleeping threads. No system call is made while the queue is locked.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::model::panics::catch_panic;
use crate::model::sync::{Condvar, Mutex, MutexGuard};
use crate::ops::operation::Script;
use crate::ops::value::Value;
use crate::store::pipeline::SentDetached;
use crate::store::redis::net::connection::{Broken, Connection, DeadlineReader, write_some};
use crate::store::redis::net::deadline::Deadline;
use crate::store::redis::net::socket::Socket;
use crate::store::redis::node::call_queue::{
    Abandoned, CallId, CallQueue, Caller, Delivery, MAX_UNREAD_CALLS, MAX_UNREAD_TLS_CALLS,
    MAX_UNWRITTEN_BYTES, Roles,
};
use crate::store::redis::resp::decode::Decoder;

/// Takes the reply to a call that no thread waits for. It is called by the thread that reads, with
/// nothing locked, and must not block.
pub(crate) type OnReply = Box<dyn FnOnce(Result<Value, Broken>) + Send>;

pub(crate) struct SharedConnection {
    socket: Arc<Socket>,
    /// The [generation](crate::store::redis::net::open_sockets::Sockets::generation) in which it
    /// was made.
    pub(crate) generation: u64,
    /// Whether new calls should use another connection.
    retired: AtomicBool,
    /// The scripts that the server has run for detached calls, and so knows by their hashes.
    known: Mutex<Vec<&'static Script>>,
    state: Mutex<State>,
    /// Signalled when there is room for bytes, and when no thread is left.
    changed: Condvar,
    /// Locked by the thread with the role, and never while `state` is locked.
    read_half: Mutex<ReadHalf>,
    write_half: Mutex<WriteHalf>,
}

struct State {
    queue: CallQueue<Arc<Mailbox>, OnReply>,
    /// Why the connection has ended. No call is queued then.
    ended: Option<io::Error>,
    round_trip: RoundTrip,
    /// When the last call was queued.
    used_at: Instant,
    /// Threads that wait for `changed`.
    watchers: usize,
}

struct ReadHalf {
    decoder: Decoder,
    timeout: Duration,
    /// Replies that were read together.
    replies: Vec<Value>,
}

struct WriteHalf {
    /// Bytes of calls, of which `written` are written.
    bytes: Vec<u8>,
    written: usize,
    timeout: Duration,
}

/// What the thread of a call sleeps on.
struct Mailbox {
    mail: Mutex<Mail>,
    posted: Condvar,
}

/// What others have left for a thread.
#[derive(Default)]
struct Mail {
    outcome: Option<Result<Value, Broken>>,
    roles: Roles,
    is_written: bool,
    is_sleeping: bool,
}

/// What a thread does for others once nothing is locked.
#[derive(Default)]
struct Aftermath {
    /// In this order.
    to_wake: Vec<Arc<Mailbox>>,
    replies: Vec<(OnReply, Result<Value, Broken>)>,
    /// To be dropped.
    unused: Vec<OnReply>,
}

/// A thread that is on the connection: with a call, or only to read. When it is dropped, also by a
/// panic, its roles go to others.
struct Participant<'a> {
    connection: &'a SharedConnection,
    id: Option<CallId>,
    /// A thread that got the role of the reader when it came has none: it never sleeps.
    mailbox: Option<Arc<Mailbox>>,
    roles: Roles,
    /// Bytes that were written and are not reported to the queue.
    unreported: u64,
    /// Whether one batch is in flight at a time.
    batching: bool,
    has_left: bool,
}

/// Below this round trip one batch is in flight at a time: waiting for the next batch costs less
/// than many small writes. Above it, each call is written as it comes.
const SHORT_ROUND_TRIP: Duration = Duration::from_micros(150);

/// The shortest round trip, as far as calls that were nearly alone show it.
#[derive(Debug, Default)]
struct RoundTrip {
    shortest: Option<Duration>,
    calls: u32,
}

/// One of this many calls is measured, once there is a measurement.
const CALLS_PER_SAMPLE: u32 = 16;
/// With more calls in flight, the server's work is a good part of a round trip.
const MAX_SAMPLED_BATCH: usize = 2;

/// How long, and how many round trips, a call may be without any reply before others use another
/// connection. Short scripts take far less, so either the server hangs, and a new connection is no
/// better, or only this connection does.
const MAX_SILENCE: Duration = Duration::from_millis(250);
const SILENT_ROUND_TRIPS: u32 = 4;

/// With more calls unanswered, most of them given up, the next that is given up ends the use of the
/// connection: the server answers less than it is asked.
const MAX_IN_FLIGHT: usize = 1024;

/// How often a writer takes the bytes of others after its own before it hands the role on.
const MAX_CHUNKS: u32 = 4;

/// After this much idle time nothing is detached. What closes idle connections would lose it
/// unnoticed: a firewall forgets a connection without a word, mostly after minutes.
const MAX_IDLE: Duration = Duration::from_secs(10);

/// After this much the socket is looked at first: a server's `timeout`, which is a second or more,
/// may have closed it.
const MAX_UNSEEN: Duration = Duration::from_millis(500);

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
            known: Mutex::default(),
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

    /// Sends a request and waits for its reply, the last of `replies`.
    pub(crate) fn call(
        &self,
        request: Vec<u8>,
        replies: u8,
        deadline: &mut Deadline,
    ) -> Result<Value, Broken> {
        let sent_at = deadline.read_at();
        let mut state = self.enter(request.len(), deadline)?;
        let batching = state.round_trip.is_short();
        let roles = state.queue.take_roles(batching);
        let mailbox = (!roles.read).then(Mailbox::new);
        let caller = mailbox.clone().map_or(Caller::Reader, Caller::Waiting);
        let id = state.queue.push(request, replies, sent_at, caller);
        state.used_at = sent_at;
        let mut participant = Participant::new(self, Some(id), mailbox, roles, batching);
        if !roles.write {
            drop(state);
            return participant.wait(deadline);
        }
        let bytes = state.queue.commit();
        let is_sampled = state.queue.in_flight() <= MAX_SAMPLED_BATCH && state.round_trip.is_due();
        drop(state);
        participant.write(bytes, u64::MAX, deadline)?;
        let reply = participant.wait(deadline);
        if is_sampled && reply.is_ok() {
            let now = deadline.refresh().read_at();
            self.state.lock().round_trip.add(now.saturating_duration_since(sent_at));
        }
        reply
    }

    /// Sends a request and returns once it is written; its reply goes to `on_reply`. It waits for
    /// the reply if too many are unread and another thread reads. After an error it was not sent,
    /// and `on_reply` is dropped; so it is if the connection has been idle for long, or seems to
    /// be closed.
    pub(crate) fn send_detached(
        &self,
        request: Vec<u8>,
        deadline: &mut Deadline,
        on_reply: OnReply,
    ) -> Result<SentDetached, Broken> {
        let sent_at = deadline.read_at();
        // 1. Read first, if too much is unread.
        let mut state = self.enter(request.len(), deadline)?;
        if !state.queue.may_detach(request.len()) && state.queue.take_read_role() {
            drop(state);
            Participant::reader(self)
                .read_backlog(request.len(), deadline)
                .map_err(Broken::NotSent)?;
            deadline.refresh();
            state = self.enter(request.len(), deadline)?;
        }
        // 2. Send nothing where only a call would find out that it is lost.
        let idle = sent_at.saturating_duration_since(state.used_at);
        if idle > MAX_UNSEEN && state.queue.in_flight() == 0 {
            drop(state);
            if idle > MAX_IDLE || !self.socket.has_no_input() {
                return Ok(SentDetached::MustWait);
            }
            state = self.enter(request.len(), deadline)?;
        }
        // 3. Wait for the reply, if it must not stay unread.
        if !state.queue.may_detach(request.len()) {
            drop(state);
            return match self.call(request, 1, deadline) {
                Err(Broken::NotSent(error)) => Err(Broken::NotSent(error)),
                answered => {
                    on_reply(answered);
                    Ok(SentDetached::Answered)
                }
            };
        }
        // 4. Write it, or wait until another thread has.
        let batching = state.round_trip.is_short();
        let roles = state.queue.take_write_role(batching);
        let mailbox = Mailbox::new();
        let caller = Caller::Sending(Arc::clone(&mailbox), on_reply);
        let id = state.queue.push(request, 1, sent_at, caller);
        state.used_at = sent_at;
        let mut participant = Participant::new(self, Some(id), Some(mailbox), roles, batching);
        if !roles.write {
            drop(state);
            return participant.wait_until_written(deadline).map(|()| SentDetached::Unread);
        }
        let bytes = state.queue.commit();
        drop(state);
        match participant.write(bytes, u64::MAX, deadline) {
            Ok(()) => participant.wait_until_written(deadline).map(|()| SentDetached::Unread),
            // It may be written yet.
            Err(Broken::Unanswered(_)) => Ok(SentDetached::Unread),
            Err(not_sent) => Err(not_sent),
        }
    }

    /// Reads the replies that are here, without waiting, unless another thread reads. Returns
    /// whether replies to detached calls are left. A connection on which nothing came for so long
    /// after its oldest request counts as broken.
    pub(crate) fn read_detached(&self, now: Instant, longest: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.queue.has_detached() {
            return false;
        }
        if !state.queue.take_read_role() {
            return true;
        }
        drop(state);
        let mut participant = Participant::reader(self);
        let has_read = participant.read_arrived();
        let oldest = self.state.lock().queue.oldest_sent_at();
        let age = oldest.map_or(Duration::ZERO, |sent| now.saturating_duration_since(sent));
        if !has_read && age > longest {
            self.end(io::ErrorKind::TimedOut.into());
        }
        participant.leave();
        self.state.lock().queue.has_detached()
    }

    /// Reads until no detached call is unanswered, or the deadline.
    pub(crate) fn read_all_detached(&self, deadline: &mut Deadline) {
        loop {
            let mut state = self.state.lock();
            if !state.queue.has_detached() || !state.queue.take_read_role() {
                return;
            }
            drop(state);
            if Participant::reader(self).read_next(deadline).is_err() {
                return;
            }
        }
    }

    /// Whether the server has run this script for a detached call of this connection.
    pub(crate) fn knows(&self, script: &'static Script) -> bool {
        self.known.lock().iter().any(|known| std::ptr::eq(*known, script))
    }

    /// The server has run it for a detached call, or perhaps does not know it any more.
    pub(crate) fn set_known(&self, script: &'static Script, is_known: bool) {
        let mut known = self.known.lock();
        let position = known.iter().position(|known| std::ptr::eq(*known, script));
        match position {
            Some(position) if !is_known => drop(known.swap_remove(position)),
            None if is_known => known.push(script),
            _ => {}
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

    /// Ends the connection: every call on it fails, at once.
    pub(crate) fn end(&self, error: io::Error) {
        self.break_off(error);
        self.settle();
    }

    /// Nothing more is queued or written.
    fn break_off(&self, error: io::Error) {
        let mut state = self.state.lock();
        state.ended.get_or_insert(error);
        self.retire();
        self.notify(&state);
        drop(state);
        self.socket.shut();
    }

    /// Waits until so many bytes may be queued.
    fn enter(
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

    /// After the end of the connection: when nobody writes or reads any more, reads what had
    /// arrived before, and then every call fails.
    fn settle(&self) {
        let mut state = self.state.lock();
        let Roles { read, write } = state.queue.taken();
        if state.ended.is_none() || read || write || !state.queue.take_read_role() {
            return;
        }
        drop(state);
        let mut participant = Participant::reader(self);
        while participant.read_arrived() {}
        participant.has_left = true;
        let mut aftermath = Aftermath::default();
        let mut state = self.state.lock();
        state.queue.give_back(Roles { read: true, write: false });
        let State { queue, ended, .. } = &mut *state;
        let ended = ended.as_ref();
        for (caller, is_whole) in queue.take_all() {
            let error = ended.map_or_else(|| io::ErrorKind::ConnectionAborted.into(), copy_of);
            aftermath.fail(caller, Broken::new(error, is_whole));
        }
        self.notify(&state);
        drop(state);
        aftermath.run();
    }

    fn notify(&self, state: &State) {
        if state.watchers > 0 {
            self.changed.notify_all();
        }
    }
}

impl Drop for SharedConnection {
    fn drop(&mut self) {
        let mut aftermath = Aftermath::default();
        for (caller, is_whole) in self.state.get_mut().queue.take_all() {
            let error = io::ErrorKind::ConnectionAborted.into();
            aftermath.fail(caller, Broken::new(error, is_whole));
        }
        aftermath.run();
    }
}

impl<'a> Participant<'a> {
    fn new(
        connection: &'a SharedConnection,
        id: Option<CallId>,
        mailbox: Option<Arc<Mailbox>>,
        roles: Roles,
        batching: bool,
    ) -> Self {
        Self { connection, id, mailbox, roles, unreported: 0, batching, has_left: false }
    }

    /// A thread without a call that has taken the role of the reader.
    fn reader(connection: &'a SharedConnection) -> Self {
        Self::new(connection, None, None, Roles { read: true, write: false }, false)
    }

    /// Waits for the reply: reads for all, or sleeps.
    fn wait(&mut self, deadline: &mut Deadline) -> Result<Value, Broken> {
        loop {
            if self.roles.read {
                return self.read(deadline);
            }
            let Some(mail) = self.sleep(deadline) else { return self.time_out() };
            self.roles.add(mail.roles);
            if let Some(outcome) = mail.outcome {
                self.leave();
                return outcome;
            }
            if self.roles.write {
                self.go_on_writing(deadline)?;
            }
        }
    }

    /// Sleeps until something is posted. `None` if that is nothing by the deadline.
    fn sleep(&self, deadline: &mut Deadline) -> Option<Mail> {
        let mailbox = self.mailbox.as_ref()?;
        loop {
            let mail = mailbox.wait(&mut deadline.at_most(MAX_SILENCE));
            if mail.is_some() || deadline.refresh().left().is_err() {
                return mail;
            }
            // If the connection is silent, this call is told so, unless it is written.
            let mut aftermath = Aftermath::default();
            let mut state = self.connection.state.lock();
            if state.is_silent(deadline.read_at()) {
                self.connection.retire();
                state.move_unwritten(&mut aftermath);
            }
            drop(state);
            aftermath.run();
        }
    }

    /// Waits until the bytes are written, by this thread if it is told so.
    fn wait_until_written(&mut self, deadline: &mut Deadline) -> Result<(), Broken> {
        loop {
            let Some(mail) = self.sleep(deadline) else {
                return match self.time_out() {
                    Err(Broken::NotSent(error)) => Err(Broken::NotSent(error)),
                    // It is written, or may be yet.
                    _ => Ok(()),
                };
            };
            self.roles.add(mail.roles);
            if mail.is_written || mail.outcome.is_some() {
                self.leave();
                return mail.outcome.map_or(Ok(()), |outcome| outcome.map(drop));
            }
            match self.go_on_writing(deadline) {
                Err(Broken::Unanswered(_)) => return Ok(()),
                result => result?,
            }
        }
    }

    /// Writes what another thread has left, and what was queued since.
    fn go_on_writing(&mut self, deadline: &mut Deadline) -> Result<(), Broken> {
        let mut state = self.connection.state.lock();
        let bytes = state.queue.commit();
        self.batching = state.round_trip.is_short();
        let missing = self.id.map_or(0, |id| state.queue.missing_bytes(id));
        self.connection.notify(&state);
        drop(state);
        deadline.refresh();
        self.write(bytes, missing, deadline)
    }

    /// Writes these bytes behind what is left of others. Waits until `missing` more bytes are
    /// written, those up to the end of this call, and writes of the rest what the kernel accepts.
    ///
    /// The role is kept only by a thread that also reads, where one batch is in flight at a time.
    fn write(
        &mut self,
        bytes: Vec<u8>,
        mut missing: u64,
        deadline: &mut Deadline,
    ) -> Result<(), Broken> {
        let connection = self.connection;
        let mut half = connection.write_half.lock();
        half.append(bytes);
        missing = missing.min(half.rest().len() as u64);
        for chunk in 1.. {
            // 1. Write.
            match self.write_chunk(&mut half, &mut missing, deadline) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    drop(half);
                    return self.time_out().map(drop);
                }
                Err(error) => {
                    drop(half);
                    return self.stop_writing(error);
                }
            }
            if self.roles.read && self.batching {
                return Ok(());
            }
            // 2. Take what others have queued meanwhile.
            let mut aftermath = Aftermath::default();
            let mut state = connection.state.lock();
            self.report(&mut state, &mut aftermath);
            if chunk < MAX_CHUNKS && half.rest().is_empty() && state.queue.has_unwritten() {
                half.append(state.queue.commit());
                connection.notify(&state);
                drop(state);
                aftermath.run();
                continue;
            }
            // 3. Hand the role on, and read if nobody does.
            state.queue.give_back(Roles { read: false, write: true });
            self.roles.write = false;
            let is_waiting = !self.roles.read;
            if is_waiting && self.id.is_some_and(|id| state.queue.become_reader(id)) {
                self.roles.read = true;
            }
            state.hand_over(&mut aftermath);
            drop((state, half));
            aftermath.run();
            return Ok(());
        }
        Ok(())
    }

    /// Writes bytes until the kernel accepts no more, and waits for it while `missing` are not
    /// written.
    fn write_chunk(
        &mut self,
        half: &mut WriteHalf,
        missing: &mut u64,
        deadline: &mut Deadline,
    ) -> io::Result<()> {
        let socket = &*self.connection.socket;
        let mut is_full = false;
        loop {
            let rest = half.bytes.get(half.written..).unwrap_or_default();
            if rest.is_empty() {
                return Ok(());
            }
            let own = usize::try_from(*missing).unwrap_or(rest.len()).min(rest.len());
            // A write that may wait contains no bytes of others behind its own.
            let result = if own == rest.len() || (own > 0 && is_full) {
                let own = rest.get(..own).unwrap_or_default();
                write_some(socket, own, &mut half.timeout, deadline)
            } else {
                socket.try_write(rest)
            };
            match result {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    half.written += written;
                    self.unreported += written as u64;
                    *missing = missing.saturating_sub(written as u64);
                    is_full = false;
                    if *missing > 0 {
                        deadline.refresh();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if own == 0 {
                        return Ok(());
                    }
                    is_full = true;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads for all until the own reply is here.
    fn read(&mut self, deadline: &mut Deadline) -> Result<Value, Broken> {
        let connection = self.connection;
        let mut half = connection.read_half.lock();
        loop {
            // 1. Read replies. One that arrived at the last moment counts.
            match half.read(&connection.socket, Some(&mut *deadline)) {
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    if half.read(&connection.socket, None).is_err() {
                        drop(half);
                        return self.time_out();
                    }
                }
                Err(error) => {
                    drop(half);
                    connection.break_off(copy_of(&error));
                    return self.end_call(error);
                }
                Ok(()) => {}
            }
            // 2. Deliver them.
            let mut aftermath = Aftermath::default();
            let mut state = connection.state.lock();
            self.report(&mut state, &mut aftermath);
            let own = state.deliver(&mut half.replies, &mut aftermath);
            let own = match own {
                Ok(None) => {
                    drop(state);
                    aftermath.run();
                    deadline.refresh();
                    continue;
                }
                Ok(Some(own)) => own,
                Err(error) => {
                    drop((state, half));
                    aftermath.run();
                    connection.break_off(copy_of(&error));
                    return self.end_call(error);
                }
            };
            drop(half);
            // 3. Write what was queued meanwhile: the server has work while others wake up.
            if state.queue.has_unwritten() && (self.roles.write || !state.queue.taken().write) {
                if !self.roles.write {
                    self.roles.add(state.queue.take_write_role(false));
                }
                let bytes = state.queue.commit();
                drop(state);
                self.write_for_others(bytes);
                state = connection.state.lock();
                self.report(&mut state, &mut aftermath);
            }
            // 4. Leave.
            self.leave_with(state, aftermath);
            return Ok(own);
        }
    }

    /// Writes what the kernel accepts.
    fn write_for_others(&mut self, bytes: Vec<u8>) {
        let mut half = self.connection.write_half.lock();
        half.append(bytes);
        // Nothing is missing, so it does not wait.
        let written = self.write_chunk(&mut half, &mut 0, &mut Deadline::after(Duration::ZERO));
        drop(half);
        if let Err(error) = written {
            self.connection.break_off(error);
        }
    }

    /// Reads replies for others. A thread without a call.
    fn read_next(&mut self, deadline: &mut Deadline) -> io::Result<()> {
        let read = self.connection.read_half.lock().read(&self.connection.socket, Some(deadline));
        match read {
            Ok(()) => self.deliver(),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(error),
            Err(error) => {
                self.connection.break_off(copy_of(&error));
                Err(error)
            }
        }
    }

    /// Reads what has arrived, for others. Returns whether that was anything.
    fn read_arrived(&mut self) -> bool {
        let read = self.connection.read_half.lock().read(&self.connection.socket, None);
        match read {
            Ok(()) => self.deliver().is_ok(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            Err(error) => {
                self.connection.break_off(error);
                false
            }
        }
    }

    fn deliver(&mut self) -> io::Result<()> {
        let mut half = self.connection.read_half.lock();
        let mut aftermath = Aftermath::default();
        let mut state = self.connection.state.lock();
        let delivered = state.deliver(&mut half.replies, &mut aftermath);
        drop((state, half));
        aftermath.run();
        delivered.map(drop).inspect_err(|error| self.connection.break_off(copy_of(error)))
    }

    /// Reads until one more call of so many bytes may be detached, or nothing is unread: a call of
    /// more bytes than may be unread never is.
    fn read_backlog(&mut self, bytes: usize, deadline: &mut Deadline) -> io::Result<()> {
        let is_too_much = || {
            let queue = &self.connection.state.lock().queue;
            queue.in_flight() > 0 && !queue.may_detach(bytes)
        };
        while is_too_much() {
            deadline.refresh();
            self.read_next(deadline)?;
        }
        self.leave();
        Ok(())
    }

    /// The bytes that were written, to the queue.
    fn report(&mut self, state: &mut State, aftermath: &mut Aftermath) {
        let written = std::mem::take(&mut self.unreported);
        if written > 0 {
            state.queue.wrote(written, |mailbox| {
                aftermath.post(mailbox, |mail| mail.is_written = true);
            });
        }
    }

    /// The deadline of the call has passed.
    fn time_out(&mut self) -> Result<Value, Broken> {
        self.end_call(io::ErrorKind::TimedOut.into())
    }

    /// Leaves without a reply, unless one came at the last moment.
    fn end_call(&mut self, error: io::Error) -> Result<Value, Broken> {
        let mut aftermath = Aftermath::default();
        let connection = self.connection;
        let mut state = connection.state.lock();
        self.report(&mut state, &mut aftermath);
        let mail = self.mailbox.as_ref().map(|mailbox| mailbox.take()).unwrap_or_default();
        self.roles.add(mail.roles);
        let abandoned = self.id.map(|id| state.queue.abandon(id));
        let outcome = match (mail.outcome, abandoned) {
            (Some(outcome), _) => outcome,
            (None, Some(Abandoned::Withdrawn(handler))) => {
                aftermath.unused.extend(handler);
                Err(Broken::NotSent(error))
            }
            (None, Some(Abandoned::InFlight { whole, silent })) => {
                if silent || !whole || state.queue.in_flight() > MAX_IN_FLIGHT {
                    connection.retire();
                    state.move_unwritten(&mut aftermath);
                }
                let is_alone = state.queue.is_unused() && !state.queue.has_detached();
                let is_last_writer = self.roles.write || !state.queue.taken().write;
                if !whole && is_last_writer && (is_alone || state.ended.is_some()) {
                    // Its rest is never written, so it cannot run.
                    state.ended.get_or_insert_with(|| copy_of(&error));
                    connection.socket.shut();
                    Err(Broken::NotSent(error))
                } else {
                    Err(Broken::Unanswered(error))
                }
            }
            (None, Some(Abandoned::Answered) | None) => Err(Broken::Unanswered(error)),
        };
        self.leave_with(state, aftermath);
        outcome
    }

    /// Writing failed. `Ok` if the thread goes on to wait: for a reply that may have arrived
    /// before, or to be told how its call ended.
    fn stop_writing(&mut self, error: io::Error) -> Result<(), Broken> {
        self.connection.break_off(copy_of(&error));
        if !self.roles.read {
            self.leave();
            self.has_left = false;
            return Ok(());
        }
        let mut state = self.connection.state.lock();
        state.queue.wrote(std::mem::take(&mut self.unreported), drop);
        let is_whole = self.id.is_some_and(|id| state.queue.missing_bytes(id) == 0);
        drop(state);
        if is_whole { Ok(()) } else { self.end_call(error).map(drop) }
    }

    /// Gives the roles back.
    fn leave(&mut self) {
        let mut aftermath = Aftermath::default();
        let mut state = self.connection.state.lock();
        self.report(&mut state, &mut aftermath);
        self.leave_with(state, aftermath);
    }

    fn leave_with(&mut self, mut state: MutexGuard<'_, State>, mut aftermath: Aftermath) {
        self.has_left = true;
        state.queue.give_back(std::mem::take(&mut self.roles));
        let has_ended = state.ended.is_some();
        if !has_ended {
            state.hand_over(&mut aftermath);
        }
        self.connection.notify(&state);
        drop(state);
        aftermath.run();
        if has_ended {
            self.connection.settle();
        }
    }
}

impl Drop for Participant<'_> {
    /// After a panic, or of a thread without a call.
    fn drop(&mut self) {
        if !self.has_left {
            drop(self.end_call(io::ErrorKind::ConnectionAborted.into()));
        }
    }
}

impl State {
    /// Delivers replies, in their order, to the oldest calls. Returns that of the thread that
    /// reads.
    fn deliver(
        &mut self,
        replies: &mut Vec<Value>,
        aftermath: &mut Aftermath,
    ) -> io::Result<Option<Value>> {
        self.queue.count_receipt();
        let mut own = None;
        for reply in replies.drain(..) {
            match self.queue.receive(reply) {
                Some(Delivery::Own(reply)) => own = Some(reply),
                Some(Delivery::Waiting(mailbox, reply)) => {
                    aftermath.post(mailbox, |mail| mail.outcome = Some(Ok(reply)));
                }
                Some(Delivery::Detached(mailbox, handler, reply)) => {
                    if let Some(mailbox) = mailbox {
                        aftermath.post(mailbox, |mail| mail.is_written = true);
                    }
                    aftermath.replies.push((handler, Ok(reply)));
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
    fn is_silent(&self, now: Instant) -> bool {
        let round_trips = self.round_trip.shortest.unwrap_or_default() * SILENT_ROUND_TRIPS;
        self.queue.is_silent(now, MAX_SILENCE.max(round_trips))
    }

    /// Tells the calls that are not written that they need another connection.
    fn move_unwritten(&mut self, aftermath: &mut Aftermath) {
        for caller in self.queue.take_unwritten() {
            let reason = "an earlier call on the connection is not answered";
            let error = io::Error::new(io::ErrorKind::ConnectionAborted, reason);
            aftermath.fail(caller, Broken::NotSent(error));
        }
    }

    fn hand_over(&mut self, aftermath: &mut Aftermath) {
        self.queue.hand_over(self.round_trip.is_short(), |mailbox, roles| {
            if mailbox.post(|mail| mail.roles.add(roles)) {
                // Before those that have their replies: it works for all.
                aftermath.to_wake.insert(0, mailbox);
            }
        });
    }
}

impl ReadHalf {
    /// Reads at least one reply by the deadline, or what has arrived, without waiting.
    fn read(&mut self, socket: &Socket, deadline: Option<&mut Deadline>) -> io::Result<()> {
        let first = match deadline {
            Some(deadline) => {
                self.decoder.next(&mut DeadlineReader::new(socket, &mut self.timeout, deadline))
            }
            None => self.decoder.next(&mut ArrivedReader(socket)),
        };
        self.replies.push(first?);
        while let Some(reply) = self.decoder.buffered() {
            self.replies.push(reply);
        }
        Ok(())
    }
}

/// Reads what has arrived.
struct ArrivedReader<'a>(&'a Socket);

impl Read for ArrivedReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.try_read(buffer) {
                // Over TLS, what arrived was no whole record.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }
}

impl WriteHalf {
    fn rest(&self) -> &[u8] {
        self.bytes.get(self.written..).unwrap_or_default()
    }

    fn append(&mut self, bytes: Vec<u8>) {
        if self.rest().is_empty() {
            (self.bytes, self.written) = (bytes, 0);
        } else {
            self.bytes.extend_from_slice(&bytes);
        }
    }
}

impl Mailbox {
    fn new() -> Arc<Self> {
        Arc::new(Self { mail: Mutex::new(Mail::default()), posted: Condvar::new() })
    }

    /// Leaves something for the thread. Returns whether it sleeps and has to be woken.
    fn post(&self, change: impl FnOnce(&mut Mail)) -> bool {
        let mut mail = self.mail.lock();
        change(&mut mail);
        mail.is_sleeping
    }

    fn take(&self) -> Mail {
        std::mem::take(&mut *self.mail.lock())
    }

    /// Sleeps until something is posted. `None` if that is nothing by the deadline.
    fn wait(&self, deadline: &mut Deadline) -> Option<Mail> {
        let mut mail = self.mail.lock();
        while mail.is_empty() {
            mail.is_sleeping = true;
            let left = deadline.refresh().left();
            if let Ok(left) = left {
                self.posted.wait_for(&mut mail, left);
            }
            mail.is_sleeping = false;
            if left.is_err() {
                return None;
            }
        }
        Some(std::mem::take(&mut *mail))
    }
}

impl Mail {
    fn is_empty(&self) -> bool {
        self.outcome.is_none() && self.roles == Roles::default() && !self.is_written
    }
}

impl Aftermath {
    fn post(&mut self, mailbox: Arc<Mailbox>, change: impl FnOnce(&mut Mail)) {
        if mailbox.post(change) {
            self.to_wake.push(mailbox);
        }
    }

    /// The connection has ended.
    fn fail(&mut self, caller: Caller<Arc<Mailbox>, OnReply>, broken: Broken) {
        match (caller, &broken) {
            (Caller::Sending(mailbox, handler), Broken::NotSent(_)) => {
                self.unused.push(handler);
                self.post(mailbox, |mail| mail.outcome = Some(Err(broken)));
            }
            (Caller::Waiting(mailbox), _) => {
                self.post(mailbox, |mail| mail.outcome = Some(Err(broken)));
            }
            (Caller::Sending(mailbox, handler), Broken::Unanswered(_)) => {
                self.post(mailbox, |mail| mail.is_written = true);
                self.replies.push((handler, Err(broken)));
            }
            (Caller::Detached(handler), _) => self.replies.push((handler, Err(broken))),
            // The thread that reads learns it by itself.
            (Caller::Reader | Caller::Gone, _) => {}
        }
    }

    fn run(self) {
        for mailbox in self.to_wake {
            mailbox.posted.notify_one();
        }
        catch_panic(|| drop(self.unused));
        for (handler, reply) in self.replies {
            // A panic is not passed on to a thread that only reads for others.
            catch_panic(|| handler(reply));
        }
    }
}

impl RoundTrip {
    fn is_short(&self) -> bool {
        self.shortest.is_some_and(|shortest| shortest < SHORT_ROUND_TRIP)
    }

    /// Whether a call that begins now is to be measured.
    fn is_due(&mut self) -> bool {
        self.calls = self.calls.wrapping_add(1);
        self.shortest.is_none() || self.calls.is_multiple_of(CALLS_PER_SAMPLE)
    }

    /// Takes in a measurement. One that is longer counts little: the thread or the server may have
    /// waited for a processor.
    fn add(&mut self, sample: Duration) {
        let shortest = self.shortest.unwrap_or(sample);
        self.shortest = Some(sample.min(shortest + sample.saturating_sub(shortest) / 32));
    }
}

/// The same error, for each of those that it concerns.
fn copy_of(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::mpsc::{Receiver, channel};
    use std::thread;

    use hashed_wheel::{Clock, SystemClock};
    use wheellock_fixture::Server;

    use super::*;
    use crate::store::redis::resp::encode::Command;

    const TIMEOUT: Duration = Duration::from_secs(20);

    fn connect(server: &Server) -> SharedConnection {
        let mut deadline = Deadline::after(TIMEOUT);
        let socket = Socket::connect(&server.address(), &mut deadline, TIMEOUT).unwrap();
        let connection = Connection::new(Arc::new(socket), TIMEOUT, 0);
        SharedConnection::new(connection, TIMEOUT, SystemClock.now())
    }

    fn echo(connection: &SharedConnection, word: &str) {
        let request = Command::of(&["ECHO", word]);
        let reply = connection.call(request, 1, &mut Deadline::after(TIMEOUT)).unwrap();
        assert_eq!(reply, Value::Text(word.to_owned()));
    }

    /// Sends an ECHO, and returns where its reply comes.
    fn detach(connection: &SharedConnection, word: &str) -> Receiver<Result<Value, Broken>> {
        let (sender, receiver) = channel();
        let handler = Box::new(move |reply| sender.send(reply).unwrap());
        let request = Command::of(&["ECHO", word]);
        connection.send_detached(request, &mut Deadline::after(TIMEOUT), handler).unwrap();
        receiver
    }

    #[test]
    fn each_of_many_threads_gets_its_own_replies() {
        let server = Server::start();
        for is_short in [true, false] {
            let connection = connect(&server);
            if is_short {
                connection.state.lock().round_trip.shortest = Some(Duration::ZERO);
            }
            thread::scope(|scope| {
                for number in 0..16 {
                    let connection = &connection;
                    scope.spawn(move || {
                        for round in 0..200 {
                            let word = format!("{number}:{round}:{}", "x".repeat(round));
                            if number % 4 == 0 {
                                let reply = detach(connection, &word);
                                echo(connection, "later");
                                // Another thread may have read it, and be about to hand it over.
                                let reply = reply.recv_timeout(TIMEOUT).unwrap().unwrap();
                                assert_eq!(reply, Value::Text(word));
                            } else {
                                echo(connection, &word);
                            }
                        }
                    });
                }
            });
            assert!(connection.is_done());
        }
    }

    #[test]
    fn a_detached_reply_is_read_later_and_few_are_left_unread() {
        let server = Server::start();
        let connection = connect(&server);
        let replies: Vec<_> =
            (0..50).map(|number| detach(&connection, &number.to_string())).collect();
        let unread = replies.iter().filter(|reply| reply.try_recv().is_err()).count();
        assert!(unread <= 8, "{unread}");
        let mut deadline = Deadline::after(TIMEOUT);
        while connection.read_detached(SystemClock.now(), TIMEOUT) {
            assert!(deadline.refresh().left().is_ok());
            thread::yield_now();
        }
        assert!(connection.is_done());
    }

    #[test]
    fn a_long_request_is_not_left_unread() {
        let server = Server::start();
        let connection = connect(&server);
        for unread in [0, 3] {
            for _ in 0..unread {
                detach(&connection, "a");
            }
            let long = "x".repeat(10_000);
            let reply = detach(&connection, &long);
            assert_eq!(reply.try_recv().unwrap().unwrap(), Value::Text(long));
        }
    }

    #[test]
    fn after_an_idle_time_nothing_is_detached() {
        let server = Server::start();
        let connection = connect(&server);
        connection.state.lock().used_at = SystemClock.now().checked_sub(MAX_IDLE * 2).unwrap();
        let on_reply = Box::new(|reply| panic!("it was sent, and answered {reply:?}"));
        let request = Command::of(&["ECHO", "a"]);
        let sent = connection.send_detached(request, &mut Deadline::after(TIMEOUT), on_reply);
        assert!(matches!(sent, Ok(SentDetached::MustWait)), "{sent:?}");
        assert!(connection.is_done());
    }

    #[test]
    fn a_detached_call_is_told_of_the_end_of_its_connection() {
        let server = Server::start();
        for ends in [
            |connection: SharedConnection| drop(connection),
            |connection: SharedConnection| connection.end(io::ErrorKind::ConnectionAborted.into()),
            // Nothing came for so long after it was sent.
            |connection: SharedConnection| {
                let late = SystemClock.now() + TIMEOUT * 2;
                assert!(!connection.read_detached(late, TIMEOUT));
            },
        ] {
            server.pause();
            let connection = connect(&server);
            let reply = detach(&connection, "a");
            assert!(reply.try_recv().is_err());
            ends(connection);
            assert!(matches!(reply.try_recv().unwrap(), Err(Broken::Unanswered(_))));
            server.resume();
        }
    }

    #[test]
    fn a_panic_of_the_thread_that_reads_hands_its_role_on() {
        let server = Server::start();
        let connection = connect(&server);
        assert!(connection.state.lock().queue.take_read_role());
        let participant = Participant::reader(&connection);
        thread::scope(|scope| {
            let callers: Vec<_> = (0..4)
                .map(|number: u32| {
                    let connection = &connection;
                    scope.spawn(move || echo(connection, &number.to_string()))
                })
                .collect();
            let mut deadline = Deadline::after(TIMEOUT);
            while connection.state.lock().queue.in_flight() < 4 {
                assert!(deadline.refresh().left().is_ok());
                thread::yield_now();
            }
            let panics = AssertUnwindSafe(|| {
                let _reads = participant;
                panic!("on purpose");
            });
            assert!(catch_unwind(panics).is_err());
            for caller in callers {
                caller.join().unwrap();
            }
        });
        assert_eq!(connection.state.lock().queue.taken(), Roles::default());
    }

    #[test]
    fn a_call_that_gives_up_leaves_the_others_alone() {
        let server = Server::start();
        let connection = connect(&server);
        server.pause();
        thread::scope(|scope| {
            let patient = scope.spawn(|| echo(&connection, "patient"));
            let request = Command::of(&["ECHO", "hasty"]);
            let mut short = Deadline::after(Duration::from_millis(50));
            assert!(connection.call(request, 1, &mut short).is_err());
            server.resume();
            patient.join().unwrap();
        });
    }
}
