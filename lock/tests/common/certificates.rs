//! Clients that believe the certificates of a test.

use wheellock::TlsSettings;
use wheellock_fixture::Certificates;

/// Believes the authority, and shows the client's certificate.
pub(crate) fn believing(certificates: &Certificates) -> TlsSettings {
    TlsSettings::new()
        .authority_pem(certificates.authority().text())
        .client_certificate_pem(certificates.client().text(), certificates.client_key().text())
}
