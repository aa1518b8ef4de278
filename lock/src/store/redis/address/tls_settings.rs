//! The settings of TLS: trusted certificates, and the client's certificate.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Error, Reason};

/// The certificates of a client that connects over TLS. Requires the cargo feature `tls`.
///
/// Created by [`new`](Self::new). The argument of
/// [`ClientBuilder::tls`](crate::ClientBuilder::tls).
///
/// By default, a client trusts the system's root certificates and presents no certificate of its
/// own. The server's certificate must be for the host in the URL, a name or an address, and must
/// not have expired.
///
/// Verification cannot be switched off: without verification a client would send the password to
/// any server that answers, and would acquire its locks there. To trust a self-signed certificate,
/// pass the certificate to [`authority_file`](Self::authority_file).
///
/// [`build`](crate::ClientBuilder::build) reads the files, and returns an
/// [`Error::InvalidSetting`] if a file, a certificate or a key cannot be read. `Debug` omits the
/// key.
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
    /// Creates the default settings: the system's root certificates, and no certificate of the
    /// client.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts the authorities whose certificates are in this PEM text, instead of the system's root
    /// certificates.
    ///
    /// The text has at least one certificate. Further calls of this method and of
    /// [`authority_file`](Self::authority_file) add certificates.
    pub fn authority_pem(mut self, certificates: impl Into<Vec<u8>>) -> Self {
        self.authorities.push(Pem::Text(certificates.into()));
        self
    }

    /// Trusts the authorities whose certificates are in this PEM file, instead of the system's root
    /// certificates.
    ///
    /// The file has at least one certificate. Further calls of this method and of
    /// [`authority_pem`](Self::authority_pem) add certificates.
    pub fn authority_file(mut self, path: impl AsRef<Path>) -> Self {
        self.authorities.push(Pem::File(path.as_ref().to_owned()));
        self
    }

    /// Sets the client's certificate and private key, from PEM texts.
    ///
    /// The client presents the certificate to a server that requests a certificate. `certificates`
    /// has the client's certificate, followed by the intermediate certificates up to an authority.
    /// `key` is a private key in the form PKCS #8, PKCS #1 or SEC 1, and not encrypted. The last
    /// call of this method or of [`client_certificate_files`](Self::client_certificate_files)
    /// counts.
    pub fn client_certificate_pem(
        mut self,
        certificates: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        self.identity = Some((Pem::Text(certificates.into()), Pem::Text(key.into())));
        self
    }

    /// Sets the client's certificate and private key, from PEM files.
    ///
    /// The content of the files is described at
    /// [`client_certificate_pem`](Self::client_certificate_pem). The last call of either method
    /// counts.
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
