//! The result of a diagnosis, as plain data.

use std::fmt;

use crate::error::Error;

/// The findings of [`Client::diagnose`](crate::Client::diagnose).
///
/// ```
/// use wheellock::{CheckState, Client};
///
/// let diagnosis = Client::in_memory().diagnose()?;
/// assert_eq!(diagnosis.state, CheckState::Ok);
/// for check in &diagnosis.checks {
///     println!("{}: {}: {}", check.name, check.state, check.found);
/// }
/// # Ok::<(), wheellock::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Diagnosis {
    /// The worst state of all checks.
    pub state: CheckState,
    /// The checks, each name once, in an order that is the same for every diagnosis.
    pub checks: Vec<Check>,
}

/// A check of a [`Diagnosis`].
///
/// In [`Diagnosis::checks`].
///
/// ```
/// use wheellock::Client;
///
/// let diagnosis = Client::in_memory().diagnose()?;
/// assert_eq!(diagnosis.checks[0].name, "connection");
/// assert_eq!(diagnosis.checks[0].repair, None);
/// # Ok::<(), wheellock::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Check {
    /// The stable name of the check: `connection`, `server`, `topology`, `permissions`,
    /// `permissions_other`, `eviction`, `persistence`, `replicas`, `failover`, `clock`, `latency`,
    /// `hand_over`, `idle_connections` or `redisson`. The [guide](crate::guide::operations#doctor)
    /// describes each check.
    pub name: &'static str,
    /// The result of the check.
    pub state: CheckState,
    /// The finding, as a sentence for people, in a single line.
    pub found: String,
    /// The recommended repair, such as a command to the server. `Some` if the state is
    /// [`Warn`](CheckState::Warn) or [`Fail`](CheckState::Fail) and a repair is known.
    pub repair: Option<String>,
}

/// The result of a [`Check`]. The values are ordered from good to bad.
///
/// In [`Check::state`], and the worst in [`Diagnosis::state`].
///
/// ```
/// use wheellock::CheckState;
///
/// assert!(CheckState::Warn < CheckState::Fail);
/// assert_eq!(CheckState::Warn.to_string(), "warn");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum CheckState {
    /// Nothing is wrong.
    Ok,
    /// The server does not report the value, or this user may not query the server. The missing
    /// value alone endangers no lock.
    NotChecked,
    /// Locks work, but are slow or in danger.
    Warn,
    /// Locks do not work, or are lost in normal use.
    Fail,
}

impl fmt::Display for CheckState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Ok => "ok",
            Self::NotChecked => "not checked",
            Self::Warn => "warn",
            Self::Fail => "fail",
        })
    }
}

impl Diagnosis {
    /// Returns a diagnosis whose only check, `connection`, has failed with the text of `error`.
    ///
    /// For an error of [`diagnose`](crate::Client::diagnose) or of building a client, so that a
    /// report of an unreachable server has the same form. The check has a repair for an error of
    /// the network, the credentials, TLS or the eviction policy.
    ///
    /// ```
    /// use wheellock::{CheckState, Client, Diagnosis, Memory};
    ///
    /// let memory = Memory::new();
    /// let client = Client::builder().in_memory(&memory).build()?;
    /// memory.set_unreachable(true);
    /// let error = client.diagnose().unwrap_err();
    /// assert_eq!(Diagnosis::from_error(&error).state, CheckState::Fail);
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    #[must_use]
    pub fn from_error(error: &Error) -> Self {
        let repair = match error {
            Error::Unreachable { .. } => Some("check the address, the network and the server"),
            Error::Authentication { .. } => {
                Some("check the user, the password and the permissions")
            }
            Error::Tls { .. } => Some("check the certificates of both sides"),
            Error::Eviction { .. } => Some("CONFIG SET maxmemory-policy noeviction"),
            _ => None,
        };
        Self::of(vec![Check::new("connection", CheckState::Fail, error.to_string(), repair)])
    }

    /// Returns the diagnosis of `checks`, in the worst of their states.
    pub(crate) fn of(checks: Vec<Check>) -> Self {
        let state = checks.iter().map(|check| check.state).max().unwrap_or(CheckState::Ok);
        Self { state, checks }
    }
}

impl Check {
    /// Returns the check `name` with the finding `found`.
    pub(crate) fn new<R: Into<String>>(
        name: &'static str,
        state: CheckState,
        found: impl Into<String>,
        repair: Option<R>,
    ) -> Self {
        Self { name, state, found: found.into(), repair: repair.map(Into::into) }
    }

    /// Returns a check that found nothing wrong.
    pub(crate) fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self::new(name, CheckState::Ok, found, None::<String>)
    }

    /// Returns a check that found a danger or a delay.
    pub(crate) fn warn(
        name: &'static str,
        found: impl Into<String>,
        repair: impl Into<String>,
    ) -> Self {
        Self::new(name, CheckState::Warn, found, Some(repair))
    }

    /// Returns a check that found a failure.
    pub(crate) fn fail(
        name: &'static str,
        found: impl Into<String>,
        repair: impl Into<String>,
    ) -> Self {
        Self::new(name, CheckState::Fail, found, Some(repair))
    }

    /// Returns a check without a result, and the reason `why` as the finding.
    pub(crate) fn not_checked(name: &'static str, why: impl Into<String>) -> Self {
        Self::new(name, CheckState::NotChecked, why, None::<String>)
    }
}
