//! Histories of semaphores whose permits are a number.

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use wheellock_fixture::Server;

use crate::model::name::LockName;
use crate::ops::query::Number;
use crate::ops::semaphore::{AddPermits, DrainPermits, TakePermits, TrySetPermits, UndoAcquire};
use crate::testing::differential::server_and_model::{
    Call, STEP, Sequences, ServerAndModel, call, run_histories,
};

/// Few names, so that histories meet.
const NAMES: [&str; 2] = ["a", "{b}c"];
/// Kinds of calls.
const KINDS: usize = 4;

#[derive(Clone, Debug)]
enum Action {
    Take { permits: u32, late: bool },
    Undo { drain: bool },
    Add { permits: i64, must_exist: bool, late: bool },
    Make { permits: u32, steps: u64, late: bool },
    Drain { late: bool },
    Number,
    Delete,
    PutText,
    PutHash,
    Pass { steps: u32 },
}

fn action() -> impl Strategy<Value = (usize, Call, Action)> {
    let late = prop::bool::weighted(0.1);
    let far =
        prop_oneof![8 => -3..6_i64, 1 => Just(i64::from(i32::MAX)), 1 => Just(i64::from(i32::MIN))];
    let action = prop_oneof![
        6 => (1..4_u32, late).prop_map(|(permits, late)| Action::Take { permits, late }),
        3 => any::<bool>().prop_map(|drain| Action::Undo { drain }),
        5 => (far, any::<bool>(), late)
            .prop_map(|(permits, must_exist, late)| Action::Add { permits, must_exist, late }),
        4 => (0..5_u32, 0..5_u64, late)
            .prop_map(|(permits, steps, late)| Action::Make { permits, steps, late }),
        2 => late.prop_map(|late| Action::Drain { late }),
        2 => Just(Action::Number),
        1 => Just(Action::Delete),
        1 => Just(Action::PutText),
        1 => Just(Action::PutHash),
        3 => (1..5_u32).prop_map(|steps| Action::Pass { steps }),
    ];
    (0..NAMES.len(), call(), action)
}

struct Actors {
    both: ServerAndModel,
    sequences: Sequences<KINDS>,
}

impl Actors {
    fn new(server: &Server) -> Self {
        let keys = NAMES.iter().flat_map(|name| {
            let parsed = LockName::parse(name).unwrap();
            std::iter::once((*name).to_owned()).chain(Sequences::<KINDS>::keys(&parsed))
        });
        Self { both: ServerAndModel::new(server, keys.collect()), sequences: Sequences::new() }
    }

    fn perform(&mut self, at: usize, call: Call, action: &Action) -> Result<(), TestCaseError> {
        let key = NAMES[at];
        let name = LockName::parse(key).unwrap();
        let kind = match action {
            Action::Add { .. } => 1,
            Action::Make { .. } => 2,
            Action::Drain { .. } | Action::Undo { drain: true } => 3,
            _ => 0,
        };
        let request = self.sequences.request(&name, call, kind);
        match *action {
            Action::Take { permits, late } => {
                self.both.compare(&TakePermits { name, permits, request }, late)
            }
            Action::Undo { .. } => self.both.compare(&UndoAcquire::new(name, request), false),
            Action::Add { permits, must_exist, late } => {
                self.both.compare(&AddPermits::new(name, permits, must_exist, request), late)
            }
            Action::Make { permits, steps, late } => {
                let lives = steps * u64::try_from(STEP.as_millis()).unwrap();
                self.both.compare(&TrySetPermits::new(name, permits, lives, request), late)
            }
            Action::Drain { late } => self.both.compare(&DrainPermits { name, request }, late),
            Action::Number => self.both.compare(&Number(name), false),
            Action::Delete => {
                drop(self.both.server.command(&["DEL", key]));
                self.both.keyspace.delete(key);
                Ok(())
            }
            Action::PutText => {
                drop(self.both.server.command(&["SET", key, "data"]));
                self.both.keyspace.text_set(key, "data");
                Ok(())
            }
            Action::PutHash => {
                drop(self.both.server.command(&["DEL", key]));
                drop(self.both.server.command(&["HSET", key, "field", "1"]));
                self.both.keyspace.delete(key);
                self.both.keyspace.hash_set(key, "field", 1).unwrap();
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
fn semaphore_operations_in_memory_match_server_scripts() {
    run_histories(256, file!(), action(), |server, history| {
        let mut actors = Actors::new(server);
        for (at, call, action) in history {
            actors.perform(*at, *call, action)?;
        }
        actors.both.same_in_the_end()
    });
}
