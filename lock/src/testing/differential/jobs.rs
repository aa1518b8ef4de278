//! Histories of one slot of a job, and of an election.

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::model::kind::Layout;
use crate::model::lease::Lease;
use crate::model::name::LockName;
use crate::model::owner::{ClientId, Owner};
use crate::ops::acquire::Acquire;
use crate::ops::fenced::FencedAcquire;
use crate::ops::job::{BeginRun, FinishRun, GiveBackAttempt, HasRun, JobKeys, ListRuns, ReadRuns};
use crate::ops::leader::CurrentLeader;
use crate::ops::release::ReleaseHold;
use crate::testing::differential::server_and_model::{STEP, ServerAndModel, run_histories};

const OWNERS: usize = 3;
const MOST_ATTEMPTS: u32 = 4;

#[derive(Clone, Debug)]
enum Action {
    Acquire { owner: usize, steps: u32 },
    Release { owner: usize },
    Begin { owner: usize, attempts: u32, steps: u32, late: bool },
    GiveBack { owner: usize },
    Finish { owner: usize, steps: u32, is_done: bool },
    HasRun,
    ListRuns,
    ReadRuns,
    Lead { owner: usize, steps: u32 },
    Resign { owner: usize },
    AskWhoLeads,
    PutText { key: usize },
    Delete { key: usize },
    Pass { steps: u32 },
}

fn action() -> impl Strategy<Value = Action> {
    let owner = 0..OWNERS;
    let late = prop::bool::weighted(0.1);
    prop_oneof![
        6 => (owner.clone(), 1..6_u32).prop_map(|(owner, steps)| Action::Acquire { owner, steps }),
        3 => owner.clone().prop_map(|owner| Action::Release { owner }),
        6 => (owner.clone(), 1..MOST_ATTEMPTS, 1..6_u32, late).prop_map(
            |(owner, attempts, steps, late)| Action::Begin { owner, attempts, steps, late }
        ),
        3 => owner.clone().prop_map(|owner| Action::GiveBack { owner }),
        3 => (owner.clone(), 1..6_u32, any::<bool>())
            .prop_map(|(owner, steps, is_done)| Action::Finish { owner, steps, is_done }),
        2 => Just(Action::HasRun),
        1 => Just(Action::ListRuns),
        2 => Just(Action::ReadRuns),
        2 => (owner.clone(), 1..6_u32).prop_map(|(owner, steps)| Action::Lead { owner, steps }),
        1 => owner.prop_map(|owner| Action::Resign { owner }),
        2 => Just(Action::AskWhoLeads),
        1 => (0..5_usize).prop_map(|key| Action::PutText { key }),
        1 => (0..6_usize).prop_map(|key| Action::Delete { key }),
        3 => (1..4_u32).prop_map(|steps| Action::Pass { steps }),
    ]
}

fn election() -> LockName {
    LockName::parse("election").unwrap()
}

fn keys() -> JobKeys {
    let name = LockName::parse("report").unwrap();
    JobKeys {
        lock: LockName::parse(&name.job("lock", "noon")).unwrap(),
        record: name.job("record", "noon").into(),
        tokens: name.job_tokens(),
        runs: name.job_runs(),
    }
}

fn all_keys() -> Vec<String> {
    let JobKeys { lock, record, tokens, runs } = keys();
    let election = election();
    let all = [lock.as_str(), &record, election.as_str(), &tokens, &runs, &election.token()];
    all.map(str::to_owned).to_vec()
}

fn perform(
    both: &mut ServerAndModel,
    owners: &[Owner],
    action: &Action,
) -> Result<(), TestCaseError> {
    let lease = |steps: u32| Lease::new(STEP * steps).unwrap();
    let owner = |owner: usize| owners[owner].clone();
    match *action {
        Action::Acquire { owner: by, steps } => {
            let (layout, name, lease) = (Layout::Counted, keys().lock, lease(steps));
            both.compare(
                &Acquire { layout, name, owner: owner(by), lease, names_holder: false },
                false,
            )
        }
        Action::Release { owner: by } => {
            both.compare(&ReleaseHold::new(Layout::Counted, keys().lock, owner(by)), false)
        }
        Action::Begin { owner: by, attempts, steps, late } => {
            let begin = BeginRun {
                keys: keys(),
                slot: "noon".into(),
                owner: owner(by),
                host: "db3".into(),
                max_attempts: attempts,
                retention: lease(steps),
            };
            both.compare(&begin, late)
        }
        Action::GiveBack { owner: by } => {
            let give_back = GiveBackAttempt { record: keys().record, owner: owner(by) };
            both.compare(&give_back, false)
        }
        Action::Finish { owner: by, steps, is_done } => {
            let (keys, owner, retention) = (keys(), owner(by), lease(steps));
            let exit_code = (steps > 2).then_some(i32::from(!is_done));
            both.compare(&FinishRun { keys, owner, retention, is_done, exit_code }, false)
        }
        Action::ListRuns => both.compare(&ListRuns(keys().runs), false),
        Action::ReadRuns => {
            let JobKeys { lock, record, .. } = keys();
            both.compare(&ReadRuns { keys: vec![(lock.as_str().into(), record)] }, false)
        }
        Action::HasRun => both.compare(&HasRun(keys().record), false),
        Action::Lead { owner: by, steps } => {
            both.compare(&FencedAcquire::new(election(), owner(by), lease(steps)), false)
        }
        Action::Resign { owner: by } => {
            both.compare(&ReleaseHold::new(Layout::Counted, election(), owner(by)), false)
        }
        Action::AskWhoLeads => both.compare(&CurrentLeader::new(election()), false),
        Action::PutText { key } => {
            let key = &all_keys()[key];
            drop(both.server.command(&["SET", key, "7"]));
            both.keyspace.text_set(key, 7);
            Ok(())
        }
        Action::Delete { key } => {
            let key = &all_keys()[key];
            drop(both.server.command(&["DEL", key]));
            both.keyspace.delete(key);
            Ok(())
        }
        Action::Pass { steps } => {
            both.pass(STEP * steps);
            Ok(())
        }
    }
}

#[test]
fn job_and_election_operations_in_memory_match_server_scripts() {
    run_histories(256, file!(), action(), |server, history| {
        let client = ClientId::random();
        let owners: Vec<Owner> = (0..OWNERS).map(|_| client.next_owner()).collect();
        let mut both = ServerAndModel::new(server, all_keys());
        for action in history {
            perform(&mut both, &owners, action)?;
        }
        both.same_in_the_end()
    });
}
