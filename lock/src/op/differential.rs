//! Every operation against its script: random histories run in memory and on a real server, and each reply, each
//! message and what is stored in the end must be the same.
//!
//! Replies that carry time may differ by what the history took. Time passes on the server by shortening every key's
//! time to live, so that an hour is over at once there too.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use wheellock_fixture::{RawConnection, Reply, Server};

use super::operation::{Argument, Form, Operation};
use super::{Acquire, Exists, ForceRelease, Recount, Release, Renew, Renewal, TimeToLive};
use crate::keyspace::Keyspace;
use crate::lease::Lease;
use crate::name::LockName;
use crate::owner::{ClientId, Owner};
use crate::value::{ServerTime, Value};

/// Few names and owners, so that histories meet.
const NAMES: [&str; 3] = ["a", "{b}c", "ü {x"];
const OWNERS: usize = 3;
/// Leases and steps are whole tens of seconds: far more than a history takes, so no time to live comes out on the
/// other side of a comparison.
const STEP: Duration = Duration::from_secs(10);
const TOLERANCE_MILLIS: i64 = 5000;

#[derive(Clone, Debug)]
enum Action {
    Acquire { name: usize, owner: usize, steps: u32, late: bool },
    Recount { name: usize, owner: usize, count: u32, steps: u32, late: bool },
    Release { name: usize, owner: usize },
    Renew { renewals: Vec<(usize, usize, u32)>, late: bool },
    ForceRelease { name: usize, late: bool },
    Exists { name: usize },
    TimeToLive { name: usize },
    Delete { name: usize },
    PutText { name: usize },
    Persist { name: usize },
    Pass { steps: u32 },
}

fn action() -> impl Strategy<Value = Action> {
    let name = 0..NAMES.len();
    let owner = 0..OWNERS;
    let late = prop::bool::weighted(0.1);
    prop_oneof![
        6 => (name.clone(), owner.clone(), 1..6_u32, late)
            .prop_map(|(name, owner, steps, late)| Action::Acquire { name, owner, steps, late }),
        4 => (name.clone(), owner.clone(), 1..9_u32, 0..6_u32, late).prop_map(
            |(name, owner, count, steps, late)| Action::Recount { name, owner, count, steps, late }
        ),
        3 => (name.clone(), owner.clone()).prop_map(|(name, owner)| Action::Release { name, owner }),
        3 => (prop::collection::vec((name.clone(), owner, 1..6_u32), 1..5), late)
            .prop_map(|(renewals, late)| Action::Renew { renewals, late }),
        1 => (name.clone(), late).prop_map(|(name, late)| Action::ForceRelease { name, late }),
        1 => name.clone().prop_map(|name| Action::Exists { name }),
        2 => name.clone().prop_map(|name| Action::TimeToLive { name }),
        1 => name.clone().prop_map(|name| Action::Delete { name }),
        1 => name.clone().prop_map(|name| Action::PutText { name }),
        1 => name.prop_map(|name| Action::Persist { name }),
        3 => (1..4_u32).prop_map(|steps| Action::Pass { steps }),
    ]
}

/// Both worlds, side by side.
struct Worlds {
    server: RawConnection,
    listener: RawConnection,
    keyspace: Keyspace,
    now: i64,
    owners: Vec<Owner>,
}

impl Worlds {
    fn new(server: &Server) -> Self {
        drop(server.command(&["FLUSHALL"]));
        let mut listener = server.connection();
        drop(listener.command(&["PSUBSCRIBE", "*"]));
        let client = ClientId::random();
        Self {
            server: server.connection(),
            listener,
            keyspace: Keyspace::default(),
            now: 1_000_000_000_000,
            owners: (0..OWNERS).map(|_| client.draw()).collect(),
        }
    }

    fn perform(&mut self, action: &Action) -> Result<(), TestCaseError> {
        let name = |name: usize| LockName::parse(NAMES[name]).unwrap();
        let lease = |steps: u32| Lease::new(STEP * steps).unwrap();
        let owner = |owner: usize| self.owners[owner].clone();
        match action {
            Action::Acquire { name: at, owner: by, steps, late } => {
                let acquire = Acquire { name: name(*at), owner: owner(*by), lease: lease(*steps) };
                self.compare(&acquire, *late)
            }
            Action::Recount { name: at, owner: by, count, steps, late } => {
                let lease = (*steps > 0).then(|| lease(*steps));
                let (name, owner, count) = (name(*at), owner(*by), *count);
                self.compare(&Recount { name, owner, count, lease }, *late)
            }
            Action::Release { name: at, owner: by } => {
                self.compare(&Release::new(name(*at), owner(*by)), false)
            }
            Action::Renew { renewals, late } => {
                let renewals = renewals.iter().map(|&(at, by, steps)| Renewal {
                    name: name(at),
                    owner: owner(by),
                    lease: lease(steps),
                });
                self.compare(&Renew(renewals.collect()), *late)
            }
            Action::ForceRelease { name: at, late } => {
                self.compare(&ForceRelease::new(name(*at)), *late)
            }
            Action::Exists { name: at } => self.compare(&Exists(name(*at)), false),
            Action::TimeToLive { name: at } => self.compare(&TimeToLive(name(*at)), false),
            Action::Delete { name: at } => {
                drop(self.server.command(&["DEL", NAMES[*at]]));
                self.keyspace.delete(NAMES[*at]);
                Ok(())
            }
            Action::PutText { name: at } => {
                drop(self.server.command(&["SET", NAMES[*at], "data"]));
                self.keyspace.text_set(NAMES[*at]);
                Ok(())
            }
            Action::Persist { name: at } => {
                drop(self.server.command(&["PERSIST", NAMES[*at]]));
                self.keyspace.persist(NAMES[*at]);
                Ok(())
            }
            Action::Pass { steps } => {
                self.pass(STEP * *steps);
                Ok(())
            }
        }
    }

    /// Runs one operation in both worlds and compares what came of it.
    fn compare<O: Operation>(&mut self, operation: &O, late: bool) -> Result<(), TestCaseError> {
        let away = if late { -60_000 } else { 3_600_000 };
        let in_memory = operation.apply(&mut self.keyspace, ServerTime(self.now + away));
        let not_after = ServerTime(self.server_time() + away);
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

    fn send<O: Operation>(&mut self, operation: &O, not_after: ServerTime) -> Value {
        let mut words: Vec<String> = match O::FORM {
            Form::Command(verb) => vec![verb.to_owned()],
            Form::Script(script) => vec![
                "EVAL".to_owned(),
                script.source().to_owned(),
                operation.keys().len().to_string(),
            ],
        };
        words.extend(operation.keys().into_iter().map(str::to_owned));
        words.extend(operation.arguments(not_after).into_iter().map(|argument| match argument {
            Argument::Text(text) => text.to_owned(),
            Argument::Number(number) => number.to_string(),
            Argument::Owner(owner) => owner.to_string(),
        }));
        value(self.server.command(&words))
    }

    /// What was published since the last look. The pong comes after every message that was sent before the ping.
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

    fn server_time(&mut self) -> i64 {
        let time = self.server.command(&["TIME"]).texts();
        time[0].parse::<i64>().unwrap() * 1000
    }

    fn pass(&mut self, time: Duration) {
        let millis = i64::try_from(time.as_millis()).unwrap();
        self.now += millis;
        self.keyspace.set_now(ServerTime(self.now));
        for name in NAMES {
            let left = self.server.command(&["PTTL", name]).integer();
            if left >= 0 {
                // Zero or less deletes the key, as its end would.
                drop(self.server.command(&["PEXPIRE", name, &(left - millis).to_string()]));
            }
        }
    }

    fn same_in_the_end(&mut self) -> Result<(), TestCaseError> {
        for name in NAMES {
            let kind = self.server.command(&["TYPE", name]).text();
            let on_server = match kind.as_str() {
                "hash" => self.server.command(&["HGETALL", name]).texts(),
                _ => Vec::new(),
            };
            let mut in_memory = Vec::new();
            for (field, value) in self.keyspace.fields(name) {
                in_memory.extend([field, value]);
            }
            prop_assert_eq!(on_server, in_memory);
            prop_assert_eq!(kind != "none", self.keyspace.exists(name));
        }
        Ok(())
    }
}

fn value(reply: Reply) -> Value {
    match reply {
        Reply::Nil => Value::Nil,
        Reply::Integer(number) => Value::Integer(number),
        Reply::Text(bytes) => Value::Text(String::from_utf8_lossy(&bytes).into_owned()),
        Reply::Array(parts) => Value::Array(parts.into_iter().map(value).collect()),
        Reply::Error(text) => Value::Refusal {
            code: text.split(' ').next().unwrap_or_default().to_owned(),
            message: text,
        },
    }
}

/// Equal, but for times: those may differ by what a history takes, or, if they are moments, by anything.
fn same(left: &Value, right: &Value) -> bool {
    const A_MOMENT: i64 = 500_000_000_000;
    match (left, right) {
        (Value::Integer(left), Value::Integer(right)) if *left > 1000 && *right > 1000 => {
            (left - right).abs() <= TOLERANCE_MILLIS || (*left > A_MOMENT && *right > A_MOMENT)
        }
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len()
                && left.iter().zip(right).all(|(left, right)| same(left, right))
        }
        (Value::Refusal { code: left, .. }, Value::Refusal { code: right, .. }) => left == right,
        _ => left == right,
    }
}

#[test]
fn every_operation_does_in_memory_what_its_script_does_on_a_server() {
    let server = Server::start();
    let config = Config { cases: 256, source_file: Some(file!()), ..Config::default() };
    let histories = prop::collection::vec(action(), 1..60);
    TestRunner::new(config)
        .run(&histories, |history| {
            let mut worlds = Worlds::new(&server);
            worlds.pass(Duration::ZERO);
            for action in &history {
                worlds.perform(action)?;
            }
            worlds.same_in_the_end()
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}
