//! The connection for messages: any number of channels, used by any number of threads.
//!
//! One thread reads. Any thread may subscribe or unsubscribe a channel, and
//! [`flush`](Subscriber::flush) sends the commands. No caller waits for the server: a caller writes
//! as many bytes as the kernel accepts at once, and the reading thread writes the rest. A second
//! thread for writing, or a reader that sleeps on two descriptors, would be faster only while the
//! kernel's buffer is full. [`Outbox`] holds the queued and the unanswered commands. A caller
//! changes the outbox under the lock of the channel's waiters, so that a leaving and an arriving
//! thread cannot overtake each other. When the connection breaks, the thread makes another
//! connection and subscribes every channel again; meanwhile the waiters poll. Nothing here ever
//! fails a caller.
//!
//! A node of a cluster serves a channel only while it serves the channel's hash slot. Afterwards,
//! the node evicts the channel and refuses the channel until
//! [`retry_unserved`](Subscriber::retry_unserved). A [`RedirectSink`] learns which node serves the
//! channel now.

use std::io::{self, Read};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use hashed_wheel::Clock;

use crate::error::{is_authentication_code, is_transient_code};
use crate::model::sync::{Condvar, Mutex, SystemClock, thread};
use crate::ops::value::Value;
use crate::store::listener::Listener;
use crate::store::redis::net::deadline::{Deadline, is_timeout_or_signal};
use crate::store::redis::net::socket::{Socket, Timeouts};
use crate::store::redis::node::nonblocking_writer::NonblockingWriter;
use crate::store::redis::node::outbox::{Outbox, SentCommand, UnexpectedReply};
use crate::store::redis::node::server::Server;
use crate::store::redis::resp::decode::Decoder;
use crate::store::redis::resp::hash_slot::hash_slot_of;
use crate::store::redis::resp::redirect::Redirection;
use crate::store::redis::sentinel::master::Master;

/// Receives the redirections of a cluster's subscriptions.
pub(crate) trait RedirectSink: Send + Sync {
    /// This node does not serve a channel. `to` names the serving node, or is `None` if this node
    /// is unreachable. Must not block.
    fn redirected(&self, to: Option<Redirection>);
}

/// A handle to the reading thread, which starts with the first channel.
pub(crate) struct Subscriber {
    shared: Arc<SubscriberShared>,
}

/// The state that callers and the reading thread share.
struct SubscriberShared {
    server: Arc<Server>,
    redirects: Option<Weak<dyn RedirectSink>>,
    /// Locked before `state`, and never while waiting.
    writer: Mutex<Option<NonblockingWriter>>,
    state: Mutex<SubscriberState>,
    /// Signalled on the first channel, and on close.
    changed: Condvar,
}

/// The channels and their commands, and the state of the thread.
#[derive(Default)]
struct SubscriberState {
    outbox: Outbox,
    /// Channels already live when subscribed. The next flush reports these channels.
    already_live: Vec<Arc<str>>,
    running: bool,
    closed: bool,
}

/// First pause between two connections. The pauses double up to the longest pause, and start again
/// after a connection that lasted at least the longest pause. So a server that confirms
/// subscriptions and then breaks the connection causes no busy loop.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// Longest pause between two connections.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Longest time of a read before the thread checks for bytes that a caller could not write. Waiters
/// poll as often.
const LONGEST_READ: Duration = Duration::from_secs(1);
/// Longest time of a read while bytes are left that a caller could not write.
const SHORTEST_READ: Duration = Duration::from_millis(10);

impl Subscriber {
    pub(crate) fn new(server: Arc<Server>, redirects: Option<Weak<dyn RedirectSink>>) -> Self {
        Self {
            shared: Arc::new(SubscriberShared {
                server,
                redirects,
                writer: Mutex::new(None),
                state: Mutex::new(SubscriberState::default()),
                changed: Condvar::new(),
            }),
        }
    }

    /// Subscribes a channel with the next flush, which reports an already live channel at once.
    pub(crate) fn subscribe(&self, channel: &Arc<str>) {
        let mut state = self.shared.state.lock();
        if state.outbox.subscribe(channel) {
            state.already_live.push(Arc::clone(channel));
        }
    }

    /// Unsubscribes a channel with the next flush, or by the thread in a quiet moment. If the
    /// channel is subscribed again before, nothing is sent. So a contended lock costs one
    /// SUBSCRIBE, and not one SUBSCRIBE for each wait.
    pub(crate) fn unsubscribe(&self, channel: &Arc<str>) {
        self.shared.state.lock().outbox.unsubscribe(channel);
    }

    /// Subscribes the unserved channels again.
    pub(crate) fn retry_unserved(&self) {
        let any = self.shared.state.lock().outbox.retry_unserved();
        if any {
            self.shared.write();
        }
    }

    /// Sends the commands without waiting for the server, and reports the channels that were live
    /// already. Writes as many bytes as the kernel accepts, at most
    /// [`MAX_UNANSWERED_BYTES`](crate::store::redis::node::outbox::MAX_UNANSWERED_BYTES).
    pub(crate) fn flush(&self) {
        self.start();
        let already_live = {
            let mut state = self.shared.state.lock();
            state.outbox.flush();
            std::mem::take(&mut state.already_live)
        };
        self.shared.write();
        if let Some(listener) = self.shared.server.listener().upgrade() {
            for channel in already_live {
                listener.live(&channel);
            }
        }
    }

    /// Ends the thread and shuts the connection, without waiting.
    pub(crate) fn close(&self) {
        {
            let mut state = self.shared.state.lock();
            state.closed = true;
            self.shared.changed.notify_all();
        }
        if let Some(writer) = self.shared.writer.lock().take() {
            writer.socket.shut();
        }
    }

    /// Starts the thread if a channel is wanted and no thread is running. Wakes a thread that waits
    /// for a channel.
    fn start(&self) {
        let mut state = self.shared.state.lock();
        self.shared.changed.notify_all();
        if state.running || state.closed || !state.outbox.wants_any() {
            return;
        }
        let shared = Arc::clone(&self.shared);
        // Without a thread no messages arrive, and the waiters poll. The next flush tries again.
        state.running = thread::Builder::new()
            .name("lock-subscription".to_owned())
            .spawn(move || shared.run())
            .is_ok();
    }
}

impl SubscriberShared {
    /// Writes the commands, as far as the kernel accepts them. Without a connection, writes
    /// nothing: the next connection begins with all channels. Returns the time since when the
    /// kernel accepts nothing, if bytes are left to write.
    fn write(&self) -> Option<Instant> {
        let mut writer = self.writer.lock();
        let open = writer.as_mut()?;
        let next = |packed: &mut Vec<u8>| {
            self.state.lock().outbox.fill(self.server.channels, packed);
        };
        if open.write(next).is_err() {
            // Part of a command may be written, so the connection is useless.
            open.socket.shut();
            *writer = None;
            return None;
        }
        open.stuck_since
    }

    /// Runs the thread: connects, reads until the connection breaks, pauses, and repeats.
    fn run(self: Arc<Self>) {
        let mut pause = FIRST_PAUSE;
        while self.wait_for_channel() {
            // 1. Connect and read. Returns without an error only on close.
            let failovers = self.server.master().map_or(0, Master::failovers);
            let begun_at = SystemClock.now();
            let ended = self.connect().and_then(|(socket, decoder)| self.read(&socket, decoder));
            self.disconnect();
            if ended.is_ok() {
                break;
            }
            // 2. In a cluster, another node may serve the channels now.
            self.report_redirect(None);
            // 3. Pause. The pauses double while connections break soon, even with confirmed
            //    subscriptions.
            if SystemClock.now().saturating_duration_since(begun_at) >= LONGEST_PAUSE {
                pause = FIRST_PAUSE;
            }
            let master = self.server.master();
            if !self.sleep(if master.is_some() { FIRST_PAUSE } else { pause }) {
                break;
            }
            // With sentinels, the rest of the pause ends as soon as a failover becomes known.
            let has_moved = master.is_some_and(|master| master.wait_for_failover(failovers, pause));
            pause = if has_moved { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
        }
        self.state.lock().running = false;
    }

    /// Waits until a channel is wanted. Returns `false` on close.
    fn wait_for_channel(&self) -> bool {
        let mut state = self.state.lock();
        while !state.outbox.wants_any() && !state.closed {
            self.changed.wait(&mut state);
        }
        !state.closed
    }

    /// Sleeps for `pause`, or until close. Returns `false` on close.
    fn sleep(&self, pause: Duration) -> bool {
        let mut deadline = Deadline::after(pause);
        let mut state = self.state.lock();
        while !state.closed {
            let Ok(left) = deadline.refresh().left() else { break };
            self.changed.wait_for(&mut state, left);
        }
        !state.closed
    }

    /// Connects, and returns the socket with a decoder. The first read sends all commands. Fails
    /// after close.
    fn connect(&self) -> io::Result<(Arc<Socket>, Decoder)> {
        let connection = self
            .server
            .connect(&mut Deadline::after(self.server.command_timeout))
            .map_err(|failure| io::Error::other(format!("{failure:?}")))?;
        let (socket, decoder) = connection.into_parts();
        let mut writer = self.writer.lock();
        let mut state = self.state.lock();
        if state.closed {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        state.outbox.flush();
        *writer = Some(NonblockingWriter::new(Arc::clone(&socket)));
        drop((state, writer));
        Ok((socket, decoder))
    }

    /// Ends writing to the old connection. The next connection begins with all channels.
    fn disconnect(&self) {
        let mut writer = self.writer.lock();
        *writer = None;
        let mut state = self.state.lock();
        state.outbox.disconnected();
        state.already_live.clear();
    }

    /// Reads until the connection breaks, or until the listener is gone.
    fn read(&self, socket: &Socket, mut decoder: Decoder) -> io::Result<()> {
        let mut reader = Reader::new(socket, self);
        loop {
            let push = decoder.next(&mut reader)?;
            let Some(listener) = self.server.listener().upgrade() else {
                return Ok(());
            };
            match push {
                Value::Array(parts) => self.handle_push(&parts, &*listener)?,
                Value::Refusal { code, message } => {
                    self.handle_error(&code, &message, &*listener)?;
                }
                // The reply to a PING while no channel is subscribed.
                _ => self.state.lock().outbox.pong()?,
            }
        }
    }

    /// Handles a message, or the confirmation of a command. Fails if the confirmation matches no
    /// unanswered command.
    fn handle_push(&self, parts: &[Value], listener: &dyn Listener) -> io::Result<()> {
        let [Value::Text(kind), Value::Text(channel), rest @ ..] = parts else {
            return Ok(());
        };
        match (kind.as_str(), rest) {
            ("message" | "smessage", [Value::Text(payload)]) => listener.message(channel, payload),
            ("subscribe" | "ssubscribe", _) => {
                let is_live = self.state.lock().outbox.confirmed(channel)?;
                if is_live {
                    listener.live(channel);
                }
            }
            ("unsubscribe", _) => self.state.lock().outbox.ended(channel, false)?,
            ("sunsubscribe", _) => self.state.lock().outbox.ended(channel, true)?,
            ("pong", _) => self.state.lock().outbox.pong()?,
            _ => {}
        }
        Ok(())
    }

    /// Handles an error for the oldest unanswered command. Fails if a new connection may help.
    fn handle_error(&self, code: &str, message: &str, listener: &dyn Listener) -> io::Result<()> {
        // Another node serves the channel.
        let asked = self.server.address();
        if let Some(to) = asked.and_then(|asked| Redirection::parse(code, message, asked)) {
            let matches = |sent: &SentCommand| match (sent, &to) {
                (SentCommand::Ping, _) => false,
                (
                    SentCommand::Subscribe(name) | SentCommand::Unsubscribe(name),
                    Redirection::Moved { slot, .. },
                ) => hash_slot_of(name) == *slot,
                (_, Redirection::Ask { .. }) => true,
            };
            // No command matches if the error is for an UNSUBSCRIBE of a channel that the server
            // evicted just before.
            drop(self.state.lock().outbox.refused(matches, true));
            self.report_redirect(Some(to));
            return Ok(());
        }
        // A transient error: start over with a new connection, after a pause. The same after the
        // end of the connection's authentication: the next connection authenticates again.
        if is_transient_code(code) || is_authentication_code(code) {
            return Err(io::Error::other(format!("{code} {message}")));
        }
        // A permanent error, such as a missing permission. The channel's waiters poll.
        let command = self.state.lock().outbox.refused(|_| true, false)?;
        if matches!(command, SentCommand::Subscribe(_)) {
            listener.refused(&format!("{code} {message}"));
        }
        Ok(())
    }

    /// Reports to the redirect sink that this node does not serve a channel; see
    /// [`RedirectSink::redirected`].
    fn report_redirect(&self, to: Option<Redirection>) {
        if let Some(redirects) = self.redirects.as_ref().and_then(Weak::upgrade) {
            redirects.redirected(to);
        }
    }
}

impl From<UnexpectedReply> for io::Error {
    fn from(_: UnexpectedReply) -> Self {
        Self::new(
            io::ErrorKind::InvalidData,
            "the server sent a reply that matches no unanswered command",
        )
    }
}

/// Reads without a deadline, but not from a dead connection: after a command timeout without data,
/// the reader sends a PING, and after another timeout fails. Between two reads, writes the bytes
/// that callers could not write.
struct Reader<'a> {
    socket: &'a Socket,
    shared: &'a SubscriberShared,
    received_at: Instant,
    /// Time of the PING, if nothing was received since.
    pinged_at: Option<Instant>,
    timeouts: Timeouts,
}

impl<'a> Reader<'a> {
    fn new(socket: &'a Socket, shared: &'a SubscriberShared) -> Self {
        let timeouts = Timeouts::of_new(shared.server.command_timeout);
        Self { socket, shared, timeouts, received_at: SystemClock.now(), pinged_at: None }
    }

    /// Records that the server has sent data, or closed the connection.
    fn received(&mut self) {
        self.received_at = SystemClock.now();
        self.pinged_at = None;
    }

    /// Writes the bytes left, and returns the longest time of the next read. Fails if the kernel
    /// has accepted nothing for a command timeout.
    fn write(&self) -> io::Result<Duration> {
        let timeout = self.shared.server.command_timeout;
        let Some(stuck_since) = self.shared.write() else { return Ok(timeout.min(LONGEST_READ)) };
        if SystemClock.now().saturating_duration_since(stuck_since) > timeout {
            return Err(aborted("the server stopped reading"));
        }
        Ok(SHORTEST_READ)
    }

    /// Handles a read without data: the read's time is over, or a signal arrived, which is no sign
    /// of life of the server. A process that was stopped for a while has not sent a PING yet, and
    /// does so first. Fails if a PING was not answered within a command timeout.
    fn check_silence(&mut self) -> io::Result<()> {
        let now = SystemClock.now();
        let since = self.pinged_at.unwrap_or(self.received_at);
        if now.saturating_duration_since(since) < self.shared.server.command_timeout {
            return Ok(());
        }
        if self.pinged_at.is_some() {
            return Err(aborted("the server did not answer a PING"));
        }
        self.pinged_at = Some(now);
        let mut state = self.shared.state.lock();
        state.outbox.flush();
        state.outbox.ping();
        Ok(())
    }
}

impl Read for Reader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            // 1. Write the bytes left. An unfinished write shortens the read.
            let longest = self.write()?;
            // 2. Read until data arrives or the time is over.
            match self.socket.read_within(buffer, longest, &mut self.timeouts) {
                Err(error) if is_timeout_or_signal(&error) => self.check_silence()?,
                result => {
                    self.received();
                    return result;
                }
            }
        }
    }
}

/// Returns the error of a connection that is given up for `reason`.
fn aborted(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, reason)
}

#[cfg(test)]
impl Subscriber {
    /// Number of wanted channels.
    pub(crate) fn wanted(&self) -> usize {
        self.shared.state.lock().outbox.wanted()
    }
}
