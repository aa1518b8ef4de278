//! Queries sentinels for the address of the master, one after another.
//!
//! Each sentinel gets a share of the time, so a hanging sentinel costs one share. Parallel queries
//! would need a thread for each sentinel. `report` combines the replies.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::Reason;
use crate::model::sync::Mutex;
use crate::ops::value::Value;
use crate::store::failure::Failure;
use crate::store::redis::address::url::{Access, Address, Peer};
use crate::store::redis::net::connection::Connection;
use crate::store::redis::net::deadline::Deadline;
use crate::store::redis::net::dial::{authentication, dial, refused};
use crate::store::redis::net::open_sockets::Sockets;
use crate::store::redis::net::resolve::Resolver;
use crate::store::redis::net::socket::tls_error;
use crate::store::redis::resp::encode::Command;
use crate::store::redis::sentinel::report::{
    MasterReport, decide, is_clear, known_sentinels, parse_address, parse_epoch,
};

/// The maximum time for one sentinel, when more sentinels can be queried.
const MAX_SHARE: Duration = Duration::from_millis(500);

/// The sentinels of one master.
#[derive(Debug)]
pub(crate) struct Sentinels {
    /// The master's name.
    name: String,
    access: Access,
    timeout: Duration,
    /// The configured sentinels.
    seeds: Vec<Address>,
    /// The seeds, and further sentinels named by a sentinel.
    all: Mutex<Vec<Arc<Sentinel>>>,
    sockets: Sockets,
}

/// One known sentinel.
#[derive(Debug)]
pub(crate) struct Sentinel {
    pub(crate) address: Address,
    resolver: Resolver,
    /// Whether the last query got no reply. Relaxed: this only decides the order of queries.
    silent: AtomicBool,
}

impl Sentinels {
    pub(crate) fn new(
        name: String,
        seeds: Vec<Address>,
        access: Access,
        timeout: Duration,
    ) -> Self {
        let all = seeds.iter().cloned().map(Sentinel::new).map(Arc::new).collect();
        let sockets = Sockets::default();
        Self { name, access, timeout, seeds, all: Mutex::new(all), sockets }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns all known sentinels, the seeds first.
    pub(crate) fn all(&self) -> Vec<Arc<Sentinel>> {
        self.all.lock().clone()
    }

    /// Shuts every connection to a sentinel, also a connection that is being made.
    pub(crate) fn shut(&self) {
        self.sockets.shut_all();
    }

    /// Queries sentinels until the address of the master is clear, and returns the report decided
    /// by the module `report`. `known` is the latest known report.
    pub(crate) fn find_master(
        &self,
        known: Option<&MasterReport>,
        deadline: &mut Deadline,
    ) -> Result<MasterReport, Failure> {
        let all = self.all();
        let (silent, awake): (Vec<_>, Vec<_>) =
            all.iter().partition(|sentinel| sentinel.is_silent());
        let mut reports = Vec::new();
        let mut failed: Option<(&Sentinel, Failure)> = None;
        for group in [awake, silent] {
            let mut unasked = u32::try_from(group.len()).unwrap_or(u32::MAX);
            for sentinel in group {
                let Ok(left) = deadline.refresh().left() else { break };
                // The last share is for the connection to the master.
                let share = left / unasked.saturating_add(1);
                unasked = unasked.saturating_sub(1);
                let mut deadline = Deadline::after(share.min(MAX_SHARE));
                match self.query(sentinel, None, &mut deadline) {
                    Ok((report, _)) => reports.push(report),
                    Err(failure) => match &failed {
                        Some((_, before)) if before.says_more_than(&failure) => {}
                        _ => failed = Some((&**sentinel, failure)),
                    },
                }
                if is_clear(&reports, all.len(), known) {
                    break;
                }
            }
            // Silent sentinels are queried only if the rest report nothing recent.
            if reports.iter().any(|report| known.is_none_or(|known| report.epoch >= known.epoch)) {
                break;
            }
        }
        if reports.is_empty() {
            return Err(match failed {
                Some((sentinel, failure)) => sentinel.not_sent(failure),
                None => self.failure("no time was left to ask a sentinel"),
            });
        }
        decide(&reports, all.len(), known).map_err(|reason| self.failure(&reason))
    }

    /// Queries one sentinel, on the connection `retained` or a new connection. Returns the report
    /// and the connection. Records whether the sentinel is silent.
    pub(crate) fn query(
        &self,
        sentinel: &Sentinel,
        retained: Option<Connection>,
        deadline: &mut Deadline,
    ) -> Result<(MasterReport, Connection), Failure> {
        let connection = retained.map_or_else(|| self.connect(sentinel, deadline), Ok);
        let result = connection.and_then(|mut connection| {
            let report = self.query_on(&mut connection, sentinel, deadline)?;
            Ok((report, connection))
        });
        // A sentinel with an error reply is not silent, for example if the name is unknown.
        let answered = result.is_ok() || matches!(result, Err(Failure::Refused { .. }));
        sentinel.silent.store(!answered, Ordering::Relaxed);
        result
    }

    /// Returns how long the master has to be silent before the sentinels consider the master dead.
    /// The first sentinel with an answer decides; `None` if no sentinel reports the time.
    pub(crate) fn down_after(&self, deadline: &mut Deadline) -> Option<Duration> {
        let all = self.all();
        let mut unasked = u32::try_from(all.len()).unwrap_or(u32::MAX);
        all.iter().find_map(|sentinel| {
            let share = deadline.refresh().left().ok()? / unasked;
            unasked = unasked.saturating_sub(1).max(1);
            let mut deadline = Deadline::after(share.min(MAX_SHARE));
            let mut connection = self.connect(sentinel, &mut deadline).ok()?;
            let question = Command::of(&["SENTINEL", "MASTER", &self.name]);
            let Ok(Value::Array(fields)) = connection.call(&question, &mut deadline) else {
                return None;
            };
            let value = fields.chunks_exact(2).find_map(|pair| match pair {
                [Value::Text(name), Value::Text(value)] if name == "down-after-milliseconds" => {
                    value.parse().ok()
                }
                _ => None,
            })?;
            Some(Duration::from_millis(value))
        })
    }

    /// Returns an authenticated connection to a sentinel.
    pub(crate) fn connect(
        &self,
        sentinel: &Sentinel,
        deadline: &mut Deadline,
    ) -> Result<Connection, Failure> {
        let generation = self.sockets.generation();
        let failure = |error| not_sent(&sentinel.address, error);
        let (peer, access) = (Peer::Tcp(sentinel.address.clone()), &self.access);
        let socket = dial(&peer, access, &sentinel.resolver, self.timeout, deadline)
            .map(Arc::new)
            .map_err(failure)?;
        self.sockets.admit(&socket, generation).map_err(failure)?;
        let mut connection = Connection::new(socket, self.timeout, generation);
        let credentials = access.fixed_credentials();
        if let Some(authentication) = authentication(credentials.as_ref()) {
            deadline.refresh();
            connection.send(&authentication, deadline).map_err(failure)?;
            let reply = connection.receive(deadline).map_err(failure)?;
            if let Value::Refusal { code, message } = reply {
                let refusal = (code, message);
                return Err(refused(&sentinel.address, access, credentials.as_ref(), refusal));
            }
        }
        Ok(connection)
    }

    /// Queries the address of the master, the epoch, and the known sentinels, in one round trip.
    /// Returns the report, and replaces the known sentinels.
    fn query_on(
        &self,
        connection: &mut Connection,
        sentinel: &Sentinel,
        deadline: &mut Deadline,
    ) -> Result<MasterReport, Failure> {
        let mut packed = Vec::new();
        // The epoch first: after a failover in between, the epoch is too small for the address, but
        // never too large.
        for verb in ["MASTER", "SENTINELS", "GET-MASTER-ADDR-BY-NAME"] {
            packed.extend(Command::of(&["SENTINEL", verb, &self.name]));
        }
        let failure = |error| not_sent(&sentinel.address, error);
        deadline.refresh();
        connection.send(&packed, deadline).map_err(failure)?;
        let mut receive = || connection.receive(deadline).map_err(failure);
        let (master, others, address) = (receive()?, receive()?, receive()?);
        // Without permission for both commands, the user can neither tell a new report from an old
        // report nor find more sentinels. Any other error also occurs for the address, or means
        // that the name is unknown.
        for reply in [&master, &others] {
            if let Value::Refusal { code, message } = reply
                && code == "NOPERM"
            {
                let refusal = (code.clone(), message.clone());
                return Err(refused(&sentinel.address, &self.access, None, refusal));
            }
        }
        let address = match address {
            Value::Refusal { message, .. } if message.contains("unknown command") => {
                Err("it is no sentinel: write redis:// for a server without sentinels, not for")
            }
            Value::Refusal { code, message } => {
                return Err(refused(&sentinel.address, &self.access, None, (code, message)));
            }
            Value::Nil => {
                Err("it knows no master of that name, `SENTINEL MASTERS` lists those it does")
            }
            reply => parse_address(&reply).ok_or("its reply cannot be read"),
        };
        let address = address.map_err(|reason| {
            let message = format!("{reason}: {}", self.name);
            Failure::Refused { code: "ERR".to_owned(), message }
        })?;
        self.learn(sentinel, &others);
        Ok(MasterReport { address, epoch: parse_epoch(&master) })
    }

    /// Replaces the known sentinels by the seeds, `source`, and the sentinels that `source` names:
    /// other known sentinels may be gone for good.
    fn learn(&self, source: &Sentinel, others: &Value) {
        let Some(addresses) = known_sentinels(&self.seeds, &source.address, others) else { return };
        let mut all = self.all.lock();
        if all.iter().map(|known| &known.address).eq(&addresses) {
            return;
        }
        let known = |address: Address| {
            let known = all.iter().find(|known| known.address == address).cloned();
            known.unwrap_or_else(|| Arc::new(Sentinel::new(address)))
        };
        *all = addresses.into_iter().map(known).collect();
    }

    /// Returns the failure of an operation that was not sent, with the seeds as the server.
    pub(crate) fn failure(&self, reason: &str) -> Failure {
        Failure::NotSent { server: self.to_string(), reason: reason.into() }
    }
}

impl std::fmt::Display for Sentinels {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seeds: Vec<String> = self.seeds.iter().map(Address::to_string).collect();
        write!(formatter, "{} of the sentinels {}", self.name, seeds.join(","))
    }
}

impl Sentinel {
    fn new(address: Address) -> Self {
        Self { address, resolver: Resolver::default(), silent: AtomicBool::new(false) }
    }

    /// Returns whether the last query of this sentinel got no reply.
    pub(crate) fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed)
    }

    /// Converts the failure of a query of this sentinel into the failure of an operation that was
    /// not sent.
    fn not_sent(&self, failure: Failure) -> Failure {
        match failure {
            Failure::Refused { code, message } => Failure::NotSent {
                server: self.address.to_string(),
                reason: format!("the sentinel replied {code} {message}").into(),
            },
            failure => failure,
        }
    }
}

/// Returns the failure of an operation that was not sent, for an error on the connection to
/// `sentinel`.
fn not_sent(sentinel: &Address, error: io::Error) -> Failure {
    let server = sentinel.to_string();
    match tls_error(&error) {
        Some(reason) => Failure::TlsFailed { server, reason },
        None => Failure::NotSent { server, reason: Reason::from(error).in_context("a sentinel") },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address() -> Address {
        Address { host: "10.0.0.1".to_owned(), port: 1 }
    }

    #[test]
    fn sentinel_error_reply_is_reported_rather_than_a_timeout() {
        let silence = not_sent(&address(), io::ErrorKind::TimedOut.into());
        let answer = Failure::Refused { code: "ERR".to_owned(), message: "no".to_owned() };
        let (server, reason) = ("b".to_owned(), String::new());
        let refusal = Failure::Unauthenticated { server, reason, transient: false };
        assert!(answer.says_more_than(&silence) && !silence.says_more_than(&answer));
        let no_tls = Failure::TlsFailed { server: "c".to_owned(), reason: "no TLS".into() };
        assert!(answer.says_more_than(&no_tls) && !no_tls.says_more_than(&answer));
        assert!(!answer.says_more_than(&refusal) && refusal.says_more_than(&silence));
        assert!(!silence.says_more_than(&silence));
        let refused = not_sent(&address(), io::ErrorKind::ConnectionRefused.into());
        assert!(refused.says_more_than(&silence) && !silence.says_more_than(&refused));
    }
}
