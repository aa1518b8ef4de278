//! Whom a client believes over TLS, and as whom it shows itself: where the certificates are.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::Error;

/// How a client speaks TLS: [`ClientBuilder::tls`](crate::ClientBuilder::tls). With the cargo feature `tls`.
///
/// Unless told otherwise, a client believes the authorities that the machine believes, and shows no certificate. The
/// server's certificate must be for the host in the URL, name or address, and must not have expired.
///
/// There is no setting that switches this off. Who does not look whom he speaks to sends the password to whoever
/// answers, and keeps his locks there. A certificate that the server has signed itself is believed by
/// [`authority_file`](Self::authority_file).
///
/// Files are read when the client is built. `Debug` leaves the key out.
///
/// ```no_run
/// use wheellock::{Client, TlsSettings};
///
/// let tls = TlsSettings::new()
///     .authority_file("/etc/locks/authority.pem")
///     .client_certificate_files("/etc/locks/client.pem", "/etc/locks/client-key.pem");
/// let client = Client::builder().url("rediss://redis.internal:6380/").tls(tls).build()?;
/// # Ok::<(), wheellock::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "settings do nothing until a client is built with them"]
pub struct TlsSettings {
    pub(crate) authorities: Vec<Pem>,
    /// The certificates that it shows, its own first, and their key.
    pub(crate) identity: Option<(Pem, Pem)>,
}

/// A text with certificates or a key, or where it is.
#[derive(Clone)]
pub(crate) enum Pem {
    Text(Vec<u8>),
    File(PathBuf),
}

impl TlsSettings {
    /// The machine's authorities, and no certificate of one's own.
    pub fn new() -> Self {
        Self::default()
    }

    /// Believes the certificates in this text, instead of the machine's. Each call adds to them.
    pub fn authority_pem(mut self, certificates: impl Into<Vec<u8>>) -> Self {
        self.authorities.push(Pem::Text(certificates.into()));
        self
    }

    /// The same of a file.
    pub fn authority_file(mut self, path: impl AsRef<Path>) -> Self {
        self.authorities.push(Pem::File(path.as_ref().to_owned()));
        self
    }

    /// Shows a certificate, with those that lead from it to an authority behind it, to a server that asks for one. The
    /// key is PKCS #8, PKCS #1 or SEC 1, and not encrypted.
    pub fn client_certificate_pem(
        mut self,
        certificates: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        self.identity = Some((Pem::Text(certificates.into()), Pem::Text(key.into())));
        self
    }

    /// The same of files.
    pub fn client_certificate_files(
        mut self,
        certificates: impl AsRef<Path>,
        key: impl AsRef<Path>,
    ) -> Self {
        let file = |path: &Path| Pem::File(path.to_owned());
        self.identity = Some((file(certificates.as_ref()), file(key.as_ref())));
        self
    }
}

impl Pem {
    pub(crate) fn read(&self) -> Result<Vec<u8>, Error> {
        match self {
            Self::Text(bytes) => Ok(bytes.clone()),
            Self::File(path) => fs::read(path).map_err(|error| Error::InvalidSetting {
                setting: "tls",
                reason: format!("{}: {error}", path.display()),
            }),
        }
    }
}

/// What was given as a text may be a key.
impl fmt::Debug for Pem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => formatter.write_str("text"),
            Self::File(path) => write!(formatter, "{}", path.display()),
        }
    }
}
