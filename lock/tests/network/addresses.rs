//! What a URL may contain, and servers on a unix socket.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use crate::common::{SLACK, TIMEOUT, timed};
use wheellock::{Client, Error};
use wheellock_fixture::Server;

fn refused(url: &str) -> String {
    let error = Client::connect(url).unwrap_err();
    assert!(matches!(error, Error::InvalidUrl { .. }), "{error:?}");
    assert!(!error.is_retryable());
    error.to_string()
}

#[cfg(not(feature = "tls"))]
#[test]
fn a_url_that_asks_for_tls_names_the_feature_that_is_missing() {
    for url in ["rediss://:s3cret@127.0.0.1/", "valkeys://127.0.0.1/", "REDISS://127.0.0.1/"] {
        let told = refused(url);
        assert!(told.contains("`tls`") && !told.contains("s3cret"), "{told}");
    }
}

#[test]
fn no_url_parameter_turns_certificate_checks_off() {
    for url in ["redis://127.0.0.1/#insecure", "redis://127.0.0.1/0#insecure"] {
        assert!(refused(url).contains("#insecure is refused"));
    }
    assert!(refused("redis://127.0.0.1/#else").contains("%23"));
    #[cfg(feature = "tls")]
    assert!(refused("rediss://127.0.0.1/#insecure").contains("authority"));
}

#[cfg(unix)]
mod unix {
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use parking_lot::Mutex;
    use socket2::{Domain, SockAddr, Socket, Type};

    use wheellock::Credentials;

    use super::*;

    #[test]
    fn unix_url_query_accepts_only_database_user_and_password() {
        let server = Server::builder().user(&crate::common::user::RULE).unix_socket().start();
        let path = server.unix_socket().display();
        for scheme in ["unix", "redis+unix", "UNIX"] {
            let url = format!("{scheme}://{path}?db=3&user=family&pass=password");
            let client = Client::connect(&url).unwrap();
            let _guard = client.lock("a").lock().unwrap();
            let clients = server.command(&["CLIENT", "LIST"]).text();
            let ours = clients.lines().find(|line| line.contains(" user=family "));
            assert!(ours.unwrap().contains(" db=3 "), "{clients}");
        }
        let wrong = format!("unix://{path}?user=family&pass=wrong");
        let error = Client::connect(&wrong).unwrap_err();
        assert!(matches!(error, Error::Authentication { .. }), "{error:?}");
        assert!(error.to_string().contains(&path.to_string()), "{error}");
        assert!(refused(&format!("unix://{path}?password=s3cret")).contains("nothing else"));
    }

    #[test]
    fn unix_socket_connection_uses_credentials_callback() {
        let server = Server::builder().user(&crate::common::user::RULE).unix_socket().start();
        let url = format!("unix://{}?user=nobody&pass=wrong", server.unix_socket().display());
        let builder = Client::builder().url(&url);
        let error = builder.clone().build().unwrap_err();
        assert!(matches!(error, Error::Authentication { .. }), "{error:?}");
        let password = Arc::new(Mutex::new("password"));
        let asked = Arc::clone(&password);
        let ask = move || Ok(Credentials::new("family", *asked.lock()));
        let client = crate::common::built(builder.credentials(ask));
        client.lock("a").lock().unwrap().unlock().unwrap();
        *password.lock() = "other";
        server.command(&["ACL", "SETUSER", "family", "<password", ">other"]);
        server.command(&["CLIENT", "KILL", "USER", "family"]);
        client.lock("a").lock().unwrap().unlock().unwrap();
        let clients = server.command(&["CLIENT", "LIST"]).text();
        assert!(clients.lines().any(|line| line.contains(" user=family ")), "{clients}");
    }

    #[test]
    fn unix_url_password_is_percent_decoded_for_default_user() {
        let socket = |password: &str| {
            Server::builder().argument("--requirepass", password).unix_socket().start()
        };
        for (password, written) in
            [("s3cret", "s3cret"), ("a&b=c@d/é#%", "a%26b=c%40d/%C3%A9%23%25")]
        {
            let server = socket(password);
            let path = server.unix_socket().display();
            let client = Client::connect(&format!("unix://{path}?pass={written}")).unwrap();
            client.lock("a").lock().unwrap().unlock().unwrap();
            let error = Client::connect(&format!("unix://{path}?pass=wrong")).unwrap_err();
            assert!(matches!(error, Error::Authentication { .. }), "{error:?}");
            assert!(!error.to_string().contains("wrong"), "{error}");
            let nobody = Client::connect(&format!("unix://{path}")).unwrap_err();
            assert!(matches!(nobody, Error::Authentication { .. }), "{nobody:?}");
        }
    }

    #[test]
    fn a_missing_or_closed_unix_socket_is_unreachable() {
        let server = Server::builder().unix_socket().start();
        let url = format!("unix://{}", server.unix_socket().display());
        server.kill();
        for url in [url, "unix:///nowhere/at/all".to_owned()] {
            let error = Client::connect(&url).unwrap_err();
            assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
            assert!(error.is_retryable());
        }
    }

    #[test]
    fn a_unix_socket_that_accepts_no_connection_costs_one_timeout() {
        let directory = Server::builder().unix_socket().start();
        let path = directory.unix_socket().with_file_name("deaf.sock");
        let deaf = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        deaf.bind(&SockAddr::unix(&path).unwrap()).unwrap();
        deaf.listen(0).unwrap();
        // Takes the only place in the backlog. A later connection would wait without end.
        let _first = UnixStream::connect(&path).unwrap();
        let builder = Client::builder().url(&format!("unix://{}", path.display()));
        let (result, took) = timed(|| builder.command_timeout(TIMEOUT).build());
        let error = result.unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
        assert!(took < TIMEOUT + SLACK, "{took:?}");
        #[cfg(target_os = "linux")]
        assert!(took >= TIMEOUT, "it did not wait: {took:?}");
    }

    #[test]
    fn a_server_that_hangs_behind_a_unix_socket_costs_one_timeout() {
        let server = Server::builder().unix_socket().start();
        let builder = Client::builder().url(&format!("unix://{}", server.unix_socket().display()));
        let client = crate::common::built(builder.clone().command_timeout(TIMEOUT));
        server.pause();
        let (result, took) = timed(|| client.lock("a").try_lock());
        let error = result.unwrap_err();
        assert!(error.is_outcome_unknown(), "{error:?}");
        assert!(took < TIMEOUT * 2 + SLACK, "{took:?}");
        let (result, took) = timed(|| builder.command_timeout(TIMEOUT).build());
        assert!(matches!(result, Err(Error::Unreachable { .. })), "{result:?}");
        assert!(took < TIMEOUT + SLACK, "{took:?}");
        server.resume();
    }
}
