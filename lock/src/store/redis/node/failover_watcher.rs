//! A thread that watches for failovers, by subscribing to a sentinel and by regular checks.
//!
//! The sentinel publishes failovers as they happen. A message has no epoch and may be old, and so
//! is only a hint: the thread then queries the sentinel for the master's address and the failover's
//! epoch. The thread queries the other sentinels in turn, in case the subscribed sentinel is cut
//! off or hangs, and the master's role, in case no sentinel is reachable. The [`Server`] learns the
//! answers, and shuts every socket to an old master. A connect, and an error that only a replica
//! sends, also reveal a failover. Nothing here ever fails a caller.
//!
//! The sentinel client of the `redis` crate waits for a hung sentinel without a limit, and reports
//! no failover.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use hashed_wheel::Clock;

use crate::error::Error;
use crate::model::sync::SystemClock;
use crate::ops::value::Value;
use crate::store::redis::address::url::Address;
use crate::store::redis::net::connection::Connection;
use crate::store::redis::net::deadline::Deadline;
use crate::store::redis::node::server::{Server, is_master, role_command};
use crate::store::redis::resp::encode::Command;
use crate::store::redis::sentinel::master::Master;
use crate::store::redis::sentinel::query::Sentinel;

/// A handle to the thread, which ends when the handle is dropped.
pub(crate) struct FailoverWatcher {
    server: Arc<Server>,
}

/// Time between two checks. Each check queries the master and one sentinel.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Number of checks per query of a sentinel that did not answer the last query.
const CHECKS_PER_SILENT_SENTINEL: u32 = 5;
/// Longest time of a connect or request. No message is read meanwhile.
const TIMEOUT: Duration = Duration::from_millis(500);
/// Longest wait for the master's role. The next check reads a later reply.
const ROLE_TIMEOUT: Duration = Duration::from_millis(50);
/// Time between two searches for a sentinel to subscribe to. A sentinel may confirm a subscription
/// and close the connection each time.
const SEARCH_INTERVAL: Duration = Duration::from_millis(500);

/// Published by every sentinel after a failover.
const SWITCHED: &str = "+switch-master";
/// Published earlier, by the sentinel that leads the failover. `+switch-master` follows only after
/// the sentinel has reconfigured every replica.
const PROMOTED: &str = "+promoted-slave";

impl FailoverWatcher {
    /// Starts the thread for a server with sentinels. Fails if the thread cannot be started.
    pub(crate) fn start(server: &Arc<Server>) -> Result<Self, Error> {
        let own = Arc::clone(server);
        thread::Builder::new()
            .name("lock-topology".to_owned())
            .spawn(move || {
                if let Some(master) = own.master() {
                    SentinelWatcher::new(&own, master).run();
                }
            })
            .map_err(|error| Error::Thread { reason: error.into() })?;
        Ok(Self { server: Arc::clone(server) })
    }
}

impl Drop for FailoverWatcher {
    fn drop(&mut self) {
        if let Some(master) = self.server.master() {
            master.close();
        }
    }
}

/// The state of the thread that watches for failovers.
struct SentinelWatcher<'a> {
    server: &'a Server,
    master: &'a Master,
    subscription: Option<Subscription>,
    /// A connection for queries to each sentinel.
    connections: Vec<(Address, Connection)>,
    role_query: Option<RoleQuery>,
    checks: u32,
    next_check: Instant,
    /// Earliest time of the next search for a sentinel to subscribe to.
    next_search: Instant,
}

/// The subscribed sentinel.
struct Subscription {
    sentinel: Arc<Sentinel>,
    connection: Connection,
    /// Whether a PING was sent and nothing was received since.
    pinged: bool,
}

/// The connection for queries of the master's role.
struct RoleQuery {
    connection: Connection,
    /// Whether the reply is still missing.
    pending: bool,
}

impl<'a> SentinelWatcher<'a> {
    fn new(server: &'a Server, master: &'a Master) -> Self {
        let now = SystemClock.now();
        Self {
            server,
            master,
            subscription: None,
            connections: Vec::new(),
            role_query: None,
            checks: 0,
            next_check: now + CHECK_INTERVAL,
            next_search: now,
        }
    }

    /// Runs the thread until the master is closed: subscribes, checks, and handles messages.
    fn run(mut self) {
        while !self.master.is_closed() {
            // 1. Subscribe to a sentinel, if there is no subscription.
            if self.subscription.is_none() && self.next_search <= SystemClock.now() {
                self.subscribe_to_any();
                self.next_search = SystemClock.now() + SEARCH_INTERVAL;
            }
            // 2. Check, if due.
            if self.next_check <= SystemClock.now() {
                self.check();
                self.next_check = SystemClock.now() + CHECK_INTERVAL;
            }
            // 3. Wait for a message until the next check, or pause until the next search.
            if self.subscription.is_some() {
                self.receive_message();
            } else {
                let pause = self.next_search.saturating_duration_since(SystemClock.now());
                self.master.wait_for_failover(self.master.failovers(), pause);
            }
        }
    }

    /// Subscribes to the first sentinel that accepts. Sentinels without an answer to the last query
    /// are tried last.
    fn subscribe_to_any(&mut self) {
        let mut sentinels = self.master.sentinels.all();
        sentinels.sort_by_key(|sentinel| sentinel.is_silent());
        for sentinel in sentinels {
            if self.master.is_closed() {
                return;
            }
            let mut deadline = Deadline::after(TIMEOUT);
            let Some(connection) = self.subscribe(&sentinel, &mut deadline) else { continue };
            // Failovers before the subscription were not received, so query the sentinel.
            if self.ask(&sentinel) {
                self.subscription = Some(Subscription { sentinel, connection, pinged: false });
                return;
            }
        }
    }

    /// Subscribes to the messages of `sentinel` about failovers. Returns the connection, or `None`
    /// without a confirmation by the deadline.
    fn subscribe(&self, sentinel: &Sentinel, deadline: &mut Deadline) -> Option<Connection> {
        let mut connection = self.master.sentinels.connect(sentinel, deadline).ok()?;
        let channels = [SWITCHED, PROMOTED];
        let packed = Command::of(&["SUBSCRIBE", SWITCHED, PROMOTED]);
        connection.send(&packed, &mut deadline.refresh()).ok()?;
        for _ in channels {
            let confirmation = connection.receive(&mut deadline.refresh()).ok()?;
            matches!(confirmation, Value::Array(_)).then_some(())?;
        }
        Some(connection)
    }

    /// Waits for a message until the next check, and handles the message. Drops a broken
    /// subscription.
    fn receive_message(&mut self) {
        let Some(subscription) = &mut self.subscription else { return };
        let left = self.next_check.saturating_duration_since(SystemClock.now());
        match subscription.connection.receive(&mut Deadline::after(left)) {
            Ok(message) => {
                subscription.pinged = false;
                let sentinel = Arc::clone(&subscription.sentinel);
                self.handle_message(&message, &sentinel);
            }
            // The next check is due.
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
            Err(_) => self.subscription = None,
        }
    }

    /// Queries `sentinel` if `message` reports a failover of the master. Drops the subscription if
    /// the query fails.
    fn handle_message(&mut self, message: &Value, sentinel: &Sentinel) {
        let Value::Array(parts) = message else { return };
        let [Value::Text(kind), Value::Text(channel), Value::Text(text)] = parts.as_slice() else {
            return;
        };
        let name = self.master.sentinels.name();
        let is_of_master = [SWITCHED, PROMOTED].contains(&channel.as_str())
            && text.split(' ').any(|word| word == name);
        if kind == "message" && is_of_master && !self.ask(sentinel) {
            // No answer: subscribe to another sentinel.
            self.subscription = None;
        }
    }

    /// Queries a sentinel and the master, and checks the subscription.
    fn check(&mut self) {
        self.checks = self.checks.wrapping_add(1);
        // 1. If the subscribed sentinel does not answer a PING by the next check, another sentinel
        //    replaces it.
        if let Some(subscription) = &mut self.subscription {
            let ping = Command::of(&["PING"]);
            let sent = subscription.connection.send(&ping, &mut Deadline::after(TIMEOUT));
            if std::mem::replace(&mut subscription.pinged, true) || sent.is_err() {
                self.subscription = None;
            }
        }
        // 2. One of the other sentinels, in turn.
        let all = self.master.sentinels.all();
        self.connections.retain(|(address, _)| all.iter().any(|known| known.address == *address));
        let subscribed = self.subscription.as_ref().map(|subscribed| &subscribed.sentinel.address);
        let ask_silent = self.checks.is_multiple_of(CHECKS_PER_SILENT_SENTINEL);
        let others: Vec<_> = all
            .iter()
            .filter(|other| ask_silent || !other.is_silent())
            .filter(|other| subscribed != Some(&other.address))
            .collect();
        let turn = usize::try_from(self.checks).unwrap_or(0).checked_rem(others.len());
        if let Some(other) = turn.and_then(|turn| others.get(turn)) {
            self.ask(other);
        }
        // 3. The master.
        self.check_role();
    }

    /// Queries a sentinel for the master, and reports the answer to the server. Returns whether the
    /// sentinel answered.
    fn ask(&mut self, sentinel: &Sentinel) -> bool {
        let index = self.connections.iter().position(|(address, _)| *address == sentinel.address);
        let retained = index.map(|index| self.connections.swap_remove(index).1);
        let was_retained = retained.is_some();
        let sentinels = &self.master.sentinels;
        let mut answer = sentinels.query(sentinel, retained, &mut Deadline::after(TIMEOUT));
        if answer.is_err() && was_retained {
            // The idle connection may have been closed.
            answer = sentinels.query(sentinel, None, &mut Deadline::after(TIMEOUT));
        }
        let Ok((report, connection)) = answer else { return false };
        self.connections.push((sentinel.address.clone(), connection));
        self.server.learn_master(report);
        true
    }

    /// Queries the master for its role, and shuts the connections if the server is not a master.
    /// While a reply is pending, sends no other query and makes no new connection.
    fn check_role(&mut self) {
        let current = self
            .role_query
            .take()
            .filter(|query| self.server.is_current(query.connection.generation));
        let opened = current.or_else(|| {
            let connection = self.server.connect(&mut Deadline::after(TIMEOUT)).ok()?;
            Some(RoleQuery { connection, pending: false })
        });
        let Some(mut query) = opened else { return };
        if !query.pending {
            let sent = query.connection.send(&role_command(), &mut Deadline::after(TIMEOUT));
            if sent.is_err() {
                return;
            }
            query.pending = true;
        }
        match query.connection.receive(&mut Deadline::after(ROLE_TIMEOUT)) {
            Ok(role) => {
                query.pending = false;
                if !is_master(&role) {
                    self.server.report_not_master(query.connection.generation);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
            // The next check connects again.
            Err(_) => return,
        }
        self.role_query = Some(query);
    }
}
