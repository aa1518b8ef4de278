//! The command, built with its default features, and servers that speak TLS.

use wheellock_fixture::{Certificates, ClientCertificates, Server, TestProcess};

use crate::support::{FAILED, NAME, SUCCESS, ended, wheellock};

#[test]
fn a_server_with_tls_is_used_if_its_authority_is_trusted() {
    let certificates = Certificates::new();
    let server = Server::builder().tls(&certificates, ClientCertificates::Ignored).start();
    let run = |authority: &Certificates| {
        let mut command = wheellock(&["run", NAME, "--", "sh", "-c", "echo $WHEELLOCK_OWNER"]);
        command.env("REDIS_URL", server.tls_url()).env_remove("SSL_CERT_DIR");
        command.env("SSL_CERT_FILE", authority.authority().path());
        ended(TestProcess::spawn(&mut command))
    };
    let (code, output) = run(&certificates);
    assert_eq!(code, SUCCESS, "{output}");
    assert!(output.contains(':'), "{output}");
    let (code, output) = run(&Certificates::new());
    assert_eq!(code, FAILED, "{output}");
    assert!(output.contains("certificate"), "{output}");
}
