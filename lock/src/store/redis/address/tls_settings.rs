//! The settings of TLS: trusted certificates, and the client's certificate.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Error, Reason};

/// How a client uses TLS: [`ClientBuilder::tls`](crate::ClientBuilder::tls). Requires the cargo
/// feature `tls`.
///
/// Created by [`new`](Self::new).
///
/// By default, a client trusts the system's root certificates and presents no certificate of its
/// own. The server's certificate must be for the host in the URL, name or address, and must not
/// have expired.
///
/// Verification cannot be switched off: without verification a client sends the password to any
/// server that answers, and acquires its locks there. To trust a self-signed certificate, name the
/// certificate in [`authority_file`](Self::authority_file).
///
/// Files are read when the client is built. `Debug` omits the key.
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
    /// The certificates to present, the client's certificate first, and the key.
    pub(crate) identity: Option<(Pem, Pem)>,
}

/// A text with certificates or a key, or the path of a file with such a text.
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

    /// Trusts the certificates in this text instead of the system's. Further calls add
    /// certificates.
    pub fn authority_pem(mut self, certificates: impl Into<Vec<u8>>) -> Self {
        self.authorities.push(Pem::Text(certificates.into()));
        self
    }

    /// Trusts authorities from a file, as [`authority_pem`](Self::authority_pem) does from a text.
    pub fn authority_file(mut self, path: impl AsRef<Path>) -> Self {
        self.authorities.push(Pem::File(path.as_ref().to_owned()));
        self
    }

    /// Presents a certificate to servers that request one, followed by the intermediate
    /// certificates up to an authority. The key is PKCS #8, PKCS #1 or SEC 1, and not encrypted.
    pub fn client_certificate_pem(
        mut self,
        certificates: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        self.identity = Some((Pem::Text(certificates.into()), Pem::Text(key.into())));
        self
    }

    /// Presents a certificate from files, as
    /// [`client_certificate_pem`](Self::client_certificate_pem) does from texts.
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
    /// Returns the text, or the contents of the file.
    pub(crate) fn read(&self) -> Result<Vec<u8>, Error> {
        match self {
            Self::Text(bytes) => Ok(bytes.clone()),
            Self::File(path) => fs::read(path).map_err(|error| {
                Error::invalid_setting("tls", Reason::from(error).in_context(path.display()))
            }),
        }
    }
}

/// Omits the text, which may be a key.
impl fmt::Debug for Pem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => formatter.write_str("text"),
            Self::File(path) => write!(formatter, "{}", path.display()),
        }
    }
}
