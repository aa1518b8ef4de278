//! Why an operation gave no reply, and what is known of it: whether it ran.

use crate::error::{Error, passes_by_itself, shortened};
use crate::name::LockName;
use crate::value::{ServerTime, Unexpected};

/// An attempt at one operation that gave no reply.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// It was not sent. It did not run and never will.
    NotSent { server: String, reason: String },
    /// The server refused the user or the password. It did not run. `passes`: they may be others at the next try.
    Unauthenticated { server: String, reason: String, passes: bool },
    /// One side did not believe the other's certificate, or TLS could not be agreed on. It did not run.
    Distrusted { server: String, reason: String },
    /// It was sent. It may have run, or may still run until the server's clock is past `not_after`. `broken`: the
    /// connection was closed, before the time for an answer was over.
    Unknown { not_after: ServerTime, reason: String, broken: bool },
    /// The server answered an error. It did not take effect.
    Refused { code: String, message: String },
    /// It was granted, and too few replicas heard of it in time. It must not be kept.
    NotReplicated { wanted: u32, acknowledged: u32 },
    /// It was granted, and the server does not say which replicas heard of it. It must not be kept.
    NoReplicaAcks { code: String, message: String },
    /// The names that are made of this one are of several slots of a cluster. Nothing was sent.
    Scattered { name: String },
    /// The client was closed.
    Closed,
}

impl Failure {
    /// A reply that cannot be read: it ran, and told us nothing.
    pub(crate) fn unexpected(Unexpected(reply): Unexpected) -> Self {
        let message = format!("reply {}", shortened(&format!("{reply:?}")));
        Self::Refused { code: "UNEXPECTED".to_owned(), message }
    }

    /// Whether the same operation may get a reply if it is sent again.
    pub(crate) fn passes(&self) -> bool {
        match self {
            Self::NotSent { .. } | Self::Unknown { .. } => true,
            Self::Refused { code, .. } => passes_by_itself(code),
            Self::Unauthenticated { passes, .. } => *passes,
            Self::Distrusted { .. }
            | Self::NotReplicated { .. }
            | Self::NoReplicaAcks { .. }
            | Self::Scattered { .. }
            | Self::Closed => false,
        }
    }

    /// Whether the server has granted it, and it must not be kept.
    pub(crate) fn was_granted(&self) -> bool {
        matches!(self, Self::NotReplicated { .. } | Self::NoReplicaAcks { .. })
    }

    /// Whether the connection was to blame, so that another may serve at once.
    pub(crate) fn is_broken(&self) -> bool {
        matches!(self, Self::NotSent { .. } | Self::Unknown { broken: true, .. })
    }

    /// Whether the server has refused this request, while another may be granted: not the server's state is to blame,
    /// but something in the request.
    pub(crate) fn is_of_the_request(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if !passes_by_itself(code) && code != "OOM")
            || matches!(self, Self::Scattered { .. })
    }

    /// Whether the server has refused this request for where its keys lie: elsewhere, or on their way.
    pub(crate) fn is_of_the_place(&self) -> bool {
        const CODES: [&str; 4] = ["MOVED", "ASK", "TRYAGAIN", "CROSSSLOT"];
        matches!(self, Self::Refused { code, .. } if CODES.contains(&code.as_str()))
    }

    /// Whether it was refused because its keys do not lie together, so that each alone may be granted.
    pub(crate) fn parts_keys(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if code == "TRYAGAIN" || code == "CROSSSLOT")
    }

    /// The same, after an earlier attempt that may have run.
    pub(crate) fn in_doubt(self, not_after: ServerTime) -> Self {
        let reason = match self {
            Self::NotSent { server, reason } | Self::Unauthenticated { server, reason, .. } => {
                format!("{server}: {reason}")
            }
            Self::Refused { code, message } => format!("{code} {message}"),
            known => return known,
        };
        Self::Unknown { not_after, reason, broken: false }
    }

    /// What the caller is told of an attempt to connect.
    pub(crate) fn into_connect_error(self) -> Error {
        self.told("connect", None)
    }

    /// What the caller is told of an operation on the lock `name`.
    pub(crate) fn into_error(self, operation: &'static str, name: &LockName) -> Error {
        self.told(operation, Some(name))
    }

    fn told(self, operation: &'static str, name: Option<&LockName>) -> Error {
        match self {
            Self::NotSent { server, reason } => Error::Unreachable { server, reason },
            Self::Unauthenticated { server, reason, .. } => {
                Error::Authentication { server, reason }
            }
            Self::Distrusted { server, reason } => Error::Tls { server, reason },
            Self::Unknown { reason, .. } => Error::OutcomeUnknown { operation, reason },
            Self::Refused { code, message } => match name {
                Some(name) if code == "WRONGTYPE" => Error::WrongType { name: name.shown() },
                _ => Error::Refused { operation, code, message },
            },
            Self::NotReplicated { wanted, acknowledged } => {
                Error::NotReplicated { wanted, acknowledged }
            }
            Self::NoReplicaAcks { code, message } => {
                Error::Refused { operation: "replica_acks", code, message }
            }
            Self::Scattered { name } => Error::InvalidName {
                name,
                reason: "in a cluster braces must enclose something, as in {user}:42, or the lock's keys would lie on \
                         several nodes"
                    .to_owned(),
            },
            Self::Closed => Error::Shutdown,
        }
    }
}
