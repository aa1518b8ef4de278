//! Asking sentinels where the master is: several of them, each within its share of the time.
//!
//! Each failover has a number, the configuration epoch, and a sentinel that was cut off knows a smaller one. So who says
//! the highest is believed, as the sentinels do among themselves. What is known already is taken back only if more than
//! half of all say so: then somebody has set them up anew.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::address::{Access, Address, Peer};
use super::command::Command;
use super::connection::{Connection, Limit};
use super::reach::{authentication, reach, refused};
use super::resolve::Resolver;
use super::socket::distrust;
use super::sockets::Sockets;
use crate::store::Failure;
use crate::value::Value;

/// The longest that one sentinel may keep us, when others can be asked.
const LONGEST_SHARE: Duration = Duration::from_millis(500);

/// More than these are not remembered, whatever a sentinel says.
const MOST: usize = 32;

/// The sentinels of one master.
#[derive(Debug)]
pub(super) struct Sentinels {
    /// The master's name.
    name: String,
    access: Access,
    timeout: Duration,
    /// Those that we were told of.
    seeds: Vec<Address>,
    /// The seeds, and those that a sentinel told us of.
    all: Mutex<Vec<Arc<Sentinel>>>,
    sockets: Sockets,
}

/// One of them.
#[derive(Debug)]
pub(super) struct Sentinel {
    pub(super) address: Address,
    resolver: Resolver,
    /// Whether it gave no answer when it was asked last. Relaxed: it only decides who is asked first.
    silent: AtomicBool,
}

/// Where the master is, after so many failovers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) address: Address,
    pub(super) epoch: u64,
}

impl Sentinels {
    pub(super) fn new(
        name: String,
        seeds: Vec<Address>,
        access: Access,
        timeout: Duration,
    ) -> Self {
        let all = seeds.iter().cloned().map(Sentinel::new).map(Arc::new).collect();
        let sockets = Sockets::default();
        Self { name, access, timeout, seeds, all: Mutex::new(all), sockets }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The seeds first.
    pub(super) fn all(&self) -> Vec<Arc<Sentinel>> {
        self.all.lock().clone()
    }

    /// Shuts every connection to a sentinel, and refuses those that are being made.
    pub(super) fn shut(&self) {
        self.sockets.shut_all();
    }

    /// Asks until it is clear where the master is. `present` is what is known so far.
    pub(super) fn ask_all(
        &self,
        present: Option<&Said>,
        limit: &mut Limit,
    ) -> Result<Said, Failure> {
        let all = self.all();
        let (silent, awake): (Vec<_>, Vec<_>) =
            all.iter().partition(|sentinel| sentinel.is_silent());
        let mut said = Vec::new();
        let mut why: Option<Failure> = None;
        for group in [awake, silent] {
            let mut unasked = u32::try_from(group.len()).unwrap_or(u32::MAX);
            for sentinel in group {
                let Ok(left) = limit.refresh().left() else { break };
                // One share is for the way to the master.
                let share = left / unasked.saturating_add(1);
                unasked = unasked.saturating_sub(1);
                let mut limit = Limit::after(share.min(LONGEST_SHARE));
                match self.ask(sentinel, None, &mut limit) {
                    Ok((answer, _)) => said.push(answer),
                    Err(failure) => why = Some(more_telling(why, failure)),
                }
                if is_clear(&said, all.len(), present) {
                    break;
                }
            }
            // Those that were silent are asked only if nobody else has said anything new.
            if said.iter().any(|said| present.is_none_or(|present| said.epoch >= present.epoch)) {
                break;
            }
        }
        if said.is_empty() {
            return Err(why.unwrap_or_else(|| self.failure("no time was left to ask a sentinel")));
        }
        decide(&said, all.len(), present).map_err(|reason| self.failure(&reason))
    }

    /// Asks one, on a connection that was kept or a new one. Gives the connection back.
    pub(super) fn ask(
        &self,
        sentinel: &Sentinel,
        kept: Option<Connection>,
        limit: &mut Limit,
    ) -> Result<(Said, Connection), Failure> {
        let asked = kept.map_or_else(|| self.connect(sentinel, limit), Ok).and_then(|mut open| {
            let said = self.question(sentinel, &mut open, limit)?;
            Ok((said, open))
        });
        // Who does not know the name is not silent.
        let answered = asked.is_ok() || matches!(asked, Err(Failure::Refused { .. }));
        sentinel.silent.store(!answered, Ordering::Relaxed);
        asked.map_err(|failure| match failure {
            Failure::Refused { code, message } => Failure::NotSent {
                server: sentinel.address.to_string(),
                reason: format!("the sentinel answered {code} {message}"),
            },
            failure => failure,
        })
    }

    /// A connection that may ask.
    pub(super) fn connect(
        &self,
        sentinel: &Sentinel,
        limit: &mut Limit,
    ) -> Result<Connection, Failure> {
        let era = self.sockets.era();
        let failure = |error| not_sent(&sentinel.address, &error);
        let (peer, access) = (Peer::Tcp(sentinel.address.clone()), &self.access);
        let socket = reach(&peer, access, &sentinel.resolver, self.timeout, limit)
            .map(Arc::new)
            .map_err(failure)?;
        self.sockets.admit(&socket, era).map_err(failure)?;
        let mut connection = Connection::new(socket, self.timeout, era);
        let credentials = access.given();
        if let Some(authentication) = authentication(credentials.as_ref()) {
            limit.refresh();
            connection.send(&authentication, limit).map_err(failure)?;
            let reply = connection.receive(limit).map_err(failure)?;
            if let Value::Refusal { code, message } = reply {
                let refusal = (code, message);
                return Err(refused(&sentinel.address, access, credentials.as_ref(), refusal));
            }
        }
        Ok(connection)
    }

    /// Where the master is, how many failovers that was, and who the other sentinels are: in one round trip.
    fn question(
        &self,
        sentinel: &Sentinel,
        connection: &mut Connection,
        limit: &mut Limit,
    ) -> Result<Said, Failure> {
        let mut packed = Vec::new();
        // The number first: if something changes in between, it is too small for the address and not too large.
        for verb in ["MASTER", "SENTINELS", "GET-MASTER-ADDR-BY-NAME"] {
            packed.extend(Command::of(&["SENTINEL", verb, &self.name]));
        }
        let failure = |error| not_sent(&sentinel.address, &error);
        limit.refresh();
        connection.send(&packed, limit).map_err(failure)?;
        let mut receive = || connection.receive(limit).map_err(failure);
        let (master, others, address) = (receive()?, receive()?, receive()?);
        // Who may ask only where the master is would not know the latest word from an older one, nor anybody else to
        // ask. An error of another kind is said of the address too, or means that the name is not known.
        for answer in [&master, &others] {
            if let Value::Refusal { code, message } = answer
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
            reply => address_in(&reply).ok_or("its answer cannot be read"),
        };
        let address = address.map_err(|reason| {
            let message = format!("{reason}: {}", self.name);
            Failure::Refused { code: "ERR".to_owned(), message }
        })?;
        self.learn(sentinel, &others);
        let epoch = field(&master, "config-epoch").and_then(|epoch| epoch.parse().ok());
        Ok(Said { address, epoch: epoch.unwrap_or(0) })
    }

    /// Takes in whom a sentinel knows. What another said before is forgotten: some may be gone for good.
    fn learn(&self, by: &Sentinel, others: &Value) {
        let Value::Array(others) = others else { return };
        let told = others.iter().filter_map(|other| {
            let port = field(other, "port")?.parse().ok()?;
            Some(Address { host: field(other, "ip")?.to_owned(), port })
        });
        let mut addresses = self.seeds.clone();
        for address in std::iter::once(by.address.clone()).chain(told) {
            if !addresses.contains(&address) && addresses.len() < MOST {
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

    pub(super) fn failure(&self, reason: &str) -> Failure {
        Failure::NotSent { server: self.to_string(), reason: reason.to_owned() }
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

    pub(super) fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed)
    }
}

/// Whether nobody else need be asked.
fn is_clear(said: &[Said], of: usize, present: Option<&Said>) -> bool {
    let Some(last) = said.last() else { return false };
    match present {
        // It has moved. If what is known is said again, others may know better.
        Some(present) => last.epoch > present.epoch && last.address != present.address,
        None => votes(said, last) * 2 > of,
    }
}

fn votes(said: &[Said], candidate: &Said) -> usize {
    said.iter().filter(|other| *other == candidate).count()
}

/// What follows from the answers of some of so many sentinels, or why nothing does.
fn decide(said: &[Said], of: usize, present: Option<&Said>) -> Result<Said, String> {
    let newest = said.iter().map(|said| said.epoch).max().unwrap_or(0);
    let newest: Vec<&Said> = said.iter().filter(|said| said.epoch == newest).collect();
    // Who was set up with another address than the others is outvoted.
    let Some(best) = newest.iter().copied().max_by_key(|candidate| votes(said, candidate)) else {
        return Err("no sentinel has said anything".to_owned());
    };
    let agree = votes(said, best);
    if agree * 2 <= newest.len() {
        let all: Vec<String> = newest.iter().map(|said| said.address.to_string()).collect();
        return Err(format!("the sentinels disagree: {}", all.join(", ")));
    }
    if present.is_some_and(|present| best.epoch < present.epoch) && agree * 2 <= of {
        let old = &best.address;
        return Err(format!("only sentinels answer that know less than was known before: {old}"));
    }
    Ok(best.clone())
}

/// Of two failures the one that says more: what somebody answered, and not that nobody did.
fn more_telling(before: Option<Failure>, failure: Failure) -> Failure {
    match before {
        Some(before @ Failure::Unauthenticated { .. }) => before,
        Some(before @ Failure::NotSent { .. })
            if !matches!(failure, Failure::Unauthenticated { .. }) && says_something(&before) =>
        {
            before
        }
        _ => failure,
    }
}

fn says_something(failure: &Failure) -> bool {
    matches!(failure, Failure::NotSent { reason, .. } if reason.starts_with("the sentinel answered"))
}

fn not_sent(sentinel: &Address, error: &std::io::Error) -> Failure {
    match distrust(error) {
        Some(reason) => Failure::Distrusted { server: sentinel.to_string(), reason },
        None => Failure::NotSent {
            server: sentinel.to_string(),
            reason: format!("a sentinel: {error}"),
        },
    }
}

/// Two words: host and port.
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

    fn said(port: u16, epoch: u64) -> Said {
        Said { address: Address { host: "10.0.0.1".to_owned(), port }, epoch }
    }

    #[test]
    fn who_has_seen_the_latest_failover_is_believed_against_any_number() {
        let all = [said(1, 5), said(2, 6), said(1, 5)];
        assert_eq!(decide(&all, 3, None), Ok(said(2, 6)));
        assert_eq!(decide(&all, 3, Some(&said(1, 5))), Ok(said(2, 6)));
    }

    #[test]
    fn what_is_known_is_not_taken_back_unless_more_than_half_of_all_say_so() {
        let known = said(2, 6);
        assert!(decide(&[said(1, 5)], 3, Some(&known)).is_err());
        assert!(decide(&[said(1, 5), said(3, 4)], 3, Some(&known)).is_err());
        assert_eq!(decide(&[said(1, 0), said(1, 0)], 3, Some(&known)), Ok(said(1, 0)));
        assert_eq!(decide(&[said(1, 0)], 1, Some(&known)), Ok(said(1, 0)));
    }

    #[test]
    fn of_the_same_failover_the_most_are_believed_and_a_tie_is_a_disagreement() {
        assert_eq!(decide(&[said(1, 0), said(2, 0), said(2, 0)], 3, None), Ok(said(2, 0)));
        let reason = decide(&[said(1, 0), said(2, 0)], 2, None).unwrap_err();
        assert_eq!(reason, "the sentinels disagree: 10.0.0.1:1, 10.0.0.1:2");
        assert!(decide(&[said(1, 0), said(2, 0), said(3, 0)], 3, None).is_err());
    }

    #[test]
    fn others_are_asked_until_more_than_half_agree_or_one_knows_better_than_we() {
        assert!(!is_clear(&[said(1, 5)], 3, None));
        assert!(is_clear(&[said(1, 5), said(1, 5)], 3, None));
        assert!(!is_clear(&[said(1, 5), said(1, 5)], 4, None));
        assert!(is_clear(&[said(1, 5)], 1, None));
        let known = said(1, 5);
        assert!(is_clear(&[said(2, 6)], 3, Some(&known)));
        assert!(!is_clear(&[said(2, 5)], 3, Some(&known)));
        assert!(!is_clear(&[said(1, 5), said(1, 5)], 3, Some(&known)));
    }

    #[test]
    fn the_failure_that_is_told_is_what_a_sentinel_answered() {
        let failure =
            |reason: &str| Failure::NotSent { server: "a".to_owned(), reason: reason.to_owned() };
        let (answer, silence) = (failure("the sentinel answered ERR no"), failure("timed out"));
        let (server, reason) = ("b".to_owned(), String::new());
        let refusal = Failure::Unauthenticated { server, reason, passes: false };
        let told = |failures: &[&Failure]| {
            let all = failures.iter().copied().cloned();
            all.fold(None, |before, failure| Some(more_telling(before, failure)))
        };
        let shown = |failure: Option<Failure>| format!("{failure:?}");
        assert_eq!(shown(told(&[&silence, &answer, &silence])), shown(Some(answer.clone())));
        assert_eq!(shown(told(&[&answer, &refusal, &silence])), shown(Some(refusal)));
    }
}
