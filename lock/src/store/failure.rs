//! Why an attempt at an operation got no reply, and whether the operation may have run.

use std::time::Duration;

use crate::error::{Error, Reason, UNEXPECTED, is_transient_code, truncated};
use crate::model::name::LockName;
use crate::ops::Operation;
use crate::ops::recognize::found_in;
use crate::ops::value::{ServerTime, Unexpected};

/// An attempt at one operation that got no reply.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// Not sent: the operation did not run and never will.
    NotSent { server: String, reason: Reason },
    /// The server refused the user or the password. The operation did not run. `transient`: the
    /// next attempt may have other credentials.
    Unauthenticated { server: String, reason: String, transient: bool },
    /// A side did not accept the certificate of its peer, or the two sides share no TLS version or
    /// cipher. The operation did not run.
    TlsFailed { server: String, reason: Reason },
    /// Sent, but not answered. The operation may have run, or may run until the server's clock has
    /// passed `not_after`. `broken`: the connection ended before the time for a reply was over.
    Unknown { not_after: ServerTime, reason: Reason, broken: bool },
    /// The server replied with an error, and the operation had no effect; or the reply cannot be
    /// decoded. The message of a refusal inside a script begins with the command in quotes.
    Refused { code: String, message: String },
    /// Granted, but too few replicas acknowledged the grant in time. The grant must be rolled back.
    NotReplicated { wanted: u32, acknowledged: u32 },
    /// Granted, but the server does not say which replicas have the grant. The grant must be rolled
    /// back.
    NoReplicaAcks { code: String, message: String },
    /// The URL describes a different kind of server. Nothing ran.
    WrongTarget { reason: String },
    /// The keys of this name lie in several hash slots of a cluster. Nothing ran.
    CrossSlot { name: String },
    /// The client was closed.
    Closed,
}

impl Failure {
    /// Returns the failure for an error reply of the server, or for an error that the client
    /// reports in the same form.
    pub(crate) fn refused(code: &str, message: &str) -> Self {
        Self::Refused { code: code.to_owned(), message: message.to_owned() }
    }

    /// Returns the failure for a reply that cannot be decoded: the operation ran, with unknown
    /// outcome.
    pub(crate) fn unexpected(Unexpected(reply): Unexpected) -> Self {
        let message = format!("reply {}", truncated(&format!("{reply:?}")));
        Self::Refused { code: UNEXPECTED.to_owned(), message }
    }

    /// Returns whether the same operation may get a reply when sent again.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::NotSent { .. } | Self::Unknown { .. } => true,
            Self::Refused { code, .. } => is_transient_code(code),
            Self::Unauthenticated { transient, .. } => *transient,
            Self::TlsFailed { .. }
            | Self::NotReplicated { .. }
            | Self::NoReplicaAcks { .. }
            | Self::WrongTarget { .. }
            | Self::CrossSlot { .. }
            | Self::Closed => false,
        }
    }

    /// Returns whether the grant must be rolled back: the server has granted the operation, or may
    /// have, and no copy of the operation is under way. If the server refuses a command inside a
    /// script, the message begins with the command's name in quotes. The script then undoes its
    /// earlier writes, unless the server refuses the undo as well.
    pub(crate) fn needs_roll_back(&self) -> bool {
        match self {
            Self::NotReplicated { .. } | Self::NoReplicaAcks { .. } => true,
            Self::Refused { code, message } => {
                let in_script = message.starts_with('\'') && (code == "NOPERM" || code == "ERR");
                code == UNEXPECTED || in_script
            }
            _ => false,
        }
    }

    /// Returns whether no part of the operation has reached a server or ever will.
    pub(crate) fn is_unsent(&self) -> bool {
        matches!(
            self,
            Self::NotSent { .. }
                | Self::Unauthenticated { .. }
                | Self::TlsFailed { .. }
                | Self::WrongTarget { .. }
                | Self::CrossSlot { .. }
        )
    }

    /// Returns whether the operation may have run, or may still run.
    pub(crate) fn may_have_run(&self) -> bool {
        match self {
            Self::Unknown { .. }
            | Self::NotReplicated { .. }
            | Self::NoReplicaAcks { .. }
            | Self::Closed => true,
            Self::Refused { code, .. } => code == UNEXPECTED,
            Self::NotSent { .. }
            | Self::Unauthenticated { .. }
            | Self::TlsFailed { .. }
            | Self::WrongTarget { .. }
            | Self::CrossSlot { .. } => false,
        }
    }

    /// Returns the code and the message of the server's refusal of the operation or the user.
    /// `None` if the server refused neither.
    pub(crate) fn refusal(&self) -> Option<(&str, &str)> {
        match self {
            Self::Refused { code, message } | Self::NoReplicaAcks { code, message } => {
                Some((code, message))
            }
            Self::Unauthenticated { reason, .. } => reason.split_once(' '),
            _ => None,
        }
    }

    /// Returns whether the connection failed, so an attempt on another connection may succeed at
    /// once.
    pub(crate) fn is_connection_error(&self) -> bool {
        matches!(self, Self::NotSent { .. } | Self::Unknown { broken: true, .. })
    }

    /// Returns whether the server no longer accepts the credentials, and the next connection may
    /// have new credentials.
    pub(crate) fn is_authentication_end(&self) -> bool {
        matches!(self, Self::Unauthenticated { transient: true, .. })
    }

    /// Returns whether the cause is the request, and not the server's state: another request may be
    /// granted.
    pub(crate) fn is_request_error(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if !is_transient_code(code) && code != "OOM")
            || matches!(self, Self::CrossSlot { .. })
    }

    /// Returns whether the key has another type, or the keys of the name are in several hash slots.
    /// The same request is then never granted.
    pub(crate) fn is_wrong_key(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if code == "WRONGTYPE")
            || matches!(self, Self::CrossSlot { .. })
    }

    /// Returns whether the server refused the operation because the keys are on another node, in
    /// several hash slots, or being moved.
    pub(crate) fn is_redirect(&self) -> bool {
        const CODES: [&str; 4] = ["MOVED", "ASK", "TRYAGAIN", "CROSSSLOT"];
        matches!(self, Self::Refused { code, .. } if CODES.contains(&code.as_str()))
    }

    /// Returns whether nothing ran because the names of the request are not in one hash slot, or
    /// their hash slot is being moved.
    pub(crate) fn separates_names(&self) -> bool {
        self.is_cross_slot() || matches!(self, Self::CrossSlot { .. })
    }

    /// Returns whether the server refused the operation because its keys are in several hash slots.
    pub(crate) fn is_in_several_hash_slots(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if code == "CROSSSLOT")
    }

    /// Returns whether the server refused the operation because its keys are in several hash slots,
    /// or their hash slot is being moved. A separate request for each key may then be granted.
    pub(crate) fn is_cross_slot(&self) -> bool {
        self.is_in_several_hash_slots()
            || matches!(self, Self::Refused { code, .. } if code == "TRYAGAIN")
    }

    /// Returns whether an error should report this failure rather than the `later` failure. A
    /// server's refusal is more informative than a failed connection to another server, and a
    /// failed connection is more informative than an attempt without time left.
    pub(crate) fn says_more_than(&self, later: &Self) -> bool {
        match (self, later) {
            (Self::Unauthenticated { transient: false, .. } | Self::WrongTarget { .. }, _)
            | (Self::Refused { .. }, Self::NotSent { .. } | Self::TlsFailed { .. }) => true,
            (Self::NotSent { reason: earlier, .. }, Self::NotSent { reason: later, .. }) => {
                !earlier.is_timeout() && later.is_timeout()
            }
            _ => false,
        }
    }

    /// Returns whether the time was over before anything was sent.
    pub(crate) fn is_unsent_timeout(&self) -> bool {
        matches!(self, Self::NotSent { reason, .. } if reason.is_timeout())
    }

    /// Adds the time `left` to the reason of a timeout, and returns the failure. The attempt had
    /// less time than the settings give, because its call's deadline was near.
    pub(crate) fn cut_off_after(mut self, left: Duration) -> Self {
        if let Self::NotSent { reason, .. } | Self::Unknown { reason, .. } = &mut self
            && reason.is_timeout()
        {
            let limit = format!("within the {left:?} that the call had left");
            *reason = reason.clone().in_context(limit);
        }
        self
    }

    /// Converts the failure to `Unknown`, because an earlier attempt may run until `not_after`.
    /// Failures of TLS, of replicas and of the keys' hash slots stay unchanged.
    pub(crate) fn into_unknown(self, not_after: ServerTime) -> Self {
        let reason = match self {
            Self::NotSent { server, reason } => reason.in_context(server),
            Self::Unauthenticated { server, reason, .. } => format!("{server}: {reason}").into(),
            Self::Refused { code, message } => format!("{code} {message}").into(),
            Self::WrongTarget { reason } => reason.into(),
            Self::Closed => "the client was shut down".into(),
            known => return known,
        };
        Self::Unknown { not_after, reason, broken: false }
    }

    /// Returns the error of an operation on the lock `name`.
    pub(crate) fn into_error<O: Operation + ?Sized>(self, operation: &O, name: &LockName) -> Error {
        let request = operation.request();
        match self {
            Self::Refused { code, message } if code == "WRONGTYPE" => {
                let key = request.wrong_key(&message).unwrap_or(name.as_str());
                Error::WrongType { key: truncated(key), found: found_in(&message) }
            }
            failure => failure.into_error_without_name(request.name),
        }
    }

    /// Returns the error of an operation that concerns no lock.
    pub(crate) fn into_error_without_name(self, operation: &'static str) -> Error {
        match self {
            Self::NotSent { server, reason } => Error::Unreachable { server, reason },
            Self::Unauthenticated { server, reason, .. } => {
                Error::Authentication { server, reason }
            }
            Self::TlsFailed { server, reason } => Error::Tls { server, reason },
            Self::WrongTarget { reason } => Error::InvalidUrl { reason },
            Self::Unknown { reason, .. } => Error::OutcomeUnknown { operation, reason },
            Self::Refused { code, message } => Error::Refused { operation, code, message },
            Self::NotReplicated { wanted, acknowledged } => {
                Error::NotReplicated { wanted, acknowledged }
            }
            Self::NoReplicaAcks { code, message } => {
                Error::Refused { operation: "replica_acks", code, message }
            }
            Self::CrossSlot { name } => Error::InvalidName {
                name,
                reason: "in a cluster braces must enclose something, as in {user}:42, or the \
                         lock's keys lie on several nodes"
                    .to_owned(),
            },
            Self::Closed => Error::Shutdown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::value::Value;

    #[test]
    fn full_memory_is_not_the_fault_of_a_request_nor_transient() {
        let refused = |code| Failure::refused(code, "on purpose");
        let request_errors = ["WRONGTYPE", "NOPERM", "ERR"].map(refused);
        assert!(request_errors.iter().all(Failure::is_request_error));
        let others = ["OOM", "LOADING", "READONLY"].map(refused);
        assert!(!others.iter().any(Failure::is_request_error));
        assert_eq!(others.each_ref().map(Failure::is_transient), [false, true, true]);
    }

    #[test]
    fn an_operation_with_an_unknown_reply_may_have_run() {
        let unknown = Failure::unexpected(Unexpected(Value::Text("maybe".to_owned())));
        assert!(unknown.may_have_run());
        assert!(unknown.into_error_without_name("acquire").is_outcome_unknown());
        let refused = Failure::refused("NOPERM", "on purpose").into_error_without_name("acquire");
        assert!(!refused.is_outcome_unknown());
    }
}
