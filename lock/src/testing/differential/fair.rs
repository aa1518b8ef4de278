//! Histories of the fair lock, with strangers in its queue that Redisson or an accident may have
//! left.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use wheellock_fixture::Server;

use crate::model::kind::{Kind, Layout};
use crate::model::lease::{DEFAULT, Lease};
use crate::model::name::LockName;
use crate::model::owner::{ClientId, Owner};
use crate::ops::by_kind::HoldId;
use crate::ops::fair::{FairAcquire, FairForceRelease, FairRelease};
use crate::ops::keyspace::Keyspace;
use crate::ops::operation::Operation;
use crate::ops::set_count::SetCount;
use crate::ops::value::{ServerTime, Value};
use crate::testing::differential::server_and_model::{STEP, ServerAndModel, run_histories};

const NAMES: [&str; 2] = ["a", "ü {x"];
const OWNERS: usize = 4;
const STRANGERS: usize = 3;

/// How long a waiter counts as live after it asked, and how long it sleeps at most.
const LIVENESS: i64 = 30_000;
const LONGEST_AGE: i64 = 5_000;

#[derive(Clone, Debug)]
enum Action {
    Acquire {
        name: usize,
        owner: usize,
        steps: u32,
        waits: bool,
        late: bool,
    },
    SetCount {
        name: usize,
        owner: usize,
        count: u32,
    },
    Release {
        name: usize,
        owner: usize,
    },
    Keep {
        name: usize,
        owner: usize,
        steps: u32,
    },
    ForceRelease {
        name: usize,
        late: bool,
    },
    /// A stranger is in the queue. Its deadline is never a whole number of steps away, as ours are.
    Stranger {
        name: usize,
        stranger: usize,
        steps: u32,
    },
    /// A place without a deadline.
    OnlyInList {
        name: usize,
        stranger: usize,
    },
    /// A deadline without a place.
    OnlyInSet {
        name: usize,
        owner: usize,
    },
    DropPlace {
        name: usize,
        owner: usize,
    },
    DropDeadline {
        name: usize,
        owner: usize,
    },
    Delete {
        name: usize,
    },
    PutText {
        name: usize,
    },
    /// Foreign data where list or set should be.
    PutQueueText {
        name: usize,
        in_list: bool,
    },
    DeleteQueue {
        name: usize,
    },
    Pass {
        steps: u32,
    },
}

fn action() -> impl Strategy<Value = Action> {
    let name = 0..NAMES.len();
    let owner = 0..OWNERS;
    let stranger = 0..STRANGERS;
    let late = prop::bool::weighted(0.1);
    let waits = prop::bool::weighted(0.8);
    prop_oneof![
        12 => (name.clone(), owner.clone(), 1..6_u32, waits, late).prop_map(
            |(name, owner, steps, waits, late)| Action::Acquire { name, owner, steps, waits, late }
        ),
        1 => (name.clone(), owner.clone(), 1..9_u32)
            .prop_map(|(name, owner, count)| Action::SetCount { name, owner, count }),
        8 => (name.clone(), owner.clone()).prop_map(|(name, owner)| Action::Release { name, owner }),
        3 => (name.clone(), owner.clone(), 1..6_u32)
            .prop_map(|(name, owner, steps)| Action::Keep { name, owner, steps }),
        1 => (name.clone(), late).prop_map(|(name, late)| Action::ForceRelease { name, late }),
        3 => (name.clone(), stranger.clone(), 1..40_u32)
            .prop_map(|(name, stranger, steps)| Action::Stranger { name, stranger, steps }),
        1 => (name.clone(), stranger).prop_map(|(name, stranger)| Action::OnlyInList { name, stranger }),
        1 => (name.clone(), owner.clone()).prop_map(|(name, owner)| Action::OnlyInSet { name, owner }),
        1 => (name.clone(), owner.clone()).prop_map(|(name, owner)| Action::DropPlace { name, owner }),
        1 => (name.clone(), owner).prop_map(|(name, owner)| Action::DropDeadline { name, owner }),
        1 => name.clone().prop_map(|name| Action::Delete { name }),
        1 => name.clone().prop_map(|name| Action::PutText { name }),
        1 => (name.clone(), prop::bool::ANY)
            .prop_map(|(name, in_list)| Action::PutQueueText { name, in_list }),
        2 => name.prop_map(|name| Action::DeleteQueue { name }),
        4 => (1..4_u32).prop_map(|steps| Action::Pass { steps }),
    ]
}

fn parsed(name: usize) -> LockName {
    LockName::parse(NAMES[name]).unwrap()
}

fn lease(steps: u32) -> Lease {
    // One step is cut to a lease that is shorter than the longest sleep.
    if steps == 1 { Lease::new(STEP / 4).unwrap() } else { Lease::new(STEP * steps).unwrap() }
}

/// The server and the model, and the owners that act in them.
struct Actors {
    both: ServerAndModel,
    owners: Vec<Owner>,
}

impl Actors {
    fn new(server: &Server) -> Self {
        let client = ClientId::random();
        let keys = (0..NAMES.len()).flat_map(|name| {
            let name = parsed(name);
            let (queue, deadlines) = (name.queue().to_string(), name.queue_deadlines().to_string());
            [name.as_str().to_owned(), queue, deadlines]
        });
        Self {
            both: ServerAndModel::new(server, keys.collect()),
            owners: (0..OWNERS).map(|_| client.next_owner()).collect(),
        }
    }

    fn compare<O: Operation>(&mut self, operation: &O, late: bool) -> Result<(), TestCaseError> {
        self.both.compare(operation, late)
    }

    /// A member with a deadline `steps` and a half steps away.
    fn put_deadline(&mut self, name: usize, member: &str, steps: u32) {
        let key = parsed(name).queue_deadlines();
        let away = i64::try_from((STEP * steps + STEP / 2).as_millis()).unwrap();
        let on_server = (self.both.follow_the_server() + away).to_string();
        drop(self.both.server.command(&["ZADD", &key, &on_server, member]));
        let in_memory = self.both.keyspace.now().0 + away;
        let _set = self.both.keyspace.sorted_set(&key, member.as_bytes(), in_memory);
    }

    fn put_place(&mut self, name: usize, member: &str) {
        let key = parsed(name).queue();
        drop(self.both.server.command(&["RPUSH", &key, member]));
        let _pushed = self.both.keyspace.list_push(&key, member);
    }

    fn perform(&mut self, action: &Action) -> Result<(), TestCaseError> {
        let owner = |owner: usize| self.owners[owner].clone();
        let stranger = |stranger: usize| format!("stranger:{stranger}");
        match *action {
            Action::Acquire { name, owner: by, steps, waits, late } => {
                self.compare(&FairAcquire::new(parsed(name), owner(by), lease(steps), waits), late)
            }
            Action::SetCount { name, owner: by, count } => {
                let (name, owner, layout) = (parsed(name), owner(by), Layout::Counted);
                self.compare(&SetCount { name, owner, count, lease: None, layout }, false)
            }
            Action::Release { name, owner: by } => {
                self.compare(&FairRelease::new(parsed(name), owner(by)), false)
            }
            Action::Keep { name, owner: by, steps } => {
                let id = HoldId { kind: Kind::Fair, name: parsed(name), owner: owner(by) };
                self.compare(&id.keep(STEP * steps), false)
            }
            Action::ForceRelease { name, late } => {
                let request = self.both.request(&parsed(name));
                let force = FairForceRelease::new(parsed(name), request);
                self.compare(&force, late)?;
                self.compare(&force, late)
            }
            Action::Stranger { name, stranger: who, steps } => {
                let key = parsed(name).queue();
                let queue = self.both.keyspace.list(&key).unwrap_or_default();
                if !queue.contains(&stranger(who)) {
                    self.put_place(name, &stranger(who));
                }
                self.put_deadline(name, &stranger(who), steps);
                Ok(())
            }
            Action::OnlyInList { name, stranger: who } => {
                self.put_place(name, &stranger(who));
                Ok(())
            }
            Action::OnlyInSet { name, owner: who } => {
                let member = owner(who).to_string();
                self.put_deadline(name, &member, 7);
                Ok(())
            }
            Action::DropPlace { name, owner: who } => {
                let (key, member) = (parsed(name).queue(), owner(who).to_string());
                drop(self.both.server.command(&["LREM", &key, "0", &member]));
                let _removed = self.both.keyspace.list_remove(&key, &member);
                Ok(())
            }
            Action::DropDeadline { name, owner: who } => {
                let (key, member) = (parsed(name).queue_deadlines(), owner(who).to_string());
                drop(self.both.server.command(&["ZREM", &key, &member]));
                let _removed = self.both.keyspace.sorted_remove(&key, member.as_bytes());
                Ok(())
            }
            Action::Delete { name } => {
                drop(self.both.server.command(&["DEL", NAMES[name]]));
                self.both.keyspace.delete(NAMES[name]);
                Ok(())
            }
            Action::PutText { name } => {
                drop(self.both.server.command(&["SET", NAMES[name], "data"]));
                self.both.keyspace.text_set(NAMES[name], "data");
                Ok(())
            }
            Action::PutQueueText { name, in_list } => {
                let name = parsed(name);
                let key = if in_list { name.queue() } else { name.queue_deadlines() };
                drop(self.both.server.command(&["SET", &key, "data"]));
                self.both.keyspace.text_set(&key, "data");
                Ok(())
            }
            Action::DeleteQueue { name } => {
                let name = parsed(name);
                for key in [name.queue(), name.queue_deadlines()] {
                    drop(self.both.server.command(&["DEL", &key]));
                    self.both.keyspace.delete(&key);
                }
                Ok(())
            }
            Action::Pass { steps } => {
                self.both.pass(STEP * steps);
                Ok(())
            }
        }
    }
}

#[test]
fn fair_lock_operations_in_memory_match_server_scripts() {
    run_histories(256, file!(), action(), |server, history| {
        let mut actors = Actors::new(server);
        for action in history {
            actors.perform(action)?;
        }
        actors.both.same_in_the_end()
    });
}

/// A waiter of a queue in memory. A live one asks when it was told to, or when a message comes.
struct QueuedWaiter {
    owner: Owner,
    asks_at: ServerTime,
}

/// When the last live waiter has taken and released the lock, in milliseconds from the death of the
/// others. A dead waiter is the age of its last attempt, a live one is `None`.
fn last_grant(queue: &[Option<i64>], lease: i64) -> i64 {
    let (mut keyspace, client, name) = (Keyspace::default(), ClientId::random(), parsed(0));
    let start = 1_000_000;
    let acquire = |owner: &Owner| FairAcquire::new(name.clone(), owner.clone(), DEFAULT, true);
    // 1. Another owner holds the lock, and all have asked once.
    keyspace.set_now(ServerTime(start - LONGEST_AGE));
    acquire(&client.next_owner()).apply(&mut keyspace).unwrap();
    keyspace.expire(name.as_str(), lease + LONGEST_AGE);
    let mut live = Vec::new();
    for age in queue {
        let owner = client.next_owner();
        acquire(&owner).apply(&mut keyspace).unwrap();
        match age {
            // 2. The dead asked for the last time then.
            Some(age) => {
                let deadline = start - age + LIVENESS;
                let dead = owner.to_string();
                keyspace.sorted_set(&name.queue_deadlines(), dead.as_bytes(), deadline).unwrap();
            }
            None => live.push(QueuedWaiter { owner, asks_at: ServerTime(start) }),
        }
    }
    // 3. The live ones go on.
    let mut now = ServerTime(start);
    while let Some(next) = live.iter().enumerate().min_by_key(|(_, waiter)| waiter.asks_at) {
        let (place, QueuedWaiter { owner, asks_at }) = (next.0, next.1);
        now = now.max(*asks_at);
        keyspace.set_now(now);
        if let Value::Integer(sleep) = acquire(owner).apply(&mut keyspace).unwrap() {
            live[place].asks_at = ServerTime(now.0 + sleep);
        } else {
            let release = FairRelease::new(name.clone(), owner.clone());
            release.apply(&mut keyspace).unwrap();
            live.swap_remove(place);
        }
        for message in keyspace.take_published() {
            let is_for = |owner: &Owner| message.channel.ends_with(&format!(":{owner}"));
            if let Some(told) = live.iter_mut().find(|waiter| is_for(&waiter.owner)) {
                told.asks_at = now;
            }
        }
    }
    now.0 - start
}

#[test]
fn dead_waiters_hold_up_live_ones_for_their_liveness_at_most() {
    // The longest sleep of a waiter: a dead one may have asked so long before its death.
    let waiter = prop_oneof![2 => (0..=LONGEST_AGE).prop_map(Some), 1 => Just(None)];
    let config = Config { cases: 2000, source_file: Some(file!()), ..Config::default() };
    let queues = (prop::collection::vec(waiter, 1..9), 1..LIVENESS);
    TestRunner::new(config)
        .run(&queues, |(mut queue, lease)| {
            queue.push(None);
            let took = last_grant(&queue, lease);
            prop_assert!(took <= LIVENESS + 1, "the last grant came after {took} ms");
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}
