//! The server: it reads requests and runs the operations in memory.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::model::kind::{Kind, Layout};
use crate::model::lease::Lease;
use crate::model::name::LockName;
use crate::model::owner::{ClientId, Owner};
use crate::ops::by_kind::{HoldId, force_release};
use crate::ops::client_record::{ReadClientRecord, WriteClientRecord, client_record_key};
use crate::ops::inspect::Inspect;
use crate::ops::keyspace::{Keyspace, Publication};
use crate::ops::operation::{Script, WRITE};
use crate::ops::read_write::{MODE, Mode};
use crate::ops::revoke::{NAME_WAITS, RevocationRequest, Revoke};
use crate::ops::value::{ServerTime, Value};
use crate::ops::{Operation, Renew, Renewal, RequestId};

/// What a script does, and its text and hash.
type Known = (Verb, &'static Script);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Acquire(Kind),
    Release(Kind),
    SetCount(Kind),
    Renew(Layout),
    ForceRelease,
    Record,
    ReadClientRecord,
    Inspect,
    Revoke,
}

/// A server with its keys, its clock and the scripts that it knows.
pub(crate) struct Server {
    keyspace: Keyspace,
    verbs: Vec<Known>,
    loaded: BTreeSet<&'static str>,
    /// By how much its clock is ahead, in milliseconds.
    clock_offset: i64,
    began: Instant,
    run: u32,
    /// Tells it from the servers beside it.
    port: u16,
    /// The keyspace as it was before the last writes, with the instants of these.
    earlier: Vec<(Instant, Keyspace)>,
}

/// In the year 2001.
const EPOCH: i64 = 1_000_000_000_000;
/// For how long it is remembered what the keyspace was.
const REMEMBERED: Duration = Duration::from_secs(2);

impl Server {
    pub(crate) fn new(port: u16, now: Instant) -> Self {
        Self {
            port,
            keyspace: Keyspace::default(),
            verbs: verbs(),
            loaded: BTreeSet::new(),
            clock_offset: 0,
            began: now,
            run: 1,
            earlier: Vec::new(),
        }
    }

    fn time(&self, now: Instant) -> ServerTime {
        let passed = now.saturating_duration_since(self.began).as_millis();
        ServerTime(EPOCH + i64::try_from(passed).unwrap() + self.clock_offset)
    }

    pub(crate) fn set_clock(&mut self, by: i64) {
        self.clock_offset += by;
    }

    pub(crate) fn flush_scripts(&mut self) {
        self.loaded.clear();
    }

    /// Another run begins, without what was written since `since`, or without any key.
    pub(crate) fn restart(&mut self, since: Option<Instant>) {
        self.run += 1;
        self.loaded.clear();
        let Some(since) = since else {
            self.keyspace = Keyspace::default();
            self.earlier.clear();
            return;
        };
        if let Some(place) = self.earlier.iter().position(|(at, _)| *at >= since) {
            self.keyspace = self.earlier.swap_remove(place).1;
            self.earlier.truncate(place);
        }
    }

    pub(crate) fn migrate(&mut self, key: &str, to: &mut Self, now: Instant) {
        self.keyspace.set_now(self.time(now));
        to.keyspace.set_now(to.time(now));
        self.keyspace.migrate(key, &mut to.keyspace);
    }

    pub(crate) fn delete(&mut self, key: &str) {
        self.keyspace.delete(key);
    }

    /// Whether anybody holds the lock.
    pub(crate) fn is_locked(&mut self, name: &str, now: Instant) -> bool {
        self.keyspace.set_now(self.time(now));
        self.keyspace.exists(name)
    }

    pub(crate) fn keys(&mut self, now: Instant) -> Vec<String> {
        self.keyspace.set_now(self.time(now));
        self.keyspace.keys_like("*")
    }

    pub(crate) fn fields(&mut self, name: &str, now: Instant) -> Vec<(String, String)> {
        self.keyspace.set_now(self.time(now));
        self.keyspace.fields(name)
    }

    /// Whether a writer holds the read-write lock.
    pub(crate) fn is_written(&mut self, name: &str, now: Instant) -> bool {
        let fields = self.fields(name, now);
        fields.iter().any(|(field, mode)| field == MODE && mode == Mode::Write.word())
    }

    /// What the script of a request is for.
    pub(crate) fn verb_of(&self, script: &str) -> String {
        let known = self.known(script);
        known.map_or_else(|| "script".to_owned(), |(verb, _)| format!("{verb:?}"))
    }

    pub(crate) fn is_acquire(&self, script: &str) -> bool {
        matches!(self.known(script), Some((Verb::Acquire(_), _)))
    }

    /// The operation of a script that is given by its text or its hash.
    fn known(&self, script: &str) -> Option<Known> {
        let is_it = |known: &Script| {
            script == known.source() || script.as_bytes() == known.hash().as_slice()
        };
        self.verbs.iter().find(|(_, known)| is_it(known)).copied()
    }

    /// The keys of a command, and how many of them are here.
    pub(crate) fn keys_of<'a>(
        &mut self,
        words: &'a [String],
        now: Instant,
    ) -> (Vec<&'a str>, usize) {
        let [verb, _, number, rest @ ..] = words else { return (Vec::new(), 0) };
        if !verb.starts_with("EVAL") {
            return (Vec::new(), 0);
        }
        let keys: Vec<&str> =
            rest.iter().take(number.parse().unwrap()).map(String::as_str).collect();
        self.keyspace.set_now(self.time(now));
        let here = keys.iter().filter(|key| self.keyspace.exists(key)).count();
        (keys, here)
    }

    /// Runs a command, except those that subscribe. `receivers` counts who gets a message.
    pub(crate) fn run(
        &mut self,
        words: &[String],
        now: Instant,
        receivers: impl Fn(&str) -> usize,
    ) -> (Value, Vec<Publication>) {
        let time = self.time(now);
        self.keyspace.set_now(time);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let value = match *words.as_slice() {
            ["TIME"] => {
                let micros = (time.0 % 1000) * 1000;
                let parts = [(time.0 / 1000).to_string(), micros.to_string()];
                Value::Array(parts.map(Value::Text).to_vec())
            }
            ["INFO"] => {
                let run_id = format!("run-{}-{}", self.port, self.run);
                Value::Text(format!("role:master\r\nrun_id:{run_id}\r\n"))
            }
            ["PING"] => Value::Text("PONG".to_owned()),
            // Whether scripts run, which a client asks when it connects.
            ["EVAL" | "EVALSHA", _, "0"] => Value::Integer(1),
            [verb @ ("EVAL" | "EVALSHA"), script, ref rest @ ..] => {
                let is_text = verb == "EVAL";
                let known = self.known(script);
                let (verb, known) =
                    known.unwrap_or_else(|| panic!("a script of another operation: {words:?}"));
                if is_text {
                    self.loaded.insert(known.source());
                } else if !self.loaded.contains(known.source()) {
                    let message = "No matching script.".to_owned();
                    let refusal = Value::Refusal { code: "NOSCRIPT".to_owned(), message };
                    return (refusal, Vec::new());
                }
                let number: usize = rest[0].parse().unwrap();
                let (keys, arguments) = rest[1..].split_at(number);
                let before = (verb != Verb::Record).then(|| self.keyspace.clone());
                let value = run_script(verb, keys, arguments, &mut self.keyspace);
                self.earlier.extend(before.map(|before| (now, before)));
                self.earlier.retain(|(at, _)| *at + REMEMBERED >= now);
                value
            }
            _ => panic!("an unexpected command: {words:?}"),
        };
        let published = self.keyspace.take_published();
        let value = match (value, published.first()) {
            // In memory nobody is counted.
            (Value::Array(mut parts), Some(message)) if parts.len() == 3 => {
                let count = i64::try_from(receivers(&message.channel)).unwrap();
                parts[2] = Value::Integer(count);
                Value::Array(parts)
            }
            (value, _) => value,
        };
        (value, published)
    }
}

/// The scripts of the operations, found by an example of each.
fn verbs() -> Vec<Known> {
    let client = ClientId::new(Instant::now()).unwrap();
    let (name, owner) = (LockName::parse("a").unwrap(), client.next_owner());
    let lease = Lease::covering(Duration::from_secs(1));
    let hold = |kind| HoldId { kind, name: name.clone(), owner: owner.clone() };
    let of = |verb, operation: &dyn Fn() -> Option<&'static Script>| (verb, operation().unwrap());
    let request = RequestId::of(Arc::from("a"), owner.clone(), Duration::ZERO);
    let force = force_release(Kind::Reentrant, name.clone(), request);
    let record = record_of("a", ["", "0", "0", "0", "0"]);
    let revoke = Revoke::new(client_record_key("a"), &name, None);
    let (read, inspect) = (ReadClientRecord(client_record_key("a")), Inspect::new(&name));
    let acquires = [Kind::Reentrant, Kind::Fair, Kind::Fenced, Kind::Read, Kind::Write];
    let releases = [Kind::Reentrant, Kind::Fair, Kind::Read, Kind::Write];
    let mut all = vec![
        of(Verb::ForceRelease, &|| force.request().script_sent()),
        of(Verb::Record, &|| record.request().script_sent()),
        of(Verb::ReadClientRecord, &|| read.request().script_sent()),
        of(Verb::Inspect, &|| inspect.request().script_sent()),
        of(Verb::Revoke, &|| revoke.request().script_sent()),
    ];
    all.extend(acquires.map(|kind| {
        let acquire = hold(kind).acquire(lease, true, None);
        of(Verb::Acquire(kind), &|| acquire.request().script_sent())
    }));
    all.extend(releases.map(|kind| {
        let release = hold(kind).release();
        of(Verb::Release(kind), &|| release.request().script_sent())
    }));
    all.extend([Kind::Reentrant, Kind::Read].map(|kind| {
        let set_count = hold(kind).set_count(1, None);
        of(Verb::SetCount(kind), &|| set_count.request().script_sent())
    }));
    all.extend([Layout::Counted, Layout::Reader].map(|layout| {
        let renew = Renew::new(layout, Vec::new());
        of(Verb::Renew(layout), &|| renew.request().script_sent())
    }));
    all
}

/// The owner of a field, and whether it is a writer's.
fn owner_of(field: &str) -> (Owner, bool) {
    let writer = field.strip_suffix(WRITE);
    (Owner::of_text(writer.unwrap_or(field)).unwrap(), writer.is_some())
}

fn run_script(verb: Verb, keys: &[&str], arguments: &[&str], keyspace: &mut Keyspace) -> Value {
    let name = LockName::parse(keys[0]).unwrap();
    let hold = |kind, field: &str| {
        let (owner, is_writer) = owner_of(field);
        // One script writes the counts of writers and of other owners.
        let kind = if is_writer { Kind::Write } else { kind };
        HoldId { kind, name: name.clone(), owner }
    };
    let millis = |text: &str| {
        let millis: i64 = text.parse().unwrap();
        u64::try_from(millis).ok().map(Duration::from_millis)
    };
    let lease = |text: &str| {
        millis(text).filter(|lease| !lease.is_zero()).map(|lease| Lease::new(lease).unwrap())
    };
    let not_after = || ServerTime(arguments[0].parse().unwrap());
    match (verb, arguments) {
        (Verb::Acquire(Kind::Reentrant), [_, owner, asked, "1"]) => {
            let acquire = hold(Kind::Reentrant, owner).acquire_from_holder(lease(asked).unwrap());
            acquire.run(keyspace, not_after())
        }
        (Verb::Acquire(kind), [_, owner, asked, rest @ ..]) => {
            let waits = kind != Kind::Fair || rest[0] == "1";
            let under = rest.first().filter(|under| kind == Kind::Read && !under.is_empty());
            let under = under.map(|under| owner_of(under).0);
            let acquire = hold(kind, owner).acquire(lease(asked).unwrap(), waits, under.as_ref());
            acquire.run(keyspace, not_after())
        }
        (Verb::Release(kind), [owner, ..]) => {
            hold(kind, owner).release().run(keyspace, ServerTime(i64::MAX))
        }
        (Verb::SetCount(kind), [_, owner, count, asked]) => {
            let hold = hold(kind, owner);
            hold.set_count(count.parse().unwrap(), lease(asked)).run(keyspace, not_after())
        }
        (Verb::Renew(layout), [_, pairs @ ..]) => {
            let are_writers = pairs.first().is_some_and(|field| owner_of(field).1);
            let layout = if are_writers { Layout::Writer } else { layout };
            let renewals = keys.iter().zip(pairs.chunks(2)).map(|(key, pair)| Renewal {
                name: LockName::parse(key).unwrap(),
                owner: owner_of(pair[0]).0,
                lease: lease(pair[1]).unwrap(),
            });
            Renew::new(layout, renewals.collect()).run(keyspace, not_after())
        }
        (Verb::ForceRelease, [_, _, _, number, lifetime]) => {
            // Of an owner only the number counts here.
            let client = ClientId::new(Instant::now()).unwrap();
            let owner = Owner::of_text(&format!("{client}:{number}")).unwrap();
            let request = RequestId::of(Arc::from(keys[2]), owner, millis(lifetime).unwrap());
            let release = force_release(Kind::Reentrant, name, request);
            release.run(keyspace, not_after())
        }
        (Verb::Revoke, [_, NAME_WAITS]) => {
            Revoke::name_waits(Arc::from(keys[0])).run(keyspace, ServerTime(i64::MAX))
        }
        (Verb::Revoke, [_, message]) => {
            let request = RevocationRequest::parse(message).unwrap();
            let revoke = Revoke::new(Arc::from(keys[0]), &request.name, request.reason);
            revoke.run(keyspace, ServerTime(i64::MAX))
        }
        (Verb::Record, [_, label, process, age, lifetime, caches, rest @ ..]) => {
            let mut record = record_of(keys[0], [label, process, age, lifetime, caches]);
            // No leader of a simulated client says anything of itself.
            record.waits = rest.get(1).map(|waits| (*waits).to_owned());
            record.run(keyspace, not_after())
        }
        (Verb::ReadClientRecord, _) => {
            ReadClientRecord(Arc::from(keys[0])).run(keyspace, ServerTime(i64::MAX))
        }
        (Verb::Inspect, _) => Inspect::new(&name).run(keyspace, ServerTime(i64::MAX)),
        _ => panic!("other arguments: {verb:?} {arguments:?}"),
    }
}

fn record_of(key: &str, [label, process, age, lifetime, caches]: [&str; 5]) -> WriteClientRecord {
    let millis = |text: &str| Duration::from_millis(text.parse().unwrap());
    WriteClientRecord {
        key: if key == "a" { client_record_key(key) } else { Arc::from(key) },
        label: Arc::from(label),
        process: process.parse().unwrap(),
        age: millis(age),
        lifetime: millis(lifetime),
        caches: caches == "1",
        values: Vec::new(),
        waits: None,
    }
}

/// The bytes of a reply.
pub(crate) fn encode(value: &Value, bytes: &mut Vec<u8>) {
    let text = match value {
        Value::Nil => "$-1\r\n".to_owned(),
        Value::Integer(number) => format!(":{number}\r\n"),
        Value::Text(text) => format!("${}\r\n{text}\r\n", text.len()),
        Value::Refusal { code, message } => format!("-{code} {message}\r\n"),
        Value::Array(parts) => {
            bytes.extend(format!("*{}\r\n", parts.len()).bytes());
            parts.iter().for_each(|part| encode(part, bytes));
            return;
        }
    };
    bytes.extend(text.bytes());
}
