//! The one connection that listens: any number of channels, any number of threads.
//!
//! One thread reads. Any thread may wish for a channel or take the wish back; wishes are put in a row at once and
//! written by [`flush`](Subscription::flush), in that order. The server confirms each SUBSCRIBE. They are counted, for
//! a channel may be left and wished for again before the first confirmation is there, and only the last one says that
//! messages come. When the connection breaks, the thread makes a new one and wishes for everything again; until then
//! the waiters poll. Nothing here ever fails a caller.
//!
//! A node of a cluster serves a channel only while it serves its slot. When that ends it says so, and refuses the
//! channel from then on. Such a channel is *homeless* until somebody takes the wish back and makes it elsewhere, or says
//! that it is to be tried here again. Whoever knows the other nodes is told ([`Elsewhere`]).

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io::{self, Read, Write};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use hashed_wheel::{Clock, SystemClock};
use parking_lot::{Condvar, Mutex};

use super::command::Command;
use super::connection::{Connection, Limit, passes};
use super::redirection::Redirection;
use super::replies::Replies;
use super::server::Server;
use super::slot::slot_of;
use super::socket::Socket;
use super::whereabouts::Master;
use crate::error::passes_by_itself;
use crate::store::Listener;
use crate::value::Value;

/// Who knows the other nodes of a cluster.
pub(super) trait Elsewhere: Send + Sync {
    /// This node does not serve a channel, and has said who does; or it could not be reached. Must not block.
    fn look(&self, named: Option<Redirection>);
}

/// A handle on the listening thread. It starts with the first wish.
pub(crate) struct Subscription {
    shared: Arc<Shared>,
}

struct Shared {
    server: Arc<Server>,
    listener: Weak<dyn Listener>,
    elsewhere: Option<Weak<dyn Elsewhere>>,
    /// Taken before `state`, and held while bytes are written: what is taken from the row first is written first.
    writer: Mutex<Option<Arc<Socket>>>,
    state: Mutex<State>,
    /// Signalled when there is a first wish, and at the end.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    wanted: HashSet<Arc<str>>,
    /// Changes that the present connection has not been told of.
    row: Vec<Change>,
    /// Channels that were left and wished for again before the server was told of either.
    still_live: Vec<Arc<str>>,
    /// SUBSCRIBEs that the present connection was sent and the server has not confirmed.
    unconfirmed: HashMap<Arc<str>, u32>,
    /// Channels that the present connection's server would not serve.
    homeless: HashSet<Arc<str>>,
    running: bool,
    closed: bool,
}

enum Change {
    Subscribe(Arc<str>),
    Unsubscribe(Arc<str>),
}

/// Channels that may be left without the server being told, while others keep the thread busy.
const LEFT_CHANNELS: usize = 64;
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

impl Subscription {
    pub(super) fn new(
        server: Arc<Server>,
        listener: Weak<dyn Listener>,
        elsewhere: Option<Weak<dyn Elsewhere>>,
    ) -> Self {
        Self {
            shared: Arc::new(Shared {
                server,
                listener,
                elsewhere,
                writer: Mutex::new(None),
                state: Mutex::new(State::default()),
                changed: Condvar::new(),
            }),
        }
    }

    pub(crate) fn want(&self, channel: &Arc<str>) {
        let mut state = self.shared.state.lock();
        state.wanted.insert(Arc::clone(channel));
        let before = state.row.len();
        state.row.retain(|change| !matches!(change, Change::Unsubscribe(left) if left == channel));
        if state.row.len() == before {
            state.row.push(Change::Subscribe(Arc::clone(channel)));
        } else if !state.unconfirmed.contains_key(channel) {
            // It was left a moment ago, the server has not been told, and its messages have never stopped.
            state.still_live.push(Arc::clone(channel));
        }
    }

    /// The server is told with the next wish, or by the thread when it has nothing else to do. A channel that is
    /// wished for again meanwhile costs nothing.
    pub(crate) fn drop_want(&self, channel: &Arc<str>) {
        let mut state = self.shared.state.lock();
        state.wanted.remove(channel);
        state.still_live.retain(|live| live != channel);
        let before = state.row.len();
        state.row.retain(|change| !matches!(change, Change::Subscribe(wish) if wish == channel));
        // Of one that it would not serve the server need not be told.
        if !state.homeless.remove(channel) && state.row.len() == before {
            state.row.push(Change::Unsubscribe(Arc::clone(channel)));
        }
    }

    /// Wishes again for the channels that this server would not serve.
    pub(super) fn wish_again(&self) {
        let any = {
            let mut state = self.shared.state.lock();
            let homeless = std::mem::take(&mut state.homeless);
            let any = !homeless.is_empty();
            for channel in homeless {
                state.subscribe_again(channel);
            }
            any
        };
        if any {
            self.shared.flush();
        }
    }

    pub(crate) fn flush(&self) {
        self.start();
        self.shared.flush();
        let still_live = std::mem::take(&mut self.shared.state.lock().still_live);
        if let Some(listener) = self.shared.listener.upgrade() {
            for channel in still_live {
                listener.live(&channel);
            }
        }
    }

    /// Ends the thread. It may take a moment to see it.
    pub(super) fn close(&self) {
        {
            let mut state = self.shared.state.lock();
            state.closed = true;
            self.shared.changed.notify_all();
        }
        if let Some(socket) = self.shared.writer.lock().take() {
            socket.shut();
        }
    }

    fn start(&self) {
        let mut state = self.shared.state.lock();
        self.shared.changed.notify_all();
        if state.running || state.closed || state.wanted.is_empty() {
            return;
        }
        let shared = Arc::clone(&self.shared);
        // Without a thread there are no messages, and the waiters poll. The next wish tries again.
        state.running = thread::Builder::new()
            .name("lock-subscription".to_owned())
            .spawn(move || shared.listen())
            .is_ok();
    }
}

impl Shared {
    /// Writes the row, if there is a connection. If there is none, the one to come starts with all wishes.
    fn flush(&self) {
        let mut writer = self.writer.lock();
        let Some(mut socket) = writer.as_deref() else {
            return;
        };
        let channels = self.server.channels;
        let mut packed = Vec::new();
        {
            let mut state = self.state.lock();
            for change in std::mem::take(&mut state.row) {
                match change {
                    Change::Subscribe(channel) => {
                        channels.subscribe(std::slice::from_ref(&channel), &mut packed);
                        *state.unconfirmed.entry(channel).or_default() += 1;
                    }
                    Change::Unsubscribe(channel) => channels.unsubscribe(&channel, &mut packed),
                }
            }
        }
        // The socket has a write timeout, so this ends. After half a command nothing sensible can follow.
        if socket.write_all(&packed).is_err() {
            socket.shut();
            *writer = None;
        }
    }

    /// The thread: connect, listen until the connection breaks, and again.
    fn listen(self: Arc<Self>) {
        let mut pause = FIRST_PAUSE;
        while self.wait_for_a_wish() {
            let moves = self.server.master().map_or(0, Master::moves);
            let connected = self
                .connect()
                .and_then(|(socket, replies)| self.read(&socket, replies, &mut pause));
            *self.writer.lock() = None;
            if connected.is_err() {
                self.look_elsewhere(None);
            }
            // It ends well only when nobody is left to listen.
            let master = self.server.master();
            if connected.is_ok() || !self.sleep(if master.is_some() { FIRST_PAUSE } else { pause })
            {
                break;
            }
            // Another master need not be waited for: there is a message when it is known.
            let elsewhere = master.is_some_and(|master| master.wait_for_a_move(moves, pause));
            pause = if elsewhere { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
        }
        self.state.lock().running = false;
    }

    /// Returns once there is something to listen for. False at the end.
    fn wait_for_a_wish(&self) -> bool {
        let mut state = self.state.lock();
        while state.wanted.is_empty() && !state.closed {
            self.changed.wait(&mut state);
        }
        !state.closed
    }

    /// Sleeps unless and until it is the end. False at the end.
    fn sleep(&self, pause: Duration) -> bool {
        let deadline = SystemClock.now() + pause;
        let mut state = self.state.lock();
        while !state.closed {
            let left = deadline.saturating_duration_since(SystemClock.now());
            if left.is_zero() {
                break;
            }
            self.changed.wait_for(&mut state, left);
        }
        !state.closed
    }

    /// A new connection that has been told all wishes.
    fn connect(&self) -> io::Result<(Arc<Socket>, Replies)> {
        let timeout = self.server.command_timeout;
        let connection: Connection = self
            .server
            .connect(&mut Limit::after(timeout))
            .map_err(|failure| io::Error::other(format!("{failure:?}")))?;
        let (socket, replies) = connection.into_parts();
        socket.set_read_timeout(timeout)?;
        socket.set_write_timeout(timeout)?;

        let mut writer = self.writer.lock();
        let mut packed = Vec::new();
        {
            let mut state = self.state.lock();
            if state.closed {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            state.row.clear();
            state.still_live.clear();
            state.homeless.clear();
            state.unconfirmed =
                state.wanted.iter().map(|channel| (Arc::clone(channel), 1)).collect();
            let wanted: Vec<Arc<str>> = state.wanted.iter().cloned().collect();
            self.server.channels.subscribe(&wanted, &mut packed);
        }
        (&*socket).write_all(&packed)?;
        *writer = Some(Arc::clone(&socket));
        Ok((socket, replies))
    }

    /// Reads until the connection breaks.
    fn read(&self, socket: &Socket, mut replies: Replies, pause: &mut Duration) -> io::Result<()> {
        let mut reader = Watched { socket, shared: self, asked: false };
        loop {
            let push = replies.next(&mut reader)?;
            let Some(listener) = self.listener.upgrade() else {
                return Ok(());
            };
            match push {
                Value::Array(parts) => {
                    // It does serve. Only now: one that takes connections and refuses channels is not asked in a hurry.
                    *pause = FIRST_PAUSE;
                    self.take(&parts, &*listener);
                }
                Value::Refusal { code, message } => self.refused(&code, &message)?,
                // A pong, where nothing is subscribed.
                _ => {}
            }
            if self.state.lock().row.len() > LEFT_CHANNELS {
                self.flush();
            }
        }
    }

    fn take(&self, parts: &[Value], listener: &dyn Listener) {
        let [Value::Text(kind), Value::Text(channel), rest @ ..] = parts else {
            return;
        };
        match (kind.as_str(), rest) {
            ("subscribe" | "ssubscribe", _) if self.confirm(channel) => listener.live(channel),
            ("message" | "smessage", [Value::Text(payload)]) => listener.message(channel, payload),
            ("sunsubscribe", _) if self.was_evicted(channel) => self.flush(),
            // Other confirmations, and pongs.
            _ => {}
        }
    }

    /// The server has refused a channel. It does not say which.
    fn refused(&self, code: &str, message: &str) -> io::Result<()> {
        let asked = self.server.address();
        match asked.and_then(|asked| Redirection::parse(code, message, asked)) {
            Some(named) => {
                if let Redirection::Moved { slot, .. } = named {
                    self.state.lock().lose_home(slot);
                }
                self.look_elsewhere(Some(named));
                Ok(())
            }
            // After a pause all are wished for again.
            None if passes_by_itself(code) => Err(io::Error::other(format!("{code} {message}"))),
            // Not allowed. Who waits for that channel polls.
            None => {
                if let Some(listener) = self.listener.upgrade() {
                    listener.refused(&format!("{code} {message}"));
                }
                Ok(())
            }
        }
    }

    /// The server has said that it does not serve a channel any more, if nobody here has left it. It is then wished for
    /// again at once, for the refusal tells who serves it.
    fn was_evicted(&self, channel: &str) -> bool {
        let mut state = self.state.lock();
        // With a wish under way it is an earlier leave that is confirmed, or the wish will be refused.
        if state.unconfirmed.contains_key(channel) {
            return false;
        }
        let Some(channel) = state.wanted.get(channel).cloned() else {
            // Who wishes for it again must not believe that its messages have never stopped.
            let is_leave =
                |change: &Change| matches!(change, Change::Unsubscribe(left) if **left == *channel);
            state.row.retain(|change| !is_leave(change));
            return false;
        };
        let evicted = !state.is_in_row(&channel);
        if evicted {
            state.subscribe_again(channel);
        }
        evicted
    }

    fn look_elsewhere(&self, named: Option<Redirection>) {
        if let Some(elsewhere) = self.elsewhere.as_ref().and_then(Weak::upgrade) {
            elsewhere.look(named);
        }
    }

    /// Counts a confirmation. Whether it was the last one owed for a channel that is still wished for.
    fn confirm(&self, channel: &str) -> bool {
        let mut state = self.state.lock();
        let Some(owed) = state.unconfirmed.get_mut(channel) else {
            return false;
        };
        *owed -= 1;
        if *owed > 0 {
            return false;
        }
        state.unconfirmed.remove(channel);
        state.wanted.contains(channel)
    }
}

impl State {
    fn is_in_row(&self, channel: &Arc<str>) -> bool {
        self.row.iter().any(|change| matches!(change, Change::Subscribe(wish) if wish == channel))
    }

    fn subscribe_again(&mut self, channel: Arc<str>) {
        if self.wanted.contains(&channel) && !self.is_in_row(&channel) {
            self.row.push(Change::Subscribe(channel));
        }
    }

    /// Of this slot nothing is subscribed here.
    fn lose_home(&mut self, slot: u16) {
        let State { unconfirmed, homeless, wanted, .. } = self;
        unconfirmed.retain(|channel, _| {
            let lost = slot_of(channel) == slot;
            if lost && wanted.contains(channel) {
                homeless.insert(Arc::clone(channel));
            }
            !lost
        });
    }
}

/// Reads without a deadline, but not from a dead connection: when nothing came for one timeout it asks whether anybody
/// is there, and after another it gives up.
struct Watched<'a> {
    socket: &'a Socket,
    shared: &'a Shared,
    asked: bool,
}

impl Read for Watched<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let result = self.socket.read(buffer);
            match result {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if passes(&error) && self.asked => {
                    return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "no pong came"));
                }
                Err(error) if passes(&error) => {
                    self.shared.flush();
                    let writer = self.shared.writer.lock();
                    let Some(mut socket) = writer.as_deref() else {
                        return Err(io::ErrorKind::ConnectionAborted.into());
                    };
                    socket.write_all(&Command::of(&["PING"]))?;
                    self.asked = true;
                }
                Ok(read) => {
                    self.asked = false;
                    return Ok(read);
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.state.lock();
        formatter
            .debug_struct("Subscription")
            .field("wanted", &state.wanted.len())
            .field("running", &state.running)
            .finish_non_exhaustive()
    }
}
