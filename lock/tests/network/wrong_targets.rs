//! A URL that leads to something else: the error says what is there and what to write instead.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::thread;

use wheellock::{Client, Error};
use wheellock_fixture::{Cluster, Fault, Proxy, Sentinels, Server, wait_until};

use crate::common::{SOON, TIMEOUT, built, timed};

/// The error of a client that connects there. It comes at once.
fn refused(url: &str) -> Error {
    let (result, took) = timed(|| Client::builder().url(url).command_timeout(SOON).build());
    assert!(took < SOON, "{took:?}");
    result.unwrap_err()
}

fn says(error: &Error, parts: &[&str]) {
    let text = error.to_string();
    assert!(parts.iter().all(|part| text.contains(part)), "{text}");
}

/// A URL of a kind that names that server.
fn url(scheme: &str, address: impl std::fmt::Display, path: &str) -> String {
    format!("{scheme}://{address}/{path}")
}

#[test]
fn a_node_of_a_cluster_behind_redis_is_an_error() {
    let cluster = Cluster::builder().start(1, 0);
    let address = cluster.nodes()[0].address();
    let error = refused(&url("redis", address, ""));
    says(&error, &[&address.to_string(), "redis-cluster://"]);
    assert!(matches!(error, Error::InvalidUrl { .. }) && !error.is_retryable(), "{error:?}");
    says(&refused(&url("redis", address, "3")), &[&address.to_string(), "redis-cluster://"]);
}

#[test]
fn a_replica_behind_redis_is_an_error_until_it_is_the_master() {
    let master = Server::start();
    let replica = Server::builder().replica_of(master.address()).start();
    let error = refused(&replica.url());
    says(
        &error,
        &[&replica.address().to_string(), &master.address().to_string(), "redis-sentinel://"],
    );
    assert!(matches!(error, Error::Unreachable { .. }) && error.is_retryable(), "{error:?}");
    replica.command(&["REPLICAOF", "NO", "ONE"]);
    let client = built(Client::builder().url(&replica.url()));
    assert!(client.lock("a").try_lock().unwrap().is_some());
    // One that becomes a replica later is named too.
    replica.command(&["REPLICAOF", "127.0.0.1", "1"]);
    let error = client.lock("b").try_lock().unwrap_err();
    says(&error, &["READONLY", &replica.address().to_string()]);
    assert!(error.is_retryable());
}

#[test]
fn a_sentinel_and_its_names_are_told_apart() {
    let sentinels = Sentinels::start();
    let sentinel = sentinels.sentinels()[0].address();
    for scheme in ["redis", "redis-cluster"] {
        let error = refused(&url(scheme, sentinel, ""));
        says(&error, &[&sentinel.to_string(), "redis-sentinel://"]);
    }
    // Others may be started, or learn the name, so these are tried until the time is over.
    let tried = |place, name| {
        let builder = Client::builder().url(&url("redis-sentinel", place, name));
        builder.command_timeout(TIMEOUT).build().unwrap_err()
    };
    says(&tried(sentinel, "other"), &["other", "SENTINEL MASTERS"]);
    says(&tried(sentinels.master().address(), "mymaster"), &["no sentinel", "redis://"]);
}

#[test]
fn a_node_that_does_not_answer_for_its_slots_is_a_transient_error() {
    let cluster = Cluster::builder().start(1, 0);
    let proxy = Proxy::start(cluster.nodes()[0].address());
    // Whether the address hides a cluster is not known then.
    let _silent = proxy.on(|request| request.name() == "CLUSTER", Fault::SwallowReply).always();
    let builder = Client::builder().url(&proxy.url()).command_timeout(TIMEOUT);
    let error = builder.build().unwrap_err();
    assert!(error.is_retryable(), "{error}");
}

#[test]
fn a_single_server_is_no_cluster_and_has_few_databases() {
    let server = Server::start();
    let error = refused(&url("redis-cluster", server.address(), ""));
    says(&error, &[&server.address().to_string(), "no node of a cluster", "redis://"]);
    assert!(matches!(error, Error::InvalidUrl { .. }), "{error:?}");
    says(&refused(&url("redis", server.address(), "9999")), &["9999", "databases"]);
    server.command(&["CONFIG", "SET", "requirepass", "s3cret"]);
    says(&refused(&server.url()), &["NOAUTH", "redis://:PASSWORD@HOST"]);
}

#[test]
fn a_server_without_scripts_is_an_error_of_the_build() {
    for command in ["EVAL", "EVALSHA"] {
        let server = Server::builder().without_command(command).start();
        let error = refused(&server.url());
        let address = server.address().to_string();
        says(&error, &[&address, "no Lua scripts", "unknown command", command]);
        assert!(matches!(error, Error::InvalidUrl { .. }) && !error.is_retryable(), "{error:?}");
        // Built before the server is asked, it is told by its first call.
        let lazy = built(Client::builder().url(&server.url()).connect_lazily());
        assert_eq!(lazy.lock("a").try_lock().map(drop), Err(error.clone()));
        assert_eq!(lazy.ping(), Err(error));
    }
}

#[test]
fn a_user_without_scripts_is_an_error_of_the_build() {
    let user = "nobody on >password ~* &* +@all -@scripting";
    let server = Server::builder().user(user).start();
    let url = server.url().replacen("://", "://nobody:password@", 1);
    let error = refused(&url);
    says(&error, &["NOPERM", "'eval'", "+eval and +evalsha"]);
    assert!(matches!(error, Error::Authentication { .. }) && !error.is_retryable(), "{error:?}");
    server.command(&["ACL", "SETUSER", "nobody", "+eval", "+evalsha"]);
    drop(built(Client::builder().url(&url)));
}

#[test]
fn whether_scripts_run_is_asked_on_a_clients_first_connection() {
    let server = Server::start();
    let calls = |command: &str| server.command_calls(command);
    let client = built(Client::builder().url(&server.url()));
    assert_eq!((calls("eval"), calls("evalsha")), (1, 1));
    server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    wait_until("it has connected again", SOON, || {
        client.ping().is_ok() && client.stats().connections_made > 1
    });
    assert_eq!((calls("eval"), calls("evalsha")), (1, 1));
}

/// A listener that answers the first bytes with these.
fn answering(answer: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serve = move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut bytes = [0; 64];
            if stream.read(&mut bytes).is_ok() {
                drop(stream.write_all(answer));
            }
        }
    };
    thread::Builder::new().name("other-server".to_owned()).spawn(serve).unwrap();
    url("redis", address, "")
}

#[test]
fn a_server_of_another_kind_is_named() {
    let web = answering(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    says(&refused(&web), &["web server", "port"]);
    let tls = answering(&[0x15, 3, 3, 0, 2, 2, 70]);
    says(&refused(&tls), &["rediss://"]);
    let memcached = answering(b"ERROR\r\n");
    says(&refused(&memcached), &["no Redis or Valkey", "port"]);
}

#[cfg(feature = "tls")]
#[test]
fn tls_at_a_port_without_it_is_named() {
    let server = Server::start();
    let url = url("rediss", server.address(), "");
    // Some versions take the handshake for a command and wait for the end of the command. Others
    // answer that the command does not exist.
    let (result, took) = timed(|| Client::builder().url(&url).command_timeout(TIMEOUT).build());
    assert!(took < SOON, "{took:?}");
    says(&result.unwrap_err(), &["no TLS", "redis://"]);
}

#[cfg(unix)]
#[test]
fn a_path_that_is_no_socket_is_named() {
    says(&refused("unix:///etc/hostname"), &["/etc/hostname", "no socket"]);
}
