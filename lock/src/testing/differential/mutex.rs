//! Histories of the reentrant lock.

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use wheellock_fixture::Server;

use crate::model::kind::{Kind, Layout};
use crate::model::lease::Lease;
use crate::model::name::LockName;
use crate::model::owner::{ClientId, Owner};
use crate::ops::acquire::Acquire;
use crate::ops::by_kind::HoldId;
use crate::ops::force_release::ForceRelease;
use crate::ops::query::{Exists, TimeToLive};
use crate::ops::release::ReleaseHold;
use crate::ops::renew::{Renew, Renewal};
use crate::ops::set_count::SetCount;
use crate::testing::differential::server_and_model::{STEP, ServerAndModel, run_histories};

/// Few names and owners, so that histories meet.
const NAMES: [&str; 3] = ["a", "{b}c", "ü {x"];
const OWNERS: usize = 3;

#[derive(Clone, Debug)]
enum Action {
    Acquire { name: usize, owner: usize, steps: u32, late: bool },
    SetCount { name: usize, owner: usize, count: u32, steps: u32, late: bool },
    Release { name: usize, owner: usize },
    Keep { kind: Kind, name: usize, owner: usize, steps: u32 },
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
    let kind = prop_oneof![Just(Kind::Reentrant), Just(Kind::Spin)];
    prop_oneof![
        6 => (name.clone(), owner.clone(), 1..6_u32, late)
            .prop_map(|(name, owner, steps, late)| Action::Acquire { name, owner, steps, late }),
        4 => (name.clone(), owner.clone(), 1..9_u32, 0..6_u32, late).prop_map(
            |(name, owner, count, steps, late)| Action::SetCount { name, owner, count, steps, late }
        ),
        3 => (name.clone(), owner.clone()).prop_map(|(name, owner)| Action::Release { name, owner }),
        2 => (kind, name.clone(), owner.clone(), 1..6_u32)
            .prop_map(|(kind, name, owner, steps)| Action::Keep { kind, name, owner, steps }),
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

/// The server and the model, and the owners that act in them.
struct Actors {
    both: ServerAndModel,
    owners: Vec<Owner>,
}

impl Actors {
    fn new(server: &Server) -> Self {
        let client = ClientId::random();
        Self {
            both: ServerAndModel::new(server, NAMES.map(str::to_owned).to_vec()),
            owners: (0..OWNERS).map(|_| client.next_owner()).collect(),
        }
    }

    fn perform(&mut self, action: &Action) -> Result<(), TestCaseError> {
        let name = |name: usize| LockName::parse(NAMES[name]).unwrap();
        let lease = |steps: u32| Lease::new(STEP * steps).unwrap();
        let owner = |owner: usize| self.owners[owner].clone();
        match action {
            Action::Acquire { name: at, owner: by, steps, late } => {
                let (layout, name, owner) = (Layout::Counted, name(*at), owner(*by));
                let lease = lease(*steps);
                self.both
                    .compare(&Acquire { layout, name, owner, lease, names_holder: true }, *late)
            }
            Action::SetCount { name: at, owner: by, count, steps, late } => {
                let lease = (*steps > 0).then(|| lease(*steps));
                let (name, owner, count) = (name(*at), owner(*by), *count);
                let set_count = SetCount { name, owner, count, lease, layout: Layout::Counted };
                self.both.compare(&set_count, *late)
            }
            Action::Release { name: at, owner: by } => {
                self.both.compare(&ReleaseHold::new(Layout::Counted, name(*at), owner(*by)), false)
            }
            Action::Keep { kind, name: at, owner: by, steps } => {
                let id = HoldId { kind: *kind, name: name(*at), owner: owner(*by) };
                self.both.compare(&id.keep(STEP * *steps), false)
            }
            Action::Renew { renewals, late } => {
                let renewals = renewals.iter().map(|&(at, by, steps)| Renewal {
                    name: name(at),
                    owner: owner(by),
                    lease: lease(steps),
                });
                self.both.compare(&Renew::new(Layout::Counted, renewals.collect()), *late)
            }
            Action::ForceRelease { name: at, late } => {
                let request = self.both.request(&name(*at));
                let force = ForceRelease::new(Layout::Counted, name(*at), request);
                self.both.compare(&force, *late)?;
                self.both.compare(&force, *late)
            }
            Action::Exists { name: at } => self.both.compare(&Exists(name(*at)), false),
            Action::TimeToLive { name: at } => self.both.compare(&TimeToLive(name(*at)), false),
            Action::Delete { name: at } => {
                drop(self.both.server.command(&["DEL", NAMES[*at]]));
                self.both.keyspace.delete(NAMES[*at]);
                Ok(())
            }
            Action::PutText { name: at } => {
                drop(self.both.server.command(&["SET", NAMES[*at], "data"]));
                self.both.keyspace.text_set(NAMES[*at], "data");
                Ok(())
            }
            Action::Persist { name: at } => {
                drop(self.both.server.command(&["PERSIST", NAMES[*at]]));
                self.both.keyspace.persist(NAMES[*at]);
                Ok(())
            }
            Action::Pass { steps } => {
                self.both.pass(STEP * *steps);
                Ok(())
            }
        }
    }
}

#[test]
fn reentrant_lock_operations_in_memory_match_server_scripts() {
    run_histories(256, file!(), action(), |server, history| {
        let mut actors = Actors::new(server);
        for action in history {
            actors.perform(action)?;
        }
        actors.both.same_in_the_end()
    });
}
