//! The calls on a shared connection: those that wait for their reply, and detached ones, whose
//! replies are read later (DESIGN: shared connection).

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::ops::value::Value;
use crate::store::pipeline::SentDetached;
use crate::store::redis::net::connection::Broken;
use crate::store::redis::net::deadline::Deadline;
use crate::store::redis::node::call_queue::Caller;
use crate::store::redis::node::mailbox::{Mailbox, RawReplyHandler};
use crate::store::redis::node::participant::Participant;
use crate::store::redis::node::shared_connection::SharedConnection;

/// With more calls in flight, the server's work is a good part of a round trip.
const MAX_SAMPLED_BATCH: usize = 2;

/// After this much idle time nothing is detached. What closes idle connections would lose it
/// unnoticed: a firewall forgets a connection without a word, mostly after minutes.
const MAX_IDLE: Duration = Duration::from_secs(10);

/// After this much the socket is looked at first: a server's `timeout`, which is a second or more,
/// may have closed it.
const MAX_UNSEEN: Duration = Duration::from_millis(500);

impl SharedConnection {
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
        on_reply: RawReplyHandler,
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
    /// whether replies to detached calls are left. A connection on which nothing came for longer
    /// than `longest` after its oldest request counts as broken.
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
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::mpsc::{Receiver, channel};
    use std::thread;

    use hashed_wheel::{Clock, SystemClock};
    use wheellock_fixture::Server;

    use super::*;
    use crate::store::redis::net::connection::Connection;
    use crate::store::redis::net::socket::Socket;
    use crate::store::redis::node::call_queue::Roles;
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
                connection.state.lock().round_trip.set_short();
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
            // Nothing came for too long after it was sent.
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
