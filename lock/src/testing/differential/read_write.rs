//! Histories of the read-write lock.

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use wheellock_fixture::Server;

use crate::model::kind::{Kind, Layout};
use crate::model::lease::Lease;
use crate::model::name::LockName;
use crate::model::owner::{ClientId, Owner};
use crate::ops::acquire::Acquire;
use crate::ops::by_kind::HoldId;
use crate::ops::fenced::DrawToken;
use crate::ops::force_release::ForceRelease;
use crate::ops::query::TimeToLive;
use crate::ops::read::{ReadAcquire, ReadRelease};
use crate::ops::read_write::{IsLockedIn, Mode};
use crate::ops::release::ReleaseHold;
use crate::ops::renew::{Renew, Renewal};
use crate::ops::set_count::SetCount;
use crate::testing::differential::server_and_model::{STEP, ServerAndModel, run_histories};

/// Few names, owners and levels, so that histories meet.
const NAMES: [&str; 3] = ["a", "{b}c", "ü {x"];
const OWNERS: usize = 3;
const LEVELS: u32 = 4;

/// Whose, and of which lock.
#[derive(Clone, Copy, Debug)]
struct At {
    name: usize,
    owner: usize,
}

#[derive(Clone, Debug)]
enum Action {
    Read { at: At, under: Option<usize>, steps: u32, late: bool },
    Write { at: At, steps: u32, late: bool },
    SetCount { mode: Mode, at: At, count: u32, steps: u32, late: bool },
    Release { mode: Mode, at: At },
    Keep { mode: Mode, at: At, steps: u32 },
    Renew { layout: Layout, renewals: Vec<(At, u32)>, late: bool },
    ForceRelease { mode: Mode, name: usize, late: bool },
    DrawToken { mode: Mode, at: At, late: bool },
    IsLocked { mode: Mode, name: usize },
    TimeToLive { name: usize },
    Foreign(Foreign),
    Pass { steps: u32 },
}

fn layout(mode: Mode) -> Layout {
    match mode {
        Mode::Read => Layout::Reader,
        Mode::Write => Layout::Writer,
    }
}

/// What others do to the keys.
#[derive(Clone, Debug)]
enum Foreign {
    Delete {
        name: usize,
    },
    DeleteLevel {
        at: At,
        level: u32,
    },
    /// As Redisson's renewals and read unlocks do.
    Cut {
        name: usize,
        steps: u32,
    },
    Persist {
        name: usize,
    },
    PutText {
        name: usize,
    },
    /// A lock of another kind.
    PutCounted {
        at: At,
        steps: u32,
    },
}

fn at() -> impl Strategy<Value = At> + Clone {
    (0..NAMES.len(), 0..OWNERS).prop_map(|(name, owner)| At { name, owner })
}

fn mode() -> impl Strategy<Value = Mode> + Clone {
    prop_oneof![Just(Mode::Read), Just(Mode::Write)]
}

fn foreign() -> impl Strategy<Value = Foreign> {
    let name = 0..NAMES.len();
    prop_oneof![
        2 => name.clone().prop_map(|name| Foreign::Delete { name }),
        2 => (at(), 1..=LEVELS).prop_map(|(at, level)| Foreign::DeleteLevel { at, level }),
        4 => (name.clone(), 1..4_u32).prop_map(|(name, steps)| Foreign::Cut { name, steps }),
        2 => name.clone().prop_map(|name| Foreign::Persist { name }),
        1 => name.prop_map(|name| Foreign::PutText { name }),
        1 => (at(), 1..4_u32).prop_map(|(at, steps)| Foreign::PutCounted { at, steps }),
    ]
}

fn action() -> impl Strategy<Value = Action> {
    let name = 0..NAMES.len();
    let late = prop::bool::weighted(0.1);
    let under = prop::option::of(0..OWNERS);
    let layout = prop_oneof![Just(Layout::Reader), Just(Layout::Writer)];
    prop_oneof![
        8 => (at(), under, 1..6_u32, late)
            .prop_map(|(at, under, steps, late)| Action::Read { at, under, steps, late }),
        4 => (at(), 1..6_u32, late).prop_map(|(at, steps, late)| Action::Write { at, steps, late }),
        6 => (mode(), at(), 1..=LEVELS, 0..6_u32, late).prop_map(
            |(mode, at, count, steps, late)| Action::SetCount { mode, at, count, steps, late }
        ),
        6 => (mode(), at()).prop_map(|(mode, at)| Action::Release { mode, at }),
        3 => (mode(), at(), 1..6_u32)
            .prop_map(|(mode, at, steps)| Action::Keep { mode, at, steps }),
        4 => (layout, prop::collection::vec((at(), 1..6_u32), 1..5), late)
            .prop_map(|(layout, renewals, late)| Action::Renew { layout, renewals, late }),
        1 => (mode(), name.clone(), late)
            .prop_map(|(mode, name, late)| Action::ForceRelease { mode, name, late }),
        2 => (mode(), at(), late).prop_map(|(mode, at, late)| Action::DrawToken { mode, at, late }),
        2 => (mode(), name.clone()).prop_map(|(mode, name)| Action::IsLocked { mode, name }),
        2 => name.prop_map(|name| Action::TimeToLive { name }),
        3 => foreign().prop_map(Action::Foreign),
        4 => (1..4_u32).prop_map(|steps| Action::Pass { steps }),
    ]
}

/// The server and the model, and the owners that act in them.
struct Actors {
    both: ServerAndModel,
    owners: Vec<Owner>,
}

fn name(name: usize) -> LockName {
    LockName::parse(NAMES[name]).unwrap()
}

fn lease(steps: u32) -> Lease {
    Lease::new(STEP * steps).unwrap()
}

fn level(name: usize, owner: &Owner, level: u32) -> String {
    self::name(name).suffixed(&format!("{owner}:rwlock_timeout:{level}")).to_string()
}

impl Actors {
    fn new(server: &Server) -> Self {
        let client = ClientId::random();
        let owners: Vec<Owner> = (0..OWNERS).map(|_| client.next_owner()).collect();
        let mut keys: Vec<String> = NAMES.map(str::to_owned).to_vec();
        for name in 0..NAMES.len() {
            keys.push(self::name(name).token().to_string());
            for owner in &owners {
                keys.extend((1..=LEVELS).map(|number| level(name, owner, number)));
                let kept = format!("{owner}:kept:rwlock_timeout:1");
                keys.push(self::name(name).suffixed(&kept).to_string());
            }
        }
        Self { both: ServerAndModel::new(server, keys), owners }
    }

    fn perform(&mut self, action: &Action) -> Result<(), TestCaseError> {
        let owner = |owner: usize| self.owners[owner].clone();
        match action {
            Action::Read { at, under, steps, late } => {
                let acquire = ReadAcquire {
                    name: name(at.name),
                    owner: owner(at.owner),
                    lease: lease(*steps),
                    under: under.map(owner),
                };
                self.both.compare(&acquire, *late)
            }
            Action::Write { at, steps, late } => {
                let (name, owner) = (name(at.name), owner(at.owner));
                let (layout, lease) = (Layout::Writer, lease(*steps));
                self.both
                    .compare(&Acquire { layout, name, owner, lease, names_holder: false }, *late)
            }
            Action::SetCount { mode, at, count, steps, late } => {
                let lease = (*steps > 0).then(|| lease(*steps));
                let (name, owner, count) = (name(at.name), owner(at.owner), *count);
                let set_count = SetCount { name, owner, count, lease, layout: layout(*mode) };
                self.both.compare(&set_count, *late)
            }
            Action::Release { mode, at } => {
                let (name, owner) = (name(at.name), owner(at.owner));
                match mode {
                    Mode::Read => self.both.compare(&ReadRelease::new(name, owner), false),
                    Mode::Write => {
                        let release = ReleaseHold::new(Layout::Writer, name, owner);
                        self.both.compare(&release, false)
                    }
                }
            }
            Action::Keep { mode, at, steps } => {
                let kind = match mode {
                    Mode::Read => Kind::Read,
                    Mode::Write => Kind::Write,
                };
                let id = HoldId { kind, name: name(at.name), owner: owner(at.owner) };
                self.both.compare(&id.keep(STEP * *steps), false)
            }
            Action::Renew { layout, renewals, late } => {
                let renewals = renewals.iter().map(|&(at, steps)| Renewal {
                    name: name(at.name),
                    owner: owner(at.owner),
                    lease: lease(steps),
                });
                let renew = Renew::new(*layout, renewals.collect());
                self.both.compare(&renew, *late)
            }
            Action::ForceRelease { mode, name: at, late } => {
                let request = self.both.request(&name(*at));
                let force = ForceRelease::new(layout(*mode), name(*at), request);
                self.both.compare(&force, *late)?;
                self.both.compare(&force, *late)
            }
            Action::DrawToken { mode, at, late } => {
                let draw = DrawToken::new(layout(*mode), &name(at.name), owner(at.owner));
                self.both.compare(&draw, *late)
            }
            Action::IsLocked { mode, name: at } => {
                self.both.compare(&IsLockedIn { name: name(*at), mode: *mode }, false)
            }
            Action::TimeToLive { name: at } => self.both.compare(&TimeToLive(name(*at)), false),
            Action::Foreign(foreign) => {
                self.interfere(foreign);
                Ok(())
            }
            Action::Pass { steps } => {
                self.both.pass(STEP * *steps);
                Ok(())
            }
        }
    }

    fn interfere(&mut self, foreign: &Foreign) {
        let ServerAndModel { server, keyspace, .. } = &mut self.both;
        match *foreign {
            Foreign::Delete { name } => {
                drop(server.command(&["DEL", NAMES[name]]));
                keyspace.delete(NAMES[name]);
            }
            Foreign::DeleteLevel { at, level: number } => {
                let key = level(at.name, &self.owners[at.owner], number);
                drop(server.command(&["DEL", &key]));
                keyspace.delete(&key);
            }
            Foreign::Cut { name, steps } => {
                let millis = lease(steps).millis_i64();
                drop(server.command(&["PEXPIRE", NAMES[name], &millis.to_string()]));
                keyspace.expire(NAMES[name], millis);
            }
            Foreign::Persist { name } => {
                drop(server.command(&["PERSIST", NAMES[name]]));
                keyspace.persist(NAMES[name]);
            }
            Foreign::PutText { name } => {
                drop(server.command(&["SET", NAMES[name], "data"]));
                keyspace.text_set(NAMES[name], "data");
            }
            Foreign::PutCounted { at, steps } => {
                let (key, owner) = (NAMES[at.name], self.owners[at.owner].to_string());
                let millis = lease(steps).millis_i64();
                drop(server.command(&["DEL", key]));
                drop(server.command(&["HSET", key, &owner, "1"]));
                drop(server.command(&["PEXPIRE", key, &millis.to_string()]));
                keyspace.delete(key);
                keyspace.hash_set(key, &owner, 1).unwrap();
                keyspace.expire(key, millis);
            }
        }
    }
}

#[test]
fn read_write_lock_operations_in_memory_match_server_scripts() {
    run_histories(400, file!(), action(), |server, history| {
        let mut actors = Actors::new(server);
        for action in history {
            actors.perform(action)?;
        }
        actors.both.same_in_the_end()
    });
}
