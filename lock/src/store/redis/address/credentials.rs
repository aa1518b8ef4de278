//! Users and passwords, and the callback that gives them for each connection.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// A user of the server and its password, for
/// [`ClientBuilder::credentials`](crate::ClientBuilder::credentials). `Debug` leaves the password
/// out.
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
    /// A user and its password.
    #[must_use]
    pub fn new(username: impl Into<String>, password: impl Into<String>) -> Self {
        Self { username: Some(username.into()), password: password.into() }
    }

    /// The password of the user in the URL, or of the server's default user if the URL has none.
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

/// The program's callback that gives credentials.
#[derive(Clone)]
pub(crate) struct CredentialsSource(Arc<Callback>);

type Callback = dyn Fn() -> Result<Credentials, Box<dyn Error + Send + Sync>> + Send + Sync;

impl CredentialsSource {
    pub(crate) fn new(
        callback: impl Fn() -> Result<Credentials, Box<dyn Error + Send + Sync>> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(callback))
    }

    /// Calls it. It is foreign code and may block or panic (DESIGN: foreign code).
    pub(crate) fn call(&self) -> Result<Credentials, Box<dyn Error + Send + Sync>> {
        (self.0)()
    }
}

impl fmt::Debug for CredentialsSource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("CredentialsSource").finish_non_exhaustive()
    }
}
