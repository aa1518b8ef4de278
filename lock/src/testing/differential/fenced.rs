//! Histories of the fenced lock.

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::model::kind::Layout;
use crate::model::lease::Lease;
use crate::model::name::LockName;
use crate::model::owner::{ClientId, Owner};
use crate::ops::fenced::{DrawToken, FencedAcquire, LastToken};
use crate::ops::release::ReleaseHold;
use crate::testing::differential::server_and_model::{STEP, ServerAndModel, run_histories};

const NAME: &str = "a";
const COUNTER: &str = "redisson_lock_token:{a}";
const OWNERS: usize = 3;
/// Beyond every clock, as the tokens of a Redisson that has counted up from a high number would be.
const HIGH: i64 = 8_000_000_000_000_000;

#[derive(Clone, Debug)]
enum Action {
    Acquire {
        owner: usize,
        steps: u32,
        late: bool,
    },
    Draw {
        owner: usize,
        late: bool,
    },
    Release {
        owner: usize,
    },
    Last,
    /// What another client's lock does: a token of its own.
    Count {
        high: bool,
    },
    LoseCounter,
    Pass {
        steps: u32,
    },
}

fn action() -> impl Strategy<Value = Action> {
    let late = prop::bool::weighted(0.1);
    prop_oneof![
        6 => (0..OWNERS, 1..6_u32, late)
            .prop_map(|(owner, steps, late)| Action::Acquire { owner, steps, late }),
        3 => (0..OWNERS, late).prop_map(|(owner, late)| Action::Draw { owner, late }),
        4 => (0..OWNERS).prop_map(|owner| Action::Release { owner }),
        2 => Just(Action::Last),
        1 => any::<bool>().prop_map(|high| Action::Count { high }),
        1 => Just(Action::LoseCounter),
        2 => (1..4_u32).prop_map(|steps| Action::Pass { steps }),
    ]
}

fn perform(
    both: &mut ServerAndModel,
    owners: &[Owner],
    action: &Action,
) -> Result<(), TestCaseError> {
    let name = || LockName::parse(NAME).unwrap();
    match action {
        Action::Acquire { owner, steps, late } => {
            let lease = Lease::new(STEP * *steps).unwrap();
            both.compare(&FencedAcquire::new(name(), owners[*owner].clone(), lease), *late)
        }
        Action::Draw { owner, late } => {
            let draw = DrawToken::new(Layout::Counted, &name(), owners[*owner].clone());
            both.compare(&draw, *late)
        }
        Action::Release { owner } => {
            both.compare(&ReleaseHold::new(Layout::Counted, name(), owners[*owner].clone()), false)
        }
        Action::Last => both.compare(&LastToken::new(&name()), false),
        Action::Count { high } => {
            let token = if *high { HIGH } else { 7 };
            drop(both.server.command(&["SET", COUNTER, &token.to_string()]));
            both.keyspace.text_set(COUNTER, token);
            Ok(())
        }
        Action::LoseCounter => {
            drop(both.server.command(&["DEL", COUNTER]));
            both.keyspace.delete(COUNTER);
            Ok(())
        }
        Action::Pass { steps } => {
            both.pass(STEP * *steps);
            Ok(())
        }
    }
}

#[test]
fn fenced_lock_operations_in_memory_match_server_scripts() {
    run_histories(256, file!(), action(), |server, history| {
        let client = ClientId::random();
        let owners: Vec<Owner> = (0..OWNERS).map(|_| client.next_owner()).collect();
        let keys = vec![NAME.to_owned(), COUNTER.to_owned()];
        let mut both = ServerAndModel::new(server, keys);
        for action in history {
            perform(&mut both, &owners, action)?;
        }
        both.same_in_the_end()
    });
}
