//! How to reach the server: find it, ask who we are, connect, authenticate, all within one deadline.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hashed_wheel::Parker;
use parking_lot::Mutex;

use super::address::{Access, Address, Peer};
use super::asking::Asking;
use super::channels::Channels;
use super::command::Command;
use super::connection::{Broken, Connection, Limit};
use super::reach::{authentication, hung_up, not_sent, reach, refused, unauthenticated};
use super::resolve::Resolver;
use super::sentinels::Said;
use super::server_clock::ServerClock;
use super::sockets::Sockets;
use super::whereabouts::{Master, News, Whereabouts};
use crate::config::ReplicaAcks;
use crate::credentials::Credentials;
use crate::store::Failure;
use crate::value::{ServerTime, Value};

/// Pauses between tries at a master that is not there.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// One server, and what has been learnt of it.
#[derive(Debug)]
pub(super) struct Server {
    whereabouts: Whereabouts,
    access: Access,
    sockets: Sockets,
    resolver: Resolver,
    credentials: Asking<Credentials>,
    pub(super) clock: ServerClock,
    pub(super) channels: Channels,
    pub(super) command_timeout: Duration,
    /// How many connections were made. Relaxed: a number to look at.
    pub(super) connections: AtomicU64,
    /// How often it has moved, counted when everything that leads to where it was is shut.
    moves: AtomicU64,
    /// Who is woken when it has moved.
    woken: Mutex<Vec<Parker>>,
}

impl Server {
    pub(super) fn new(
        whereabouts: Whereabouts,
        access: Access,
        command_timeout: Duration,
        channels: Channels,
    ) -> Self {
        Self {
            whereabouts,
            access,
            sockets: Sockets::default(),
            resolver: Resolver::default(),
            credentials: Asking::new(),
            clock: ServerClock::new(),
            channels,
            command_timeout,
            connections: AtomicU64::new(0),
            moves: AtomicU64::new(0),
            woken: Mutex::default(),
        }
    }

    /// A connection that is ready for commands, or a failure by the deadline.
    pub(super) fn connect(&self, limit: &mut Limit) -> Result<Connection, Failure> {
        match &self.whereabouts {
            Whereabouts::Fixed(peer) => self.connect_to(peer, self.sockets.era(), limit),
            Whereabouts::Followed(master) => self.connect_to_master(master, limit),
        }
    }

    /// The same to whoever is the master, asking the sentinels again when nobody is.
    fn connect_to_master(&self, master: &Master, limit: &mut Limit) -> Result<Connection, Failure> {
        let mut pause = FIRST_PAUSE;
        let mut before: Option<Failure> = None;
        loop {
            let (era, moves) = (self.sockets.era(), master.moves());
            if master.is_closed() {
                return Err(Failure::Closed);
            }
            let failure = match master.present() {
                Some(address) => match self.connect_to(&Peer::Tcp(address.clone()), era, limit) {
                    Ok(connection) => return Ok(connection),
                    Err(failure) => {
                        // A caller whose time was over says nothing of the server.
                        if self.sockets.era() == era && limit.refresh().left().is_ok() {
                            master.doubt(&address);
                        }
                        failure
                    }
                },
                None => match self.look_for(master, limit) {
                    Ok(()) => continue,
                    Err(failure) => failure,
                },
            };
            let left = limit.refresh().left().unwrap_or_default();
            if !failure.passes() {
                return Err(failure);
            }
            if left.is_zero() {
                // That the last try had no time left says less than what those before it met.
                return Err(before.unwrap_or(failure));
            }
            let failure = more_telling(before, failure);
            let elsewhere = master.wait_for_a_move(moves, pause.min(left));
            if !elsewhere && left <= pause {
                return Err(failure);
            }
            limit.refresh();
            before = Some(failure);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Asks the sentinels where the master is.
    fn look_for(&self, master: &Master, limit: &mut Limit) -> Result<(), Failure> {
        let news = master.ask(limit)?;
        self.leave_if(news);
        Ok(())
    }

    /// Where it is, if it stays there.
    pub(super) fn address(&self) -> Option<&Address> {
        match &self.whereabouts {
            Whereabouts::Fixed(Peer::Tcp(address)) => Some(address),
            _ => None,
        }
    }

    /// The master that it follows, if it does.
    pub(super) fn master(&self) -> Option<&Master> {
        match &self.whereabouts {
            Whereabouts::Fixed(_) => None,
            Whereabouts::Followed(master) => Some(master),
        }
    }

    /// A sentinel has said where the master is.
    pub(super) fn hear(&self, said: Said) {
        if let Some(master) = self.master() {
            self.leave_if(master.hear(said));
        }
    }

    /// A sentinel has told of a switch. False if it has to be asked what it means.
    pub(super) fn switched(&self, from: &Address, to: Address) -> bool {
        let news = self.master().and_then(|master| master.switched(from, to));
        news.inspect(|news| self.leave_if(*news)).is_some()
    }

    /// Who answers on connections of this era is no master, or no longer. Where there are sentinels, they are asked
    /// before anything else is sent.
    pub(super) fn is_no_master(&self, era: u64) {
        if let Some(master) = self.master()
            && self.sockets.era() == era
        {
            master.doubt_it();
            self.sockets.shut_all_of(era);
        }
    }

    /// Whether what a connection leads to is still the server.
    pub(super) fn is_current(&self, connection: &Connection) -> bool {
        connection.era == self.sockets.era()
    }

    /// How often it moved. What was on it need not be where it is now.
    pub(super) fn moves(&self) -> u64 {
        self.moves.load(Ordering::SeqCst)
    }

    /// Wakes this one whenever it has moved, and when it has [left](Self::wake).
    pub(super) fn wake_on_move(&self, parker: &Parker) {
        self.woken.lock().push(parker.clone());
    }

    /// Nothing more is written to where it was.
    fn leave_if(&self, news: News) {
        if news == News::Moved {
            self.sockets.shut_all();
            // Not before: a grant of the old master that comes later would be taken for one of the new.
            self.moves.fetch_add(1, Ordering::SeqCst);
            self.wake();
        }
    }

    /// It has moved, or is none of the client's any more.
    pub(super) fn wake(&self) {
        self.woken.lock().iter().for_each(Parker::unpark);
    }

    pub(super) fn not_sent(&self, error: &io::Error) -> Failure {
        not_sent(&self.whereabouts, error)
    }

    /// The server has answered a command so that it does not know us any more.
    pub(super) fn unauthenticated(&self, reason: String) -> Failure {
        unauthenticated(&self.whereabouts, &self.access, reason)
    }

    fn connect_to(&self, peer: &Peer, era: u64, limit: &mut Limit) -> Result<Connection, Failure> {
        let credentials = self.credentials(limit).map_err(|error| not_sent(peer, &error))?;
        let connection = self.open(peer, era, limit);
        let mut connection = connection.map_err(|error| not_sent(peer, &error))?;
        self.shake_hands(peer, &mut connection, credentials.as_ref(), limit)?;
        self.connections.fetch_add(1, Ordering::Relaxed);
        Ok(connection)
    }

    /// Which replicas have to hear of what is granted.
    pub(super) fn replica_acks(&self) -> Option<ReplicaAcks> {
        self.access.replica_acks
    }

    /// Who we are, at this connect.
    fn credentials(&self, limit: &mut Limit) -> io::Result<Option<Credentials>> {
        let Some(source) = self.access.credentials.clone() else {
            return Ok(self.access.given());
        };
        // Foreign code, which may never answer.
        let question = move || source.ask().map_err(|error| error.to_string());
        let late = "no credentials came in time";
        let asked = self.credentials.ask("lock-credentials", "", question, limit.left()?, late);
        limit.refresh();
        let mut asked = asked.map_err(|error| {
            io::Error::new(error.kind(), format!("asking for the credentials: {error}"))
        })?;
        asked.username = asked.username.or_else(|| self.access.username.clone());
        Ok(Some(asked))
    }

    fn open(&self, peer: &Peer, era: u64, limit: &mut Limit) -> io::Result<Connection> {
        let mut share = *limit;
        if self.master().is_some() {
            // A host that has vanished answers nothing, and another may be the master meanwhile.
            share = Limit::after(limit.left()? / 2);
        }
        let (access, timeout) = (&self.access, self.command_timeout);
        let socket = Arc::new(reach(peer, access, &self.resolver, timeout, &mut share)?);
        limit.refresh();
        self.sockets.admit(&socket, era)?;
        Ok(Connection::new(socket, timeout, era))
    }

    /// Says who we are, selects the database and asks for the time, in one round trip. A master says that it is one.
    fn shake_hands(
        &self,
        peer: &Peer,
        connection: &mut Connection,
        credentials: Option<&Credentials>,
        limit: &mut Limit,
    ) -> Result<(), Failure> {
        let mut packed = Vec::new();
        let mut replies = 0;
        let mut add = |command: Vec<u8>| {
            packed.extend(command);
            replies += 1;
        };
        if let Some(authentication) = authentication(credentials) {
            add(authentication);
        }
        if self.access.database != 0 {
            add(Command::of(&["SELECT", &self.access.database.to_string()]));
        }
        add(Command::of(&["TIME"]));
        let has_role = self.master().is_some();
        if has_role {
            add(role());
        }

        limit.refresh();
        if let Err(error) = connection.send(&packed, limit) {
            // It may have said why before it hung up.
            drop(connection.receive(limit));
            return Err(hung_up(peer, connection, &error));
        }
        let mut time = None;
        for last in (0..replies).rev() {
            let reply = connection.receive(limit);
            let reply = reply.map_err(|error| hung_up(peer, connection, &error))?;
            limit.refresh();
            match reply {
                Value::Refusal { code, message } => {
                    return Err(refused(peer, &self.access, credentials, (code, message)));
                }
                reply if last == 0 && has_role && !is_master(&reply) => {
                    let error = io::Error::other("it is a replica");
                    return Err(not_sent(peer, &error));
                }
                reply if last == usize::from(has_role) => time = server_time(&reply),
                _ => {}
            }
        }
        if let Some(now) = time {
            self.clock.learn(now);
        }
        Ok(())
    }

    /// What an attempt that broke is to its caller.
    pub(super) fn failure(&self, broken: Broken, not_after: ServerTime) -> Failure {
        match broken {
            Broken::NotSent(error) => self.not_sent(&error),
            Broken::Unanswered(error) => {
                let broken = error.kind() != io::ErrorKind::TimedOut;
                let reason = format!("{}: {error}", self.whereabouts);
                Failure::Unknown { not_after, reason, broken }
            }
        }
    }
}

/// Of two failures what the server has answered, and not that somebody had too little time left to answer.
fn more_telling(before: Option<Failure>, failure: Failure) -> Failure {
    match (before, failure) {
        (Some(answer @ Failure::Refused { .. }), Failure::NotSent { .. }) => answer,
        (_, failure) => failure,
    }
}

/// Asks whether a server is a master.
pub(super) fn role() -> Vec<u8> {
    Command::of(&["ROLE"])
}

/// Whether it says so.
pub(super) fn is_master(role: &Value) -> bool {
    let Value::Array(parts) = role else { return false };
    matches!(parts.first(), Some(Value::Text(role)) if role == "master")
}

/// Reads the answer of `TIME`: seconds and microseconds.
fn server_time(reply: &Value) -> Option<ServerTime> {
    let Value::Array(parts) = reply else {
        return None;
    };
    let [Value::Text(seconds), Value::Text(micros)] = parts.as_slice() else {
        return None;
    };
    let (seconds, micros): (i64, i64) = (seconds.parse().ok()?, micros.parse().ok()?);
    Some(ServerTime(seconds.checked_mul(1000)? + micros / 1000))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;
    use std::sync::Barrier;
    use std::thread;

    use super::*;
    use crate::store::redis::sentinels::Sentinels;
    use crate::store::redis::socket::Socket;

    const LIMIT: Duration = Duration::from_secs(10);

    fn followed() -> Server {
        let name = "mymaster".to_owned();
        let sentinels = Sentinels::new(name, Vec::new(), Access::default(), LIMIT);
        let whereabouts = Whereabouts::Followed(Box::new(Master::new(sentinels)));
        Server::new(whereabouts, Access::default(), LIMIT, Channels::Everywhere)
    }

    #[test]
    fn who_sees_that_it_has_moved_finds_every_connection_to_where_it_was_shut() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        for _ in 0..20 {
            let server = followed();
            // So many that to shut them takes longer than to see a number.
            let both: Vec<_> = (0..100)
                .map(|_| {
                    let socket = Arc::new(Socket::connect(&address, LIMIT, LIMIT).unwrap());
                    server.sockets.admit(&socket, server.sockets.era()).unwrap();
                    (socket, listener.accept().unwrap())
                })
                .collect();
            let ready = Barrier::new(2);
            thread::scope(|scope| {
                let watcher = scope.spawn(|| {
                    ready.wait();
                    while server.moves() == 0 {
                        std::hint::spin_loop();
                    }
                    let takes = |(socket, _): &&(Arc<Socket>, _)| (&**socket).write(b"x").is_ok();
                    both.iter().rev().filter(takes).count()
                });
                ready.wait();
                server.leave_if(News::Moved);
                assert_eq!(watcher.join().unwrap(), 0, "could still be written to");
            });
        }
    }
}
