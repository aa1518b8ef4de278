//! The operations of a test on a timer that runs closures, and on its clock.

use std::time::Duration;

use hashed_wheel::MissedRuns;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::model::sorted::{Repeat, Rule};
use crate::model::tasks::Action;
use crate::model::{Point, TICK, point, step};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    Schedule(Point, Action),
    ScheduleAt(Point, Action),
    Periodic(Point, Repeat, Option<u64>, Action),
    After(Point),
    Interval(Duration),
    Receive(Index),
    /// Drops the receiver of a channel.
    DropReceiver(Index),
    Cancel(Index),
    Take(Index),
    Reschedule(Index, Point),
    Advance(Point),
    Jump(Point),
}

pub(crate) fn operations(takes_time: bool) -> impl Strategy<Value = Vec<Operation>> {
    let index = any::<Index>;
    let action = || action(takes_time);
    let left = prop_oneof![Just(None), (1..5_u64).prop_map(Some)];
    let operation = prop_oneof![
        5 => (point(), action()).prop_map(|(at, does)| Operation::Schedule(at, does)),
        3 => (point(), action()).prop_map(|(at, does)| Operation::ScheduleAt(at, does)),
        3 => (point(), repeat(), left, action())
            .prop_map(|(first, repeat, left, does)| Operation::Periodic(first, repeat, left, does)),
        1 => point().prop_map(Operation::After),
        1 => length().prop_map(Operation::Interval),
        2 => index().prop_map(Operation::Receive),
        1 => index().prop_map(Operation::DropReceiver),
        3 => index().prop_map(Operation::Cancel),
        1 => index().prop_map(Operation::Take),
        3 => (index(), point()).prop_map(|(of, to)| Operation::Reschedule(of, to)),
        5 => step().prop_map(Operation::Advance),
        3 => step().prop_map(Operation::Jump),
        1 => (0..u64::MAX / 100).prop_map(|years| Operation::Jump(Point::Ahead(years))),
    ];
    prop::collection::vec(operation, 1..200)
}

/// What tasks do. When time passes in one, the order of all later ones matters, so then none
/// schedules another: its place in that order is open.
fn action(takes_time: bool) -> impl Strategy<Value = Action> {
    let index = any::<Index>;
    let special = if takes_time {
        (0..TICK * 30).prop_map(Action::Take).boxed()
    } else {
        point().prop_map(Action::Schedule).boxed()
    };
    prop_oneof![
        4 => Just(Action::Nothing),
        3 => special,
        2 => index().prop_map(Action::Cancel),
        2 => (index(), point()).prop_map(|(of, to)| Action::Reschedule(of, to)),
        1 => Just(Action::Panic),
        1 => Just(Action::StopTheTimer),
    ]
}

fn length() -> impl Strategy<Value = Duration> {
    prop_oneof![
        2 => (1..TICK).prop_map(Duration::from_nanos),
        6 => (1..TICK * 30).prop_map(Duration::from_nanos),
        3 => (1..70_u64).prop_map(|ticks| Duration::from_nanos(ticks * TICK)),
        1 => Just(Duration::MAX),
    ]
}

fn repeat() -> impl Strategy<Value = Repeat> {
    let rule = prop_oneof![
        Just(Rule::FixedDelay),
        Just(Rule::FixedRate(MissedRuns::Skip)),
        Just(Rule::FixedRate(MissedRuns::CatchUp)),
        Just(Rule::FixedRate(MissedRuns::Delay)),
    ];
    (length(), rule).prop_map(|(length, rule)| Repeat { length, rule })
}
