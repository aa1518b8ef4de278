//! Asks sentinels where the master is: several of them, each within its share of the time.
//!
//! Each failover has a number, the configuration epoch, and a sentinel that was cut off knows a
//! smaller one. So the highest epoch counts, as among the sentinels themselves. What is known
//! already is taken back only if more than half of all sentinels say so: then they were configured
//! anew (DESIGN: sentinel).

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

/// The longest that one sentinel may take, when others can be asked.
const MAX_SHARE: Duration = Duration::from_millis(500);

/// The maximum number of known sentinels.
const MAX_SENTINELS: usize = 32;

/// The sentinels of one master.
#[derive(Debug)]
pub(crate) struct Sentinels {
    /// The master's name.
    name: String,
    access: Access,
    timeout: Duration,
    /// The configured ones.
    seeds: Vec<Address>,
    /// The seeds, and those that a sentinel named.
    all: Mutex<Vec<Arc<Sentinel>>>,
    sockets: Sockets,
}

#[derive(Debug)]
pub(crate) struct Sentinel {
    pub(crate) address: Address,
    resolver: Resolver,
    /// Whether its last query got no reply. Relaxed: it only decides which is asked first.
    silent: AtomicBool,
}

/// Where the master is, after that many failovers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MasterReport {
    pub(crate) address: Address,
    pub(crate) epoch: u64,
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

    /// The seeds first.
    pub(crate) fn all(&self) -> Vec<Arc<Sentinel>> {
        self.all.lock().clone()
    }

    /// Shuts every connection to a sentinel, and refuses those that are being made.
    pub(crate) fn shut(&self) {
        self.sockets.shut_all();
    }

    /// Asks sentinels until it is clear where the master is. `known` is what is known so far.
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
                // One share is left for the connection to the master.
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
            // The silent ones are asked only if the others have reported nothing recent.
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

    /// Asks one, on a `kept` connection or a new one, and returns the connection.
    pub(crate) fn query(
        &self,
        sentinel: &Sentinel,
        kept: Option<Connection>,
        deadline: &mut Deadline,
    ) -> Result<(MasterReport, Connection), Failure> {
        let connection = kept.map_or_else(|| self.connect(sentinel, deadline), Ok);
        let result = connection.and_then(|mut connection| {
            let report = self.query_on(&mut connection, sentinel, deadline)?;
            Ok((report, connection))
        });
        // A sentinel that does not know the name is not silent.
        let answered = result.is_ok() || matches!(result, Err(Failure::Refused { .. }));
        sentinel.silent.store(!answered, Ordering::Relaxed);
        result
    }

    /// An authenticated connection.
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

    /// Where the master is, how many failovers there were, and which other sentinels there are: in
    /// one round trip.
    fn query_on(
        &self,
        connection: &mut Connection,
        sentinel: &Sentinel,
        deadline: &mut Deadline,
    ) -> Result<MasterReport, Failure> {
        let mut packed = Vec::new();
        // The epoch first: if a failover comes in between, the epoch is too small for the address
        // and not too large.
        for verb in ["MASTER", "SENTINELS", "GET-MASTER-ADDR-BY-NAME"] {
            packed.extend(Command::of(&["SENTINEL", verb, &self.name]));
        }
        let failure = |error| not_sent(&sentinel.address, error);
        deadline.refresh();
        connection.send(&packed, deadline).map_err(failure)?;
        let mut receive = || connection.receive(deadline).map_err(failure);
        let (master, others, address) = (receive()?, receive()?, receive()?);
        // A user that may ask only for the address cannot tell a new report from an old one, and
        // finds no other sentinels. An error of another kind is repeated for the address, or means
        // that the name is not known.
        for reply in [&master, &others] {
            if let Value::Refusal { code, message } = reply
                && code == "NOPERM"
            {
                let refusal = (code.clone(), message.clone());
                return Err(refused(&sentinel.address, &self.access, None, refusal));
            }
        }
        let address = match address {
            Value::Refusal { code, message } => {
                return Err(refused(&sentinel.address, &self.access, None, (code, message)));
            }
            Value::Nil => Err("it knows no master of that name"),
            reply => address_in(&reply).ok_or("its reply cannot be read"),
        };
        let address = address.map_err(|reason| {
            let message = format!("{reason}: {}", self.name);
            Failure::Refused { code: "ERR".to_owned(), message }
        })?;
        self.learn(sentinel, &others);
        let epoch = field(&master, "config-epoch").and_then(|epoch| epoch.parse().ok());
        Ok(MasterReport { address, epoch: epoch.unwrap_or(0) })
    }

    /// Remembers the sentinels that one names, instead of those that another named before: some may
    /// be gone for good.
    fn learn(&self, source: &Sentinel, others: &Value) {
        let Value::Array(others) = others else { return };
        let named = others.iter().filter_map(|other| {
            let port = field(other, "port")?.parse().ok()?;
            Some(Address { host: field(other, "ip")?.to_owned(), port })
        });
        let mut addresses = self.seeds.clone();
        for address in std::iter::once(source.address.clone()).chain(named) {
            if !addresses.contains(&address) && addresses.len() < MAX_SENTINELS {
                addresses.push(address);
            }
        }
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

    pub(crate) fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed)
    }

    /// What a failed query means for the operation, which was not sent.
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

/// Whether no other sentinel need be asked.
fn is_clear(reports: &[MasterReport], sentinels: usize, known: Option<&MasterReport>) -> bool {
    let Some(last) = reports.last() else { return false };
    match known {
        // The master has moved. A sentinel that repeats what is known may be behind others.
        Some(known) => last.epoch > known.epoch && last.address != known.address,
        None => votes(reports, last) * 2 > sentinels,
    }
}

fn votes(reports: &[MasterReport], candidate: &MasterReport) -> usize {
    reports.iter().filter(|other| *other == candidate).count()
}

/// What the reports of some of the sentinels mean together, or why they mean nothing.
/// DESIGN: sentinel.
fn decide(
    reports: &[MasterReport],
    sentinels: usize,
    known: Option<&MasterReport>,
) -> Result<MasterReport, String> {
    // 1. Only the reports after the last failover count.
    let newest = reports.iter().map(|report| report.epoch).max().unwrap_or(0);
    let newest: Vec<&MasterReport> =
        reports.iter().filter(|report| report.epoch == newest).collect();
    // 2. Of those the majority counts: a sentinel may be configured with another address.
    let Some(best) = newest.iter().copied().max_by_key(|candidate| votes(reports, candidate))
    else {
        return Err("no sentinel has replied".to_owned());
    };
    let agree = votes(reports, best);
    if agree * 2 <= newest.len() {
        let all: Vec<String> = newest.iter().map(|report| report.address.to_string()).collect();
        return Err(format!("the sentinels disagree: {}", all.join(", ")));
    }
    // 3. A step back needs a majority of all sentinels.
    if known.is_some_and(|known| best.epoch < known.epoch) && agree * 2 <= sentinels {
        let old = &best.address;
        return Err(format!("only sentinels with an outdated state reply: {old}"));
    }
    Ok(best.clone())
}

fn not_sent(sentinel: &Address, error: io::Error) -> Failure {
    let server = sentinel.to_string();
    match tls_error(&error) {
        Some(reason) => Failure::TlsFailed { server, reason },
        None => Failure::NotSent { server, reason: Reason::from(error).in_context("a sentinel") },
    }
}

/// Reads two words: host and port.
fn address_in(reply: &Value) -> Option<Address> {
    let Value::Array(words) = reply else { return None };
    let [Value::Text(host), Value::Text(port)] = words.as_slice() else { return None };
    Some(Address { host: host.clone(), port: port.parse().ok()? })
}

/// A value in a list of names and values.
fn field<'a>(list: &'a Value, name: &str) -> Option<&'a str> {
    let Value::Array(words) = list else { return None };
    words.chunks_exact(2).find_map(|pair| match pair {
        [Value::Text(key), Value::Text(value)] if key == name => Some(value.as_str()),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(port: u16, epoch: u64) -> MasterReport {
        MasterReport { address: Address { host: "10.0.0.1".to_owned(), port }, epoch }
    }

    #[test]
    fn a_report_of_the_latest_failover_outweighs_any_number_of_others() {
        let all = [report(1, 5), report(2, 6), report(1, 5)];
        assert_eq!(decide(&all, 3, None), Ok(report(2, 6)));
        assert_eq!(decide(&all, 3, Some(&report(1, 5))), Ok(report(2, 6)));
    }

    #[test]
    fn a_known_failover_is_taken_back_only_by_a_majority_of_all_sentinels() {
        let known = report(2, 6);
        assert!(decide(&[report(1, 5)], 3, Some(&known)).is_err());
        assert!(decide(&[report(1, 5), report(3, 4)], 3, Some(&known)).is_err());
        let twice = [report(1, 0), report(1, 0)];
        assert_eq!(decide(&twice, 3, Some(&known)), Ok(report(1, 0)));
        assert_eq!(decide(&[report(1, 0)], 1, Some(&known)), Ok(report(1, 0)));
    }

    #[test]
    fn within_one_epoch_the_majority_counts_and_a_tie_is_a_disagreement() {
        let most = [report(1, 0), report(2, 0), report(2, 0)];
        assert_eq!(decide(&most, 3, None), Ok(report(2, 0)));
        let reason = decide(&[report(1, 0), report(2, 0)], 2, None).unwrap_err();
        assert_eq!(reason, "the sentinels disagree: 10.0.0.1:1, 10.0.0.1:2");
        assert!(decide(&[report(1, 0), report(2, 0), report(3, 0)], 3, None).is_err());
    }

    #[test]
    fn sentinels_are_asked_until_a_majority_agrees_or_one_reports_a_failover() {
        assert!(!is_clear(&[report(1, 5)], 3, None));
        assert!(is_clear(&[report(1, 5), report(1, 5)], 3, None));
        assert!(!is_clear(&[report(1, 5), report(1, 5)], 4, None));
        assert!(is_clear(&[report(1, 5)], 1, None));
        let known = report(1, 5);
        assert!(is_clear(&[report(2, 6)], 3, Some(&known)));
        assert!(!is_clear(&[report(2, 5)], 3, Some(&known)));
        assert!(!is_clear(&[report(1, 5), report(1, 5)], 3, Some(&known)));
    }

    #[test]
    fn a_sentinels_answer_is_reported_rather_than_the_silence_of_another() {
        let silence = not_sent(&report(1, 0).address, io::ErrorKind::TimedOut.into());
        let answer = Failure::Refused { code: "ERR".to_owned(), message: "no".to_owned() };
        let (server, reason) = ("b".to_owned(), String::new());
        let refusal = Failure::Unauthenticated { server, reason, transient: false };
        assert!(answer.says_more_than(&silence) && !silence.says_more_than(&answer));
        let no_tls = Failure::TlsFailed { server: "c".to_owned(), reason: "no TLS".into() };
        assert!(answer.says_more_than(&no_tls) && !no_tls.says_more_than(&answer));
        assert!(!answer.says_more_than(&refusal) && refusal.says_more_than(&silence));
        assert!(!silence.says_more_than(&silence));
        let refused = not_sent(&report(1, 0).address, io::ErrorKind::ConnectionRefused.into());
        assert!(refused.says_more_than(&silence) && !silence.says_more_than(&refused));
    }
}
