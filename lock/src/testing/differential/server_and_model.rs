//! A server and a model of it, a keyspace in memory: each operation runs in both, and its
//! reply, its messages and what is stored must be the same.
//!
//! Replies that carry time may differ by what the operation took: the clock in memory follows the
//! server's. Time passes on the server by shortening every key's time to live, and by bringing near
//! the moments in sorted sets, so that an hour is over at once there too.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use wheellock_fixture::{RawConnection, Reply, Server};

use crate::model::name::LockName;
use crate::model::owner::{ClientId, Owner};
use crate::ops::keyspace::Keyspace;
use crate::ops::operation::{Argument, CommandKind, Operation, Request, WRITE};
use crate::ops::request::RequestId;
use crate::ops::value::{ServerTime, Value};
use crate::store::redis::resp::decode::refusal;

/// Leases and steps are whole tens of seconds: far more than an operation takes, so no time to live
/// comes out on the other side of a comparison.
pub(crate) const STEP: Duration = Duration::from_secs(10);
const TOLERANCE_MILLIS: i64 = 5000;
/// Whatever is higher is a moment, and not a length of time.
const A_MOMENT: i64 = 500_000_000_000;
/// Redisson's moment that never comes.
const NEVER: i64 = 922_337_203_685_477;

/// Runs as many random histories of these actions. A failure is recorded beside `file`.
pub(crate) fn run_histories<S: Strategy>(
    cases: u32,
    file: &'static str,
    action: S,
    run: impl Fn(&Server, &[S::Value]) -> Result<(), TestCaseError>,
) {
    let server = Server::start();
    let config = Config { cases, source_file: Some(file), ..Config::default() };
    TestRunner::new(config)
        .run(&prop::collection::vec(action, 1..60), |history| run(&server, &history))
        .unwrap_or_else(|failure| panic!("{failure}"));
}

/// The server and the model.
pub(crate) struct ServerAndModel {
    pub(crate) server: RawConnection,
    listener: RawConnection,
    pub(crate) keyspace: Keyspace,
    /// Without the time that has really passed.
    now: i64,
    /// When the history began, by the server's clock.
    began: i64,
    /// Every key that a history may touch.
    keys: Vec<String>,
    /// Draws the names of requests.
    requests: ClientId,
}

/// A few request sequences, so that histories meet in them.
pub(crate) struct Sequences<const KINDS: usize> {
    client: ClientId,
    /// The last call of each kind in each: what one kind was answered, another could not read.
    last: [[Owner; KINDS]; SEQUENCES],
}

const SEQUENCES: usize = 3;

/// Which call of a sequence is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    sequence: usize,
    /// A copy of the last one of its kind, after which there may have been others.
    is_copy: bool,
}

pub(crate) fn call() -> impl Strategy<Value = Call> {
    (0..SEQUENCES, any::<bool>()).prop_map(|(sequence, is_copy)| Call { sequence, is_copy })
}

impl<const KINDS: usize> Sequences<KINDS> {
    pub(crate) fn new() -> Self {
        let client = ClientId::random();
        let last = std::array::from_fn(|_| std::array::from_fn(|_| client.next_owner()));
        Self { client, last }
    }

    /// The key of each under `name`.
    pub(crate) fn keys(name: &LockName) -> Vec<String> {
        (0..SEQUENCES).map(|sequence| name.request(sequence).to_string()).collect()
    }

    pub(crate) fn request(&mut self, name: &LockName, call: Call, kind: usize) -> RequestId {
        let last = &mut self.last[call.sequence][kind];
        if !call.is_copy {
            *last = self.client.next_owner();
        }
        // Two and a half steps, so that some copies come after it is forgotten.
        RequestId::of(name.request(call.sequence), last.clone(), STEP * 5 / 2)
    }
}

impl ServerAndModel {
    pub(crate) fn new(server: &Server, keys: Vec<String>) -> Self {
        drop(server.command(&["FLUSHALL"]));
        // The server may not have noticed yet that the listener before is gone.
        drop(server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]));
        let mut listener = server.connection();
        drop(listener.command(&["PSUBSCRIBE", "*"]));
        let mut both = Self {
            server: server.connection(),
            listener,
            keyspace: Keyspace::default(),
            now: 1_000_000_000_000,
            began: 0,
            keys,
            requests: ClientId::random(),
        };
        both.began = both.server_time();
        both.pass(Duration::ZERO);
        both
    }

    /// Runs one operation in both and compares what came of it. A `late` one comes after its
    /// not-after.
    pub(crate) fn compare<O: Operation + ?Sized>(
        &mut self,
        operation: &O,
        late: bool,
    ) -> Result<(), TestCaseError> {
        let away = if late { -60_000 } else { 3_600_000 };
        let server_now = self.follow_the_server();
        let not_after = ServerTime(server_now + away);
        let in_memory = operation.run(&mut self.keyspace, ServerTime(self.now + away));
        let on_server = self.send(operation, not_after);
        prop_assert!(
            same(&in_memory, &on_server),
            "{operation:?}: in memory {in_memory:?}, on the server {on_server:?}"
        );
        if in_memory.as_late().is_none() && !matches!(in_memory, Value::Refusal { .. }) {
            prop_assert!(operation.decode(on_server).is_ok());
        }
        let published: Vec<_> = self
            .keyspace
            .take_published()
            .into_iter()
            .map(|publication| (publication.channel, publication.payload))
            .collect();
        prop_assert_eq!(published, self.heard());
        Ok(())
    }

    fn send<O: Operation + ?Sized>(&mut self, operation: &O, not_after: ServerTime) -> Value {
        let Request { kind, keys, arguments, .. } = operation.request();
        let mut words: Vec<Vec<u8>> = match kind {
            CommandKind::Command(verb) => vec![verb.into()],
            CommandKind::Script(script) => {
                vec!["EVAL".into(), script.source().into(), keys.len().to_string().into()]
            }
        };
        words.extend(keys.into_iter().map(Into::into));
        words.extend(arguments.into_iter().map(|argument| match argument {
            Argument::Text(text) => text.into(),
            Argument::Bytes(bytes) => bytes.into(),
            Argument::Owner(owner) => owner.to_string().into(),
            Argument::Writer(owner) => format!("{owner}{WRITE}").into(),
            Argument::Permit(owner) => owner.bytes().to_vec(),
            Argument::Number(number) => number.to_string().into(),
            Argument::Channel(name) => name.channel().as_bytes().to_vec(),
            Argument::NotAfter => not_after.0.to_string().into(),
            Argument::Publish => "PUBLISH".into(),
        }));
        value(self.server.command(&words))
    }

    /// What was published since the last look. The pong comes after every message that was sent
    /// before the ping.
    fn heard(&mut self) -> Vec<(String, String)> {
        self.listener.send(&["PING"]).unwrap();
        let mut heard = Vec::new();
        loop {
            let push = self.listener.receive().unwrap().texts();
            match push.as_slice() {
                [kind, _, channel, payload] if kind == "pmessage" => {
                    heard.push((channel.clone(), payload.clone()));
                }
                _ => return heard,
            }
        }
    }

    /// The server's clock, in milliseconds.
    fn server_time(&mut self) -> i64 {
        let time = self.server.command(&["TIME"]).texts();
        let [seconds, micros] = [0, 1].map(|part: usize| time[part].parse::<i64>().unwrap());
        seconds * 1000 + micros / 1000
    }

    /// Sets the clock in memory to what has passed on the server. Answers the server's.
    pub(crate) fn follow_the_server(&mut self) -> i64 {
        let server_now = self.server_time();
        self.keyspace.set_now(ServerTime(self.now + server_now - self.began));
        server_now
    }

    /// A request that no operation of this history had. What is recorded of it is not compared:
    /// it is another key.
    pub(crate) fn request(&mut self, name: &LockName) -> RequestId {
        let owner = self.requests.next_owner();
        RequestId::of(name.request(&owner), owner, STEP * 60)
    }

    /// Lets time pass in both.
    pub(crate) fn pass(&mut self, time: Duration) {
        let millis = i64::try_from(time.as_millis()).unwrap();
        self.now += millis;
        self.follow_the_server();
        for key in self.keys.clone() {
            let left = self.server.command(&["PTTL", &key]).integer();
            if left >= 0 {
                // Zero or less deletes the key, as its end would.
                drop(self.server.command(&["PEXPIRE", &key, &(left - millis).to_string()]));
            }
            if self.kind(&key) == "zset" {
                for (member, score) in self.members(&key) {
                    if score != NEVER {
                        let less = (-millis).to_string();
                        let words = [b"ZINCRBY", key.as_bytes(), less.as_bytes(), &member];
                        drop(self.server.command(&words));
                    }
                }
            }
        }
    }

    fn kind(&mut self, key: &str) -> String {
        self.server.command(&["TYPE", key]).text()
    }

    /// A sorted set on the server, with its scores.
    fn members(&mut self, key: &str) -> Vec<(Vec<u8>, i64)> {
        match self.server.command(&["ZRANGE", key, "0", "-1", "WITHSCORES"]) {
            Reply::Array(parts) => parts
                .chunks(2)
                .map(|pair| match pair {
                    [Reply::Text(member), Reply::Text(score)] => {
                        let score: f64 = String::from_utf8_lossy(score).parse().unwrap();
                        #[expect(
                            clippy::cast_possible_truncation,
                            reason = "moments in milliseconds"
                        )]
                        (member.clone(), score as i64)
                    }
                    other => panic!("{other:?}"),
                })
                .collect(),
            other => panic!("{other:?}"),
        }
    }

    /// Compares what is stored.
    pub(crate) fn same_in_the_end(&mut self) -> Result<(), TestCaseError> {
        let server_now = self.follow_the_server();
        let now = self.keyspace.now().0;
        for key in self.keys.clone() {
            let kind = self.kind(&key);
            prop_assert_eq!(kind != "none", self.keyspace.exists(&key), "{} is a {}", key, kind);
            let (left, right) =
                (self.server.command(&["PTTL", &key]).integer(), self.keyspace.time_to_live(&key));
            prop_assert!(near(left, right), "{key}: {left} ms on the server, {right} ms in memory");
            match kind.as_str() {
                "hash" => {
                    let on_server = self.server.command(&["HGETALL", &key]).texts();
                    let mut pairs: Vec<(String, String)> = on_server
                        .chunks(2)
                        .map(|pair| (pair[0].clone(), pair[1].clone()))
                        .collect();
                    pairs.sort();
                    let in_memory = self.keyspace.fields(&key);
                    let is_same =
                        |((field, left), (other, right)): (&(_, String), &(_, String))| {
                            let text = |text: &String| Value::Text(text.clone());
                            field == other && same(&text(left), &text(right))
                        };
                    prop_assert!(
                        pairs.len() == in_memory.len() && pairs.iter().zip(&in_memory).all(is_same),
                        "{key}: {pairs:?} on the server, {in_memory:?} in memory"
                    );
                }
                "string" => {
                    let on_server = self.server.command(&["GET", &key]).text();
                    let in_memory = self.keyspace.text_get(&key).unwrap().unwrap_or_default();
                    let same =
                        same(&Value::Text(on_server.clone()), &Value::Text(in_memory.clone()));
                    prop_assert!(
                        same,
                        "{key}: {on_server:?} on the server, {in_memory:?} in memory"
                    );
                }
                "list" => {
                    let on_server = self.server.command(&["LRANGE", &key, "0", "-1"]).texts();
                    prop_assert_eq!(Ok(on_server), self.keyspace.list(&key));
                }
                "zset" => {
                    let mut on_server = self.members(&key);
                    let mut in_memory = self.keyspace.sorted(&key).unwrap();
                    on_server.sort();
                    in_memory.sort();
                    prop_assert_eq!(on_server.len(), in_memory.len());
                    for ((left, left_at), (right, right_at)) in on_server.iter().zip(&in_memory) {
                        prop_assert_eq!(left, right);
                        let never = (*left_at == NEVER, *right_at == NEVER);
                        prop_assert_eq!(never.0, never.1);
                        prop_assert!(
                            never.0 || at_about(left_at - server_now, right_at - now),
                            "{key}: {left_at} of {server_now}, {right_at} of {now}",
                        );
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Times to live, of which the negative ones have meanings.
fn near(left: i64, right: i64) -> bool {
    left == right || at_about(left, right) && (left < 0) == (right < 0)
}

/// Moments, of which one may just have passed.
fn at_about(left: i64, right: i64) -> bool {
    (left - right).abs() <= TOLERANCE_MILLIS
}

fn value(reply: Reply) -> Value {
    match reply {
        Reply::Nil => Value::Nil,
        Reply::Integer(number) => Value::Integer(number),
        Reply::Text(bytes) => Value::Text(String::from_utf8_lossy(&bytes).into_owned()),
        Reply::Array(parts) => Value::Array(parts.into_iter().map(value).collect()),
        Reply::Error(text) => refusal(&text),
    }
}

/// Equal, but for times: those may differ by what a history takes, or, if they are moments, by
/// anything.
fn same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Integer(left), Value::Integer(right)) if *left > 1000 && *right > 1000 => {
            (left - right).abs() <= TOLERANCE_MILLIS || same_moments(*left, *right)
        }
        // Numbers that come as texts.
        (Value::Text(left), Value::Text(right)) => {
            let numbers = (left.parse::<i64>(), right.parse::<i64>());
            left == right || matches!(numbers, (Ok(left), Ok(right)) if same_moments(left, right))
        }
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len()
                && left.iter().zip(right).all(|(left, right)| same(left, right))
        }
        (Value::Refusal { code: left, .. }, Value::Refusal { code: right, .. }) => left == right,
        _ => left == right,
    }
}

/// Two moments of the two clocks, or nothing that is one. What is beyond both clocks is a
/// number.
fn same_moments(left: i64, right: i64) -> bool {
    const BEYOND: i64 = 7_000_000_000_000_000;
    let moment = |number: i64| (A_MOMENT..BEYOND).contains(&number);
    moment(left) && moment(right)
}
