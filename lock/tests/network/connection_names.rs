//! The names of a client's connections in `CLIENT LIST`.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use wheellock::{Client, ClientBuilder};
use wheellock_fixture::{Server, wait_until};

use crate::common::user::{RULE, refusals, user_url};
use crate::common::{SOON, built};

/// A label with characters that a server refuses in a name.
const LABEL: &str = "größe on\ndb3";
const NAME: &str = " name=wheellock:gr__e_on_db3 ";

fn server() -> Server {
    Server::builder().user(&RULE).start()
}

fn labelled(server: &Server) -> ClientBuilder {
    Client::builder().url(&user_url(&server.url())).label(LABEL)
}

/// The lines of `CLIENT LIST` about the client's connections.
fn connections(server: &Server) -> Vec<String> {
    let list = server.command(&["CLIENT", "LIST"]).text();
    list.lines().filter(|line| line.contains(" user=family ")).map(str::to_owned).collect()
}

/// The connections of two clients, of which one waits for the other: for calls and for messages.
fn connections_while_waiting(server: &Server, client: &Client) -> Vec<String> {
    let guard = client.lock("a").lock().unwrap();
    let other = built(labelled(server));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| other.lock("a").lock().map(drop));
        wait_until("the waiter has subscribed", SOON, || {
            connections(server).iter().any(|line| line.contains(" cmd=subscribe "))
        });
        let connections = connections(server);
        guard.unlock().unwrap();
        waiter.join().unwrap().unwrap();
        connections
    })
}

#[test]
fn each_connection_has_the_name_of_its_client() {
    let server = server();
    let client = built(labelled(&server));
    let connections = connections_while_waiting(&server, &client);
    assert!(connections.len() >= 3, "{connections:?}");
    assert!(connections.iter().all(|line| line.contains(NAME)), "{connections:?}");
}

#[test]
fn user_without_setname_right_is_refused_once_without_warning() {
    let server = server();
    let rule = ["ACL", "SETUSER", "family", "-client|setname"];
    assert_eq!(server.command(&rule).text(), "OK");
    let client = built(labelled(&server));
    let connections = connections_while_waiting(&server, &client);
    assert!(connections.iter().all(|line| line.contains(" name= ")), "{connections:?}");
    assert!(client.warnings().is_empty(), "{:?}", client.warnings());
    // Both clients were refused, and the server counts equal refusals together.
    let refusals = refusals(&server);
    let [refusal] = &*refusals else { panic!("{refusals:?}") };
    assert!(refusal.contains("client|setname"), "{refusal}");
    assert_eq!(refused_calls(&server), 2);
}

/// How often the server has refused to name a connection.
fn refused_calls(server: &Server) -> u64 {
    let statistics = server.command(&["INFO", "commandstats"]).text();
    let line = statistics.lines().find(|line| line.starts_with("cmdstat_client|setname:"));
    let calls = line.and_then(|line| line.split("rejected_calls=").nth(1));
    calls.and_then(|calls| calls.split(',').next()?.parse().ok()).unwrap_or_default()
}
