//! A thread that is on a shared connection: it writes and reads for all while it has these roles,
//! and sleeps otherwise (DESIGN: shared connection).

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::model::sync::MutexGuard;
use crate::ops::value::Value;
use crate::store::redis::net::connection::{Broken, write_some};
use crate::store::redis::net::deadline::Deadline;
use crate::store::redis::node::call_queue::{Abandoned, CallId, Roles};
use crate::store::redis::node::mailbox::{DeferredWork, Mail, Mailbox};
use crate::store::redis::node::round_trip::MAX_SILENCE;
use crate::store::redis::node::shared_connection::{SharedConnection, State, copy_of};
use crate::store::redis::node::stream_halves::WriteHalf;

/// A thread that is on the connection: with a call, or only to read. When it is dropped, even by a
/// panic, its roles go to others.
pub(crate) struct Participant<'a> {
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

/// With more calls unanswered, most of them given up, the next that is given up ends the use of the
/// connection: the server answers less than it is asked.
const MAX_IN_FLIGHT: usize = 1024;

/// How often a writer takes the bytes of others after its own before it hands the role on.
const MAX_CHUNKS: u32 = 4;

impl SharedConnection {
    /// Ends the connection: every call on it fails, at once.
    pub(crate) fn end(&self, error: io::Error) {
        self.break_off(error);
        self.settle();
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
        let mut deferred = DeferredWork::default();
        let mut state = self.state.lock();
        state.queue.give_back(Roles { read: true, write: false });
        let State { queue, ended, .. } = &mut *state;
        let ended = ended.as_ref();
        for (caller, is_whole) in queue.take_all() {
            let error = ended.map_or_else(|| io::ErrorKind::ConnectionAborted.into(), copy_of);
            deferred.fail(caller, Broken::new(error, is_whole));
        }
        self.notify(&state);
        drop(state);
        deferred.run();
    }
}

impl<'a> Participant<'a> {
    pub(crate) fn new(
        connection: &'a SharedConnection,
        id: Option<CallId>,
        mailbox: Option<Arc<Mailbox>>,
        roles: Roles,
        batching: bool,
    ) -> Self {
        Self { connection, id, mailbox, roles, unreported: 0, batching, has_left: false }
    }

    /// A thread without a call that has taken the role of the reader.
    pub(crate) fn reader(connection: &'a SharedConnection) -> Self {
        Self::new(connection, None, None, Roles { read: true, write: false }, false)
    }

    /// Waits for the reply: reads for all, or sleeps.
    pub(crate) fn wait(&mut self, deadline: &mut Deadline) -> Result<Value, Broken> {
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
            // Also with mail: a thread that is told to read or write does so for what is left now.
            let is_over = deadline.refresh().left().is_err();
            if mail.is_some() || is_over {
                return mail;
            }
            // If the connection is silent, this call is told so, unless it is written.
            let mut deferred = DeferredWork::default();
            let mut state = self.connection.state.lock();
            if state.is_silent(deadline.read_at()) {
                self.connection.retire();
                state.move_unwritten(&mut deferred);
            }
            drop(state);
            deferred.run();
        }
    }

    /// Waits until the bytes are written, by this thread if it is told so.
    pub(crate) fn wait_until_written(&mut self, deadline: &mut Deadline) -> Result<(), Broken> {
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
    pub(crate) fn write(
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
            let mut deferred = DeferredWork::default();
            let mut state = connection.state.lock();
            self.report(&mut state, &mut deferred);
            if chunk < MAX_CHUNKS && half.rest().is_empty() && state.queue.has_unwritten() {
                half.append(state.queue.commit());
                connection.notify(&state);
                drop(state);
                deferred.run();
                continue;
            }
            // 3. Hand the role on, and read if nobody does.
            state.queue.give_back(Roles { read: false, write: true });
            self.roles.write = false;
            let is_waiting = !self.roles.read;
            if is_waiting && self.id.is_some_and(|id| state.queue.become_reader(id)) {
                self.roles.read = true;
            }
            state.hand_over(&mut deferred);
            drop((state, half));
            deferred.run();
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
            let mut deferred = DeferredWork::default();
            let mut state = connection.state.lock();
            self.report(&mut state, &mut deferred);
            let own = state.deliver(&mut half.replies, &mut deferred);
            let own = match own {
                Ok(None) => {
                    drop(state);
                    deferred.run();
                    deadline.refresh();
                    continue;
                }
                Ok(Some(own)) => own,
                Err(error) => {
                    drop((state, half));
                    deferred.run();
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
                self.report(&mut state, &mut deferred);
            }
            // 4. Leave.
            self.leave_with(state, deferred);
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
    pub(crate) fn read_next(&mut self, deadline: &mut Deadline) -> io::Result<()> {
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
    pub(crate) fn read_arrived(&mut self) -> bool {
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
        let mut deferred = DeferredWork::default();
        let mut state = self.connection.state.lock();
        let delivered = state.deliver(&mut half.replies, &mut deferred);
        drop((state, half));
        deferred.run();
        delivered.map(drop).inspect_err(|error| self.connection.break_off(copy_of(error)))
    }

    /// Reads until one more call of `bytes` may be detached, or nothing is unread: a call of
    /// more bytes than may be unread never is.
    pub(crate) fn read_backlog(&mut self, bytes: usize, deadline: &mut Deadline) -> io::Result<()> {
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
    fn report(&mut self, state: &mut State, deferred: &mut DeferredWork) {
        let written = std::mem::take(&mut self.unreported);
        if written > 0 {
            state.queue.wrote(written, |mailbox| {
                deferred.post(mailbox, |mail| mail.is_written = true);
            });
        }
    }

    /// The deadline of the call has passed.
    fn time_out(&mut self) -> Result<Value, Broken> {
        self.end_call(io::ErrorKind::TimedOut.into())
    }

    /// Leaves without a reply, unless one came at the last moment.
    fn end_call(&mut self, error: io::Error) -> Result<Value, Broken> {
        let mut deferred = DeferredWork::default();
        let connection = self.connection;
        let mut state = connection.state.lock();
        self.report(&mut state, &mut deferred);
        let mail = self.mailbox.as_ref().map(|mailbox| mailbox.take()).unwrap_or_default();
        self.roles.add(mail.roles);
        let abandoned = self.id.map(|id| state.queue.abandon(id));
        let outcome = match (mail.outcome, abandoned) {
            (Some(outcome), _) => outcome,
            (None, Some(Abandoned::Withdrawn(handler))) => {
                deferred.unused.extend(handler);
                Err(Broken::NotSent(error))
            }
            (None, Some(Abandoned::InFlight { whole, silent })) => {
                if silent || !whole || state.queue.in_flight() > MAX_IN_FLIGHT {
                    connection.retire();
                    state.move_unwritten(&mut deferred);
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
        self.leave_with(state, deferred);
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
        let mut deferred = DeferredWork::default();
        let mut state = self.connection.state.lock();
        self.report(&mut state, &mut deferred);
        let is_whole = self.id.is_some_and(|id| state.queue.missing_bytes(id) == 0);
        drop(state);
        deferred.run();
        if is_whole { Ok(()) } else { self.end_call(error).map(drop) }
    }

    /// Gives the roles back.
    pub(crate) fn leave(&mut self) {
        let mut deferred = DeferredWork::default();
        let mut state = self.connection.state.lock();
        self.report(&mut state, &mut deferred);
        self.leave_with(state, deferred);
    }

    fn leave_with(&mut self, mut state: MutexGuard<'_, State>, mut deferred: DeferredWork) {
        self.has_left = true;
        state.queue.give_back(std::mem::take(&mut self.roles));
        let has_ended = state.ended.is_some();
        if !has_ended {
            state.hand_over(&mut deferred);
        }
        self.connection.notify(&state);
        drop(state);
        deferred.run();
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
