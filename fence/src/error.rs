//! Why a fenced write was not done.

use std::error::Error;
use std::fmt;

/// Refusal of a write, because a newer holder has written before. Permanent: the lock is lost, and
/// the work done under the lock must not be written.
///
/// In [`FenceError::Stale`]. Created by [`new`](Self::new), for resources of your own.
///
/// ```
/// use wheellock_fence::Stale;
///
/// let stale = Stale::new("orders:42", 6).with_newest(7);
/// assert_eq!(
///     stale.to_string(),
///     "the fencing token 6 is stale: `orders:42` has seen 7"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stale {
    resource: String,
    token: u64,
    newest: Option<u64>,
}

impl Stale {
    /// Creates a refusal of `token` by the resource named `resource`, for resources of your own.
    #[must_use]
    pub fn new(resource: impl Into<String>, token: u64) -> Self {
        Self { resource: resource.into(), token, newest: None }
    }

    /// Sets the newest token that the resource has seen.
    #[must_use]
    pub fn with_newest(mut self, newest: u64) -> Self {
        self.newest = Some(newest);
        self
    }

    /// The name of the resource.
    #[must_use]
    pub fn resource(&self) -> &str {
        &self.resource
    }

    /// The refused token.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.token
    }

    /// The newest token that the resource has seen. `None` if the resource does not report this
    /// token, as after a failed SQL statement.
    #[must_use]
    pub fn newest(&self) -> Option<u64> {
        self.newest
    }
}

impl fmt::Display for Stale {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { resource, token, newest } = self;
        write!(formatter, "the fencing token {token} is stale: `{resource}` has seen ")?;
        match newest {
            Some(newest) => write!(formatter, "{newest}"),
            None => formatter.write_str("a newer token"),
        }
    }
}

impl Error for Stale {}

/// Why a fenced write was not done. `E` is the error of the resource's client.
///
/// Returned by all fenced writes, such as `file::replace` and `sqlite::raise`.
///
/// ```
/// use std::io;
/// use wheellock_fence::{FenceError, Stale};
///
/// fn is_lost(error: &FenceError<io::Error>) -> bool {
///     matches!(error, FenceError::Stale(_))
/// }
/// assert!(is_lost(&FenceError::Stale(Stale::new("report.csv", 6))));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum FenceError<E> {
    /// A newer holder has written before. Nothing was changed. Permanent.
    Stale(Stale),
    /// The token is zero or larger than 2^63 - 1, which no lock draws. Nothing was sent. Permanent.
    InvalidToken {
        /// The token.
        token: u64,
    },
    /// Concurrent writers came first at every attempt. Nothing was changed. Transient.
    Contended {
        /// The name of the resource.
        resource: String,
    },
    /// The resource's own error, which determines whether the write was done and whether a retry
    /// makes sense. A retry with the same token is safe.
    Resource(E),
}

impl<E> From<E> for FenceError<E> {
    fn from(error: E) -> Self {
        Self::Resource(error)
    }
}

impl<E: fmt::Display> fmt::Display for FenceError<E> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stale(stale) => stale.fmt(formatter),
            Self::InvalidToken { token } => {
                write!(formatter, "{token} is no fencing token: a token is between 1 and 2^63 - 1")
            }
            Self::Contended { resource } => {
                write!(formatter, "other writers of `{resource}` came first each time")
            }
            Self::Resource(error) => error.fmt(formatter),
        }
    }
}

impl<E: Error> Error for FenceError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        // The message is the resource error's message, so the source is the resource error's
        // source.
        match self {
            Self::Resource(error) => error.source(),
            Self::Stale(_) | Self::InvalidToken { .. } | Self::Contended { .. } => None,
        }
    }
}

/// Returns the token as a signed number, which every resource can store.
///
/// Fails with [`FenceError::InvalidToken`].
#[cfg_attr(
    not(any(
        feature = "file",
        feature = "object-store",
        feature = "postgres",
        feature = "redis",
        feature = "sqlite"
    )),
    expect(dead_code, reason = "no resource is compiled in")
)]
pub(crate) fn checked<E>(token: u64) -> Result<i64, FenceError<E>> {
    match i64::try_from(token) {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(FenceError::InvalidToken { token }),
    }
}
