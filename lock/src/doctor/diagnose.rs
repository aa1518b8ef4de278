//! Queries the server, and assembles the checks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::admin::status::HolderKind;
use crate::client::client::Client;
use crate::core::client_core::ClientCore;
use crate::doctor::diagnosis::{Check, CheckState, Diagnosis};
use crate::doctor::measure::{self, now};
use crate::doctor::permissions::{Missing, NO_OPERATION, Question, Questions, Setting};
use crate::doctor::rules::{self, ClockReadings, Facts, Failover, Replication};
use crate::error::Error;
use crate::model::settings::Replicas;
use crate::ops::value::Value;
use crate::store::redis::net::deadline::Deadline;
use crate::store::redis::resp::encode::Command;
use crate::store::redis::resp::hash_slot::hash_slot_of;
use crate::store::{Failure, ServerId, Store};

/// The start of the names of the scratch keys, after the client's prefix.
const SCRATCH: &str = "wheellock_doctor:";

/// Two names in different hash slots, unless the client's prefix has a hash tag.
const IN_TWO_HASH_SLOTS: [&str; 2] = ["wheellock_doctor:1", "wheellock_doctor:2"];

/// Settings to read, each with its own `CONFIG GET`: Redis before 7.0 accepts a single name.
const SETTINGS: [&str; 6] =
    ["maxmemory-policy", "save", "appendfsync", "timeout", "tcp-keepalive", "cluster-node-timeout"];

/// The number of consecutive readings of the clock, of which the quickest counts.
const READINGS: usize = 5;

/// The largest number of connections for which `CLIENT LIST` is sent. With more connections, the
/// reply may exceed the largest reply.
const MOST_CONNECTIONS: u64 = 1_500;

/// The duration of the search for locks of Redisson.
const LOOK_FOR: Duration = Duration::from_millis(300);
/// The maximum number of locks inspected in the search for locks of Redisson.
const MOST_LOCKS: usize = 200;

impl Client {
    /// Checks the conditions on which locks depend, and returns the findings.
    ///
    /// The checks cover server and version, this user's permissions, eviction, persistence,
    /// replicas, the time of a failover against the lease, the rate of the server's clock, latency,
    /// the closing of idle connections, and clients of Redisson. The call is for operators, before
    /// a program uses a server and when the server is slow. For the health check of a service, use
    /// [`ping`](Self::ping).
    ///
    /// The call takes one to two seconds if the server answers quickly. The call writes a few keys,
    /// which begin with this client's [prefix](Self::with_prefix) and `wheellock_doctor:`, live for
    /// five seconds at most, and are deleted at the end. No setting is changed. Each command
    /// forbidden to this user is called once on each server, in a form without an effect, and so
    /// appears in the server's `ACL LOG`. Acquires of the scratch lock count in
    /// [`stats`](Self::stats). A second client with separate connections exists during the call.
    ///
    /// In a cluster the call queries each master, and reports the worst result of each check.
    /// Exceptions are the clock, which is read on one master, and latency and hand-overs, which are
    /// measured with the scratch lock, on the master of its hash slot. If the server refuses to
    /// report a value, such as a setting of a managed service without `CONFIG`, the check is
    /// [`CheckState::NotChecked`]. Without a version or an eviction policy, the check is
    /// [`CheckState::Warn`]; without the server's time, the check is [`CheckState::Fail`]. In
    /// memory the only check is `connection`.
    ///
    /// ```no_run
    /// use wheellock::{CheckState, Client};
    ///
    /// let diagnosis = Client::connect("redis://127.0.0.1/")?.diagnose()?;
    /// for check in diagnosis.checks.iter().filter(|check| check.state >= CheckState::Warn) {
    ///     eprintln!("{}: {} {:?}", check.name, check.found, check.repair);
    /// }
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// A failed check is no error. The call returns an error if a server cannot be queried at all;
    /// [`Diagnosis::from_error`] converts the error to a diagnosis.
    ///
    /// * [`Error::Unreachable`] - a server cannot be reached, or has not answered within the
    ///   [command timeout](crate::ClientBuilder::command_timeout). Transient.
    /// * [`Error::Authentication`], [`Error::Tls`], [`Error::Refused`] - a server refused the user,
    ///   the TLS handshake failed, or a server refused the query.
    /// * [`Error::InvalidUrl`] - the server does not fit the URL, such as a node of a cluster.
    ///   Permanent.
    /// * [`Error::InvalidName`] - the prefix is too long. Permanent.
    /// * [`Error::Shutdown`] - the client was shut down. Permanent.
    /// * [`Error::Forked`] - this process is a fork of the client's. Permanent.
    pub fn diagnose(&self) -> Result<Diagnosis, Error> {
        let core = self.core.running()?;
        match core.ping() {
            // `PING` is among the checked permissions.
            Err(Error::Refused { code, .. }) if code == "NOPERM" => {}
            answer => answer?,
        }
        let connection = Check::ok("connection", format!("connected to {}", core.server()));
        if matches!(&*core.store, Store::Memory(_)) {
            return Ok(Diagnosis::of(vec![connection]));
        }
        let name = format!("{SCRATCH}{}", core.id);
        let scratch = self.prefix.name(&name)?;
        let servers = core.store.servers();
        let lease = core.settings.watchdog_lease.duration();

        // 1. The facts of each server, and this user's permissions.
        let failover = failover_of(&core);
        let setting = Setting {
            sentinel: matches!(failover, Failover::Sentinel { .. }),
            cluster: matches!(failover, Failover::Cluster),
            replica_acks: core.settings.replica_acks,
            sharded_channels: true,
        };
        let mut missing = Missing::of_user(core.user());
        let mut facts = Vec::new();
        for server in &servers {
            let of_server = facts_of(&core, *server)?;
            let sharded_channels = rules::has_sharded_channels(&of_server);
            facts.push(of_server);
            let setting = Setting { sharded_channels, ..setting };
            let questions = Questions::new(&scratch, &self.names(), setting);
            ask_permissions(&core, *server, &questions, &mut missing)?;
        }

        // 2. The locks, between two readings of the clock.
        let first = servers.first().copied().unwrap_or(ServerId::ONLY);
        let before = read_clock(&core, first);
        let latency = self.latency(&name, core.settings.command_timeout);
        let clock = rules::clock(readings(before, read_clock(&core, first)));
        let hand_over = match latency.state {
            CheckState::Fail => Check::not_checked("hand_over", "locks do not work"),
            _ => self.hand_over(&core, &name),
        };

        // 3. All checks together.
        let replication = Replication {
            fails_over: setting.sentinel,
            acks: core.settings.replica_acks.and_then(|acks| match acks.wanted {
                Replicas::AtLeast(wanted) => Some(wanted),
                Replicas::AllConnected => None,
            }),
        };
        let of_all = |rule: &dyn Fn(&Facts) -> Check| {
            let addresses = servers.iter().map(|id| core.store.address_of(*id).unwrap_or_default());
            rules::merge(addresses.zip(facts.iter().map(rule)).collect())
        };
        let topology = topology(&core, failover, &servers, self.separates_hash_slots(&core, first));
        let checks = [
            Some(connection),
            of_all(&rules::server),
            Some(topology),
            Some(missing.check_lock()),
            Some(missing.check_others()),
            of_all(&rules::eviction),
            of_all(&rules::persistence),
            of_all(&|facts| rules::replicas(facts, replication)),
            of_all(&|facts| rules::failover(facts, failover, lease)),
            Some(clock),
            Some(latency),
            Some(hand_over),
            of_all(&|facts| rules::idle(facts, lease)),
            Some(self.redisson(&core, &servers, &facts)),
        ];
        Ok(Diagnosis::of(checks.into_iter().flatten().collect()))
    }

    /// Returns the pattern of names which this client's user should be permitted.
    fn names(&self) -> String {
        match self.prefix.pattern("*") {
            // Without a prefix the names of the program's locks are unknown.
            all if all == "*" => format!("{SCRATCH}*"),
            names => names,
        }
    }

    /// Measures pairs of lock and unlock of the scratch lock `name`, and returns the check of the
    /// times. An error of a pair is a failed check.
    fn latency(&self, name: &str, command_timeout: Duration) -> Check {
        match measure::pairs(self, name) {
            Ok(mut times) => rules::latency(&mut times, command_timeout),
            Err(error) => {
                let repair = "see the other checks: no lock can be acquired and released";
                Check::fail("latency", error.to_string(), repair)
            }
        }
    }

    /// Measures hand-overs of the scratch lock `name` to a second client, which exists during the
    /// call, and returns the check of the times. An error is a failed check.
    fn hand_over(&self, core: &ClientCore, name: &str) -> Check {
        let rival = core.twin().map(|rival| Self::new(Arc::new(rival), self.prefix.clone()));
        match rival.and_then(|rival| measure::hand_overs(self, &rival, name)) {
            Ok(mut times) => rules::hand_over(&mut times),
            Err(error) => {
                let repair = "see the other checks: no waiter gets the lock";
                Check::fail("hand_over", error.to_string(), repair)
            }
        }
    }

    /// Runs a script without effect on two keys of different hash slots, and returns whether
    /// `server` refuses the keys together, as a cluster does. Returns `None` if the script fails
    /// for another reason, or if the prefix is invalid or has a hash tag, which puts all keys of
    /// this client into one hash slot.
    fn separates_hash_slots(&self, core: &ClientCore, server: ServerId) -> Option<bool> {
        let [one, other] = IN_TWO_HASH_SLOTS.map(|name| self.prefix.name(name).ok());
        let (one, other) = (one?, other?);
        if hash_slot_of(one.as_str()) == hash_slot_of(other.as_str()) {
            return None;
        }
        let words = ["EVAL", NO_OPERATION, "2", one.as_str(), other.as_str()];
        match ask(core, server, &[Command::of(&words)]).ok()?.pop()? {
            Value::Refusal { code, .. } if code == "CROSSSLOT" => Some(true),
            Value::Refusal { .. } => None,
            _ => Some(false),
        }
    }

    /// Searches for clients of Redisson, by the names of connections and the holders of locks, and
    /// returns the check with both numbers.
    ///
    /// Redisson up to 4.7 does not send the library's name to the server.
    fn redisson(&self, core: &ClientCore, servers: &[ServerId], facts: &[Facts]) -> Check {
        const NAME: &str = "redisson";
        let mut connections = 0;
        for (server, facts) in servers.iter().zip(facts) {
            connections += named_connections(core, *server, facts);
        }
        let deadline = now() + LOOK_FOR;
        let (mut looked, mut held) = (0, 0);
        let mut refusal = None;
        let mut locks = self.locks("*");
        while now() < deadline && looked < MOST_LOCKS {
            match locks.next() {
                Some(Ok(status)) => {
                    looked += 1;
                    let is_java = status.holders.iter().any(|one| one.kind == HolderKind::Redisson);
                    held += usize::from(is_java);
                }
                Some(Err(error)) => {
                    refusal = Some(error);
                    break;
                }
                None => break,
            }
        }
        match (connections, held, refusal) {
            (0, 0, Some(error)) => Check::not_checked(NAME, format!("no lock is seen: {error}")),
            (0, 0, None) => {
                Check::ok(NAME, format!("holds none of the {looked} locks that were seen"))
            }
            (connections, held, _) => Check::ok(
                NAME,
                format!(
                    "is there: holds {held} of the {looked} locks that were seen, {connections} \
                     connections have its name"
                ),
            ),
        }
    }
}

/// Sends `commands` to one server, once, and returns a value or refusal for each command. Returns
/// no values in memory.
fn ask(core: &ClientCore, server: ServerId, commands: &[Vec<u8>]) -> Result<Vec<Value>, Failure> {
    ask_and(core, server, commands, false)
}

/// Sends `commands` as [`ask`] does. With `close`, closes the connection afterwards, for commands
/// that leave the connection subscribed.
fn ask_and(
    core: &ClientCore,
    server: ServerId,
    commands: &[Vec<u8>],
    close: bool,
) -> Result<Vec<Value>, Failure> {
    let generation = core.waits.shutdown().generation();
    core.store.ask_server(server, commands, close, core.settings.command_timeout, generation)
}

/// Converts a failed query to the error of the diagnosis.
fn failed(failure: Failure) -> Error {
    failure.into_error_without_name("diagnose")
}

/// Reads `INFO` and the [`SETTINGS`] of `server`. A refused command leaves the facts out.
fn facts_of(core: &ClientCore, server: ServerId) -> Result<Facts, Error> {
    let mut commands = vec![Command::of(&["INFO"])];
    commands.extend(SETTINGS.map(|name| Command::of(&["CONFIG", "GET", name])));
    let replies = ask(core, server, &commands).map_err(failed)?;
    let mut facts = Facts::default();
    let mut replies = replies.iter();
    if let Some(info) = replies.next() {
        facts.learn_info(info);
    }
    replies.for_each(|setting| facts.learn_config(setting));
    Ok(facts)
}

/// Sends the questions to `server`, and adds the permissions that the user lacks there to
/// `missing`. Stores the user's name, if the server reports the name.
fn ask_permissions(
    core: &ClientCore,
    server: ServerId,
    questions: &Questions,
    missing: &mut Missing,
) -> Result<(), Error> {
    let pack = |question: &Question| {
        Command::of(&question.words.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let mut commands = vec![Command::of(&["ACL", "WHOAMI"])];
    commands.extend(questions.first.iter().map(pack));
    let mut replies = ask(core, server, &commands).map_err(failed)?.into_iter();
    if let Some(Value::Text(user)) = replies.next() {
        missing.user = Some(user);
    }
    let replies: Vec<Value> = replies.collect();
    missing.learn(&questions.first, &replies);
    // The text exists, or another server owns the key. Otherwise the commands would create the key.
    let text = replies.first();
    let is_safe = match text {
        Some(Value::Text(made)) => made == "OK",
        Some(Value::Refusal { code, .. }) => code == "MOVED",
        _ => false,
    };
    let is_refused =
        text.zip(questions.first.first()).is_some_and(|(text, set)| set.is_refused(text));
    if is_refused {
        missing.add_all(&questions.on_text);
    }
    let on_text: &[Question] = if is_safe { &questions.on_text } else { &[] };
    let commands: Vec<_> = on_text.iter().chain(&questions.last).map(pack).collect();
    let replies = ask_and(core, server, &commands, true).map_err(failed)?;
    let (first, last) = replies.split_at(on_text.len().min(replies.len()));
    missing.learn(on_text, first);
    missing.learn(&questions.last, last);
    Ok(())
}

/// Returns the mechanism of failover known to the client. Behind sentinels, asks a sentinel for the
/// time to detect a failure.
fn failover_of(core: &ClientCore) -> Failover {
    match &*core.store {
        Store::Memory(_) => Failover::None,
        Store::Single(node) => node.server().master().map_or(Failover::None, |master| {
            let mut deadline = Deadline::after(core.settings.command_timeout);
            let down_after = master.sentinels.down_after(&mut deadline);
            Failover::Sentinel { down_after, sentinels: master.sentinels.all().len() }
        }),
        Store::Cluster(_) => Failover::Cluster,
    }
}

/// Returns the check that describes the client's servers: a cluster, a master behind sentinels, or
/// one address. `separates_hash_slots` says whether the address refuses keys of two hash slots.
fn topology(
    core: &ClientCore,
    failover: Failover,
    servers: &[ServerId],
    separates_hash_slots: Option<bool>,
) -> Check {
    const NAME: &str = "topology";
    match failover {
        Failover::Cluster => Check::ok(NAME, format!("a cluster of {} masters", servers.len())),
        Failover::Sentinel { sentinels, .. } => {
            Check::ok(NAME, format!("a master that {sentinels} sentinels know"))
        }
        Failover::None
            if separates_hash_slots == Some(true) || core.store.separates_hash_slots() =>
        {
            Check::ok(
                NAME,
                "a cluster behind one address: locks with a common tag, as {orders}:42, are renewed \
                 together",
            )
        }
        Failover::None if separates_hash_slots.is_none() => {
            Check::ok(NAME, "one address; whether there is a cluster behind it is not known")
        }
        Failover::None => Check::ok(NAME, "one server"),
    }
}

/// The server's time since the Unix epoch, and the instants of the query and the reply.
type Reading = (Duration, Instant, Instant);

/// Reads the server's clock [`READINGS`] times and returns the quickest reading, which is the most
/// accurate. Returns `None` if the first reading fails.
fn read_clock(core: &ClientCore, server: ServerId) -> Option<Reading> {
    let readings = (0..READINGS).map_while(|_| read_clock_once(core, server));
    readings.min_by_key(|(_, asked, answered)| answered.saturating_duration_since(*asked))
}

/// Reads the server's clock with one `TIME`. Returns `None` if the server does not report the time.
fn read_clock_once(core: &ClientCore, server: ServerId) -> Option<Reading> {
    let time = Command::of(&["TIME"]);
    let asked = now();
    let reply = ask(core, server, &[time]).ok()?.pop()?;
    let answered = now();
    let Value::Array(parts) = reply else { return None };
    let [Value::Text(seconds), Value::Text(micros)] = parts.as_slice() else { return None };
    let time = Duration::from_secs(seconds.parse().ok()?)
        .checked_add(Duration::from_micros(micros.parse().ok()?))?;
    Some((time, asked, answered))
}

/// Combines two readings to the elapsed times. Returns `None` if a reading is missing or the
/// server's clock was set back.
fn readings(first: Option<Reading>, second: Option<Reading>) -> Option<ClockReadings> {
    let ((one, asked, answered), (other, asked_again, answered_again)) = (first?, second?);
    Some(ClockReadings {
        server: other.checked_sub(one)?,
        shortest: asked_again.saturating_duration_since(answered),
        longest: answered_again.saturating_duration_since(asked),
    })
}

/// Returns the number of connections to `server` with Redisson's name; 0 if the list would be too
/// long or is refused.
fn named_connections(core: &ClientCore, server: ServerId, facts: &Facts) -> usize {
    let clients = facts.info("connected_clients").and_then(|number| number.parse::<u64>().ok());
    if clients.is_none_or(|clients| clients > MOST_CONNECTIONS) {
        return 0;
    }
    let list = ask(core, server, &[Command::of(&["CLIENT", "LIST"])]);
    let Some(Value::Text(list)) = list.ok().and_then(|mut replies| replies.pop()) else { return 0 };
    list.lines().filter(|line| says_redisson(line)).count()
}

/// Returns whether a line of `CLIENT LIST` has Redisson's name, as the name of the library or of
/// the connection.
fn says_redisson(connection: &str) -> bool {
    connection.split(' ').any(|field| {
        let named = field.strip_prefix("lib-name=").or_else(|| field.strip_prefix("name="));
        named.is_some_and(|name| name.to_lowercase().contains("redisson"))
    })
}
