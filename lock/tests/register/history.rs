//! Histories of the operations on one register, in the format of Jepsen's `history.edn`.
//!
//! An event is a line, such as `{:process 3, :type :invoke, :f :cas, :value [4 5]}`. An operation
//! has two: its invocation, and `:ok` if it took place, `:fail` if it did not, or `:info` if nobody
//! knows. A process whose operation ended with `:info` does nothing more. Knossos reads such files
//! as they are, with the model `cas-register`.

use std::fmt;

/// What a process asks of a register. A read has its value once it has returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Operation {
    Read(Option<u64>),
    Write(u64),
    /// Compare and set.
    Cas {
        old: u64,
        new: u64,
    },
}

/// The beginning or the end of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Invoke,
    Ok,
    Fail,
    Info,
}

/// A line of a history.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Event {
    pub(crate) process: usize,
    pub(crate) kind: Kind,
    pub(crate) operation: Operation,
}

impl Event {
    /// Whether a compare-and-set begins or ends here, in this way.
    pub(crate) fn is_set(&self, kind: Kind) -> bool {
        self.kind == kind && matches!(self.operation, Operation::Cas { .. })
    }

    pub(crate) fn parse(line: &str) -> Option<Self> {
        let fields = line.trim().strip_prefix('{')?.strip_suffix('}')?;
        let kind = match field(fields, ":type")? {
            ":invoke" => Kind::Invoke,
            ":ok" => Kind::Ok,
            ":fail" => Kind::Fail,
            ":info" => Kind::Info,
            _ => return None,
        };
        let process = field(fields, ":process")?.parse().ok()?;
        Some(Self { process, kind, operation: Operation::parse(fields)? })
    }
}

impl Operation {
    pub(crate) fn parse(fields: &str) -> Option<Self> {
        let value = field(fields, ":value")?;
        match field(fields, ":f")? {
            ":read" if value == "nil" => Some(Self::Read(None)),
            ":read" => Some(Self::Read(Some(value.parse().ok()?))),
            ":write" => Some(Self::Write(value.parse().ok()?)),
            ":cas" => {
                let (old, new) = value.strip_prefix('[')?.strip_suffix(']')?.split_once(' ')?;
                Some(Self::Cas { old: old.parse().ok()?, new: new.parse().ok()? })
            }
            _ => None,
        }
    }
}

fn field<'a>(fields: &'a str, name: &str) -> Option<&'a str> {
    fields.split(", ").find_map(|field| field.strip_prefix(name)?.strip_prefix(' '))
}

impl fmt::Display for Event {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Invoke => "invoke",
            Kind::Ok => "ok",
            Kind::Fail => "fail",
            Kind::Info => "info",
        };
        write!(formatter, "{{:process {}, :type :{kind}, {}}}", self.process, self.operation)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(None) => write!(formatter, ":f :read, :value nil"),
            Self::Read(Some(value)) => write!(formatter, ":f :read, :value {value}"),
            Self::Write(value) => write!(formatter, ":f :write, :value {value}"),
            Self::Cas { old, new } => write!(formatter, ":f :cas, :value [{old} {new}]"),
        }
    }
}

pub(crate) fn text(events: &[Event]) -> String {
    events.iter().map(Event::to_string).collect::<Vec<_>>().join("\n")
}

/// The events of a file.
///
/// # Panics
///
/// When a line is not one.
pub(crate) fn parse(text: &str) -> Vec<Event> {
    let event = |line| Event::parse(line).unwrap_or_else(|| panic!("this is no event: {line}"));
    text.lines().map(event).collect()
}

#[test]
fn a_history_is_read_as_it_was_written() {
    let operations = [
        (Kind::Invoke, Operation::Read(None)),
        (Kind::Ok, Operation::Read(Some(17))),
        (Kind::Invoke, Operation::Write(0)),
        (Kind::Fail, Operation::Write(0)),
        (Kind::Invoke, Operation::Cas { old: 17, new: 18 }),
        (Kind::Info, Operation::Cas { old: 17, new: 18 }),
    ];
    let events = operations.map(|(kind, operation)| Event { process: 12, kind, operation });
    assert_eq!(parse(&text(&events)), events);
}
