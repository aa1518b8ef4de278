//! The columns: what can happen to an operation, and how often.

use crate::servers::Kind;

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Refused,
    RequestDropped,
    ReplyDropped,
    Delayed,
    Cut,
    ResetBefore,
    ResetAfter,
    HalfOpen,
    NoScript,
    ReadOnly,
    Loading,
    Busy,
    OutOfMemory,
    Moved,
    Ask,
    TryAgain,
    ClusterDown,
    WrongType,
    Restarted,
}

/// How often it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Times {
    /// To the first try.
    First,
    /// To every try, for as long as [`WINDOW`](crate::cell::WINDOW).
    Every,
}

impl Fault {
    const ALL: [Self; 19] = [
        Self::Refused,
        Self::RequestDropped,
        Self::ReplyDropped,
        Self::Delayed,
        Self::Cut,
        Self::ResetBefore,
        Self::ResetAfter,
        Self::HalfOpen,
        Self::NoScript,
        Self::ReadOnly,
        Self::Loading,
        Self::Busy,
        Self::OutOfMemory,
        Self::Moved,
        Self::Ask,
        Self::TryAgain,
        Self::ClusterDown,
        Self::WrongType,
        Self::Restarted,
    ];

    /// The faults that a client of this kind can meet.
    pub(crate) fn of(kind: Kind) -> impl Iterator<Item = Self> {
        let meets = move |fault: &Self| *fault != Self::TryAgain || kind == Kind::InCluster;
        Self::ALL.into_iter().filter(meets)
    }

    /// Whether the server answers all the same, or soon again. A node of a cluster that has restarted
    /// takes longer than a call has time for.
    pub(crate) fn is_answered(self, kind: Kind) -> bool {
        use Fault::{
            Ask, Busy, ClusterDown, Loading, Moved, NoScript, OutOfMemory, ReadOnly, Restarted,
            TryAgain, WrongType,
        };
        match self {
            NoScript | ReadOnly | Loading | Busy | OutOfMemory | Moved | Ask | TryAgain
            | ClusterDown | WrongType => true,
            Restarted => kind != Kind::InCluster,
            _ => false,
        }
    }

    /// Whether no call is repeated after the server's answer.
    pub(crate) fn ends_the_call(self) -> bool {
        matches!(self, Self::OutOfMemory | Self::WrongType)
    }

    /// Its name in the table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Refused => "connection refused",
            Self::RequestDropped => "request dropped",
            Self::ReplyDropped => "reply dropped",
            Self::Delayed => "delayed beyond the timeout",
            Self::Cut => "reply cut",
            Self::ResetBefore => "reset before it ran",
            Self::ResetAfter => "reset after it ran",
            Self::HalfOpen => "half-open",
            Self::NoScript => "`NOSCRIPT`",
            Self::ReadOnly => "`READONLY`",
            Self::Loading => "`LOADING`",
            Self::Busy => "`BUSY`",
            Self::OutOfMemory => "`OOM`",
            Self::Moved => "`MOVED`",
            Self::Ask => "`ASK`",
            Self::TryAgain => "`TRYAGAIN`",
            Self::ClusterDown => "`CLUSTERDOWN`",
            Self::WrongType => "`WRONGTYPE`",
            Self::Restarted => "restarted empty",
        }
    }

    /// The error that stands in the place of an answer, if that is all there is to it. `elsewhere`
    /// are the slot and the address that `MOVED` and `ASK` name.
    pub(crate) fn answer(self, kind: Kind, elsewhere: &str) -> Option<String> {
        let error = match self {
            Self::NoScript => "NOSCRIPT No matching script. Please use EVAL.",
            Self::Loading => "LOADING Redis is loading the dataset in memory",
            Self::Busy => {
                "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."
            }
            Self::Moved => &format!("MOVED {elsewhere}"),
            Self::Ask => &format!("ASK {elsewhere}"),
            Self::TryAgain => "TRYAGAIN Multiple keys request during rehashing of slot",
            Self::ClusterDown => "CLUSTERDOWN The cluster is down",
            // A node cannot be told to follow a server outside its cluster.
            Self::ReadOnly if kind == Kind::InCluster => {
                "READONLY You can't write against a read only replica."
            }
            _ => return None,
        };
        Some(format!("-{error}\r\n"))
    }

    /// Whether it redirects the client.
    pub(crate) fn sends_elsewhere(self) -> bool {
        matches!(self, Self::Moved | Self::Ask)
    }

    /// Whether it takes away what the server had acknowledged, so that a holder from before may not
    /// be alone.
    pub(crate) fn takes_keys_away(self) -> bool {
        matches!(self, Self::WrongType | Self::Restarted)
    }
}

/// How many bytes of a reply get through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    After(usize),
    BeforeEnd(usize),
}

impl Cut {
    /// The cuts that are drawn from: nothing, a byte, two, all but two bytes, all but one.
    pub(crate) const ALL: [Self; 5] =
        [Self::After(0), Self::After(1), Self::After(2), Self::BeforeEnd(2), Self::BeforeEnd(1)];

    pub(crate) fn describe(self) -> String {
        match self {
            Self::After(bytes) => format!("cut after {bytes} bytes"),
            Self::BeforeEnd(bytes) => format!("cut {bytes} bytes before the end"),
        }
    }
}
