//! A client of a connection that the redis crate describes.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use crate::common::{built, limited_user};
use wheellock::redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo};
use wheellock::{Client, Error};
use wheellock_fixture::Server;

fn described(address: ConnectionAddr, user: RedisConnectionInfo) -> ConnectionInfo {
    address.into_connection_info().unwrap().set_redis_settings(user)
}

#[test]
fn the_address_the_database_and_the_user_are_taken() {
    let server = Server::builder().unix_socket().start();
    limited_user(&server, &[]);
    let address = server.address();
    let tcp = ConnectionAddr::Tcp(address.ip().to_string(), address.port());
    let unix = ConnectionAddr::Unix(server.unix_socket().to_owned());
    for address in [tcp, unix] {
        let user = RedisConnectionInfo::default().set_username("limited").set_password("secret");
        let connection = described(address, user.set_db(3));
        let client = built(Client::builder().connection(connection));
        let guard = client.lock("a").lock().unwrap();
        let clients = server.command(&["CLIENT", "LIST"]).text();
        let is_ours = |line: &str| line.contains(" db=3 ") && line.contains(" user=limited ");
        assert!(clients.lines().any(is_ours), "{clients}");
        assert_eq!(server.command(&["EXISTS", "a"]).integer(), 0, "in database 0");
        guard.unlock().unwrap();
    }
}

#[test]
fn a_connection_that_does_not_verify_its_server_is_refused() {
    let address = ConnectionAddr::TcpTls {
        host: "localhost".to_owned(),
        port: 6379,
        insecure: true,
        tls_params: None,
    };
    let error = Client::builder().connection(address).build().unwrap_err();
    assert!(
        matches!(&error, Error::InvalidUrl { reason, .. } if reason.contains("insecure")),
        "{error}"
    );
}
