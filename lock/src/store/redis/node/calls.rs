//! Sends calls to one server: each on a connection of its own while there are enough, and several in
//! one write when there are not (DESIGN: connections for calls).
//!
//! 1. A call takes the idle connection that was used last, writes, reads its reply and puts the
//!    connection back.
//! 2. If none is idle, the call queues, and waits until its own deadline. A thread of its own opens
//!    another connection, one at a time, up to a limit.
//! 3. A connection that is put back goes to the first in the queue, which takes some of the others
//!    along and writes all requests at once.
//! 4. The thread that owns the connection reads, and passes on each reply. Once it has its own, or
//!    no time, the next that waits for a reply reads.
//! 5. A call that gives up leaves its reply to be dropped. A connection on which nobody waits and
//!    which does not answer is closed.

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
use crate::store::owed::OwedReply;
use crate::store::redis::net::connection::{Broken, Connection};
use crate::store::redis::net::deadline::Deadline;
use crate::store::redis::net::open_sockets::Sockets;
use crate::store::redis::node::call_connection::{
    CallConnection, Deliveries, MAX_SILENCE, OwedAnswer, OwedRequest, copy_of,
};
use crate::store::redis::node::pool::{Limits, Pool, is_needless};
use crate::store::redis::node::request::{ReplyAction, classify_reply, too_many_resends};
use crate::store::redis::node::server::Server;
use crate::store::redis::node::waiting_call::{
    CallReply, NoReply, Outcome, Slot, WaitingCall, Wanted,
};
use crate::store::shutdown::CallGeneration;

/// The calls to one server.
pub(crate) struct Calls {
    server: Arc<Server>,
    /// The sockets of these connections.
    sockets: Sockets,
    state: Mutex<State>,
    /// Signalled when no connection is in use.
    unused: Condvar,
    /// How many replies are unread that no thread waits for.
    owed: AtomicUsize,
}

struct State {
    pool: Pool<Box<CallConnection>, Arc<WaitingCall>>,
    /// When a connection was last used that has broken since.
    broke_at: Option<Instant>,
    /// The generation of the server's sockets when a connection was made last.
    generation: u64,
    is_closed: bool,
}

/// A connection that a running thread owns. Dropping it closes the connection: a panic unwinds.
struct Owned<'a> {
    calls: &'a Arc<Calls>,
    connection: Option<Box<CallConnection>>,
}

/// What a caller finds that wants an idle connection.
enum Idle<'a> {
    Taken(Owned<'a>),
    /// None is idle. As long as the state is locked, none is put back.
    None(MutexGuard<'a, State>),
}

/// What a caller gets when it asks for a connection.
enum Entered<'a> {
    /// A connection. Others may wait for one too.
    Leads(Owned<'a>, Wanted),
    Reads(Owned<'a>),
    Ended(Outcome),
}

/// How many requests are written at once, and when no more is added to a batch.
const MAX_BATCH: usize = 16;
const MAX_BATCH_BYTES: usize = 16 * 1024;

impl Calls {
    pub(crate) fn new(server: Arc<Server>, limits: Limits) -> Arc<Self> {
        let pool = Pool::new(limits);
        let state = State { pool, broke_at: None, generation: 0, is_closed: false };
        Arc::new(Self {
            server,
            sockets: Sockets::default(),
            state: Mutex::new(state),
            unused: Condvar::new(),
            owed: AtomicUsize::new(0),
        })
    }

    /// Sends the request about `key` that `encode` appends, and waits for its reply.
    ///
    /// Fails for a call that began before [`abort_calls`](Self::abort_calls).
    pub(crate) fn call(
        self: &Arc<Self>,
        encode: impl Fn(&mut Vec<u8>),
        key: &str,
        deadline: &mut Deadline,
        call_generation: CallGeneration,
    ) -> Outcome {
        // 1. An idle connection, for this request alone.
        // Without time the write would fail, and end a connection that is intact.
        deadline.left().map_err(not_sent)?;
        if let Idle::Taken(mut owned) = self.take_idle(key, deadline, call_generation)? {
            encode(owned.requests());
            let end = owned.requests().len();
            return owned.send(end, Vec::new(), deadline);
        }
        // 2. The queue. The request may be written by another thread.
        let mut request = Vec::new();
        encode(&mut request);
        match self.enter(Wanted::Call(request), key, deadline, call_generation)? {
            Entered::Leads(owned, Wanted::Call(request)) => owned.lead(&request, deadline),
            // Not reached: only a caller that wants no call is answered so.
            Entered::Leads(_, Wanted::Alone) => Err(not_sent(io::ErrorKind::Other.into())),
            Entered::Reads(owned) => owned.read(deadline),
            Entered::Ended(outcome) => outcome,
        }
    }

    /// A connection that nobody else uses meanwhile, for what must have no other request behind it.
    ///
    /// Fails for a call that began before [`abort_calls`](Self::abort_calls).
    pub(crate) fn take(
        self: &Arc<Self>,
        deadline: &mut Deadline,
        call_generation: CallGeneration,
    ) -> Result<Taken<'_>, Failure> {
        let no_reply = match self.enter(Wanted::Alone, "", deadline, call_generation) {
            Ok(Entered::Leads(owned, _)) => return Ok(Taken(owned)),
            Ok(Entered::Ended(Err(no_reply))) | Err(no_reply) => no_reply,
            // Not reached: nobody sends anything for it.
            Ok(Entered::Ended(Ok(_)) | Entered::Reads(_)) => return Err(Failure::Closed),
        };
        Err(match no_reply {
            NoReply::NoConnection(failure) => failure,
            NoReply::Broken(Broken::NotSent(error) | Broken::Unanswered(error)) => {
                self.server.not_sent(error)
            }
        })
    }

    /// Sends a request and leaves its reply unread, to the next user of the connection. Without a
    /// connection on which one more reply may be unread, it is not sent. An error means so too: the
    /// request never runs.
    pub(crate) fn send_unread(
        self: &Arc<Self>,
        packed: &[u8],
        request: OwedRequest,
        deadline: &mut Deadline,
        call_generation: CallGeneration,
    ) -> Result<(), NoReply> {
        loop {
            // 1. An idle connection on which one more reply may be unread.
            let now = deadline.read_at();
            let mut state = self.state.lock();
            self.check(&state, call_generation)?;
            let Some(idle) = state.pool.take_only(|idle| idle.may_owe(packed.len(), now)) else {
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
            owned.expect_owed(request, now);
            self.owed.fetch_add(1, Ordering::Relaxed);
            owned.put(now);
            return Ok(());
        }
    }

    /// Reads the owed replies that have arrived on idle connections, without waiting. True if some
    /// are still to come. A connection without any reply for longer than `longest` is closed.
    pub(crate) fn read_owed(self: &Arc<Self>, longest: Duration) -> bool {
        if self.owed.load(Ordering::Acquire) == 0 {
            return false;
        }
        let now = SystemClock.now();
        let owing = self.state.lock().pool.take_if(|idle| idle.has_owed());
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
        self.owed.load(Ordering::Acquire) > 0
    }

    /// The idle connections may be broken: another one to the same server has broken. Each is looked
    /// at before it is used.
    pub(crate) fn suspect_idle(&self, now: Instant) {
        self.state.lock().suspect(now);
    }

    /// The idle connections are unusable, for example because the user's password has changed.
    pub(crate) fn close_idle(self: &Arc<Self>) {
        let idle = self.state.lock().pool.take_if(|_| true);
        for connection in idle {
            self.own(connection).end(&io::ErrorKind::ConnectionAborted.into());
        }
    }

    /// No connection is used by calls that begin from now on. Owed replies are waited for, for at
    /// most `longest`.
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
            while owned.has_owed() {
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

    /// Shuts all connections. The calls on them and in the queue fail at once, and later ones get
    /// new connections.
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

    /// How many connections are in use, or are being opened.
    pub(crate) fn in_use(&self) -> usize {
        self.state.lock().pool.in_use()
    }

    /// Closes the idle connections that were needed for the last time long ago, but for one. True if
    /// others are idle: they may be closed later.
    pub(crate) fn close_unused(&self) -> bool {
        let now = SystemClock.now();
        // They are closed with nothing locked.
        let mut unused = Vec::new();
        let mut state = self.state.lock();
        while state.pool.idle() > 1
            && let Some(oldest) =
                state.pool.take_oldest(|idle| is_needless(idle.used_at, idle.has_owed(), now))
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

    fn own(self: &Arc<Self>, connection: Box<CallConnection>) -> Owned<'_> {
        Owned { calls: self, connection: Some(connection) }
    }

    fn check(&self, state: &State, call_generation: CallGeneration) -> Result<(), NoReply> {
        if state.is_closed || self.sockets.generation() > call_generation.0 {
            return Err(NoReply::NoConnection(Failure::Closed));
        }
        Ok(())
    }

    /// Takes an idle connection, first one on which a release of `key` is unanswered: on another,
    /// the call could overtake the release.
    fn take_idle(
        self: &Arc<Self>,
        key: &str,
        deadline: &Deadline,
        call_generation: CallGeneration,
    ) -> Result<Idle<'_>, NoReply> {
        loop {
            let mut state = self.state.lock();
            self.check(&state, call_generation)?;
            let hash = (self.owed.load(Ordering::Acquire) > 0).then(|| hash_of(key));
            let first = state.pool.take(|idle| hash.is_some_and(|hash| idle.owes(hash)));
            let Some(idle) = first else { return Ok(Idle::None(state)) };
            let broke_at = state.broke_at;
            drop(state);
            if let Some(owned) = self.own(idle).checked(deadline.read_at(), broke_at) {
                return Ok(Idle::Taken(owned));
            }
        }
    }

    /// A connection, or what becomes of the call in the queue.
    fn enter(
        self: &Arc<Self>,
        wanted: Wanted,
        key: &str,
        deadline: &mut Deadline,
        call_generation: CallGeneration,
    ) -> Result<Entered<'_>, NoReply> {
        // 1. An idle connection.
        let mut state = match self.take_idle(key, deadline, call_generation)? {
            Idle::Taken(owned) => return Ok(Entered::Leads(owned, wanted)),
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

    fn wait(self: &Arc<Self>, waiter: &Arc<WaitingCall>, deadline: &mut Deadline) -> Entered<'_> {
        match waiter.wait(deadline) {
            Slot::Queued(_) => {
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
            Slot::Leads(connection, _) if deadline.left().is_err() => {
                let used_at = connection.used_at;
                self.own(connection).put(used_at);
                Entered::Ended(Err(not_sent(io::ErrorKind::TimedOut.into())))
            }
            Slot::Leads(connection, wanted) => Entered::Leads(self.own(connection), wanted),
            Slot::Reads(connection) => Entered::Reads(self.own(connection)),
            Slot::InBatch => {
                let error = io::ErrorKind::TimedOut.into();
                Entered::Ended(Err(NoReply::Broken(Broken::Unanswered(error))))
            }
            Slot::Done(outcome) => Entered::Ended(outcome),
            // Not reached: only this thread leaves.
            Slot::Gone => Entered::Ended(Err(NoReply::NoConnection(Failure::Closed))),
        }
    }

    /// Opens connections on a thread of its own while calls wait. Callers do not connect: each has
    /// a deadline of its own, which may be too short.
    fn open_another(self: &Arc<Self>) {
        let calls = Arc::clone(self);
        let thread = thread::Builder::new().name("lock-connect".to_owned());
        if let Err(error) = thread.spawn(move || while calls.connect() {}) {
            let failure = self.server.not_sent(error);
            while self.not_connected(&failure, self.sockets.generation()) {}
        }
    }

    /// Opens one connection. Whether another is to be opened.
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

    /// Whether another is to be opened.
    fn not_connected(&self, failure: &Failure, generation: u64) -> bool {
        let mut state = self.state.lock();
        let waiting = state.pool.not_connected();
        // Those that queue now have begun after all connections were shut.
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

    fn notify(&self, state: MutexGuard<'_, State>) {
        let is_unused = state.pool.is_unused();
        drop(state);
        if is_unused {
            self.unused.notify_all();
        }
    }

    /// Wakes the threads whose calls have ended, and hands the owed replies to the client. With
    /// nothing locked.
    fn deliver(self: &Arc<Self>, deliveries: &mut Deliveries) {
        deliveries.wake();
        for OwedAnswer { request, sent_at, answer } in deliveries.owed.drain(..) {
            let OwedRequest { owed, script, not_after, .. } = request;
            let reply = match answer {
                Ok(answer) => self.reply_of(script, sent_at, answer),
                Err(broken) => Err(self.server.no_reply(broken, not_after)),
            };
            self.server.owed_replies().add(OwedReply { owed, reply });
            // Afterwards: without owed requests, each reply is with the client.
            self.owed.fetch_sub(1, Ordering::Release);
        }
    }

    /// What the answer to an owed request means. Nothing is sent again for it: a wrong estimate of
    /// the server's time is a transient failure, and a redirection is refused.
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

    fn is_current(&self, connection: &CallConnection) -> bool {
        connection.callers_generation == self.sockets.generation()
            && self.server.is_current(connection.generation())
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        let mut deliveries = Deliveries::default();
        for connection in self.state.get_mut().pool.take_if(|_| true) {
            connection.end(&io::ErrorKind::ConnectionAborted.into(), &mut deliveries);
        }
        for OwedAnswer { request: OwedRequest { owed, .. }, .. } in deliveries.owed.drain(..) {
            self.server.owed_replies().add(OwedReply { owed, reply: Err(Failure::Closed) });
        }
    }
}

impl State {
    fn suspect(&mut self, now: Instant) {
        self.broke_at = self.broke_at.max(Some(now));
    }
}

impl Owned<'_> {
    /// The connection, if it can be used. Otherwise it is closed.
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

    /// Sends the request, and with it those of others that wait.
    fn lead(mut self, request: &[u8], deadline: &mut Deadline) -> Outcome {
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

    /// Writes the requests on the connection, the own and those of `others`, each with the place
    /// where it ends, and reads.
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
                    // Only the time of this thread is over: the others try again.
                    io::ErrorKind::TimedOut => io::ErrorKind::ConnectionAborted.into(),
                    _ => copy_of(&error),
                };
                let broken = Broken::new(error, end <= written);
                deliveries.finish(waiter, Err(NoReply::Broken(broken)));
            }
            let own = Broken::new(copy_of(&error), own_end <= written);
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

    /// Reads until the own reply is there, and passes on those of others.
    fn read(mut self, deadline: &mut Deadline) -> Outcome {
        let (calls, generation) = (self.calls, self.generation());
        let mut deliveries = Deliveries::default();
        loop {
            match self.receive(deadline, &mut deliveries) {
                Ok(Some(value)) => {
                    // First: the next calls of these threads go along with the queue.
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

    /// The next that waits for a reply reads. If nobody does, the connection is idle, or closed if
    /// it has not answered for long.
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

    /// Gives the connection to the first of the queue, or to the idle ones.
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
            match waiter.lead(connection) {
                Ok(()) => {
                    drop(state);
                    return waiter.wake();
                }
                Err(back) => connection = back,
            }
        }
        let used_at = connection.used_at;
        state.pool.put(connection, |idle| idle.used_at > used_at);
        let old = state.pool.take_oldest(|idle| is_needless(idle.used_at, idle.has_owed(), now));
        self.calls.notify(state);
        drop(old);
    }

    fn end(mut self, error: &io::Error) {
        self.close(error);
    }

    /// Closes the connection. What was sent on it and has no reply may have run.
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

/// A connection that a caller has for itself. Dropping it closes the connection.
pub(crate) struct Taken<'a>(Owned<'a>);

impl Taken<'_> {
    /// Returns a connection whose replies were all read.
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

/// By this number a connection knows the key of a request whose reply it owes.
pub(crate) fn hash_of(key: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

fn not_sent(error: io::Error) -> NoReply {
    NoReply::Broken(Broken::NotSent(error))
}

/// Nobody serves the queue.
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

    fn calls_to(listener: &TcpListener) -> Arc<Calls> {
        let port = listener.local_addr().unwrap().port();
        let peer = Peer::Tcp(Address { host: "127.0.0.1".to_owned(), port });
        let endpoint = MasterEndpoint::Fixed(peer);
        let (access, channels) = (Access::default(), Channels::Everywhere);
        let listener = Weak::<NoListener>::new();
        let server = Server::new(endpoint, access, LONG, channels, listener, Arc::default());
        Calls::new(Arc::new(server), Limits { near: 1, far: 1 })
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
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let calls = calls_to(&listener);
        let (requests, ends) = batch();
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut stream = accept(&listener);
                let mut arrived = vec![0; cut.after];
                stream.read_exact(&mut arrived).unwrap();
                for name in NAMES.iter().take(cut.answers) {
                    write!(stream, "+{name}\r\n").unwrap();
                }
                // The answers, and a regular end behind them, whatever is unread.
                stream.shutdown(std::net::Shutdown::Write).unwrap();
                let mut rest = Vec::new();
                stream.read_to_end(&mut rest).ok();
            });
            let mut deadline = Deadline::after(LONG);
            let generation = CallGeneration(0);
            let entered = calls.enter(Wanted::Alone, "", &mut deadline, generation);
            let Ok(Entered::Leads(mut owned, _)) = entered else { panic!("no connection") };
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
            owned.requests().extend(&requests);
            let mut outcomes = vec![owned.send(ends[0], others, &mut deadline)];
            for waiter in waiters {
                outcomes.push(match calls.wait(&waiter, &mut deadline) {
                    Entered::Ended(outcome) => outcome,
                    // The thread that wrote has its reply.
                    Entered::Reads(owned) => owned.read(&mut deadline),
                    Entered::Leads(..) => panic!("it was in the batch"),
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
    fn a_batch_that_is_cut_at_any_byte_may_have_run_where_no_reply_came() {
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
}
