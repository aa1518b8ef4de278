//! Whether a history is linearizable, by the checker of `todc-utils`. What is ours is the
//! specification of a register, and which operations the checker is told of.

use std::collections::BTreeMap;

use todc_utils::{Action, History, Specification, WGLChecker};

use crate::history::{Event, Kind, Operation};

/// Whether there is an order of the operations in which one after the other explains all that was
/// read, and which no operation's beginning and end contradict.
pub(crate) fn is_linearizable(events: &[Event]) -> bool {
    let ends = ends(events);
    let mut actions = Vec::new();
    let mut open = Vec::new();
    for (event, end) in events.iter().zip(&ends) {
        let Event { process, kind, operation } = *event;
        match (kind, end.map(|end| (end.kind, end.operation))) {
            (Kind::Invoke, Some((Kind::Ok, done))) => {
                actions.push((process, Action::Call(Outcome::Known(done))));
            }
            (Kind::Ok, _) => actions.push((process, Action::Response(Outcome::Known(operation)))),
            // What failed has not happened.
            (Kind::Invoke, Some((Kind::Fail, _))) | (Kind::Fail | Kind::Info, _) => {}
            // It may take effect at any later time. After all others is as good as never. A read
            // without a reply says nothing.
            (Kind::Invoke, _) => {
                if !matches!(operation, Operation::Read(_)) {
                    actions.push((process, Action::Call(Outcome::Unknown(operation))));
                    open.push((process, Action::Response(Outcome::Unknown(operation))));
                }
            }
        }
    }
    actions.append(&mut open);
    actions.is_empty() || WGLChecker::<CasRegister>::is_linearizable(History::from_actions(actions))
}

/// For each invocation, its end.
fn ends(events: &[Event]) -> Vec<Option<Event>> {
    let mut ends = vec![None; events.len()];
    let mut pending = BTreeMap::new();
    for (place, event) in events.iter().enumerate() {
        if event.kind == Kind::Invoke {
            pending.insert(event.process, place);
        } else if let Some(invocation) = pending.remove(&event.process) {
            ends[invocation] = Some(*event);
        }
    }
    ends
}

/// A register with compare-and-set, at first without a value.
struct CasRegister;

/// What an operation came to. An unknown one took effect, or found another value, or never arrived.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    Known(Operation),
    Unknown(Operation),
}

impl Specification for CasRegister {
    type State = Option<u64>;
    type Operation = Outcome;

    fn init() -> Self::State {
        None
    }

    fn apply(outcome: &Outcome, state: &Self::State) -> (bool, Self::State) {
        let (Outcome::Known(operation) | Outcome::Unknown(operation)) = *outcome;
        let (is_possible, new) = match operation {
            Operation::Read(value) => (value == *state, *state),
            Operation::Write(new) => (true, Some(new)),
            Operation::Cas { old, new } if *state == Some(old) => (true, Some(new)),
            Operation::Cas { .. } => (false, *state),
        };
        (is_possible || matches!(outcome, Outcome::Unknown(_)), new)
    }
}

#[cfg(test)]
mod tests {
    use crate::history::Event;

    /// Whether these events may follow a write of 0.
    fn is_linearizable(lines: &[&str]) -> bool {
        const WRITE: [&str; 2] = [
            ":process 0, :type :invoke, :f :write, :value 0",
            ":process 0, :type :ok, :f :write, :value 0",
        ];
        let lines = WRITE.iter().chain(lines);
        let events: Vec<_> =
            lines.map(|line| Event::parse(&format!("{{{line}}}")).unwrap()).collect();
        super::is_linearizable(&events)
    }

    const SETS: [&str; 2] = [
        ":process 1, :type :invoke, :f :cas, :value [0 1]",
        ":process 1, :type :ok, :f :cas, :value [0 1]",
    ];
    const READS: &str = ":process 2, :type :invoke, :f :read, :value nil";
    const READS_0: &str = ":process 2, :type :ok, :f :read, :value 0";
    const READS_1: &str = ":process 2, :type :ok, :f :read, :value 1";

    #[test]
    fn operations_at_the_same_time_may_take_effect_in_either_order() {
        assert!(is_linearizable(&[SETS[0], READS, READS_0, SETS[1]]));
        assert!(is_linearizable(&[SETS[0], READS, READS_1, SETS[1]]));
    }

    #[test]
    fn a_read_of_an_old_value_is_found() {
        assert!(is_linearizable(&[SETS[0], SETS[1], READS, READS_1]));
        assert!(!is_linearizable(&[SETS[0], SETS[1], READS, READS_0]));
    }

    #[test]
    fn a_lost_update_is_found() {
        let other = SETS.map(|line| line.replace(":process 1", ":process 3"));
        assert!(!is_linearizable(&[SETS[0], SETS[1], &other[0], &other[1]]));
        assert!(!is_linearizable(&[SETS[0], &other[0], &other[1], SETS[1]]));
    }

    #[test]
    fn an_operation_without_a_reply_may_have_happened_or_not() {
        let lost = SETS[1].replace(":ok", ":info");
        assert!(is_linearizable(&[SETS[0], &lost, READS, READS_0]));
        assert!(is_linearizable(&[SETS[0], &lost, READS, READS_1]));
        // And it may happen between two reads, but not be undone.
        let later = |line: &str| line.replace(":process 2", ":process 3");
        let (again, read_0, read_1) = (later(READS), later(READS_0), later(READS_1));
        assert!(is_linearizable(&[SETS[0], &lost, READS, READS_0, &again, &read_1]));
        assert!(!is_linearizable(&[SETS[0], &lost, READS, READS_1, &again, &read_0]));
    }

    #[test]
    fn a_refused_operation_has_not_happened() {
        let refused = SETS[1].replace(":ok", ":fail");
        assert!(is_linearizable(&[SETS[0], &refused, READS, READS_0]));
        assert!(!is_linearizable(&[SETS[0], &refused, READS, READS_1]));
    }
}
