//! The settings of TLS: which certificates a client trusts, and its own.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Error, Reason};

/// How a client uses TLS: [`ClientBuilder::tls`](crate::ClientBuilder::tls). With the cargo feature
/// `tls`.
///
/// By default, a client trusts the system's root certificates and presents no certificate of its
/// own. The server's certificate must be for the host in the URL, name or address, and must not
/// have expired.
///
/// Verification cannot be switched off: a client that does not verify the server sends the password
/// to any server that answers, and keeps its locks there. To trust a self-signed certificate, name
/// it in [`authority_file`](Self::authority_file).
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
    /// The certificates that the client presents, its own first, and their key.
    pub(crate) identity: Option<(Pem, Pem)>,
}

/// A text with certificates or a key, or the path of a file with it.
#[derive(Clone)]
pub(crate) enum Pem {
    Text(Vec<u8>),
    File(PathBuf),
}

impl TlsSettings {
    /// The system's root certificates, and no certificate of the client.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts the certificates in this text instead of the system's. Each call adds to them.
    pub fn authority_pem(mut self, certificates: impl Into<Vec<u8>>) -> Self {
        self.authorities.push(Pem::Text(certificates.into()));
        self
    }

    /// Trusts authorities, as [`authority_pem`](Self::authority_pem) does, from a file.
    pub fn authority_file(mut self, path: impl AsRef<Path>) -> Self {
        self.authorities.push(Pem::File(path.as_ref().to_owned()));
        self
    }

    /// Presents a certificate to a server that asks for one, followed by those that lead from it to
    /// an authority. The key is PKCS #8, PKCS #1 or SEC 1, and not encrypted.
    pub fn client_certificate_pem(
        mut self,
        certificates: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        self.identity = Some((Pem::Text(certificates.into()), Pem::Text(key.into())));
        self
    }

    /// Presents a certificate, as [`client_certificate_pem`](Self::client_certificate_pem) does,
    /// from files.
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
            Self::File(path) => fs::read(path).map_err(|error| {
                Error::invalid_setting("tls", Reason::from(error).in_context(path.display()))
            }),
        }
    }
}

/// Without the text, which may be a key.
impl fmt::Debug for Pem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => formatter.write_str("text"),
            Self::File(path) => write!(formatter, "{}", path.display()),
        }
    }
}
