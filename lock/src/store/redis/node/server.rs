//! Connects to a server: finds the address, gets the credentials, connects and authenticates, all
//! by one deadline.
//!
//! A `Server` stays the same through failovers, and only its address changes. So calls, pipeline
//! and subscription know nothing of sentinels.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::error::{Reason, is_authentication_code};
use crate::model::settings::ReplicaAcks;
use crate::model::sync::{Mutex, Parker};
use crate::ops::operation::Script;
use crate::ops::value::{ServerTime, Value};
use crate::store::failure::Failure;
use crate::store::listener::Listener;
use crate::store::redis::address::credentials::Credentials;
use crate::store::redis::address::url::{Access, Address, Peer};
use crate::store::redis::net::connection::{Broken, Connection};
use crate::store::redis::net::deadline::Deadline;
use crate::store::redis::net::dial::{
    authentication, dial, handshake_failed, not_sent, refused, unauthenticated,
};
use crate::store::redis::net::open_sockets::Sockets;
use crate::store::redis::net::resolve::Resolver;
use crate::store::redis::net::single_flight::SingleFlight;
use crate::store::redis::node::info::Info;
use crate::store::redis::node::server_clock::ServerClock;
use crate::store::redis::resp::encode::Command;
use crate::store::redis::resp::pubsub::Channels;
use crate::store::redis::sentinel::master::{Master, MasterChange, MasterEndpoint};
use crate::store::redis::sentinel::report::MasterReport;
use crate::store::unread::ReleaseReplies;

/// First pause between attempts to connect to an unreachable master. The pauses double up to
/// [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// Longest pause between attempts to connect to an unreachable master.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// A script without effect. Sent as text and by its hash, like every operation.
static NO_OPERATION: Script = Script::new("return 1");

/// A server, and the client's knowledge of the server.
#[derive(Debug)]
pub(crate) struct Server {
    endpoint: MasterEndpoint,
    access: Access,
    sockets: Sockets,
    resolver: Resolver,
    credentials: SingleFlight<Credentials>,
    pub(crate) clock: ServerClock,
    pub(crate) channels: Channels,
    pub(crate) command_timeout: Duration,
    listener: Weak<dyn Listener>,
    release_replies: Arc<ReleaseReplies>,
    /// Number of connections made. Relaxed: a statistic.
    pub(crate) connections: AtomicU64,
    /// Whether the server is known to run scripts. Relaxed: an outdated `false` costs one more
    /// check.
    runs_scripts: AtomicBool,
    /// Whether the server has refused to name a connection. Later connections stay unnamed, as each
    /// refusal is an entry in the server's `ACL LOG`. Relaxed: an outdated `false` costs one more
    /// entry.
    refuses_names: AtomicBool,
    /// Number of failovers and restarts. A failover counts once every socket to the old master is
    /// shut.
    moves: AtomicU64,
    /// The last known run id. Unknown at first, and after a failover.
    run_id: Mutex<Option<String>>,
    /// The last reply to `INFO`, and the number of connections made before.
    last_info: Mutex<Option<(u64, Info)>>,
    /// Unparked when `moves` grows.
    move_listeners: Mutex<Vec<Parker>>,
    /// The last failure of the connect in progress.
    connect_failure: Mutex<Option<Failure>>,
    /// Whether the server has refused keys in several hash slots: the server is a cluster, or a
    /// cluster is behind its address. Relaxed: an outdated `false` costs one more refusal.
    separates_hash_slots: AtomicBool,
    /// Number of the server's replicas at the last wait of a grant for all replicas.
    pub(crate) replicas: AtomicU32,
}

impl Server {
    pub(crate) fn new(
        endpoint: MasterEndpoint,
        access: Access,
        command_timeout: Duration,
        channels: Channels,
        listener: Weak<dyn Listener>,
        release_replies: Arc<ReleaseReplies>,
    ) -> Self {
        Self {
            endpoint,
            access,
            sockets: Sockets::default(),
            resolver: Resolver::default(),
            credentials: SingleFlight::new(),
            clock: ServerClock::new(),
            channels,
            command_timeout,
            listener,
            release_replies,
            connections: AtomicU64::new(0),
            runs_scripts: AtomicBool::new(false),
            refuses_names: AtomicBool::new(false),
            moves: AtomicU64::new(0),
            run_id: Mutex::default(),
            last_info: Mutex::default(),
            move_listeners: Mutex::default(),
            connect_failure: Mutex::default(),
            separates_hash_slots: AtomicBool::new(false),
            replicas: AtomicU32::new(0),
        }
    }

    /// Returns the listener for messages and for refusals of messages or channels.
    pub(crate) fn listener(&self) -> &Weak<dyn Listener> {
        &self.listener
    }

    /// Returns the number of open sockets to the server.
    pub(crate) fn open_sockets(&self) -> usize {
        self.sockets.open()
    }

    /// Returns the store of the replies to unread releases.
    pub(crate) fn release_replies(&self) -> &ReleaseReplies {
        &self.release_replies
    }

    /// Returns the parts of the server that learn from a reply: the clock and the listener.
    pub(crate) fn reply_context(&self) -> (&ServerClock, &Weak<dyn Listener>) {
        (&self.clock, &self.listener)
    }

    /// Makes a connection ready for commands, or fails by the deadline.
    pub(crate) fn connect(&self, deadline: &mut Deadline) -> Result<Connection, Failure> {
        self.connect_for(None, deadline)
    }

    /// Makes a connection ready for commands, or fails by the deadline. `callers` are sockets that
    /// are shut together, even while a socket is being connected, and their generation. Fails if
    /// the sockets were shut since this generation.
    pub(crate) fn connect_for(
        &self,
        callers: Option<(&Sockets, u64)>,
        deadline: &mut Deadline,
    ) -> Result<Connection, Failure> {
        match &self.endpoint {
            MasterEndpoint::Fixed(peer) => {
                self.connect_to(peer, self.sockets.generation(), callers, deadline)
            }
            MasterEndpoint::Followed(master) => self.connect_to_master(master, callers, deadline),
        }
    }

    /// Connects to the present master, and queries the sentinels when the master is unknown or
    /// unreachable.
    ///
    /// A call without a master pauses between attempts. During a pause, the first thread that
    /// learns of the failover wakes the call.
    fn connect_to_master(
        &self,
        master: &Master,
        callers: Option<(&Sockets, u64)>,
        deadline: &mut Deadline,
    ) -> Result<Connection, Failure> {
        let mut pause = FIRST_PAUSE;
        let mut previous: Option<Failure> = None;
        *self.connect_failure.lock() = None;
        loop {
            // Read before the address, so that a failover after the reading makes the attempt fail.
            let (generation, failovers) = (self.sockets.generation(), master.failovers());
            let callers_were_shut =
                || callers.is_some_and(|(sockets, generation)| sockets.generation() != generation);
            if master.is_closed() || callers_were_shut() {
                return Err(Failure::Closed);
            }
            let failure = match master.address() {
                Some(address) => {
                    let peer = Peer::Tcp(address.clone());
                    match self.connect_to(&peer, generation, callers, deadline) {
                        Ok(connection) => return Ok(connection),
                        Err(failure) => {
                            // Suspect the address, unless the caller ended the attempt: the
                            // deadline has passed, or the sockets were shut.
                            let in_time = deadline.refresh().left().is_ok() && !callers_were_shut();
                            if self.sockets.generation() == generation && in_time {
                                master.suspect(&address);
                            }
                            failure
                        }
                    }
                }
                // The address is unknown or suspected: query the sentinels, then connect.
                None => match master.query(deadline) {
                    Ok(change) => {
                        self.apply(change);
                        continue;
                    }
                    Err(failure) => failure,
                },
            };
            let left = deadline.refresh().left().unwrap_or_default();
            if !failure.is_transient() {
                return Err(failure);
            }
            if left.is_zero() {
                // This attempt only ran out of time. An earlier failure says more.
                return Err(previous.unwrap_or(failure));
            }
            let failure = match previous.take() {
                Some(previous) if previous.says_more_than(&failure) => previous,
                _ => failure,
            };
            // Pause; a known failover ends the pause.
            let has_moved = master.wait_for_failover(failovers, pause.min(left));
            if !has_moved && left <= pause {
                return Err(failure);
            }
            deadline.refresh();
            *self.connect_failure.lock() = Some(failure.clone());
            previous = Some(failure);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Returns the failure of a call whose time is over while a connection is being made.
    pub(crate) fn not_connected_yet(&self) -> Failure {
        let known = self.connect_failure.lock().clone();
        known.unwrap_or_else(|| {
            let reason = "the connection is being made, and has no answer yet";
            self.not_sent(io::Error::new(io::ErrorKind::TimedOut, reason))
        })
    }

    /// Returns the server's address, if fixed.
    pub(crate) fn address(&self) -> Option<&Address> {
        match &self.endpoint {
            MasterEndpoint::Fixed(Peer::Tcp(address)) => Some(address),
            _ => None,
        }
    }

    /// Returns the master whose address the sentinels report, if there are sentinels.
    pub(crate) fn master(&self) -> Option<&Master> {
        match &self.endpoint {
            MasterEndpoint::Fixed(_) => None,
            MasterEndpoint::Followed(master) => Some(master),
        }
    }

    /// Applies a sentinel's report of the master's address.
    pub(crate) fn learn_master(&self, report: MasterReport) {
        if let Some(master) = self.master() {
            self.apply(master.update(report));
        }
    }

    /// Shuts the connections of `generation`, whose server is not a master. The next connect first
    /// queries the sentinels, if there are any.
    pub(crate) fn report_not_master(&self, generation: u64) {
        if let Some(master) = self.master()
            && self.sockets.generation() == generation
        {
            master.invalidate();
            self.sockets.shut_all_of(generation);
        }
    }

    /// Returns whether a connection of `generation` still leads to the present master.
    pub(crate) fn is_current(&self, generation: u64) -> bool {
        generation == self.sockets.generation()
    }

    /// Compares the run id in `info` with the last run id. Returns whether the server was restarted
    /// since, and so may have lost data. `generation` is the generation of the connection with the
    /// `INFO`.
    pub(crate) fn learn_run_id(&self, info: &Info, generation: u64) -> bool {
        let Some(run_id) = &info.run_id else { return false };
        let mut known = self.run_id.lock();
        if self.sockets.generation() != generation {
            return false;
        }
        let is_another = known.as_ref().is_some_and(|known| known != run_id);
        *known = Some(run_id.clone());
        is_another
    }

    /// Stores a reply to `INFO`, sent after `connections` connections had been made.
    pub(crate) fn learn_info(&self, info: &Info, connections: u64) {
        *self.last_info.lock() = Some((connections, info.clone()));
    }

    /// Returns the last reply to `INFO`, if no connection was made since: a later connection may
    /// lead to another server.
    pub(crate) fn last_info(&self) -> Option<Info> {
        let connections = self.connections.load(Ordering::Relaxed);
        let (asked_at, info) = self.last_info.lock().clone()?;
        (asked_at == connections).then_some(info)
    }

    /// Counts a failover or a restart, and wakes the threads that wait for a move.
    pub(crate) fn count_move(&self) {
        self.moves.fetch_add(1, Ordering::SeqCst);
        self.notify_move_listeners();
    }

    /// Returns the number of failovers and restarts. After a failover or restart, the server may
    /// lack earlier writes.
    pub(crate) fn moves(&self) -> u64 {
        self.moves.load(Ordering::SeqCst)
    }

    /// Unparks `parker` after each move, and when the client stops using the server.
    pub(crate) fn wake_on_move(&self, parker: &Parker) {
        self.move_listeners.lock().push(parker.clone());
    }

    /// Unparks every parker of [`wake_on_move`](Self::wake_on_move).
    pub(crate) fn notify_move_listeners(&self) {
        self.move_listeners.lock().iter().for_each(Parker::unpark);
    }

    /// Applies a change of the master. After a failover, nothing more is written to the old master.
    fn apply(&self, change: MasterChange) {
        if change == MasterChange::Moved {
            self.sockets.shut_all();
            // The run id of the new master is queried on the next connection.
            *self.run_id.lock() = None;
            // Last: a thread that sees the new count finds the old sockets shut. Otherwise the
            // thread could take a grant of the old master for a grant of the new master.
            self.count_move();
        }
    }

    /// Returns whether the server has refused keys in several hash slots.
    pub(crate) fn separates_hash_slots(&self) -> bool {
        self.separates_hash_slots.load(Ordering::Relaxed)
    }

    /// Returns which replicas have to acknowledge a grant. `None` if no acknowledgement is needed.
    pub(crate) fn replica_acks(&self) -> Option<ReplicaAcks> {
        self.access.replica_acks
    }

    /// Returns the failure of a command that was not sent to this server.
    pub(crate) fn not_sent(&self, error: io::Error) -> Failure {
        not_sent(&self.endpoint, error)
    }

    /// Checks by `info` that the server can grant locks.
    pub(crate) fn check_target(&self, info: &Info) -> Result<(), Failure> {
        let endpoint = &self.endpoint;
        if info.is_cluster {
            let reason = format!(
                "the server {endpoint} is a node of a cluster, and has a part of the locks only: \
                 write redis-cluster:// instead of redis://"
            );
            return Err(Failure::WrongTarget { reason });
        }
        info.replica_of.as_ref().map_or(Ok(()), |master| {
            let reason = format!(
                "it is a replica, which grants no locks: write the address of its master, \
                 {master}, or with sentinels redis-sentinel://SENTINEL/NAME"
            );
            Err(self.not_sent(io::Error::other(reason)))
        })
    }

    /// Returns the failure of a command without a reply. If sent, the command may run until
    /// `not_after`.
    pub(crate) fn no_reply(&self, broken: Broken, not_after: ServerTime) -> Failure {
        match broken {
            Broken::NotSent(error) => self.not_sent(error),
            Broken::Unanswered(error) => {
                let broken = error.kind() != io::ErrorKind::TimedOut;
                let reason = Reason::from(error).in_context(&self.endpoint);
                Failure::Unknown { not_after, reason, broken }
            }
        }
    }

    /// Returns the failure of a command with an error reply. The second value is `true` if the
    /// connection, of `generation`, has become unusable. With sentinels, the reply of a replica
    /// shuts the connections of `generation`.
    pub(crate) fn refused(
        &self,
        code: String,
        message: String,
        generation: u64,
    ) -> (Failure, bool) {
        match code.as_str() {
            // The reply of a replica: another server is the master.
            "READONLY" | "MASTERDOWN" => {
                self.report_not_master(generation);
                let message = format!("{message} (the server {} is a replica)", self.endpoint);
                (Failure::Refused { code, message }, true)
            }
            // A new connection authenticates again.
            ended if is_authentication_code(ended) => {
                let reason = format!("{code} {message}");
                (unauthenticated(&self.endpoint, &self.access, reason), true)
            }
            "CROSSSLOT" => {
                self.separates_hash_slots.store(true, Ordering::Relaxed);
                (Failure::Refused { code, message }, false)
            }
            _ => (Failure::Refused { code, message }, false),
        }
    }

    /// Connects to `peer`, and makes the connection ready for commands. `generation` was read
    /// before the address.
    fn connect_to(
        &self,
        peer: &Peer,
        generation: u64,
        callers: Option<(&Sockets, u64)>,
        deadline: &mut Deadline,
    ) -> Result<Connection, Failure> {
        let credentials = self.credentials(deadline).map_err(|error| not_sent(peer, error))?;
        let connection = self.open(peer, generation, callers, deadline);
        let mut connection = connection.map_err(|error| not_sent(peer, error))?;
        self.handshake(peer, &mut connection, credentials.as_ref(), deadline)?;
        self.connections.fetch_add(1, Ordering::Relaxed);
        Ok(connection)
    }

    /// Returns the credentials for the next connection, from the callback if there is one. `None`
    /// without a password.
    fn credentials(&self, deadline: &mut Deadline) -> io::Result<Option<Credentials>> {
        let Some(source) = self.access.credentials.clone() else {
            return Ok(self.access.fixed_credentials());
        };
        // The program's code, which may never return.
        let question = move || source.call().map_err(io::Error::other);
        let late = "no credentials came in time";
        let asked = self.credentials.call("", question, deadline.left()?, late);
        deadline.refresh();
        let mut asked = asked.map_err(|error| {
            let kind = error.kind();
            io::Error::new(kind, Reason::from(error).in_context("the credentials callback"))
        })?;
        asked.username = asked.username.or_else(|| self.access.username.clone());
        Ok(Some(asked))
    }

    /// Connects a socket to `peer`. Fails if the server's sockets, or the sockets of `callers`,
    /// were shut since their generation.
    fn open(
        &self,
        peer: &Peer,
        generation: u64,
        callers: Option<(&Sockets, u64)>,
        deadline: &mut Deadline,
    ) -> io::Result<Connection> {
        let mut share = *deadline;
        if self.master().is_some() {
            // A host that is gone does not answer. Leave time for the master that replaces the
            // host.
            share = Deadline::after(deadline.left()? / 2);
        }
        let (access, timeout) = (&self.access, self.command_timeout);
        let socket = Arc::new(dial(peer, access, &self.resolver, timeout, &mut share)?);
        deadline.refresh();
        self.sockets.admit(&socket, generation)?;
        if let Some((callers, generation)) = callers {
            callers.admit(&socket, generation)?;
        }
        Ok(Connection::new(socket, timeout, generation))
    }

    /// Authenticates, selects the database, queries the time and names the connection, in one round
    /// trip. With sentinels, also checks that the server is a master. Until a check has succeeded,
    /// also checks that the server runs scripts.
    fn handshake(
        &self,
        peer: &Peer,
        connection: &mut Connection,
        credentials: Option<&Credentials>,
        deadline: &mut Deadline,
    ) -> Result<(), Failure> {
        let mut commands: Vec<Vec<u8>> = authentication(credentials).into_iter().collect();
        if self.access.database != 0 {
            commands.push(Command::of(&["SELECT", &self.access.database.to_string()]));
        }
        let time_index = commands.len();
        commands.push(Command::of(&["TIME"]));
        if self.master().is_some() {
            commands.push(role_command());
        }
        let scripts_index = commands.len();
        if !self.runs_scripts.load(Ordering::Relaxed) {
            commands.extend(script_commands());
        }
        let name_index = commands.len();
        if let Some(name) = &self.access.connection_name
            && !self.refuses_names.load(Ordering::Relaxed)
        {
            commands.push(Command::of(&["CLIENT", "SETNAME", name]));
        }

        let sent_at = deadline.refresh().read_at();
        if let Err(error) = connection.send(&commands.concat(), deadline) {
            // The server may have sent a reason before closing the connection.
            drop(connection.receive(deadline));
            return Err(handshake_failed(peer, connection, error));
        }
        let (mut time, mut scripts_run) = (None, 0);
        for index in 0..commands.len() {
            let reply = connection.receive(deadline);
            let reply = reply.map_err(|error| handshake_failed(peer, connection, error))?;
            let now = deadline.refresh().read_at();
            connection.round_trip.get_or_insert_with(|| now.saturating_duration_since(sent_at));
            match reply {
                // A name helps readers of `CLIENT LIST`. No lock needs the name.
                Value::Refusal { .. } if index >= name_index => {
                    self.refuses_names.store(true, Ordering::Relaxed);
                }
                _ if index >= name_index => {}
                Value::Refusal { message, .. }
                    if index == time_index && message.contains("unknown command") =>
                {
                    let reason = format!(
                        "the server {peer} does not know the command TIME: if it is a sentinel, \
                         write redis-sentinel://{peer}/NAME with the master's name"
                    );
                    return Err(Failure::WrongTarget { reason });
                }
                Value::Refusal { message, .. }
                    if index < time_index && message.contains("cluster mode") =>
                {
                    let reason = format!(
                        "the server {peer} is a node of a cluster, which has no numbered \
                         databases: write redis-cluster:// without a number"
                    );
                    return Err(Failure::WrongTarget { reason });
                }
                Value::Refusal { message, .. }
                    if index < time_index && message.contains("DB index is out of range") =>
                {
                    let reason = format!(
                        "the server {peer} has no database {}: write a smaller number, or raise \
                         its setting `databases`; for a node of a cluster write redis-cluster://",
                        self.access.database
                    );
                    return Err(Failure::WrongTarget { reason });
                }
                Value::Refusal { code, message }
                    if index >= scripts_index && is_without_scripts(&code, &message) =>
                {
                    return Err(self.no_scripts(peer, &code, &message));
                }
                // Another reason, such as LOADING, concerns the operations and may pass.
                Value::Refusal { .. } if index >= scripts_index => {}
                Value::Refusal { code, message } => {
                    return Err(refused(peer, &self.access, credentials, (code, message)));
                }
                _ if index >= scripts_index => scripts_run += 1,
                reply if index == time_index => time = parse_time(&reply),
                reply if index > time_index && !is_master(&reply) => {
                    return Err(not_sent(peer, io::Error::other("it is a replica")));
                }
                _ => {}
            }
        }
        if let Some(now) = time {
            self.clock.learn(now, sent_at);
        }
        if scripts_run == script_commands().len() {
            self.runs_scripts.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns the failure of a server that refuses every script. `code` and `message` are the
    /// first refusal.
    fn no_scripts(&self, peer: &Peer, code: &str, message: &str) -> Failure {
        let (message, _) = message.split_once(", with args").unwrap_or((message, ""));
        if code == "NOPERM" {
            let reason = format!("{code} {message}; every lock needs +eval and +evalsha");
            return unauthenticated(peer, &self.access, reason);
        }
        let reason = format!(
            "the server {peer} runs no Lua scripts, which every lock needs ({code} {message}): \
             allow it EVAL and EVALSHA, or write the address of a Redis or Valkey server that has \
             both"
        );
        Failure::WrongTarget { reason }
    }
}

/// Returns the commands that check whether a server runs scripts. The first command makes the
/// script known to the server, and the second runs the script by its hash.
pub(crate) fn script_commands() -> [Vec<u8>; 2] {
    let hash = String::from_utf8_lossy(NO_OPERATION.hash());
    [Command::of(&["EVAL", NO_OPERATION.source(), "0"]), Command::of(&["EVALSHA", &hash, "0"])]
}

/// Returns whether the refusal of a script means that all scripts are refused: for this user, by a
/// server or proxy without the command, or because scripts are disabled. A proxy that refuses a
/// script without keys may run other scripts.
fn is_without_scripts(code: &str, message: &str) -> bool {
    let says = |words| message.to_ascii_lowercase().contains(words);
    code == "NOPERM"
        || says("unknown command")
        || says("not support")
        || says("unsupported")
        || says("disabled")
}

/// Returns the command that queries whether a server is a master.
pub(crate) fn role_command() -> Vec<u8> {
    Command::of(&["ROLE"])
}

/// Returns whether `role`, the reply to [`role_command`], is a master's.
pub(crate) fn is_master(role: &Value) -> bool {
    let Value::Array(parts) = role else { return false };
    matches!(parts.first(), Some(Value::Text(role)) if role == "master")
}

/// Parses the reply to `TIME`: seconds and microseconds.
fn parse_time(reply: &Value) -> Option<ServerTime> {
    let Value::Array(parts) = reply else {
        return None;
    };
    let [Value::Text(seconds), Value::Text(micros)] = parts.as_slice() else {
        return None;
    };
    let (seconds, micros): (i64, i64) = (seconds.parse().ok()?, micros.parse().ok()?);
    Some(ServerTime(seconds.checked_mul(1000)?.checked_add(micros / 1000)?))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::Barrier;
    use std::thread;

    use super::*;
    use crate::store::redis::net::socket::Socket;
    use crate::store::redis::sentinel::query::Sentinels;

    const TIMEOUT: Duration = Duration::from_secs(10);

    #[test]
    fn a_refusal_of_all_scripts_is_told_from_other_refusals() {
        let all = [
            // Redis and Valkey with `rename-command`; a user of theirs; Garnet; a proxy of a cloud.
            ("ERR", "unknown command 'EVALSHA', with args beginning with: 'e0e1'"),
            ("NOPERM", "User a has no permissions to run the 'eval' command"),
            ("ERR", "This instance has Lua scripting support disabled"),
            ("ERR", "command eval not support for normal user"),
        ];
        let other = [
            ("LOADING", "Redis is loading the dataset in memory"),
            ("NOSCRIPT", "No matching script. Please use EVAL."),
            // Proxies that choose a server by the script's first key.
            ("ERR", "for redis cluster, eval/evalsha number of keys can't be negative or zero"),
            ("ERR", "wrong number of arguments for 'eval' command"),
        ];
        assert!(all.iter().all(|(code, message)| is_without_scripts(code, message)));
        assert!(!other.iter().any(|(code, message)| is_without_scripts(code, message)));
    }

    fn server_behind_sentinels() -> Server {
        let name = "mymaster".to_owned();
        let sentinels = Sentinels::new(name, Vec::new(), Access::default(), TIMEOUT);
        let endpoint = MasterEndpoint::Followed(Box::new(Master::new(sentinels)));
        let listener = Weak::<crate::store::listener::NoListener>::new();
        let (channels, replies) = (Channels::Everywhere, Arc::default());
        Server::new(endpoint, Access::default(), TIMEOUT, channels, listener, replies)
    }

    #[test]
    fn a_new_move_count_is_seen_only_after_every_old_socket_is_shut() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        for _ in 0..20 {
            let server = server_behind_sentinels();
            // Shutting that many takes longer than reading the count.
            let both: Vec<_> = (0..100)
                .map(|_| {
                    let socket = Arc::new(
                        Socket::connect(&address, &mut Deadline::after(TIMEOUT), TIMEOUT).unwrap(),
                    );
                    server.sockets.admit(&socket, server.sockets.generation()).unwrap();
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
                    let takes = |(socket, _): &&(Arc<Socket>, _)| socket.try_write(b"x").is_ok();
                    both.iter().rev().filter(takes).count()
                });
                ready.wait();
                server.apply(MasterChange::Moved);
                assert_eq!(watcher.join().unwrap(), 0, "could still be written to");
            });
        }
    }
}
