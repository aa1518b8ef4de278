//! Clients that trust the certificates of a test, and the ports of their connections.

use wheellock::TlsSettings;
use wheellock_fixture::{Certificates, Server};

/// Believes the authority, and shows the client's certificate.
pub(crate) fn believing(certificates: &Certificates) -> TlsSettings {
    TlsSettings::new()
        .authority_pem(certificates.authority().text())
        .client_certificate_pem(certificates.client().text(), certificates.client_key().text())
}

/// How many connections a user has to a server, each of which must have come to the port for TLS.
pub(crate) fn ours_over_tls(server: &Server, user: &str) -> usize {
    let clients = server.command(&["CLIENT", "LIST"]).text();
    let (user, port) = (format!(" user={user} "), format!(" laddr={} ", server.tls_address()));
    let ours: Vec<&str> = clients.lines().filter(|line| line.contains(&user)).collect();
    assert!(ours.iter().all(|line| line.contains(&port)), "{ours:?}");
    ours.len()
}
