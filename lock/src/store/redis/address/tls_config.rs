//! The configuration of TLS handshakes: trusted certificates and the client's own.

use std::fmt;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::error::{Error, Reason};
use crate::store::redis::address::tls_settings::{Pem, TlsSettings};

/// The configuration of the TLS handshakes of one client.
#[derive(Clone)]
pub(crate) struct TlsConfig(Arc<ClientConfig>);

impl TlsConfig {
    /// Reads the certificates and the key of `settings`. An error contains no part of the texts,
    /// which may be a part of the key.
    pub(crate) fn new(settings: &TlsSettings) -> Result<Self, Error> {
        let roots = match settings.authorities.as_slice() {
            [] => platform_roots()?,
            authorities => roots(authorities)?,
        };
        // Not the process's default provider: another crate may have set a default, or none is set.
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| invalid(Reason::caused_by(error)))?
            .with_root_certificates(roots);
        let mut config = match &settings.identity {
            None => builder.with_no_client_auth(),
            Some((certificates, key)) => {
                let key = PrivateKeyDer::from_pem_slice(&key.read()?)
                    .map_err(|_| invalid("no private key can be read"))?;
                builder.with_client_auth_cert(read_certificates(certificates)?, key).map_err(
                    |error| {
                        invalid(Reason::caused_by(error).in_context("the client's certificate"))
                    },
                )?
            }
        };
        // Connections are rare enough to pay for a whole handshake.
        config.resumption = Resumption::disabled();
        Ok(Self(Arc::new(config)))
    }

    pub(crate) fn config(&self) -> &Arc<ClientConfig> {
        &self.0
    }
}

/// Reads the certificates of the authorities to trust.
fn roots(authorities: &[Pem]) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        for certificate in read_certificates(authority)? {
            roots
                .add(certificate)
                .map_err(|error| invalid(Reason::caused_by(error).in_context("an authority")))?;
        }
    }
    Ok(roots)
}

/// Reads the certificates of `pem`. A text without a certificate is an error.
fn read_certificates(pem: &Pem) -> Result<Vec<CertificateDer<'static>>, Error> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(&pem.read()?)
        .collect::<Result<_, _>>()
        .map_err(|_| invalid("a certificate cannot be read: it is not in the PEM format"))?;
    if certificates.is_empty() {
        return Err(invalid("no certificate found in the PEM text"));
    }
    Ok(certificates)
}

/// Reads the system's root certificates, for each client again: a static would be another cell for
/// a fork to copy while a thread fills it.
fn platform_roots() -> Result<RootCertStore, Error> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // rustls cannot use some of a system's certificates.
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let reason = "no system root certificates found; name an authority";
        return Err(invalid(match found.errors.first() {
            Some(error) => format!("{reason} ({error})"),
            None => reason.to_owned(),
        }));
    }
    Ok(roots)
}

/// Returns the error of the setting `tls`.
fn invalid(reason: impl Into<Reason>) -> Error {
    Error::invalid_setting("tls", reason)
}

impl fmt::Debug for TlsConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("TlsConfig").finish_non_exhaustive()
    }
}
