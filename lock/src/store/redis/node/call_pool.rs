//! Sends calls to a server: each call on its own connection, or several calls in one write while no
//! connection is idle.
//!
//! 1. A call takes the last used idle connection, writes, reads the reply and puts the connection
//!    back.
//! 2. If no connection is idle, the call queues, and waits until its own deadline. A separate
//!    thread opens more connections, one at a time, up to a limit.
//! 3. A connection put back goes to the first call of the queue. This call takes some other queued
//!    calls along and writes all requests at once.
//! 4. The thread that owns the connection reads, and passes on each reply. Once this thread has its
//!    own reply, or no time left, the next thread waiting for a reply reads.
//! 5. When a call gives up, its reply is dropped on arrival. A connection without waiting threads
//!    and without an answer is closed.
//!
//! No thread serves the connections, and no thread spins. An earlier design, one connection for all
//! threads, needed a second wake-up for each reply and ran no calls in parallel: with two to
//! sixteen threads, the earlier design was slower than a connection for each thread.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hashed_wheel::Clock;

use crate::model::panics::catch_panic;
use crate::model::sync::{Condvar, Mutex, MutexGuard, SystemClock, thread};
use crate::ops::Released;
use crate::ops::operation::Script;
use crate::ops::value::FromReply;
use crate::store::failure::Failure;
use crate::store::redis::net::connection::{Broken, Connection};
use crate::store::redis::net::deadline::Deadline;
use crate::store::redis::net::open_sockets::Sockets;
use crate::store::redis::node::call_connection::{
    CallConnection, Deliveries, MAX_SILENCE, UnreadAnswer, UnreadRequest, copy_of,
};
use crate::store::redis::node::pool::{Limits, Pool, is_needless};
use crate::store::redis::node::request::{ReplyAction, classify_reply, too_many_resends};
use crate::store::redis::node::server::Server;
use crate::store::redis::node::waiting_call::{
    CallReply, CallState, NoReply, Outcome, WaitingCall, Wanted,
};
use crate::store::shutdown::CallGeneration;
use crate::store::unread::ReleaseReply;

/// The connections for calls to one server, and the calls that wait for a connection.
pub(crate) struct CallPool {
    server: Arc<Server>,
    /// The sockets of the connections for calls.
    sockets: Sockets,
    state: Mutex<CallPoolState>,
    /// Signalled when no connection is in use.
    unused: Condvar,
    /// Number of unread replies that no thread waits for.
    unread: AtomicUsize,
}

/// The connections and the queue of a [`CallPool`].
struct CallPoolState {
    pool: Pool<Box<CallConnection>, Arc<WaitingCall>>,
    /// Time of the last use of a connection that has broken since.
    broke_at: Option<Instant>,
    /// The generation of the server's sockets at the last connect.
    generation: u64,
    is_closed: bool,
}

/// A connection owned by a running thread. Dropping the owner closes the connection: a panic
/// unwinds.
struct Owned<'a> {
    calls: &'a Arc<CallPool>,
    connection: Option<Box<CallConnection>>,
}

/// The result of searching for an idle connection.
enum Idle<'a> {
    Taken(Owned<'a>),
    /// No connection is idle. While the state is locked, no connection is put back.
    None(MutexGuard<'a, CallPoolState>),
}

/// The result of requesting a connection.
enum Entered<'a> {
    /// A connection. Other calls may wait in the queue.
    Writes(Owned<'a>, Wanted),
    Reads(Owned<'a>),
    Ended(Outcome),
}

/// Largest number of requests in a batch. With 32 requests, the slowest hundredth of the calls
/// waits longer than on a connection for each thread.
const MAX_BATCH: usize = 16;
/// Length of a batch, in bytes, from which on no more requests are added.
const MAX_BATCH_BYTES: usize = 16 * 1024;

impl CallPool {
    pub(crate) fn new(server: Arc<Server>, limits: Limits) -> Arc<Self> {
        let pool = Pool::new(limits);
        let state = CallPoolState { pool, broke_at: None, generation: 0, is_closed: false };
        Arc::new(Self {
            server,
            sockets: Sockets::default(),
            state: Mutex::new(state),
            unused: Condvar::new(),
            unread: AtomicUsize::new(0),
        })
    }

    /// Sends the request about `key`, appended by `encode`, and waits for the reply.
    ///
    /// Fails for a call that began before [`abort_calls`](Self::abort_calls).
    pub(crate) fn call(
        self: &Arc<Self>,
        encode: impl Fn(&mut Vec<u8>),
        key: &str,
        deadline: &mut Deadline,
        call_generation: CallGeneration,
    ) -> Outcome {
        // 1. An idle connection, for this request alone. Without time left, the write would fail
        //    and end an intact connection.
        deadline.left().map_err(not_sent)?;
        if let Idle::Taken(mut owned) = self.take_idle(key, deadline, call_generation)? {
            encode(owned.requests());
            let end = owned.requests().len();
            return owned.send(end, Vec::new(), deadline);
        }
        // 2. The queue. Another thread may write the request.
        let mut request = Vec::new();
        encode(&mut request);
        match self.enter(Wanted::Call(request), key, deadline, call_generation)? {
            Entered::Writes(owned, Wanted::Call(request)) => owned.write_batch(&request, deadline),
            // Not reached: only a caller without a request gets this answer.
            Entered::Writes(_, Wanted::Alone) => Err(not_sent(io::ErrorKind::Other.into())),
            Entered::Reads(owned) => owned.read(deadline),
            Entered::Ended(outcome) => outcome,
        }
    }

    /// Returns a connection without other users, for a request that no other request may follow.
    ///
    /// Fails for a call that began before [`abort_calls`](Self::abort_calls).
    pub(crate) fn take(
        self: &Arc<Self>,
        deadline: &mut Deadline,
        call_generation: CallGeneration,
    ) -> Result<Taken<'_>, Failure> {
        let no_reply = match self.enter(Wanted::Alone, "", deadline, call_generation) {
            Ok(Entered::Writes(owned, _)) => return Ok(Taken(owned)),
            Ok(Entered::Ended(Err(no_reply))) | Err(no_reply) => no_reply,
            // Not reached: no thread sends a request for this caller.
            Ok(Entered::Ended(Ok(_)) | Entered::Reads(_)) => return Err(Failure::Closed),
        };
        Err(match no_reply {
            NoReply::NoConnection(failure) => failure,
            NoReply::Broken(Broken::NotSent(error) | Broken::Unanswered(error)) => {
                self.server.not_sent(error)
            }
        })
    }

    /// Sends a request and leaves the reply unread, for the next user of the connection. After an
    /// error, the request never runs. Fails without sending if no idle connection may leave another
    /// reply unread.
    pub(crate) fn send_unread(
        self: &Arc<Self>,
        packed: &[u8],
        request: UnreadRequest,
        deadline: &mut Deadline,
        call_generation: CallGeneration,
    ) -> Result<(), NoReply> {
        loop {
            // 1. An idle connection that may leave another reply unread.
            let now = deadline.read_at();
            let mut state = self.state.lock();
            self.check(&state, call_generation)?;
            let Some(idle) = state.pool.take_only(|idle| idle.may_leave_unread(packed.len(), now))
            else {
                return Err(not_sent(io::ErrorKind::WouldBlock.into()));
            };
            let broke_at = state.broke_at;
            drop(state);
            let Some(mut owned) = self.own(idle).checked(now, broke_at) else { continue };
            // 2. Write the request.
            owned.requests().extend_from_slice(packed);
            if let Err((_, error)) = owned.write(deadline) {
                let broken = Broken::NotSent(copy_of(&error));
                owned.end(&error);
                return Err(NoReply::Broken(broken));
            }
            owned.expect_unread(request, now);
            self.unread.fetch_add(1, Ordering::Relaxed);
            owned.put(now);
            return Ok(());
        }
    }

    /// Reads the arrived unread replies on idle connections, without waiting. Returns whether some
    /// replies are still missing. A connection without any reply for longer than `longest` is
    /// closed.
    pub(crate) fn read_unread(self: &Arc<Self>, longest: Duration) -> bool {
        if self.unread.load(Ordering::Acquire) == 0 {
            return false;
        }
        let now = SystemClock.now();
        let owing = self.state.lock().pool.take_if(|idle| idle.has_unread());
        for connection in owing {
            let mut owned = self.own(connection);
            let mut deliveries = Deliveries::default();
            let received = owned.receive_arrived(&mut deliveries);
            match received {
                Ok(()) if !owned.is_silent(now, longest) => {
                    let used_at = owned.used_at;
                    owned.put(used_at);
                }
                Ok(()) => owned.end(&io::ErrorKind::TimedOut.into()),
                Err(error) => owned.end(&error),
            }
            self.deliver(&mut deliveries);
        }
        self.unread.load(Ordering::Acquire) > 0
    }

    /// Suspects the idle connections, because another connection to the server has broken. Each
    /// suspected connection is inspected before its next use.
    pub(crate) fn suspect_idle(&self, now: Instant) {
        self.state.lock().suspect(now);
    }

    /// Closes the idle connections, which are unusable, for example after a change of the user's
    /// password.
    pub(crate) fn close_idle(self: &Arc<Self>) {
        let idle = self.state.lock().pool.take_if(|_| true);
        for connection in idle {
            self.own(connection).end(&io::ErrorKind::ConnectionAborted.into());
        }
    }

    /// Refuses later calls, fails the queued calls and closes the idle connections. Waits for
    /// unread replies for at most `longest`.
    pub(crate) fn close(self: &Arc<Self>, longest: Duration) {
        let (idle, queue) = {
            let mut state = self.state.lock();
            state.is_closed = true;
            (state.pool.take_if(|_| true), state.pool.take_queue())
        };
        fail_all(queue, &Failure::Closed);
        let mut deadline = Deadline::after(longest);
        for connection in idle {
            let mut owned = self.own(connection);
            let mut deliveries = Deliveries::default();
            let mut error = io::ErrorKind::ConnectionAborted.into();
            while owned.has_unread() {
                deadline.refresh();
                if let Err(failed) = owned.receive(&mut deadline, &mut deliveries) {
                    error = failed;
                    break;
                }
            }
            owned.end(&error);
            self.deliver(&mut deliveries);
        }
    }

    /// Shuts all connections. Calls in progress and in the queue fail at once; later calls get new
    /// connections.
    pub(crate) fn abort_calls(self: &Arc<Self>) {
        let (idle, queue) = {
            let mut state = self.state.lock();
            self.sockets.shut_all();
            (state.pool.take_if(|_| true), state.pool.take_queue())
        };
        fail_all(queue, &Failure::Closed);
        for connection in idle {
            self.own(connection).end(&io::ErrorKind::ConnectionAborted.into());
        }
    }

    /// Returns the number of connections in use or being opened.
    pub(crate) fn in_use(&self) -> usize {
        self.state.lock().pool.in_use()
    }

    /// Closes the idle connections that were not needed for long, except one. Returns whether
    /// several connections remain idle, and may be closed later.
    pub(crate) fn close_unused(&self) -> bool {
        let now = SystemClock.now();
        // Dropped, and so closed, with nothing locked.
        let mut unused = Vec::new();
        let mut state = self.state.lock();
        while state.pool.idle() > 1
            && let Some(oldest) =
                state.pool.take_oldest(|idle| is_needless(idle.used_at, idle.has_unread(), now))
        {
            unused.push(oldest);
        }
        state.pool.idle() > 1
    }

    /// Waits until no connection is in use, for at most `longest`.
    pub(crate) fn wait_until_unused(&self, longest: Duration) {
        let mut deadline = Deadline::after(longest);
        let mut state = self.state.lock();
        while !state.pool.is_unused() {
            let Ok(left) = deadline.refresh().left() else { return };
            self.unused.wait_for(&mut state, left);
        }
    }

    /// Makes this thread the owner of `connection`.
    fn own(self: &Arc<Self>, connection: Box<CallConnection>) -> Owned<'_> {
        Owned { calls: self, connection: Some(connection) }
    }

    /// Returns the failure of a call if the pool is closed, or if the call began before
    /// [`abort_calls`](Self::abort_calls).
    fn check(&self, state: &CallPoolState, call_generation: CallGeneration) -> Result<(), NoReply> {
        if state.is_closed || self.sockets.generation() > call_generation.0 {
            return Err(NoReply::NoConnection(Failure::Closed));
        }
        Ok(())
    }

    /// Takes an idle connection, preferably with an unanswered release of `key`: on another
    /// connection, the call could overtake the release, and be refused by a hold of its own client.
    fn take_idle(
        self: &Arc<Self>,
        key: &str,
        deadline: &Deadline,
        call_generation: CallGeneration,
    ) -> Result<Idle<'_>, NoReply> {
        loop {
            let mut state = self.state.lock();
            self.check(&state, call_generation)?;
            let hash = (self.unread.load(Ordering::Acquire) > 0).then(|| hash_of(key));
            let first =
                state.pool.take(|idle| hash.is_some_and(|hash| idle.has_unread_about(hash)));
            let Some(idle) = first else { return Ok(Idle::None(state)) };
            let broke_at = state.broke_at;
            drop(state);
            if let Some(owned) = self.own(idle).checked(deadline.read_at(), broke_at) {
                return Ok(Idle::Taken(owned));
            }
        }
    }

    /// Returns an idle connection, or queues the call and returns the outcome of the wait.
    fn enter(
        self: &Arc<Self>,
        wanted: Wanted,
        key: &str,
        deadline: &mut Deadline,
        call_generation: CallGeneration,
    ) -> Result<Entered<'_>, NoReply> {
        // 1. An idle connection.
        let mut state = match self.take_idle(key, deadline, call_generation)? {
            Idle::Taken(owned) => return Ok(Entered::Writes(owned, wanted)),
            Idle::None(state) => state,
        };
        // 2. The queue.
        let waiter = WaitingCall::new(wanted);
        let connects = state.pool.wait(Arc::clone(&waiter));
        drop(state);
        if connects {
            self.open_another();
        }
        Ok(self.wait(&waiter, deadline))
    }

    /// Waits for a connection or an outcome, until the deadline. A call without either leaves the
    /// queue, or gives up its reply.
    fn wait(self: &Arc<Self>, waiter: &Arc<WaitingCall>, deadline: &mut Deadline) -> Entered<'_> {
        match waiter.wait(deadline) {
            CallState::Queued(_) => {
                let mut state = self.state.lock();
                state.pool.leave(|queued| Arc::ptr_eq(queued, waiter));
                let (open, has_connected) = (state.pool.open(), state.pool.has_connected());
                self.notify(state);
                if !has_connected {
                    let failure = self.server.not_connected_yet();
                    return Entered::Ended(Err(NoReply::NoConnection(failure)));
                }
                let reason = format!("all {open} connections for calls are in use");
                let error = io::Error::new(io::ErrorKind::TimedOut, reason);
                Entered::Ended(Err(not_sent(error)))
            }
            CallState::Writes(connection, _) if deadline.left().is_err() => {
                let used_at = connection.used_at;
                self.own(connection).put(used_at);
                Entered::Ended(Err(not_sent(io::ErrorKind::TimedOut.into())))
            }
            CallState::Writes(connection, wanted) => Entered::Writes(self.own(connection), wanted),
            CallState::Reads(connection) => Entered::Reads(self.own(connection)),
            CallState::InBatch => {
                let error = io::ErrorKind::TimedOut.into();
                Entered::Ended(Err(NoReply::Broken(Broken::Unanswered(error))))
            }
            CallState::Done(outcome) => Entered::Ended(outcome),
            // Not reached: only this thread sets `Gone` while waiting.
            CallState::Gone => Entered::Ended(Err(NoReply::NoConnection(Failure::Closed))),
        }
    }

    /// Opens connections on a separate thread while calls wait. Callers do not connect: when a
    /// handshake takes longer than their deadlines, every caller would give up too early.
    fn open_another(self: &Arc<Self>) {
        let calls = Arc::clone(self);
        let thread = thread::Builder::new().name("lock-connect".to_owned());
        if let Err(error) = thread.spawn(move || while calls.connect() {}) {
            let failure = self.server.not_sent(error);
            while self.not_connected(&failure, self.sockets.generation()) {}
        }
    }

    /// Opens a connection, for the first call of the queue. Returns whether to open another
    /// connection.
    fn connect(self: &Arc<Self>) -> bool {
        let generation = self.sockets.generation();
        let mut deadline = Deadline::after(self.server.command_timeout);
        let connect = || self.server.connect_for(Some((&self.sockets, generation)), &mut deadline);
        let connected = catch_panic(connect).unwrap_or_else(|| {
            Err(self.server.not_sent(io::Error::other("the thread that connected has panicked")))
        });
        match connected {
            Ok(connection) => {
                let now = SystemClock.now();
                {
                    let mut state = self.state.lock();
                    if state.generation != connection.generation {
                        state.generation = connection.generation;
                        state.pool.forget_round_trip();
                    }
                    state.pool.connected(connection.round_trip);
                }
                self.own(Box::new(CallConnection::new(connection, generation, now))).put(now);
                self.state.lock().pool.begin_to_connect()
            }
            Err(failure) => self.not_connected(&failure, generation),
        }
    }

    /// Handles a failed connect of `generation`. Fails the queued calls if no other connection is
    /// open; calls after [`abort_calls`](Self::abort_calls) stay in the queue. Returns whether to
    /// open another connection.
    fn not_connected(&self, failure: &Failure, generation: u64) -> bool {
        let mut state = self.state.lock();
        let waiting = state.pool.not_connected();
        // The queued callers began after all connections were shut.
        if self.sockets.generation() != generation && !state.is_closed {
            let mut connects = false;
            for waiter in waiting {
                connects |= state.pool.wait(waiter);
            }
            self.notify(state);
            return connects;
        }
        self.notify(state);
        fail_all(waiting, failure);
        false
    }

    /// Unlocks `state`, and wakes the threads that wait until no connection is in use.
    fn notify(&self, state: MutexGuard<'_, CallPoolState>) {
        let is_unused = state.pool.is_unused();
        drop(state);
        if is_unused {
            self.unused.notify_all();
        }
    }

    /// Wakes the threads whose calls have ended, and passes the replies to unread releases to the
    /// client. Call with nothing locked.
    fn deliver(self: &Arc<Self>, deliveries: &mut Deliveries) {
        deliveries.wake();
        for UnreadAnswer { request, sent_at, answer } in deliveries.unread.drain(..) {
            let UnreadRequest { unread, script, not_after, .. } = request;
            let reply = match answer {
                Ok(answer) => self.reply_of(script, sent_at, answer),
                Err(broken) => Err(self.server.no_reply(broken, not_after)),
            };
            self.server.release_replies().add(ReleaseReply { unread, reply });
            // Last: once no reply is unread, the client has every reply.
            self.unread.fetch_sub(1, Ordering::Release);
        }
    }

    /// Interprets the answer to an unread request. The request is not sent again: a wrong estimate
    /// of the server's time is a transient failure, and a redirection is refused.
    fn reply_of(
        self: &Arc<Self>,
        script: Option<&'static Script>,
        sent_at: Instant,
        answer: CallReply,
    ) -> Result<Released, Failure> {
        let CallReply { value, generation } = answer;
        let time_of = Released::server_time;
        match classify_reply(self.server.reply_context(), script, time_of, sent_at, value) {
            ReplyAction::Return(value) => Released::from_reply(value).map_err(Failure::unexpected),
            ReplyAction::SendBody | ReplyAction::Resend => Err(too_many_resends()),
            ReplyAction::Fail { code, message } => {
                let (failure, is_unusable) = self.server.refused(code, message, generation);
                if is_unusable {
                    self.close_idle();
                }
                Err(failure)
            }
        }
    }

    /// Returns whether `connection` may still be used: its sockets were not shut.
    fn is_current(&self, connection: &CallConnection) -> bool {
        connection.callers_generation == self.sockets.generation()
            && self.server.is_current(connection.generation())
    }
}

impl Drop for CallPool {
    fn drop(&mut self) {
        let mut deliveries = Deliveries::default();
        for connection in self.state.get_mut().pool.take_if(|_| true) {
            connection.end(&io::ErrorKind::ConnectionAborted.into(), &mut deliveries);
        }
        for UnreadAnswer { request: UnreadRequest { unread, .. }, .. } in
            deliveries.unread.drain(..)
        {
            self.server.release_replies().add(ReleaseReply { unread, reply: Err(Failure::Closed) });
        }
    }
}

impl CallPoolState {
    /// Suspects the idle connections that were last used at `now` or before.
    fn suspect(&mut self, now: Instant) {
        self.broke_at = self.broke_at.max(Some(now));
    }
}

impl Owned<'_> {
    /// Returns the connection if usable. Otherwise closes the connection and returns `None`.
    /// `broke_at` is the time when another connection broke.
    fn checked(mut self, now: Instant, broke_at: Option<Instant>) -> Option<Self> {
        if !self.calls.is_current(&self) {
            self.end(&io::ErrorKind::ConnectionAborted.into());
            return None;
        }
        if !self.must_look(now, broke_at) {
            return Some(self);
        }
        let mut deliveries = Deliveries::default();
        let received = self.receive_arrived(&mut deliveries);
        self.calls.deliver(&mut deliveries);
        let error = match received {
            Ok(()) if !self.is_silent(now, MAX_SILENCE) => return Some(self),
            Ok(()) => io::ErrorKind::TimedOut.into(),
            Err(error) => error,
        };
        self.end(&error);
        None
    }

    /// Sends the request together with requests of queued calls, and returns the outcome of the own
    /// call.
    fn write_batch(mut self, request: &[u8], deadline: &mut Deadline) -> Outcome {
        let own_end = request.len();
        self.requests().extend_from_slice(request);
        let calls = self.calls;
        let mut others: Vec<(usize, Arc<WaitingCall>)> = Vec::new();
        {
            let mut state = calls.state.lock();
            while others.len() + 1 < MAX_BATCH
                && self.requests().len() < MAX_BATCH_BYTES
                && state.pool.peek().is_some_and(|waiter| waiter.may_join())
                && let Some(waiter) = state.pool.next()
            {
                if let Some(theirs) = waiter.join() {
                    self.requests().extend_from_slice(&theirs);
                    others.push((self.requests().len(), waiter));
                }
            }
        }
        self.send(own_end, others, deadline)
    }

    /// Writes the requests in the buffer, and reads. `own_end` and `others` are the positions of
    /// the requests' ends. After an error, a request may have run if the kernel has accepted its
    /// last byte. Any other request can never run.
    fn send(
        mut self,
        own_end: usize,
        others: Vec<(usize, Arc<WaitingCall>)>,
        deadline: &mut Deadline,
    ) -> Outcome {
        let sent_at = deadline.read_at();
        if let Err((written, error)) = self.write(deadline) {
            let mut deliveries = Deliveries::default();
            for (end, waiter) in others {
                let error = match error.kind() {
                    // Only this thread's time is over: the other calls try again.
                    io::ErrorKind::TimedOut => io::ErrorKind::ConnectionAborted.into(),
                    _ => copy_of(&error),
                };
                let broken = Broken::in_write(error, end, written);
                deliveries.finish(waiter, Err(NoReply::Broken(broken)));
            }
            let own = Broken::in_write(copy_of(&error), own_end, written);
            self.end(&error);
            deliveries.wake();
            return Err(NoReply::Broken(own));
        }
        self.expect_own(sent_at);
        for (_, waiter) in others {
            self.expect_for(waiter, sent_at);
        }
        self.read(deadline)
    }

    /// Reads until the own reply arrives, and passes on the replies of other calls.
    fn read(mut self, deadline: &mut Deadline) -> Outcome {
        let (calls, generation) = (self.calls, self.generation());
        let mut deliveries = Deliveries::default();
        loop {
            match self.receive(deadline, &mut deliveries) {
                Ok(Some(value)) => {
                    // First, so that the next calls of these threads go along with the queue.
                    calls.deliver(&mut deliveries);
                    self.hand_on(deadline.read_at(), true);
                    return Ok(CallReply { value, generation });
                }
                Ok(None) => {
                    calls.deliver(&mut deliveries);
                    deadline.refresh();
                }
                Err(error) => {
                    let broken = Broken::Unanswered(copy_of(&error));
                    if error.kind() == io::ErrorKind::TimedOut {
                        self.give_up();
                        self.hand_on(deadline.read_at(), false);
                    } else {
                        self.end(&error);
                    }
                    calls.deliver(&mut deliveries);
                    return Err(NoReply::Broken(broken));
                }
            }
        }
    }

    /// Lets the next thread waiting for a reply read. Without such a thread, the connection becomes
    /// idle. If the server has not just answered (`answers`), the connection is closed after a long
    /// silence.
    fn hand_on(mut self, now: Instant, answers: bool) {
        let Some(connection) = self.connection.take() else { return };
        let Some(connection) = connection.hand_on() else { return };
        self.connection = Some(connection);
        if answers {
            self.put(now);
        } else if let Some(owned) = self.checked(now, None) {
            owned.put(now);
        }
    }

    /// Gives the connection, last used at `now`, to the first call of the queue. Without a queue,
    /// makes the connection idle.
    fn put(mut self, now: Instant) {
        let Some(mut connection) = self.connection.take() else { return };
        connection.used_at = now;
        let mut state = self.calls.state.lock();
        if state.is_closed || !self.calls.is_current(&connection) {
            drop(state);
            self.connection = Some(connection);
            return self.end(&io::ErrorKind::ConnectionAborted.into());
        }
        while let Some(waiter) = state.pool.next() {
            match waiter.write(connection) {
                Ok(()) => {
                    drop(state);
                    return waiter.wake();
                }
                Err(back) => connection = back,
            }
        }
        let used_at = connection.used_at;
        state.pool.put(connection, |idle| idle.used_at > used_at);
        let old = state.pool.take_oldest(|idle| is_needless(idle.used_at, idle.has_unread(), now));
        self.calls.notify(state);
        drop(old);
    }

    /// Closes the connection because of `error`; see [`close`](Self::close).
    fn end(mut self, error: &io::Error) {
        self.close(error);
    }

    /// Closes the connection, and delivers the failures of requests without a reply, which may have
    /// run. Suspects other connections unless `error` is a timeout, and replaces the connection if
    /// calls wait.
    fn close(&mut self, error: &io::Error) {
        let Some(connection) = self.connection.take() else { return };
        let used_at = connection.used_at;
        let mut deliveries = Deliveries::default();
        connection.end(error, &mut deliveries);
        let mut state = self.calls.state.lock();
        if error.kind() != io::ErrorKind::TimedOut {
            state.suspect(used_at);
        }
        let connects = state.pool.ended();
        self.calls.notify(state);
        if connects {
            self.calls.open_another();
        }
        self.calls.deliver(&mut deliveries);
    }
}

impl Drop for Owned<'_> {
    fn drop(&mut self) {
        self.close(&io::ErrorKind::ConnectionAborted.into());
    }
}

impl Deref for Owned<'_> {
    type Target = CallConnection;

    fn deref(&self) -> &CallConnection {
        match &self.connection {
            Some(connection) => connection,
            None => unreachable!("it is taken only by what consumes the owner"),
        }
    }
}

impl DerefMut for Owned<'_> {
    fn deref_mut(&mut self) -> &mut CallConnection {
        match &mut self.connection {
            Some(connection) => connection,
            None => unreachable!("it is taken only by what consumes the owner"),
        }
    }
}

/// A connection for one caller alone. Dropping the value closes the connection.
pub(crate) struct Taken<'a>(Owned<'a>);

impl Taken<'_> {
    /// Puts back a connection without missing replies.
    pub(crate) fn give_back(self, now: Instant) {
        self.0.put(now);
    }
}

impl Deref for Taken<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.0.connection()
    }
}

impl DerefMut for Taken<'_> {
    fn deref_mut(&mut self) -> &mut Connection {
        self.0.connection_mut()
    }
}

/// Returns the hash of `key`, by which a connection knows the keys of its unread replies.
pub(crate) fn hash_of(key: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

/// Returns the failure of a call that was not sent.
fn not_sent(error: io::Error) -> NoReply {
    NoReply::Broken(Broken::NotSent(error))
}

/// Ends the queued calls with `failure`, and wakes their threads.
fn fail_all(queue: VecDeque<Arc<WaitingCall>>, failure: &Failure) {
    let mut deliveries = Deliveries::default();
    for waiter in queue {
        deliveries.finish(waiter, Err(NoReply::NoConnection(failure.clone())));
    }
    deliveries.wake();
}

#[cfg(not(wheellock_shuttle))]
#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::Weak;

    use super::*;
    use crate::ops::value::Value;
    use crate::store::listener::NoListener;
    use crate::store::redis::address::url::{Access, Address, Peer};
    use crate::store::redis::node::server::script_commands;
    use crate::store::redis::resp::encode::Command;
    use crate::store::redis::resp::pubsub::Channels;
    use crate::store::redis::sentinel::master::MasterEndpoint;

    const LONG: Duration = Duration::from_secs(20);
    const NAMES: [&str; 4] = ["a", "bb", "ccc", "dddd"];

    /// What the server does with a batch.
    #[derive(Clone, Copy)]
    struct Cut {
        /// How many bytes arrive.
        after: usize,
        /// How many requests are answered before the end.
        answers: usize,
    }

    fn calls_to(listener: &TcpListener) -> Arc<CallPool> {
        let port = listener.local_addr().unwrap().port();
        let peer = Peer::Tcp(Address { host: "127.0.0.1".to_owned(), port });
        let endpoint = MasterEndpoint::Fixed(peer);
        let (access, channels) = (Access::default(), Channels::Everywhere);
        let listener = Weak::<NoListener>::new();
        let server = Server::new(endpoint, access, LONG, channels, listener, Arc::default());
        CallPool::new(Arc::new(server), Limits { near: 1, far: 1 })
    }

    /// A connection whose handshake was answered, as the server has it.
    fn accept(listener: &TcpListener) -> TcpStream {
        let (mut stream, _) = listener.accept().unwrap();
        let asked = Command::of(&["TIME"]).len() + script_commands().concat().len();
        stream.read_exact(&mut vec![0; asked]).unwrap();
        stream.write_all(b"*2\r\n$1\r\n1\r\n$1\r\n0\r\n:1\r\n:1\r\n").unwrap();
        stream
    }

    /// The requests of a batch, and where each ends.
    fn batch() -> (Vec<u8>, Vec<usize>) {
        let (mut requests, mut ends) = (Vec::new(), Vec::new());
        for name in NAMES {
            requests.extend(Command::of(&["ECHO", name]));
            ends.push(requests.len());
        }
        (requests, ends)
    }

    /// The outcome of each call of a batch that meets the cut.
    fn outcomes(cut: Cut) -> Vec<Outcome> {
        let (requests, ends) = batch();
        outcomes_of(&requests, &ends, |mut stream| {
            let mut arrived = vec![0; cut.after];
            stream.read_exact(&mut arrived).unwrap();
            for name in NAMES.iter().take(cut.answers) {
                write!(stream, "+{name}\r\n").unwrap();
            }
            // The answers, and a regular end behind them, whatever is unread.
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).ok();
        })
    }

    /// The outcome of each call of a batch, of which the server does `serve`.
    fn outcomes_of(
        requests: &[u8],
        ends: &[usize],
        serve: impl FnOnce(TcpStream) + Send,
    ) -> Vec<Outcome> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let calls = calls_to(&listener);
        thread::scope(|scope| {
            scope.spawn(|| serve(accept(&listener)));
            let mut deadline = Deadline::after(LONG);
            let generation = CallGeneration(0);
            let entered = calls.enter(Wanted::Alone, "", &mut deadline, generation);
            let Ok(Entered::Writes(mut owned, _)) = entered else { panic!("no connection") };
            let others: Vec<_> = ends[1..]
                .iter()
                .map(|end| {
                    let waiter = WaitingCall::new(Wanted::Call(Vec::new()));
                    waiter.join().unwrap();
                    (*end, waiter)
                })
                .collect();
            let waiters: Vec<_> = others.iter().map(|(_, waiter)| Arc::clone(waiter)).collect();
            deadline.refresh();
            owned.requests().extend(requests);
            let mut outcomes = vec![owned.send(ends[0], others, &mut deadline)];
            for waiter in waiters {
                outcomes.push(match calls.wait(&waiter, &mut deadline) {
                    Entered::Ended(outcome) => outcome,
                    // The thread that wrote has its reply.
                    Entered::Reads(owned) => owned.read(&mut deadline),
                    Entered::Writes(..) => panic!("it was in the batch"),
                });
            }
            calls.close_idle();
            outcomes
        })
    }

    /// A caller may be that late after a pause between two attempts.
    #[test]
    fn a_call_whose_time_is_over_costs_no_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let calls = calls_to(&listener);
        thread::scope(|scope| {
            let accepted = scope.spawn(|| accept(&listener));
            let generation = CallGeneration(0);
            let taken = calls.take(&mut Deadline::after(LONG), generation);
            taken.ok().unwrap().give_back(SystemClock.now());
            let _stream = accepted.join().unwrap();
            let mut deadline = Deadline::after(Duration::ZERO);
            let encode = |request: &mut Vec<u8>| request.extend(Command::of(&["ECHO", "a"]));
            let outcome = calls.call(encode, "a", &mut deadline, generation);
            assert!(matches!(outcome, Err(NoReply::Broken(Broken::NotSent(_)))), "{outcome:?}");
            assert_eq!(calls.state.lock().pool.open(), 1);
        });
    }

    /// The system accepts the whole batch, so nobody can know how much of it arrives.
    #[test]
    fn batch_cut_at_any_byte_may_have_run_where_replies_are_missing() {
        let (requests, ends) = batch();
        for after in 0..=requests.len() {
            let arrived = ends.iter().filter(|end| **end <= after).count();
            for answers in [0, arrived] {
                for (place, outcome) in outcomes(Cut { after, answers }).into_iter().enumerate() {
                    let is_right = match &outcome {
                        Ok(answer) => {
                            place < answers && answer.value == Value::Text(NAMES[place].to_owned())
                        }
                        Err(NoReply::Broken(Broken::Unanswered(_))) => place >= answers,
                        Err(_) => false,
                    };
                    assert!(is_right, "{place} of a batch cut after {after}: {outcome:?}");
                }
            }
        }
    }

    #[test]
    fn requests_that_a_broken_write_does_not_complete_can_never_run() {
        const ENDS: [usize; 3] = [100, 200, 64 << 20];
        // The system accepts a part of the third request, as nobody reads this request.
        let outcomes = outcomes_of(&vec![b'a'; ENDS[2]], &ENDS, |mut stream| {
            stream.read_exact(&mut vec![0; ENDS[1]]).unwrap();
        });
        let broken = outcomes.iter().map(|outcome| match outcome {
            Err(NoReply::Broken(Broken::Unanswered(_))) => "may have run",
            Err(NoReply::Broken(Broken::NotSent(_))) => "cannot run",
            _ => "is not broken",
        });
        assert!(broken.eq(["may have run", "may have run", "cannot run"]), "{outcomes:?}");
    }
}
