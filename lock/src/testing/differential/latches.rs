//! Histories of latches.

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use wheellock_fixture::Server;

use crate::model::name::LockName;
use crate::ops::latch::{Change, ChangeLatch};
use crate::ops::query::Number;
use crate::testing::differential::server_and_model::{
    Call, STEP, Sequences, ServerAndModel, call, run_histories,
};

/// Few names, so that histories meet.
const NAMES: [&str; 2] = ["a", "{b}c"];

#[derive(Clone, Debug)]
enum Action {
    Change { change: Change, late: bool },
    Number,
    PutNumber { number: i64 },
    PutText,
    Pass { steps: u32 },
}

fn action() -> impl Strategy<Value = (usize, Call, Action)> {
    let change = prop_oneof![
        3 => (1..4_i64).prop_map(Change::Set),
        1 => Just(Change::Set(i64::MAX)),
        6 => Just(Change::CountDown),
        1 => Just(Change::Delete),
    ];
    let late = prop::bool::weighted(0.1);
    let action = prop_oneof![
        10 => (change, late).prop_map(|(change, late)| Action::Change { change, late }),
        2 => Just(Action::Number),
        // Redisson leaves a zero if it is told to.
        1 => (-2..2_i64).prop_map(|number| Action::PutNumber { number }),
        1 => Just(Action::PutText),
        3 => (1..5_u32).prop_map(|steps| Action::Pass { steps }),
    ];
    (0..NAMES.len(), call(), action)
}

struct Actors {
    both: ServerAndModel,
    sequences: Sequences<1>,
}

impl Actors {
    fn new(server: &Server) -> Self {
        let keys = NAMES.iter().flat_map(|name| {
            let parsed = LockName::parse(name).unwrap();
            std::iter::once((*name).to_owned()).chain(Sequences::<1>::keys(&parsed))
        });
        Self { both: ServerAndModel::new(server, keys.collect()), sequences: Sequences::new() }
    }

    fn perform(&mut self, at: usize, call: Call, action: &Action) -> Result<(), TestCaseError> {
        let key = NAMES[at];
        let name = LockName::parse(key).unwrap();
        let request = self.sequences.request(&name, call, 0);
        match *action {
            Action::Change { change, late } => {
                self.both.compare(&ChangeLatch::new(name, change, request), late)
            }
            Action::Number => self.both.compare(&Number(name), false),
            Action::PutNumber { number } => {
                drop(self.both.server.command(&["SET", key, &number.to_string()]));
                self.both.keyspace.text_set(key, number);
                Ok(())
            }
            Action::PutText => {
                drop(self.both.server.command(&["SET", key, "data"]));
                self.both.keyspace.text_set(key, "data");
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
fn latch_operations_in_memory_match_server_scripts() {
    run_histories(256, file!(), action(), |server, history| {
        let mut actors = Actors::new(server);
        for (at, call, action) in history {
            actors.perform(*at, *call, action)?;
        }
        actors.both.same_in_the_end()
    });
}
