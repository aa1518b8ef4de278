//! No password and no key is in what a program prints: settings, clients, errors, events.

use std::fmt::Debug;
use std::time::Duration;

use crate::common::ProxiedServer;
use wheellock::{Client, ClientBuilder, Credentials, Error};
use wheellock_fixture::{Fault, Server};

/// With letters that a URL has to write in another way.
const SECRET: &str = "s3cret/#?";
const IN_URL: &str = "s3cret%2F%23%3F";
/// The command timeout: long enough for a server that answers, on a busy machine.
const PATIENT: Duration = Duration::from_secs(2);

/// What the program may print of it, and what it must not.
fn look_at(what: &impl Debug) {
    let text = format!("{what:?} {what:#?}");
    assert!(!text.contains("s3cret"), "{text}");
}

/// Builds a client, and looks at all that comes of it. Gives back what does.
fn built(builder: ClientBuilder) -> Result<Client, Error> {
    let builder = builder.command_timeout(PATIENT);
    look_at(&builder);
    let built = builder.build();
    match &built {
        Ok(client) => {
            look_at(client);
            look_at(&client.lock("a"));
        }
        Err(error) => {
            look_at(error);
            look_at(&error.to_string());
        }
    }
    built
}

/// A server whose user has the secret as its password.
fn server() -> Server {
    let rule = crate::common::user::RULE.replace(">password", &format!(">{SECRET}"));
    let builder = Server::builder().user(&rule);
    #[cfg(unix)]
    let builder = builder.unix_socket();
    builder.start()
}

#[test]
fn a_connected_client_shows_no_secret() {
    let server = server();
    let url = format!("redis://family:{IN_URL}@{}/", server.address());
    drop(built(Client::builder().url(&url)).unwrap());
    #[cfg(unix)]
    {
        let path = server.unix_socket().display();
        let url = format!("unix://{path}?user=family&pass={IN_URL}");
        drop(built(Client::builder().url(&url)).unwrap());
    }
    let asks = Client::builder().url(&server.url()).credentials(|| {
        let credentials = Credentials::new("family", SECRET);
        look_at(&credentials);
        Ok(credentials)
    });
    let client = built(asks).unwrap();
    server.kill();
    let error = client.lock("a").try_lock().unwrap_err();
    look_at(&error);
    look_at(&error.to_string());
    look_at(&client);
}

#[test]
fn of_a_url_that_cannot_be_read() {
    for wrong in [
        format!("redis://:{IN_URL}@host:99999/"),
        format!("redis://:{SECRET}@host/"),
        format!("redis://family:{IN_URL}@host/s3cret"),
        format!("redis://family:{IN_URL}@host/#s3cret"),
        format!("redis://family:{IN_URL}@host/#insecure"),
        format!("http://:{IN_URL}@host/"),
        format!("rediss://:{IN_URL}@host/#s3cret"),
        format!("rediss://:{IN_URL}@host:99999/"),
        format!("unix:///a?pass={IN_URL}&db=s3cret"),
        format!("unix:///a?s3cret={IN_URL}"),
        format!("unix://host/a?pass={IN_URL}"),
        SECRET.to_owned(),
    ] {
        let error = built(Client::builder().url(&wrong)).unwrap_err();
        assert!(matches!(error, Error::InvalidUrl { .. }), "{error:?}");
    }
}

#[test]
fn a_client_that_cannot_connect_shows_no_secret() {
    let server = server();
    let address = server.address();
    let is_refused = |error: &Error| matches!(error, Error::Authentication { .. });
    let is_away = |error: &Error| matches!(error, Error::Unreachable { .. });
    let asks = |url: &str| {
        Client::builder().url(url).credentials(|| Ok(Credentials::new("nobody", SECRET)))
    };
    let wrong = format!("redis://nobody:{IN_URL}@{address}/");
    assert!(is_refused(&built(Client::builder().url(&wrong)).unwrap_err()));
    assert!(is_refused(&built(asks(&server.url())).unwrap_err()));
    let nowhere = format!("redis://nobody:{IN_URL}@127.0.0.1:1/");
    assert!(is_away(&built(Client::builder().url(&nowhere)).unwrap_err()));
    assert!(is_away(&built(asks(&nowhere)).unwrap_err()));
    let unknown = format!("redis://nobody:{IN_URL}@name.invalid/");
    assert!(is_away(&built(Client::builder().url(&unknown)).unwrap_err()));
    #[cfg(unix)]
    {
        let unix = format!("unix:///nowhere?pass={IN_URL}");
        assert!(is_away(&built(Client::builder().url(&unix)).unwrap_err()));
        let unix = format!("unix://{}?pass={IN_URL}", server.unix_socket().display());
        assert!(is_refused(&built(Client::builder().url(&unix)).unwrap_err()));
    }
    // It panics with the secret in its message.
    let panics = Client::builder()
        .url(&server.url())
        .credentials(|| std::panic::panic_any(SECRET.to_owned()));
    assert!(is_away(&built(panics).unwrap_err()));
}

#[test]
fn a_server_error_that_repeats_the_command_shows_no_secret() {
    let setup = ProxiedServer::new();
    let answers = [
        format!("-ERR unknown command 'AUTH', with args beginning with: 'family' '{SECRET}' \r\n"),
        format!("-WRONGPASS {SECRET} is wrong\r\n"),
        format!("-{SECRET} {SECRET}\r\n"),
    ];
    for answer in answers {
        let fault = Fault::AnswerInstead(answer.into_bytes());
        let aim = setup.proxy.on(|request| request.name() == "AUTH", fault);
        let url = format!("redis://family:{IN_URL}@{}/", setup.proxy.address());
        built(Client::builder().url(&url)).unwrap_err();
        assert_eq!(aim.hits(), 1);
    }
}

#[test]
fn of_a_server_that_repeats_a_part_of_it() {
    let setup = ProxiedServer::new();
    // A server cuts off what is long, and writes blanks where lines end.
    let long = format!("{SECRET}{}", "x".repeat(200));
    for (secret, repeated) in
        [(long.clone(), long[..128].to_owned()), (format!("{SECRET}\r\ny"), format!("{SECRET}  y"))]
    {
        for (quote, end) in [("'", " "), ("`", ", ")] {
            let said =
                format!("-ERR unknown command {quote}AUTH{quote}, with args beginning with: ");
            let answer =
                format!("{said}{quote}family{quote}{end}{quote}{repeated}{quote}{end}\r\n");
            let fault = Fault::AnswerInstead(answer.into_bytes());
            let aim = setup.proxy.on(|request| request.name() == "AUTH", fault);
            let given = secret.clone();
            let builder = Client::builder()
                .url(&setup.proxy.url())
                .credentials(move || Ok(Credentials::new("family", &given)));
            let error = built(builder).unwrap_err();
            assert!(error.to_string().contains("unknown command"), "{error}");
            assert_eq!(aim.hits(), 1);
        }
    }
}

#[cfg(feature = "tls")]
#[test]
fn a_client_with_a_private_key_shows_no_secret() {
    use crate::common::certificates::believing;
    use wheellock_fixture::{Certificates, ClientCertificates};

    let certificates = Certificates::new();
    let key = certificates.client_key().text();
    let line = key.lines().nth(1).unwrap();
    let bytes = format!("{:?}", line.as_bytes());
    let bytes = bytes.trim_matches(['[', ']']);
    let look = |what: &dyn Debug| {
        let text = format!("{what:?}");
        assert!(!text.contains(line) && !text.contains(bytes), "{text}");
        assert!(!text.contains("s3cret"), "{text}");
    };
    let rule = crate::common::user::RULE.replace(">password", &format!(">{SECRET}"));
    let server =
        Server::builder().user(&rule).tls(&certificates, ClientCertificates::Required).start();
    let url = format!("rediss://family:{IN_URL}@{}/", server.tls_address());
    let builder = Client::builder().url(&url).tls(believing(&certificates));
    look(&believing(&certificates));
    look(&builder);
    let client = built(builder).unwrap();
    look(&client);
    server.kill();
    look(&client.lock("a").try_lock().unwrap_err());
    let stranger = believing(&Certificates::new())
        .client_certificate_pem(certificates.client().text(), format!("{key}{key}"));
    look(&built(Client::builder().url(&url).tls(stranger)).unwrap_err());
    // What is not a certificate and not a key.
    for text in [key, SECRET] {
        for tls in [
            believing(&certificates).authority_pem(text),
            believing(&certificates).client_certificate_pem(text, text),
        ] {
            let builder = Client::builder().url(&url).tls(tls);
            look(&builder);
            look(&built(builder).unwrap_err());
        }
    }
}
