//! Whom a client believes and as whom it shows itself, made ready for the handshake.

use std::fmt;
use std::sync::{Arc, OnceLock};

use rustls::client::Resumption;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::error::Error;
use crate::tls_settings::{Pem, TlsSettings};

#[derive(Clone)]
pub(super) struct Trust(Arc<ClientConfig>);

impl Trust {
    /// Reads what the settings name. No message holds a piece of it: it may be the key.
    pub(super) fn new(settings: &TlsSettings) -> Result<Self, Error> {
        let roots = match settings.authorities.as_slice() {
            [] => platform_roots()?,
            authorities => Arc::new(roots(authorities)?),
        };
        // Chosen here: the process's default may be another crate's choice, or none.
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| wrong(error.to_string()))?
            .with_root_certificates(roots);
        let mut config = match &settings.identity {
            None => builder.with_no_client_auth(),
            Some((certificates, key)) => {
                let key = PrivateKeyDer::from_pem_slice(&key.read()?)
                    .map_err(|_| wrong("there is no private key that can be read"))?;
                builder
                    .with_client_auth_cert(read_certificates(certificates)?, key)
                    .map_err(|error| wrong(format!("the client's certificate: {error}")))?
            }
        };
        // What it remembers of sessions is behind a mutex, which the child of a fork could find locked for ever. A
        // connection is made so seldom that it may pay for a whole handshake.
        config.resumption = Resumption::disabled();
        Ok(Self(Arc::new(config)))
    }

    pub(super) fn config(&self) -> &Arc<ClientConfig> {
        &self.0
    }
}

fn roots(authorities: &[Pem]) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        for certificate in read_certificates(authority)? {
            roots.add(certificate).map_err(|error| wrong(format!("an authority: {error}")))?;
        }
    }
    Ok(roots)
}

/// At least one.
fn read_certificates(pem: &Pem) -> Result<Vec<CertificateDer<'static>>, Error> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(&pem.read()?)
        .collect::<Result<_, _>>()
        .map_err(|_| wrong("a certificate cannot be read: it is not in the form of PEM"))?;
    if certificates.is_empty() {
        return Err(wrong("there is no certificate where one should be"));
    }
    Ok(certificates)
}

/// The machine's, read when they are first needed and then kept: there are hundreds.
fn platform_roots() -> Result<Arc<RootCertStore>, Error> {
    static KEPT: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    if let Some(kept) = KEPT.get() {
        return Ok(Arc::clone(kept));
    }
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // Some of a machine's are always too odd to be of use.
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let reason = "this machine has no authorities that it believes; name one";
        return Err(wrong(match found.errors.first() {
            Some(error) => format!("{reason} ({error})"),
            None => reason.to_owned(),
        }));
    }
    Ok(Arc::clone(KEPT.get_or_init(|| Arc::new(roots))))
}

fn wrong(reason: impl Into<String>) -> Error {
    Error::InvalidSetting { setting: "tls", reason: reason.into() }
}

impl fmt::Debug for Trust {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Trust").finish_non_exhaustive()
    }
}
