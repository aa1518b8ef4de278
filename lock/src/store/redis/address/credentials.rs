//! Users and passwords, and the callback that supplies them for each connection.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// A password for the server, and perhaps a user.
///
/// Created by [`new`](Self::new) or [`password`](Self::password). The result of the function for
/// [`ClientBuilder::credentials`](crate::ClientBuilder::credentials). `Debug` omits the password.
///
/// ```
/// use wheellock::Credentials;
///
/// let credentials = Credentials::new("locks", "s3cret");
/// assert!(!format!("{credentials:?}").contains("s3cret"));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub(crate) username: Option<String>,
    pub(crate) password: String,
}

impl Credentials {
    /// Creates credentials with a user and a password.
    #[must_use]
    pub fn new(username: impl Into<String>, password: impl Into<String>) -> Self {
        Self { username: Some(username.into()), password: password.into() }
    }

    /// Creates credentials with a password and without a user.
    ///
    /// The client then uses the user in the URL, or the server's default user if the URL has no
    /// user.
    #[must_use]
    pub fn password(password: impl Into<String>) -> Self {
        Self { username: None, password: password.into() }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Credentials")
            .field("username", &self.username)
            .finish_non_exhaustive()
    }
}

/// The program's callback for credentials.
#[derive(Clone)]
pub(crate) struct CredentialsSource(Arc<Callback>);

type Callback = dyn Fn() -> Result<Credentials, Box<dyn Error + Send + Sync>> + Send + Sync;

impl CredentialsSource {
    pub(crate) fn new(
        callback: impl Fn() -> Result<Credentials, Box<dyn Error + Send + Sync>> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(callback))
    }

    /// Calls the callback, which is foreign code: it may block forever or panic. So `single_flight`
    /// runs each call on a separate thread, one at a time. If the callback fails, or the server
    /// refuses the credentials, the failure is transient, as the next call may return other
    /// credentials.
    pub(crate) fn call(&self) -> Result<Credentials, Box<dyn Error + Send + Sync>> {
        (self.0)()
    }
}

impl fmt::Debug for CredentialsSource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("CredentialsSource").finish_non_exhaustive()
    }
}
