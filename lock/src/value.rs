//! What a server answers, in a form that knows no client library.

/// A moment by the server's wall clock, in milliseconds since its epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ServerTime(pub(crate) i64);

/// One reply, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Nil,
    Integer(i64),
    Text(String),
    Array(Vec<Value>),
    /// An error that the server answered: its first word and the rest.
    Refusal {
        code: String,
        message: String,
    },
}

/// A reply of a form that no version of the operation gives: somebody else's script, or no Redis at all.
#[derive(Clone, Debug)]
pub(crate) struct Unexpected(pub(crate) Value);

/// The word that a script answers when its not-after has passed.
const LATE: &str = "LATE";

impl Value {
    /// The answer of a script that arrived after its not-after, and so did nothing. It carries the server's time, from
    /// which the sender learns what to set it to.
    pub(crate) fn late(now: ServerTime) -> Self {
        Self::Array(vec![Self::Text(LATE.to_owned()), Self::Integer(now.0)])
    }

    pub(crate) fn as_late(&self) -> Option<ServerTime> {
        match self {
            Self::Array(parts) => match parts.as_slice() {
                [Self::Text(word), Self::Integer(now)] if word == LATE => Some(ServerTime(*now)),
                _ => None,
            },
            _ => None,
        }
    }

    pub(crate) fn wrong_type() -> Self {
        Self::Refusal {
            code: "WRONGTYPE".to_owned(),
            message: "Operation against a key holding the wrong kind of value".to_owned(),
        }
    }
}
