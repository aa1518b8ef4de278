//! Histories of the simple lock.

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::model::kind::{Kind, Layout};
use crate::model::lease::Lease;
use crate::model::name::LockName;
use crate::model::owner::{ClientId, Owner};
use crate::ops::acquire::Acquire;
use crate::ops::by_kind::HoldId;
use crate::ops::fenced::DrawToken;
use crate::ops::force_release::ForceRelease;
use crate::ops::release::ReleaseHold;
use crate::ops::renew::{Renew, Renewal};
use crate::testing::differential::server_and_model::{STEP, ServerAndModel, run_histories};

const NAMES: [&str; 2] = ["a", "{b}c"];
const OWNERS: usize = 3;

#[derive(Clone, Debug)]
enum Action {
    Acquire { name: usize, owner: usize, steps: u32, late: bool },
    Release { name: usize, owner: usize },
    Keep { name: usize, owner: usize, steps: u32 },
    Renew { renewals: Vec<(usize, usize, u32)>, late: bool },
    ForceRelease { name: usize, late: bool },
    DrawToken { name: usize, owner: usize, late: bool },
    Delete { name: usize },
    PutHash { name: usize },
    Pass { steps: u32 },
}

fn action() -> impl Strategy<Value = Action> {
    let (name, owner) = (0..NAMES.len(), 0..OWNERS);
    let late = prop::bool::weighted(0.1);
    prop_oneof![
        6 => (name.clone(), owner.clone(), 1..6_u32, late)
            .prop_map(|(name, owner, steps, late)| Action::Acquire { name, owner, steps, late }),
        3 => (name.clone(), owner.clone()).prop_map(|(name, owner)| Action::Release { name, owner }),
        2 => (name.clone(), owner.clone(), 1..6_u32)
            .prop_map(|(name, owner, steps)| Action::Keep { name, owner, steps }),
        2 => (name.clone(), owner.clone(), late)
            .prop_map(|(name, owner, late)| Action::DrawToken { name, owner, late }),
        3 => (prop::collection::vec((name.clone(), owner, 1..6_u32), 1..5), late)
            .prop_map(|(renewals, late)| Action::Renew { renewals, late }),
        1 => (name.clone(), late).prop_map(|(name, late)| Action::ForceRelease { name, late }),
        1 => name.clone().prop_map(|name| Action::Delete { name }),
        1 => name.prop_map(|name| Action::PutHash { name }),
        3 => (1..4_u32).prop_map(|steps| Action::Pass { steps }),
    ]
}

fn perform(
    both: &mut ServerAndModel,
    owners: &[Owner],
    action: &Action,
) -> Result<(), TestCaseError> {
    let name = |name: usize| LockName::parse(NAMES[name]).unwrap();
    let lease = |steps: u32| Lease::new(STEP * steps).unwrap();
    let owner = |owner: usize| owners[owner].clone();
    match action {
        Action::Acquire { name: at, owner: by, steps, late } => {
            let (name, owner, lease) = (name(*at), owner(*by), lease(*steps));
            both.compare(
                &Acquire { layout: Layout::Text, name, owner, lease, names_holder: false },
                *late,
            )
        }
        Action::Release { name: at, owner: by } => {
            both.compare(&ReleaseHold::new(Layout::Text, name(*at), owner(*by)), false)
        }
        Action::Keep { name: at, owner: by, steps } => {
            let id = HoldId { kind: Kind::Simple, name: name(*at), owner: owner(*by) };
            both.compare(&id.keep(STEP * *steps), false)
        }
        Action::Renew { renewals, late } => {
            let renewals = renewals.iter().map(|&(at, by, steps)| Renewal {
                name: name(at),
                owner: owner(by),
                lease: lease(steps),
            });
            let renew = Renew::new(Layout::Text, renewals.collect());
            both.compare(&renew, *late)
        }
        Action::ForceRelease { name: at, late } => {
            let request = both.request(&name(*at));
            let force = ForceRelease::new(Layout::Text, name(*at), request);
            both.compare(&force, *late)?;
            both.compare(&force, *late)
        }
        Action::DrawToken { name: at, owner: by, late } => {
            both.compare(&DrawToken::new(Layout::Text, &name(*at), owner(*by)), *late)
        }
        Action::Delete { name } => {
            drop(both.server.command(&["DEL", NAMES[*name]]));
            both.keyspace.delete(NAMES[*name]);
            Ok(())
        }
        Action::PutHash { name } => {
            both.keyspace.delete(NAMES[*name]);
            both.keyspace.hash_set(NAMES[*name], "field", 1).unwrap();
            drop(both.server.command(&["DEL", NAMES[*name]]));
            drop(both.server.command(&["HSET", NAMES[*name], "field", "1"]));
            Ok(())
        }
        Action::Pass { steps } => {
            both.pass(STEP * *steps);
            Ok(())
        }
    }
}

#[test]
fn simple_lock_operations_in_memory_match_server_scripts() {
    run_histories(256, file!(), action(), |server, history| {
        let client = ClientId::random();
        let owners: Vec<Owner> = (0..OWNERS).map(|_| client.next_owner()).collect();
        let mut keys: Vec<String> = NAMES.map(str::to_owned).to_vec();
        keys.extend(NAMES.map(|name| LockName::parse(name).unwrap().token().to_string()));
        let mut both = ServerAndModel::new(server, keys);
        for action in history {
            perform(&mut both, &owners, action)?;
        }
        both.same_in_the_end()
    });
}
